"""Positions of tables that are altered while nothing reads them.

Comes in: a table that is stopped, a position in its server's words, and why. Goes out: a note in the table's sync. The
next start takes the note to the agent, with the position up to where the table was read. The agent alone reads
positions. It refuses one that the log can't honour: the table stops where it was. Changes behind the old position come
again, with new numbers. What is skipped is an event LOG_GAP, and by the agent's policy a dump is ordered for it. The
note goes with the entry of the cut log that says so. A kill leaves the note, or none.
"""

from collections.abc import Mapping
from typing import Any

from menura.bounds import clean_text
from menura.errors import printable
from menura.instants import now_us
from menura.naming import TableName, sync_resync, sync_stop
from sqlalchemy import Connection, select, update

from controlplane_api.documents import Document, position_text
from controlplane_api.dumps import has_unique_key
from controlplane_api.errors import OffsetUnknown, RequestInvalid, SyncRunning
from controlplane_api.models import POSITION_OF_SYNC, AnyRow, CommittedPosition, Source, SourceHealth, SourceTable, Sync
from controlplane_api.states import StartKind
from controlplane_api.syncs import Start, check_start, is_syncing, lock_source, source_name, unknown_table

_DOING = "altering a table's position"


def alter(connection: Connection, source_id: int, table: TableName, position: str, reason: str, actor: str) -> bool:
    """Whether something changed; the present position takes an earlier alteration back. The source's row gets locked.

    Raises `RequestInvalid`, `TableUnknown`, `OffsetUnknown` and `SyncRunning`.
    """
    check_start(Start(StartKind.POSITION, position))
    lock_source(connection, source_id)
    row = of_table(connection, source_id, table)
    if row.position is None:
        raise OffsetUnknown(
            _DOING,
            "the table has none, since its sync has never begun",
            data="Nothing was changed.",
            remedy="Start its sync at that position.",
            database=table[0],
            table=table[1],
        )
    if is_syncing(row):
        raise SyncRunning(
            _DOING,
            "the table's sync runs",
            data="It goes on as it was.",
            remedy=f"Stop it first: {sync_stop(source_name(connection, source_id), *table)}",
            database=table[0],
            table=table[1],
        )
    if not _has_key(row):
        raise RequestInvalid(
            _DOING,
            "the table has no key whose columns are synced, so rows that come again would be there twice",
            data="Nothing was changed.",
            remedy=f"Begin it anew, with a dump: {sync_resync(source_name(connection, source_id), *table)}",
        )
    altered = _altered(row.position, position, reason, actor)
    if _place(altered) == _place(row.altered):
        return False
    connection.execute(update(Sync).where(Sync.table_id == row.id).values(altered=altered))
    return True


def of_table(connection: Connection, source_id: int, table: TableName) -> AnyRow:
    """Its `id`, `columns`, `keys`, `position`, `altered`, `desired` and `failed`. Raises `TableUnknown`."""
    row = connection.execute(
        select(
            SourceTable.id,
            SourceTable.columns,
            SourceTable.keys,
            POSITION_OF_SYNC,
            Sync.altered,
            Sync.desired,
            Sync.failed,
        )
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(SourceTable.source_id == source_id, SourceTable.database == table[0], SourceTable.name == table[1])
    ).first()
    if row is None:
        raise unknown_table(table)
    return row


def _has_key(row: AnyRow) -> bool:
    """As the last cartography has it."""
    sent = [column for column in row.columns if not column["ignored"]]
    return bool(sent) and has_unique_key(sent, row.keys)


def of_source(connection: Connection, source_id: int) -> tuple[str, str]:
    """Up to where its agent has read, as it said last, and up to where its last cut went; '' for none yet."""
    row = connection.execute(
        select(SourceHealth.read_position, CommittedPosition.position)
        .select_from(Source)
        .outerjoin(SourceHealth, SourceHealth.source_id == Source.id)
        .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
        .where(Source.id == source_id)
    ).one()
    return row.read_position or "", position_text(row.position)


def _altered(present: Mapping[str, Any], position: str, reason: str, actor: str) -> Document | None:
    """{"position": as its server writes it, "reason", "actor", "at_us"}."""
    if position.split() == position_text(present).split():
        return None
    words = clean_text(printable(reason))
    return {"position": position, "reason": words, "actor": actor, "at_us": now_us()}


def _place(altered: Mapping[str, Any] | None) -> object:
    return None if altered is None else altered["position"]
