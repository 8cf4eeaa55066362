"""One dump as the agent works on it: which ranges of its key are read, being read, sent and committed.

Pure state, in the hand of `scheduler`, which locks it. It begins from what the gateway's ledger says is left, and moves
on by what is read and what the gateway says is committed; nothing is durable.
"""

import threading
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random

from menura.errors import MenuraError
from menura.v1 import snapshot_pb2

from agent.runtime.backoff import Backoff
from agent.snapshot.throttle import DumpThrottle
from agent.table_positions import Table

#: speeds are those of so many seconds
METER_SECONDS = 15.0
#: number of the only range of an unchunked snapshot
ONLY_RANGE = 0
RETRY_FIRST_SECONDS = 0.5
RETRY_MOST_SECONDS = 30.0


@dataclass(slots=True)
class Losses:
    """Of the connection while the same rows are read, or a plan is made: they may be what ends the server."""

    #: when the server was started on which the connection was lost last
    lost_on: float | None = None
    #: how often the server was another process afterwards
    restarts: int = 0


@dataclass(slots=True)
class RangeProgress:
    """A range of the plan that is not done."""

    number: int
    upper: str
    #: above this key nothing was read yet
    cursor: str
    #: one of so many next rows can't be read; 0: none is suspected
    suspects: int = 0
    #: since rows of it were read
    losses: Losses = field(default_factory=Losses)
    is_read: bool = False
    is_busy: bool = False

    def narrowed(self, most_rows: int) -> int:
        """How many rows the next chunk asks for, where `most_rows` would be good."""
        return (self.suspects + 1) // 2 if self.suspects else most_rows


@dataclass(frozen=True, slots=True)
class SentChunk:
    """A chunk whose end was sent and which is not committed."""

    number: int
    range: int
    lower: str
    upper: str
    last_of_range: bool
    rows: int


class Meter:
    """Rows and bytes of the last seconds, or since it first saw any."""

    def __init__(self) -> None:
        self._began = 0.0
        self._seen: deque[tuple[float, int, int]] = deque()
        self._lock = threading.Lock()

    def add(self, rows: int, size_bytes: int) -> None:
        with self._lock:
            self._trim()
            now = time.monotonic()
            if not self._seen:
                self._began = now
            self._seen.append((now, rows, size_bytes))

    def per_second(self) -> tuple[int, int]:
        with self._lock:
            self._trim()
            rows, size_bytes = (sum(seen[part] for seen in self._seen) for part in (1, 2))
            seconds = min(METER_SECONDS, max(1.0, time.monotonic() - self._began))
        return int(rows / seconds), int(size_bytes / seconds)

    def _trim(self) -> None:
        oldest = time.monotonic() - METER_SECONDS
        while self._seen and self._seen[0][0] < oldest:
            self._seen.popleft()


@dataclass(slots=True)
class SnapshotProgress:
    order: snapshot_pb2.DumpOrder
    #: number of the next chunk
    next_chunk: int
    ranges: dict[int, RangeProgress] = field(default_factory=dict)
    #: in the order in which they were read
    in_flight: dict[int, SentChunk] = field(default_factory=dict)
    #: it is known how it is read: by the plan that the gateway has recorded, or unchunked
    has_plan: bool = False
    #: read in one snapshot, without ranges
    is_unchunked: bool = False
    #: a plan was sent: the next word is the gateway's
    is_planned: bool = False
    #: tables that its foreign keys follow and that follow others; as it was when it was planned
    above: frozenset[Table] = frozenset()
    #: while its plan is made
    losses: Losses = field(default_factory=Losses)
    is_failed: bool = False
    #: tasks that workers are on
    tasks: int = 0
    #: no part of it is read before
    begins_at: float = 0.0
    #: it had to wait: others of the hour came before it and did not settle its table
    is_repeated: bool = False
    #: when a worker looks again whether `reason` still holds; 0: whoever looks for a task does
    retry_at: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS, Random()))  # noqa: S311
    #: why nothing is read, and since when; "" while something is
    reason: str = ""
    reason_since_us: int = 0
    #: what `reason` is about
    held: snapshot_pb2.DumpStatus.Held = snapshot_pb2.DumpStatus.HELD_UNSPECIFIED
    #: the one that is the reason, if it is one
    error: MenuraError | None = None
    #: what keeps its limits
    throttle: DumpThrottle | None = None
    #: the event that took its table away, if nothing was read since
    gone: str = ""
    #: since when its table was not there
    missing_since: float | None = None
    #: since when its table's stream goes on without it, which must begin with it
    unwanted_since: float | None = None
    #: how its table looked when it could not be read, as it seemed that this was changing
    moved_with: object | None = None
    meter: Meter = field(default_factory=Meter)

    @property
    def dump(self) -> str:
        return self.order.dump

    @property
    def table(self) -> Table:
        return (self.order.table.database, self.order.table.table)

    @property
    def repairs(self) -> bool:
        """Whether it reads ranges of the table alone, and brings their rows."""
        return self.order.HasField("focus") and not self.order.verifies

    @property
    def is_copy(self) -> bool:
        """Whether it brings all rows of the table."""
        return not self.order.verifies and not self.repairs

    def ordered(self, order: snapshot_pb2.DumpOrder) -> None:
        """The newest order. What is left by it counts when it first has a plan; afterwards this knows more."""
        self.order = order
        self.begins_at = time.monotonic() + order.begins_in_seconds
        self.is_repeated = (
            self.is_repeated or order.begins_in_seconds > 0
        )  # an order that comes again says what is left
        self.next_chunk = max(self.next_chunk, order.next_chunk)
        if self.has_plan or not order.HasField("plan"):
            return
        self.has_plan = True
        self.ranges = {left.number: RangeProgress(left.number, left.upper, left.lower) for left in order.remaining}

    def planned(self, *, by_key: bool) -> None:
        """A plan was sent. One with ranges comes back with an order; of a table without a key that is all."""
        self.is_planned = True
        if not by_key:
            self.has_plan = self.is_unchunked = True
            self.ranges = {ONLY_RANGE: RangeProgress(ONLY_RANGE, "", "")}

    def take_number(self) -> int:
        number = self.next_chunk
        self.next_chunk += 1
        return number

    def free_range(self) -> RangeProgress | None:
        return next((left for left in self.ranges.values() if not left.is_read and not left.is_busy), None)

    def sent(self, chunk: SentChunk) -> None:
        """A chunk of a range has been read whole."""
        self.in_flight[chunk.number] = chunk
        left = self.ranges[chunk.range]
        left.cursor, left.is_read = chunk.upper, chunk.last_of_range
        left.suspects, left.losses = max(0, left.suspects - chunk.rows), Losses()

    def committed(self, number: int) -> None:
        self.in_flight.pop(number, None)

    def give_back(self, numbers: Collection[int]) -> None:
        """These chunks are to be read again, and with them all later ones of their ranges."""
        lost: set[int] = set()
        for number, chunk in list(self.in_flight.items()):
            if number in numbers and chunk.range not in lost:
                lost.add(chunk.range)
                left = self.ranges[chunk.range]
                left.cursor, left.is_read, left.suspects = chunk.lower, False, 0
            if chunk.range in lost:
                del self.in_flight[number]

    @property
    def is_read(self) -> bool:
        return self.has_plan and not self.is_unchunked and all(left.is_read for left in self.ranges.values())

    @property
    def uncommitted_rows(self) -> int:
        return sum(chunk.rows for chunk in self.in_flight.values())

    def goes_on(self) -> None:
        """Something was done."""
        self.missing_since = self.moved_with = None
        self.gone = ""
        self.backoff.succeeded()
        self.is_free()

    def is_free(self) -> None:
        """Nothing that was noted holds it any more."""
        self.holds(snapshot_pb2.DumpStatus.HELD_UNSPECIFIED, "")

    def holds(
        self,
        held: snapshot_pb2.DumpStatus.Held,
        reason: str,
        retry_at: float = 0.0,
        error: MenuraError | None = None,
    ) -> None:
        """Nothing is read, for this reason, which is about `held`, and until then."""
        self.retry_at, self.error, self.held = retry_at, error, held
        if reason != self.reason:
            self.reason, self.reason_since_us = reason, time.time_ns() // 1000
