"""A SELECT's rows as Arrow columns, through the compiled core, in the form that row events give them.

Comes in: a connection of a dump's session (`statements.prepare`), a statement whose SELECT list is
`RowsPlan.expressions` and behind them the key's texts, and the plan. Goes out: batches of rows, and at the end how much
was read and the last row's key. The statement is prepared and executed by the binary protocol; PyMySQL makes the
connection, and its socket is read here. Nothing is durable; after any error, and when the caller leaves early, the
connection is closed, since what was not read would stand in the way of its next answer.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymysql
from menura.naming import dump_anew
from pymysql.connections import Connection
from pymysql.constants import CLIENT

from agent.columnar.encode import SnapshotRows
from agent.errors import (
    DefinitionMoved,
    ResultInvalid,
    SourceConnectionLost,
    TableError,
)
from agent.snapshot.failures import column_unsupported
from agent.sources.mysql.columns import Column, schema_id
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl import hidden
from agent.sources.mysql.ddl.derived import unsent
from agent.sources.mysql.ddl.model import ColumnDefinition, Table, TableDefinition
from agent.sources.mysql.native.results import (
    ResultError,
    ResultPlan,
    ResultReader,
    ResultReason,
    UnsupportedColumn,
)
from agent.sources.mysql.schema.table_planner import columns_of
from agent.sources.mysql.server.connection import READ_TIMEOUT_SECONDS, server_code, server_errors
from agent.sources.mysql.server.quoting import quoted_name
from agent.sources.mysql.snapshot.answers import Subject, subject_of
from agent.sources.mysql.snapshot.result_columns import (
    COUNTED_TYPES,
    ResultColumnInvalid,
    difference,
    is_selected_as_text,
    parse_result_column,
)
from agent.sources.mysql.types import Kind

DOING = "reading a table's rows"
UNREAD = "Nothing of it has come to the lake, and the table's changes go on"
#: of a batch of rows, before compression
BATCH_BYTES = 4 << 20
BATCH_ROWS = 65536

_COM_STMT_PREPARE = 0x16
_COM_STMT_EXECUTE = 0x17
_COM_STMT_CLOSE = 0x19
_CURSOR_TYPE_NO_CURSOR = 0
#: 1 zero   4 statement   2 columns   2 parameters   1 zero   2 warnings
_PREPARED = struct.Struct("<xIHH")


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a whole SELECT gave."""

    rows: int
    #: as they were received
    source_bytes: int
    #: the texts behind the table's columns, of the last row; empty without a row
    last_row: tuple[bytes | None, ...]


class RowsPlan:
    """How the rows of one definition are read; several threads may use it at once."""

    __slots__ = (
        "_config",
        "_idle",
        "_key_columns",
        "_known",
        "_mariadb",
        "columns",
        "expressions",
        "schema_id",
        "table",
        "verdict",
    )

    def __init__(
        self, config: MysqlConfig, table: Table, definition: TableDefinition, mariadb: bool, key_columns: int
    ) -> None:
        verdict = unsent(config.filter, table, definition)
        sent = [
            (column, defined)
            for column, defined in zip(columns_of(definition), definition.columns, strict=True)
            if not verdict.ignores(column.name) and not hidden.is_hash(defined)
        ]
        self.table = table
        self.verdict = verdict
        #: those that are sent, as the stream sends them
        self.columns: tuple[Column, ...] = tuple(column for column, _ in sent)
        self.schema_id = schema_id(self.columns)
        #: the SELECT list
        self.expressions: tuple[str, ...] = tuple(_expression(defined, mariadb) for _, defined in sent)
        self._config = config
        self._mariadb = mariadb
        self._key_columns = key_columns
        self._idle: list[ResultPlan] = []
        #: definitions in results that were equal to ours
        self._known: tuple[bytes, ...] = ()

    @property
    def config(self) -> MysqlConfig:
        return self._config

    def take(self) -> ResultPlan:
        """The compiled form, for one reader; raises `UnsupportedColumn`."""
        try:
            return self._idle.pop()
        except IndexError:
            return ResultPlan(*self.table, self.schema_id, self.columns, self._key_columns)

    def give_back(self, compiled: ResultPlan) -> None:
        self._idle.append(compiled)

    def check(self, packets: tuple[bytes, ...]) -> None:
        """Raises `DefinitionMoved` for a result of other columns, and `ResultColumnInvalid`."""
        if packets == self._known:
            return
        found = [parse_result_column(packet) for packet in packets]
        for column, shown in zip(self.columns, found, strict=False):
            differs = difference(column, shown, mariadb=self._mariadb)
            if differs:
                raise self.moved(f"column {column.name}, {differs}")
        if any(shown.type not in COUNTED_TYPES for shown in found[len(self.columns) :]):
            raise ResultColumnInvalid("a key's text that is no text in the result")
        self._known = packets

    def moved(self, found: str) -> DefinitionMoved:
        return DefinitionMoved(
            DOING,
            f"the table is not as its definition was read: {found}",
            data=UNREAD,
            remedy="It is read again with its new definition",
            source=self._config.name,
            database=self.table[0],
            table=self.table[1],
        )

    def invalid(self, found: str, column: str = "") -> ResultInvalid:
        return ResultInvalid(
            DOING,
            f"{f'column {column}: ' if column else ''}{found}",
            data=UNREAD,
            remedy=f"Correct the row on the server, or add the column to sources.{self._config.name}.filter."
            f"{'.'.join(self.table)}.ignored_columns and restart the agent; then run:"
            f" {dump_anew(self._config.name, *self.table)}",
            source=self._config.name,
            database=self.table[0],
            table=self.table[1],
        )

    def unsupported(self, found: str) -> TableError:
        return column_unsupported(self._config.name, self.table, found)


def plan_for(
    config: MysqlConfig, table: Table, definition: TableDefinition, *, mariadb: bool, key_columns: int = 0
) -> RowsPlan:
    """The plan of a table; `key_columns` texts of its key follow the table's columns in the SELECT list.

    Raises `TableColumnUnsupported`.
    """
    plan = RowsPlan(config, table, definition, mariadb, key_columns)
    try:
        plan.give_back(plan.take())
    except UnsupportedColumn as unsupported:
        raise plan.unsupported(str(unsupported)) from unsupported
    return plan


def _expression(column: ColumnDefinition, mariadb: bool) -> str:
    """What is selected for a column so that its value comes in a form that leaves nothing open."""
    name = quoted_name(column.name)
    if column.type.kind is Kind.YEAR and mariadb:
        return f"YEAR({name}) | 0"  # a YEAR(2) shows no century
    if column.type.kind in (Kind.YEAR, Kind.ENUM, Kind.SET) and not is_selected_as_text(column.type):
        return f"CAST({name} AS UNSIGNED) | 0"  # unsigned BIGINT on both servers
    return name


class RowsReading:
    """One SELECT that is being read: iterate once, then ask for the `result`."""

    def __init__(
        self,
        connection: "Connection[Any]",
        statement: str,
        plan: RowsPlan,
        batch_rows: int,
        received: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._statement = statement
        self._plan = plan
        self._batch_rows = batch_rows
        self._received = received
        self._bytes = 0
        self._result: ReadResult | None = None

    @property
    def result(self) -> ReadResult:
        if self._result is None:
            raise RuntimeError("the rows are not read to their end")
        return self._result

    def __iter__(self) -> Iterator[SnapshotRows]:
        """Raises `DefinitionMoved`, `ResultInvalid`, a `SourceError`, and what `received` raises."""
        config = self._plan.config
        try:
            with server_errors(DOING, config.client, config.name, "SELECT"), self._our_errors():
                yield from self._rows()
        finally:
            if self._result is None:
                self._connection._force_close()  # type: ignore[attr-defined]

    @contextmanager
    def _our_errors(self) -> Iterator[None]:
        try:
            yield
        except ResultError as invalid:
            raise self._plan.invalid(str(invalid), invalid.column) from invalid
        except ResultColumnInvalid as invalid:
            raise self._plan.invalid(str(invalid)) from invalid
        except UnsupportedColumn as unsupported:
            raise self._plan.unsupported(str(unsupported)) from unsupported
        except pymysql.err.MySQLError as failed:
            # its text may hold values
            found = f"the server answered with code {server_code(failed)}"
            match subject_of(failed):
                case Subject.DEFINITION:
                    raise self._plan.moved(found) from failed
                case Subject.ROWS:
                    raise self._plan.invalid(found) from failed
                case Subject.MOMENT:
                    raise

    def _rows(self) -> Iterator[SnapshotRows]:
        compiled = self._plan.take()
        reader = ResultReader(
            compiled,
            deprecate_eof=self._deprecates_eof(),
            batch_rows=self._batch_rows,
            most_batch_bytes=BATCH_BYTES,
        )
        statement_id = self._prepare()
        execution = struct.pack("<IBI", statement_id, _CURSOR_TYPE_NO_CURSOR, 1)
        self._connection._execute_command(_COM_STMT_EXECUTE, execution)  # type: ignore[attr-defined]
        reason = ResultReason.NEED_BYTES
        while reason is not ResultReason.END:
            reason = self._next(reader)
            count = reader.batch_row_count
            if count and reason in (ResultReason.BATCH_FULL, ResultReason.END):
                yield SnapshotRows(count, self._plan.schema_id, reader.take_rows())
        self._connection._execute_command(_COM_STMT_CLOSE, struct.pack("<I", statement_id))  # type: ignore[attr-defined]
        self._result = ReadResult(reader.rows, self._bytes, reader.last_row)
        del reader
        self._plan.give_back(compiled)

    def _prepare(self) -> int:
        """The statement's id on the server."""
        self._connection._execute_command(_COM_STMT_PREPARE, self._statement)  # type: ignore[attr-defined]
        answer = self._connection._read_packet().get_all_data()  # type: ignore[no-untyped-call]
        if len(answer) < _PREPARED.size:
            raise ResultColumnInvalid("an answer to a preparation that is too short")
        statement_id, columns, parameters = _PREPARED.unpack_from(answer)
        if parameters:
            raise ResultColumnInvalid("a statement with parameters")
        if columns:  # their definitions come again with the rows
            for _ in range(columns + (not self._deprecates_eof())):
                self._connection._read_packet()  # type: ignore[no-untyped-call]
        return int(statement_id)

    def _deprecates_eof(self) -> bool:
        flags = self._connection.client_flag & self._connection.server_capabilities  # type: ignore[attr-defined]
        return bool(flags & CLIENT.DEPRECATE_EOF)

    def _next(self, reader: ResultReader) -> ResultReason:
        """Up to a full batch or the end."""
        stream: socket.socket = self._connection._sock  # type: ignore[attr-defined]
        stream.settimeout(READ_TIMEOUT_SECONDS)
        while True:
            reason = reader.read()
            if reason is ResultReason.NEED_BYTES:
                self._receive(stream, reader)
            elif reason is ResultReason.DEFINED:
                self._plan.check(reader.definitions)
            elif reason is ResultReason.ERROR_PACKET:
                code, message = parse_error(reader.error_packet or b"")
                raise pymysql.err.OperationalError(code, message)
            else:
                return reason

    def _receive(self, stream: socket.socket, reader: ResultReader) -> None:
        try:
            size = stream.recv_into(reader.writable())
        except OSError as broken:
            raise self._lost(type(broken).__name__) from broken
        if not size:
            raise self._lost("the server closed it")
        reader.received(size)
        self._bytes += size
        self._received(size)

    def _lost(self, found: str) -> SourceConnectionLost:
        config = self._plan.config
        return SourceConnectionLost(
            DOING,
            f"the connection to {config.client.address} broke ({found})",
            data="Nothing is lost: what had not come is read again",
            source=config.name,
            database=self._plan.table[0],
            table=self._plan.table[1],
        )


def parse_error(packet: bytes) -> tuple[int, str]:
    """Code and text of an ERR packet.

    ::

        0xFF   2 code   "#"   5 state   text
    """
    return int.from_bytes(packet[1:3], "little"), packet[9:].decode("utf-8", "replace")


def read_rows(
    connection: "Connection[Any]",
    statement: str,
    plan: RowsPlan,
    batch_rows: int = BATCH_ROWS,
    received: Callable[[int], None] = lambda size: None,
) -> RowsReading:
    """Read a SELECT; `received` is told the size of each receive: it may wait, or raise to end the reading."""
    return RowsReading(connection, statement, plan, batch_rows, received)
