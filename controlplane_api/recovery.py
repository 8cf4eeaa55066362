"""Commands that bring tables back: try again what has stopped, or begin a table anew, whatever its state.

Comes in: tables of one source. Goes out: one transaction that changes their syncs and dumps, and asks sinks for what
they have stopped. A kill leaves all of it or nothing. A table that begins anew does so in every lake: the event
DUMP_STARTED in the cut log tells each sink, also one that has stopped the table.
"""

from collections.abc import Sequence

from menura.errors import MenuraError
from menura.instants import now_us
from menura.lake_report import LakeTable
from menura.naming import TableName, command_table
from sqlalchemy import Connection, select

from controlplane_api import dumps, lakes
from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.dump_lives import DumpOptions, create_dumps, end_dumps
from controlplane_api.errors import SyncNotRunning
from controlplane_api.models import AnyRow, Dump, Source, Tenant
from controlplane_api.states import Desired, DumpEnd, StartKind
from controlplane_api.syncs import (
    Outcome,
    Start,
    begin_anew,
    denied_table,
    gone_table,
    is_syncing,
    lock_source,
    start_tables,
    sync_rows,
    unknown_table,
)
from gateway.registry import Problem

_BEGUN_ANEW = "Its table begins anew."
_ASKED = "Its sink tries it again with its next report."
_NOTHING = "Nothing of it has stopped."
_ANEW = "Rows come by the dump; with its end the table is what it is at its source, also in lakes that had stopped it."


def retry_tables(connection: Connection, source_id: int, tables: Sequence[TableName] | None) -> list[Outcome]:
    """Try again what has stopped: on the way to the landing from where it stopped, dumps, and in lakes at once.

    `tables` None means all that have stopped. The source's row gets locked.
    """
    lock_source(connection, source_id)
    rows = sync_rows(connection, source_id, tables)
    tenant, source = _names(connection, source_id)
    in_lakes = lakes.stopped_tables(connection, tenant, source)
    failed = [name for name, row in rows.items() if row.desired == Desired.SYNCING and row.failed]
    undumped = dumps.unfinished(connection, source_id, tables)
    if tables is None:
        stopped = in_lakes.union(undumped)
        tables = [name for name in rows if name in failed or (name in stopped and is_syncing(rows[name]))]
    names = list(dict.fromkeys(tables))
    found = {name: _retry_refusal(source, name, rows.get(name)) for name in names}
    resumed = [name for name in names if name in failed and found[name] is None]
    started = {(each.database, each.table): each for each in start_tables(
        connection, source_id, resumed, Start(StartKind.RESUME))}  # fmt: skip
    dumped = dumps.retry(connection, source_id, {name: row for name, row in undumped.items() if found[name] is None})
    asked = [name for name in names if name in in_lakes and found[name] is None]
    lakes.ask_retry(connection, [LakeTable(tenant, source, *name) for name in asked])
    return [
        _retry_outcome(name, found[name], started.get(name) or dumped.get(name), in_lake=name in asked)
        for name in names
    ]


def resync_tables(
    connection: Connection, source_id: int, tables: Sequence[TableName] | None, options: DumpOptions
) -> list[Outcome]:
    """Begin tables anew, each with a dump, whatever they do; one that runs ends first. None: all that are synced.

    The source's row gets locked.
    """
    lock_source(connection, source_id)
    rows = sync_rows(connection, source_id, tables)
    if tables is None:
        tables = [name for name, row in rows.items() if row.desired == Desired.SYNCING and not (row.denied or row.gone)]
    names = list(dict.fromkeys(tables))
    refused = {name: found for name in names if (found := _resync_refusal(name, rows.get(name))) is not None}
    running = [name for name in names if name not in refused and is_syncing(rows[name])]
    _end_dumps(connection, source_id, [rows[name].id for name in running])
    made = create_dumps(connection, source_id, [rows[name].id for name in running], options)
    begin_anew(connection, source_id, {name: made[rows[name].id] for name in running})
    others = [name for name in names if name not in refused and name not in running]
    started = {(each.database, each.table): each for each in start_tables(
        connection, source_id, others, Start(StartKind.DUMP), options)}  # fmt: skip
    return [
        Outcome(*name, changed=False, refused=refused[name])
        if name in refused
        else started.get(name) or Outcome(*name, changed=True, dump=made[rows[name].id], notice=_ANEW)
        for name in names
    ]


def _names(connection: Connection, source_id: int) -> tuple[str, str]:
    row = connection.execute(select(Tenant.name, Source.name).join_from(Source, Tenant).where(Source.id == source_id))
    tenant, source = row.one()
    return tenant, source


def _retry_outcome(name: TableName, refused: MenuraError | None, started: Outcome | None, *, in_lake: bool) -> Outcome:
    if refused is not None:
        return Outcome(*name, changed=False, refused=refused)
    if started is not None and (started.refused is not None or not in_lake):
        return started
    changed = in_lake or (started is not None and started.changed)
    notices = [started.notice if started is not None else "", _ASKED if in_lake else ""]
    notice = " ".join(filter(None, notices)) or _NOTHING
    return Outcome(*name, changed=changed, notice=notice, dump=started.dump if started is not None else "")


def _retry_refusal(source: str, name: TableName, row: AnyRow | None) -> MenuraError | None:
    if row is None:
        return unknown_table(name)
    if row.desired != Desired.SYNCING:
        return SyncNotRunning(
            "trying a table again",
            "the table is not synced",
            data="Nothing was changed.",
            remedy=f"Start its sync: menura sync start {source} {command_table(*name)}",
            database=name[0],
            table=name[1],
        )
    return None


def _resync_refusal(name: TableName, row: AnyRow | None) -> MenuraError | None:
    if row is None:
        return unknown_table(name)
    if row.denied:
        return denied_table(name)
    if row.gone:
        return gone_table("beginning a table anew", name)
    return None


def _end_dumps(connection: Connection, source_id: int, tables: Sequence[int]) -> None:
    """Another dump brings what these would have brought."""
    at_us = now_us()
    running: list[int] = []
    for begin in range(0, len(tables), LOOKUP_ROWS):
        part = Dump.table_id.in_(tables[begin : begin + LOOKUP_ROWS])
        running += connection.execute(select(Dump.id).where(part, Dump.state == DumpEnd.RUNNING)).scalars()
    anew = Problem("DUMP_BEGUN_ANEW", _BEGUN_ANEW, terminal=True, at_us=at_us)
    end_dumps(connection, source_id, running, DumpEnd.CANCELLED, anew, at_us)
