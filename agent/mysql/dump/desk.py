"""The desk between a source's two plugins: the client reads chunks of dumps, the binlog plugin names them in its cuts.

Comes in from the client: chunks that were read, landed, and wait until the stream has all that they show; dumps that
begin or end; how a table's sync begins. From the binlog plugin: where cuts ended, which of these are committed, events
of the tables. Goes out: floors for chunks; for a cut, its `ChunkRef`s and events; what the client must read again.

Thread-safe, never waits. Nothing is durable: whenever the binlog stream begins anew everything that no committed cut
holds is forgotten, but a whole table that no cut has named: its snapshot's position does not age. With each forgetting
`round` grows, and what is read for an older round is void: so a chunk never follows one that was dropped.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from menura.errors import MenuraError
from menura.v1 import mysql_binlog_pb2

from agent.mysql.dump.floors import Floor, Floors
from agent.mysql.positions import Position, Scheme
from agent.mysql.progress import Progress, Table, name_message

#: decisions that come close to each other make one new stream
GATHER_SECONDS = 1.0
#: a chunk that a committed cut has named and of which the gateway says nothing: something is wrong with it
SILENCE_SECONDS = 30.0

_Kind = mysql_binlog_pb2.TableEvent
_GONE = (_Kind.DROPPED, _Kind.RENAMED)


class DumpForgotten(Exception):
    """A table was about to begin with rows that the gateway does not have any more: the stream opens anew."""


class Numbers(Protocol):
    """The decoder's row numbers."""

    def take_gsn(self) -> int: ...

    @property
    def next_gsn(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a key, read."""

    dump: str
    table: Table
    number: int
    range: int
    #: of its floor
    gsn: int
    #: it shows nothing later
    high: Position


@dataclass(frozen=True, slots=True)
class WholeTable:
    """A table's only chunk: all its rows at `position`."""

    dump: str
    table: Table
    number: int
    position: Position


@dataclass(frozen=True, slots=True)
class Ending:
    """A dump whose ranges are all committed."""

    dump: str
    table: Table
    started_gsn: int
    high: Position


class TableStart(Enum):
    """How a table begins whose earlier rows a dump brings, where it is no position."""

    UNDECIDED = "undecided"
    #: at the log's end; chunks bring the rows from before
    KEYED = "keyed"


@dataclass(frozen=True, slots=True)
class TaskTables:
    """What a Replicate asks for, resolved."""

    scheme: Scheme
    next_cut: int
    #: dumps that tables wait for or begin with
    awaited: Mapping[str, Table]
    #: of those, what was not known when the task began
    undecided: frozenset[str]
    #: whole tables that begin in the start cut
    wholes: tuple[WholeTable, ...]


@dataclass(slots=True)
class Publication:
    """What a cut says of dumps."""

    events: list[mysql_binlog_pb2.TableEvent] = field(default_factory=list)
    chunks: list[mysql_binlog_pb2.ChunkRef] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class News:
    """What the client has to do."""

    round: int
    #: dump: numbers of chunks that are to be read again
    dropped: Mapping[str, frozenset[int]]
    #: tables that are no longer there: the number and the kind of the event that said it
    gone: Mapping[Table, tuple[int, str]]
    #: whole tables that can't begin where their snapshot was taken
    refused: Mapping[str, MenuraError]


@dataclass(slots=True)
class _Waiting:
    chunk: Chunk
    is_landed: bool = False


class Desk:
    """Of one source."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: ends the binlog stream, which then opens anew
        self.reopen: Callable[[], None] = lambda: None
        #: wakes the client; called without the lock held by whoever brings news
        self.on_news: Callable[[], None] = lambda: None
        self._round = 0
        self._task: TaskTables | None = None
        self._live: frozenset[Table] = frozenset()
        self._floors = Floors()
        self._sent: deque[Floor] = deque()
        #: numbers of the newest event that changed a table's definition or took its rows
        self._changed_at: dict[Table, int] = {}
        self._queues: dict[tuple[str, int], deque[_Waiting]] = {}
        self._to_start: dict[str, Table] = {}
        self._started_in: dict[str, int] = {}
        self._endings: dict[str, Ending] = {}
        self._ended_in: dict[str, int] = {}
        self._keyed: set[str] = set()
        self._wholes_read: dict[str, WholeTable] = {}
        #: landed
        self._wholes: dict[str, WholeTable] = {}
        self._wholes_named: set[str] = set()
        self._first_decision_at: float | None = None
        #: (dump, chunk): the cut that names it, and since when that is committed while the gateway has not said it
        self._named: dict[tuple[str, int], int] = {}
        self._silent_since: dict[tuple[str, int], float] = {}
        self._dropped: dict[str, set[int]] = {}
        self._gone: dict[Table, tuple[int, str]] = {}
        self._refused: dict[str, MenuraError] = {}
        #: whether a cut may have something to say; read without the lock
        self.is_busy = False

    # --- the client's side

    @property
    def round(self) -> int:
        """Of what is not committed; what belongs to an older one is void."""
        with self._lock:
            return self._round

    @property
    def scheme(self) -> Scheme | None:
        """How the stream keeps positions; None: it is not running."""
        with self._lock:
            return self._task.scheme if self._task is not None else None

    def is_streamed(self, table: Table) -> bool:
        with self._lock:
            return table in self._live

    def is_awaited(self, dump: str) -> bool:
        """Whether a table's sync waits for this dump to begin."""
        with self._lock:
            return self._task is not None and dump in self._task.awaited

    def floor(self, table: Table, low: Position, started_gsn: int) -> int | None:
        """The number for a chunk that is read after `low`; None: the server has not executed any floor yet."""
        with self._lock:
            found = self._floors.newest(table, low, started_gsn)
            return found.gsn if found is not None else None

    def has_floor(self, started_gsn: int) -> bool:
        """Whether a cut is committed that has the dump's start."""
        with self._lock:
            return self._floors.has_from(started_gsn)

    def add(self, chunk: Chunk, of_round: int) -> bool:
        """A chunk has been read, after those of its range before it; False: its range is to be read again."""
        with self._lock:
            if of_round != self._round or self._changed_at.get(chunk.table, 0) > chunk.gsn:
                return False
            self._queues.setdefault((chunk.dump, chunk.range), deque()).append(_Waiting(chunk))
            self._note_busy()
            return True

    def add_whole(self, whole: WholeTable) -> bool:
        """A whole table has been read; that always counts."""
        with self._lock:
            self._wholes_read[whole.dump] = whole
            return True

    def landed(self, dump: str, number: int) -> None:
        """The gateway has the chunk; of a whole table: it can begin where its snapshot was taken."""
        with self._lock:
            for (of_dump, _), queue in self._queues.items():
                for waiting in queue:
                    if of_dump == dump and waiting.chunk.number == number:
                        waiting.is_landed = True
            whole = self._wholes_read.get(dump)
            if whole is not None and whole.number == number:
                self._wholes[dump] = self._wholes_read.pop(dump)
                self._decided(dump)

    def want_start(self, dump: str, table: Table) -> None:
        """DUMP_STARTED belongs into a cut as soon as the table is streamed; may be said again."""
        with self._lock:
            if dump not in self._started_in:
                self._to_start[dump] = table
                self._note_busy()

    def want_end(self, ending: Ending, of_round: int) -> bool:
        """DUMPED belongs into the first cut that covers its position; False: the position is to be read again."""
        with self._lock:
            if of_round != self._round:
                return False
            if ending.dump not in self._ended_in:
                self._endings[ending.dump] = ending
                self._note_busy()
            return True

    def is_ending(self, dump: str) -> bool:
        with self._lock:
            return dump in self._endings or dump in self._ended_in

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
        """Tables can begin now that could not when the binlog stream began: it has to begin anew."""
        with self._lock:
            if self._task is None or self._first_decision_at is None:
                return
            left = [dump for dump in self._task.undecided if dump not in self._keyed and dump not in self._wholes]
            if left and time.monotonic() - self._first_decision_at < GATHER_SECONDS:
                return
            self._first_decision_at = None
        self.reopen()

    def confirmed(self, dump: str, number: int) -> None:
        """The gateway says that the chunk is committed."""
        with self._lock:
            self._named.pop((dump, number), None)
            self._silent_since.pop((dump, number), None)

    def is_unheard(self) -> bool:
        """Whether the gateway has said nothing for long of a chunk in a cut that it has committed."""
        with self._lock:
            oldest = min(self._silent_since.values(), default=None)
            return oldest is not None and time.monotonic() - oldest > SILENCE_SECONDS

    def forget(self, dump: str) -> frozenset[int]:
        """What of it no cut has named, since it was paused, or is over: the numbers of those chunks."""
        with self._lock:
            self._to_start.pop(dump, None)
            self._endings.pop(dump, None)
            self._wholes.pop(dump, None)
            self._wholes_read.pop(dump, None)
            self._drop([dump])
            self._note_busy()
            return frozenset(self._dropped.pop(dump, ()))

    def over(self, dump: str) -> None:
        """It will not be asked for again."""
        self.forget(dump)
        with self._lock:
            self._keyed.discard(dump)
            self._wholes_named.discard(dump)
            self._started_in.pop(dump, None)
            self._ended_in.pop(dump, None)
            for key in [key for key in {**self._named, **self._silent_since} if key[0] == dump]:
                self._named.pop(key, None)
                self._silent_since.pop(key, None)

    def client_closed(self) -> None:
        """The client's stream is over: the gateway has dropped what was landed."""
        with self._lock:
            self._round += 1
            self._queues.clear()
            self._endings.clear()
            self._to_start.clear()
            self._wholes.clear()
            self._wholes_read.clear()
            self._dropped.clear()
            self._named.clear()
            self._silent_since.clear()
            self._note_busy()

    def news(self) -> News:
        """What has come since the last call."""
        with self._lock:
            dropped = {dump: frozenset(numbers) for dump, numbers in self._dropped.items()}
            news = News(self._round, dropped, dict(self._gone), dict(self._refused))
            self._dropped.clear()
            self._gone.clear()
            self._refused.clear()
            return news

    # --- the binlog plugin's side

    def start_of(self, dump: str, scheme: Scheme) -> Position | TableStart:
        """Where the stream of a table begins whose sync waits for this dump."""
        with self._lock:
            whole = self._wholes.get(dump)
            if whole is not None and (whole.position.gtids is None) is not (scheme is Scheme.FILE):
                self._drop_whole(whole)  # the way of keeping positions has changed meanwhile
            elif whole is not None and dump not in self._wholes_named:
                return whole.position
            return TableStart.KEYED if dump in self._keyed else TableStart.UNDECIDED

    def whole(self, dump: str) -> WholeTable | None:
        with self._lock:
            return self._wholes.get(dump)

    def refuse(self, dump: str, error: MenuraError) -> None:
        """The table can't begin where the dump's snapshot was taken."""
        with self._lock:
            self._wholes.pop(dump, None)
            self._refused[dump] = error
        self.on_news()

    def begin(self, task: TaskTables) -> None:
        """A Replicate is worked on: cuts from `next_cut` on were not committed."""
        with self._lock:
            self._round += 1
            self._forget_uncommitted(task)
            self._task = task
            decided = self._keyed | self._wholes.keys()
            self._first_decision_at = time.monotonic() if task.undecided & decided else None
            self._note_busy()
        self.on_news()

    def end(self) -> None:
        """The binlog stream is over; what it has committed the next one's begin says."""
        with self._lock:
            self._task = None
            self._live = frozenset()
            self._floors = Floors()
            self._sent.clear()
            self._first_decision_at = None
            self._note_busy()
        self.on_news()

    def _forget_uncommitted(self, task: TaskTables) -> None:
        self._floors = Floors()
        self._sent.clear()
        self._changed_at.clear()
        self._drop({dump for dump, _ in self._queues})
        self._endings.clear()
        self._ended_in = {dump: cut for dump, cut in self._ended_in.items() if cut < task.next_cut}
        self._started_in = {dump: cut for dump, cut in self._started_in.items() if cut < task.next_cut}
        for dump, number in [key for key, cut in self._named.items() if cut >= task.next_cut]:
            del self._named[dump, number]
            self._dropped.setdefault(dump, set()).add(number)
        # Whether the gateway still has them nobody knows: they are read again, unless their table has begun.
        for dump in self._wholes_named & task.awaited.keys():
            whole = self._wholes.get(dump)
            if whole is not None:
                self._drop_whole(whole)
        self._wholes_named.clear()

    def table_event(self, event: mysql_binlog_pb2.TableEvent) -> None:
        """Something happened to a table, in a cut that is still to end."""
        table = (event.table.database, event.table.table)
        with self._lock:
            self._changed_at[table] = event.gsn
            self._drop({dump for (dump, _), queue in self._queues.items() if queue and queue[0].chunk.table == table})
            if event.kind in _GONE and event.removes_rows:
                self._gone[table] = (event.gsn, _Kind.Kind.Name(event.kind))
            self._note_busy()
        self.on_news()

    def is_ready(self, position: Position, progress: Progress) -> bool:
        """Whether a cut that ends at `position` would have something to say."""
        if not self.is_busy:
            return False
        with self._lock:
            place = Floor(0, 0, position, progress.ahead())
            if any(progress.is_synced(table) for table in self._to_start.values()):
                return True
            if any(place.covers(ending.table, ending.high) for ending in self._endings.values()):
                return True
            heads = [queue[0] for queue in self._queues.values() if queue]
            return any(head.is_landed and place.covers(head.chunk.table, head.chunk.high) for head in heads)

    def end_cut(self, cut: int, position: Position, progress: Progress, numbers: Numbers) -> Publication:
        """The cut ends here, after all its rows: what it says of dumps, which takes numbers of its own."""
        with self._lock:
            self._live = frozenset(progress.synced())
            place = Floor(cut, 0, position, progress.ahead())
            said = Publication()
            self._name_wholes(said, numbers)
            self._name_chunks(said, place)
            self._name_starts(said, cut, numbers)
            self._name_endings(said, place, numbers)
            self._sent.append(Floor(cut, numbers.next_gsn - 1, position, place.ahead))
            self._note_busy()
            return said

    def committed(self, cut: int) -> None:
        """The gateway has committed all cuts up to this one."""
        with self._lock:
            while self._sent and self._sent[0].cut <= cut:
                self._floors.add(self._sent.popleft())
            now = time.monotonic()
            for key in [key for key, in_cut in self._named.items() if in_cut <= cut]:
                del self._named[key]
                self._silent_since[key] = now

    # --- a cut's words

    def _name_wholes(self, said: Publication, numbers: Numbers) -> None:
        """In the start cut."""
        wholes = self._task.wholes if self._task is not None else ()
        for whole in wholes:
            if whole.dump in self._wholes_named:
                continue
            if self._wholes.get(whole.dump) != whole:
                raise DumpForgotten
            self._wholes_named.add(whole.dump)
            said.events.append(_event(_Kind.DUMPED, whole.dump, whole.table, numbers.take_gsn(), whole.position))
            said.events[-1].removes_rows = True
            said.chunks.append(_reference(whole.dump, whole.table, whole.number, numbers.take_gsn()))

    def _name_chunks(self, said: Publication, place: Floor) -> None:
        """Those of a range in their order."""
        for (dump, _), queue in list(self._queues.items()):
            while queue and queue[0].is_landed and place.covers(queue[0].chunk.table, queue[0].chunk.high):
                chunk = queue[0].chunk
                if chunk.table not in self._live:
                    self._drop([dump])
                    break
                queue.popleft()
                self._named[dump, chunk.number] = place.cut
                said.chunks.append(_reference(dump, chunk.table, chunk.number, chunk.gsn))

    def _name_starts(self, said: Publication, cut: int, numbers: Numbers) -> None:
        for dump, table in list(self._to_start.items()):
            if table in self._live:
                del self._to_start[dump]
                self._started_in[dump] = cut
                said.events.append(_event(_Kind.DUMP_STARTED, dump, table, numbers.take_gsn(), None))

    def _name_endings(self, said: Publication, place: Floor, numbers: Numbers) -> None:
        for dump, ending in list(self._endings.items()):
            if ending.table in self._live and place.covers(ending.table, ending.high):
                del self._endings[dump]
                self._ended_in[dump] = place.cut
                said.events.append(_event(_Kind.DUMPED, dump, ending.table, numbers.take_gsn(), ending.high))
                said.events[-1].removes_rows_before_gsn = ending.started_gsn

    # --- under the lock

    def _drop(self, dumps: Iterable[str]) -> None:
        """Chunks that no cut has named; what is being read is void with them."""
        of = set(dumps)
        for key in [key for key in self._queues if key[0] in of]:
            numbers = {waiting.chunk.number for waiting in self._queues.pop(key)}
            if numbers:
                self._dropped.setdefault(key[0], set()).update(numbers)
                self._round += 1

    def _drop_whole(self, whole: WholeTable) -> None:
        del self._wholes[whole.dump]
        self._dropped.setdefault(whole.dump, set()).add(whole.number)

    def _note_busy(self) -> None:
        self._queues = {key: queue for key, queue in self._queues.items() if queue}
        self.is_busy = bool(self._queues or self._to_start or self._endings)


def _event(
    kind: mysql_binlog_pb2.TableEvent.Kind, dump: str, table: Table, gsn: int, position: Position | None
) -> mysql_binlog_pb2.TableEvent:
    return mysql_binlog_pb2.TableEvent(
        table=name_message(table),
        kind=kind,
        gsn=gsn,
        commit_timestamp_us=time.time_ns() // 1000,
        position=str(position) if position is not None else "",
        dump=dump,
    )


def _reference(dump: str, table: Table, number: int, gsn: int) -> mysql_binlog_pb2.ChunkRef:
    return mysql_binlog_pb2.ChunkRef(table=name_message(table), dump=dump, chunk=number, gsn=gsn)
