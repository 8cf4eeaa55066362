"""Commands about dumps: begin them beside streams, pause, resume, cancel, limit them, say which goes first.

Comes in: tables or one dump of a source, and what is wanted. Goes out: one transaction that changes what is asked of
the agent and lets the source's dump generation grow, which the gateway notices. A kill leaves all of it or nothing.
A dump that a sync begins with is made by `syncs.start_tables`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from menura.errors import MenuraError
from menura.instants import now_us
from menura.naming import TableName, dump_anew, sync_anew
from sqlalchemy import Connection, exists, func, select, update

from controlplane_api.dump_lives import (
    NOT_YET,
    OF_PARTS,
    REREAD,
    DumpOptions,
    create_dumps,
    end_dumps,
    grow_dump_generation,
)
from controlplane_api.errors import (
    DumpNotResumable,
    DumpOver,
    DumpRunning,
    DumpUnknown,
    SyncNotRunning,
    TableUnknown,
)
from controlplane_api.models import AnyRow, Dump, Source, SourceTable, Sync
from controlplane_api.states import Desired, DumpEnd
from controlplane_api.syncs import Outcome, begin_anew, by_name, denied_table, is_syncing, lock_source, unknown_table

_UNCHANGED = "Nothing was changed."
_RESUMED = "Its dump goes on where it failed."


def start_dumps(
    connection: Connection, source_id: int, tables: Sequence[TableName] | None, options: DumpOptions
) -> list[Outcome]:
    """Dump tables that are synced; `tables` None means all of those. The source's row gets locked.

    A table with a unique key is dumped beside its stream, which goes on. Any other begins anew, by its dump: only the
    stream's beginning makes one snapshot of it and its changes fit together.
    """
    lock_source(connection, source_id)
    rows = synced_tables(connection, source_id, tables)
    running = running_dumps(connection, source_id)
    if tables is None:
        tables = [name for name, row in rows.items() if is_syncing(row) and row.id not in running]
    refusals = {name: refused for name in tables if (refused := refusal(name, rows.get(name), running)) is not None}
    names = [name for name in dict.fromkeys(tables) if name not in refusals]
    anew = [name for name in names if not has_unique_key(rows[name].columns, rows[name].keys)]
    made = create_dumps(connection, source_id, [rows[name].id for name in names], options)
    begin_anew(connection, source_id, {name: made[rows[name].id] for name in anew})
    return [
        Outcome(*name, changed=False, refused=refusals[name])
        if name in refusals
        else Outcome(*name, changed=True, dump=made[rows[name].id], notice=_ANEW if name in anew else "")
        for name in tables
    ]


_ANEW = (
    "The table has no unique key: its sync begins anew with one snapshot of the whole table, which can't be paused and "
    "begins again after a break."
)


def has_unique_key(columns: Sequence[Mapping[str, Any]], keys: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a table with this cartography can be read key range by key range; also where it is not known yet.

    >>> id_column, key = {"name": "id", "nullable": True}, {"unique": True, "columns": ["id"]}
    >>> has_unique_key([id_column], [key]), has_unique_key([{**id_column, "nullable": False}], [key])
    (False, True)
    """
    not_null = {column["name"] for column in columns if not column["nullable"]}
    return not columns or any(key["unique"] and key["columns"] and not_null.issuperset(key["columns"]) for key in keys)


def dump_of(connection: Connection, source_id: int, uuid: str) -> AnyRow:
    """The dump, its table's cartography and sync; the source's row gets locked. Raises `DumpUnknown`."""
    lock_source(connection, source_id)
    row = connection.execute(
        select(
            Dump, Source.name.label("source"), SourceTable.database, SourceTable.name,
            SourceTable.columns, SourceTable.keys.label("table_keys"),
            Sync.desired, Sync.failed, Sync.changed_generation, Sync.unlogged,
        )
        .join(SourceTable, SourceTable.id == Dump.table_id)
        .join(Source, Source.id == Dump.source_id)
        .outerjoin(Sync, Sync.table_id == Dump.table_id)
        .where(Dump.source_id == source_id, Dump.uuid == uuid)
    ).first()  # fmt: skip
    if row is None:
        raise DumpUnknown(
            "looking for a dump",
            "the source has no dump of this name",
            remedy="See those that there are: menura dump list --all",
        )
    return row


def pause(connection: Connection, source_id: int, uuid: str) -> bool:
    """Whether it did not pause already."""
    row = _running_dump(connection, source_id, uuid, "pausing a dump")
    if _in_one_snapshot(row):
        raise DumpNotResumable(
            "pausing a dump",
            "the table has no unique key: it is read in one snapshot, which can't go on after a break",
            data="The dump goes on.",
            remedy=f"Let it run, or end it: menura dump cancel {row.uuid}",
            **_named(row),
        )
    return _change(connection, row, paused=True)


def resume(connection: Connection, source_id: int, uuid: str) -> bool:
    """Go on with a paused or a failed one, at its chunk; whether it did not run already."""
    row = dump_of(connection, source_id, uuid)
    if row.state != DumpEnd.FAILED:
        return _change(connection, _still_running(row, "resuming a dump"), paused=False)
    why_not = _why_it_begins_anew(connection, row)
    if why_not:
        raise DumpNotResumable(
            "resuming a dump", why_not, data=_UNCHANGED, remedy=f"Begin a new one: {_anew(row)}", **_named(row)
        )
    other = running_dumps(connection, source_id).get(row.table_id)
    if other is not None:
        raise _runs_already("resuming a dump", (row.database, row.name), other)
    if row.cause not in OF_PARTS:
        connection.execute(
            update(Sync)
            .where(Sync.table_id == row.table_id, Sync.earlier_rows_missing != "")
            .values(earlier_rows_missing=NOT_YET)
        )
    return _change(connection, row, state=DumpEnd.RUNNING, paused=False, problem=None, ended_at_us=None)


def unfinished(connection: Connection, source_id: int, tables: Sequence[TableName] | None) -> dict[TableName, AnyRow]:
    """Of tables whose syncs run, the newest dump of each where it ended without its rows; `tables` None means all."""
    copies = (Dump.source_id == source_id, Dump.cause.not_in(OF_PARTS))
    newest = select(func.max(Dump.id)).where(*copies).group_by(Dump.table_id)
    rows = connection.execute(
        select(Dump, SourceTable.database, SourceTable.name)
        .join(SourceTable, SourceTable.id == Dump.table_id)
        .join(Sync, Sync.table_id == Dump.table_id)
        .where(
            Dump.id.in_(newest), Dump.state.in_((DumpEnd.FAILED, DumpEnd.REFUSED, DumpEnd.LOST)),
            Sync.desired == Desired.SYNCING, Sync.failed.is_(False),
        )
        .order_by(Dump.id)
    )  # fmt: skip
    wanted = None if tables is None else set(tables)
    return {(row.database, row.name): row for row in rows if wanted is None or (row.database, row.name) in wanted}


def retry(connection: Connection, source_id: int, rows: Mapping[TableName, AnyRow]) -> dict[TableName, Outcome]:
    """Go on with dumps that are `unfinished` at their chunks, or begin new ones with what was asked of these."""
    outcomes: dict[TableName, Outcome] = {}
    for name, row in rows.items():
        if row.state == DumpEnd.FAILED and not _why_it_begins_anew(
            connection, dump_of(connection, source_id, row.uuid)
        ):
            resume(connection, source_id, row.uuid)
            outcomes[name] = Outcome(*name, changed=True, notice=_RESUMED, dump=row.uuid)
            continue
        options = DumpOptions(**{part.name: getattr(row, part.name) for part in fields(DumpOptions)})
        (outcomes[name],) = start_dumps(connection, source_id, [name], options)
    return outcomes


def cancel(connection: Connection, source_id: int, uuid: str) -> bool:
    """End it where it is; whether it was not cancelled already. Commands call `rereads.cancel`."""
    row = dump_of(connection, source_id, uuid)
    if row.state == DumpEnd.CANCELLED:
        return False
    _still_running(row, "cancelling a dump")
    if row.cause == REREAD and row.unlogged is not None:  # else the table's next event would order another one
        held = {**row.unlogged, "reread": False}
        connection.execute(update(Sync).where(Sync.table_id == row.table_id).values(unlogged=held))
    end_dumps(connection, source_id, [row.id], DumpEnd.CANCELLED, None, now_us())
    return True


def set_priority(connection: Connection, source_id: int, uuid: str, priority: int) -> bool:
    row = _running_dump(connection, source_id, uuid, "setting a dump's priority")
    return _change(connection, row, priority=priority)


def set_limits(
    connection: Connection, source_id: int, uuid: str, *, workers: int, rows_per_second: int, bytes_per_second: int
) -> bool:
    row = _running_dump(connection, source_id, uuid, "limiting a dump")
    return _change(connection, row, workers=workers, rows_per_second=rows_per_second, bytes_per_second=bytes_per_second)


def _change(connection: Connection, row: AnyRow, **values: object) -> bool:
    if all(getattr(row, name) == value for name, value in values.items()):
        return False
    connection.execute(update(Dump).where(Dump.id == row.id).values(values))
    grow_dump_generation(connection, row.source_id)
    return True


def _running_dump(connection: Connection, source_id: int, uuid: str, doing: str) -> AnyRow:
    return _still_running(dump_of(connection, source_id, uuid), doing)


def _still_running(row: AnyRow, doing: str) -> AnyRow:
    if row.state != DumpEnd.RUNNING:
        raise DumpOver(
            doing,
            f"the dump is over: {row.state}",
            data=_UNCHANGED,
            remedy=f"Begin a new one if the table needs it: {_anew(row)}",
            **_named(row),
        )
    return row


def _in_one_snapshot(row: AnyRow) -> bool:
    return not row.key if row.planned_at_us is not None else not has_unique_key(row.columns, row.table_keys)


def _why_it_begins_anew(connection: Connection, row: AnyRow) -> str:
    if _in_one_snapshot(row):
        return "the table has no unique key: it is read in one snapshot, which can't go on after a break"
    if not is_syncing(row):
        return "its table's sync does not run"
    if row.changed_generation != row.sync_generation:
        return "its table's sync was stopped or started since: changes between may be missing"
    compared = exists(1).where(Dump.table_id == row.table_id, Dump.id > row.id, Dump.compares)
    if connection.execute(select(compared)).scalar():
        return "its table was compared with its source since, and what it has read is of before"
    return ""


def _anew(row: AnyRow) -> str:
    return dump_anew(row.source, row.database, row.name)


def _named(row: AnyRow) -> dict[str, str]:
    return {"database": row.database, "table": row.name}


def synced_tables(
    connection: Connection, source_id: int, tables: Sequence[TableName] | None
) -> dict[TableName, AnyRow]:
    statement = (
        select(
            SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.denied, SourceTable.gone,
            SourceTable.columns, SourceTable.keys, Sync.desired, Sync.failed, Sync.start, Sync.earlier_rows_missing,
            Source.name.label("source"),
        )
        .join(Source, Source.id == SourceTable.source_id)
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(SourceTable.source_id == source_id)
        .order_by(SourceTable.database, SourceTable.name)
    )  # fmt: skip
    return by_name(connection, statement, tables, (Sync.desired == Desired.SYNCING,))


def running_dumps(connection: Connection, source_id: int) -> dict[int, str]:
    """UUIDs of the source's dumps that are not over, by table."""
    rows = connection.execute(
        select(Dump.table_id, Dump.uuid).where(Dump.source_id == source_id, Dump.state == DumpEnd.RUNNING)
    )
    return {row.table_id: row.uuid for row in rows}


def refusal(name: TableName, row: AnyRow | None, running: Mapping[int, str]) -> MenuraError | None:
    database, table = name
    if row is None:
        return unknown_table(name)
    if row.denied:
        return denied_table(name)
    if row.gone:
        return TableUnknown(
            "starting a dump",
            "the table is no longer on the server",
            data=_UNCHANGED,
            remedy="If it was created again, repeat this in half a minute: a connected agent sees new tables by then.",
            database=database,
            table=table,
        )
    if not is_syncing(row):
        return SyncNotRunning(
            "starting a dump",
            "the table is not synced: the changes during and after its dump would be missing",
            data=_UNCHANGED,
            remedy=f"Start its sync by a dump: {sync_anew(row.source, database, table)}",
            database=database,
            table=table,
        )
    if row.id in running:
        return _runs_already("starting a dump", name, running[row.id])
    return None


def _runs_already(doing: str, name: TableName, other: str) -> DumpRunning:
    return DumpRunning(
        doing,
        f"dump {other} of this table runs already",
        data="It goes on as it was.",
        remedy=f"Wait for its end, or end it: menura dump cancel {other}",
        database=name[0],
        table=name[1],
    )
