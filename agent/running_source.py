"""One source while the agent runs it: its state, its plugins, and a stream of each to the gateway."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from menura.errors import MenuraError

from agent.runtime.session import GatewayChannel, Stream
from agent.runtime.state import FAILED, START
from agent.source_kind import Context, find_kind

log = logging.getLogger("menura.pipeline")

STOP_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What the preflight of one source found: lines, or the first error, and what stops no source."""

    source: str
    found: tuple[str, ...]
    error: MenuraError | None
    findings: tuple[MenuraError, ...] = ()


class RunningSource:
    """Made, checked, started and stopped in this order, each once; a check or a start may be left out."""

    def __init__(self, context: Context) -> None:
        """No server is asked yet."""
        self.config = context.source
        self.state = context.state
        self.plugins = find_kind(context.source.kind).make_plugins(context)
        self._streams: list[Stream] = []

    def check(self) -> Checked:
        """Ask its servers."""
        found: list[str] = []
        for plugin in self.plugins:
            try:
                found.append(plugin.preflight())
            except MenuraError as error:
                return Checked(self.config.name, tuple(found), error)
        findings = tuple(finding for plugin in self.plugins for finding in plugin.findings)
        return Checked(self.config.name, tuple(found), None, findings)

    def take(self, checked: Checked) -> None:
        """Say what the check found: in the log, and to whoever asks for the source's state."""
        source = self.config.name
        if checked.error is not None:
            self.state.failed(START, checked.error)
            log.error(FAILED[True], extra={"fields": {"source": source, "error": str(checked.error)}})
        else:
            log.info("source ready", extra={"fields": {"source": source, "found": "; ".join(checked.found)}})
        for finding in checked.findings:
            log.warning("the check has a warning", extra={"fields": {"source": source, "error": str(finding)}})

    def start(self, channel: GatewayChannel) -> None:
        self._streams = [Stream(channel, plugin) for plugin in self.plugins]
        for stream in self._streams:
            stream.start()

    def parts(self) -> list[Callable[[], object]]:
        """What ends it, for threads of their own: together they take as long as the slowest."""
        streams = [partial(stream.stop, STOP_SECONDS) for stream in self._streams]
        return [*streams, *(plugin.stop for plugin in self.plugins)]

    def stop(self) -> None:
        stop_all(self.parts())


def stop_all(parts: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(max_workers=32) as pool:
        stopped = [pool.submit(part) for part in parts]
    for part in stopped:
        part.result()
