"""The agent's process, read first. In the order in which data flows:

::

    server ──▶ sources.KIND        the log after a position; its bytes to column buffers, which `filter` lets through
           ──▶ capture             starts: where tables begin; cuts: which cut rows belong to
           ──▶ columnar.encode     Arrow IPC, LZ4
           ──▶ capture.task        under byte credit
           ──▶ runtime.session ──▶ gateway

    snapshot   beside the stream: what is dumped next, in which chunks, how fast; the coordinator hands chunks to cuts

What is in `sources` a kind of source brings itself; `capture`, `snapshot`, `columnar`, `runtime`, `positions` and
`table_positions` know none: a kind is an entry point, see `source_kind`.

Threads: per stream one that receives and one of gRPC's that sends; per source one worker that reads changes,
one that looks at its catalog, one that watches the log's end, one that tells of dumps and the workers that read them;
one each for configuration, heartbeat, the certificate, upgrades, the sources that the control plane configures
(`remote_sources`) and the host's policy (`veto`). The process keeps on disk what it can make again, in `state_folder`:
a kill at any point costs a read of the log from the last committed cut, and a lost folder a look through the log for
statements that changed tables. What an enrolment has made is no such file: it may be there too.
"""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from menura.distributions import version
from menura.errors import MenuraError
from menura.v1.catalog_pb2 import TableCard

from agent.errors import Defect, PolicyUnusable, SourceUnreachable
from agent.remote_sources import RemoteSources
from agent.running_source import Checked, RunningSource, stop_all
from agent.runtime.control import ConfigPlugin, HeartbeatPlugin
from agent.runtime.ending import end_within
from agent.runtime.movement import Movement
from agent.runtime.renewal import Renewal
from agent.runtime.service_manager import ServiceManager
from agent.runtime.session import GatewayChannel, Stream
from agent.runtime.state import SourceState, SourceStates
from agent.runtime.state_folder import state_folder_of
from agent.runtime.upgrade import Upgrade
from agent.runtime.upgrade_files import ToldSources, UpgradePlaces
from agent.settings import AgentConfig, SourceConfig
from agent.snapshot.plugin import CatalogPlugin
from agent.source_kind import Context, find_kind
from agent.veto.local_policy import LocalPolicy
from agent.veto.outgoing import OutgoingLook
from agent.veto.policy import Policy, Request, Subject

log = logging.getLogger("menura.pipeline")

#: how long a start that failed waits for the gateway to hear of it
REPORT_SECONDS = 5.0
STOP_SECONDS = 3.0
#: for all parts together, each of which has a limit of its own: then the process ends without them
END_SECONDS = 20.0
#: of a source, as its state names it
POLICY = "policy"


class Agent:
    """All sources of one configuration, and those that the control plane has configured beside them."""

    def __init__(self, config: AgentConfig) -> None:
        """Raises `PolicyUnusable`."""
        self._config = config
        self._policy = LocalPolicy.read(config.policy)
        self._folder = state_folder_of(config.state_folder, config.agent, os.environ)
        self._states = SourceStates()
        #: how often each source has begun
        self._started: dict[str, int] = {}
        self._own = [self._make(source, is_own=True) for source in config.sources]
        local = frozenset(source.name for source in config.sources)
        self._remote = RemoteSources(
            config.remote, local, self._folder, self._states, lambda source: self._make(source, is_own=False)
        )
        self._at_start = [*self._own, *self._remote.restore()]
        for source in self._at_start:
            self._states.add(source.state)

    def _make(self, source: SourceConfig, *, is_own: bool) -> RunningSource:
        """Not started; no server is asked yet. Raises `PolicyDenied`."""
        names = find_kind(source.kind).identifiers
        veto = self._policy.of(Subject(source.name, is_own, names.fold, names.copied_tables))
        if not is_own and (refusal := veto.refusal(Request.CONFIGURATION)) is not None:
            raise refusal
        source = replace(source, filter=replace(source.filter, veto=veto))
        self._started[source.name] = self._started.get(source.name, 0) + 1
        state = SourceState(source, self._started[source.name], self._folder)
        return RunningSource(Context(self._config.tenant, self._config.agent, source, state, self._folder))

    def check(self, checked: Callable[[], None] = lambda: None) -> list[Checked]:
        """Preflight of every source, side by side; one that fails stops no other. `checked` is called after each."""
        results = []
        with ThreadPoolExecutor(max_workers=16) as pool:
            for result in pool.map(RunningSource.check, self._at_start):
                results.append(result)
                checked()
        return results

    @property
    def policy(self) -> Policy:
        """In force now."""
        return self._policy.policy

    def sources(self) -> tuple[SourceConfig, ...]:
        """Those that it begins with."""
        return tuple(source.config for source in self._at_start)

    def tables(self, source: str) -> list[TableCard]:
        """What there is on its servers, whatever may leave. Raises a `SourceError`."""
        cards: list[TableCard] = []
        plugins = [plugin for one in self._at_start if one.config.name == source for plugin in one.plugins]
        for plugin in plugins:
            if isinstance(plugin, CatalogPlugin):
                plugin.preflight()
                plugin.tables(lambda head, found: cards.extend(found))
        return cards

    def run(
        self,
        stopping: threading.Event,
        is_policy_due: threading.Event | None = None,
        manager: ServiceManager | None = None,
    ) -> int:
        """Work until `stopping`; returns the exit code: 0, or the first error's when it stops with no source working.

        At each `is_policy_due` the host's policy is read again. `manager` is told how it goes.
        Servers that can't be reached end it at its start too, where it is no service.
        A source that fails terminally after the start keeps the process: the remedy may be a command of the gateway.
        """
        manager = manager or ServiceManager()
        checked = self.check(manager.starts)
        for source, result in zip(self._at_start, checked, strict=True):
            source.take(result)
        errors = [result.error for result in checked if result.error is not None]
        may_change = self._config.remote is not None
        # as a service it waits for its servers, as it does once it reads: who starts it anew would take it for broken
        waits = bool(manager.address)
        hopeless = not may_change and len(errors) == len(checked)
        hopeless = hopeless and all(_is_terminal_at_start(error, waits=waits) for error in errors)
        if hopeless:
            log.error("no source can be read: the agent ends", extra={"fields": {"exit_code": errors[0].exit_code}})
        channel = GatewayChannel(self._config, OutgoingLook(self._policy).check)
        if is_policy_due is not None:
            threading.Thread(
                target=self._follow_policy, args=(is_policy_due, channel), name=POLICY, daemon=True
            ).start()
        renewal = Renewal(self._config.gateway.tls, channel)
        places = UpgradePlaces.of(self._folder, os.environ)
        upgrade = Upgrade(places, version("menura"), sources=self._states.codes)
        config = ConfigPlugin(self._states, self._remote, renewal, upgrade)
        heartbeat = HeartbeatPlugin(self._states)
        streams = [Stream(channel, config), Stream(channel, heartbeat)]
        if not hopeless:
            for source in self._at_start:
                source.start(channel)
        self._remote.run(channel)
        for stream in streams:
            stream.start()
        if hopeless:
            heartbeat.acknowledged.wait(REPORT_SECONDS)
        else:
            manager.follow(stopping, Movement(self._states, heartbeat, ToldSources(places.folder.parent)))
            log.info("stopping")

        def end() -> None:
            if not hopeless:
                known = [state.error() for state in self._states.all()]
                errors[:] = [error for error in known if error is not None and error.terminal]
            renewal.stop()
            upgrade.stop()
            running = [*self._own, *self._remote.stop()]
            parts = [part for source in running for part in source.parts()]
            parts += [partial(stream.stop, STOP_SECONDS) for stream in streams]
            stop_all([*parts, config.stop, heartbeat.stop])
            channel.close()

        if not end_within(END_SECONDS, end):
            return Defect.exit_code
        return errors[0].exit_code if errors and len(errors) == len(self._states.all()) else 0

    def _follow_policy(self, is_due: threading.Event, channel: GatewayChannel) -> None:
        """In a thread, until the process ends."""
        while True:
            is_due.wait()
            is_due.clear()
            try:
                is_other = self._policy.read_again()
            except PolicyUnusable:
                for state in self._states.all():
                    state.failed(POLICY, _unreadable(state.name))
                continue
            for state in self._states.all():
                state.recovered(POLICY)
            if is_other:
                self._remote.judge_again()
                channel.open_anew()


def _unreadable(source: str) -> PolicyUnusable:
    """Without the file's words, which may name what stays."""
    return PolicyUnusable(
        "reading the policy of the database's host again",
        "it can't be used; the agent's log says why",
        data="The former policy stays in force",
        remedy="The database's owner may correct it, and send the agent SIGHUP",
        source=source,
    )


def _is_terminal_at_start(error: MenuraError, *, waits: bool) -> bool:
    return error.terminal or (isinstance(error, SourceUnreachable) and not waits)
