"""The few rows of a view's tables that a batch of changes concerns, before and after it.

Comes in: the plan, its inputs at a boundary, and what changed of each since the last version. Goes out: small tables
by alias, twice: the view's own text over both says what changes. Nothing is written.

A joined table's changed keys are followed upwards, to the rows that look them up, up to the driving table; from there
the partners of all these rows are fetched downwards. A table is scanned for that, with its columns alone that the view
reads, and only if a table that it looks up has changed. Rows of joined tables may be more than are needed: they are
looked up by their key.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from menura.views.definition import InputName
from menura.views.plan import Input, Plan

from spark_sink.lake.current_rows import without_keys
from spark_sink.views.inputs import Irregular, OpenInput, Slice

#: rows of one table that a batch concerns; beyond, the view is compared as a whole
MOST_TOUCHED = 1_000_000


@dataclass(frozen=True, slots=True)
class Closure:
    """By alias."""

    old: Mapping[str, pa.Table]
    new: Mapping[str, pa.Table]


def close(plan: Plan, inputs: Mapping[InputName, OpenInput], slices: Mapping[str, Slice]) -> Closure:
    """`slices`: by alias. Raises `Irregular` where too much is concerned."""
    touched: dict[str, pa.Table] = {}
    _affected(plan, inputs, slices, plan.driving, touched)
    driving = slices[plan.driving.alias]
    base = touched[plan.driving.alias]
    old = {plan.driving.alias: pa.concat_tables([base, driving.old])}
    new = {plan.driving.alias: pa.concat_tables([base, driving.new])}
    for each in plan.inputs[1:]:
        found, change = inputs[each.name], slices[each.alias]
        wanted = _looked_up(each, [old[each.parent], new[each.parent]], found)
        rows = _without(found.with_keys(wanted, each.columns, wanted.column_names), change.keys, found.key)
        old[each.alias] = pa.concat_tables([rows, change.old])
        new[each.alias] = pa.concat_tables([rows, change.new])
    return Closure(old, new)


def _affected(
    plan: Plan,
    inputs: Mapping[InputName, OpenInput],
    slices: Mapping[str, Slice],
    at: Input,
    touched: dict[str, pa.Table],
) -> pa.Table:
    """Keys of the table's rows that changed, or look up a row that did; the latter are noted as touched."""
    found, change = inputs[at.name], slices[at.alias]
    rows = change.new.schema.empty_table()
    for child in plan.children(at.alias):
        keys = _affected(plan, inputs, slices, child, touched)
        if keys.num_rows:
            rows = pa.concat_tables([rows, _lookers(found, at, child, keys)])
            if rows.num_rows > MOST_TOUCHED:
                raise Irregular(f"more than {MOST_TOUCHED} rows look up what changed")
    if len(plan.children(at.alias)) > 1 and rows.num_rows:
        rows = _once(rows, found.key)
    rows = _without(rows, change.keys, found.key)
    touched[at.alias] = rows
    return pa.concat_tables([change.keys, rows.select(found.key)])


def _lookers(found: OpenInput, at: Input, child: Input, keys: pa.Table) -> pa.Table:
    """Rows of `at` that look up one of these keys of `child`."""
    terms = [term for term in child.terms if term.parent_column]
    wanted = pa.table([keys[term.key] for term in terms], [term.parent_column for term in terms])
    if len({term.parent_column for term in terms}) < len(terms):  # one column stands for two of the key
        terms = list({term.parent_column: term for term in terms}.values())
        wanted = pa.table([keys[term.key] for term in terms], [term.parent_column for term in terms])
    return found.with_keys(wanted, at.columns, [term.parent_column for term in terms])


def _looked_up(child: Input, parents: list[pa.Table], found: OpenInput) -> pa.Table:
    """Keys of `child` that these rows look up, each once; without those of a literal, by the others' columns alone."""
    schema = pa.schema([found.rows.schema.field(term.key) for term in child.terms if term.parent_column])
    columns = [
        pa.table([rows[term.parent_column] for term in child.terms if term.parent_column], schema=schema)
        for rows in parents
    ]
    return pa.concat_tables(columns).group_by(schema.names).aggregate([])


def _once(rows: pa.Table, key: list[str]) -> pa.Table:
    numbered = rows.select(key).append_column("_place", pa.arange(0, rows.num_rows, 1))
    return rows.take(numbered.group_by(key).aggregate([("_place", "min")])["_place_min"])


def _without(rows: pa.Table, gone: pa.Table, key: list[str]) -> pa.Table:
    return without_keys(rows, gone, key) if rows.num_rows and gone.num_rows else rows
