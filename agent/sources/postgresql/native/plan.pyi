"""Types of a table's compiled form; the .pyx says how it works."""

from collections.abc import Sequence

from agent.sources.postgresql.columns import Column

class PlannedColumn:
    """How one column of a Relation message is read: `sent` False means that its values are stepped over.

    `identity`: an old tuple that is a key ('K') has its value.
    """

    column: Column
    sent: bool
    identity: bool

    def __init__(self, column: Column, sent: bool = True, identity: bool = False) -> None: ...

class TablePlan:
    """Compiled once per version of a Relation; raises ValueError where it has no columns, or more than any table."""

    database: str
    table: str
    schema_id: str
    columns: tuple[PlannedColumn, ...]
    active: bool  # False: rows are stepped over, e.g. while the table is ahead of the stream

    def __init__(self, database: str, table: str, schema_id: str, columns: Sequence[PlannedColumn]) -> None: ...
    @property
    def last_gsn(self) -> int: ...  # number of the last row; 0 before the first
    @property
    def is_keyed(self) -> bool: ...  # some column has a place in the key
