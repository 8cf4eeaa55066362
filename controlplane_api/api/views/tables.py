"""Tables: what they are, how far their syncs are, how they have changed."""

from typing import Annotated, Literal

from pydantic import BeforeValidator

from controlplane_api.api.table_reasons import TableReason
from controlplane_api.api.views.base import View
from controlplane_api.api.views.dumps import DumpView
from controlplane_api.api.views.lakes import LakeTableView
from controlplane_api.api.views.problems import ProblemView
from controlplane_api.api.views.proofs import TableProof
from controlplane_api.states import Desired, Stage, StartKind, State


def _known_reason(told: object) -> object:
    """An API of a later version may have more of them."""
    return told if told in tuple(TableReason) else TableReason.UNKNOWN


class UnloggedCauseView(View):
    #: number of the event that told of it
    gsn: int
    #: of the transaction, in the server's own words
    position: str
    why: str
    at_us: int
    #: a lake has stopped the table, which only a dump ends
    of_lake: bool = False


class UnloggedView(View):
    """Rows that the server changed without logging them: those from before the causes may be stale."""

    #: a dump is ordered for it; false: the policy, or who has cancelled the dump, leaves it at this note
    reread: bool
    most_per_hour: int
    #: the oldest first
    causes: list[UnloggedCauseView]
    #: causes between these that are not listed
    more: int
    #: UUID of the verification or repair that takes the dump's place; empty: none does
    comparison: str = ""
    #: why no comparison with the source could take the dump's place; empty: none was tried
    instead: str = ""


class TableView(View):
    database: str
    table: str
    #: the worst of all stages
    state: State
    #: where it is held up; null when nothing holds it up
    stage: Stage | None
    #: why it is in its state; stable, for scripts
    reason: Annotated[TableReason, BeforeValidator(_known_reason)] = TableReason.UNKNOWN
    #: what that means, in plain words, and what to do; an API of an earlier version does not tell it
    meaning: str = ""
    remedy: str = ""
    desired: Desired | None
    #: asked of its agent: started, and not failed on its way to the landing
    runs: bool
    #: where it shall begin; null once it has begun
    start: StartKind | None
    #: up to here all of it has landed, in the server's own words; in a list a long one ends in "..."
    position: str
    #: of `stage`
    problem: ProblemView | None
    #: null where no sink reports
    lake: LakeTableView | None
    #: why the lake lacks the table's older rows; empty when it lacks none
    earlier_rows_missing: str
    #: since when and why rows may be stale; null: the table is what its source is, as far as it is read
    unlogged: UnloggedView | None
    ignored_columns: list[str]
    #: change events landed
    rows: int
    bytes: int
    #: now minus the commit time of its last change that landed
    freshness_us: int | None
    last_commit_timestamp_us: int | None
    landed_at_us: int | None
    engine: str
    estimated_rows: int | None
    size_bytes: int | None
    #: refused by the agent's local policy
    denied: bool
    #: no longer on the server
    gone: bool
    #: the one that runs
    dump: DumpView | None
    #: null where no sync was asked for
    proof: TableProof | None


class ColumnView(View):
    name: str
    column_type: str
    nullable: bool
    charset: str
    ignored: bool
    generated: bool


class KeyView(View):
    name: str
    unique: bool
    columns: list[str]


class ForeignKeyView(View):
    name: str
    columns: list[str]
    #: [database, table]
    parent: list[str]
    #: in the order of `columns`
    parent_columns: list[str]


class TableDetail(TableView):
    collation: str
    columns: list[ColumnView]
    keys: list[KeyView]
    #: of which the table is the child
    foreign_keys: list[ForeignKeyView]
    #: that there are beside these
    more_foreign_keys: int


class AlteredOffset(View):
    """From where a table shall go on, in place of its position, once it is started again."""

    position: str
    reason: str
    #: who has altered it
    actor: str
    at_us: int


class OffsetView(View):
    """Places in a source's log, each in its server's words; empty: there is none yet."""

    #: of the source: up to where its agent has read, as it said last
    read: str
    #: of the source: up to where all of it has landed, but for tables that are elsewhere
    committed: str
    #: of the table: up to where all of it has landed
    position: str
    altered: AlteredOffset | None
    #: what an alteration leads to
    notice: str


class TableEventView(View):
    """What happened to a table other than changes of rows."""

    #: its number among the source's row changes
    gsn: int
    kind: str
    commit_timestamp_us: int
    position: str
    #: as the server logged it
    statement: str
    removes_rows: bool
    #: [database, table], of a renamed one
    new_name: list[str]
    #: of DUMP_STARTED and DUMPED
    dump: str
    #: why rows from before may be stale since then; empty: none is
    unlogged_changes: str


class SourceEventView(TableEventView):
    database: str
    table: str


class DefinitionColumnView(View):
    name: str
    #: a very long one ends in "..."
    column_type: str
    #: null: the log does not say it
    nullable: bool | None = None
    ignored: bool | None = None
    generated: bool | None = None


class DefinitionView(View):
    """What a table's definition became."""

    #: of the table's, from 1
    number: int
    #: "log": an event of the log, with the columns that leave the host. "server": a look at the server, which shows all
    teller: Literal["log", "server"]
    #: when it became so, as the log says, or when it was seen; null: before anybody looked
    at_us: int | None
    #: number of the event among the source's row changes; null: no event told it
    gsn: int | None
    #: of the change, in the server's own words; empty: no event told it
    position: str
    columns: list[DefinitionColumnView]
    #: of the log: the key by which it names rows, without a name of its own
    keys: list[KeyView]


class Definitions(View):
    #: the newest first; none: the definition of now is the only one that was seen
    definitions: list[DefinitionView]
    #: versions that are not kept any more, of the oldest ones
    dropped: int
    #: for the next page; null on the last
    next_cursor: str | None = None


class TableShown(View):
    """As `menura table show --json` has it."""

    table: TableDetail
    history: Definitions


class TableEvents(View):
    #: the last one first
    events: list[TableEventView]


class Tables(View):
    tables: list[TableView]
    #: how many match in all
    total: int
    #: for the next page; null on the last
    next_cursor: str | None


class StartedTable(TableView):
    changed: bool
    notice: str
