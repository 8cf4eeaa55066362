"""The ledger of dumps: how far each is, as the cut log says.

Comes in: chunks, events and stops of an entry's cuts, in the log's order, inside the transaction that applies the
entry; so each counts once. Goes out: ranges that moved on, chunks, counts and ends, and what the syncs of the tables
say of their older rows.

A chunk moves its range only from a place that the range has reached: where it is, where it began, or where it was
before the entry that moved it last, since an agent may have been told of it then (the outcome of a commit may be known
late, one entry at most). All below such a place is there, and what was counted above it is counted anew. A sum that SQL
can't keep stays at the greatest number: it is shown, nothing goes by it. Any other
chunk (of a dump or a range that is done, behind a gap, of no known range) does not count: its rows are in the lake and
do no harm there, and what the ledger lacks is read. What each chunk was stands in the cut log; here is only where its
range is, so the ledger does not grow while a dump runs. A dump that the database does not know is one from before it
was built anew: its ranges are followed, but nobody reads on for it.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from menura.bounds import clean_int64, clean_text
from menura.landing import LandedChunk, LandedEvent, LandedStop
from sqlalchemy import ColumnElement, Connection, bindparam, insert, select, update

from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import Document, insert_into
from controlplane_api.dump_lives import OF_PARTS, REPAIR, VERIFICATION, missing_rows
from controlplane_api.models import Dump, DumpRange, Source
from controlplane_api.states import DumpEnd
from gateway.registry import Problem

logger = logging.getLogger(__name__)


_PARTS_BEGIN = {"VERIFICATION_STARTED": VERIFICATION, "REPAIR_STARTED": REPAIR}

LOST = Problem("DUMP_LOST", "The database was built anew from the cut log, which has no plans.", terminal=True, at_us=0)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Where a range is, and what its chunks up to there held."""

    reached: str
    rows: int = 0
    bytes: int = 0
    chunks: int = 0

    def with_chunk(self, chunk: LandedChunk) -> "_Counted":
        return _Counted(
            clean_text(chunk.upper),
            clean_int64(self.rows + chunk.rows),
            clean_int64(self.bytes + chunk.source_bytes),
            self.chunks + 1,
        )


@dataclass(slots=True)
class _Range:
    number: int
    lower: str
    upper: str
    at: _Counted
    #: before the entry that moved it last
    former: _Counted | None = None
    done: bool = False
    #: before this entry
    loaded: _Counted | None = None

    def goes_on_from(self, lower: str) -> _Counted | None:
        """What counts below a chunk that begins there; None where the range has not come to."""
        places = (self.at, self.loaded, self.former, _Counted(self.lower))
        return next((place for place in places if place is not None and place.reached == lower), None)


@dataclass(slots=True)
class _Dump:
    """A row of `dump`, as far as the log moves it."""

    id: int
    table_id: int
    uuid: str
    state: str
    planned_at_us: int | None = None
    ended_at_us: int | None = None
    problem: Document | None = None
    cause: str = ""
    started_gsn: int = 0
    next_chunk: int = 1
    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    ranges: dict[int, _Range] = field(default_factory=dict)


_DUMP_COLUMNS = tuple(column.name for column in fields(_Dump) if column.name != "ranges")
_MOVED_BY_LOG = ("state", "cause", "ended_at_us", "problem", "started_gsn", "next_chunk", "rows", "bytes", "chunks")


@dataclass(frozen=True, slots=True)
class Mention:
    """That an entry says something of a dump; `table_id` is of the table that it says it of."""

    source_id: int
    table_id: int
    uuid: str


class Ledger:
    """The dumps that one entry is about, loaded, moved and stored in its transaction."""

    def __init__(
        self, connection: Connection, mentioned: Iterable[Mention], stopped_tables: Sequence[int], at_us: int
    ) -> None:
        self._connection = connection
        self._at_us = at_us
        self._dumps: dict[tuple[int, str], _Dump] = {}
        self._ranges: dict[tuple[int, int], _Range] = {}
        self._changed: set[tuple[int, str]] = set()
        #: repairs that end with this entry; their ids
        self.repaired: list[int] = []
        #: ... and verifications
        self.verified: list[int] = []
        #: sources of which something else is asked now
        self._asked: set[int] = set()
        mentions = {(each.source_id, each.uuid): each for each in mentioned}
        self._load(list(mentions), stopped_tables)
        for name, mention in mentions.items():
            if name not in self._dumps:
                self._dumps[name] = self._remember_lost(mention)

    def missing_at_start(self, source_id: int, uuid: str) -> str:
        """Why the dump that a table begins with does not bring its older rows; empty when it will."""
        dump = self._dumps[source_id, uuid]
        if dump.state in (DumpEnd.RUNNING, DumpEnd.DONE):
            return ""
        return missing_rows(dump.state, (dump.problem or {}).get("message", ""))

    def chunk(self, source_id: int, table_id: int, chunk: LandedChunk) -> None:
        name = source_id, chunk.dump
        dump = self._dumps[name]
        self._changed.add(name)
        dump.next_chunk = clean_int64(max(dump.next_chunk, chunk.chunk + 1))
        problem = _not_counted(dump, table_id, chunk)
        if problem:
            logger.warning("chunk not counted: dump=%s chunk=%d because=%s", chunk.dump, chunk.chunk, problem)
            return
        before = below = _Counted("")
        if moved := dump.ranges.get(chunk.range):
            before, below = moved.at, moved.goes_on_from(chunk.lower) or below
            moved.at, moved.done = below.with_chunk(chunk), chunk.last_of_range
            self._ranges[dump.id, chunk.range] = moved
        now = below.with_chunk(chunk)
        dump.rows = clean_int64(dump.rows + now.rows - before.rows)
        dump.bytes = clean_int64(dump.bytes + now.bytes - before.bytes)
        dump.chunks += now.chunks - before.chunks

    def event(self, source_id: int, table_id: int, event: LandedEvent) -> str | None:
        """Why the table lacks older rows after it, empty when it is what its source is; None: as before."""
        name = source_id, event.dump
        dump = self._dumps[name]
        if dump.table_id != table_id:
            logger.warning("event of another table's dump: dump=%s kind=%s", event.dump, event.kind)
            return None
        self._changed.add(name)
        self._asked.add(source_id)
        if event.kind in ("VERIFIED", "REPAIRED"):
            if dump.state == DumpEnd.RUNNING:
                (self.repaired if event.kind == "REPAIRED" else self.verified).append(dump.id)
            dump.state, dump.ended_at_us, dump.problem = DumpEnd.DONE, self._at_us, None
            return None
        if event.kind == "DUMPED":
            # Also of one that was cancelled meanwhile: the log has all of it.
            dump.state, dump.ended_at_us, dump.problem = DumpEnd.DONE, self._at_us, None
            return ""
        dump.started_gsn = dump.started_gsn or event.gsn
        if event.kind in _PARTS_BEGIN:
            dump.cause = _PARTS_BEGIN[event.kind]  # where the database was built anew from the log
            return None
        return missing_rows(dump.state, LOST.message) if dump.state == DumpEnd.LOST else None

    def stopped(self, source_id: int, table_id: int, stop: LandedStop) -> str:
        """The table's sync has failed, and its running dump is over: why older rows are missing; empty without one."""
        missing = ""
        for name, dump in self._dumps.items():
            if name[0] == source_id and dump.table_id == table_id and dump.state == DumpEnd.RUNNING:
                problem = Problem("DUMP_SYNC_STOPPED", f"its table's sync failed: {stop.message}", True, self._at_us)
                dump.state, dump.ended_at_us, dump.problem = DumpEnd.CANCELLED, self._at_us, asdict(problem)
                missing = missing_rows(dump.state, problem.message) if dump.cause not in OF_PARTS else missing
                self._changed.add(name)
                self._asked.add(source_id)
        return missing

    def store(self) -> None:
        dumps = [self._dumps[name] for name in sorted(self._changed)]
        if dumps:
            values = [{"of_dump": each.id, **{f"to_{n}": getattr(each, n) for n in _MOVED_BY_LOG}} for each in dumps]
            self._connection.execute(_UPDATE_DUMP, values)
        if self._ranges:
            moved = insert_into(self._connection, DumpRange)
            self._connection.execute(
                moved.on_conflict_do_update(
                    index_elements=[DumpRange.dump_id, DumpRange.number],
                    set_={name: moved.excluded[name] for name in _MOVED_OF_RANGE},
                ),
                [_range_row(dump_id, each) for (dump_id, _), each in sorted(self._ranges.items())],
            )
        if self._asked:
            self._connection.execute(
                update(Source)
                .where(Source.id.in_(sorted(self._asked)))
                .values(dump_generation=Source.dump_generation + 1)
            )

    def _load(self, names: Sequence[tuple[int, str]], stopped_tables: Sequence[int]) -> None:
        for begin in range(0, len(names), LOOKUP_ROWS):
            some = names[begin : begin + LOOKUP_ROWS]
            sources, uuids = {source_id for source_id, _ in some}, [uuid for _, uuid in some]
            self._select(Dump.source_id.in_(sources), Dump.uuid.in_(uuids))
        for begin in range(0, len(stopped_tables), LOOKUP_ROWS):
            of_tables = Dump.table_id.in_(stopped_tables[begin : begin + LOOKUP_ROWS])
            self._select(of_tables, Dump.state == DumpEnd.RUNNING)
        by_id = {dump.id: dump for dump in self._dumps.values()}
        ids = sorted(by_id)
        for begin in range(0, len(ids), LOOKUP_ROWS):
            of_dumps = DumpRange.dump_id.in_(ids[begin : begin + LOOKUP_ROWS])
            for row in self._connection.execute(select(DumpRange).where(of_dumps)):
                at = _Counted(row.reached, row.rows, row.bytes, row.chunks)
                former = _Counted(**row.former) if row.former else None
                by_id[row.dump_id].ranges[row.number] = _Range(
                    row.number, row.lower, row.upper, at, former, row.done, loaded=at
                )

    def _select(self, *matching: ColumnElement[bool]) -> None:
        columns = [getattr(Dump, name) for name in _DUMP_COLUMNS]
        for row in self._connection.execute(select(Dump.source_id, *columns).where(*matching)):
            source_id, *values = row
            dump = _Dump(*values)
            self._dumps.setdefault((source_id, dump.uuid), dump)

    def _remember_lost(self, mention: Mention) -> _Dump:
        problem = asdict(LOST) | {"at_us": self._at_us}
        values: dict[str, Any] = {
            "table_id": mention.table_id, "uuid": mention.uuid, "state": DumpEnd.LOST, "ended_at_us": self._at_us,
            "problem": problem,
        }  # fmt: skip
        made = {"source_id": mention.source_id, "created_at_us": self._at_us, "key": [], **values}
        dump_id = self._connection.execute(insert(Dump).values(made).returning(Dump.id)).scalar_one()
        return _Dump(id=dump_id, **values)


_UPDATE_DUMP = (
    update(Dump)
    .where(Dump.id == bindparam("of_dump"))
    .values({name: bindparam(f"to_{name}") for name in _MOVED_BY_LOG})
)


_MOVED_OF_RANGE = ("reached", "rows", "bytes", "chunks", "former", "done")


def _range_row(dump_id: int, moved: _Range) -> Document:
    former = moved.loaded or _Counted(moved.lower)
    return {
        "dump_id": dump_id, "number": moved.number, "lower": moved.lower, "upper": moved.upper, "done": moved.done,
        "former": asdict(former), **asdict(moved.at),
    }  # fmt: skip


def _not_counted(dump: _Dump, table_id: int, chunk: LandedChunk) -> str:
    """Why the chunk moves nothing; empty when it goes on where its range is or was."""
    if dump.table_id != table_id:
        return "it is of another table"
    if dump.state not in (DumpEnd.RUNNING, DumpEnd.LOST):
        return f"its dump is {dump.state}"
    if dump.state == DumpEnd.LOST:  # its plan is gone: the first chunk of a range shows where that began
        dump.ranges.setdefault(chunk.range, _Range(chunk.range, chunk.lower, "", _Counted(chunk.lower)))
    elif not dump.ranges:
        whole = chunk.last_of_range and not chunk.lower and not chunk.upper and not dump.chunks
        return "" if whole else "there is no plan with its range"
    at = dump.ranges.get(chunk.range)
    if at is None:
        return "the plan has no such range"
    if at.done:
        return "its range is done"
    if chunk.upper == chunk.lower and not chunk.last_of_range:
        return "it holds nothing"
    return "" if at.goes_on_from(chunk.lower) else "its range has not come to where it begins"
