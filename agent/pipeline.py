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
one each for configuration, heartbeat and the certificate. The process keeps on disk what it can make again, in
`state_folder`: a kill at any point costs a read of the log from the last committed cut, and a lost folder a look
through the log for statements that changed tables. What an enrolment has made is no such file: it may be there too.
"""

import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from menura.errors import MenuraError

from agent.errors import SourceUnreachable
from agent.runtime.control import ConfigPlugin, HeartbeatPlugin
from agent.runtime.renewal import Renewal
from agent.runtime.session import GatewayChannel, Stream
from agent.runtime.state import FAILED, START, SourceState
from agent.runtime.state_folder import state_folder_of
from agent.settings import AgentConfig
from agent.source_kind import Context, SourcePlugin, find_kind

log = logging.getLogger("menura.pipeline")

#: how long a start that failed waits for the gateway to hear of it
REPORT_SECONDS = 5.0
STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What the preflight of one source found: lines, or the first error, and what stops no source."""

    source: str
    found: tuple[str, ...]
    error: MenuraError | None
    findings: tuple[MenuraError, ...] = ()


class Agent:
    """All sources of one configuration."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._states = {source.name: SourceState(source) for source in config.sources}
        folder = state_folder_of(config.state_folder, config.agent, os.environ)
        self._plugins = {
            source.name: find_kind(source.kind).make_plugins(
                Context(config.tenant, config.agent, source, self._states[source.name], folder)
            )
            for source in config.sources
        }

    def check(self) -> list[Checked]:
        """Preflight of every source, side by side; one that fails stops no other."""
        with ThreadPoolExecutor(max_workers=min(16, len(self._plugins))) as pool:
            return list(pool.map(self._check, self._plugins.items()))

    def _check(self, named: tuple[str, Sequence[SourcePlugin]]) -> Checked:
        source, plugins = named
        found: list[str] = []
        for plugin in plugins:
            try:
                found.append(plugin.preflight())
            except MenuraError as error:
                return Checked(source, tuple(found), error)
        return Checked(source, tuple(found), None, tuple(finding for plugin in plugins for finding in plugin.findings))

    def run(self, stopping: threading.Event) -> int:
        """Work until `stopping`; returns the exit code: 0, or the first error's when it stops with no source working.

        A source that fails terminally after the start keeps the process: the remedy may be a command of the gateway.
        """
        checked = self.check()
        for result in checked:
            if result.error is not None:
                self._states[result.source].failed(START, result.error)
                log.error(FAILED[True], extra={"fields": {"source": result.source, "error": str(result.error)}})
            else:
                log.info("source ready", extra={"fields": {"source": result.source, "found": "; ".join(result.found)}})
            for finding in result.findings:
                fields = {"source": result.source, "error": str(finding)}
                log.warning("the check has a warning", extra={"fields": fields})
        errors = [result.error for result in checked if result.error is not None]
        hopeless = len(errors) == len(checked) and all(_is_terminal_at_start(error) for error in errors)
        if hopeless:
            log.error("no source can be read: the agent ends", extra={"fields": {"exit_code": errors[0].exit_code}})
        channel = GatewayChannel(self._config)
        renewal = Renewal(self._config.gateway.tls, channel)
        config, heartbeat = ConfigPlugin(self._states, renewal), HeartbeatPlugin(self._states)
        streams = [Stream(channel, config), Stream(channel, heartbeat)]
        if not hopeless:
            streams += [Stream(channel, plugin) for plugins in self._plugins.values() for plugin in plugins]
        for stream in streams:
            stream.start()
        if hopeless:
            heartbeat.acknowledged.wait(REPORT_SECONDS)
        else:
            stopping.wait()
            log.info("stopping")
            known = [state.error() for state in self._states.values()]
            errors = [error for error in known if error is not None and error.terminal]
        renewal.stop()
        self._stop(streams, config, heartbeat)
        channel.close()
        return errors[0].exit_code if len(errors) == len(self._states) else 0

    def _stop(self, streams: list[Stream], config: ConfigPlugin, heartbeat: HeartbeatPlugin) -> None:
        """Every part at the same time, so that the whole takes as long as the slowest."""
        parts = [plugin.stop for plugins in self._plugins.values() for plugin in plugins]
        with ThreadPoolExecutor(max_workers=32) as pool:
            stopped = [pool.submit(stream.stop, STOP_SECONDS) for stream in streams]
            stopped += [pool.submit(part) for part in (*parts, config.stop, heartbeat.stop)]
        for part in stopped:
            part.result()


def _is_terminal_at_start(error: MenuraError) -> bool:
    return error.terminal or isinstance(error, SourceUnreachable)
