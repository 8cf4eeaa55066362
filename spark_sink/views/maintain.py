"""One view's next version: from what changed of its inputs to its changelog, or from all of their rows.

Comes in: the view's text, its inputs' versions at one cut of each source, and its own two tables, which say how far it
is. Goes out: a version, or none where nothing of the inputs changed; or a `ViewStopped`. Durable is one commit of the
changelog with the vector of cuts, then the current state (`view_table`). What a kill leaves is completed first by the
next turn, whatever it was.

Changes are followed by the rows that they concern (`closure`), over which the view's own text is run before and after.
Where changes alone do not say what became of an input, where its text is another one, or where too many rows are
concerned, all of it is computed, and what differs from the view's rows becomes its changes: so building, mending and
following give the same rows by the same text.

Where files that the view's own tables name are gone, whoever removed them, they are emptied and all of it is computed:
that is looked at where a turn fails, and before one computes all. Readers fail until then, and see afterwards that the
view was emptied.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from errno import ENOENT
from typing import TypeVar

import pyarrow as pa
from menura.views.definition import VIEW_DATABASE, VIEW_SOURCE, InputName, ViewCut, ViewDefinition
from menura.views.plan import Plan, make_plan
from menura.views.terms import MEANING, quoted

from spark_sink.lake.delta_table import Transactions
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.landed.lake_schema import format_type
from spark_sink.views import queries, whole
from spark_sink.views.closure import close
from spark_sink.views.division import ALONE, Dividing, Division, divide
from spark_sink.views.engine import Engine, engine, put_all
from spark_sink.views.inputs import InputAt, Irregular, Mark, OpenInput, rows_with_keys
from spark_sink.views.look_ups import LookUps, look_ups
from spark_sink.views.store_folders import StoreSettings
from spark_sink.views.view_table import Reached, ViewShape, ViewTable
from spark_sink.work import TableId

logger = logging.getLogger("menura.sink")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ViewWork:
    """A view, and where its inputs are."""

    definition: ViewDefinition
    inputs: tuple[InputAt, ...]
    cuts: tuple[ViewCut, ...]
    #: when the driver has asked for its turn: whatever depends on the time depends on this one, since the machine that
    #: has the turn may have another clock
    asked_at_us: int


@dataclass(frozen=True, slots=True)
class ViewVersion:
    """Where a view is after its turn."""

    version: int
    #: whether the turn has made it
    is_new: bool
    #: rows of its changes
    changes: int
    changelog_version: int
    current_version: int
    #: up to which number the current state has all, and when the rest must be merged; zeros: it has all
    merged_gsn: int = 0
    merge_at_us: int = 0
    #: why all of it was computed; '': it was not
    whole: str = ""
    #: of the view; -1: not known
    rows: int = -1
    #: versions of changelog and current state that the turn began with; -1: there was none
    opened: tuple[int, int] = (-1, -1)
    #: of a view that is recomputed on a schedule: when it was last, and of which cuts; 0, (): it is followed
    computed_us: int = 0
    cuts: tuple[ViewCut, ...] = ()


def view_table_id(tenant: str, name: str) -> TableId:
    return TableId(tenant, VIEW_SOURCE, VIEW_DATABASE, name)


@dataclass(frozen=True, slots=True)
class OpenView:
    """A view and its inputs, opened."""

    table: ViewTable
    inputs: Mapping[InputName, OpenInput]
    plan: Plan
    shape: ViewShape


def open_view(lake: str, work: ViewWork, versions: tuple[int, int] | None = None) -> OpenView:
    """`versions`: of the view's tables, if not the last ones. Raises `ViewRefused`, OSError, DeltaError."""
    table = ViewTable(lake, view_table_id(work.definition.tenant, work.definition.name), work.asked_at_us, versions)
    inputs = {each.name: OpenInput(lake, each) for each in work.inputs}
    plan = make_plan(work.definition.sql, {name: found.shape for name, found in inputs.items()})
    fields = [pa.field(name, format_type(type_)) for name, type_ in queries.columns_of(plan)]
    return OpenView(table, inputs, plan, ViewShape(pa.schema(fields), plan.key))


def follow(
    lake: str,
    work: ViewWork,
    waiting: Waiting = AT_ONCE,
    stores: StoreSettings | None = None,
    dividing: Dividing = ALONE,
) -> ViewVersion | Division:
    """The version, or how it is to be computed by several tasks, where it may be and is worth it.

    `stores`: where rows may be looked up; None: tables are scanned. Raises `ViewRefused`, `ViewStopped`; OSError,
    DeltaError where the storage fails.
    """

    def turn(is_lost: bool) -> ViewVersion | Division:
        return _follow(lake, work, waiting, stores, dividing, is_lost=is_lost)

    return mended(lake, work, turn)


def mended(lake: str, work: ViewWork, turn: Callable[[bool], T]) -> T:
    """A turn, which is done again where files of the view's own tables are lost, as it is told then."""
    try:
        return turn(False)
    except Exception as failed:
        table = view_table_id(work.definition.tenant, work.definition.name)
        found = ViewTable(lake, table, work.asked_at_us).lost_files()
        if not found:
            raise
        name = f"{work.definition.tenant}/{work.definition.name}"
        logger.warning(
            "files of a view's tables are gone, it is computed anew view=%s files=%d first=%s error=%s",
            *(name, len(found), found[0], type(failed).__name__),
        )
    return turn(True)


def _follow(
    lake: str, work: ViewWork, waiting: Waiting, stores: StoreSettings | None, dividing: Dividing, *, is_lost: bool
) -> ViewVersion | Division:
    view = open_view(lake, work)
    table, inputs, plan = view.table, view.inputs, view.plan
    opened = table.versions
    sources = [cut.source for cut in work.cuts]
    reached = table.reached(inputs, sources) if table.is_of(view.shape) and not is_lost else None
    if reached is None:
        table.begin(view.shape)
    else:
        table.settle(waiting)
    marks = {name: found.mark for name, found in inputs.items()}
    digest = digest_of(work)
    if reached is not None and reached.digest == digest and is_same(reached, marks):
        return version_of(table, reached, None, waiting, opened)
    after = Reached(table.last_version + 1, table.highest_gsn, digest, marks, work.cuts)
    name = (work.definition.tenant, work.definition.name)
    with engine() as sql, look_ups(sql, lake, name, plan, inputs, stores) as rows_by_key:
        turn = _Turn(view, rows_by_key)
        why = turn.differ(sql, reached if reached is not None and reached.digest == digest else None)
        if why and table.lost_files():
            raise FileNotFoundError(ENOENT, "files of the view's own tables are gone")
        why = "files of its own tables were gone" if is_lost else why
        if why and (division := divide(plan, table, inputs, dividing, after, why, opened)) is not None:
            return division
        if why:
            turn.compare(sql)
        count = commit_differences(sql, table, view.shape, after, is_small=not why)
        after = Reached(after.version, after.gsn + max(1, count), digest, marks, work.cuts)
        version = version_of(table, after, count, waiting, opened, why)
        rows_by_key.keep_up()
    return version


def digest_of(work: ViewWork) -> int:
    """Of its text and of what that means, as commits say it."""
    said = f"{MEANING} {work.definition.sql}"
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:7], "big")


def is_same(reached: Reached, marks: Mapping[InputName, Mark]) -> bool:
    """Whether no input has changed since."""
    before = reached.inputs
    return all((before[name].gsn, before[name].state) == (mark.gsn, mark.state) for name, mark in marks.items())


def version_of(
    table: ViewTable, reached: Reached, count: int | None, waiting: Waiting, opened: tuple[int, int], whole: str = ""
) -> ViewVersion:
    """Of a turn that is committed, once the current state has it or may wait; `count` None: the turn has made none."""
    until_us = table.settle(waiting)
    merged_gsn = table.merged_gsn if until_us else 0
    rows = -1 if until_us else table.rows().count()
    return ViewVersion(
        reached.version, count is not None, count or 0, *table.versions, merged_gsn, until_us, whole, rows, opened
    )


def commit_differences(
    sql: Engine, table: ViewTable, shape: ViewShape, after: Reached, *, is_small: bool, more: Transactions = ()
) -> int:
    """Commit a version of `_differences`; gives how many there are. `after` has the number before them."""
    count = sql.number("SELECT count(*) FROM _differences")
    reached = Reached(after.version, after.gsn + max(1, count), after.digest, after.inputs, after.cuts)
    changes = queries.change_query(shape.columns.names, "_differences", after.gsn)
    table.commit(shape, _tables(sql.reader(changes)), reached, is_small=is_small, more=more)
    return count


class _Turn:
    """What one version needs to know."""

    def __init__(self, view: OpenView, rows_by_key: LookUps) -> None:
        self.plan = view.plan
        self.shape = view.shape
        self.table = view.table
        self.inputs = view.inputs
        self.rows_by_key = rows_by_key

    def differ(self, sql: Engine, before: Reached | None) -> str:
        """Put what changed under `_differences`, or give why all has to be computed."""
        if before is None:
            return "it is new, or its text is"
        try:
            self._differ(sql, before)
        except Irregular as found:
            return str(found)
        return ""

    def compare(self, sql: Engine) -> None:
        """The same over all rows of the inputs."""
        whole.put_all_rows(sql, self.plan, self.inputs)
        whole.keep_rows(sql, self.plan)
        whole.keep_differences_from(sql, self.shape, self.table)

    def _differ(self, sql: Engine, before: Reached) -> None:
        """Put what differs under `_differences`. Raises `Irregular`."""
        plan = self.plan
        slices = {
            each.alias: self.inputs[each.name].changes(before.inputs[each.name], each.columns) for each in plan.inputs
        }
        found = close(plan, self.rows_by_key.since(before.inputs), slices)
        for name, tables in (("_old", found.old), ("_new", found.new)):
            put_all(sql, tables)
            sql.keep(name, queries.row_query(plan))
            if name == "_new" and not plan.is_aggregate:
                whole.check_key(sql, plan, "_new")
        if plan.is_aggregate:
            self._change_groups(sql)
        whole.keep_differences(sql, self.shape, "_old", "_new")

    def _change_groups(self, sql: Engine) -> None:
        """From what groups are made of before and after to the groups before and after."""
        plan, names = self.plan, [each.name for each in self.plan.groups]
        sql.keep("_gone", "SELECT * FROM _old EXCEPT ALL SELECT * FROM _new")
        sql.keep("_added", "SELECT * FROM _new EXCEPT ALL SELECT * FROM _old")
        sql.keep("_delta", queries.delta_query(plan, "_gone", "_added"))
        chosen = ", ".join(map(quoted, names))
        keys = sql.table(f"SELECT {chosen} FROM _delta")  # noqa: S608  (quoted names)
        sql.put("_held", rows_with_keys(self.table.rows(), keys, self.shape.columns.names, names, null_is_key=True))
        sql.keep("_changed", queries.changed_group_query(plan, "_delta", "_held"))
        if sql.number(f"SELECT count(*) FROM _changed WHERE {queries.is_impossible(plan)}"):  # noqa: S608  (our names)
            raise Irregular("groups have fewer rows than none: they are not what was computed")
        sql.keep("_settled", queries.settled_query(plan, "_changed"))
        anew = sql.table(f"SELECT {chosen} FROM _changed WHERE {queries.ROWS} > 0 AND {queries.ANEW}")  # noqa: S608
        found = "SELECT * FROM _settled"
        if anew.num_rows:
            sql.put("_anew", anew)
            whole.put_all_rows(sql, plan, self.inputs)
            on = queries.same_key("r", "a", names)
            sql.keep("_found", f"SELECT r.* FROM ({queries.row_query(plan)}) r SEMI JOIN _anew a ON {on}")  # noqa: S608
            found += f" UNION ALL {queries.group_query(plan, '_found')}"
        sql.keep("_new", found)
        sql.keep("_old", "SELECT * FROM _held")


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in batches)
