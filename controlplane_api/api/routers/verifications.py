"""Verifications: compare tables of a source with the lake, and what that has found."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import continuity_ledger, operations, repairs, verifications
from controlplane_api.api import proof_queries, queries, versions
from controlplane_api.api.event_stream import STREAMED, EventStream, EventStreams, Following, LastEventId, followed
from controlplane_api.api.openapi import refusals
from controlplane_api.api.pages import Cursor, Limit, Text
from controlplane_api.api.paths import ControlDatabase, SourceName, TableName, TenantName
from controlplane_api.api.requests import RepairRequest, VerificationRequest
from controlplane_api.api.routers.login import CurrentKnown
from controlplane_api.api.routers.outcomes import ACCEPTED, command_tables, named_tables
from controlplane_api.api.views import Outcomes, Proofs, ProofView, RepairView, Verdicts
from controlplane_api.api.writing import GUARDED, WriteIf
from controlplane_api.dump_lives import DumpOptions
from controlplane_api.errors import (
    DumpRunning,
    RepairImpossible,
    SourceUnknown,
    SyncNotRunning,
    TableDenied,
    TableUnknown,
)
from controlplane_api.key_ranges import ranges_text
from controlplane_api.states import Coverage
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


Which = Annotated[Sequence[Coverage], Query(description="Only tables of which this is so; several may be named.")]
REPAIRS = (SourceUnknown, TableUnknown, TableDenied, SyncNotRunning, DumpRunning, RepairImpossible, *GUARDED)


@router.post(
    "/sources/{source}/tables/{database}/{table}/repair", status_code=202, responses=ACCEPTED | refusals(*REPAIRS)
)
def start_repair(
    tenant: TenantName, source: SourceName, table: TableName, request: RepairRequest, write: WriteIf
) -> RepairView:
    """Have the ranges read again in which the newest verdict says that the table differs, beside its stream; they are
    compared afterwards. With `dry_run`: which these are.

    A repair is read as a dump is, and is steered as one.
    """
    options = DumpOptions(priority=request.priority, **request.limits.model_dump())

    def act(connection: Connection) -> RepairView:
        source_id = queries.source_row(connection, tenant, source).id
        uuid, found = repairs.order(connection, source_id, table, options)
        outcome = Outcome(*table, changed=True, dump=uuid)
        operation = operations.record(connection, source_id, "repair", [outcome])
        ordered = f"repair of {ranges_text(found.key, found.focus.kinds, found.focus.ranges)}"
        continuity_ledger.record_command(connection, source_id, ordered, write.actor, [table])
        return proof_queries.repair_view(table, uuid, operation, found)

    answer = write.run(RepairView, act, versions.of_table(tenant, source, table))
    if not write.dry_run:
        base = f"/api/v1/tenants/{tenant}/sources/{source}"
        write.response.headers["location"] = f"{base}/operations/{answer.operation}"
    return answer


OF_TABLE = refusals(SourceUnknown, TableUnknown)


@router.get("/sources/{source}/proofs", responses=refusals(SourceUnknown))
def get_proofs(
    tenant: TenantName,
    source: SourceName,
    database: ControlDatabase,
    text: Text = "",
    coverage: Which = (),
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Proofs:
    """Of each table that is synced whether the lake is equal to the source: at which position, and how long ago.
    `text` is part of DATABASE.TABLE.
    """
    with database.read() as connection:
        return proof_queries.proofs(connection, tenant, source, text=text, which=coverage, cursor=cursor, limit=limit)


@router.get("/sources/{source}/tables/{database}/{table}/proof", responses=OF_TABLE)
def get_proof(tenant: TenantName, source: SourceName, table: TableName, control: ControlDatabase) -> ProofView:
    with control.read() as connection:
        return proof_queries.proof(connection, tenant, source, table)


@router.get("/sources/{source}/tables/{database}/{table}/verdicts", responses=OF_TABLE)
def get_verdicts(
    tenant: TenantName,
    source: SourceName,
    table: TableName,
    control: ControlDatabase,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Verdicts:
    """What verifications have found of a table, the newest first. The last ones are kept, with the newest that is equal
    and the newest that differs; the lake has all of them.
    """
    with control.read() as connection:
        return proof_queries.verdicts(connection, tenant, source, table, cursor=cursor, limit=limit)


@router.get("/sources/{source}/verdicts/events", status_code=200, response_class=EventStream, responses=STREAMED)
def follow_verdicts(
    tenant: TenantName,
    source: SourceName,
    database: ControlDatabase,
    request: Request,
    known: CurrentKnown,
    last_event_id: LastEventId = "",
) -> Response:
    """Server-sent events: verdicts after `Last-Event-ID`, or all from now on; data is a `SourceVerdictView`."""
    streams: EventStreams = request.state.streams
    streams.check(tenant)
    with database.read() as connection:
        queries.source_row(connection, tenant, source)
        number = int(last_event_id) if last_event_id else proof_queries.newest(connection)

    def after(connection: Connection, number: int) -> Following:
        return proof_queries.after(connection, tenant, source, number)

    texts = followed(streams.looking, tenant, database, known, after, number)
    return EventStream(texts, streams.one_of(tenant))
