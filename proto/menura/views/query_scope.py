"""Expressions in a query: those of `expressions`, and sub-queries, aggregates and windows.

Comes in: a part of sqlglot's tree, and the columns that it may use, of its own query and of those around it. Goes out:
a `Term`, or a `ViewRefused` with the place. As in `expressions`, nothing of the user's text is passed on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Optional

from sqlglot import exp

from menura.types import MAX_DECIMAL128_PRECISION, decimal_digits
from menura.views.averages import average
from menura.views.definition import Column, InputName, Shape
from menura.views.expressions import BOOLEAN, DOUBLE, FLOAT, INTEGER, NOTHING, UNKNOWN, Scope, Term, quoted, type_word
from menura.views.parsing import refuse
from menura.views.plan import AGGREGATES, Aggregate, summed_type

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
        self._used: dict[InputName, set[str]] = {name: set() for name in names}
        self._within = count()
        self._deep = 0

    @contextmanager
    def nested(self, node: exp.Expression) -> Iterator[None]:
        self._deep += 1
        if self._deep > MOST_QUERIES_DEEP:
            refuse("queries are nested too deeply", node)
        yield
        self._deep -= 1

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

    def has_aggregate(self, node: exp.Expression) -> bool:
        """Whether there is one of this query: neither a sub-query's, nor a window's own."""
        if isinstance(node, exp.Query):
            return False
        if isinstance(node, exp.Window):
            inner = [*node.this.iter_expressions(), *node.args.get("partition_by", ()), node.args.get("order")]
            return any(self.has_aggregate(each) for each in inner if isinstance(each, exp.Expression))
        return type(node) in AGGREGATES or any(self.has_aggregate(each) for each in node.iter_expressions())

    def column(self, node: exp.Column) -> Term:
        if self.outer is not None and not self.has(node):
            return self.outer.column(node)
        found = Scope.column(self, node)
        if self.grouped is not None and found.sql not in self.grouped:
            refuse(f"{node.name} is neither grouped by nor within an aggregate", node)
        return found

    def read(self, node: exp.Expression) -> Term:
        if self.grouped and not isinstance(node, exp.Column | exp.Literal) and not self.has_aggregate(node):
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
            value, type_ = self._one_column(node)
            return Term(f"({value.sql})", type_)
        if isinstance(node, exp.In) and node.args.get("query"):
            return self._in_query(node)
        return Scope.read(self, node)

    def _ungrouped(self, node: exp.Expression) -> Term | None:
        if node.find(exp.Window):
            return None
        return self._plain().term(node)

    def _plain(self) -> "QueryScope":
        """The same rows, without groups and windows."""
        return replace(self, grouped=None, has_windows=False)

    def _one_column(self, node: exp.Expression) -> tuple[Relation, str]:
        """Of a sub-query that gives values, and their type."""
        found = self.reader.query(self.reader, node, self, self.within)
        if len(found.columns) != 1:
            refuse("a sub-query stands for a value, and has several columns", node)
        return found, found.columns[0].type

    def _exists(self, node: exp.Exists) -> Term:
        query = node.this
        if isinstance(query, exp.Select) and query.is_star:  # its columns are of no matter
            query = query.copy()
            query.set("expressions", [exp.Literal.number(1)])
        found = self.reader.query(self.reader, query, self, self.within)
        return Term(f"EXISTS ({found.sql})", BOOLEAN)

    def _in_query(self, node: exp.In) -> Term:
        value = self.term(node.this)
        found, type_ = self._one_column(node.args["query"])
        inner = Term(f"{OWN}.{quoted(found.columns[0].name)}", type_)
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
            return Term(f"{kind}({term.sql}){over}", term.type)
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
            return Term(f"{_RANKS[kind]}(){over}", INTEGER)
        if kind in _ENDS:
            found = self.term(node.this)
            return Term(f"{_ENDS[kind]}({found.sql}){over}", found.type)
        if kind not in _NEIGHBOURS:
            refuse(f"{node.sql_name() if isinstance(node, exp.Func) else kind.__name__} is not among the windows", node)
        offset, default = node.args.get("offset"), node.args.get("default")
        rows = 1 if offset is None else _rows(offset)
        values = [node.this] if default is None else [node.this, default]
        texts, type_ = self.together(values)
        more = f", {texts[1]}" if default is not None else ""
        return Term(f"{_NEIGHBOURS[kind]}({texts[0]}, {rows}{more}){over}", type_)

    @staticmethod
    def direction(node: exp.Expression) -> str:
        """Of a part of ORDER BY, with where nulls stand, as Spark has them."""
        if not isinstance(node, exp.Ordered) or node.args.get("with_fill"):
            refuse("ORDER BY has values with ASC or DESC alone", node)
        nulls = "FIRST" if node.args.get("nulls_first") else "LAST"
        return f"{'DESC' if node.args.get('desc') else 'ASC'} NULLS {nulls}"


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
    if int(node.name) > MOST_FRAME_ROWS:
        refuse(f"a window reaches at most {MOST_FRAME_ROWS} rows", node)
    return int(node.name)


def _frame(spec: exp.Expression) -> str:
    kind = str(spec.args.get("kind") or "").upper()
    if kind not in ("ROWS", "RANGE") or spec.args.get("exclude"):
        refuse("the frame of a window is of ROWS or RANGE", spec)
    begins = _bound(spec, "start", kind)
    ends = _bound(spec, "end", kind) if spec.args.get("end") else "CURRENT ROW"
    return f"{kind} BETWEEN {begins} AND {ends}"


def _bound(spec: exp.Expression, name: str, kind: str) -> str:
    found: Any = spec.args.get(name)
    side = str(spec.args.get(f"{name}_side") or "").upper()
    if str(found).upper() == "CURRENT ROW":
        return "CURRENT ROW"
    if side not in _SIDES or (str(found).upper() != "UNBOUNDED" and kind == "RANGE"):
        refuse("the frame of a window is of rows, or of RANGE between UNBOUNDED and CURRENT ROW", spec)
    if str(found).upper() == "UNBOUNDED":
        return f"UNBOUNDED {side}"
    return f"{_rows(found)} {side}"
