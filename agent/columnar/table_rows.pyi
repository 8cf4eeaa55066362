"""Types of a table's collected rows; the .pyx says how they work."""

class TableRows:
    """The batch of one table's rows in one form; a source's own compiled form of the table is a subclass."""

    database: str
    table: str
    schema_id: str
    active: bool  # False: rows are stepped over, e.g. while the table is ahead of the stream

    @property
    def last_gsn(self) -> int: ...  # number of the last row; 0 before the first
