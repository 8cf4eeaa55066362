"""Types of what all decoders have in common; the .pyx says how it works."""

from agent.columnar.arrow import ArrowColumns
from agent.columnar.table_rows import TableRows

class TableBatch:
    """Rows of one table in one form."""

    plan: TableRows
    row_count: int
    first_gsn: int
    last_gsn: int
    is_partial: bool
    rows: ArrowColumns
    transactions: ArrowColumns

class RowCollector:
    """The collecting half of a decoder."""

    stop_at_transaction_end: bool
    stop_at_transaction_begin: bool

    @property
    def pending_rows(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    def take_batches(self) -> list[TableBatch]:
        """The rows so far, a batch per table and form; the decoder begins new ones."""
    @property
    def next_gsn(self) -> int: ...
    def take_gsn(self) -> int:
        """A row number for something that is no row; rows after it have higher ones."""
    @property
    def next_transaction_id(self) -> int: ...
    # counters since construction, and of the transactions since the last take_times()
    @property
    def rows(self) -> int: ...
    @property
    def transactions(self) -> int: ...
    def take_times(self) -> tuple[int, int, int]:
        """(transactions, first commit time, last commit time) finished since the last call, microseconds."""
