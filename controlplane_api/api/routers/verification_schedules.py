"""Verifications that are ordered by themselves, and which tables are proven."""

from typing import Annotated

from fastapi import APIRouter, Query
from menura.instants import now_us
from sqlalchemy import Connection
from starlette.responses import Response

from controlplane_api import verification_schedules
from controlplane_api.api import coverage_queries, queries, versions
from controlplane_api.api.openapi import refusals
from controlplane_api.api.paths import ControlDatabase, SourceName, TenantName
from controlplane_api.api.requests import VerificationScheduleRemove, VerificationScheduleSet
from controlplane_api.api.routers.outcomes import pattern_of
from controlplane_api.api.views import Coverages, CoverageView, VerificationScheduleView
from controlplane_api.api.writing import GUARDED, TAGGED, WriteIf
from controlplane_api.errors import SourceUnknown
from controlplane_api.identity import audit

router = APIRouter(prefix="/api/v1/tenants/{tenant}", tags=["verifications"])

MOST_WITHIN_SECONDS = 10 * 366 * 86_400
Within = Annotated[
    int | None,
    Query(
        ge=1,
        le=MOST_WITHIN_SECONDS,
        description="How old a proof may be that counts, in seconds; without it the schedule's period, or a week.",
    ),
]
_OF_SOURCE = refusals(SourceUnknown)
_WRITES = TAGGED | refusals(SourceUnknown, *GUARDED)


@router.get("/sources/{source}/verification-schedule", responses=TAGGED | _OF_SOURCE)
def get_verification_schedule(
    tenant: TenantName, source: SourceName, database: ControlDatabase, response: Response
) -> VerificationScheduleView:
    """Which tables of the source are verified by themselves, and how often."""
    with database.read() as connection:
        source_id = queries.source_row(connection, tenant, source).id
        response.headers["etag"] = versions.schedule_tag(connection, source_id)
        return coverage_queries.schedule(connection, tenant, source)


@router.put("/sources/{source}/verification-schedule", responses=_WRITES)
def set_verification_schedule(
    tenant: TenantName, source: SourceName, request: VerificationScheduleSet, write: WriteIf
) -> VerificationScheduleView:
    """Verify each table once in a period, one after the other, in place of the former schedule.

    A verification is read as a dump is: under the agent's own limits and windows.
    """
    pattern = pattern_of(request.tables)
    schedule = verification_schedules.Schedule(request.every_seconds, pattern, request.rows_per_second, request.window)

    def act(connection: Connection) -> VerificationScheduleView:
        source_id = queries.source_row(connection, tenant, source).id
        if verification_schedules.put(connection, source_id, schedule, now_us()):
            found = f"{source} {pattern.database}.{pattern.table} every {schedule.every_seconds} s"
            found += f", {schedule.rows_per_second} rows per second" if schedule.rows_per_second else ""
            found += f", within {schedule.window}" if schedule.window else ""
            audit.record(connection, tenant, write.actor, "set verification schedule", found=found)
        return coverage_queries.schedule(connection, tenant, source)

    return write.run(VerificationScheduleView, act, versions.of_schedule(tenant, source))


@router.delete("/sources/{source}/verification-schedule", responses=_WRITES)
def remove_verification_schedule(
    tenant: TenantName, source: SourceName, _request: VerificationScheduleRemove, write: WriteIf
) -> VerificationScheduleView:
    """A verification that runs goes on, and what was found stays."""

    def act(connection: Connection) -> VerificationScheduleView:
        source_id = queries.source_row(connection, tenant, source).id
        if verification_schedules.remove(connection, source_id):
            audit.record(connection, tenant, write.actor, "remove verification schedule", found=source)
        return coverage_queries.schedule(connection, tenant, source)

    return write.run(VerificationScheduleView, act, versions.of_schedule(tenant, source))


@router.get("/coverage")
def get_coverages(tenant: TenantName, database: ControlDatabase, within_seconds: Within = None) -> Coverages:
    """Of each source how many of its tables are proven, and how many rows these have."""
    with database.read() as connection:
        return Coverages(sources=coverage_queries.coverages(connection, tenant, within_seconds))


@router.get("/sources/{source}/coverage", responses=_OF_SOURCE)
def get_coverage(
    tenant: TenantName, source: SourceName, database: ControlDatabase, within_seconds: Within = None
) -> CoverageView:
    """Of the tables whose sync is asked for: proven within the period, not any more, differing, unprovable, never."""
    with database.read() as connection:
        return coverage_queries.coverage(connection, tenant, source, within_seconds)
