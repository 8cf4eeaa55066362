"""Commands: start and stop the sync of tables.

Comes in: tables of one source and what is wanted. Goes out: one transaction that changes their syncs and
lets the source's generation grow once, which the gateway notices. A kill leaves all of it or nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from menura.bounds import MAX_SYNCED_TABLES
from menura.errors import MenuraError
from menura.instants import now_us
from menura.naming import TableName, dump_anew, sync_stop
from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, insert, select, update

from controlplane_api import positions
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import problem_document
from controlplane_api.dump_lives import DEFAULT_OPTIONS, DumpOptions, create_dumps, end_dumps
from controlplane_api.errors import RequestInvalid, SyncRunning, TableDenied, TablesTooMany, TableUnknown
from controlplane_api.lookups import among
from controlplane_api.lost_state import is_lost
from controlplane_api.models import AnyRow, CommittedPosition, Dump, Source, SourceTable, Sync
from controlplane_api.states import Desired, DumpEnd, StartKind, State, StoppedBy
from gateway.registry import Problem

MAX_POSITION_CHARS = 65_536


@dataclass(frozen=True, slots=True)
class Start:
    kind: StartKind
    #: for `StartKind.POSITION`: in the server's words, which the agent alone reads
    text: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    database: str
    table: str
    changed: bool
    #: what the user should know of this start; empty when there is nothing
    notice: str = ""
    refused: MenuraError | None = None
    #: UUID of the dump that the table begins with, or that was begun beside its stream
    dump: str = ""


def check_start(start: Start) -> None:
    """Raises `RequestInvalid` for what is no text of a position."""
    if start.kind is not StartKind.POSITION:
        return
    words = " ".join(start.text.split())  # a server may break a long one into lines
    if not words or len(start.text) > MAX_POSITION_CHARS or not words.isprintable():
        raise RequestInvalid(
            "starting a sync at a position",
            f"the position is no text of 1 to {MAX_POSITION_CHARS} characters",
            data="Nothing was changed.",
            remedy="Give it as the server writes it.",
        )


def start_tables(
    connection: Connection,
    source_id: int,
    tables: Sequence[TableName] | None,
    start: Start,
    options: DumpOptions = DEFAULT_OPTIONS,
) -> list[Outcome]:
    """Start syncs; `tables` None means all that are there and not denied. The source's row gets locked.

    `options` are of the dumps that `StartKind.DUMP` makes.
    """
    generation = lock_source(connection, source_id) + 1
    rows = sync_rows(connection, source_id, tables)
    if tables is None:
        tables = [name for name, row in rows.items() if not (row.denied or row.gone)]
    source = source_name(connection, source_id)
    outcomes = [_start_outcome(source, name, rows.get(name), start) for name in tables]
    outcomes = list(_within_room(outcomes, MAX_SYNCED_TABLES - _syncing(connection, source_id)))
    changed = [rows[outcome.database, outcome.table] for outcome in outcomes if outcome.changed]
    by_dump = start.kind is StartKind.DUMP
    dumps = create_dumps(connection, source_id, [row.id for row in changed], options) if by_dump else {}
    values = {
        "desired": Desired.SYNCING, "start": start.kind, "changed_generation": generation, "failed": False,
        "state": State.PENDING, "problem": None, "stopped_by": "",
    }  # fmt: skip
    if start.kind is not StartKind.RESUME:
        values["altered"] = None
    if by_dump:
        values["ignored_columns"] = []  # all rows come anew, with what the filter lets through now
        values["withheld"] = None
    new = [
        {"table_id": row.id, "source_id": source_id, "start_text": dumps.get(row.id, start.text),
         "ignored_columns": [], **values}
        for row in changed
        if row.desired is None
    ]  # fmt: skip
    if new:
        connection.execute(insert(Sync), new)
    again = [
        {"of_table": row.id, "to_text": dumps.get(row.id, start.text)} for row in changed if row.desired is not None
    ]
    if again:
        this = Sync.table_id == bindparam("of_table")
        connection.execute(update(Sync).where(this).values(start_text=bindparam("to_text"), **values), again)
    if changed:
        connection.execute(update(Source).where(Source.id == source_id).values(generation=generation))
    return [
        replace(outcome, dump=dumps.get(rows[outcome.database, outcome.table].id, "")) if outcome.changed else outcome
        for outcome in outcomes
    ]


def lost_tables(connection: Connection, source_id: int) -> list[TableName]:
    """Those of which the database does not know whether they shall be synced."""
    return [name for name, row in sync_rows(connection, source_id, None).items() if is_lost(row.problem)]


def stop_tables(
    connection: Connection,
    source_id: int,
    tables: Sequence[TableName] | None,
    by: StoppedBy = StoppedBy.USER,
) -> list[Outcome]:
    """Stop syncs where they are; `tables` None means all. The source's row gets locked."""
    generation = lock_source(connection, source_id) + 1
    rows = sync_rows(connection, source_id, tables)
    here, ahead = _committed(connection, source_id)
    outcomes, changes = [], []
    for name in tables if tables is not None else rows:
        row = rows.get(name)
        if row is None:
            outcomes.append(Outcome(*name, changed=False, refused=unknown_table(name)))
            continue
        runs = row.desired == Desired.SYNCING
        changes_it = runs or is_lost(row.problem)
        if changes_it or tables is not None:
            outcomes.append(Outcome(*name, changed=changes_it))
        if not changes_it:
            continue
        flows = runs and row.start is None and not row.failed
        changes.append(
            {
                "of_table": row.id,
                "to_generation": generation,
                "to_stopped_by": by,
                "to_problem": row.problem if row.failed else None,
                "to_position": ahead.get(name, here) if flows else row.position_id,
            }
        )
    if changes:
        connection.execute(_UPDATE_STOPPED, changes)
        positions.tidy(connection, source_id)
        _cancel_dumps(connection, source_id, [change["of_table"] for change in changes])
        connection.execute(update(Source).where(Source.id == source_id).values(generation=generation))
    return outcomes


def fail_tables(connection: Connection, source_id: int, problems: Mapping[TableName, Problem]) -> None:
    """Stop syncs that run where they are, each for its problem; the caller holds the source's row."""
    if not problems:
        return
    generation = lock_source(connection, source_id) + 1
    here, ahead = _committed(connection, source_id)
    changes = [
        {
            "of_table": row.id,
            "to_problem": problem_document(problems[name]),
            "to_position": ahead.get(name, here) if row.start is None else row.position_id,
        }
        for name, row in sync_rows(connection, source_id, list(problems)).items()
    ]
    connection.execute(
        update(Sync)
        .where(Sync.table_id == bindparam("of_table"))
        .values(
            failed=True, state=State.FAILED, start=None, start_text="", changed_generation=generation,
            problem=bindparam("to_problem"), position_id=bindparam("to_position"),
        ),
        changes,
    )  # fmt: skip
    positions.tidy(connection, source_id)
    _cancel_dumps(connection, source_id, [change["of_table"] for change in changes])
    connection.execute(update(Source).where(Source.id == source_id).values(generation=generation))


def begin_anew(connection: Connection, source_id: int, dumps: Mapping[TableName, str]) -> None:
    """Let syncs that run begin again, each with its dump; the caller holds the source's row.

    What they have streamed stays: their dump's end removes what it did not bring again.
    """
    if not dumps:
        return
    generation = lock_source(connection, source_id) + 1
    here, ahead = _committed(connection, source_id)
    changes = [
        {
            "of_table": row.id,
            "to_text": dumps[name],
            "to_position": ahead.get(name, here) if row.start is None else row.position_id,
        }
        for name, row in sync_rows(connection, source_id, list(dumps)).items()
    ]
    connection.execute(
        update(Sync)
        .where(Sync.table_id == bindparam("of_table"))
        .values(
            start=StartKind.DUMP, start_text=bindparam("to_text"), position_id=bindparam("to_position"),
            state=State.PENDING, problem=None, changed_generation=generation, ignored_columns=[],
            withheld=None,
        ),
        changes,
    )  # fmt: skip
    positions.tidy(connection, source_id)
    connection.execute(update(Source).where(Source.id == source_id).values(generation=generation))


def source_name(connection: Connection, source_id: int) -> str:
    return connection.execute(select(Source.name).where(Source.id == source_id)).scalar_one()


def lock_source(connection: Connection, source_id: int) -> int:
    """The generation; other commands and the cut log wait until this transaction ends."""
    return connection.execute(
        select(Source.generation).where(Source.id == source_id).with_for_update(key_share=True)
    ).scalar_one()


def sync_rows(connection: Connection, source_id: int, tables: Sequence[TableName] | None) -> dict[TableName, AnyRow]:
    """Tables by name, each with its sync if it has one; `tables` None means all of the source."""
    statement = (
        select(
            SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.denied, SourceTable.gone,
            Sync.desired, Sync.start, Sync.start_text, Sync.failed, Sync.problem, Sync.position_id,
        )
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(SourceTable.source_id == source_id)
        .order_by(SourceTable.database, SourceTable.name)
    )  # fmt: skip
    return by_name(connection, statement, tables)


def is_syncing(row: AnyRow) -> bool:
    """Whether the table is asked of its agent; the row has its sync's `desired` and `failed`."""
    return bool(row.desired == Desired.SYNCING and not row.failed)


def by_name(
    connection: Connection,
    statement: Select[*tuple[Any, ...]],
    tables: Sequence[TableName] | None,
    without_names: Sequence[ColumnElement[bool]] = (),
) -> dict[TableName, AnyRow]:
    """Rows of a SELECT of `SourceTable`, of these tables; `tables` None means all for which `without_names` holds."""
    chosen = without_names if tables is None else [among((SourceTable.database, SourceTable.name), tables)]
    return {(row.database, row.name): row for row in connection.execute(statement.where(*chosen))}


def _committed(connection: Connection, source_id: int) -> tuple[int | None, dict[TableName, int | None]]:
    """Where the source's last cut ended, and the own positions of tables that are past it, as syncs name them."""
    row = connection.execute(
        select(CommittedPosition.position, CommittedPosition.ahead).where(CommittedPosition.source_id == source_id)
    ).first()
    if row is None:
        return None, {}
    kept = positions.keep(connection, [(source_id, each) for each in (row.position, *_positions(row.ahead))])
    return kept.id_of(source_id, row.position), {
        (database, table): kept.id_of(source_id, part["position"])
        for part in row.ahead
        for database, table in part["tables"]
    }


def _positions(ahead: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part["position"] for part in ahead]


def _cancel_dumps(connection: Connection, source_id: int, tables: Sequence[int]) -> None:
    """The changes that would decide over their rows don't come any more."""
    at_us = now_us()
    stopped = Problem("DUMP_SYNC_STOPPED", "its table's sync was stopped", terminal=True, at_us=at_us)
    running: list[int] = []
    for begin in range(0, len(tables), LOOKUP_ROWS):
        part = Dump.table_id.in_(tables[begin : begin + LOOKUP_ROWS])
        running += connection.execute(select(Dump.id).where(part, Dump.state == DumpEnd.RUNNING)).scalars()
    end_dumps(connection, source_id, running, DumpEnd.CANCELLED, stopped, at_us)


_STOPPED = {"desired": Desired.STOPPED, "start": None, "start_text": "", "failed": False, "state": State.STOPPED}
_UPDATE_STOPPED = (
    update(Sync)
    .where(Sync.table_id == bindparam("of_table"))
    .values(
        **_STOPPED,
        changed_generation=bindparam("to_generation"),
        stopped_by=bindparam("to_stopped_by"),
        problem=bindparam("to_problem"),
        position_id=bindparam("to_position"),
    )
)


def _start_outcome(source: str, name: TableName, row: AnyRow | None, start: Start) -> Outcome:
    refused = _refusal(source, name, row, start)
    runs = row is not None and row.desired == Desired.SYNCING and not row.failed
    if row is None or refused or runs:
        return Outcome(*name, changed=False, refused=refused)
    return Outcome(*name, changed=True, notice=_notice(row, start))


def _syncing(connection: Connection, source_id: int) -> int:
    running = (Sync.source_id == source_id, Sync.desired == Desired.SYNCING, Sync.failed.is_(False))
    return connection.execute(select(func.count()).select_from(Sync).where(*running)).scalar_one()


def _within_room(outcomes: Iterable[Outcome], room: int) -> Iterator[Outcome]:
    """`room`: how many more may be synced."""
    for outcome in outcomes:
        room -= outcome.changed
        if not outcome.changed or room >= 0:
            yield outcome
            continue
        refused = TablesTooMany(
            "starting a sync",
            f"{MAX_SYNCED_TABLES} tables of the source are synced, and an agent takes no more of one",
            data="They go on, and this one stays as it was.",
            remedy="Stop some, or give databases of the server to a source of their own.",
            database=outcome.database,
            table=outcome.table,
        )
        yield Outcome(outcome.database, outcome.table, changed=False, refused=refused)


def _refusal(source: str, name: TableName, row: AnyRow | None, start: Start) -> MenuraError | None:
    database, table = name
    if row is None:
        return unknown_table(name)
    if row.denied:
        return denied_table(name)
    runs = row.desired == Desired.SYNCING and not row.failed
    # What its log has up to its end is still to be read where it stopped.
    goes_on = start.kind is StartKind.RESUME and row.position_id is not None
    if row.gone and not (runs or goes_on):
        return gone_table("starting a sync", name)
    by_dump = start.kind is StartKind.DUMP
    same = row.start == StartKind.DUMP if by_dump else (row.start, row.start_text) == (start.kind, start.text)
    if runs and start.kind is not StartKind.RESUME and not same:
        stop = f"stop it first: {sync_stop(source, database, table)}"
        beside = f"Dump it beside its stream: {dump_anew(source, database, table)}; or {stop}"
        return SyncRunning(
            f"starting a sync from {start.text or start.kind}",
            "the table's sync runs already",
            data="It goes on as it was.",
            remedy=beside if by_dump else f"Let it go on, or {stop}",
            database=database,
            table=table,
        )
    return None


def unknown_table(name: TableName) -> TableUnknown:
    return TableUnknown(
        "looking for a table",
        "the source's cartography does not have it",
        remedy="Check the spelling (names are case-sensitive). If it was just created, repeat this in half a minute: a"
        " connected agent sees new tables by then.",
        database=name[0],
        table=name[1],
    )


def gone_table(doing: str, name: TableName) -> TableUnknown:
    return TableUnknown(
        doing,
        "the table is no longer on the server, as its agent says",
        data="Nothing was changed.",
        remedy="If it was created again, repeat this in half a minute: a connected agent sees new tables by then."
        " A start of a pattern with --future (REST: future) has tables whenever they come.",
        database=name[0],
        table=name[1],
    )


def denied_table(name: TableName) -> TableDenied:
    return TableDenied(
        "starting a sync",
        "the agent's local policy drops this table, and the control plane can't widen it",
        data="Nothing was changed.",
        remedy="Change filter and filter_policy in the agent's configuration, then restart the agent.",
        database=name[0],
        table=name[1],
    )


def _notice(row: AnyRow, start: Start) -> str:
    had_before = row.position_id is not None
    match start.kind:
        case StartKind.NOW:
            return "Rows written before the sync begins will be missing in the lake."
        case StartKind.POSITION:
            missing = (
                "Rows written before this position will be missing in the lake, unless an earlier sync brought them."
            )
            return f"{missing} Changes after it that are there already will come again." if had_before else missing
        case StartKind.DUMP:
            return "Rows written before the sync begins come by a dump: see menura dump list."
        case StartKind.OLDEST if had_before:
            return "The log is read from its beginning: changes that the lake has already will come again."
        case StartKind.RESUME if had_before:
            return ""
        case _:
            return "Rows older than the source's log will be missing in the lake; the status says so once it has begun."
