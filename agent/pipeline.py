"""The agent's process, read first. In the order in which data flows:

::

    server ──▶ sources.KIND        the log after a position; its bytes to column buffers, which `filter` lets through
           ──▶ capture             starts: where tables begin; cuts: which cut rows belong to
           ──▶ columnar.encode     Arrow IPC, zstd
           ──▶ capture.task        under byte credit
           ──▶ runtime.session ──▶ gateway

    snapshot   beside the stream: what is dumped next, in which chunks, how fast; the coordinator hands chunks to cuts

What is in `sources` a kind of source brings itself; `capture`, `snapshot`, `columnar`, `runtime`, `positions` and
`table_positions` know none: a kind is an entry point, see `source_kind`.

Threads: per stream one that receives and one of gRPC's that sends; per source one worker that reads changes,
one that looks at its catalog, one that watches the log's end, one that tells of dumps and the workers that read them;
one each for configuration, heartbeat, the certificate and the sources that the control plane configures
(`remote_sources`). The process keeps on disk what it can make again, in `state_folder`: a kill at any point costs a
read of the log from the last committed cut, and a lost folder a look through the log for statements that changed
tables. What an enrolment has made is no such file: it may be there too.
"""

import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from menura.errors import MenuraError

from agent.errors import SourceUnreachable
from agent.remote_sources import RemoteSources
from agent.running_source import Checked, RunningSource, stop_all
from agent.runtime.control import ConfigPlugin, HeartbeatPlugin
from agent.runtime.renewal import Renewal
from agent.runtime.session import GatewayChannel, Stream
from agent.runtime.state import SourceState, SourceStates
from agent.runtime.state_folder import state_folder_of
from agent.settings import AgentConfig, SourceConfig
from agent.source_kind import Context

log = logging.getLogger("menura.pipeline")

#: how long a start that failed waits for the gateway to hear of it
REPORT_SECONDS = 5.0
STOP_SECONDS = 3.0


class Agent:
    """All sources of one configuration, and those that the control plane has configured beside them."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._folder = state_folder_of(config.state_folder, config.agent, os.environ)
        self._states = SourceStates()
        #: how often each source has begun
        self._started: dict[str, int] = {}
        self._own = [self._make(source) for source in config.sources]
        local = frozenset(source.name for source in config.sources)
        self._remote = RemoteSources(config.remote, local, self._folder, self._states, self._make)
        self._at_start = [*self._own, *self._remote.restore()]
        for source in self._at_start:
            self._states.add(source.state)

    def _make(self, source: SourceConfig) -> RunningSource:
        """Not started; no server is asked yet."""
        self._started[source.name] = self._started.get(source.name, 0) + 1
        state = SourceState(source, self._started[source.name])
        return RunningSource(Context(self._config.tenant, self._config.agent, source, state, self._folder))

    def check(self) -> list[Checked]:
        """Preflight of every source, side by side; one that fails stops no other."""
        with ThreadPoolExecutor(max_workers=16) as pool:
            return list(pool.map(RunningSource.check, self._at_start))

    def run(self, stopping: threading.Event) -> int:
        """Work until `stopping`; returns the exit code: 0, or the first error's when it stops with no source working.

        A source that fails terminally after the start keeps the process: the remedy may be a command of the gateway.
        """
        checked = self.check()
        for source, result in zip(self._at_start, checked, strict=True):
            source.take(result)
        errors = [result.error for result in checked if result.error is not None]
        may_change = self._config.remote is not None
        hopeless = not may_change and len(errors) == len(checked) and all(map(_is_terminal_at_start, errors))
        if hopeless:
            log.error("no source can be read: the agent ends", extra={"fields": {"exit_code": errors[0].exit_code}})
        channel = GatewayChannel(self._config)
        renewal = Renewal(self._config.gateway.tls, channel)
        config = ConfigPlugin(self._states, self._remote, renewal)
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
            stopping.wait()
            log.info("stopping")
            known = [state.error() for state in self._states.all()]
            errors = [error for error in known if error is not None and error.terminal]
        renewal.stop()
        running = [*self._own, *self._remote.stop()]
        parts = [part for source in running for part in source.parts()]
        parts += [lambda stream=stream: stream.stop(STOP_SECONDS) for stream in streams]  # type: ignore[misc]
        stop_all([*parts, config.stop, heartbeat.stop])
        channel.close()
        return errors[0].exit_code if errors and len(errors) == len(self._states.all()) else 0


def _is_terminal_at_start(error: MenuraError) -> bool:
    return error.terminal or isinstance(error, SourceUnreachable)
