"""What is known of all sources now, for their histories, and a source's history as the API shows it.

A look at all sources is a few statements, whatever their number and that of their tables.
"""

from menura.instants import now_us
from sqlalchemy import Connection, select

from controlplane_api.api import lake_queries
from controlplane_api.api.histories import FINE_OF_COARSE, MOST_SOURCES, STEP_SECONDS, Histories, Seen
from controlplane_api.api.lake_queries import Landed
from controlplane_api.api.source_queries import is_current
from controlplane_api.api.views import HistoryView
from controlplane_api.documents import position_text
from controlplane_api.models import Agent, AnyRow, CommittedPosition, Source, SourceHealth, Tenant

_FIGURES = (
    select(
        Tenant.name.label("tenant"), Source.name, Agent.connected, Agent.connected_at_us, Agent.seen_at_us,
        SourceHealth.at_us.label("health_at_us"), SourceHealth.heartbeat_ms,
        SourceHealth.lag_us, SourceHealth.read_position,
        SourceHealth.rows_per_second, CommittedPosition.cut, CommittedPosition.position, CommittedPosition.rows,
        CommittedPosition.committed_at_us, CommittedPosition.last_commit_timestamp_us, CommittedPosition.landing,
        CommittedPosition.entry,
    )
    .join_from(Source, Tenant)
    .outerjoin(Agent, Agent.id == Source.agent_id)
    .outerjoin(SourceHealth, SourceHealth.source_id == Source.id)
    .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
    .order_by(Source.id)
    .limit(MOST_SOURCES)
)  # fmt: skip


def look(connection: Connection) -> list[Seen]:
    """At all sources, of which the first `MOST_SOURCES` have a history."""
    now = now_us()
    rows = {(row.tenant, row.name): row for row in connection.execute(_FIGURES)}
    landed = [(tenant, _landed(row, now)) for (tenant, _), row in rows.items()]
    seen = []
    for tenant, each, lakes in lake_queries.of_fleet(connection, landed, now):
        row = rows[tenant, each.source]
        lags = [lake.lag_us for lake in lakes]
        cuts = [lake.cut for lake in lakes]
        seen.append(
            Seen(
                tenant=tenant,
                source=each.source,
                lag_us=each.lag_us,
                rows_per_second=row.rows_per_second if is_current(row, now) else None,
                has_landed=bool(row.read_position) and row.read_position == position_text(row.position),
                cut=each.cut,
                committed_at_us=row.committed_at_us or 0,
                rows=row.rows or 0,
                lake_cut=_least_known(cuts),
                lake_lag_us=None if None in lags else max((lag for lag in lags if lag is not None), default=None),
            )
        )
    return seen


def _landed(row: AnyRow, now: int) -> Landed:
    lag_us = row.lag_us if is_current(row, now) else None
    return Landed(row.name, row.cut or 0, row.landing or "", row.entry or 0, row.last_commit_timestamp_us, lag_us)


def _least_known(cuts: list[int | None]) -> int | None:
    known = [cut for cut in cuts if cut is not None]
    return min(known) if known and len(known) == len(cuts) else None


def history(histories: Histories, tenant: str, source: str, *, coarse: bool) -> HistoryView:
    points = histories.of(tenant, source, coarse=coarse)
    step = STEP_SECONDS * (FINE_OF_COARSE if coarse else 1)
    names = (
        "source_lag_seconds", "landed_lag_seconds", "lake_lag_seconds",
        "read_rows_per_second", "landed_rows_per_second", "lake_rows_per_second",
    )  # fmt: skip
    columns = [[] for _ in names] if points is None else points.columns
    return HistoryView(
        source=source,
        since_us=histories.since_us,
        step_seconds=step,
        is_kept=points is not None,
        at_us=[] if points is None else points.at_us,
        **dict(zip(names, columns, strict=True)),
    )
