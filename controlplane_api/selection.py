"""Tables by a pattern of their names, of those that a source's cartography has.

A pattern is two globs, of the database's and of the table's name: `*` is any characters, `?` one, `[ab]` one of these,
`[*]` the sign itself. Case counts, as in all names. Pure but for the look at the cartography.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from menura.naming import TableName
from sqlalchemy import Connection, select

from controlplane_api.models import SourceTable, Sync


@dataclass(frozen=True, slots=True)
class Pattern:
    database: str = "*"
    table: str = "*"

    def matches(self, name: TableName) -> bool:
        """
        >>> Pattern("shop", "order*").matches(("shop", "orders")), Pattern("shop").matches(("shop2", "orders"))
        (True, False)
        """
        return fnmatchcase(name[0], self.database) and fnmatchcase(name[1], self.table)


def matching(connection: Connection, source_id: int, pattern: Pattern, *, synced: bool) -> list[TableName]:
    """Those that are there and not denied; `synced`: those that a sync was asked for, whatever became of them."""
    statement = (
        select(SourceTable.database, SourceTable.name)
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(SourceTable.source_id == source_id)
        .order_by(SourceTable.database, SourceTable.name)
    )
    there = (SourceTable.gone.is_(False), SourceTable.denied.is_(False))
    statement = statement.where(Sync.table_id.is_not(None)) if synced else statement.where(*there)
    names = [(row.database, row.name) for row in connection.execute(statement)]
    return [name for name in names if pattern.matches(name)]
