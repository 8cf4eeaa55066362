"""Joined views: what is desired of each, how it is planned, how it is in lakes."""

from controlplane_api.api.views.base import View
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.states import LakeState, Stage, State


class ReadTableView(View):
    """A table that a view reads."""

    source: str
    database: str
    table: str
    #: the worst of all stages
    state: State
    problem: ProblemView | None
    #: of the lake where it stands worst; null while unknown
    freshness_us: int | None


class ViewCutView(View):
    source: str
    #: the last one whose rows the newest version has
    cut: int
    #: of its newest transaction; null: not known
    committed_us: int | None


class ViewInLake(View):
    """How a view is in a lake."""

    lake: str
    lake_state: LakeState
    #: waiting, building, following or stopped, as the sink says; empty: it has said nothing of this version yet
    state: str
    #: why it is not followed; empty: nothing is said
    code: str
    #: without a code why its newest version was computed from all rows; empty: it was not
    message: str
    #: its newest version is of these at once
    cuts: list[ViewCutView]
    #: how many times it was changed there; null: not known
    lake_version: int | None
    rows: int | None
    #: now minus the commit time of the newest transaction that it has of a source, where that is the oldest
    freshness_us: int | None
    #: when its newest version was written
    applied_at_us: int | None


class JoinedViewView(View):
    view: str
    #: grows with each change of its text
    version: int
    #: the worst of its own, of its tables and of the views that it reads
    state: State
    #: where it is held up; null when nothing holds it up
    stage: Stage | None
    problem: ProblemView | None
    #: in the lake where it is the oldest; null while unknown
    freshness_us: int | None
    rows: int | None
    tables: list[ReadTableView]
    #: that it reads
    views: list[str]
    lakes: list[ViewInLake]
    created_at_us: int
    changed_at_us: int


class JoinedViews(View):
    views: list[JoinedViewView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class ViewInput(View):
    """What a change of one of a view's tables or views costs."""

    name: str
    #: under which the text knows it
    alias: str
    #: driving, inner or left
    role: str
    key: list[str]
    joined_on: list[str]
    #: that the view reads
    columns: list[str]
    #: what is read at a change of it
    looked_up: list[str]
    #: rows of the view that one change of it may concern
    fan_out: str
    #: as the server estimates; null: not known
    estimated_rows: int | None


class ViewPlan(View):
    """How a view is kept."""

    view: str
    columns: list[str]
    key: list[str]
    inputs: list[ViewInput]
    #: how often it is recomputed; null: it is followed change by change
    every_seconds: int | None
    #: the plan in words
    lines: list[str]


class JoinedViewDetail(JoinedViewView):
    sql: str
    #: null: it could not be planned now
    plan: ViewPlan | None
    #: why it could not be planned now
    plan_problem: ProblemView | None


class ViewDropped(View):
    view: str
