"""The last events of each table: what the cut log says of changes of its definition and of truncates.

Comes in: events, inside the transaction that applies their log entry; so each is there once. Durable: the newest
`KEPT_EVENTS` of a table. All of them are in the lake, `_menura/events`.
"""

from collections.abc import Iterable
from typing import Any

from menura.landing import LandedEvent
from sqlalchemy import Connection, delete, insert, select

from controlplane_api.models import KEPT_EVENTS, TableEvent


def record(connection: Connection, events: Iterable[tuple[int, LandedEvent]]) -> None:
    """Add events, each with its table's id, in the order of their numbers; older ones go."""
    of_tables: dict[int, list[LandedEvent]] = {}
    for table_id, event in events:
        of_tables.setdefault(table_id, []).append(event)
    rows = [_row(table_id, event) for table_id, found in of_tables.items() for event in found[-KEPT_EVENTS:]]
    if rows:
        connection.execute(insert(TableEvent), rows)
    for table_id in of_tables:
        numbers = select(TableEvent.gsn).where(TableEvent.table_id == table_id).order_by(TableEvent.gsn.desc())
        oldest = connection.execute(numbers.offset(KEPT_EVENTS - 1).limit(1)).scalar()
        if oldest is not None:
            connection.execute(delete(TableEvent).where(TableEvent.table_id == table_id, TableEvent.gsn < oldest))


def _row(table_id: int, event: LandedEvent) -> dict[str, Any]:
    return {
        "table_id": table_id,
        "gsn": event.gsn,
        "kind": event.kind,
        "commit_timestamp_us": event.commit_timestamp_us,
        "position": event.position,
        "statement": event.statement,
        "removes_rows": event.removes_rows,
        "new_name": list(event.new_name),
        "dump": event.dump,
        "unlogged_changes": event.unlogged_changes,
    }
