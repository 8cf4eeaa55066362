"""Casts of a view's expressions: those that give what Spark SQL gives, with ANSI on, for all values that a type has.

Comes in: a term, and a part of sqlglot's tree. Goes out: a term, or a `ViewRefused` with the place. A cast that
rounds, that reads a text or that depends on a time zone is refused. A date's text has Spark's form, of ISO 8601: years
have four digits, + before those beyond 9999, - before those below 0, and the year before 0001 is 0000.
"""

import re
from datetime import date

from sqlglot import exp

from menura.types import MAX_DECIMAL128_PRECISION, decimal_digits
from menura.views.parsing import refuse, whole_number
from menura.views.terms import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LOCAL_TIME,
    TEXT,
    UNKNOWN,
    Term,
    said,
    type_word,
)

_TYPES = {
    exp.DataType.Type.BIGINT: INTEGER,
    exp.DataType.Type.DOUBLE: DOUBLE,
    exp.DataType.Type.TEXT: TEXT,
    exp.DataType.Type.VARCHAR: TEXT,
    exp.DataType.Type.DATE: DATE,
}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
#: what may become each
_FROM = {
    INTEGER: (INTEGER, BOOLEAN),
    DOUBLE: (DOUBLE, FLOAT, INTEGER),
    TEXT: (TEXT, INTEGER, DATE),
    DATE: (DATE, LOCAL_TIME),
}


def cast(found: Term, node: exp.Expression) -> Term:
    wanted: exp.DataType = node.args["to"]
    type_ = _decimal(found, wanted) or (_TYPES.get(wanted.this, "") if not wanted.expressions else "")
    if not type_ or (type_ in _FROM and found.type not in (UNKNOWN, *_FROM[type_])):
        refuse(f"a cast of {said(found.type)} to {wanted.sql(dialect='spark')} may round or fail", node)
    if (found.type, type_) == (DATE, TEXT):
        return Term(_date_text(found.sql), TEXT)
    return Term(f"CAST({found.sql} AS {type_word(type_)})", type_)


def _decimal(found: Term, wanted: exp.DataType) -> str:
    """The type, where it is a decimal that has all values of the former one."""
    if wanted.this != exp.DataType.Type.DECIMAL:
        return ""
    sizes = [whole_number(each.name, MAX_DECIMAL128_PRECISION) for each in wanted.expressions]
    precision, scale = [*sizes, *(10, 0)[len(sizes) :]][:2]
    if precision is None or scale is None:
        refuse(f"the digits of a DECIMAL are whole numbers up to {MAX_DECIMAL128_PRECISION}", wanted)
    type_, held = f"d:{precision},{scale}", found.operand
    is_known = decimal_digits(type_) is not None
    fits = held is not None and held[1] <= scale and held[0] - held[1] <= precision - scale
    return type_ if is_known and (fits or found.type == UNKNOWN) else ""


def to_date(found: Term, node: exp.Expression) -> Term:
    if found.type == DATE:
        return found
    if found.type not in (LOCAL_TIME, UNKNOWN):
        refuse(f"to_date of {said(found.type)} reads a text or depends on a time zone", node)
    return Term(f"CAST({found.sql} AS DATE)", DATE)


def date_literal(node: exp.Expression) -> Term | None:
    """A date that is written out; None: the cast is another one."""
    value, wanted = node.this, node.args["to"].this
    if not isinstance(value, exp.Literal) or not value.is_string or wanted != exp.DataType.Type.DATE:
        return None
    try:
        found = date.fromisoformat(value.name) if _DATE.fullmatch(value.name) else None
    except ValueError:
        found = None
    if found is None:
        refuse(f"the date {value.name[:50]!r} is not YYYY-MM-DD", value)
    return Term(f"DATE '{found}'", DATE)


def _date_text(value: str) -> str:
    sign = f"CASE WHEN year({value}) > 9999 THEN '+' WHEN year({value}) < 0 THEN '-' ELSE '' END"
    return f"({sign} || format('{{:04d}}-{{:02d}}-{{:02d}}', abs(year({value})), month({value}), day({value})))"
