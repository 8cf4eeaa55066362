"""What the API shows of lakes, read from the database: how far each source is in each, and which tables stand there.

A lake is of a source when its sink has said so, or when it follows the cut log that the source's last cut stands in.
It has all that has landed of a source when it has that cut, or all of that log up to the cut's entry. What is not
known is absent, never 0: a lag is 0 only where the lake has all that has landed and the agent has read its source to
the end; a cut that the database does not know says that it is behind, so nothing tells the lag.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from menura.lake_report import TABLE_BEHIND
from menura.naming import TableName
from sqlalchemy import Connection, func, select

from controlplane_api.api.pages import page_of, read_cursor
from controlplane_api.api.presence import is_heard
from controlplane_api.api.stages import lake_silent, lake_untold
from controlplane_api.api.views import Lakes, LakeTableView, LakeView, ProblemView, SinkView
from controlplane_api.lookups import among
from controlplane_api.models import AnyRow, Lake, LakePolicy, LakeSource, LakeStop, Landing
from controlplane_api.states import LakeState

_WORST_FIRST = (LakeState.FAILED, LakeState.UNKNOWN, LakeState.BEHIND, LakeState.FOLLOWING)
_IS_STOPPED = LakeStop.code != TABLE_BEHIND


@dataclass(frozen=True, slots=True)
class Landed:
    """What of a source has landed, and how far behind it its agent is."""

    source: str
    cut: int
    landing: str
    entry: int
    last_commit_timestamp_us: int | None
    #: None while unknown
    lag_us: int | None


def sinks(connection: Connection, now: int, *, cursor: str = "", limit: int) -> Lakes:
    """One page of the lakes that are known, in order of name."""
    statement = select(Lake).order_by(Lake.name).limit(limit + 1)
    after = read_cursor(cursor, str)
    if after is not None:
        statement = statement.where(Lake.name > after[0])
    lakes, following = page_of(connection.execute(statement).all(), limit, lambda lake: (lake.name,))
    stops = select(LakeStop.lake_id, func.count().label("tables")).where(_IS_STOPPED).group_by(LakeStop.lake_id)
    stopped = {row.lake_id: row.tables for row in connection.execute(stops)}
    found = [
        SinkView(
            lake=lake.name,
            url=lake.url,
            landing=lake.landing,
            state=_state(lake, now)[0],
            problem=_state(lake, now)[1],
            stopped_tables=stopped.get(lake.id, 0),
            received_at_us=lake.received_at_us or None,
        )
        for lake in lakes
    ]
    return Lakes(lakes=found, next_cursor=following)


def of_sources(connection: Connection, tenant: str, landed: Sequence[Landed], now: int) -> dict[str, list[LakeView]]:
    """The lakes of each of these sources of a tenant."""
    lakes = connection.execute(select(Lake).order_by(Lake.name)).all()
    if not lakes:
        return {each.source: [] for each in landed}
    names = {each.source for each in landed}
    of_tenant = (LakeSource.tenant == tenant, *([LakeSource.source.in_(names)] if len(names) == 1 else []))
    known: Mapping[tuple[int, str], AnyRow] = {
        (row.lake_id, row.source): row for row in connection.execute(select(LakeSource).where(*of_tenant))
    }
    stops = (
        select(LakeStop.lake_id, LakeStop.source, func.count().label("tables"))
        .where(LakeStop.tenant == tenant, _IS_STOPPED)
        .group_by(LakeStop.lake_id, LakeStop.source)
    )
    stopped = {(row.lake_id, row.source): row.tables for row in connection.execute(stops)}
    applied = _applied(connection)
    found: dict[str, list[LakeView]] = {}
    for each in landed:
        found[each.source] = [
            _lake_view(lake, each, at, stopped.get((lake.id, each.source), 0), applied.get(lake.landing, 0), now)
            for lake in lakes
            if (at := known.get((lake.id, each.source))) is not None or _is_in_its_log(lake, each)
        ]
    return found


def of_fleet(
    connection: Connection, landed: Sequence[tuple[str, Landed]], now: int
) -> Iterator[tuple[str, Landed, list[LakeView]]]:
    """The lakes of each of these sources, of all tenants; which tables they have stopped is not counted."""
    lakes = connection.execute(select(Lake).order_by(Lake.name)).all()
    rows = connection.execute(select(LakeSource)) if lakes else ()
    known: Mapping[tuple[int, str, str], AnyRow] = {(row.lake_id, row.tenant, row.source): row for row in rows}
    applied = _applied(connection)
    for tenant, each in landed:
        yield (
            tenant,
            each,
            [
                _lake_view(lake, each, at, 0, applied.get(lake.landing, 0), now)
                for lake in lakes
                if (at := known.get((lake.id, tenant, each.source))) is not None or _is_in_its_log(lake, each)
            ],
        )


def _applied(connection: Connection) -> dict[str, int]:
    """By landing, the last entry that the database knows."""
    return {row.url: row.applied_entry for row in connection.execute(select(Landing.url, Landing.applied_entry))}


def of_tables(
    connection: Connection,
    tenant: str,
    source: str,
    tables: Iterable[TableName],
    lakes: Sequence[LakeView],
    now: int,
) -> dict[TableName, LakeTableView]:
    """What is known of each table in the lake where it stands worst; nothing where there is no lake."""
    names = list(tables)
    stops: defaultdict[TableName, dict[str, AnyRow]] = defaultdict(dict)
    if lakes:
        rows = connection.execute(
            select(LakeStop, Lake.name.label("lake"))
            .join(Lake, Lake.id == LakeStop.lake_id)
            .where(LakeStop.tenant == tenant, LakeStop.source == source)
            .where(among((LakeStop.database, LakeStop.name), names))
        )
        for row in rows:
            stops[row.database, row.name][row.lake] = row
    policies = _policies(connection, tenant, source, names) if lakes else {}
    found: dict[TableName, LakeTableView] = {}
    for name in names:
        views = [
            _table_view(lake, stops[name].get(lake.lake), policies.get((lake.lake, *name), ""), now) for lake in lakes
        ]
        if views:
            found[name] = min(views, key=lambda view: (_WORST_FIRST.index(view.state), not view.schema_changes))
    return found


def _policies(
    connection: Connection, tenant: str, source: str, names: Sequence[TableName]
) -> dict[tuple[str, str, str], str]:
    """By lake, database and table."""
    rows = connection.execute(
        select(Lake.name.label("lake"), LakePolicy.database, LakePolicy.name, LakePolicy.said)
        .join(Lake, Lake.id == LakePolicy.lake_id)
        .where(LakePolicy.tenant == tenant, LakePolicy.source == source)
        .where(among((LakePolicy.database, LakePolicy.name), names))
    )
    return {(row.lake, row.database, row.name): row.said for row in rows}


def _state(lake: AnyRow, now: int) -> tuple[LakeState, ProblemView | None]:
    if lake.problem is not None:
        problem = ProblemView(**{"terminal": True, **lake.problem}, at_us=lake.received_at_us)
        if problem.terminal or is_heard(lake.received_at_us, now):
            return LakeState.FAILED if problem.terminal else LakeState.UNKNOWN, problem
    if not is_heard(lake.received_at_us, now):
        return LakeState.UNKNOWN, ProblemView(**lake_silent(lake.name, lake.received_at_us))
    if not lake.complete:
        return LakeState.UNKNOWN, ProblemView(**lake_untold(lake.name, lake.received_at_us))
    return LakeState.FOLLOWING, None


def _is_in_its_log(lake: AnyRow, landed: Landed) -> bool:
    return bool(landed.entry and lake.landing == landed.landing)


def _lake_view(lake: AnyRow, landed: Landed, at: AnyRow | None, stopped: int, applied: int, now: int) -> LakeView:
    state, problem = _state(lake, now)
    heard = state is LakeState.FOLLOWING
    has_all = (at is not None and at.cut == landed.cut) or (_is_in_its_log(lake, landed) and lake.entry >= landed.entry)
    # A cut or an entry that the database does not know: more has landed than it can tell.
    is_ahead = (at is not None and at.cut > landed.cut) or (_is_in_its_log(lake, landed) and lake.entry > applied)
    cut = at.cut if at is not None else None
    if has_all and not is_ahead:
        cut = landed.cut
    since_us = lake.waiting_since_us or lake.received_at_us
    landing_lag_us = None
    if heard and not is_ahead:
        landing_lag_us = 0 if has_all else max(1, now - since_us)
    lag_us = None if landing_lag_us is None or landed.lag_us is None else landing_lag_us + landed.lag_us
    commit_us = landed.last_commit_timestamp_us if has_all and not is_ahead else at and at.last_commit_timestamp_us
    return LakeView(
        lake=lake.name,
        url=lake.url,
        state=state,
        problem=problem,
        cut=cut,
        cuts_behind=None if cut is None or not heard or is_ahead else landed.cut - cut,
        landing_lag_us=landing_lag_us,
        lag_us=lag_us,
        freshness_us=max(0, now - commit_us) if heard and commit_us else None,
        stopped_tables=stopped,
        received_at_us=lake.received_at_us or None,
    )


def _table_view(lake: LakeView, stop: AnyRow | None, schema_changes: str, now: int) -> LakeTableView:
    if stop is None:
        return LakeTableView(
            lake=lake.lake,
            state=lake.state,
            problem=lake.problem,
            cut=lake.cut,
            freshness_us=lake.freshness_us,
            retries=False,
            schema_changes=schema_changes,
        )
    commit_us = stop.last_commit_timestamp_us
    return LakeTableView(
        lake=lake.lake,
        state=LakeState.BEHIND if stop.code == TABLE_BEHIND else LakeState.FAILED,
        problem=ProblemView(code=stop.code, message=stop.message, terminal=stop.terminal, at_us=stop.at_us),
        cut=max(0, stop.cut - 1),
        freshness_us=max(0, now - commit_us) if commit_us else None,
        retries=stop.retry,
        schema_changes=schema_changes,
    )
