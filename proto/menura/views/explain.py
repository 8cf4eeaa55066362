"""What a view does with a change of each of its tables, for people.

Comes in: a plan, and how many rows the tables have as far as anybody knows. Goes out: lines, and
the same as a document.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from menura.views.definition import MOST_TOUCHED, InputName
from menura.views.plan import Aggregate, Input, Plan, Role
from menura.views.query_plan import QueryPlan
from menura.views.scheduled import every_said
from menura.views.terms import said


@dataclass(frozen=True, slots=True)
class InputCost:
    name: str
    alias: str
    role: str
    key: tuple[str, ...]
    #: pairs of the table's column and what it equals
    joined_on: tuple[tuple[str, str], ...]
    #: the columns that the view reads
    columns: tuple[str, ...]
    #: the tables of which rows are looked up at a change of this one
    looked_up: tuple[str, ...]
    fan_out: str
    #: -1: not known
    rows: int


@dataclass(frozen=True, slots=True)
class Explanation:
    key: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    inputs: tuple[InputCost, ...]
    lines: tuple[str, ...] = field(default=())

    def as_document(self) -> dict[str, Any]:
        return asdict(self)


def explain(plan: Plan, rows: Mapping[InputName, int] | None = None) -> Explanation:
    """The plan and what a change of each table costs."""
    known = rows or {}
    inputs = tuple(_cost(plan, each, known) for each in plan.inputs)
    columns = tuple((each.name, said(each.type)) for each in plan.outputs)
    lines = [
        f"A row of the view is known by {', '.join(plan.key)}.",
        *(line for each in inputs for line in _lines(each)),
        *_group_lines(plan),
        *_whole_lines(plan),
    ]
    return Explanation(plan.key, columns, inputs, tuple(lines))


def explain_query(
    plan: QueryPlan, why: str, rows: Mapping[InputName, int] | None = None, sizes: Mapping[InputName, int] | None = None
) -> Explanation:
    """When all of it is computed, and what is read then. `why` it is not followed; '': it could be."""
    known = rows or {}
    inputs = tuple(
        InputCost(
            str(name), "", "read", (), (), columns, (), "nothing until it is recomputed; then all rows are read",
            known.get(name, -1),
        )
        for name, columns in plan.inputs
    )  # fmt: skip
    names = [name for name, _ in plan.inputs]
    many, size = _total(names, known, "rows"), _total(names, sizes or {}, "bytes as their servers store them")
    lines = (
        f"It is recomputed every {every_said(plan.every_seconds)} where one of its tables has changed; what differs"
        " from its rows are its changes.",
        f"It is not followed change by change: {why}." if why else "It could be followed: leave the schedule out.",
        f"One recomputation reads all rows of {len(names)} tables: {many}, {size}.",
        f"A row of the view is known by {', '.join(plan.key)}.",
    )
    return Explanation(plan.key, tuple((each.name, said(each.type)) for each in plan.outputs), inputs, lines)


def _total(names: Sequence[InputName], known: Mapping[InputName, int], unit: str) -> str:
    found = [known[name] for name in names if name in known]
    if not found:
        return f"an unknown number of {unit}"
    return f"about {sum(found):,} {unit}" + (f" of {len(found)} of them" if len(found) < len(names) else "")


def _above(plan: Plan, found: Input) -> list[Input]:
    """The tables that look it up, the nearest first."""
    by_alias = {each.alias: each for each in plan.inputs}
    above = []
    while found.parent:
        found = by_alias[found.parent]
        above.append(found)
    return above


def _cost(plan: Plan, found: Input, rows: Mapping[InputName, int]) -> InputCost:
    above = _above(plan, found)
    others = [str(each.name) for each in plan.inputs if each is not found]
    if found.role is Role.DRIVING:
        fan_out = "one row of the view"
    else:
        of = _about(rows, above[-1].name, found.name)
        fan_out = f"all rows of {above[-1].name} that look the row up{of}"
    terms = tuple(
        (term.key, f"{found.parent}.{term.parent_column}" if term.parent_column else term.literal)
        for term in found.terms
    )
    return InputCost(
        str(found.name),
        found.alias,
        found.role.value,
        found.shape.key,
        terms,
        found.columns,
        tuple(others),
        fan_out,
        rows.get(found.name, -1),
    )


def _about(rows: Mapping[InputName, int], driving: InputName, looked_up: InputName) -> str:
    many, few = rows.get(driving, -1), rows.get(looked_up, -1)
    return f", {max(1, round(many / few))} on average" if many > 0 and few > 0 else ""


def _lines(cost: InputCost) -> list[str]:
    on = " and ".join(f"{key} = {value}" for key, value in cost.joined_on)
    head = f"{cost.alias}: {cost.name}, {cost.role}" + (f", looked up by {on}" if on else "")
    others = ", ".join(cost.looked_up) or "no other table"
    return [head, f"  A change of a row changes {cost.fan_out}; it looks up rows of {others}."]


def _group_lines(plan: Plan) -> list[str]:
    if not plan.is_aggregate:
        return []
    lines = ["Groups are changed by what is added to them and taken away; a group without rows goes."]
    if any(each.aggregate in (Aggregate.MIN, Aggregate.MAX) for each in plan.aggregates):
        lines.append("A group that loses its least or greatest value is computed anew from all of its rows.")
    return lines


def _whole_lines(plan: Plan) -> list[str]:
    """Where a change may concern many rows."""
    if len(plan.inputs) < 2:
        return []
    return [
        f"Where more than {MOST_TOUCHED:,} rows look up what a batch changed, the view is computed from all rows, and"
        " what differs is written: menura view show says so of its newest version."
    ]
