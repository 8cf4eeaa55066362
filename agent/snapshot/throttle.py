"""Holds dumps back so that the server's users notice nothing, and says why.

Comes in: the configuration, an order's limits, and what the server says about its load. Goes out: time that passes.
One `Throttle` per source, one `DumpThrottle` per dump, one `WorkerThrottle` per worker. Before a chunk the server must
not be too busy and a window must be open; while rows come in, rates hold, and a chunk asks for no more rows than they
let through while it may take: its SELECT keeps an ALTER of the table waiting. The order's limits stand beside the
configuration's, so they only narrow them. Nothing is durable.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from menura.v1 import snapshot_pb2

from agent.settings import DEFAULT_REPLICA_LAG_SECONDS, DumpConfig

#: the server is asked at most so often
ASK_SECONDS = 1.0
#: a server that was too busy is so until it is below this part of the limit
CALM = 0.8
#: a rate's burst
BURST_SECONDS = 0.5
#: a closed window is looked at again
LONGEST_WAIT_SECONDS = 60.0
#: the reason of a rate is told for so long after it last held
TOLD_SECONDS = 5.0


class ReadCancelled(Exception):
    """The worker's `cancelled` was set while it was held back."""


@dataclass(frozen=True, slots=True)
class Limits:
    """An order's; 0: none."""

    workers: int = 0
    rows_per_second: int = 0
    bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the dump's server is."""

    #: without the thread that asks
    threads_running: int
    is_replica: bool = False
    #: of the slowest of its sources; None: it does not apply changes
    lag_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    held: snapshot_pb2.DumpStatus.Held
    reason: str
    seconds: float


class TokenBucket:
    """A rate that is kept on average; a taker may go into debt and then waits it off."""

    def __init__(self, per_second: int, clock: Callable[[], float]) -> None:
        """0: no limit."""
        self.per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = per_second * BURST_SECONDS
        self._at = clock()

    def take(self, count: int) -> float:
        """Seconds that the taker has to wait."""
        if not self.per_second:
            return 0.0
        with self._lock:
            now = self._clock()
            filled = self._tokens + (now - self._at) * self.per_second
            self._tokens = min(filled, self.per_second * BURST_SECONDS) - count
            self._at = now
            return max(0.0, -self._tokens / self.per_second)


class Throttle:
    """Of one source: all its dumps together."""

    def __init__(
        self,
        source: str,
        config: DumpConfig,
        read_load: Callable[[], Load],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`read_load` may raise a `SourceError`, which then ends whoever asked."""
        self._section = f"sources.{source}.dump"
        self._config = config
        self._read_load = read_load
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._load: Load | None = None
        self._asked_at = 0.0
        self._busy = ""
        self._busy_since = now()
        self.rows = TokenBucket(config.max_rows_per_second, clock)
        self.bytes = TokenBucket(config.max_bytes_per_second, clock)

    def of_dump(self, limits: Limits) -> "DumpThrottle":
        """For one dump; its workers then keep its rates together."""
        return DumpThrottle(self, limits, self._clock)

    def workers(self, limits: Limits) -> int:
        return min(self._config.workers, limits.workers or self._config.workers)

    def hold(self) -> Hold | None:
        """Why no chunk may be read now, and when to ask again."""
        return self._closed() or self._too_busy()

    def rate_reason(self, what: str) -> str:
        limit = self._config.max_rows_per_second if what == "rows" else self._config.max_bytes_per_second
        return f"{self._section}.max_{what}_per_second is {limit}"

    def _closed(self) -> Hold | None:
        windows = self._config.windows
        now = self._now()
        if not windows or any(window.is_open(now) for window in windows):
            return None
        opens_at = min(window.opens_at(now) for window in windows)
        seconds = max(0.0, (opens_at - now).total_seconds())
        reason = f"{self._section}.windows: the next one opens at {opens_at:%Y-%m-%d %H:%M} {opens_at.tzinfo}"
        return Hold(snapshot_pb2.DumpStatus.WINDOW, reason, min(max(seconds, ASK_SECONDS), LONGEST_WAIT_SECONDS))

    def _too_busy(self) -> Hold | None:
        with self._lock:
            now = self._clock()
            if self._load is None or now - self._asked_at >= ASK_SECONDS:
                self._load = self._read_load()
                self._asked_at = self._clock()
                self._judge(self._load)
            if not self._busy:
                return None
            reason = f"{self._busy}, since {self._busy_since:%H:%M:%S} UTC"
            return Hold(snapshot_pb2.DumpStatus.SERVER_BUSY, reason, ASK_SECONDS)

    def _judge(self, load: Load) -> None:
        was_busy = bool(self._busy)
        self._busy = self._over_threads(load, was_busy) or self._over_lag(load, was_busy)
        if self._busy and not was_busy:
            self._busy_since = self._now()

    def _over_threads(self, load: Load, was_busy: bool) -> str:
        limit = self._config.max_threads_running
        if not limit or load.threads_running <= (limit * CALM if was_busy else limit):
            return ""
        return f"{load.threads_running} threads run on the server, {self._section}.max_threads_running is {limit}"

    def _over_lag(self, load: Load, was_busy: bool) -> str:
        limit = self._config.max_replica_lag_seconds
        name = f"{self._section}.max_replica_lag_seconds"
        if limit is None:
            limit = DEFAULT_REPLICA_LAG_SECONDS
        if not limit or not load.is_replica:
            return ""
        if load.lag_seconds is None:
            return f"the dump's replica does not apply changes, {name} is {limit}"
        if load.lag_seconds <= (limit * CALM if was_busy else limit):
            return ""
        return f"the dump's replica is {load.lag_seconds} s behind, {name} is {limit}"


class DumpThrottle:
    """Of one dump order; its workers keep its rates together."""

    def __init__(self, source: Throttle, limits: Limits, clock: Callable[[], float]) -> None:
        self.source = source
        self.limits = limits
        self.clock = clock
        self.rows = TokenBucket(limits.rows_per_second, clock)
        self.bytes = TokenBucket(limits.bytes_per_second, clock)

    @property
    def workers(self) -> int:
        return self.source.workers(self.limits)

    def of_worker(self, cancelled: threading.Event) -> "WorkerThrottle":
        return WorkerThrottle(self, cancelled)


class WorkerThrottle:
    """One worker's; every method may block, and raises `ReadCancelled`."""

    def __init__(self, dump: DumpThrottle, cancelled: threading.Event) -> None:
        self._dump = dump
        self._cancelled = cancelled
        self._slowed = ""
        self._slowed_until = float("-inf")
        #: why no chunk may be read now, set and read whole by two threads; None: one may
        self.hold: Hold | None = None
        #: of the chunk that is being read
        self.held_seconds = 0.0

    @property
    def slowed(self) -> str:
        """Which rate holds the worker, or has in the last seconds; usually empty."""
        return self._slowed if self._dump.clock() < self._slowed_until else ""

    def before_chunk(self) -> None:
        self.held_seconds = 0.0
        try:
            while (hold := self._dump.source.hold()) is not None:
                self.hold = hold
                self._wait(hold.seconds)
        finally:
            self.hold = None
        self._wait(0)

    def most_rows(self, seconds: float, row_bytes: float) -> float:
        """How many rows of this size the rates let through in so many seconds."""
        source, dump = self._dump.source, self._dump
        rates: list[float] = [bucket.per_second for bucket in (source.rows, dump.rows)]
        rates += [bucket.per_second / row_bytes for bucket in (source.bytes, dump.bytes)]
        return min((rate * seconds for rate in rates if rate), default=float("inf"))

    def received(self, count: int) -> None:
        """Bytes, as they come from the socket."""
        self._slow(count, "bytes", self._dump.source.bytes, self._dump.bytes, self._dump.limits.bytes_per_second)

    def rows(self, count: int) -> None:
        self._slow(count, "rows", self._dump.source.rows, self._dump.rows, self._dump.limits.rows_per_second)

    def _slow(self, count: int, what: str, source: TokenBucket, dump: TokenBucket, dump_limit: int) -> None:
        by_source, by_dump = source.take(count), dump.take(count)
        seconds = max(by_source, by_dump)
        if seconds > 0:
            of_dump = f"the dump's own limit is {dump_limit} {what} per second"
            self._slowed = of_dump if by_dump > by_source else self._dump.source.rate_reason(what)
            self._slowed_until = self._dump.clock() + seconds + TOLD_SECONDS
            self.held_seconds += seconds
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        if self._cancelled.wait(seconds) if seconds > 0 else self._cancelled.is_set():
            raise ReadCancelled
