"""What the API shows of dumps, read from the database: a few statements per answer, always within one tenant."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, case, func, select

from controlplane_api.dump_progress import Progress, percent, seconds_left
from controlplane_api.errors import DumpUnknown
from controlplane_api.models import Agent, Dump, DumpChunk, DumpRange, DumpStatus, Source, SourceTable, Tenant
from controlplane_api.presence import is_present, now_us
from controlplane_api.states import DumpEnd, DumpState
from controlplane_api.views import DumpDetail, DumpLimits, DumpRangeView, Dumps, DumpView

#: chunks that say how fast a dump is
SPEED_SECONDS = 60

AnyRow = Row[*tuple[Any, ...]]

#: what the agent's states are called here
_STATES = {
    "PLANNING": DumpState.PLANNING,
    "READING": DumpState.READING,
    "WAITING": DumpState.WAITING,
    "PAUSED": DumpState.PAUSED,
    "ENDING": DumpState.ENDING,
}


def dumps(
    connection: Connection,
    tenant: str,
    source: str | None = None,
    *,
    running: bool = False,
    cursor: int | None = None,
    limit: int = 100,
) -> Dumps:
    """One page of a tenant's dumps, or of one of its sources, the newest first."""
    matching = [Tenant.name == tenant]
    if source is not None:
        matching.append(Source.name == source)
    if running:
        matching.append(Dump.state == DumpEnd.RUNNING)
    if cursor is not None:
        matching.append(Dump.id < cursor)
    statement = _select(matching).order_by(Dump.id.desc()).limit(limit + 1)
    found = connection.execute(statement).all()
    shown = found[:limit]
    return Dumps(dumps=_views(connection, shown), next_cursor=shown[-1].id if len(found) > limit else None)


def dump(connection: Connection, source_id: int, uuid: str) -> DumpDetail:
    """Raises `DumpUnknown`."""
    row = connection.execute(_select([Dump.source_id == source_id, Dump.uuid == uuid])).first()
    if row is None:
        raise DumpUnknown(
            "looking for a dump",
            "the source has no dump of this name",
            remedy="See menura dump list for those that there are.",
        )
    ranges = connection.execute(select(DumpRange).where(DumpRange.dump_id == row.id).order_by(DumpRange.number))
    return DumpDetail(
        **_views(connection, [row])[0].model_dump(),
        of_ranges=[DumpRangeView(number=each.number, done=each.done, rows=each.rows) for each in ranges],
    )


def running_of_tables(connection: Connection, tables: Sequence[int]) -> dict[int, DumpView]:
    """The dumps that are not over, by table."""
    rows = connection.execute(_select([Dump.table_id.in_(tables), Dump.state == DumpEnd.RUNNING])).all()
    return dict(zip((row.table_id for row in rows), _views(connection, rows), strict=True))


def _select(matching: Iterable[ColumnElement[bool]]) -> Select[*tuple[Any, ...]]:
    return (
        select(
            Dump, Source.name.label("source"), SourceTable.database, SourceTable.name.label("table"),
            Agent.connected, Agent.connected_at_us, Agent.seen_at_us,
            DumpStatus.at_us.label("status_at_us"), DumpStatus.state.label("activity"), DumpStatus.reason,
            DumpStatus.rows_per_second.label("seen_rows_per_second"),
            DumpStatus.bytes_per_second.label("seen_bytes_per_second"), DumpStatus.uncommitted_rows,
        )
        .join(Source, Source.id == Dump.source_id)
        .join(Tenant)
        .join(SourceTable, SourceTable.id == Dump.table_id)
        .outerjoin(Agent, Agent.id == Source.agent_id)
        .outerjoin(DumpStatus, DumpStatus.dump_id == Dump.id)
        .where(*matching)
    )  # fmt: skip


def _views(connection: Connection, rows: Sequence[AnyRow]) -> list[DumpView]:
    ids = [row.id for row in rows]
    if not ids:
        return []
    now = now_us()
    done_rows = func.sum(case((DumpRange.done, DumpRange.rows), else_=0)).label("done_rows")
    ranges = {
        row.dump_id: row
        for row in connection.execute(
            select(
                DumpRange.dump_id, func.count().label("ranges"), done_rows,
                func.sum(case((DumpRange.done, 1), else_=0)).label("done"),
            )
            .where(DumpRange.dump_id.in_(ids))
            .group_by(DumpRange.dump_id)
        )
    }  # fmt: skip
    speeds = _recent_rows_per_second(connection, ids, now)
    return [_view(row, ranges.get(row.id), speeds.get(row.id), now) for row in rows]


def _recent_rows_per_second(connection: Connection, ids: Sequence[int], now: int) -> dict[int, float]:
    """By the chunks that came into the lake lately."""
    since = now - SPEED_SECONDS * 1_000_000
    rows, began = func.sum(DumpChunk.rows).label("rows"), func.min(DumpChunk.read_at_us).label("began")
    chunks = (
        select(DumpChunk.dump_id, rows, began)
        .where(DumpChunk.dump_id.in_(ids), DumpChunk.committed_at_us >= since)
        .group_by(DumpChunk.dump_id)
    )
    return {
        row.dump_id: float(row.rows) * 1_000_000 / max(1, now - max(since, row.began))
        for row in connection.execute(chunks)
    }


def _view(row: AnyRow, ranges: AnyRow | None, recent_rows_per_second: float | None, now: int) -> DumpView:
    runs = row.state == DumpEnd.RUNNING
    connected = is_present(bool(row.connected), row.seen_at_us or 0, now)
    told = runs and connected and row.status_at_us is not None and row.status_at_us >= row.connected_at_us
    progress = Progress(
        rows=row.rows,
        uncommitted_rows=row.uncommitted_rows if told else 0,
        estimated_rows=row.estimated_rows,
        ranges=ranges.ranges if ranges is not None else 0,
        ranges_done=ranges.done if ranges is not None else 0,
        rows_of_done_ranges=int(ranges.done_rows) if ranges is not None else 0,
    )
    state, reason = _state(row, connected=connected, told=told)
    moves = state in (DumpState.READING, DumpState.WAITING, DumpState.ENDING)
    left = seconds_left(progress, recent_rows_per_second or row.seen_rows_per_second) if moves else None
    return DumpView(
        dump=row.uuid,
        source=row.source,
        database=row.database,
        table=row.table,
        state=state,
        reason=reason,
        problem=row.problem,
        priority=row.priority,
        limits=DumpLimits(
            workers=row.workers, rows_per_second=row.rows_per_second, bytes_per_second=row.bytes_per_second
        ),
        forced=row.forced,
        created_at_us=row.created_at_us,
        planned_at_us=row.planned_at_us,
        ended_at_us=row.ended_at_us,
        key=row.key,
        rows=row.rows,
        bytes=row.bytes,
        chunks=row.chunks,
        uncommitted_rows=progress.uncommitted_rows,
        ranges=progress.ranges,
        ranges_done=progress.ranges_done,
        estimated_rows=row.estimated_rows,
        estimated_bytes=row.estimated_bytes,
        percent=100.0 if row.state == DumpEnd.DONE else percent(progress),
        rows_per_second=row.seen_rows_per_second if told else None,
        bytes_per_second=row.seen_bytes_per_second if told else None,
        estimated_end_us=None if left is None else now + round(left * 1_000_000),
        warning=row.warning,
        runway_seconds=row.runway_seconds,
        needed_seconds=row.needed_seconds,
    )


def _state(row: AnyRow, *, connected: bool, told: bool) -> tuple[DumpState, str]:
    """What it does, and why."""
    if row.state != DumpEnd.RUNNING:
        return DumpState(row.state), (row.problem or {}).get("message", "")
    if row.paused:
        return DumpState.PAUSED, "by command"
    if not connected:
        return DumpState.PENDING, "its agent is not connected"
    said = _STATES.get(row.activity) if told else None
    if said is None or said is DumpState.PAUSED:  # what the agent says of a pause that is over is old
        return DumpState.PENDING, ""
    return said, row.reason
