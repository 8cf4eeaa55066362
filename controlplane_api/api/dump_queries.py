"""What the API shows of dumps, read from the database: a few statements per answer, always within one tenant."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from menura.instants import now_us
from sqlalchemy import ColumnElement, Connection, Select, select

from controlplane_api.api.dump_progress import Progress, RangePart, covered, expected_rows, percent, seconds_left
from controlplane_api.api.pages import page_of, read_cursor
from controlplane_api.api.presence import is_of_connection, is_present
from controlplane_api.api.views import DumpDetail, DumpLimits, DumpRangeView, Dumps, DumpView
from controlplane_api.errors import DumpUnknown
from controlplane_api.models import Agent, AnyRow, Dump, DumpRange, DumpStatus, Source, SourceTable, Tenant
from controlplane_api.states import DumpEnd, DumpHeld, DumpState
from gateway.errors import LandingFailed

#: what the agent's states are called here
_STATES = {
    "PLANNING": DumpState.PLANNING,
    "READING": DumpState.READING,
    "WAITING": DumpState.WAITING,
    "PAUSED": DumpState.PAUSED,
    "ENDING": DumpState.ENDING,
}
_HOLDS = {held.name: held for held in DumpHeld}


def dumps(
    connection: Connection,
    tenant: str,
    source: str | None = None,
    *,
    running: bool = False,
    cursor: str = "",
    limit: int = 100,
) -> Dumps:
    """One page of a tenant's dumps, or of one of its sources, the newest first."""
    matching = [Tenant.name == tenant]
    if source is not None:
        matching.append(Source.name == source)
    if running:
        matching.append(Dump.state == DumpEnd.RUNNING)
    after = read_cursor(cursor, int)
    if after is not None:
        matching.append(Dump.id < after[0])
    statement = _select(matching).order_by(Dump.id.desc()).limit(limit + 1)
    shown, following = page_of(connection.execute(statement).all(), limit, lambda row: (row.id,))
    return Dumps(dumps=_views(connection, shown), next_cursor=following)


def dump(connection: Connection, source_id: int, uuid: str) -> DumpDetail:
    """Raises `DumpUnknown`."""
    row = connection.execute(_select([Dump.source_id == source_id, Dump.uuid == uuid])).first()
    if row is None:
        raise DumpUnknown(
            "looking for a dump",
            "the source has no dump of this name",
            remedy="See those that there are: menura dump list --all",
        )
    ranges = _ranges(connection, [row.id])[row.id]
    return DumpDetail(
        **_view(row, ranges, now_us()).model_dump(),
        of_ranges=[
            DumpRangeView(number=each.number, done=each.done, rows=each.rows, bytes=each.bytes, chunks=each.chunks)
            for each in ranges
        ],
    )


def running_of_tables(connection: Connection, tables: Sequence[int]) -> dict[int, DumpView]:
    """The dumps that are not over, by table."""
    rows = connection.execute(_select([Dump.table_id.in_(tables), Dump.state == DumpEnd.RUNNING])).all()
    return dict(zip((row.table_id for row in rows), _views(connection, rows), strict=True))


def _select(matching: Iterable[ColumnElement[bool]]) -> Select[*tuple[Any, ...]]:
    return (
        select(
            Dump, Source.name.label("source"), Source.problem.label("source_problem"),
            SourceTable.database, SourceTable.name.label("table"),
            Agent.connected, Agent.connected_at_us, Agent.seen_at_us,
            DumpStatus.at_us.label("status_at_us"), DumpStatus.state.label("activity"), DumpStatus.reason,
            DumpStatus.held,
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
    now = now_us()
    ranges = _ranges(connection, [row.id for row in rows])
    return [_view(row, ranges[row.id], now) for row in rows]


def _ranges(connection: Connection, ids: Sequence[int]) -> defaultdict[int, list[AnyRow]]:
    found: defaultdict[int, list[AnyRow]] = defaultdict(list)
    of_dumps = select(DumpRange).where(DumpRange.dump_id.in_(ids)).order_by(DumpRange.dump_id, DumpRange.number)
    for row in connection.execute(of_dumps) if ids else ():
        found[row.dump_id].append(row)
    return found


def _part(dump: AnyRow, of: AnyRow) -> RangePart:
    if of.done:
        return RangePart(of.rows, 1.0)
    return RangePart(of.rows, covered(of.lower, of.upper, of.reached, dump.least_key, dump.greatest_key))


def _view(row: AnyRow, ranges: Sequence[AnyRow], now: int) -> DumpView:
    runs = row.state == DumpEnd.RUNNING
    connected = is_present(bool(row.connected), row.seen_at_us or 0, now)
    is_of_now = row.status_at_us is not None and is_of_connection(row.status_at_us, row.connected_at_us, now)
    told = runs and connected and is_of_now
    progress = Progress(row.rows, row.estimated_rows, [_part(row, each) for each in ranges])
    state, reason, held = _state(row, connected=connected, told=told)
    moves = state in (DumpState.READING, DumpState.WAITING, DumpState.ENDING)
    left = seconds_left(progress, row.seen_rows_per_second) if moves and told else None
    return DumpView(
        dump=row.uuid,
        source=row.source,
        database=row.database,
        table=row.table,
        state=state,
        reason=reason,
        held=held,
        problem=row.problem,
        cause=row.cause,
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
        uncommitted_rows=row.uncommitted_rows if told else 0,
        ranges=len(ranges),
        ranges_done=sum(each.done for each in ranges),
        estimated_rows=row.estimated_rows,
        estimated_bytes=row.estimated_bytes,
        expected_rows=row.rows if row.state == DumpEnd.DONE else expected_rows(progress),
        percent=100.0 if row.state == DumpEnd.DONE else percent(progress),
        rows_per_second=row.seen_rows_per_second if told else None,
        bytes_per_second=row.seen_bytes_per_second if told else None,
        estimated_end_us=None if left is None else now + round(left * 1_000_000),
        warning=row.warning,
        runway_seconds=row.runway_seconds,
        needed_seconds=row.needed_seconds,
    )


def _state(row: AnyRow, *, connected: bool, told: bool) -> tuple[DumpState, str, DumpHeld | None]:
    """What it does, why, and what that is about."""
    if row.state != DumpEnd.RUNNING:
        return DumpState(row.state), (row.problem or {}).get("message", ""), None
    if row.paused:
        return DumpState.PAUSED, "by command", None
    if not connected:
        return DumpState.PENDING, "its agent is not connected", None
    problem = row.source_problem or {}
    if problem.get("code") == LandingFailed.code:  # the agent can't know what its rows wait for
        return DumpState.WAITING, problem["message"], DumpHeld.GATEWAY
    said = _STATES.get(row.activity) if told else None
    if said is None or said is DumpState.PAUSED:  # what the agent says of a pause that is over is old
        return DumpState.PENDING, problem.get("message", ""), None
    return said, row.reason, _HOLDS.get(row.held)
