"""What the API shows of joined views, read from the database: their state is the worst of all that they depend on.

A view waits for its tables and for the views that it reads, as a table waits for its stages (`api.stages`): what has
stopped of these shows at the view, with its reason. Comes in: a tenant. Goes out: `JoinedViewView`s. A tenant has few
views (`joined_views.MAX_OF_TENANT`), so all of them are judged together, each once.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from controlplane_api import joined_views
from controlplane_api.api import queries
from controlplane_api.api.pages import page_of, read_cursor
from controlplane_api.api.source_queries import situation_of
from controlplane_api.api.stages import problem_of
from controlplane_api.api.views import (
    JoinedViewDetail,
    JoinedViews,
    JoinedViewView,
    LakeView,
    ProblemView,
    ReadTableView,
    TableView,
    ViewCutView,
    ViewInLake,
    ViewInput,
    ViewPlan,
)
from controlplane_api.errors import ViewHeldUp, ViewRefused
from controlplane_api.models import AnyRow, JoinedView, Lake, LakeJoinedView, Source, Tenant
from controlplane_api.states import LakeState, Stage, State
from controlplane_api.view_plans import Planned, planned

#: of tables; of those that are not here nothing holds a view up
_HELD_UP = {
    State.FAILED: State.FAILED,
    State.DENIED: State.FAILED,
    State.STOPPED: State.STOPPED,
    State.NOT_SYNCED: State.STOPPED,
    State.WAITING: State.WAITING,
    State.DUMPING: State.CATCHING_UP,
    State.PENDING: State.CATCHING_UP,
    State.CATCHING_UP: State.CATCHING_UP,
}
#: what a sink says of a view
_OF_LAKE = {
    "": State.PENDING,
    "waiting": State.WAITING,
    "building": State.CATCHING_UP,
    "following": State.STREAMING,
    "stopped": State.FAILED,
}
_WORST_FIRST = (
    State.FAILED, State.STOPPED, State.WAITING, State.PENDING, State.CATCHING_UP, State.STREAMING
)  # fmt: skip

FullName = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Held:
    """A state, and what is the reason."""

    state: State
    stage: Stage | None = None
    problem: ProblemView | None = None


def views(connection: Connection, tenant: str, now: int, *, cursor: str = "", limit: int) -> JoinedViews:
    """One page, in order of name."""
    rows = _rows(connection, tenant)
    after = read_cursor(cursor, str)
    behind = [row for row in rows if after is None or row.name > after[0]]
    shown, following = page_of(behind, limit, lambda row: (row.name,))
    found = _views(connection, tenant, rows, now)
    return JoinedViews(views=[JoinedViewView(**found[row.name]) for row in shown], next_cursor=following)


def view(connection: Connection, tenant: str, name: str, now: int) -> JoinedViewDetail:
    """Raises `ViewUnknown`."""
    row = joined_views.view_row(connection, tenant, name)
    fields = _views(connection, tenant, _rows(connection, tenant), now)[name]
    try:
        plan = plan_view(name, planned(connection, tenant, name, row.sql))
        return JoinedViewDetail(**fields, sql=row.sql, plan=plan, plan_problem=None)
    except ViewRefused as refused:  # its tables are others than they were
        problem = ProblemView(**problem_of(refused, now))
        return JoinedViewDetail(**fields, sql=row.sql, plan=None, plan_problem=problem)


def plan_view(name: str, found: Planned) -> ViewPlan:
    explained = found.explained()
    inputs = [
        ViewInput(
            name=each.name,
            alias=each.alias,
            role=each.role,
            key=list(each.key),
            joined_on=[f"{column} = {value}" for column, value in each.joined_on],
            columns=list(each.columns),
            looked_up=list(each.looked_up),
            fan_out=each.fan_out,
            estimated_rows=None if each.rows < 0 else each.rows,
        )
        for each in explained.inputs
    ]
    columns = [column for column, _ in explained.columns]
    return ViewPlan(
        view=name,
        columns=columns,
        key=list(explained.key),
        inputs=inputs,
        every_seconds=found.every_seconds,
        lines=list(explained.lines),
    )


def _rows(connection: Connection, tenant: str) -> Sequence[AnyRow]:
    found = select(JoinedView).join(Tenant).where(Tenant.name == tenant).order_by(JoinedView.name)
    return connection.execute(found).all()


def _views(connection: Connection, tenant: str, rows: Sequence[AnyRow], now: int) -> dict[str, dict[str, Any]]:
    """Fields of `JoinedViewView`, by name."""
    names: set[FullName] = {(table[0], table[1], table[2]) for row in rows for table in row.tables}
    tables, lakes = _tables(connection, tenant, names, now)
    told = _told(connection, tenant)
    by_name = {row.name: row for row in rows}
    known: dict[str, dict[str, Any]] = {}

    def judged(name: str) -> dict[str, Any]:
        if name not in known:
            row = by_name[name]
            below = [judged(each) for each in row.views if each in by_name]
            known[name] = _view_fields(
                row, tables, below, [_in_lake(row, lake, told.get((lake.lake, row.name)), now) for lake in lakes]
            )
        return known[name]

    for row in rows:
        judged(row.name)
    return known


def _view_fields(
    row: AnyRow, tables: Mapping[FullName, TableView], below: Sequence[Mapping[str, Any]], lakes: list[ViewInLake]
) -> dict[str, Any]:
    read = [(tuple(name), tables.get((name[0], name[1], name[2]))) for name in row.tables]
    held = [_of_lake(row, lake) for lake in lakes] or [_without_lake(row)]
    held += [_of_table(name, table) for name, table in read]
    held += [_of_view(each) for each in below]
    worst = min(held, key=lambda each: (_WORST_FIRST.index(each.state), each.problem is None))
    current = [lake for lake in lakes if lake.state]
    ages = [lake.freshness_us for lake in current]
    return {
        "view": row.name,
        "version": row.version,
        "state": worst.state,
        "stage": None if worst.state is State.STREAMING else worst.stage,
        "problem": worst.problem,
        "freshness_us": max((age for age in ages if age is not None), default=None) if None not in ages else None,
        "rows": next((lake.rows for lake in current if lake.rows is not None), None),
        "tables": [_read_table(name, table) for name, table in read],
        "views": list(row.views),
        "lakes": lakes,
        "created_at_us": row.created_at_us,
        "changed_at_us": row.changed_at_us,
    }


def _without_lake(row: AnyRow) -> Held:
    words = ViewHeldUp(
        f"following view {row.name}",
        "no sink says that it has its sources",
        remedy="Start a sink that reports, with --api.",
    )
    return Held(State.PENDING, Stage.LAKE, ProblemView(**problem_of(words, 0)))


def _of_lake(row: AnyRow, lake: ViewInLake) -> Held:
    state = _OF_LAKE[lake.state]
    if lake.lake_state is not LakeState.FOLLOWING:
        state = State.FAILED if lake.lake_state is LakeState.FAILED else State.WAITING
        words = ViewHeldUp(f"following view {row.name}", f"lake {lake.lake} {_LAKES[lake.lake_state]}", remedy=_SEE)
        return Held(state, Stage.LAKE, ProblemView(**problem_of(words, 0)))
    if not lake.code:
        return Held(state, Stage.LAKE)
    at_us = lake.applied_at_us or 0
    return Held(
        state,
        Stage.LAKE,
        ProblemView(code=lake.code, message=lake.message, terminal=state is State.FAILED, at_us=at_us),
    )


_LAKES = {LakeState.FAILED: "has ended with an error", LakeState.UNKNOWN: "says nothing of itself"}
_SEE = "The list of lakes says why."


def _of_table(name: tuple[str, ...], table: TableView | None) -> Held:
    state = State.FAILED if table is None or table.gone else _HELD_UP.get(table.state, State.STREAMING)
    if state is State.STREAMING or table is None or table.problem is None:
        found = "is not among its source's tables" if table is None or table.gone else f"is {_words(table.state)}"
        if state in (State.STREAMING, State.CATCHING_UP):
            return Held(state, None if table is None else table.stage)
        held = ViewHeldUp("following a view", f"its table {'.'.join(name)} {found}", remedy=_SYNC)
        return Held(state, Stage.SOURCE, ProblemView(**problem_of(held, 0)))
    return Held(state, table.stage or Stage.SOURCE, table.problem)


_SYNC = "See the table, and start its sync if it is stopped."


def _words(state: State) -> str:
    return state.replace("_", " ")


def _of_view(below: Mapping[str, Any]) -> Held:
    return Held(below["state"], below["stage"], below["problem"])


def _read_table(name: tuple[str, ...], table: TableView | None) -> ReadTableView:
    source, database, plain = name
    lake = None if table is None else table.lake
    return ReadTableView(
        source=source,
        database=database,
        table=plain,
        state=State.FAILED if table is None else table.state,
        problem=None if table is None else table.problem,
        freshness_us=None if lake is None else lake.freshness_us,
    )


def _tables(
    connection: Connection, tenant: str, names: set[FullName], now: int
) -> tuple[dict[FullName, TableView], list[LakeView]]:
    """The tables of these names, and the lakes that their sources are in."""
    of_sources: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for source, database, table in sorted(names):
        of_sources[source].append((database, table))
    ids = select(Source.id).join(Tenant).where(Tenant.name == tenant, Source.name.in_(of_sources))
    tables: dict[FullName, TableView] = {}
    lakes: dict[str, LakeView] = {}
    for source_id in connection.execute(ids).scalars().all():
        held = situation_of(connection, source_id, now)
        lakes |= {lake.lake: lake for lake in held.lakes}
        for found in queries.named_tables(connection, held, of_sources[held.row.name]):
            tables[held.row.name, found.database, found.table] = found
    return tables, [lakes[name] for name in sorted(lakes)]


def _told(connection: Connection, tenant: str) -> dict[tuple[str, str], AnyRow]:
    rows = connection.execute(
        select(LakeJoinedView, Lake.name.label("lake"))
        .join(Lake, Lake.id == LakeJoinedView.lake_id)
        .where(LakeJoinedView.tenant == tenant)
    )
    return {(row.lake, row.name): row for row in rows}


def _in_lake(row: AnyRow, lake: LakeView, told: AnyRow | None, now: int) -> ViewInLake:
    if told is None or told.digest != row.digest:
        return ViewInLake(
            lake=lake.lake, lake_state=lake.state, state="", code="", message="", cuts=[], lake_version=None,
            rows=None, freshness_us=None, applied_at_us=None,
        )  # fmt: skip
    committed = [cut["committed_us"] for cut in told.cuts]
    return ViewInLake(
        lake=lake.lake,
        lake_state=lake.state,
        state=told.state,
        code=told.code,
        message=told.message,
        cuts=[ViewCutView(**{**cut, "committed_us": cut["committed_us"] or None}) for cut in told.cuts],
        lake_version=_known(told.lake_version),
        rows=_known(told.rows),
        freshness_us=max(0, now - min(committed)) if committed and all(committed) else None,
        applied_at_us=told.applied_at_us or None,
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number
