"""The coordinator between a source's two plugins: that of the catalog reads chunks of dumps, that of the changes names
them in its cuts.

Comes in from the catalog's: chunks that were read, landed, and wait until the stream has all that they show; dumps that
begin or end; how a table's sync begins. From the changes': where cuts ended, which of these are committed, events
of the tables. Goes out: watermarks for chunks; for a cut, its `Publication`; what must be read again.

Thread-safe, never waits. Nothing is durable. The stream begins anew whenever tables join: where it goes on from
a cut that ended here, watermarks and chunks stay as true as they were, and the next cuts name them. Where it does not
(another agent has read on), they are forgotten, but an unchunked snapshot that no cut has named: its position
does not age. With each forgetting `attempt` grows, and what is read for an older attempt is void: so a chunk never
follows one that was dropped.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from menura.errors import MenuraError
from menura.v1 import changes_pb2

from agent.positions import Position, PositionKind
from agent.snapshot.chunks import Chunk, NamedChunks, WaitingChunks
from agent.snapshot.dump_events import DumpEvents, Ending
from agent.snapshot.publication import Numbers, Publication
from agent.snapshot.unchunked_snapshots import UnchunkedSnapshot, UnchunkedSnapshots
from agent.snapshot.watermarks import Watermark, Watermarks
from agent.table_positions import Table, TablePositions

#: decisions that come close to each other make one new stream
GATHER_SECONDS = 1.0
#: times as long as a stream took to begin, it runs before it begins anew with some of the tables that wait: else the
#: tables that it has would get nothing while many are planned
_RUNS_PER_BEGINNING = 3
#: for so long it waits for a moment without a cut under way, which would be sent again, and chunks with it read again
QUIET_SECONDS = 10.0

_Kind = changes_pb2.TableEvent
#: a cartography from before is another one than from now
_DEFINES = (_Kind.CREATED, _Kind.ALTERED, _Kind.RENAMED, _Kind.DROPPED, _Kind.SWAPPED)
_GONE = (_Kind.DROPPED, _Kind.RENAMED)


class TableStart(Enum):
    """How a table begins whose earlier rows a dump brings, where it is no position."""

    UNDECIDED = "undecided"
    #: at the log's end; chunks bring the rows from before
    KEYED = "keyed"


@dataclass(frozen=True, slots=True)
class TaskTables:
    """What a Replicate asks for, resolved."""

    position_kind: PositionKind
    next_cut: int
    #: the cut before; None: there is none, or its position is of another kind
    committed: Watermark | None
    #: tables that are read on from there
    kept: frozenset[Table]
    #: dumps that tables wait for or begin with
    awaited: Mapping[str, Table]
    #: of those, what was not known when the task began
    undecided: frozenset[str]
    #: whether any table is read
    is_reading: bool
    #: those with which tables begin in the start cut
    unchunked: tuple[UnchunkedSnapshot, ...]


@dataclass(frozen=True, slots=True)
class News:
    """What the catalog's plugin has to do."""

    attempt: int
    #: dump: numbers of chunks that are to be read again
    dropped: Mapping[str, frozenset[int]]
    #: tables that are no longer there: the number and the kind of the event that said it
    gone: Mapping[Table, tuple[int, str]]
    #: unchunked snapshots whose tables can't begin where they were taken
    refused: Mapping[str, MenuraError]


class SnapshotCoordinator:
    """Of one source."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: ends the stream of changes, which then opens anew
        self.reopen: Callable[[], None] = lambda: None
        #: wakes the catalog's plugin; called without the lock held by whoever brings news
        self.on_news: Callable[[], None] = lambda: None
        #: the server's log says that a table is another one than it was
        self.on_definition: Callable[[], None] = lambda: None
        self._attempt = 0
        self._task: TaskTables | None = None
        self._live: frozenset[Table] = frozenset()
        self._watermarks = Watermarks()
        #: ends of cuts that are not committed, and the last that is
        self._sent: deque[Watermark] = deque()
        self._committed: Watermark | None = None
        #: numbers of the newest event that changed a table's definition or took its rows
        self._changed_at: dict[Table, int] = {}
        self._waiting = WaitingChunks()
        self._named = NamedChunks()
        self._events = DumpEvents()
        self._unchunked = UnchunkedSnapshots()
        self._keyed: set[str] = set()
        self._first_decision_at: float | None = None
        self._began_at = 0.0
        #: since when cuts of the task are committed
        self._running_since: float | None = None
        self._dropped: dict[str, set[int]] = {}
        self._gone: dict[Table, tuple[int, str]] = {}
        self._refused: dict[str, MenuraError] = {}
        #: whether a cut may have something to say; read without the lock
        self.is_busy = False

    # --- the side of the catalog

    @property
    def attempt(self) -> int:
        """Of what is not committed; what belongs to an older one is void."""
        with self._lock:
            return self._attempt

    @property
    def position_kind(self) -> PositionKind | None:
        """How the stream keeps positions; None: it is not running."""
        with self._lock:
            return self._task.position_kind if self._task is not None else None

    def is_streamed(self, table: Table) -> bool:
        with self._lock:
            return self._task is not None and table in self._live

    def is_awaited(self, dump: str) -> bool:
        """Whether a table's sync waits for this dump to begin."""
        with self._lock:
            return self._task is not None and dump in self._task.awaited

    def watermark(self, table: Table, low: Position, started_gsn: int) -> int | None:
        """The number for a chunk that is read after `low`; None: the server has not executed any watermark yet."""
        with self._lock:
            found = self._watermarks.newest(table, low, started_gsn)
            return found.gsn if found is not None else None

    def has_watermark(self, started_gsn: int) -> bool:
        """Whether a cut is committed that has the dump's start."""
        with self._lock:
            return self._watermarks.has_from(started_gsn)

    def add(self, chunk: Chunk, of_attempt: int) -> bool:
        """A chunk has been read, after those of its range before it; False: its range is to be read again."""
        with self._lock:
            if of_attempt != self._attempt or self._changed_at.get(chunk.table, 0) > chunk.gsn:
                return False
            self._waiting.add(chunk)
            self._note_busy()
            return True

    def add_unchunked(self, snapshot: UnchunkedSnapshot) -> bool:
        """A table has been read in one snapshot; that always counts."""
        with self._lock:
            self._unchunked.add(snapshot)
            return True

    def landed(self, dump: str, number: int) -> None:
        """The gateway has the chunk; of an unchunked snapshot: the table can begin where it was taken."""
        with self._lock:
            self._waiting.landed(dump, number)
            if self._unchunked.landed(dump, number):
                self._decided(dump)

    def want_start(
        self,
        dump: str,
        table: Table,
        kind: changes_pb2.TableEvent.Kind = _Kind.DUMP_STARTED,
        *,
        tells_anew: bool = False,
    ) -> None:
        """The event of its beginning belongs into a cut as soon as the table is streamed; may be said again."""
        with self._lock:
            self._events.want_start(dump, table, kind, tells_anew=tells_anew)
            self._note_busy()

    def want_end(self, ending: Ending, of_attempt: int) -> bool:
        """That of its end belongs into the first cut that covers its position; False: that is to be read again."""
        with self._lock:
            if of_attempt != self._attempt:
                return False
            self._events.want_end(ending)
            self._note_busy()
            return True

    def is_ending(self, dump: str) -> bool:
        with self._lock:
            return self._events.is_ending(dump)

    def decide_keyed(self, dump: str) -> None:
        """The dump's table is read by key: its stream can begin."""
        with self._lock:
            if dump not in self._keyed:
                self._keyed.add(dump)
                self._decided(dump)

    def _decided(self, dump: str) -> None:
        if self._task is not None and dump in self._task.undecided and self._first_decision_at is None:
            self._first_decision_at = time.monotonic()

    def reopen_if_due(self) -> None:
        """Tables can begin now that could not when the stream of changes began: it has to begin anew."""
        with self._lock:
            if self._task is None or self._first_decision_at is None:
                return
            left = self._task.undecided - self._keyed - set(self._unchunked.landed_dumps())
            now = time.monotonic()
            if left and (now - self._first_decision_at < GATHER_SECONDS or not self._has_run(self._task, now)):
                return
            if self._sent and now - self._first_decision_at < QUIET_SECONDS:
                return
            self._first_decision_at = None
        self.reopen()

    def _has_run(self, task: TaskTables, now: float) -> bool:
        """Whether the stream has had the time that its tables need."""
        if not task.is_reading:
            return True
        since = self._running_since
        return since is not None and now - since >= _RUNS_PER_BEGINNING * (since - self._began_at)

    def confirmed(self, dump: str, number: int) -> None:
        """The gateway says that the chunk is committed."""
        with self._lock:
            self._named.confirmed(dump, number)

    def is_unheard(self) -> bool:
        """Whether the gateway has said nothing for long of a chunk in a cut that it has committed."""
        with self._lock:
            return self._named.is_unheard()

    def forget(self, dump: str) -> frozenset[int]:
        """What of it no cut has named, since it was paused, or is over: the numbers of those chunks."""
        with self._lock:
            self._events.forget(dump)
            self._unchunked.forget(dump)
            self._drop([dump])
            self._note_busy()
            return frozenset(self._dropped.pop(dump, ()))

    def over(self, dump: str) -> None:
        """It will not be asked for again."""
        self.forget(dump)
        with self._lock:
            self._keyed.discard(dump)
            self._events.over(dump)
            self._unchunked.over(dump)
            self._named.over(dump)

    def client_closed(self) -> None:
        """The client's stream is over: the gateway has dropped what was landed."""
        with self._lock:
            self._attempt += 1
            self._waiting.clear()
            self._named.clear()
            self._events.clear()
            self._unchunked.clear()
            self._dropped.clear()
            self._note_busy()

    def news(self) -> News:
        """What has come since the last call."""
        with self._lock:
            dropped = {dump: frozenset(numbers) for dump, numbers in self._dropped.items()}
            news = News(self._attempt, dropped, dict(self._gone), dict(self._refused))
            self._dropped.clear()
            self._gone.clear()
            self._refused.clear()
            return news

    # --- the side of the changes

    def start_of(self, dump: str, position_kind: PositionKind) -> Position | TableStart:
        """Where the stream of a table begins whose sync waits for this dump."""
        with self._lock:
            self._drop_unchunked(self._unchunked.take_other(dump, position_kind))
            start = self._unchunked.start_of(dump)
            if start is not None:
                return start
            return TableStart.KEYED if dump in self._keyed else TableStart.UNDECIDED

    def unchunked(self, dump: str) -> UnchunkedSnapshot | None:
        with self._lock:
            return self._unchunked.get(dump)

    def pending_starts(self) -> list[Position]:
        """Where tables are to begin with their unchunked snapshots, until a committed cut says that they have: a log
        that is kept for its reader alone must still have what follows."""
        with self._lock:
            return self._unchunked.pending_starts()

    def refuse(self, dump: str, error: MenuraError) -> None:
        """The table can't begin where the dump's snapshot was taken."""
        with self._lock:
            self._unchunked.forget(dump)
            self._refused[dump] = error
        self.on_news()

    def begin(self, task: TaskTables) -> None:
        """A Replicate is worked on: cuts from `next_cut` on were lost."""
        with self._lock:
            self._commit(task.next_cut - 1)
            self._sent.clear()
            lost = self._named.take_lost(task.next_cut)
            ours, theirs = self._committed, task.committed
            if ours is not None and theirs is not None and ours.is_same(theirs):
                self._keep(task, ours.gsn, lost)
            else:
                self._forget_read(lost)
            self._events.lose(task.next_cut)
            for snapshot in self._unchunked.take_uncertain(task.awaited.keys()):
                self._drop_unchunked(snapshot)
            self._task = task
            self._began_at, self._running_since = time.monotonic(), None
            decided = self._keyed | set(self._unchunked.landed_dumps())
            self._first_decision_at = time.monotonic() if task.undecided & decided else None
            self._note_busy()
        self.on_news()

    def end(self) -> None:
        """The stream of changes is over; what it has committed the next one's begin says."""
        with self._lock:
            self._task = None
            self._first_decision_at = None
            self._note_busy()
        self.on_news()

    def table_event(self, event: changes_pb2.TableEvent) -> None:
        """Something happened to a table, in a cut that is still to end."""
        table = (event.table.database, event.table.table)
        with self._lock:
            self._changed_at[table] = event.gsn
            self._drop(self._waiting.dumps_of(table))
            if event.kind in _GONE and event.removes_rows:
                self._gone[table] = (event.gsn, _Kind.Kind.Name(event.kind))
            self._note_busy()
        self.on_news()
        if event.kind in _DEFINES:
            self.on_definition()

    def is_ready(self, position: Position, table_positions: TablePositions[Position]) -> bool:
        """Whether a cut that ends at `position` would have something to say."""
        if not self.is_busy:
            return False
        with self._lock:
            place = Watermark(0, 0, position, table_positions.ahead())
            return self._events.is_ready(place, table_positions.is_synced) or self._waiting.is_ready(place)

    def end_cut(
        self, cut: int, position: Position, table_positions: TablePositions[Position], numbers: Numbers
    ) -> Publication:
        """The cut ends here, after all its rows: what it says of dumps, which takes numbers of its own."""
        with self._lock:
            self._live = frozenset(table_positions.synced())
            place = Watermark(cut, 0, position, table_positions.ahead())
            said = Publication(numbers)
            self._unchunked.publish(said, self._task.unchunked if self._task is not None else (), cut)
            self._drop(self._waiting.dumps_outside(self._live))
            for chunk in self._waiting.take_ready(place):
                self._named.add(chunk, cut)
                said.chunk(chunk.dump, chunk.table, chunk.number, chunk.gsn)
            self._events.publish(said, place, self._live)
            self._sent.append(Watermark(cut, numbers.next_gsn - 1, position, place.ahead))
            self._note_busy()
            return said

    def committed(self, cut: int) -> None:
        """The gateway has committed all cuts up to this one."""
        with self._lock:
            self._commit(cut)
            self._running_since = self._running_since or time.monotonic()

    # --- under the lock

    def _commit(self, cut: int) -> None:
        while self._sent and self._sent[0].cut <= cut:
            self._committed = self._sent.popleft()
            self._watermarks.add(self._committed)
        self._named.committed(cut)
        self._unchunked.committed(cut)

    def _keep(self, task: TaskTables, gsn: int, lost: Sequence[Chunk]) -> None:
        """The log up to there passed here, and thus every event of the tables; what lost cuts named, the next ones
        name again."""
        # an event of a lost cut comes again, with another number perhaps; of the one before it nothing is known here
        self._changed_at = {table: min(number, gsn) for table, number in self._changed_at.items()}
        self._waiting.put_back(lost)
        self._drop(self._waiting.dumps_outside(task.kept))
        if not self._live <= task.kept:  # what is read of those that end or begin anew is void
            self._attempt += 1
            self._live &= task.kept

    def _forget_read(self, lost: Sequence[Chunk]) -> None:
        if self._watermarks:  # what is being read stands on one of them
            self._attempt += 1
        self._watermarks, self._committed = Watermarks(), None
        self._changed_at.clear()
        self._live = frozenset()
        self._drop(self._waiting.dumps())
        for chunk in lost:
            self._dropped.setdefault(chunk.dump, set()).add(chunk.number)

    def _drop(self, dumps: Collection[str]) -> None:
        """Chunks that no cut has named; what is being read is void with them."""
        for dump, numbers in self._waiting.drop(dumps).items():
            self._dropped.setdefault(dump, set()).update(numbers)
            self._attempt += 1

    def _drop_unchunked(self, snapshot: UnchunkedSnapshot | None) -> None:
        if snapshot is not None:
            self._dropped.setdefault(snapshot.dump, set()).add(snapshot.number)

    def _note_busy(self) -> None:
        self.is_busy = bool(self._waiting or self._events)
