"""What the API shows of a source's schedule of verifications, and of which of its tables are proven."""

from menura.instants import now_us
from sqlalchemy import Connection, case, func, select

from controlplane_api import verification_schedules, verification_states
from controlplane_api.api import queries
from controlplane_api.api.requests import WEEK_SECONDS
from controlplane_api.api.views import CoverageView, ScheduledVerifications, VerificationScheduleView
from controlplane_api.models import Source, Tenant
from controlplane_api.states import Coverage


def schedule(connection: Connection, tenant: str, source: str) -> VerificationScheduleView:
    """Raises `SourceUnknown`."""
    row = verification_schedules.of_source(connection, queries.source_row(connection, tenant, source).id)
    if row is None:
        return VerificationScheduleView(source=source, schedule=None)
    found = ScheduledVerifications(
        every_seconds=row.every_seconds,
        database=row.database,
        table=row.name,
        rows_per_second=row.rows_per_second,
        window=row.window,
        changed_at_us=row.changed_at_us,
        next_at_us=row.next_at_us,
    )
    return VerificationScheduleView(source=source, schedule=found)


def within_seconds(connection: Connection, source_id: int) -> int:
    """How old a proof may be that counts: the schedule's period, or a week."""
    row = verification_schedules.of_source(connection, source_id)
    return WEEK_SECONDS if row is None else int(row.every_seconds)


def coverages(connection: Connection, tenant: str, within: int | None = None) -> list[CoverageView]:
    """Of all sources of a tenant, in order of name."""
    rows = connection.execute(
        select(Source.id, Source.name).join(Tenant).where(Tenant.name == tenant).order_by(Source.name)
    ).all()
    return [_coverage(connection, row.id, row.name, within) for row in rows]


def coverage(connection: Connection, tenant: str, source: str, within: int | None = None) -> CoverageView:
    """`within`: in seconds, in place of the schedule's period. Raises `SourceUnknown`."""
    return _coverage(connection, queries.source_row(connection, tenant, source).id, source, within)


def _coverage(connection: Connection, source_id: int, source: str, within: int | None) -> CoverageView:
    seconds = within or within_seconds(connection, source_id)
    now = now_us()
    proven_at_us = verification_states.PROVEN_AT_US
    each = (
        verification_states.tables(
            connection,
            source_id,
            verification_states.coverage(now - seconds * 1_000_000).label("coverage"),
            verification_states.ESTIMATED_ROWS.label("rows"),
            case((proven_at_us > 0, proven_at_us)).label("proven_at_us"),
        )
        .where(verification_states.IS_ASKED)
        .subquery()
    )
    counted = select(
        each.c.coverage,
        func.count().label("tables"),
        func.sum(each.c.rows).label("rows"),
        func.min(each.c.proven_at_us).label("oldest"),
    ).group_by(each.c.coverage)
    tables, rows = dict.fromkeys(Coverage, 0), dict.fromkeys(Coverage, 0)
    proven: list[int] = []
    for row in connection.execute(counted):
        tables[Coverage(row.coverage)], rows[Coverage(row.coverage)] = row.tables, int(row.rows)
        proven += [] if row.oldest is None else [row.oldest]
    return CoverageView(
        source=source,
        within_seconds=seconds,
        tables=tables,
        rows=rows,
        oldest_proof_age_us=max(0, now - min(proven)) if proven else None,
    )
