"""The few rows of a view's tables that a batch of changes concerns, before and after it.

Comes in: the plan, how rows are looked up, and what changed of each since the last version. Goes out: small tables
by alias, twice: the view's own text over both says what changes. Nothing is written.

A joined table's changed keys are followed upwards, to the rows that look them up, up to the driving table; from there
the partners of all these rows are fetched downwards. Rows are looked up by the columns that join tables, in a store or
by a scan (`look_ups`), and only if a table that they look up has changed. Rows of joined tables may be more than are
needed: they are looked up by their key.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from menura.views.definition import MOST_TOUCHED
from menura.views.plan import Input, Plan

from spark_sink.lake.current_rows import without_keys
from spark_sink.views.inputs import Irregular, Slice, first_of_each

#: the rows of a table that have some keys in columns, which are called likewise
LookUp = Callable[[Input, pa.Table, Sequence[str]], pa.Table]


@dataclass(frozen=True, slots=True)
class Closure:
    """By alias."""

    old: Mapping[str, pa.Table]
    new: Mapping[str, pa.Table]


def close(plan: Plan, look_up: LookUp, slices: Mapping[str, Slice]) -> Closure:
    """`slices`: by alias. Rows of keys that changed may be looked up as they were, or as they are.

    Raises `Irregular` where too much is concerned.
    """
    touched: dict[str, pa.Table] = {}
    _affected(plan, look_up, slices, plan.driving, touched)
    driving = slices[plan.driving.alias]
    base = touched[plan.driving.alias]
    old = {plan.driving.alias: pa.concat_tables([base, driving.old])}
    new = {plan.driving.alias: pa.concat_tables([base, driving.new])}
    for each in plan.inputs[1:]:
        change, on = slices[each.alias], key_columns(each)
        wanted = _looked_up(each, [old[each.parent], new[each.parent]], change.keys.schema)
        rows = _without(look_up(each, wanted, on), change.keys)
        old[each.alias] = pa.concat_tables([rows, change.old])
        new[each.alias] = pa.concat_tables([rows, change.new])
    return Closure(old, new)


def key_columns(child: Input) -> list[str]:
    """Those of its key that a row which looks it up says; a literal says the others."""
    return [term.key for term in child.terms if term.parent_column]


def parent_columns(child: Input) -> list[str]:
    """Those that look it up, each once: one column may stand for two of the key."""
    return list({term.parent_column: term for term in child.terms if term.parent_column})


def _affected(
    plan: Plan, look_up: LookUp, slices: Mapping[str, Slice], at: Input, touched: dict[str, pa.Table]
) -> pa.Table:
    """Keys of the table's rows that changed, or look up a row that did; the latter are noted as touched."""
    change = slices[at.alias]
    key = change.keys.column_names
    rows = change.new.schema.empty_table()
    for child in plan.children(at.alias):
        keys = _affected(plan, look_up, slices, child, touched)
        if keys.num_rows:
            rows = pa.concat_tables([rows, _lookers(look_up, at, child, keys)])
            if rows.num_rows > MOST_TOUCHED:
                raise Irregular(f"more than {MOST_TOUCHED} rows look up what changed")
    if len(plan.children(at.alias)) > 1 and rows.num_rows:
        rows = first_of_each(rows, key)
    rows = _without(rows, change.keys)
    touched[at.alias] = rows
    return pa.concat_tables([change.keys, rows.select(key)])


def _lookers(look_up: LookUp, at: Input, child: Input, keys: pa.Table) -> pa.Table:
    """Rows of `at` that look up one of these keys of `child`."""
    on = parent_columns(child)
    of = {term.parent_column: term.key for term in child.terms}
    return look_up(at, pa.table([keys[of[name]] for name in on], on), on)


def _looked_up(child: Input, parents: list[pa.Table], key: pa.Schema) -> pa.Table:
    """Keys of `child` that these rows look up, each once; without those of a literal, by the others' columns alone."""
    schema = pa.schema([key.field(name) for name in key_columns(child)])
    columns = [
        pa.table([rows[term.parent_column] for term in child.terms if term.parent_column], schema=schema)
        for rows in parents
    ]
    return pa.concat_tables(columns).group_by(schema.names).aggregate([])


def _without(rows: pa.Table, gone: pa.Table) -> pa.Table:
    return without_keys(rows, gone, gone.column_names) if rows.num_rows and gone.num_rows else rows
