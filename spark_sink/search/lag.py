"""How far an index is behind the lake.

Comes in: the lake's records of cuts, and how far an index is. Goes out: both cuts, and the time since the lake had what
the index has not. Nothing is changed.

Reading the records takes as long as the lake's store does, so that who answers many searches asks `Lags`, which knows
of each source what it has seen last: it is good for `FRESH_SECONDS`, and while it is read again for `KNOWN_SECONDS`.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread

import pyarrow as pa
from deltalake.exceptions import DeltaError
from menura.instants import now_us
from menura.stores.reasons import reason_of

from spark_sink.errors import SinkError, TableNotInLake
from spark_sink.lake.boundaries import Boundary, read_boundaries, states_at
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.records import Records
from spark_sink.search.entries import Reached
from spark_sink.work import TableId

FRESH_SECONDS, KNOWN_SECONDS = 1.0, 10.0
#: for a look where nothing is known; beyond it the lag is not known
WAIT_SECONDS = 2.0
MOST_SOURCES = 64
READERS = 2
#: of an index of which `Reached.is_between`
BETWEEN = "a process was ended in the midst of what came later, and some of that is there"
#: of the lake's store
STORE_FAILURES = (OSError, DeltaError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class Lag:
    """`seconds`: since the lake had what the index has not; 0: the index has all."""

    index_cut: int
    lake_cut: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What the lake has of a source, as it was read."""

    lake: str
    #: by cut
    boundaries: Sequence[Boundary]
    #: of each table's changelog, at the newest of these
    versions: Mapping[TableId, int | None]

    @classmethod
    def look(cls, lake: str, tenant: str, source: str) -> "SourceSeen":
        """Raises `STORE_FAILURES`."""
        cuts = open_table(Records(lake).cuts_folder)
        found = read_boundaries(cuts, tenant, source).found
        states = states_at(cuts, tenant, source, found[-1].cut) if cuts is not None and found else {}
        return cls(lake, found, {table: state.changelog_version for table, state in states.items()})

    def lag(self, table: TableId, reached: Reached) -> Lag:
        """Raises `TableNotInLake`."""
        if table not in self.versions:
            raise TableNotInLake(
                "comparing an index's cut",
                f"{self.lake} has no cut with {table}",
                remedy="Check the lake's address: --lake",
            )
        newest = self.boundaries[-1].cut
        if self.versions[table] == reached.position.version:
            return Lag(newest, newest, 0.0)
        later = next((each for each in self.boundaries if each.cut > reached.cut), self.boundaries[-1])
        return Lag(reached.cut, newest, max(0.0, (now_us() - later.applied_at_us) / 1e6))


def store_reason(failure: Exception) -> str:
    """Of one of `STORE_FAILURES`."""
    return f"a store failed: {reason_of(failure) if isinstance(failure, OSError) else type(failure).__name__}"


def lag_of(lake: str, table: TableId, reached: Reached) -> Lag:
    """Raises `TableNotInLake`, `STORE_FAILURES`."""
    return SourceSeen.look(lake, table.tenant, table.source).lag(table, reached)


Look = Callable[[str, str, str], SourceSeen]


@dataclass(slots=True)
class _Known:
    #: the newest; None: nobody has asked yet
    reading: "Future[SourceSeen] | None" = None
    seen: SourceSeen | None = None
    at: float = -math.inf


class Lags:
    """Safe from any thread. `READERS` threads read, of each source once at a time; they end with the process."""

    def __init__(self, look: Look = SourceSeen.look) -> None:
        self._look = look
        self._lock = Lock()
        self._known: OrderedDict[tuple[str, str, str], _Known] = OrderedDict()
        self._asked: SimpleQueue[tuple[tuple[str, str, str], _Known, Future[SourceSeen]]] = SimpleQueue()
        for _ in range(READERS):
            Thread(target=self._read, name="lag", daemon=True).start()

    def of(self, lake: str, table: TableId, reached: Reached) -> Lag | str:
        """Or why that is not known now."""
        known, reading = self._turn((lake, table.tenant, table.source))
        try:
            seen = known.seen
            if seen is None or time.monotonic() - known.at > KNOWN_SECONDS:
                seen = reading.result(WAIT_SECONDS)
            return seen.lag(table, reached)
        except TimeoutError:
            return f"the lake has not answered within {WAIT_SECONDS:g} s"
        except STORE_FAILURES as failure:
            return store_reason(failure)
        except SinkError as failure:
            return failure.found

    def _turn(self, source: tuple[str, str, str]) -> "tuple[_Known, Future[SourceSeen]]":
        """What is known of a source, which is read again where that is old."""
        with self._lock:
            known = self._known.setdefault(source, _Known())
            self._known.move_to_end(source)
            if len(self._known) > MOST_SOURCES:
                self._known.popitem(last=False)
            is_old = time.monotonic() - known.at > FRESH_SECONDS
            if known.reading is None or (is_old and known.reading.done()):
                known.reading = Future()
                self._asked.put((source, known, known.reading))
            return known, known.reading

    def _read(self) -> None:
        while True:
            source, known, reading = self._asked.get()
            try:
                known.seen, known.at = self._look(*source), time.monotonic()
                reading.set_result(known.seen)
            except BaseException as failure:  # noqa: BLE001  (raised again where it is waited for)
                reading.set_exception(failure)
