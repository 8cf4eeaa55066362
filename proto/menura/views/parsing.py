"""A view's text as a SELECT of which each clause is one that views have, in Spark SQL's syntax.

Comes in: a text from a user. Goes out: sqlglot's tree, bounded in size and depth, or a `ViewRefused` with the place.
"""

from typing import NoReturn

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from menura.naming import is_identity
from menura.views.definition import MOST_SQL_BYTES, InputName, ViewRefused, is_view_name
from menura.views.tokens import tokens_of

MOST_TABLES = 8
MOST_COLUMNS = 256
MOST_NODES = 4000
MOST_DEPTH = 64
#: parentheses and keywords of nesting that a text may have before it is parsed at all
_NESTING = ("(", "case")

_CLAUSES = {"expressions", "from", "from_", "joins", "where", "group"}
_SAID = {
    "with": "WITH",
    "with_": "WITH",
    "order": "ORDER BY: a table has no order; order it where it is read",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "having": "HAVING: make a second view on this one, with WHERE",
    "distinct": "DISTINCT: use GROUP BY",
    "windows": "WINDOW",
    "qualify": "QUALIFY",
    "laterals": "LATERAL VIEW",
}


def refuse(found: str, node: exp.Expression | None = None, remedy: str = "", *, lacks_column: bool = False) -> NoReturn:
    line, column = _place(node) if node is not None else (0, 0)
    raise ViewRefused(found, line=line, column=column, remedy=remedy, lacks_column=lacks_column)


def _place(node: exp.Expression) -> tuple[int, int]:
    for each in node.walk():
        if "line" in each.meta:
            begins = int(each.meta["col"]) - (int(each.meta["end"]) - int(each.meta["start"]))
            return int(each.meta["line"]), max(1, begins)
    return 0, 0


def parse(sql: str) -> exp.Select:
    """Raises `ViewRefused`."""
    select = read_tree(sql)
    if not isinstance(select, exp.Select):
        refuse("a view is one SELECT")
    for clause, value in select.args.items():
        if value and clause not in _CLAUSES:
            refuse(
                f"a view has no {_SAID.get(clause, clause.upper().strip('_'))}",
                value if isinstance(value, exp.Expression) else None,
            )
    return select


def read_tree(sql: str) -> exp.Expression:
    """What one text says, bounded. Raises `ViewRefused`."""
    if len(sql.encode()) > MOST_SQL_BYTES:
        refuse(f"the text has more than {MOST_SQL_BYTES} bytes")
    if sum(sql.lower().count(word) for word in _NESTING) > MOST_DEPTH * 4 or _deepest(sql) > MOST_DEPTH:
        refuse("the text is nested too deeply")
    try:
        found = Dialect.get_or_raise("spark").parser().parse(tokens_of(sql), sql)
    except SqlglotError as wrong:
        errors = getattr(wrong, "errors", None) or [{}]
        what = str(errors[0].get("description") or "it can't be read as SQL").split("\n")[0][:200]
        raise ViewRefused(what, line=errors[0].get("line") or 0, column=errors[0].get("col") or 0) from wrong
    except (RecursionError, ValueError) as wrong:
        raise ViewRefused("the text can't be read as SQL") from wrong
    tree = found[0] if len(found) == 1 else None
    if not isinstance(tree, exp.Expression):
        refuse("a view is one SELECT")
    if sum(1 for _ in tree.walk()) > MOST_NODES:
        refuse(f"the text has more than {MOST_NODES} parts")
    return tree


def whole_number(text: str, most: int) -> int | None:
    """A number in digits alone, and no more than `most`: Python itself refuses to read very many digits.

    >>> whole_number("007", 7), whole_number("8", 7), whole_number("9" * 5_000, 7), whole_number("7L", 7)
    (7, None, None, None)
    """
    digits = text.lstrip("0") or text[-1:]
    is_short = text.isascii() and text.isdecimal() and len(digits) <= len(str(most))
    return int(digits) if is_short and int(digits) <= most else None


def _deepest(sql: str) -> int:
    depth = deepest = 0
    for sign in sql:
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    return deepest


def is_place(node: exp.Expression) -> bool:
    """Whether Spark SQL takes a part of ORDER BY or GROUP BY for a column's place: it looks for no parentheses."""
    while isinstance(node, exp.Paren | exp.Neg):
        node = node.this
    return isinstance(node, exp.Literal)


def from_table(select: exp.Select) -> exp.Table:
    found = select.args.get("from_") or select.args.get("from")
    if found is None:
        refuse("a view reads a table: there is no FROM")
    return table_of(found.this)


def table_of(node: exp.Expression) -> exp.Table:
    if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
        refuse("a view reads tables and views by name alone, e.g. no sub-query", node)
    for clause, value in node.args.items():
        if value and clause not in ("this", "db", "catalog", "alias"):
            refuse(f"a table of a view has no {clause.upper()}", node)
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        refuse("an alias renames no columns", node)
    return node


def input_name(table: exp.Table) -> InputName:
    parts = [part.name for part in table.parts]
    if len(parts) == 1 and is_view_name(parts[0]):
        return InputName.of_view(parts[0])
    if len(parts) == 3 and is_identity(parts[0]):
        return InputName(*parts)
    refuse("a table is named SOURCE.DATABASE.TABLE, a view by its name", table)


def tables_of(select: exp.Select) -> list[exp.Table]:
    """The driving one first."""
    found = [from_table(select), *(table_of(join.this) for join in select.args.get("joins") or ())]
    if len(found) > MOST_TABLES:
        refuse(f"a view reads at most {MOST_TABLES} tables", found[MOST_TABLES])
    return found
