"""Makes the agent's sources those that the control plane has configured; one thread does it, by level.

::

    DesiredSources ─▶ read by the kind's own parser ─▶ its servers checked ─▶ stored ─▶ the former stopped, this started
                      refused: the former goes on       (of a change)         durable   EffectiveSources says so

What can't be read, or whose servers refuse it while a former configuration runs, is refused by name, and tried again
every few seconds: the file that it names may come. A source that is new runs at once, as one of the agent's own file
does. Where a gateway changes its mind faster than sources may begin, what it desires last counts. Sources of the
agent's own file are never touched. A kill before the file is stored leaves the former configuration, one
after it the new one: the next start begins with what is stored, before a gateway answers.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from menura.error_message import as_message
from menura.errors import MenuraError
from menura.naming import is_identity
from menura.source_configuration import MAX_SOURCES, OWN_FILE
from menura.v1 import config_pb2

from agent.config import read_source
from agent.errors import ConfigNotRemote, ConfigSourceLocal, defect
from agent.host_access import RemoteAccess
from agent.remote_document import entry_of, whose
from agent.remote_store import RemoteStore, Stored
from agent.running_source import Checked, RunningSource
from agent.runtime.commands import Bucket
from agent.runtime.session import GatewayChannel
from agent.runtime.state import SourceStates
from agent.settings import SourceConfig
from agent.veto.policy import Request

log = logging.getLogger("menura.remote")

RETRY_SECONDS = 10.0
#: a check of a server may take longer; it then ends with the process
END_SECONDS = 3.0
#: how often a source of this host is made, whatever the gateway says: each time its servers are asked
STARTS_PER_SECOND, BURST_STARTS = 5.0, 100
_KEPT = "What ran before goes on, if something did"


class RemoteSources:
    def __init__(
        self,
        access: RemoteAccess | None,
        local: frozenset[str],
        folder: Path,
        states: SourceStates,
        make: Callable[[SourceConfig], RunningSource],
    ) -> None:
        """`access` None: the agent's own file lets the control plane configure nothing. `local` are of that file."""
        self._access = access
        self._local = local
        self._store = RemoteStore(folder)
        self._states = states
        self._make = make
        self._changed = threading.Condition()
        self._desired: config_pb2.DesiredSources | None = None
        self._is_due = False
        self._stopping = False
        self._on_change: Callable[[], None] = lambda: None
        #: the next three are written by the one thread that makes the sources
        self._stored: dict[str, Stored] = {}
        self._running: dict[str, RunningSource] = {}
        self._errors: dict[str, MenuraError] = {}
        self._starts = Bucket(STARTS_PER_SECOND, BURST_STARTS)
        self._thread: threading.Thread | None = None

    # --- at the start, before any gateway answers

    def restore(self) -> list[RunningSource]:
        """Those that ran last, made and not started. What can't be read now is kept, and tried when it is desired."""
        if self._access is None:
            return []
        self._stored = {name: one for name, one in self._store.read().items() if name not in self._local}
        for name, stored in self._stored.items():
            try:
                self._running[name] = self._made(name, stored)
            except MenuraError as error:
                self._note(name, error)
        return list(self._running.values())

    def run(self, channel: GatewayChannel) -> None:
        """Follow what is desired, in a thread, until `stop`."""
        self._thread = threading.Thread(target=self._run, args=(channel,), name="remote sources", daemon=True)
        self._thread.start()

    def stop(self) -> list[RunningSource]:
        """Those that run, for the caller to stop: none is started any more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(END_SECONDS)
        with self._changed:
            return list(self._running.values())

    # --- by Control_Config

    def tell(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change

    def desire(self, desired: config_pb2.DesiredSources) -> None:
        with self._changed:
            self._desired, self._is_due = desired, True
            self._changed.notify_all()

    def judge_again(self) -> None:
        """The host's policy has changed: some may run no longer, others may now."""
        with self._changed:
            self._is_due = True
            self._changed.notify_all()

    def effective(self) -> config_pb2.EffectiveSources | None:
        with self._changed:
            if self._desired is None or self._is_due:
                return None
            found = config_pb2.EffectiveSources(digest=self._desired.digest)
            for one in self._desired.sources:
                seen = found.sources.add(source=one.source)
                if one.source in self._running:
                    stored = self._stored[one.source]
                    seen.generation, seen.sha256 = stored.generation, stored.sha256
                elif one.source in self._local:
                    seen.sha256 = OWN_FILE
                if one.source in self._errors:
                    seen.error.CopyFrom(as_message(self._errors[one.source]))
        found.running.extend(state.hello() for state in self._states.all())
        return found

    # --- the thread

    def _run(self, channel: GatewayChannel) -> None:
        while True:
            with self._changed:
                wait = RETRY_SECONDS if self._errors and self._desired is not None else None
                self._changed.wait_for(lambda: self._stopping or self._is_due, wait)
                if self._stopping:
                    return
                desired, self._is_due = self._desired, False
            self._end_refused()
            if desired is not None:
                self._follow(desired, channel)
                self._on_change()

    def _end_refused(self) -> None:
        """Those that the host's policy lets run no longer; they stay stored, in case that it does again."""
        for name, source in list(self._running.items()):
            refusal = source.state.refusal(Request.CONFIGURATION)
            if refusal is not None:
                self._end(source)
                self._note(name, refusal)

    def _follow(self, desired: config_pb2.DesiredSources, channel: GatewayChannel) -> None:
        wanted = {one.source: one for one in desired.sources[:MAX_SOURCES] if is_identity(one.source)}
        with self._changed:
            self._errors = {name: error for name, error in self._errors.items() if name in wanted}
        for name in self._stored.keys() - wanted.keys():
            self._remove(name)
        for name, one in sorted(wanted.items()):
            stored = Stored(one.generation, one.sha256, one.document)
            if not self._is_settled(name, stored) and not self._may_begin():
                return  # something newer is desired
            error = self._bring(name, stored, channel)
            if error is not None:
                self._note(name, error)
            elif name in self._errors:
                with self._changed:
                    del self._errors[name]

    def _is_settled(self, name: str, wanted: Stored) -> bool:
        """Whether nothing begins for it: it runs so, or is refused as it is."""
        runs_so = name in self._running and self._stored[name] == wanted
        return runs_so or self._access is None or name in self._local

    def _may_begin(self) -> bool:
        """Waits for its turn; False where something newer is desired meanwhile, or nothing any more."""
        with self._changed:
            while not self._stopping and not self._is_due:
                wait_seconds = self._starts.take()
                if not wait_seconds:
                    return True
                self._changed.wait(wait_seconds)
            return False

    def _bring(self, name: str, wanted: Stored, channel: GatewayChannel) -> MenuraError | None:
        """Let the source run so; returns why it does not."""
        if self._access is None:
            return _not_remote(name)
        if name in self._local:
            return _is_local(name)
        former = self._running.get(name)
        try:
            if former is not None and self._stored[name].sha256 == wanted.sha256:
                if self._stored[name] != wanted:
                    self._keep({**self._stored, name: wanted})
                return None
            source, checked = self._accepted(name, wanted, replaces=former is not None)
        except MenuraError as error:
            return error
        except Exception as unexpected:  # a kind's own code, over what somebody else has written
            log.exception("defect", extra={"fields": {"source": name}})
            return defect(f"reading the configuration {whose(name)}", unexpected, name)
        if former is not None:
            self._end(former)
        source.take(checked)
        with self._changed:
            if self._stopping:
                return None
            self._running[name] = source
        self._states.add(source.state)
        self._on_change()  # first: a gateway takes the streams of sources that it has heard of
        source.start(channel)
        log.info("source configured", extra={"fields": {"source": name, "generation": wanted.generation}})
        return None

    def _accepted(self, name: str, wanted: Stored, *, replaces: bool) -> tuple[RunningSource, Checked]:
        """Made, its servers asked, and stored; raises why not. In the place of another one its servers must be well."""
        source = self._made(name, wanted)
        with ExitStack() as undo:
            undo.callback(source.stop)
            checked = source.check()
            if checked.error is not None and replaces:
                raise checked.error
            self._keep({**self._stored, name: wanted})
            undo.pop_all()
        return source, checked

    def _made(self, name: str, stored: Stored) -> RunningSource:
        assert self._access is not None
        return self._make(read_source(name, entry_of(name, stored.document, stored.sha256, self._access)))

    def _remove(self, name: str) -> None:
        try:
            self._keep({other: one for other, one in self._stored.items() if other != name})
        except MenuraError as error:
            self._note(name, error)
            return
        former = self._running.get(name)
        if former is not None:
            self._end(former)
        log.info("source removed", extra={"fields": {"source": name}})

    def _end(self, former: RunningSource) -> None:
        with self._changed:
            del self._running[former.config.name]
        self._states.remove(former.config.name)
        former.stop()

    def _keep(self, stored: Mapping[str, Stored]) -> None:
        self._store.write(stored)
        with self._changed:
            self._stored = dict(stored)

    def _note(self, name: str, error: MenuraError) -> None:
        """Each is logged once."""
        with self._changed:
            is_known = str(self._errors.get(name, "")) == str(error)
            self._errors[name] = error
        if not is_known:
            log.warning("configuration refused", extra={"fields": {"source": name, "error": str(error)}})


def _not_remote(name: str) -> ConfigNotRemote:
    return ConfigNotRemote(
        f"reading the configuration {whose(name)}",
        "the agent's own file does not let the control plane configure sources",
        data="Nothing was changed",
        remedy="Add remote: {} to the agent's file and restart the agent; remote.hosts allows other hosts than its own",
        source=name,
    )


def _is_local(name: str) -> ConfigSourceLocal:
    return ConfigSourceLocal(
        f"reading the configuration {whose(name)}",
        f"the agent's own file has sources.{name}, and that one wins",
        data="It goes on as that file says",
        remedy=f"Take it out of the agent's file and restart the agent, or run: menura sources remove {name}",
        source=name,
    )
