"""Verifications: compare tables of a source with the lake."""

from fastapi import APIRouter
from sqlalchemy import Connection

from controlplane_api import verifications
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import SourceName, TenantName
from controlplane_api.api.requests import VerificationRequest
from controlplane_api.api.routers.outcomes import ACCEPTED, command_tables, named_tables
from controlplane_api.api.views import Outcomes
from controlplane_api.api.writing import GUARDED, WriteIf
from controlplane_api.dump_lives import DumpOptions
from controlplane_api.errors import SourceUnknown
from controlplane_api.syncs import Outcome

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["verifications"])


@router.post(
    "/sources/{source}/verifications",
    status_code=202,
    responses=ACCEPTED | refusals(SourceUnknown, *GUARDED),
)
def start_verifications(
    tenant: TenantName, source: SourceName, request: VerificationRequest, write: WriteIf
) -> Outcomes:
    """Verify several tables that are synced, or all of them; refusals are told table by table.

    A verification is read as a dump is, and is steered as one; the lake says what it has found.
    """
    # it needs no log: nothing of it is replayed
    options = DumpOptions(priority=request.priority, forced=True, **request.limits.model_dump())

    def command(connection: Connection, source_id: int) -> list[Outcome]:
        names = named_tables(connection, source_id, request.tables)
        return verifications.start_verifications(connection, source_id, names, options)

    return command_tables(write, tenant, source, "verify", command)
