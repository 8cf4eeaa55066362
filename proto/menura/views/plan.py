"""How a view is kept up to date: from its text and its tables' columns to what the sink does with each change.

Comes in: the text, and of each table its columns and key. Goes out: a `Plan`, or a `ViewRefused` with the reason and
its place. Pure.

A view is driven by the first table of its FROM: each other one is joined by its whole key with columns of one table
before it, so that it adds at most one row to each. So a row of the view is known by the driving table's key, which has
to be among its columns; a row of a view with GROUP BY by its groups'. A change of a joined table is followed upwards,
to the driving rows that look it up. Conditions in ON beside the key's, and those in WHERE, are of no matter for that:
they are evaluated with the view's own text, over the few rows that it concerns.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlglot import exp

from menura.change_batch import is_reserved
from menura.naming import lake_column
from menura.types import MAX_DECIMAL128_PRECISION, decimal_digits
from menura.views.averages import AVERAGE_DIGITS
from menura.views.definition import Column, InputName, Shape
from menura.views.expressions import Scope
from menura.views.parsing import MOST_COLUMNS, from_table, input_name, is_place, parse, refuse, tables_of
from menura.views.parts import check_parts
from menura.views.terms import DOUBLE, FLOAT, INTEGER, NOTHING, UNKNOWN, Term, quoted, said

_ALIAS = re.compile(r"[a-z][a-z0-9_]{0,62}")
AGGREGATES: dict[type, str] = {exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max"}


class Role(StrEnum):
    DRIVING = "driving"
    INNER = "inner"
    LEFT = "left"


class Aggregate(StrEnum):
    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class KeyTerm:
    """What a column of a joined table's key equals: a column of its parent, or a literal in the engine's text."""

    key: str
    parent_column: str = ""
    literal: str = ""


@dataclass(frozen=True, slots=True)
class Input:
    """A table of the view, under its alias."""

    alias: str
    name: InputName
    role: Role
    shape: Shape
    #: the alias of the table that looks it up; '' of the driving one
    parent: str
    #: one for each column of its key
    terms: tuple[KeyTerm, ...]
    #: the whole of its ON, in the engine's text
    condition: str
    #: that the view reads, the key's among them
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the view; of an aggregate `sql` is its argument, '' of count(*)."""

    name: str
    type: str
    sql: str
    aggregate: Aggregate | None = None
    #: of the argument
    argument_type: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    #: of the view, by its columns' names
    key: tuple[str, ...]
    #: in the engine's text; '' for all rows
    where: str
    is_aggregate: bool

    @property
    def driving(self) -> Input:
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """What a view on this one is planned with."""
        return Shape(tuple(Column(each.name, each.type) for each in self.outputs), self.key)

    @property
    def groups(self) -> tuple[Output, ...]:
        return tuple(each for each in self.outputs if each.aggregate is None)

    @property
    def aggregates(self) -> tuple[Output, ...]:
        return tuple(each for each in self.outputs if each.aggregate is not None)

    @property
    def source_sql(self) -> str:
        """FROM and WHERE, where tables are called by their aliases."""
        joins = [quoted(self.driving.alias)]
        joins += [f"{each.role} JOIN {quoted(each.alias)} ON {each.condition}" for each in self.inputs[1:]]
        return f"FROM {' '.join(joins)}" + (f" WHERE {self.where}" if self.where else "")

    def children(self, alias: str) -> list[Input]:
        """The tables that this one looks up."""
        return [each for each in self.inputs if each.parent == alias]


def make_plan(sql: str, shapes: Mapping[InputName, Shape]) -> Plan:
    """Raises `ViewRefused`.

    >>> orders = Shape((Column("id", "l"), Column("person", "l")), ("id",))
    >>> people = Shape((Column("id", "l"), Column("name", "u")), ("id",))
    >>> text = "SELECT o.id, p.name FROM shop.app.orders o LEFT JOIN shop.app.people p ON p.id = o.person"
    >>> names = [InputName("shop", "app", name) for name in ("orders", "people")]
    >>> plan = make_plan(text, dict(zip(names, (orders, people))))
    >>> plan.key, [(each.alias, each.role.value) for each in plan.inputs]
    (('id',), [('o', 'driving'), ('p', 'left')])
    """
    try:
        select = parse(sql)
        check_parts(select)
        return _plan(select, shapes)
    except RecursionError:
        refuse("the text is nested too deeply")


def _plan(select: exp.Select, shapes: Mapping[InputName, Shape]) -> Plan:
    names = {alias_of(table): input_name(table) for table in tables_of(select)}
    if len(names) < len(tables_of(select)):
        refuse("two tables have one name here: give them aliases", from_table(select))
    for table in tables_of(select):
        if names[alias_of(table)] not in shapes:
            refuse(f"{names[alias_of(table)]} is not known", table)
    used: dict[str, dict[str, None]] = {alias: {} for alias in names}
    inputs = _inputs(select, names, shapes, used)
    scope = Scope(
        {alias: shapes[name].columns for alias, name in names.items()},
        lambda alias, column: used[alias].update({column: None}),
    )
    where = select.args.get("where")
    condition = scope.truth(where.this).sql if where is not None else ""
    outputs, key, is_aggregate = _outputs(select, scope, inputs[0])
    found = [_with_columns(each, used[each.alias]) for each in inputs]
    return Plan(tuple(found), outputs, key, condition, is_aggregate)


def _with_columns(found: Input, used: Mapping[str, None]) -> Input:
    names = {name.lower(): None for name in (*found.shape.key, *used)}
    columns = tuple(column.name for column in found.shape.columns if column.name.lower() in names)
    return Input(found.alias, found.name, found.role, found.shape, found.parent, found.terms, found.condition, columns)


def alias_of(table: exp.Expression) -> str:
    """Under which expressions know it. Raises `ViewRefused`."""
    alias = str(table.alias_or_name).lower()
    if not _ALIAS.fullmatch(alias):
        refuse("the table needs an alias of a-z, 0-9 and _, e.g. o", table)
    return alias


def _inputs(
    select: exp.Select,
    names: Mapping[str, InputName],
    shapes: Mapping[InputName, Shape],
    used: Mapping[str, dict[str, None]],
) -> list[Input]:
    driving = from_table(select)
    alias = alias_of(driving)
    _check_key(shapes[names[alias]], driving, "drives the view")
    found = [Input(alias, names[alias], Role.DRIVING, shapes[names[alias]], "", (), "", ())]
    for join in select.args.get("joins") or ():
        table = join.this
        role = _role(join)
        alias = alias_of(table)
        shape = shapes[names[alias]]
        _check_key(shape, table, "is joined")
        on = join.args.get("on")
        if on is None:
            refuse("a table is joined ON its key", table)
        known = {each.alias: each.shape.columns for each in found} | {alias: shape.columns}
        scope = Scope(known, lambda where, column: used[where].update({column: None}))
        condition = scope.truth(on).sql
        parent, terms = _key_terms(on, scope, alias, shape, table)
        found.append(Input(alias, names[alias], role, shape, parent, terms, condition, ()))
    return found


def _role(join: exp.Join) -> Role:
    for clause in ("using", "method", "global", "hint", "match_condition"):
        if join.args.get(clause):
            refuse(f"a table is joined ON its key, without {clause.upper()}", join.this)
    kind, side = str(join.args.get("kind") or ""), str(join.args.get("side") or "")
    if side == "LEFT" and kind in ("", "OUTER"):
        return Role.LEFT
    if side or kind not in ("", "INNER"):
        refuse(f"tables are joined by INNER or LEFT JOIN, and this one by {side or kind}", join.this)
    return Role.INNER


def _check_key(shape: Shape, table: exp.Table, what: str) -> None:
    if not shape.key:
        refuse(f"the table {what}, and has no primary key", table)
    for name in shape.key:
        column = shape.find(name)
        if column is None or column.type in (FLOAT, DOUBLE):
            refuse(f"the table {what}, and its key has a float: there is more than one zero", table)


def _key_terms(
    on: exp.Expression, scope: Scope, alias: str, shape: Shape, table: exp.Table
) -> tuple[str, tuple[KeyTerm, ...]]:
    terms: dict[str, KeyTerm] = {}
    parents: set[str] = set()
    keys = {name.lower() for name in shape.key}
    for equal in _conjuncts(on):
        if not isinstance(equal, exp.EQ):
            continue
        for own, other in ((equal.this, equal.expression), (equal.expression, equal.this)):
            if not isinstance(own, exp.Column) or scope.resolve(own)[0] != alias:
                continue
            column = scope.resolve(own)[1]
            if column.name.lower() not in keys or column.name in terms:
                continue
            if isinstance(other, exp.Column) and scope.resolve(other)[0] != alias:
                parent, looked = scope.resolve(other)
                if looked.type != column.type and UNKNOWN not in (looked.type, column.type):
                    refuse(
                        f"the key {column.name} is {said(column.type)}, and {looked.name} is {said(looked.type)}", equal
                    )
                parents.add(parent)
                terms[column.name] = KeyTerm(column.name, parent_column=looked.name)
            elif isinstance(other, exp.Literal):
                terms[column.name] = KeyTerm(column.name, literal=scope.term(other).sql)
    missing = [name for name in shape.key if name not in terms]
    if missing:
        by = f"by {', '.join(terms)} alone" if terms else "by no column of its key"
        refuse(
            f"{table.name} is joined {by}, and its key is {', '.join(shape.key)}:"
            " more than one of its rows could belong to a row",
            on,
            f"Where each row of {table.name} looks up one of the others, begin with it: FROM {table.name} JOIN the"
            " others ON their keys. Else group it by what joins it in a view of its own, and join that",
        )
    if len(parents) != 1:
        refuse("the key of a joined table equals columns of one table before it", on)
    return parents.pop(), tuple(terms[name] for name in shape.key)


def _conjuncts(node: exp.Expression) -> list[exp.Expression]:
    if isinstance(node, exp.Paren):
        return _conjuncts(node.this)
    if isinstance(node, exp.And):
        return [*_conjuncts(node.this), *_conjuncts(node.expression)]
    return [node]


def _outputs(select: exp.Select, scope: Scope, driving: Input) -> tuple[tuple[Output, ...], tuple[str, ...], bool]:
    """The columns, the key among them, and whether they are groups'."""
    group = select.args.get("group")
    grouped = _grouped(group, scope, select)
    if len(select.expressions) > MOST_COLUMNS:
        refuse(f"a view has at most {MOST_COLUMNS} columns")
    outputs: list[Output] = []
    #: by what the view's rows are told apart, the column's name
    key: dict[str, str] = {}
    for item in select.expressions:
        name, value = named(item)
        if name.lower() in {each.name.lower() for each in outputs}:
            refuse(f"two columns are called {name}", item)
        if type(value) in AGGREGATES:
            if group is None:
                refuse("an aggregate needs GROUP BY, or the view's row has no key", value)
            outputs.append(_aggregate(name, value, scope))
            continue
        term = scope.term(value)
        if term.type == NOTHING:
            refuse("the column is always NULL: cast it", value)
        outputs.append(Output(name, term.type, term.sql))
        if group is not None:
            key |= _group(name, value, term, grouped)
        elif isinstance(value, exp.Column) and scope.resolve(value)[0] == driving.alias:
            key.setdefault(scope.resolve(value)[1].name, name)
    if group is None:
        return tuple(outputs), _driving_key(driving, key, select), False
    if any(text not in key for text in grouped):
        refuse("a column that is grouped by is not among the view's columns", group)
    return tuple(outputs), tuple(each.name for each in outputs if each.aggregate is None), True


def _driving_key(driving: Input, names: Mapping[str, str], select: exp.Select) -> tuple[str, ...]:
    missing = [f"{driving.alias}.{name}" for name in driving.shape.key if name not in names]
    if missing:
        refuse(
            f"the view lacks {', '.join(missing)}: its rows are told apart by the key of its first table",
            select.expressions[0],
        )
    return tuple(names[name] for name in driving.shape.key)


def _group(name: str, value: exp.Expression, term: Term, grouped: Sequence[str]) -> dict[str, str]:
    if term.sql not in grouped and name.lower() not in grouped:
        refuse(f"{name} is neither grouped by nor an aggregate", value)
    if term.type in (FLOAT, DOUBLE):
        refuse("a group is no float: there is more than one zero", value)
    return {term.sql: name, name.lower(): name}


def _grouped(group: exp.Group | None, scope: Scope, select: exp.Select) -> list[str]:
    """The texts of what is grouped by; a column's alias stands for itself."""
    if group is None:
        return []
    for clause, value in group.args.items():
        if value and clause != "expressions":
            refuse(f"GROUP BY has no {clause.upper()}", group)
    names = {item.alias.lower() for item in select.expressions if isinstance(item, exp.Alias)}
    found = []
    for each in group.expressions:
        if is_place(each):
            refuse("GROUP BY names columns, not their places", each)
        held = {column.name.lower() for columns in scope.columns.values() for column in columns}
        if isinstance(each, exp.Column) and not each.table and each.name.lower() in names - held:
            found.append(each.name.lower())
        else:
            found.append(scope.term(each).sql)
    return found


def named(item: exp.Expression) -> tuple[str, exp.Expression]:
    """A column of the view. Raises `ViewRefused`."""
    value = item.this if isinstance(item, exp.Alias) else item
    if isinstance(value, exp.Star) or (isinstance(value, exp.Column) and isinstance(value.this, exp.Star)):
        refuse("the columns are named one by one: * would be others after a change of the table", item)
    if not isinstance(item, exp.Alias | exp.Column):
        refuse("a computed column needs a name: AS name", item)
    name = item.alias if isinstance(item, exp.Alias) else item.name
    if not name or lake_column(name) != name or is_reserved(name) or len(name) > 128:
        refuse(f"a column can't be called {name[:80]!r} in the lake", item)
    return name, value


def _aggregate(name: str, node: exp.Expression, scope: Scope) -> Output:
    kind = Aggregate(AGGREGATES[type(node)])
    if isinstance(node.this, exp.Distinct) or node.expressions:
        refuse(f"{kind} has one value, without DISTINCT", node)
    if isinstance(node.this, exp.Star):
        if any(node.this.args.values()):
            refuse(f"{kind} counts rows, of whatever columns", node)
        return Output(name, INTEGER, "", kind)
    term = scope.term(node.this)
    if kind is Aggregate.COUNT:
        return Output(name, INTEGER, term.sql, kind, term.type)
    if term.type == NOTHING:
        refuse(f"{kind} of NULL has no type", node)
    if kind in (Aggregate.MIN, Aggregate.MAX):
        return Output(name, term.type, term.sql, kind, term.type)
    return Output(name, summed_type(kind, term, node), term.sql, kind, term.type)


def summed_type(kind: Aggregate, term: Term, node: exp.Expression) -> str:
    """Of sum or avg. Raises `ViewRefused`."""
    if term.type in (FLOAT, DOUBLE):
        refuse(f"{kind} of a float depends on the order of its rows: cast what it is made of to a decimal", node)
    if term.type == INTEGER:
        return INTEGER if kind is Aggregate.SUM else DOUBLE
    if term.type == UNKNOWN:
        return UNKNOWN
    digits = decimal_digits(term.type)
    if digits is None:
        refuse(f"{kind} of {said(term.type)} is not among what views can compute", node)
    if kind is Aggregate.AVG:
        return _averaged(digits, node)
    return f"d:{min(MAX_DECIMAL128_PRECISION, digits[0] + 10)},{digits[1]}"


def _averaged(digits: tuple[int, int], node: exp.Expression) -> str:
    """Spark's type: four more digits behind the point, where the last one is rounded half up."""
    precision, scale = (each + AVERAGE_DIGITS for each in digits)
    if precision > MAX_DECIMAL128_PRECISION:
        refuse(
            f"avg of DECIMAL({digits[0]},{digits[1]}) has {precision} digits, more than {MAX_DECIMAL128_PRECISION}",
            node,
            "Cast its argument to a decimal of fewer digits, or have sum and count as columns",
        )
    return f"d:{precision},{scale}"
