"""Types of the compiled decoder; the .pyx says how it works."""

from collections.abc import Sequence
from enum import IntEnum

from agent.columnar.arrow import ArrowColumns
from agent.sources.mysql.columns import Column

class Reason(IntEnum):
    """Why `BinlogDecoder.decode` returned."""

    NEED_BYTES = 0  # everything received is decoded
    # `event` is one that Python handles: any that is not a known table map, rows, BEGIN, COMMIT, XID or GTID. Of GTIDs
    # only MariaDB's that begins a prepared XA transaction, even where there was to be a TRANSACTION_BEGIN.
    EVENT = 1
    BATCH_FULL = 2  # a table's buffer, or all together, reached the limit: take_batches; may be inside a transaction
    TRANSACTION_END = 3  # only with stop_at_transaction_end
    TRANSACTION_BEGIN = 4  # only with stop_at_transaction_begin: `gtid` is that of the coming transaction
    ERROR_PACKET = 5  # the server's ERR packet: `error_packet`
    END_OF_STREAM = 6  # the server's EOF packet
    INJECTED = 7  # all events of `inject` are decoded

class DecodeError(Exception):
    """Bytes that can't be read. `event_type`, `log_pos`, `table_id` (-1: none), `column` (-1: none) say where.

    The decoder stands before the event; only a new decoder goes on after it. The message holds no value.
    """

    event_type: int
    log_pos: int
    table_id: int
    column: int

class AnnotationMissing(DecodeError):
    """Rows that can be read only beside the text of their statement, in a stream with `annotated`."""

class RowsMissing(DecodeError):
    """The table may have changed without a row event: by a foreign key's action, or through a MERGE table."""

class GeneratedMissing(DecodeError):
    """An update without the new values of generated columns: MariaDB leaves them out although they change.

    With binlog_row_image other than FULL; from 11.8.9 on always. Of a table that only table maps describe, `columns`
    has all that the update lacks.
    """

    columns: tuple[str, ...]

class Event:
    type: int
    timestamp: int
    server_id: int
    # Position of the next event, as in the header; for an event inside of another one that of the outer one;
    # 0 inside a transaction of MariaDB from 11.7 on.
    log_pos: int
    flags: int
    body: bytes  # without header and checksum

class PlannedColumn:
    """How one column of a TABLE_MAP is read: `sent` False means that its bytes are stepped over.

    `binlog_type` and `metadata` are those of agent.sources.mysql.log.table_map.MappedColumn.
    """

    column: Column
    binlog_type: int
    metadata: int
    sent: bool
    computed: bool  # may be a generated column: MariaDB leaves those out of partial images although they changed

    def __init__(self, column: Column, binlog_type: int, metadata: int, sent: bool, computed: bool = False) -> None: ...

class TablePlan:
    """Compiled once per TABLE_MAP version; raises UnsupportedColumn for a type that it can't decode, and for a column
    whose definition and metadata in the log contradict each other."""

    def __init__(self, database: str, table: str, schema_id: str, columns: Sequence[PlannedColumn]) -> None: ...
    database: str
    table: str
    schema_id: str
    @property
    def last_gsn(self) -> int: ...  # number of the last row; 0 before the first
    active: bool  # False: rows are stepped over, e.g. while the table is ahead of the stream
    def follow(self, deletes: bool, updates: bool, itself: bool, tells: bool = False) -> None:
        """What lets a foreign key's action change its rows, which the server does not log: a row of another table
        that is deleted, or updated, or one of its own that is deleted. A statement that announces the table and has
        such rows, or none of the table, raises RowsMissing; with `tells`, `take_missing` says so."""
    def take_missing(self) -> bool:
        """Whether there was such a statement since the last call."""

class FollowedTable:
    """A table that others follow by foreign keys without being announced beside it."""

    def take_changes(self) -> tuple[bool, bool]:
        """Whether rows of it were deleted, and updated, since the last call; those of foreign_key_checks=0 left out."""
    def stop_at(self, deletes: bool, updates: bool) -> None:
        """Such a change of its rows raises RowsMissing with its table id from here on."""

class UnsupportedColumn(Exception):
    column: str  # its name; '' for the table as a whole

class TableBatch:
    """Rows of one plan."""

    plan: TablePlan
    row_count: int
    first_gsn: int
    last_gsn: int
    is_partial: bool
    rows: ArrowColumns
    transactions: ArrowColumns

class BinlogDecoder:
    """Bytes of the replication connection in, column buffers out; knows no socket."""

    stop_at_transaction_end: bool
    stop_at_transaction_begin: bool
    annotated: bool  # MariaDB was asked for the text of statements; else rows that need it raise AnnotationMissing
    checksum: bool  # CRC32 at the end of each event; Python sets it from FORMAT_DESCRIPTION

    def __init__(
        self,
        *,
        mariadb: bool,
        checksum: bool,
        next_gsn: int,
        next_transaction_id: int,
        batch_rows: int = 65536,
        pending_bytes: int = 16 << 20,
    ) -> None: ...
    # receiving
    def writable(self) -> memoryview: ...  # free space, at least 64 KiB; invalid after the next call
    def received(self, size: int) -> None: ...
    def decode(self) -> Reason: ...
    # what decode() stopped at
    @property
    def event(self) -> Event: ...
    @property
    def error_packet(self) -> tuple[int, str, str]: ...  # code, sqlstate, message
    # events that are decoded later, e.g. those of a prepared XA transaction
    keep_events: bool
    """While true, table maps, rows events and their annotations are not decoded but kept, also inside of others.

    All other events are treated as ever. Each is kept whole, with its header and without a checksum. BATCH_FULL is
    returned before the kept bytes would exceed the constructor's `pending_bytes`: take_kept then. An event larger than
    that is kept alone.
    """
    @property
    def kept_bytes(self) -> int: ...
    def take_kept(self) -> bytes:
        """The events that were kept since the last call, as `inject` takes them."""
    def inject(self, events: bytes) -> None:
        """Decode these events, whole ones without checksums, before anything further of the stream.

        Their rows belong to the transaction that is announced or open; where there is none (no GTIDs), the event at
        hand begins one. All Reasons may come in between; unknown table maps are returned as events, as ever. When all
        are decoded, `decode` returns INJECTED once: only then inject more, or call transaction_finished. A position
        that a transaction's end leads to is that of the event at hand. A statement may go on in what is injected next.
        ValueError: the events before are not yet decoded.
        """
    # tables
    def define_table(
        self, table_id: int, table_map_body: bytes, plan: TablePlan | None, followed: FollowedTable | None = None
    ) -> None:
        """After a TABLE_MAP event: how its rows are read; None steps over them. `followed`: notes how they change.

        A byte-equal TABLE_MAP is then not returned again.
        """
    def forget_tables(self) -> None:
        """After a FORMAT_DESCRIPTION of a new server run or a real ROTATE: ids may be used anew."""
    # position
    def set_file(self, name: str) -> None: ...  # for _position where there is no GTID
    @property
    def gtid(self) -> str: ...  # of the current or coming transaction, '' for none
    @property
    def transaction_position(self) -> str: ...  # of the current or coming transaction as in _position, '' for none
    @property
    def commit_timestamp_us(self) -> int: ...  # of the transaction that began last
    @property
    def finished_statement_timestamp(self) -> int:
        """When the last statement of the last finished transaction that has a GTID began, in seconds since the epoch;
        0: it has none. The log of each replica that applied it says the same."""
    @property
    def in_transaction(self) -> bool: ...
    @property
    def transaction_end_offset(
        self,
    ) -> int: ...  # log_pos after the last finished transaction (or other position-moving event)
    def transaction_finished(self) -> None:
        """Python handled the event that is a whole transaction (e.g. a DDL's QUERY): number it and move the position.

        Ignored after BEGIN or a MariaDB GTID that stands for one: such a transaction ends with its XID or COMMIT.
        """
    def transaction_rolled_back(self) -> None:
        """Python handled the event that ends the open transaction; its rows are as they were, see `drop_rows`."""
    def transaction_abandoned(self) -> None:
        """The open transaction has no end in the log: it is not numbered, and the position does not move."""
    @property
    def transaction_begin_offset(self) -> int: ...  # of the current transaction's first event
    @property
    def transaction_first_gsn(self) -> int: ...  # of the current transaction
    def drop_rows(self, first_gsn: int) -> bool:
        """Forget the rows from this number on, which is then the next.

        False where some of them were taken, or a number was: then nothing is changed.
        """
    def take_gtids(self) -> list[tuple[str, int, int]]:
        """Runs of finished transactions since the last call.

        MySQL (uuid[:tag], first, last); MariaDB ('domain-server', first, last).
        """
    # batches
    @property
    def pending_rows(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    def take_batches(self) -> list[TableBatch]: ...
    @property
    def next_gsn(self) -> int: ...
    def take_gsn(self) -> int:
        """A row number for something that is no row; rows after it have higher ones."""
    def take_unchecked(self) -> list[tuple[str, str, int, int]]:
        """Updates and deletes that were made with foreign_key_checks=0, since the last call: database, table, number of
        the first row, and a number of its own above the last; other such rows of the table are not between."""
    @property
    def next_transaction_id(self) -> int: ...
    # counters since construction, and of the transactions since the last take_times()
    @property
    def rows(self) -> int: ...
    @property
    def transactions(self) -> int: ...
    def take_times(self) -> tuple[int, int, int]:
        """(transactions, first commit time, last commit time) finished since the last call, microseconds."""
