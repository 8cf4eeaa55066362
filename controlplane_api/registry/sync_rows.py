"""Syncs while an entry of the cut log is applied: their rows in the database, changed in memory, stored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from controlplane_api import positions
from controlplane_api.documents import Document
from controlplane_api.lookups import among
from controlplane_api.models import SourceTable, Sync
from controlplane_api.states import Desired, State

#: source, database, table
TableKey = tuple[int, str, str]


@dataclass(slots=True)
class SyncRow:
    """A row of `sync`, by the names of its columns."""

    table_id: int
    source_id: int
    desired: str = Desired.STOPPED
    start: str | None = None
    start_text: str = ""
    changed_generation: int = 0
    failed: bool = False
    state: str = State.STOPPED
    problem: Document | None = None
    position_id: int | None = None
    altered: Document | None = None
    earlier_rows_missing: str = ""
    unlogged: Document | None = None
    lake_rereads_per_hour: int = 0
    foreign_keys: Document | None = None
    ignored_columns: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    last_commit_timestamp_us: int | None = None
    landed_at_us: int | None = None
    last_cut: int | None = 0
    #: where the entry moves it to; none: nowhere
    position: Document | None = None

    @property
    def has_position(self) -> bool:
        return self.position is not None or self.position_id is not None


_SYNC_COLUMNS = tuple(column.name for column in fields(SyncRow) if column.name != "position")


_UPDATE_SYNC = (
    update(Sync)
    .where(Sync.table_id == bindparam("new_table_id"))
    .values({name: bindparam(f"new_{name}") for name in _SYNC_COLUMNS if name not in ("table_id", "source_id")})
)


def load_syncs(connection: Connection, tables: Sequence[TableKey]) -> tuple[dict[TableKey, SyncRow], set[int]]:
    """Syncs by table, and the ids of those that are stored; the tables themselves are created where unknown."""
    syncs, known = _select_syncs(connection, tables)
    missing = [table for table in tables if table not in syncs]
    if missing:
        connection.execute(
            insert(SourceTable),
            [
                {"source_id": source_id, "database": database, "name": name, "columns": [], "keys": []}
                for source_id, database, name in missing
            ],
        )
        syncs |= _select_syncs(connection, missing)[0]
    return syncs, known


def _select_syncs(connection: Connection, tables: Sequence[TableKey]) -> tuple[dict[TableKey, SyncRow], set[int]]:
    syncs: dict[TableKey, SyncRow] = {}
    known: set[int] = set()
    columns = [getattr(Sync, name) for name in _SYNC_COLUMNS if name not in ("table_id", "source_id")]
    rows = connection.execute(
        select(SourceTable.id, SourceTable.source_id, SourceTable.database, SourceTable.name, Sync.table_id, *columns)
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(among((SourceTable.source_id, SourceTable.database, SourceTable.name), tables))
    )
    for id_, source_id, database, name, stored, *values in rows:
        sync = SyncRow(id_, source_id)
        if stored is not None:
            known.add(id_)
            sync = SyncRow(id_, source_id, *values)
        syncs[source_id, database, name] = sync
    return syncs, known


def store_syncs(connection: Connection, syncs: Iterable[SyncRow], known: set[int]) -> None:
    """`known`: the tables of those that have a row."""
    rows = [{name: getattr(sync, name) for name in _SYNC_COLUMNS} for sync in syncs]
    new = [row for row in rows if row["table_id"] not in known]
    old = [row for row in rows if row["table_id"] in known]
    if new:
        connection.execute(insert(Sync), new)
    if old:
        connection.execute(_UPDATE_SYNC, [{f"new_{name}": value for name, value in row.items()} for row in old])


def keep_positions(connection: Connection, syncs: Mapping[TableKey, SyncRow]) -> set[int]:
    """Give the syncs that move the ids of their new positions; the ids that they have left."""
    moved = [sync for sync in syncs.values() if sync.position is not None]
    kept = positions.keep(connection, ((sync.source_id, sync.position) for sync in moved if sync.position is not None))
    left: set[int] = set()
    for sync in moved:
        former, sync.position_id = sync.position_id, kept.id_of(sync.source_id, sync.position)
        if former is not None and former != sync.position_id:
            left.add(former)
    return left
