"""Expressions in a query: those of `expressions`, and sub-queries, aggregates and windows.

Comes in: a part of sqlglot's tree, and the columns that it may use, of its own query and of those around it. Goes out:
a `Term`, or a `ViewRefused` with the place. As in `expressions`, nothing of the user's text is passed on.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Optional

from sqlglot import exp

from menura.types import MAX_DECIMAL128_PRECISION, decimal_digits
from menura.views.averages import average
from menura.views.definition import Column, InputName, Shape
from menura.views.expressions import Scope
from menura.views.parsing import refuse, whole_number
from menura.views.plan import AGGREGATES, Aggregate, summed_type
from menura.views.terms import (
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT_DIGITS,
    INTEGER,
    NOTHING,
    UNKNOWN,
    Term,
    quoted,
    said,
    type_word,
)

#: queries in each other, and what all of them read
MOST_QUERIES_DEEP, MOST_TABLES = 8, 16
#: the alias of a query that is written around one: no text can have it
OWN = '"~q"'
#: of rows that a window has before and behind
MOST_FRAME_ROWS = 1_000_000
_RANKS: dict[type, str] = {exp.RowNumber: "row_number", exp.Rank: "rank", exp.DenseRank: "dense_rank"}
_NEIGHBOURS: dict[type, str] = {exp.Lag: "lag", exp.Lead: "lead"}
_ENDS: dict[type, str] = {exp.FirstValue: "first_value", exp.LastValue: "last_value"}
_SIDES = ("PRECEDING", "FOLLOWING")


@dataclass(frozen=True, slots=True)
class Relation:
    """What can be read: in the engine's text, with its columns."""

    sql: str
    columns: tuple[Column, ...]
    #: None: it is a query
    table: InputName | None = None
    #: of a query with groups their columns, where all of them are among its own
    groups: tuple[str, ...] = ()


class Reader:
    """Of one text: what it reads, and how far its bounds are used."""

    def __init__(
        self, names: Mapping[InputName, str], shapes: Mapping[InputName, Shape], query: Callable[..., Relation]
    ) -> None:
        """`names`: of inputs, as the engine calls them; `query`: reads a query within another one."""
        self.names = names
        self.shapes = shapes
        self.query = query
        self.steps = count()
        #: parts of conditions of which NULL is as good as false
        self.conditions: dict[int, exp.Expression] = {}
        self._used: dict[InputName, set[str]] = {name: set() for name in names}
        self._aggregates: dict[int, tuple[exp.Expression, bool]] = {}
        self._windows: dict[int, tuple[exp.Expression, bool]] = {}
        self._within = count()
        self._deep = 0

    @contextmanager
    def nested(self, node: exp.Expression) -> Iterator[None]:
        self._deep += 1
        if self._deep > MOST_QUERIES_DEEP:
            refuse("queries are nested too deeply", node)
        yield
        self._deep -= 1

    def has_aggregate(self, node: exp.Expression) -> bool:
        """Whether there is one of the query itself: neither a sub-query's, nor a window's own."""
        if id(node) not in self._aggregates:
            is_found = type(node) in AGGREGATES or any(map(self.has_aggregate, _inner(node)))
            self._aggregates[id(node)] = (node, is_found)
        return self._aggregates[id(node)][1]

    def has_window(self, node: exp.Expression) -> bool:
        if id(node) not in self._windows:
            is_found = isinstance(node, exp.Window) or any(map(self.has_window, node.iter_expressions()))
            self._windows[id(node)] = (node, is_found)
        return self._windows[id(node)][1]

    def new_name(self) -> str:
        return f"w{next(self._within)}"

    def use(self, name: InputName, column: str) -> None:
        self._used[name].add(column)

    def columns_of(self, name: InputName) -> tuple[str, ...]:
        """That are read; of a table of which none is, the first one."""
        held = self.shapes[name].columns
        return tuple(each.name for each in held if each.name in self._used[name]) or (held[0].name,)


@dataclass(frozen=True, slots=True)
class QueryScope(Scope):
    """Of one query, and of those around it."""

    reader: Reader = field(kw_only=True)
    outer: Optional["QueryScope"] = field(kw_only=True)
    #: names of WITH that hold here
    within: Mapping[str, Relation] = field(kw_only=True)
    #: of a query with groups the texts of what they are by: other columns stand within aggregates alone
    grouped: frozenset[str] | None = None
    has_windows: bool = False
    #: takes the columns that sub-queries name, where it is what stands around them
    named: list[tuple[str, exp.Column]] | None = None
    #: the sub-queries that were read, and what columns of this query they name
    queries: dict[Hashable, tuple[exp.Expression, Relation, list[tuple[str, exp.Column]]]] = field(default_factory=dict)

    @classmethod
    def over(
        cls,
        reader: Reader,
        relations: Mapping[str, Relation],
        outer: Optional["QueryScope"],
        within: Mapping[str, Relation],
    ) -> "QueryScope":
        """Of a query that reads these, by alias."""

        def use(alias: str, column: str) -> None:
            table = relations[alias].table
            if table is not None:
                reader.use(table, column)

        columns = {alias: relation.columns for alias, relation in relations.items()}
        return cls(columns, use, reader.steps, reader=reader, outer=outer, within=within)

    def has(self, node: exp.Column) -> bool:
        """Whether the query itself has the column, or a table that it is said to be of."""
        if node.table:
            return node.table.lower() in self.columns
        wanted = node.name.lower()
        return any(column.name.lower() == wanted for columns in self.columns.values() for column in columns)

    def number(self, node: exp.Expression) -> Hashable:
        """What a part becomes depends on whether it is within groups, may have windows, and may name columns around."""
        return id(node), self.grouped is not None, self.has_windows, self.outer is not None

    def condition(self, node: exp.Expression) -> Term:
        """Of WHERE, HAVING, INNER JOIN or CASE, where NULL is as good as false."""
        self._note_conditions(node)
        return self.truth(node)

    def _note_conditions(self, node: exp.Expression) -> None:
        """So are parts of it that AND and OR join, and these with NOT."""
        node = bare(node)
        if isinstance(node, exp.And | exp.Or):
            self._note_conditions(node.this)
            self._note_conditions(node.expression)
        else:
            inner = bare(node.this) if isinstance(node, exp.Not) else node
            self.reader.conditions[id(inner)] = inner

    def column(self, node: exp.Column) -> Term:
        if self.outer is not None and not self.has(node):
            return self.outer.column(node)
        found = Scope.column(self, node)
        if self.named is not None:
            self.named.append((found.sql, node))
        self._check_grouped(found.sql, node)
        return found

    def _check_grouped(self, sql: str, node: exp.Column) -> None:
        if self.grouped is not None and sql not in self.grouped:
            refuse(f"{node.name} is neither grouped by nor within an aggregate", node)

    def read(self, node: exp.Expression) -> Term:
        if self.grouped and not isinstance(node, exp.Column | exp.Literal) and not self.reader.has_aggregate(node):
            found = self._ungrouped(node)
            if found is not None and found.sql in self.grouped:
                return found
        if isinstance(node, exp.Window):
            return self._window(node)
        if type(node) in AGGREGATES:
            if self.grouped is None:
                refuse("an aggregate stands where none can", node)
            return self._aggregate(node, "")
        if isinstance(node, exp.AggFunc):
            refuse(f"{node.sql_name()} is not among the aggregates of views", node)
        if isinstance(node, exp.Exists):
            return self._exists(node)
        if isinstance(node, exp.Subquery):
            value = self._one_column(node)
            return Term(f"({value.sql})", value.columns[0].type, value.columns[0].digits)
        if isinstance(node, exp.In) and node.args.get("query"):
            return self._in_query(node)
        if isinstance(node, exp.Case) and node.this is None:
            for branch in node.args["ifs"]:
                self._note_conditions(branch.this)
        return Scope.read(self, node)

    def _ungrouped(self, node: exp.Expression) -> Term | None:
        if self.reader.has_window(node):
            return None
        return self._plain().term(node)

    def _plain(self) -> "QueryScope":
        """The same rows, without groups and windows."""
        return replace(self, grouped=None, has_windows=False)

    def _sub_query(self, node: exp.Expression) -> Relation:
        """Read once, whether its value stands within groups or not."""
        number = id(node), self.outer is not None
        if number not in self.queries:
            named: list[tuple[str, exp.Column]] = []
            found = self.reader.query(self.reader, node, replace(self._plain(), named=named), self.within)
            self.queries[number] = (node, found, named)
        _, found, named = self.queries[number]
        for sql, column in named:
            self._check_grouped(sql, column)
        return found

    def _one_column(self, node: exp.Expression) -> Relation:
        """Of a sub-query that gives values."""
        found = self._sub_query(node)
        if len(found.columns) != 1:
            refuse("a sub-query stands for a value, and has several columns", node)
        return found

    def _exists(self, node: exp.Exists) -> Term:
        query = node.this
        if isinstance(query, exp.Select) and query.is_star:  # its columns are of no matter
            query.set("expressions", [exp.Literal.number(1)])
        return Term(f"EXISTS ({self._sub_query(query).sql})", BOOLEAN)

    def _in_query(self, node: exp.In) -> Term:
        if id(node) not in self.reader.conditions:
            refuse(
                "IN with a sub-query stands where Spark SQL takes what is NULL by it for true or false",
                node,
                "Have it as a condition of WHERE, HAVING, INNER JOIN or CASE WHEN, within AND and OR alone",
            )
        value = self.term(node.this)
        found = self._one_column(node.args["query"])
        column = found.columns[0]
        inner = Term(f"{OWN}.{quoted(column.name)}", column.type, column.digits)
        texts, _ = self.unified([value, inner], node)
        return Term(f"({texts[0]} IN (SELECT {texts[1]} FROM ({found.sql}) AS {OWN}))", BOOLEAN)  # noqa: S608

    def _aggregate(self, node: exp.Expression, over: str) -> Term:
        """`over`: of a window, whose argument may have the groups' aggregates."""
        kind = Aggregate(AGGREGATES[type(node)])
        if node.expressions:
            refuse(f"{kind} has one value", node)
        if isinstance(node.this, exp.Star):
            if any(node.this.args.values()):
                refuse(f"{kind} counts rows, of whatever columns", node)
            return Term(f"count(*){over}", INTEGER)
        value, distinct = node.this, ""
        if isinstance(value, exp.Distinct):
            if kind is not Aggregate.COUNT or over or len(value.expressions) != 1 or value.args.get("on"):
                refuse("DISTINCT is in count alone, of one value, and in no window", node)
            (value,), distinct = value.expressions, "DISTINCT "
        inner = self._without_windows() if over and self.grouped is not None else replace(self._plain(), outer=None)
        term = inner.term(value)
        if distinct and term.type in (FLOAT, DOUBLE):
            refuse("count(DISTINCT) is of no float: there is more than one zero", node)
        if kind is Aggregate.COUNT:
            return Term(f"count({distinct}{term.sql}){over}", INTEGER)
        if term.type == NOTHING:
            refuse(f"{kind} of NULL has no type", node)
        if kind in (Aggregate.MIN, Aggregate.MAX):
            return Term(f"{kind}({term.sql}){over}", term.type, term.digits)
        return self._sum(kind, term, node, over)

    def _sum(self, kind: Aggregate, term: Term, node: exp.Expression, over: str) -> Term:
        type_ = summed_type(kind, term, node)
        if type_ == UNKNOWN:
            return Term(f"{kind}({term.sql}){over}", UNKNOWN)
        digits = decimal_digits(term.type)
        exact = f"DECIMAL({MAX_DECIMAL128_PRECISION},{digits[1] if digits is not None else 0})"
        total = f"CAST(sum(CAST({term.sql} AS {exact})){over} AS {exact})"
        if kind is Aggregate.SUM:
            return Term(f"CAST({total} AS {type_word(type_)})", type_)
        many = f"count({term.sql}){over}"
        return Term(f"CASE WHEN {many} > 0 THEN {average(total, many, type_)} END", type_)

    def _without_windows(self) -> "QueryScope":
        return replace(self, has_windows=False)

    def _window(self, node: exp.Window) -> Term:
        if not self.has_windows:
            refuse("a window is a part of a column: filter by it in a query around this one", node)
        for clause, value in node.args.items():
            if value and clause not in ("this", "partition_by", "order", "spec", "over"):
                refuse(f"a window has no {clause.upper()}", node)
        scope = self._without_windows()
        parts = [_no_float(scope.term(each), each).sql for each in node.args.get("partition_by") or ()]
        order, spec = node.args.get("order"), node.args.get("spec")
        ordered = [f"{scope.term(_no_literal(each)).sql} {self.direction(each)}" for each in _ordered(order)]
        words = [f"PARTITION BY {', '.join(parts)}"] if parts else []
        words += [f"ORDER BY {', '.join(ordered)}"] if ordered else []
        kind = type(node.this)
        if kind in AGGREGATES or kind in _ENDS:
            words += [_frame(spec)] if spec is not None else []
        elif not ordered or spec is not None:
            refuse("this function needs ORDER BY in its window, and no frame", node)
        return scope._over(node.this, f" OVER ({' '.join(words)})")

    def _over(self, node: exp.Expression, over: str) -> Term:
        kind = type(node)
        if kind in AGGREGATES:
            return self._aggregate(node, over)
        if kind in _RANKS and not node.expressions:
            return Term(f"{_RANKS[kind]}(){over}", INTEGER, INT_DIGITS)
        if kind in _ENDS:
            found = self.term(node.this)
            return Term(f"{_ENDS[kind]}({found.sql}){over}", found.type, found.digits)
        if kind not in _NEIGHBOURS:
            refuse(f"{node.sql_name() if isinstance(node, exp.Func) else kind.__name__} is not among the windows", node)
        offset, default = node.args.get("offset"), node.args.get("default")
        rows = 1 if offset is None else _rows(offset)
        found = self.term(node.this)
        if found.type == NOTHING:
            refuse(f"{_NEIGHBOURS[kind]} of NULL has no type", node)
        more = f", {_default(found, self.term(default), default)}" if default is not None else ""
        return Term(f"{_NEIGHBOURS[kind]}({found.sql}, {rows}{more}){over}", found.type, found.digits)

    @staticmethod
    def direction(node: exp.Expression) -> str:
        """Of a part of ORDER BY, with where nulls stand, as Spark has them."""
        if not isinstance(node, exp.Ordered) or node.args.get("with_fill"):
            refuse("ORDER BY has values with ASC or DESC alone", node)
        nulls = "FIRST" if node.args.get("nulls_first") else "LAST"
        return f"{'DESC' if node.args.get('desc') else 'ASC'} NULLS {nulls}"


def bare(node: exp.Expression) -> exp.Expression:
    """Without parentheses."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def _inner(node: exp.Expression) -> Iterator[exp.Expression]:
    """The parts of the same query that a value is computed from, but for a window's function itself."""
    if isinstance(node, exp.Window):
        yield from node.this.iter_expressions()
        yield from node.args.get("partition_by") or ()
        yield from (each for each in (node.args.get("order"),) if each is not None)
    elif not isinstance(node, exp.Query):
        yield from node.iter_expressions()


def _default(of: Term, default: Term, node: exp.Expression) -> str:
    """Of lag and lead, whose type is that of their value; Spark SQL casts the default to it."""
    if default.type in (of.type, NOTHING, UNKNOWN) or of.type == UNKNOWN:
        return default.sql
    held, found = decimal_digits(of.type), default.operand
    if held is None or found is None or found[1] > held[1] or found[0] - found[1] > held[0] - held[1]:
        refuse(f"the value is {said(of.type)}, and its default, {said(default.type)}, may not fit: cast it", node)
    return f"CAST({default.sql} AS {type_word(of.type)})"


def _ordered(order: exp.Expression | None) -> Sequence[exp.Expression]:
    return order.expressions if order is not None else ()


def _no_literal(node: exp.Expression) -> exp.Expression:
    if isinstance(node.this, exp.Literal):
        refuse("ORDER BY names columns, not their places", node)
    found: exp.Expression = node.this
    return found


def _no_float(term: Term, node: exp.Expression) -> Term:
    if term.type in (FLOAT, DOUBLE):
        refuse("PARTITION BY is of no float: there is more than one zero", node)
    return term


def _rows(node: exp.Expression) -> int:
    if not isinstance(node, exp.Literal) or node.is_string or not node.name.isdecimal():
        refuse("a number of rows is a whole number", node)
    count = whole_number(node.name, MOST_FRAME_ROWS)
    if count is None:
        refuse(f"a window reaches at most {MOST_FRAME_ROWS} rows", node)
    return count


def _frame(spec: exp.Expression) -> str:
    kind = str(spec.args.get("kind") or "").upper()
    if kind not in ("ROWS", "RANGE") or spec.args.get("exclude"):
        refuse("the frame of a window is of ROWS or RANGE", spec)
    begins, first = _bound(spec, "start", kind)
    ends, last = _bound(spec, "end", kind) if spec.args.get("end") else ("CURRENT ROW", 0)
    if first > last:
        refuse("the frame of a window ends before it begins", spec)
    return f"{kind} BETWEEN {begins} AND {ends}"


def _bound(spec: exp.Expression, name: str, kind: str) -> tuple[str, float]:
    """Its text, and how many rows behind the current one it is."""
    found: Any = spec.args.get(name)
    side = str(spec.args.get(f"{name}_side") or "").upper()
    if str(found).upper() == "CURRENT ROW":
        return "CURRENT ROW", 0
    if side not in _SIDES or (str(found).upper() != "UNBOUNDED" and kind == "RANGE"):
        refuse("the frame of a window is of rows, or of RANGE between UNBOUNDED and CURRENT ROW", spec)
    rows = math.inf if str(found).upper() == "UNBOUNDED" else _rows(found)
    words = "UNBOUNDED" if rows == math.inf else str(rows)
    return f"{words} {side}", rows if side == "FOLLOWING" else -rows
