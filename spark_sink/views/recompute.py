"""A view that is recomputed on a schedule: all of its query, at its time, and what differs from the rows that it has.

Comes in: the view's text, its inputs' versions at one cut of each source, and its own two tables, which say when it was
computed last. Goes out: a version; or the one that there is, where it is not due yet. Durable is one commit of the
changelog with the vector of cuts and the time, then the current state, as of a view that is followed (`view_table`).
What a kill leaves is completed first by the next turn. Where no input has changed nothing is computed, and the version
has the later cuts alone, so that views on this one go on.

The query is computed by a process of its own (`query_process`). Here its rows are compared with those of the view, by
the view's key; the engine that does that reads no text of a user's.
"""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from menura.views.definition import InputName
from menura.views.query_plan import QueryPlan, engine_name, plan_query
from menura.views.terms import quoted

from spark_sink.errors import ViewRowsEqual
from spark_sink.lake.tail import AT_ONCE
from spark_sink.landed.lake_schema import format_type
from spark_sink.views import queries, whole
from spark_sink.views.engine import Engine, engine
from spark_sink.views.inputs import OpenInput
from spark_sink.views.maintain import (
    ViewVersion,
    ViewWork,
    commit_differences,
    digest_of,
    is_same,
    mended,
    version_of,
    view_table_id,
)
from spark_sink.views.query_process import BOUNDS, Bounds, computed
from spark_sink.views.view_table import Reached, ViewShape, ViewTable

#: of a commit: when the turn was asked for in which its query was computed, or was not since no input had changed
COMPUTED = "view/computed"


def recompute(lake: str, work: ViewWork, bounds: Bounds = BOUNDS) -> ViewVersion:
    """Raises `ViewRefused`, `ViewStopped`; OSError, DeltaError where the storage fails."""
    return mended(lake, work, lambda is_lost: _recompute(lake, work, bounds, is_lost=is_lost))


def _recompute(lake: str, work: ViewWork, bounds: Bounds, *, is_lost: bool) -> ViewVersion:
    table = ViewTable(lake, view_table_id(work.definition.tenant, work.definition.name), work.asked_at_us)
    inputs = {each.name: OpenInput(lake, each) for each in work.inputs}
    plan = plan_query(work.definition.sql, {name: found.shape for name, found in inputs.items()})
    shape = ViewShape(pa.schema([pa.field(each.name, format_type(each.type)) for each in plan.outputs]), plan.key)
    opened = table.versions
    sources = [cut.source for cut in work.cuts]
    reached = table.reached(inputs, sources) if table.is_of(shape) and not is_lost else None
    if reached is not None:
        table.settle(AT_ONCE)
    digest, now = digest_of(work), work.asked_at_us
    is_there = reached is not None and reached.digest == digest
    if reached is not None and is_there and 0 <= now - _computed_us(table) < plan.every_seconds * 1_000_000:
        version = version_of(table, reached, None, AT_ONCE, opened)
        return replace(version, computed_us=_computed_us(table), cuts=reached.cuts)
    marks = {name: found.mark for name, found in inputs.items()}
    with engine(scratch_bytes=bounds.scratch_bytes) as sql:
        if reached is not None and is_there and is_same(reached, marks):
            _keep_nothing(sql, shape)
        else:
            _keep_rows(sql, plan, inputs, bounds)
            _check_key(sql, shape)
            if reached is None:  # what the view has stays until its query is computed
                table.begin(shape)
            whole.keep_differences_from(sql, shape, table)
        after = Reached(table.last_version + 1, table.highest_gsn, digest, marks, work.cuts)
        count = commit_differences(sql, table, shape, after, is_small=False, more=[(COMPUTED, now)])
    after = Reached(after.version, after.gsn + max(1, count), digest, marks, work.cuts)
    return replace(version_of(table, after, count, AT_ONCE, opened), computed_us=now, cuts=after.cuts)


def _computed_us(table: ViewTable) -> int:
    assert table.changelog is not None
    return table.changelog.transaction_version(COMPUTED) or 0


def _keep_rows(sql: Engine, plan: QueryPlan, inputs: Mapping[InputName, OpenInput], bounds: Bounds) -> None:
    """Put what the query gives under `_new`."""
    tables = {engine_name(place): inputs[name].all_rows(columns) for place, (name, columns) in enumerate(plan.inputs)}
    with computed(plan.sql, tables, bounds) as rows:
        sql.put("_rows", rows)
        chosen = ", ".join(quoted(column.name) for column in plan.outputs)
        sql.keep("_new", f"SELECT {chosen} FROM _rows")  # noqa: S608  (quoted names)


def _check_key(sql: Engine, shape: ViewShape) -> None:
    key = ", ".join(map(quoted, shape.key))
    groups = f"SELECT 1 FROM _new GROUP BY {key} HAVING count(*) > 1"  # noqa: S608  (quoted names)
    equal = sql.number(f"SELECT count(*) FROM ({groups})")  # noqa: S608
    if equal:
        raise ViewRowsEqual(
            "recomputing a view",
            f"its key is {', '.join(shape.key)}, and {equal} of its values have several rows",
            data="The view stays at its last version; tables and other views go on",
            remedy="Name a key whose values are rows' own, by KEY (columns) or --key, or add such columns",
        )


def _keep_nothing(sql: Engine, shape: ViewShape) -> None:
    """Put no difference under `_differences`."""
    for name in ("_old", "_new"):
        sql.put(name, shape.columns.empty_table())
    sql.keep("_differences", queries.difference_query(shape.columns.names, shape.key, "_old", "_new"))
