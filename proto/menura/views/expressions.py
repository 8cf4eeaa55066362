"""Expressions of a view: those whose value is the same in the sink's engine (DuckDB) and in Spark SQL with ANSI on.

Comes in: a part of sqlglot's tree, and the columns that it may use. Goes out: a `Term`, its text for the engine with
its type, or a `ViewRefused` with the place. What is let through, and why it is the same:

* Logic, =, <>, <, IN, BETWEEN, CASE, coalesce and nullif have SQL's three-valued logic in both; <=> is null-safe.
  Both sides have one type, or are a decimal and an integer; so no engine chooses a cast. NaN equals itself and is
  above all in both; -0.0 equals 0.0.
* Texts are compared by their bytes in UTF-8, without a collation: a source's own order may be another one.
* Integers have 64 bits in both, and what is beyond is an error in both: it stops the view.
* Decimals have the digits that Spark gives them, by a CAST in the engine's text; where these are more than 38, Spark
  would round, and the view is refused. A BIGINT counts as DECIMAL(20,0), an INT as DECIMAL(10,0), a literal that is
  computed with or compared by its digits. Spark rounds - and abs of more than 34 digits, which are refused.
* Casts are those of `casts`.
* Refused are: /, %, div (by zero Spark fails and the engine gives NULL), functions that know letters or time zones
  (upper, lower, current_date).
"""

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sqlglot import exp

from menura.types import MAX_DECIMAL128_PRECISION
from menura.views import casts
from menura.views.definition import Column
from menura.views.parsing import refuse
from menura.views.terms import (
    BIGINT_DIGITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    INT_DIGITS,
    INTEGER,
    LOCAL_TIME,
    NOTHING,
    TEXT,
    UNKNOWN,
    Term,
    quoted,
    said,
    type_word,
)

_GREATEST, _GREATEST_INT = (1 << 63) - 1, (1 << 31) - 1
#: of decimals that the engine has in 64 bits; and those to which Spark rounds where it changes a sign
_LONG_DIGITS, _SIGNED_DIGITS = 18, 34
_COMPARED: dict[type, str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
}
_COMPUTED: dict[type, str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_PARTS: dict[type, str] = {exp.Year: "year", exp.Month: "month", exp.Day: "day", exp.DayOfMonth: "day"}
#: of reading a text, and of what an expression becomes
MOST_STEPS, MOST_CHARS = 100_000, 256 << 10
#: written out, with the letter that says its type
_NUMBER = re.compile(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)(L|S|Y|F|D|BD)?")
_WHOLE = re.compile(r"[0-9]{1,19}")
_POINT = re.compile(r"([0-9]*)(?:\.([0-9]*))?")
_FLOAT = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Scope:
    """The columns that expressions may use: of each alias, in the order of the tables."""

    columns: Mapping[str, Sequence[Column]]
    #: says which column is used
    use: Callable[[str, str], None]
    #: of reading all expressions
    steps: Iterator[int] = field(default_factory=count)
    #: what was read, with the part itself, whose number holds while it is there
    read_before: dict[Hashable, tuple[exp.Expression, Term]] = field(default_factory=dict)

    def resolve(self, node: exp.Column) -> tuple[str, Column]:
        if any(node.args.get(part) for part in ("db", "catalog")):
            refuse("a column is named ALIAS.COLUMN", node)
        wanted, alias = node.name.lower(), node.table.lower()
        if alias and alias not in self.columns:
            refuse(f"there is no table {node.table} before this place", node)
        found = [
            (name, column)
            for name, columns in self.columns.items()
            for column in columns
            if column.name.lower() == wanted and (not alias or name == alias)
        ]
        if not found:
            refuse(f"there is no column {node.sql(dialect='spark')}", node, lacks_column=True)
        if len(found) > 1:
            refuse(f"several tables have a column {node.name}: name the table", node)
        return found[0]

    def column(self, node: exp.Column) -> Term:
        alias, column = self.resolve(node)
        self.use(alias, column.name)
        return Term(f"{quoted(alias)}.{quoted(column.name)}", column.type, column.digits)

    def term(self, node: exp.Expression) -> Term:
        """Raises `ViewRefused`. Each part is read once; its text is bounded, since it may be written more than once."""
        number = self.number(node)
        if number in self.read_before:
            return self.read_before[number][1]
        if next(self.steps) >= MOST_STEPS:
            refuse("the text is nested too deeply", node)
        found = self.read(node)
        if len(found.sql) > MOST_CHARS:
            refuse("the text is nested too deeply", node)
        self.read_before[number] = (node, found)
        return found

    def number(self, node: exp.Expression) -> Hashable:
        """By which a part that was read is known."""
        return id(node)

    def read(self, node: exp.Expression) -> Term:
        """Of one part."""
        kind = type(node)
        if (read := _READERS.get(kind)) is not None:
            return read(self, node)
        if kind in _COMPARED:
            return self._compared(node, _COMPARED[kind])
        if kind in _COMPUTED:
            return self._computed(node, _COMPUTED[kind])
        if kind in _PARTS:
            return self._part(node, _PARTS[kind])
        if isinstance(node, exp.AggFunc):
            refuse(f"{kind.__name__} stands here inside an expression: an aggregate is a column of its own", node)
        name = (
            node.name
            if isinstance(node, exp.Anonymous)
            else (node.sql_name() if isinstance(node, exp.Func) else kind.__name__)
        )
        return refuse(f"{name} is not among what views can compute", node)

    def truth(self, node: exp.Expression) -> Term:
        found = self.term(node)
        if found.type not in (BOOLEAN, NOTHING, UNKNOWN):
            refuse(f"a condition is {said(found.type)}", node)
        return found

    def together(self, nodes: Sequence[exp.Expression]) -> tuple[list[str], Term]:
        """The texts of values that have one type, and a term of that type."""
        return self.unified([self.term(node) for node in nodes], nodes[0])

    def compared(self, nodes: Sequence[exp.Expression]) -> list[str]:
        """The texts of values that are compared."""
        terms = [self.term(node) for node in nodes]
        return self.unified([replace(term, digits=term.literal or term.digits) for term in terms], nodes[0])[0]

    def unified(self, terms: Sequence[Term], node: exp.Expression) -> tuple[list[str], Term]:
        """As `together`, of terms; `node` is where a refusal says that they are."""
        known = [term for term in terms if term.type != NOTHING]
        types = list(dict.fromkeys(term.type for term in known))
        if len(types) <= 1:
            digits = max((term.digits for term in known), default=BIGINT_DIGITS)
            return [term.sql for term in terms], Term("", types[0] if types else NOTHING, digits)
        if UNKNOWN in types:
            return [term.sql for term in terms], Term("", UNKNOWN)
        decimals = [term.decimal for term in known]
        if any(each is None for each in decimals):
            refuse(f"{said(types[0])} and {said(types[1])} stand together: cast one of them", node)
        scale = max(each[1] for each in decimals if each)
        whole = max(each[0] - each[1] for each in decimals if each)
        type_ = self._decimal(whole + scale, scale, node)
        return [f"CAST({term.sql} AS {type_word(type_)})" for term in terms], Term("", type_)

    def _decimal(self, precision: int, scale: int, node: exp.Expression) -> str:
        if precision > MAX_DECIMAL128_PRECISION:
            refuse(f"the result has {precision} digits, and a decimal at most 38: cast what it is made of", node)
        return f"d:{precision},{scale}"

    def _compared(self, node: exp.Expression, sign: str) -> Term:
        left, right = self.compared([node.this, node.expression])
        return Term(f"({left} {sign} {right})", BOOLEAN)

    def _computed(self, node: exp.Expression, sign: str) -> Term:
        left, right = self.term(node.this), self.term(node.expression)
        if UNKNOWN in (left.type, right.type):
            return Term(f"({left.sql} {sign} {right.sql})", UNKNOWN)
        if left.type == right.type and left.type in (INTEGER, DOUBLE):
            return Term(f"({left.sql} {sign} {right.sql})", left.type, max(left.digits, right.digits))
        a, b = left.operand, right.operand
        if a is None or b is None:
            refuse(f"{said(left.type)} {sign} {said(right.type)} is not among what views can compute", node)
        if sign == "*":
            type_ = self._decimal(a[0] + b[0] + 1, a[1] + b[1], node)
            if a[0] + b[0] > _LONG_DIGITS:  # or the engine computes with no more of them
                a = (max(a[0], _LONG_DIGITS + 1), a[1])
        else:
            scale = max(a[1], b[1])
            type_ = self._decimal(max(a[0] - a[1], b[0] - b[1]) + scale + 1, scale, node)
        texts = [f"CAST({term.sql} AS DECIMAL({digits[0]},{digits[1]}))" for term, digits in ((left, a), (right, b))]
        if sign != "*":
            texts = [f"CAST({text} AS {type_word(type_)})" for text in texts]
        return Term(f"CAST({texts[0]} {sign} {texts[1]} AS {type_word(type_)})", type_)

    def _part(self, node: exp.Expression, name: str) -> Term:
        # sqlglot puts a conversion to a date around what it is of
        found = self.term(node.this.this if isinstance(node.this, exp.TsOrDsToDate) else node.this)
        if found.type not in (DATE, LOCAL_TIME, UNKNOWN):
            refuse(f"{name} of {said(found.type)} depends on the reader's time zone, or is none", node)
        return Term(f"CAST({name}({found.sql}) AS BIGINT)", INTEGER, INT_DIGITS)


def _literal(scope: Scope, node: exp.Expression) -> Term:
    text = node.name
    if node.args.get("is_string"):
        if "\0" in text:
            refuse("a text has no NUL", node)
        return Term("'" + text.replace("'", "''") + "'", TEXT)
    found = _NUMBER.fullmatch(text)
    number, letter = found.groups() if found is not None else (text, "")
    if letter in ("S", "Y", "F"):
        refuse(f"{text[:50]} has a type that views do not have: write it without {letter}, or with L or D", node)
    if letter == "D" or (not letter and "E" in number.upper() and _FLOAT.fullmatch(number)):
        return _double(number, node)
    if _WHOLE.fullmatch(number) and letter != "BD" and int(number) <= _GREATEST:
        digits = INT_DIGITS if int(number) <= _GREATEST_INT and not letter else BIGINT_DIGITS
        return Term(f"CAST({int(number)} AS BIGINT)", INTEGER, digits, max(1, len(str(int(number)))))
    point = _POINT.fullmatch(number)
    is_decimal = point is not None and (point[2] is not None or letter == "BD") and number != "." and letter != "L"
    if point is None or not is_decimal or len(number) > MAX_DECIMAL128_PRECISION:
        refuse(f"the number {text[:50]} is neither an integer of 64 bits nor a decimal of 38 digits", node)
    whole, part = point[1].lstrip("0"), point[2] or ""
    type_ = f"d:{max(len(whole) + len(part), 1)},{len(part)}"
    return Term(f"CAST('{number}' AS {type_word(type_)})", type_)


def _double(number: str, node: exp.Expression) -> Term:
    if not _FLOAT.fullmatch(number) or math.isinf(float(number)):
        refuse(f"the number {number[:50]} is none of 64 bits", node)
    return Term(f"CAST('{float(number)!r}' AS DOUBLE)", DOUBLE)


def _null(scope: Scope, node: exp.Expression) -> Term:
    return Term("NULL", NOTHING)


def _boolean(scope: Scope, node: exp.Expression) -> Term:
    return Term("TRUE" if node.this else "FALSE", BOOLEAN)


def _column(scope: Scope, node: exp.Expression) -> Term:
    assert isinstance(node, exp.Column)
    return scope.column(node)


def _paren(scope: Scope, node: exp.Expression) -> Term:
    found = scope.term(node.this)
    return replace(found, sql=f"({found.sql})")


def _negative(scope: Scope, node: exp.Expression) -> Term:
    found = _signed(scope, node, "-")
    if not isinstance(node.this, exp.Literal):
        return Term(f"(-{found.sql})", found.type, found.digits)
    digits = INT_DIGITS if node.this.name == str(_GREATEST_INT + 1) else found.digits
    return replace(found, sql=f"(-{found.sql})", digits=digits)


def _absolute(scope: Scope, node: exp.Expression) -> Term:
    found = _signed(scope, node, "abs")
    return Term(f"abs({found.sql})", found.type, found.digits)


def _signed(scope: Scope, node: exp.Expression, name: str) -> Term:
    """A number whose sign changes."""
    found = scope.term(node.this)
    if found.type not in (INTEGER, DOUBLE, UNKNOWN) and found.decimal is None:
        refuse(f"{name} of {said(found.type)} is not among what views can compute", node)
    if found.decimal is not None and found.decimal[0] > _SIGNED_DIGITS:
        refuse(f"{name} of {said(found.type)} is rounded by Spark to {_SIGNED_DIGITS} digits: cast it to fewer", node)
    return found


def _not(scope: Scope, node: exp.Expression) -> Term:
    return Term(f"(NOT {scope.truth(node.this).sql})", BOOLEAN)


def _joined(word: str) -> Callable[[Scope, exp.Expression], Term]:
    def read(scope: Scope, node: exp.Expression) -> Term:
        return Term(f"({scope.truth(node.this).sql} {word} {scope.truth(node.expression).sql})", BOOLEAN)

    return read


def _is(scope: Scope, node: exp.Expression) -> Term:
    if not isinstance(node.expression, exp.Null | exp.Boolean):
        refuse("IS is followed by NULL, TRUE or FALSE", node)
    found = scope.term(node.this) if isinstance(node.expression, exp.Null) else scope.truth(node.this)
    return Term(f"({found.sql} IS {scope.term(node.expression).sql})", BOOLEAN)


def _in(scope: Scope, node: exp.Expression) -> Term:
    values = node.expressions
    if not values or node.args.get("query") or node.args.get("unnest"):
        refuse("IN is followed by a list of values", node)
    texts, _ = scope.together([node.this, *values])
    return Term(f"({texts[0]} IN ({', '.join(texts[1:])}))", BOOLEAN)


def _between(scope: Scope, node: exp.Expression) -> Term:
    if node.args.get("symmetric"):
        refuse("BETWEEN has a least value and a greatest one", node)
    texts = scope.compared([node.this, node.args["low"], node.args["high"]])
    return Term(f"({texts[0]} BETWEEN {texts[1]} AND {texts[2]})", BOOLEAN)


def _coalesce(scope: Scope, node: exp.Expression) -> Term:
    texts, found = scope.together([node.this, *node.expressions])
    return replace(found, sql=f"coalesce({', '.join(texts)})")


def _nullif(scope: Scope, node: exp.Expression) -> Term:
    first = scope.term(node.this)
    found = f"nullif({', '.join(scope.compared([node.this, node.expression]))})"
    return Term(
        found if first.type == NOTHING else f"CAST({found} AS {type_word(first.type)})", first.type, first.digits
    )


def _case(scope: Scope, node: exp.Expression) -> Term:
    branches = node.args["ifs"]
    default = node.args.get("default")
    values = [branch.args["true"] for branch in branches] + ([default] if default is not None else [])
    texts, found = scope.together(values)
    tests = []
    for branch in branches:
        if node.this is None:
            tests.append(scope.truth(branch.this).sql)
        else:
            tests.append(" = ".join(scope.compared([node.this, branch.this])))
    whens = " ".join(f"WHEN {test} THEN {text}" for test, text in zip(tests, texts, strict=False))
    other = f" ELSE {texts[-1]}" if default is not None else ""
    return replace(found, sql=f"CASE {whens}{other} END")


def _concat(scope: Scope, node: exp.Expression) -> Term:
    parts = [node.this, node.expression] if isinstance(node, exp.DPipe) else node.expressions
    terms = [scope.term(part) for part in parts]
    for part, term in zip(parts, terms, strict=True):
        if term.type not in (TEXT, NOTHING, UNKNOWN):
            refuse(f"a text is put together of texts, and this is {said(term.type)}: cast it", part)
    return Term("(" + " || ".join(term.sql for term in terms) + ")", TEXT)


def _length(scope: Scope, node: exp.Expression) -> Term:
    found = scope.term(node.this)
    if found.type not in (TEXT, UNKNOWN):
        refuse(f"length of {said(found.type)} is not among what views can compute", node)
    return Term(f"CAST(length({found.sql}) AS BIGINT)", INTEGER, INT_DIGITS)


def _like(scope: Scope, node: exp.Expression) -> Term:
    found, pattern = scope.term(node.this), node.expression
    if (
        found.type not in (TEXT, UNKNOWN)
        or not (isinstance(pattern, exp.Literal) and pattern.is_string)
        or "\\" in pattern.name
    ):
        refuse("LIKE compares a text with a pattern in quotes, without a backslash", node)
    word = "NOT LIKE" if node.args.get("negate") else "LIKE"
    return Term(f"({found.sql} {word} {scope.term(pattern).sql})", BOOLEAN)


def _cast(scope: Scope, node: exp.Expression) -> Term:
    found = casts.date_literal(node)
    return casts.cast(scope.term(node.this), node) if found is None else found


def _to_date(scope: Scope, node: exp.Expression) -> Term:
    if node.args.get("format"):
        refuse("to_date has no format", node)
    return casts.to_date(scope.term(node.this), node)


_READERS: dict[type[exp.Expression], Callable[[Scope, exp.Expression], Term]] = {
    exp.Literal: _literal,
    exp.Null: _null,
    exp.Boolean: _boolean,
    exp.Column: _column,
    exp.Paren: _paren,
    exp.Neg: _negative,
    exp.Abs: _absolute,
    exp.Not: _not,
    exp.And: _joined("AND"),
    exp.Or: _joined("OR"),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    exp.Case: _case,
    exp.Concat: _concat,
    exp.DPipe: _concat,
    exp.Length: _length,
    exp.Like: _like,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.TsOrDsToDate: _to_date,
}
