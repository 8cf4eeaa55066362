"""What commands about several tables have done, and the rules that they have made."""

from controlplane_api.api.views.base import View
from controlplane_api.states import Progress, StartKind


class RefusalView(View):
    code: str
    doing: str
    found: str
    data: str
    remedy: str


class OutcomeView(View):
    database: str
    table: str
    #: whether the command changed the table's desired state
    changed: bool
    #: what to know about this start, e.g. which rows will be missing; empty when there is nothing
    notice: str
    refused: RefusalView | None
    #: that the command began; empty for none
    dump: str


class Outcomes(View):
    source: str
    generation: int
    #: says how far each table is; empty: there is none
    operation: str = ""
    tables: list[OutcomeView]


class RuleView(View):
    """Tables whose names match both globs are started as soon as they are there."""

    rule: str
    database: str
    table: str
    start: StartKind
    created_at_us: int


class Rules(View):
    rules: list[RuleView]


class OperationView(View):
    operation: str
    #: start, stop, retry, resync or dump
    kind: str
    at_us: int
    #: no table waits or runs
    done: bool
    tables: dict[Progress, int]


class Operations(View):
    operations: list[OperationView]
    #: for the next page; null on the last
    next_cursor: str | None = None


class OperationTableView(View):
    database: str
    table: str
    progress: Progress
    #: the code of the error; empty: it was not
    refused: str
    #: that it began; empty for none
    dump: str


class OperationDetail(OperationView):
    of_tables: list[OperationTableView]
    #: for the next page of tables; null on the last
    next_cursor: str | None = None
