"""Dumps, and how far they are."""

from pydantic import ConfigDict, Field

from controlplane_api.api.views.base import View
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.states import DumpHeld, DumpState

#: what the columns take, menura.v1.DumpLimits, and an SQL integer
MAX_WORKERS = 64
MAX_PER_SECOND = 2**53 - 1


class DumpLimits(View):
    """0: no limit of the user's."""

    model_config = ConfigDict(extra="forbid", strict=True)

    workers: int = Field(default=0, ge=0, le=MAX_WORKERS)
    rows_per_second: int = Field(default=0, ge=0, le=MAX_PER_SECOND)
    bytes_per_second: int = Field(default=0, ge=0, le=MAX_PER_SECOND)


class DumpView(View):
    """A first copy of a table and how far it is."""

    dump: str
    source: str
    database: str
    table: str
    state: DumpState
    #: why it waits, or why it ended; empty when there is nothing to say
    reason: str
    #: what `reason` is about; null: nothing holds it, or its agent does not tell it
    held: DumpHeld | None = None
    problem: ProblemView | None
    #: "reread": ordered for rows that the server changed without logging them; empty: a user has asked for it
    cause: str
    priority: int
    limits: DumpLimits
    #: runs although the server may not keep its log long enough
    forced: bool
    created_at_us: int
    planned_at_us: int | None
    ended_at_us: int | None
    #: columns of the key in whose order it is read; empty: the whole table in one snapshot, or not planned yet
    key: list[str]
    #: in the lake, as the server sent them
    rows: int
    bytes: int
    chunks: int
    #: read, and not in the lake yet, as the agent said last
    uncommitted_rows: int
    #: of the key, by the plan
    ranges: int
    ranges_done: int
    #: of the server's statistics
    estimated_rows: int | None
    estimated_bytes: int | None
    #: about what it will have been; null while nothing tells: then it is at least `rows`
    expected_rows: int | None
    #: of those, in the lake; null while unknown
    percent: float | None
    #: over the agent's last seconds; null while it says nothing
    rows_per_second: int | None
    bytes_per_second: int | None
    #: about; by its speed of the last seconds; null while unknown
    estimated_end_us: int | None
    #: what the plan found that an operator should know
    warning: str
    #: that the server keeps its log from the plan on, and that the dump needs it; null: not known, or not needed
    runway_seconds: int | None
    needed_seconds: int | None


class DumpRangeView(View):
    number: int
    done: bool
    #: in the lake
    rows: int
    bytes: int
    chunks: int


class DumpDetail(DumpView):
    of_ranges: list[DumpRangeView]


class Dumps(View):
    #: the newest first
    dumps: list[DumpView]
    #: for the next page; null on the last
    next_cursor: str | None


class DumpChanged(DumpView):
    #: whether the command changed anything
    changed: bool
