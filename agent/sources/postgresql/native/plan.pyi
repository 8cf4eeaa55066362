"""Types of a table's compiled form; the .pyx says how it works."""

from collections.abc import Sequence

from agent.columnar.table_rows import TableRows
from agent.sources.postgresql.columns import Column

class PlannedColumn:
    """How one column of a Relation message is read: `sent` False means that its values are stepped over.

    `identity`: an old tuple that is a key ('K') has its value.
    """

    column: Column
    sent: bool
    identity: bool

    def __init__(self, column: Column, sent: bool = True, identity: bool = False) -> None: ...

class TablePlan(TableRows):
    """Compiled once per version of a Relation; raises ValueError where it has more columns than any table."""

    columns: tuple[PlannedColumn, ...]

    def __init__(self, database: str, table: str, schema_id: str, columns: Sequence[PlannedColumn]) -> None: ...
    @property
    def is_keyed(self) -> bool: ...  # some column that is sent has a place in the key
