"""One view's next version: from what changed of its inputs to its changelog, or from all of their rows.

Comes in: the view's text, its inputs' versions at one cut of each source, and its own two tables, which say how far it
is. Goes out: a version, or none where nothing of the inputs changed; or a `ViewStopped`. Durable is one commit of the
changelog with the vector of cuts, then the current state (`view_table`). What a kill leaves is completed first by the
next turn, whatever it was.

Changes are followed by the rows that they concern (`closure`), over which the view's own text is run before and after.
Where changes alone do not say what became of an input, where its text is another one, or where too many rows are
concerned, all of it is computed, and what differs from the view's rows becomes its changes: so building, mending and
following give the same rows by the same text.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from menura.views.definition import VIEW_DATABASE, VIEW_SOURCE, InputName, ViewCut, ViewDefinition
from menura.views.expressions import quoted
from menura.views.plan import Plan, make_plan

from spark_sink.errors import ViewKeyMissing
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.landed.lake_schema import format_type
from spark_sink.views import queries
from spark_sink.views.closure import close
from spark_sink.views.engine import Engine, engine, put_all
from spark_sink.views.inputs import InputAt, Irregular, Mark, OpenInput, rows_with_keys
from spark_sink.views.look_ups import LookUps, look_ups
from spark_sink.views.store_folders import StoreSettings
from spark_sink.views.view_table import Reached, ViewShape, ViewTable
from spark_sink.work import TableId

logger = logging.getLogger("menura.sink")


@dataclass(frozen=True, slots=True)
class ViewWork:
    """A view, and where its inputs are."""

    definition: ViewDefinition
    inputs: tuple[InputAt, ...]
    cuts: tuple[ViewCut, ...]


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


def view_table_id(tenant: str, name: str) -> TableId:
    return TableId(tenant, VIEW_SOURCE, VIEW_DATABASE, name)


def follow(lake: str, work: ViewWork, waiting: Waiting = AT_ONCE, stores: StoreSettings | None = None) -> ViewVersion:
    """`stores`: where rows may be looked up; None: tables are scanned.

    Raises `ViewRefused`, `ViewStopped`; OSError, DeltaError where the storage fails."""
    table = ViewTable(lake, view_table_id(work.definition.tenant, work.definition.name))
    opened = table.versions
    inputs = {each.name: OpenInput(lake, each) for each in work.inputs}
    plan = make_plan(work.definition.sql, {name: found.shape for name, found in inputs.items()})
    shape = _shape(plan)
    sources = [cut.source for cut in work.cuts]
    reached = table.reached(inputs, sources) if table.is_of(shape) else None
    if reached is None:
        table.begin(shape)
    else:
        table.settle(waiting)
    marks = {name: found.mark for name, found in inputs.items()}
    digest = int(work.definition.digest[:15], 16)
    if reached is not None and reached.digest == digest and _same(reached, marks):
        return _version(table, reached, None, waiting, opened)
    after = Reached(table.last_version + 1, table.highest_gsn, digest, marks, work.cuts)
    view = (work.definition.tenant, work.definition.name)
    with engine() as sql, look_ups(sql, lake, view, plan, inputs, stores) as rows_by_key:
        turn = _Turn(plan, shape, table, inputs, rows_by_key)
        count, whole = turn.take(sql, reached if reached is not None and reached.digest == digest else None, after)
        after = Reached(after.version, after.gsn + max(1, count), digest, marks, work.cuts)
        version = _version(table, after, count, waiting, opened, whole)
        rows_by_key.keep_up()
    return version


def _same(reached: Reached, marks: Mapping[InputName, Mark]) -> bool:
    before = reached.inputs
    return all((before[name].gsn, before[name].state) == (mark.gsn, mark.state) for name, mark in marks.items())


def _version(
    table: ViewTable, reached: Reached, count: int | None, waiting: Waiting, opened: tuple[int, int], whole: str = ""
) -> ViewVersion:
    until_us = table.settle(waiting)
    merged_gsn = table.merged_gsn if until_us else 0
    rows = -1 if until_us else table.rows().count()
    return ViewVersion(
        reached.version, count is not None, count or 0, *table.versions, merged_gsn, until_us, whole, rows, opened
    )


def _shape(plan: Plan) -> ViewShape:
    fields = [pa.field(name, format_type(type_)) for name, type_ in queries.columns_of(plan)]
    return ViewShape(pa.schema(fields), plan.key)


class _Turn:
    """What one version needs to know."""

    def __init__(
        self,
        plan: Plan,
        shape: ViewShape,
        table: ViewTable,
        inputs: Mapping[InputName, OpenInput],
        rows_by_key: LookUps,
    ) -> None:
        self.plan = plan
        self.shape = shape
        self.table = table
        self.inputs = inputs
        self.rows_by_key = rows_by_key

    def take(self, sql: Engine, before: Reached | None, after: Reached) -> tuple[int, str]:
        """Commit a version; gives how many rows its changes have, and why all was computed."""
        whole = "it is new, or its text is" if before is None else ""
        if before is not None:
            try:
                self._differ(sql, before)
            except Irregular as found:
                whole = str(found)
        if whole:
            self._compare(sql)
        return self._commit(sql, after, is_small=not whole), whole

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
                self._check_key(sql, "_new")
        if plan.is_aggregate:
            self._change_groups(sql)
        self._keep_differences(sql, "_old", "_new")

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
            self._put_all_rows(sql)
            on = queries.same_key("r", "a", names)
            sql.keep("_found", f"SELECT r.* FROM ({queries.row_query(plan)}) r SEMI JOIN _anew a ON {on}")  # noqa: S608
            found += f" UNION ALL {queries.group_query(plan, '_found')}"
        sql.keep("_new", found)
        sql.keep("_old", "SELECT * FROM _held")

    def _compare(self, sql: Engine) -> None:
        """The same over all rows of the inputs."""
        plan = self.plan
        self._put_all_rows(sql)
        rows = queries.row_query(plan)
        sql.keep("_new", queries.group_query(plan, f"({rows})") if plan.is_aggregate else rows)
        self._check_key(sql, "_new")
        held = self.table.rows()
        names = self.shape.columns.names
        schema = pa.schema([held.schema.field(name) for name in names])
        batches = (batch for rows in held.tables(names) for batch in rows.to_batches())
        sql.put("_held", pa.RecordBatchReader.from_batches(schema, batches))
        self._keep_differences(sql, "_held", "_new")

    def _keep_differences(self, sql: Engine, old: str, new: str) -> None:
        names = self.shape.columns.names
        sql.keep("_differences", queries.difference_query(names, self.shape.key, old, new))

    def _put_all_rows(self, sql: Engine) -> None:
        put_all(sql, {each.alias: self.inputs[each.name].all_rows(each.columns) for each in self.plan.inputs})

    def _check_key(self, sql: Engine, name: str) -> None:
        """A key of a source's table that no type holds is null here, and then no key."""
        if self.plan.is_aggregate or self.plan.driving.name.is_view:
            return
        is_null = " OR ".join(f"{quoted(column)} IS NULL" for column in self.shape.key)
        if sql.number(f"SELECT count(*) FROM {name} WHERE {is_null}"):  # noqa: S608  (quoted names)
            raise ViewKeyMissing(
                "computing a view's rows",
                f"a row of {self.plan.driving.name} has a key that its type can't hold, e.g. the date 0000-00-00",
                data="The view stays at its last version; tables and other views go on",
                remedy="Mend the row in its source, or leave it out with WHERE",
            )

    def _commit(self, sql: Engine, after: Reached, *, is_small: bool) -> int:
        count = sql.number("SELECT count(*) FROM _differences")
        reached = Reached(after.version, after.gsn + max(1, count), after.digest, after.inputs, after.cuts)
        changes = queries.change_query(self.shape.columns.names, "_differences", after.gsn)
        self.table.commit(self.shape, _tables(sql.reader(changes)), reached, is_small=is_small)
        return count


def _tables(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    return (pa.Table.from_batches([batch]) for batch in batches)
