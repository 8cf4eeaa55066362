"""Names and texts in statements of our own, whatever characters they have."""

from agent.table_positions import Table


def quoted(name: str) -> str:
    """
    >>> print(quoted('odd "name" of a table'))
    "odd ""name"" of a table"
    """
    return '"' + name.replace('"', '""') + '"'


def quoted_table(table: Table) -> str:
    """With its schema.

    >>> quoted_table(("public", "orders"))
    '"public"."orders"'
    """
    return ".".join(quoted(name) for name in table)


def literal(text: str) -> str:
    """A text constant; our sessions have standard_conforming_strings on, so a backslash is a backslash.

    >>> print(literal("it's"))
    'it''s'
    """
    return "'" + text.replace("'", "''") + "'"
