"""What the API shows of a source's schedule of verifications, and of which of its tables are proven."""

from collections import defaultdict
from dataclasses import dataclass, field

from menura.instants import now_us
from sqlalchemy import Connection, case, func, select

from controlplane_api import verification_schedules, verification_states
from controlplane_api.api import queries
from controlplane_api.api.requests import WEEK_SECONDS
from controlplane_api.api.views import CoverageView, ScheduledVerifications, VerificationScheduleView
from controlplane_api.models import ProofOfTable, Source, Tenant, VerificationSchedule
from controlplane_api.states import Coverage, Proof


@dataclass(frozen=True, slots=True)
class SourceProofs:
    """Of the tables of a source whose sync is asked for."""

    tables: dict[Proof, int] = field(default_factory=lambda: dict.fromkeys(Proof, 0))
    covered: dict[Coverage, int] = field(default_factory=lambda: dict.fromkeys(Coverage, 0))
    #: as the server estimates
    rows: dict[Coverage, int] = field(default_factory=lambda: dict.fromkeys(Coverage, 0))
    #: when the oldest proofs were found
    proven_at_us: list[int] = field(default_factory=list)


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
        oldest_proof_at_us=min(proven, default=None),
    )


def of_first_sources(connection: Connection, most: int, now: int) -> dict[tuple[str, str], SourceProofs]:
    """By tenant and source, of so many in order of name; one without such tables is left out. One statement."""
    shown = select(Source.id).join(Tenant).order_by(Tenant.name, Source.name).limit(most)
    within_us = func.coalesce(VerificationSchedule.every_seconds, WEEK_SECONDS) * 1_000_000
    proven_at_us = verification_states.PROVEN_AT_US
    each = (
        verification_states.tables_of_sources(
            Tenant.name.label("tenant"),
            Source.name.label("source"),
            func.coalesce(ProofOfTable.state, Proof.NEVER.value).label("proof"),
            verification_states.coverage(now - within_us).label("coverage"),
            verification_states.ESTIMATED_ROWS.label("rows"),
            case((proven_at_us > 0, proven_at_us)).label("proven_at_us"),
        )
        .where(verification_states.IS_ASKED, Source.id.in_(shown))
        .subquery()
    )
    kinds = (each.c.tenant, each.c.source, each.c.proof, each.c.coverage)
    counted = select(
        *kinds,
        func.count().label("tables"),
        func.sum(each.c.rows).label("rows"),
        func.min(each.c.proven_at_us).label("oldest"),
    ).group_by(*kinds)
    found: dict[tuple[str, str], SourceProofs] = defaultdict(SourceProofs)
    for row in connection.execute(counted):
        known = found[row.tenant, row.source]
        known.tables[Proof(row.proof)] += row.tables
        known.covered[Coverage(row.coverage)] += row.tables
        known.rows[Coverage(row.coverage)] += int(row.rows)
        known.proven_at_us.extend([] if row.oldest is None else [row.oldest])
    return found
