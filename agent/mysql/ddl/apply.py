"""A logged statement's effect on a catalog: what tables look like afterwards, and what became of their rows.

Pure and total: whatever the text, it returns. What it can't be certain of it calls `Unsure`; it never guesses.
"""

from agent.mysql.ddl.model import Applied, Catalog, Server, Statement, Unsure


def apply(catalog: Catalog, statement: Statement, server: Server) -> Applied:
    """What the statement does; raises nothing.

    Tables that the statement concerns and that end as `Unsure` are None in the new catalog.
    """
    unsure = tuple(Unsure(table, f"{statement.text[:20]!r} can't be read") for table in catalog.tables)
    return Applied(Catalog(dict.fromkeys(catalog.tables), catalog.databases), (), unsure)
