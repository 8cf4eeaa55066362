"""Names of tables and columns in statements of our own, whatever characters they have."""

from agent.sources.mysql.ddl.model import Table


def quoted_name(name: str) -> str:
    """
    >>> quoted_name("odd `name`")
    '`odd ``name```'
    """
    return "`" + name.replace("`", "``") + "`"


def quoted(table: Table) -> str:
    """With its database.

    >>> quoted(("shop", "orders"))
    '`shop`.`orders`'
    """
    return ".".join(quoted_name(name) for name in table)
