"""How dumps begin, and how they end before they are complete; what their tables' syncs say then.

Comes in: tables to dump, and dumps that fail, are refused or cancelled, within a transaction that holds the source's
row. Goes out: their rows, and in the syncs of their tables why older rows are missing. A sync that waits for its dump
to begin with begins without it, at the log's end: the source's generation grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from uuid import uuid4

from menura.instants import now_us
from menura.landed_digest import LandedFocus
from sqlalchemy import ColumnElement, Connection, Select, and_, delete, insert, or_, select, update

from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import problem_document
from controlplane_api.models import Dump, DumpRange, DumpStatus, Source, Sync
from controlplane_api.states import DumpEnd, StartKind
from gateway.registry import Problem

#: `Dump.cause` of one that was ordered for rows that the server changed without logging them
REREAD = "reread"

#: of one that brings no rows: its chunks are digests, which the lake compares
VERIFICATION = "verification"

#: of one that brings the rows of ranges of its table's key, which differed
REPAIR = "repair"

#: verifications behind a repair, from which on no other one follows by itself
MOST_PROOFS = 10

#: of those that do not bring all rows of their table
OF_PARTS = (VERIFICATION, REPAIR)

#: of a sync by dump, while the dump runs
NOT_YET = "the dump that brings them is not done"

_ENDS = {
    DumpEnd.FAILED: "the dump that should have brought them failed",
    DumpEnd.REFUSED: "the dump that should have brought them was refused",
    DumpEnd.CANCELLED: "the dump that should have brought them was cancelled",
    DumpEnd.LOST: "the dump that should have brought them was lost",
}


@dataclass(frozen=True, slots=True)
class DumpOptions:
    #: higher ones first; equal ones share
    priority: int = 0
    #: 0: only the agent's own limits
    workers: int = 0
    rows_per_second: int = 0
    bytes_per_second: int = 0
    #: also when the server may not keep its log long enough
    forced: bool = False


DEFAULT_OPTIONS = DumpOptions()


def create_dumps(
    connection: Connection,
    source_id: int,
    tables: Sequence[int],
    options: DumpOptions = DEFAULT_OPTIONS,
    cause: str = "",
    at_us: int | None = None,
    delay_seconds: Mapping[int, int] = MappingProxyType({}),
    *,
    compares: bool = False,
) -> dict[int, str]:
    """A new dump of each of these tables, ordered at this time or now, begun after its delay; their UUIDs by table.

    `compares`: as a step of a comparison.
    """
    if not tables:
        return {}
    made = {table_id: str(uuid4()) for table_id in tables}
    fixed = {
        "source_id": source_id, "state": DumpEnd.RUNNING, "created_at_us": now_us() if at_us is None else at_us,
        "key": [], "cause": cause, "compares": compares, **asdict(options),
    }  # fmt: skip
    rows = [
        {"uuid": uuid, "table_id": table_id, "delay_seconds": delay_seconds.get(table_id, 0), **fixed}
        for table_id, uuid in made.items()
    ]
    connection.execute(insert(Dump), rows)
    if cause == VERIFICATION:
        for begin in range(0, len(tables), LOOKUP_ROWS):
            ordered = Sync.table_id.in_(tables[begin : begin + LOOKUP_ROWS])
            connection.execute(update(Sync).where(ordered).values(verification_ordered_at_us=fixed["created_at_us"]))
    grow_dump_generation(connection, source_id)
    return made


def create_focused(
    connection: Connection,
    source_id: int,
    table_id: int,
    options: DumpOptions,
    cause: str,
    focus: LandedFocus | None,
    at_us: int | None = None,
    delay_seconds: int = 0,
    *,
    compares: bool = False,
) -> str:
    """The same of one table, whose rows are those of a focus, if one is given; its UUID."""
    delays = {table_id: delay_seconds}
    made = create_dumps(connection, source_id, [table_id], options, cause, at_us, delays, compares=compares)
    uuid = made[table_id]
    if focus is not None:
        this = Dump.source_id == source_id, Dump.uuid == uuid
        connection.execute(update(Dump).where(*this).values(focus=asdict(focus)))
    return uuid


def missing_rows(state: str, message: str) -> str:
    """Why a table lacks older rows after its dump ended like this.

    >>> missing_rows("cancelled", "")
    'the dump that should have brought them was cancelled'
    """
    return f"{_ENDS[DumpEnd(state)]}{': ' if message else ''}{message}"


def end_dumps(
    connection: Connection, source_id: int, dumps: Sequence[int], end: DumpEnd, problem: Problem | None, at_us: int
) -> None:
    """End these running dumps of the source (their ids), all for one reason."""
    if not dumps:
        return
    missing = missing_rows(end, problem.message if problem is not None else "")
    begins_without = False
    for begin in range(0, len(dumps), LOOKUP_ROWS):
        ended = Dump.id.in_(dumps[begin : begin + LOOKUP_ROWS])
        waits = _waits_for(ended)
        begins_without = begins_without or connection.execute(select(Sync.table_id).where(waits)).first() is not None
        connection.execute(
            update(Sync)
            .where(or_(waits, and_(Sync.earlier_rows_missing != "", Sync.table_id.in_(_tables_of(ended)))))
            .values(earlier_rows_missing=missing)
        )
        generation = select(Sync.changed_generation).where(Sync.table_id == Dump.table_id).scalar_subquery()
        connection.execute(
            update(Dump)
            .where(ended)
            .values(state=end, ended_at_us=at_us, problem=problem_document(problem), sync_generation=generation)
        )
    grow_dump_generation(connection, source_id)
    if begins_without:
        connection.execute(update(Source).where(Source.id == source_id).values(generation=Source.generation + 1))


def delete_dumps(connection: Connection, dumps: Sequence[int]) -> None:
    """Forget dumps that are over."""
    for begin in range(0, len(dumps), LOOKUP_ROWS):
        some = dumps[begin : begin + LOOKUP_ROWS]
        connection.execute(delete(DumpRange).where(DumpRange.dump_id.in_(some)))
        connection.execute(delete(DumpStatus).where(DumpStatus.dump_id.in_(some)))
        connection.execute(delete(Dump).where(Dump.id.in_(some)))


def grow_dump_generation(connection: Connection, source_id: int) -> None:
    """What is asked of the source's dumps has changed: the gateway says it to the agent."""
    connection.execute(update(Source).where(Source.id == source_id).values(dump_generation=Source.dump_generation + 1))


def _tables_of(dumps: ColumnElement[bool]) -> Select[int]:
    """Those whose rows they were to bring."""
    return select(Dump.table_id).where(dumps, Dump.cause.not_in(OF_PARTS))


def _waits_for(dumps: ColumnElement[bool]) -> ColumnElement[bool]:
    """Syncs that have not begun because they begin with one of the dumps."""
    return and_(Sync.start == StartKind.DUMP, Sync.start_text.in_(select(Dump.uuid).where(dumps)))
