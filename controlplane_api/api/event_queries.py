"""Events of a source's tables in the order of their numbers, for those who follow them.

An event's number is the source's own (gsn): it grows with each committed cut, and is the same after any restart. The
database keeps a table's last events (`registry.table_events`): who was away for long is told that some are forgotten.
"""

from sqlalchemy import Connection, func, select

from controlplane_api.api.event_stream import Event, Following
from controlplane_api.api.views import SourceEventView, TableEventView
from controlplane_api.models import KEPT_EVENTS, CommittedPosition, SourceTable, TableEvent

AT_ONCE = 200


def newest(connection: Connection, source_id: int) -> int:
    """The number that the source's last committed cut ended with."""
    found = select(CommittedPosition.last_gsn).where(CommittedPosition.source_id == source_id)
    return connection.execute(found).scalar() or 0


def after(connection: Connection, source_id: int, gsn: int) -> Following:
    """The next ones, `AT_ONCE` at most. A look at one row where nothing was committed since."""
    end = newest(connection, source_id)
    if end <= gsn:
        return Following([], gsn)
    columns = [getattr(TableEvent, name) for name in TableEventView.model_fields]
    rows = connection.execute(
        select(SourceTable.database, SourceTable.name.label("table"), *columns)
        .join_from(SourceTable, TableEvent, TableEvent.table_id == SourceTable.id)
        .where(SourceTable.source_id == source_id, TableEvent.gsn > gsn)
        .order_by(TableEvent.gsn)
        .limit(AT_ONCE)
    ).all()
    events = [Event(row.gsn, row.kind, SourceEventView(**row._mapping)) for row in rows]
    return Following(events, events[-1].number if len(events) == AT_ONCE else end)


def forgotten(connection: Connection, source_id: int, gsn: int) -> int:
    """Of how many tables events after this number may be gone."""
    full = (
        select(TableEvent.table_id)
        .join(SourceTable, SourceTable.id == TableEvent.table_id)
        .where(SourceTable.source_id == source_id)
        .group_by(TableEvent.table_id)
        .having(func.count() >= KEPT_EVENTS, func.min(TableEvent.gsn) > gsn)
    )
    return connection.execute(select(func.count()).select_from(full.subquery())).scalar_one()
