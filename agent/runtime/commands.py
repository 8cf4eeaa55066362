"""What the gateway asks this host to do: how often, and a line of the log for each.

Comes in: requests that restart reads or change what is read. Goes out: for how long such a request has to wait, so that
no gateway keeps a database busy with beginnings; the newest one counts, and is never lost. And lines that say who asked
for what and what became of it, without values; bounded in number, and what was left out stands in the next one.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from menura.bounds import MAX_NAME_CHARS
from menura.v1 import stream_pb2

log = logging.getLogger("menura.commands")

LINES_PER_SECOND: Final = 2.0
BURST_LINES: Final = 200


@dataclass(slots=True)
class Bucket:
    """A token bucket: so many at once, and so many per second. Of one thread.

    >>> now = [0.0]
    >>> bucket = Bucket(per_second=0.5, burst=2, clock=lambda: now[0])
    >>> bucket.take(), bucket.take(), bucket.take()
    (0.0, 0.0, 2.0)
    >>> now[0] = 2.0
    >>> bucket.take()
    0.0
    """

    per_second: float
    burst: float
    clock: Callable[[], float] = time.monotonic
    _level: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._level, self._filled_at = self.burst, self.clock()

    def take(self) -> float:
        """0: one was taken; else none was, and there will be one after so many seconds."""
        now = self.clock()
        self._level = min(self.burst, self._level + (now - self._filled_at) * self.per_second)
        self._filled_at = now
        if self._level < 1:
            return (1 - self._level) / self.per_second
        self._level -= 1
        return 0.0


class CommandLog:
    """Of one stream, whose thread it is."""

    def __init__(self) -> None:
        self._lines = Bucket(LINES_PER_SECOND, BURST_LINES)
        self._left_out = 0

    def obeyed(self, request: stream_pb2.StreamRequest, gateway: str) -> None:
        """`gateway`: as it names itself in HelloAck."""
        facts = _facts(request)
        if facts is None:
            return
        if self._lines.take():
            self._left_out += 1
            return
        header = request.header
        fields: dict[str, object] = {
            "tenant": header.tenant,
            "gateway": gateway,
            "source": header.source or request.desired_state.source,
            "request": request.WhichOneof("payload"),
            **facts,
        }
        if self._left_out:
            fields["left_out_before"] = self._left_out
            self._left_out = 0
        log.info("command", extra={"fields": fields})


def _facts(request: stream_pb2.StreamRequest) -> dict[str, object] | None:
    """What a command says, without what may be a value; None: it is none."""
    match request.WhichOneof("payload"):
        case "desired_state":
            desired = request.desired_state
            return {"generation": desired.generation, "tables": len(desired.tables)}
        case "replicate":
            replicate = request.replicate
            begin = sum(sync.WhichOneof("start") is not None for sync in replicate.tables)
            return {"generation": replicate.generation, "tables": len(replicate.tables), "that_begin": begin}
        case "desired_dumps":
            dumps = request.desired_dumps
            return {"generation": dumps.generation, "dumps": len(dumps.dumps)}
        case "desired_sources":
            return {"sources": len(request.desired_sources.sources)}
        case "desired_version":
            wanted = request.desired_version
            return {"generation": wanted.generation, "version": wanted.package.version[:MAX_NAME_CHARS]}
        case "cartography_request" | "certificate":
            return {}
    return None
