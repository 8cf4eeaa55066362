"""Types of the compiled reader of result sets; the .pyx says how it works."""

from collections.abc import Iterable
from enum import IntEnum

from agent.columnar.arrow import ArrowColumns
from agent.columnar.selected_rows import SelectedRows
from agent.sources.mysql.columns import Column
from agent.sources.mysql.native.decoder import UnsupportedColumn as UnsupportedColumn

class ResultReason(IntEnum):
    """Why `ResultReader.read` returned."""

    NEED_BYTES = 0  # everything received is read
    DEFINED = 1  # `definitions` are there, and no row yet
    BATCH_FULL = 2  # take_rows
    END = 3  # all rows are read; `take_rows` has the last ones
    ERROR_PACKET = 4  # the server's ERR packet: `error_packet`

class ResultError(Exception):
    """Bytes that can't be read; `column` is the table's, '' where it is none. The message holds no value."""

    column: str

class ResultPlan:
    """Compiled columns of a SELECT, and the batch that its rows are collected in: of one reader at a time."""

    database: str
    table: str
    schema_id: str
    bound_columns: int

    def __init__(
        self, database: str, table: str, schema_id: str, columns: Iterable[Column], bound_columns: int = 0
    ) -> None:
        """`columns` as in the SELECT list; behind them `bound_columns` texts, of which the last row's are kept.

        A YEAR, an ENUM and a SET come as BIGINT, but for those that `is_selected_as_text`. Raises `UnsupportedColumn`.
        """

class ResultReader(SelectedRows):
    """Reads the answer to one COM_STMT_EXECUTE; appends to the plan's batch.

    `deprecate_eof`: the connection has CLIENT_DEPRECATE_EOF. A batch is full with `batch_rows` rows or about
    `most_batch_bytes` bytes; a row that is larger is a batch of its own.
    """

    plan: ResultPlan
    definitions: tuple[bytes, ...]  # of the columns: the packets' payloads
    error_packet: bytes | None  # its payload
    last_row: tuple[bytes | None, ...]  # the bound columns of the last row that was read; before the first: ()

    def __init__(self, plan: ResultPlan, *, deprecate_eof: bool, batch_rows: int, most_batch_bytes: int) -> None: ...
    def writable(self) -> memoryview:
        """Free space, at least 64 KiB, that is invalid after the next call; raises `ResultError`."""

    def received(self, size: int) -> None:
        """So many bytes were written into `writable()`."""

    def read(self) -> ResultReason:
        """Read what was received, up to the next thing that Python must decide; raises `ResultError`."""

    def take_rows(self) -> ArrowColumns:
        """The rows so far: the table's columns, _unrepresentable; the reader begins a new batch."""
