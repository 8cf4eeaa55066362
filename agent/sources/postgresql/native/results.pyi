"""Types of the compiled reader of SELECTs; the .pyx says how it works."""

from collections.abc import Sequence
from enum import IntEnum

from agent.columnar.arrow import ArrowColumns
from agent.columnar.selected_rows import SelectedRows
from agent.sources.postgresql.columns import Column

class ResultReason(IntEnum):
    """Why `RowsDecoder.decode` returned."""

    NEED_BYTES = 0  # everything received is read
    BATCH_FULL = 1  # take_rows
    ERROR = 2  # the server's ErrorResponse: `error`; the statement's end (COMPLETE) still comes
    COMPLETE = 3  # ReadyForQuery: the connection takes another statement; `take_rows` has the last rows

class ResultError(Exception):
    """Bytes that can't be read; `column` is the table's, '' where it is none. The message holds no value."""

    column: str

class RowsPlan:
    """The columns of a SELECT, and the batch that its rows are collected in: of one decoder at a time.

    The statement selects `columns` in order and behind them `key_count` texts, of which only the last row's are kept.
    """

    columns: tuple[Column, ...]
    key_count: int

    def __init__(self, columns: Sequence[Column], key_count: int = 0) -> None: ...

class RowsDecoder(SelectedRows):
    """Reads the answer to one Query message.

    A batch is full with `batch_rows` rows or about `most_batch_bytes` bytes; a larger row is a batch of its own.
    """

    plan: RowsPlan
    source_bytes: int  # of the messages that held them

    def __init__(self, plan: RowsPlan, *, batch_rows: int = 65536, most_batch_bytes: int = 16 << 20) -> None: ...
    def writable(self) -> memoryview: ...  # free space, at least 64 KiB; invalid after the next call
    def received(self, size: int) -> None: ...
    def decode(self) -> ResultReason:
        """Read what was received, up to the next thing that Python must decide; raises `ResultError`."""
    @property
    def error(self) -> dict[str, str]: ...  # fields of the ErrorResponse by letter: "C" SQLSTATE, "M" message, ...
    @property
    def last_key(self) -> tuple[bytes, ...] | None: ...  # the key texts of the last row; None before the first
    def take_rows(self) -> tuple[int, ArrowColumns]:
        """How many the rows so far are, and these: the columns, _unrepresentable; the decoder begins a new batch."""
