"""All of a view's rows over those of its inputs, and what differs from the rows that it has.

Comes in: tables that the engine knows by their aliases. Goes out: what differs, under `_differences`. Pure but for the
view's rows, which are read.
"""

from collections.abc import Mapping

from menura.views.definition import InputName
from menura.views.plan import Plan
from menura.views.terms import quoted

from spark_sink.errors import ViewKeyMissing
from spark_sink.views import queries
from spark_sink.views.engine import Engine, put_all
from spark_sink.views.inputs import OpenInput, reader_of
from spark_sink.views.view_table import ViewShape, ViewTable


def put_all_rows(sql: Engine, plan: Plan, inputs: Mapping[InputName, OpenInput]) -> None:
    put_all(sql, {each.alias: inputs[each.name].all_rows(each.columns) for each in plan.inputs})


def keep_rows(sql: Engine, plan: Plan) -> None:
    """Put the view's rows under `_new`, or its groups. Raises `ViewNotComputed`, `ViewKeyMissing`."""
    rows = queries.row_query(plan)
    sql.keep("_new", queries.group_query(plan, f"({rows})") if plan.is_aggregate else rows)
    check_key(sql, plan, "_new")


def keep_differences_from(sql: Engine, shape: ViewShape, table: ViewTable) -> None:
    """From all of the view's rows to `_new`."""
    sql.put("_held", reader_of(table.rows(), shape.columns.names))
    keep_differences(sql, shape, "_held", "_new")


def keep_differences(sql: Engine, shape: ViewShape, old: str, new: str) -> None:
    sql.keep("_differences", queries.difference_query(shape.columns.names, shape.key, old, new))


def check_key(sql: Engine, plan: Plan, name: str) -> None:
    """A key of a source's table that no type holds is null here, and then no key."""
    if plan.is_aggregate or plan.driving.name.is_view:
        return
    is_null = " OR ".join(f"{quoted(column)} IS NULL" for column in plan.key)
    if sql.number(f"SELECT count(*) FROM {name} WHERE {is_null}"):  # noqa: S608  (quoted names)
        raise ViewKeyMissing(
            "computing a view's rows",
            f"a row of {plan.driving.name} has a key that its type can't hold, e.g. the date 0000-00-00",
            data="The view stays at its last version; tables and other views go on",
            remedy="Mend the row in its source, or leave it out with WHERE",
        )
