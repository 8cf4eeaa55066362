"""Lakes and their sinks."""

from controlplane_api.api.views.base import View
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.states import LakeState


class SinkView(View):
    """A lake and its sink."""

    lake: str
    url: str
    #: the landing that the sink follows
    landing: str
    state: LakeState
    problem: ProblemView | None
    #: of all tenants
    stopped_tables: int
    #: when the sink reported last; null before its first report
    received_at_us: int | None


class Lakes(View):
    lakes: list[SinkView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class LakeForgotten(View):
    lake: str


class LakeView(View):
    """How far a source is in a lake."""

    lake: str
    url: str
    state: LakeState
    problem: ProblemView | None
    #: all of it and of those before is in the lake, but for stopped tables; null while unknown
    cut: int | None
    #: cuts that have landed and are not in the lake
    cuts_behind: int | None
    #: behind what has landed, and behind the end of the source's log; null while unknown
    landing_lag_us: int | None
    lag_us: int | None
    #: now minus the commit time of the newest transaction in the lake; null while unknown
    freshness_us: int | None
    stopped_tables: int
    received_at_us: int | None


class LakeTableView(View):
    """A table in the lake where it stands worst."""

    lake: str
    state: LakeState
    problem: ProblemView | None
    cut: int | None
    freshness_us: int | None
    #: stopped, and its sink was asked to try it again
    retries: bool
    #: the sink's policy for changes of its schema, and in what it is not its source's table; empty: all are followed
    schema_changes: str
