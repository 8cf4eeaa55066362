"""What a source's agent is to sync: each table with where it begins, and what is known of its rows in the lake.

Comes in: a source, within a read. Goes out: `gateway.registry.SourceDesired`, of one moment. Nothing is written here.
"""

from sqlalchemy import Connection, and_, func, select
from sqlalchemy.orm import aliased

from controlplane_api import lost_state
from controlplane_api.documents import position_from
from controlplane_api.dump_lives import OF_PARTS, VERIFICATION
from controlplane_api.models import POSITION_OF_SYNC, AnyRow, Dump, Source, SourceTable, Sync, Tenant
from controlplane_api.registry.agent_reports import ASKED_OF_AGENT
from controlplane_api.states import DumpEnd, StartKind
from gateway.registry import SourceDesired, SourceKey, TableDesired

_BEGINS_WITH = and_(Sync.start == StartKind.DUMP, Dump.table_id == Sync.table_id, Dump.uuid == Sync.start_text)

#: of a table
_OF_TABLE = aliased(Dump)
_DUMP_GSN = (
    select(func.min(_OF_TABLE.started_gsn))
    .where(
        _OF_TABLE.table_id == Sync.table_id,
        _OF_TABLE.state == DumpEnd.RUNNING,
        _OF_TABLE.started_gsn > 0,
        _OF_TABLE.cause.not_in(OF_PARTS),
    )
    .scalar_subquery()
)
_COMPARED_GSN = (
    select(func.max(_OF_TABLE.started_gsn))
    .where(_OF_TABLE.table_id == Sync.table_id, _OF_TABLE.compares, _OF_TABLE.cause == VERIFICATION)
    .scalar_subquery()
)


def desired(connection: Connection, key: SourceKey) -> SourceDesired:
    """See `gateway.registry.Registry.desired`."""
    # In one statement, so that the generation is that of the tables.
    rows = connection.execute(
        select(
            Source.generation,
            Source.accepted_server,
            SourceTable.database,
            SourceTable.name,
            Sync.start,
            Sync.start_text,
            POSITION_OF_SYNC,
            Sync.altered,
            Sync.unlogged,
            Sync.earlier_rows_missing,
            Sync.last_cut,
            _DUMP_GSN.label("dump_gsn"),
            _COMPARED_GSN.label("compared_gsn"),
            Dump.state.label("dump_state"),
        )
        .select_from(Source)
        .join(Tenant)
        .outerjoin(Sync, and_(Sync.source_id == Source.id, *ASKED_OF_AGENT))
        .outerjoin(SourceTable, SourceTable.id == Sync.table_id)
        .outerjoin(Dump, _BEGINS_WITH)
        .where(Tenant.name == key.tenant, Source.name == key.source)
        .order_by(SourceTable.database, SourceTable.name)
    ).all()
    return SourceDesired(
        source=key.source,
        generation=rows[0].generation if rows else 0,
        tables=tuple(_desired_table(row) for row in rows if row.name is not None),
        accepted_server=rows[0].accepted_server if rows else "",
        notice=_notice(connection, key) if rows else "",
    )


def _notice(connection: Connection, key: SourceKey) -> str:
    """Where the database does not know what is wanted of the source's tables."""
    lost = connection.execute(
        select(func.count())
        .select_from(Sync)
        .join(Source, Source.id == Sync.source_id)
        .join(Tenant)
        .where(
            Tenant.name == key.tenant, Source.name == key.source, Sync.problem["code"].as_string() == lost_state.CODE
        )
    ).scalar_one()
    return lost_state.source_problem(key.source, lost, 0).message if lost else ""


def _desired_table(row: AnyRow) -> TableDesired:
    position = position_from(row.position) if row.start == StartKind.RESUME else None
    altered = row.altered if position is not None else None
    by_dump = row.start == StartKind.DUMP and row.dump_state == DumpEnd.RUNNING
    unlogged_gsn = max((cause["gsn"] for cause in row.unlogged["causes"]), default=0) if row.unlogged else 0
    return TableDesired(
        database=row.database,
        table=row.name,
        start_position=position if altered is None else None,
        start_text=altered["position"] if altered else row.start_text if row.start == StartKind.POSITION else "",
        altered_from=position if altered else None,
        altered_why=altered["reason"] if altered else "",
        start_oldest=row.start == StartKind.OLDEST or (row.start == StartKind.RESUME and position is None),
        # Its dump has failed: the changes come all the same, and the sync says what is missing.
        start_now=row.start == StartKind.NOW or (row.start == StartKind.DUMP and not by_dump),
        start_dump=row.start_text if by_dump else "",
        unlogged_gsn=unlogged_gsn,
        dump_gsn=row.dump_gsn or 0,
        compared_gsn=_compared_gsn(row, unlogged_gsn),
        earlier_rows_missing=row.start in (None, StartKind.RESUME) and row.earlier_rows_missing != "",
        was_synced=row.start not in (None, StartKind.RESUME) and bool(row.last_cut),
    )


def _compared_gsn(row: AnyRow, unlogged_gsn: int) -> int:
    """Where the newest verification of a comparison began; 0: below the newest cause, which only what begins later can
    heal."""
    return row.compared_gsn if unlogged_gsn and (row.compared_gsn or 0) > unlogged_gsn else 0
