"""What views read, whether they are followed change by change or recomputed on a schedule: names, and an order.

Comes in: texts. Goes out: the tables and views that each reads, or a `ViewRefused`. Pure.
"""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from menura.views.definition import InputName, ViewDefinition, ViewRefused
from menura.views.parsing import input_name, parse, tables_of
from menura.views.scheduled import inputs_of_query, is_scheduled


def inputs_of(sql: str) -> tuple[InputName, ...]:
    """The tables and views that it reads, each once. Raises `ViewRefused`.

    >>> [str(name) for name in inputs_of("SELECT o.id FROM shop.app.orders o JOIN people p ON p.id = o.person")]
    ['shop.app.orders', 'people']
    """
    if is_scheduled(sql):
        return inputs_of_query(sql)
    return tuple(dict.fromkeys(map(input_name, tables_of(parse(sql)))))


def in_order(definitions: Iterable[ViewDefinition]) -> list[ViewDefinition]:
    """Of one tenant, each after those that it reads. Raises `ViewRefused`, also where views read each other in turn."""
    named = {each.name: each for each in definitions}
    reads = {
        each.name: sorted(found.table for found in inputs_of(each.sql) if found.is_view and found.table in named)
        for each in named.values()
    }
    try:
        return [named[name] for name in TopologicalSorter(reads).static_order()]
    except CycleError as wrong:
        names = " reads ".join(reversed(wrong.args[1]))
        raise ViewRefused(f"views read each other in turn: {names}") from wrong
