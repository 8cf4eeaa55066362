"""Types of the compiled decoder; the .pyx says how it works."""

from enum import IntEnum

from agent.columnar.collector import RowCollector
from agent.columnar.collector import TableBatch as TableBatch
from agent.sources.postgresql.native.plan import PlannedColumn as PlannedColumn
from agent.sources.postgresql.native.plan import TablePlan as TablePlan

class Reason(IntEnum):
    """Why `PgoutputDecoder.decode` returned."""

    NEED_BYTES = 0  # everything received is decoded
    MESSAGE = 1  # `message` is one that Python handles: any that is no row, Begin or Commit
    BATCH_FULL = 2  # a table's buffer, or all together, reached the limit: take_batches; may be inside a transaction
    TRANSACTION_END = 3  # only with stop_at_transaction_end
    TRANSACTION_BEGIN = 4  # only with stop_at_transaction_begin
    KEEPALIVE = 5  # the server asks for an answer at once
    ERROR = 6  # the server's ErrorResponse: `error`
    END_OF_STREAM = 7  # the server has ended the copy

class DecodeError(Exception):
    """Bytes that can't be read. `kind` (the message's letter, '' for none), `lsn` (of its WAL data, 0: none),
    `relation_oid` (0: none) and `column` (its name, '' for none) say where.

    The decoder stands before the message; only a new decoder goes on after it. The text holds no value.
    """

    kind: str
    lsn: int
    relation_oid: int
    column: str

class Message:
    """A message of pgoutput that is handed over."""

    # "R" relation, "Y" type, "T" truncate, "O" origin, "M" logical message; or any letter that is not known
    kind: str
    body: bytes  # behind the letter
    lsn: int  # where its WAL data begin; 0: the server tells none, as of most relations

class PgoutputDecoder(RowCollector):
    """Bytes of the replication connection in, from CopyBothResponse on; column buffers out; knows no socket."""

    def __init__(
        self, *, next_gsn: int, next_transaction_id: int, batch_rows: int = 65536, pending_bytes: int = 16 << 20
    ) -> None: ...
    # receiving
    def writable(self) -> memoryview: ...  # free space, at least 64 KiB; invalid after the next call
    def received(self, size: int) -> None: ...
    def decode(self) -> Reason:
        """Decode what was received, up to the next thing that Python must decide; raises `DecodeError`."""
    # what decode() stopped at
    @property
    def message(self) -> Message: ...
    @property
    def error(self) -> dict[str, str]: ...  # fields of the ErrorResponse by letter: "C" SQLSTATE, "M" message, ...
    # tables
    def define(self, relation_oid: int, plan: TablePlan | None) -> None:
        """After a Relation message: how its rows are read; None steps over them.

        A Relation ends what was defined before for its table. Rows of one that is not defined raise `DecodeError`.
        """
    # transactions and position
    @property
    def in_transaction(self) -> bool: ...
    @property
    def transaction_xid(self) -> int: ...  # of the transaction that began last; 32 bits
    @property
    def transaction_lsn(self) -> int: ...  # likewise: where its commit record begins, as Begin says
    @property
    def transaction_first_gsn(self) -> int: ...  # of the current transaction; outside of one the next number
    @property
    def commit_timestamp_us(self) -> int: ...  # of the transaction that began last, microseconds since 1970
    @property
    def finished_lsn(self) -> int:
        """Behind all that is decoded: the end of the last finished transaction, or the WAL end of a keepalive that came
        outside of a transaction, whichever is later; 0: neither came."""
    @property
    def server_end_lsn(self) -> int: ...  # the newest WAL end that any message told
    def take_transactions(self) -> list[tuple[int, int, int]]:
        """Transactions finished since the last call, in order: xid, commit LSN, end LSN."""
    def drop_rows(self, first_gsn: int) -> bool:
        """Forget the rows from this number on, which is then the next.

        False where some of them were taken, or a number was: then nothing is changed.
        """
