"""Where a table is in its source's log, and its alteration while the table is stopped."""

from fastapi import APIRouter
from menura import naming
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import continuity_ledger, offsets
from controlplane_api.api import queries, versions
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import ControlDatabase, SourceName, TableName, TenantName
from controlplane_api.api.requests import OffsetAlter
from controlplane_api.api.views import AlteredOffset, OffsetView
from controlplane_api.api.writing import GUARDED, TAGGED, WriteIf
from controlplane_api.errors import OffsetUnknown, PreconditionMissing, SourceUnknown, SyncRunning, TableUnknown
from controlplane_api.identity import audit

router = APIRouter(
    prefix="/api/v1/tenants/{tenant}/sources/{source}/tables/{database}/{table}",
    tags=["tables"],
    responses=refusals(SourceUnknown, TableUnknown),
)

#: of a position, as the ledger and the audit log name it
MAX_POSITION_CHARS = 200
_ALTERS = TAGGED | refusals(SourceUnknown, TableUnknown, OffsetUnknown, SyncRunning, PreconditionMissing, *GUARDED)
_NOTICE = (
    "When the table is started, its agent compares the two positions. Changes that it has read and that are behind the"
    " new one come again, with new numbers. Changes that the new one skips will be missing in the lake: an event"
    " LOG_GAP says which, and a dump is ordered that brings the rows as they are then, unless the agent's policy only"
    " notes it. A position that the log does not have stops the table where it was."
)


@router.get("/offset", responses=TAGGED)
def get_offset(
    tenant: TenantName, source: SourceName, table: TableName, control: ControlDatabase, response: Response
) -> OffsetView:
    """The positions of the source and of the table, and how the table's was altered since it was stopped."""
    with control.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        response.headers["etag"] = versions.table_tag(connection, source_id, table)
        return _view(connection, source_id, table)


@router.put("/offset", responses=_ALTERS)
def alter_offset(
    tenant: TenantName, source: SourceName, table: TableName, request: OffsetAlter, write: WriteIf
) -> OffsetView:
    """Have the table go on from another position when it is started again; only while it is stopped, on If-Match."""
    if not (write.if_match or write.dry_run):
        raise PreconditionMissing(
            "altering a table's position",
            "the request has no If-Match",
            data="Nothing was changed.",
            remedy="Read the offset, and send its ETag as If-Match.",
        )

    def act(connection: Connection) -> OffsetView:
        source_id = queries.source_row(connection, tenant, source).id
        if offsets.alter(connection, source_id, table, request.position, request.reason, write.actor):
            to = f"to {request.position[:MAX_POSITION_CHARS]}: {request.reason}"
            ordered, named = f"alter the position {to}", f"{source} {naming.command_table(*table)}"
            continuity_ledger.record_command(connection, source_id, ordered, write.actor, [table])
            audit.record(connection, tenant, write.actor, "alter offset", found=f"{named} {to}")
        return _view(connection, source_id, table)

    return write.run(OffsetView, act, versions.of_table(tenant, source, table))


def _view(connection: Connection, source_id: int, table: naming.TableName) -> OffsetView:
    altered = offsets.of_table(connection, source_id, table).altered
    read, committed = offsets.of_source(connection, source_id)
    return OffsetView(
        read=read,
        committed=committed,
        position=queries.table(connection, source_id, *table).position,
        altered=AlteredOffset(**altered) if altered else None,
        notice=_NOTICE if altered else "",
    )
