"""A SELECT's rows as Arrow columns, through the compiled core, in the form that the stream gives them.

Comes in: a session in a transaction, a statement whose SELECT list is the plan's columns and behind them the key's, and
the plan. Goes out: batches of rows, and at the end how much was read and the last row's key. Nothing is durable; after
an error in the connection, and when the caller leaves early, the session is closed, since what was not read would stand
in the way of its next answer.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from menura.naming import dump_anew
from pg8000.exceptions import DatabaseError

from agent.columnar.encode import SnapshotRows
from agent.errors import DefinitionMoved, ResultInvalid, SourceConnectionLost
from agent.snapshot.reader import BoundInvalid
from agent.sources.postgresql.columns import Column, schema_id
from agent.sources.postgresql.native.results import ResultError, ResultReason, RowsDecoder, RowsPlan
from agent.sources.postgresql.server.connection import server_error
from agent.sources.postgresql.server.wire import Wire
from agent.sources.postgresql.snapshot.answers import Subject, subject_of
from agent.sources.postgresql.snapshot.session import Session
from agent.table_positions import Table

DOING = "reading a table's rows"
UNREAD = "Nothing of it has come to the lake, and the table's changes go on"
#: of a batch of rows, before compression
BATCH_BYTES = 4 << 20
BATCH_ROWS = 16_384
#: for which a server may look for the next row and say nothing; one that is gone is known by its connection
READ_TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a whole SELECT gave."""

    rows: int
    #: as they were received
    source_bytes: int
    #: the texts of the key, of the last row; empty without a row
    last_key: tuple[bytes, ...]


class TablePlan:
    """How the rows of one definition are read."""

    def __init__(self, source: str, table: Table, columns: tuple[Column, ...], key_columns: int) -> None:
        """Raises ValueError for a table without columns."""
        self.source = source
        self.table = table
        self.columns = columns
        self.schema_id = schema_id(columns)
        if not columns:
            raise ValueError("it has no columns that are sent")
        self._key_columns = key_columns
        self._idle = [RowsPlan(columns, key_columns)]

    def take(self) -> RowsPlan:
        """The compiled form, for one decoder."""
        return self._idle.pop() if self._idle else RowsPlan(self.columns, self._key_columns)

    def give_back(self, compiled: RowsPlan) -> None:
        self._idle.append(compiled)

    def moved(self, found: str) -> DefinitionMoved:
        return definition_moved(self.source, self.table, found)

    def invalid(self, found: str, column: str = "") -> ResultInvalid:
        name = ".".join(self.table)
        return ResultInvalid(
            DOING,
            f"{f'column {column}: ' if column else ''}{found}",
            data=UNREAD,
            remedy=f"Correct the row on the server, or add the column to sources.{self.source}.filter."
            f"{name}.ignored_columns and restart the agent; then run: {dump_anew(self.source, *self.table)}",
            source=self.source,
            database=self.table[0],
            table=self.table[1],
        )


def definition_moved(source: str, table: Table, found: str) -> DefinitionMoved:
    return DefinitionMoved(
        DOING,
        f"the table is not as its definition was read: {found}",
        data=UNREAD,
        remedy="It is read again with its new definition",
        source=source,
        database=table[0],
        table=table[1],
    )


class RowsReading:
    """One SELECT that is being read: iterate once, then ask for the `result`."""

    def __init__(
        self,
        session: Session,
        statement: str,
        plan: TablePlan,
        received: Callable[[int], None],
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        """`received` is told the size of each receive: it may wait, or raise to end the reading."""
        self._session = session
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
        """Raises `BoundInvalid`, `DefinitionMoved`, `ResultInvalid`, a `SourceError`, and what `received` raises."""
        compiled = self._plan.take()
        decoder = RowsDecoder(compiled, batch_rows=self._batch_rows, most_batch_bytes=BATCH_BYTES)
        with self._session.lent() as wire:
            failed = yield from self._rows(wire, decoder)
            wire.finished()
        if failed:
            raise self._judged(failed, decoder.rows)
        self._result = ReadResult(decoder.rows, self._bytes, decoder.last_key or ())
        del decoder
        self._plan.give_back(compiled)

    def _rows(self, wire: Wire, decoder: RowsDecoder) -> Generator[SnapshotRows, None, dict[str, str]]:
        """Ends with the fields of the server's error; empty: there was none."""
        failed: dict[str, str] = {}
        try:
            wire.query(self._statement)
        except OSError as broken:
            raise self._lost(type(broken).__name__) from broken
        while True:
            try:
                reason = decoder.decode()
            except ResultError as invalid:
                raise self._plan.invalid(str(invalid), invalid.column) from invalid
            if reason is ResultReason.NEED_BYTES:
                self._receive(wire, decoder, failed)
                continue
            if reason is ResultReason.ERROR:
                failed = decoder.error
                continue
            count, columns = decoder.take_rows()
            if count and not failed:
                yield SnapshotRows(count, self._plan.schema_id, columns)
            if reason is ResultReason.COMPLETE:
                return failed

    def _receive(self, wire: Wire, decoder: RowsDecoder, failed: dict[str, str]) -> None:
        try:
            size = wire.receive_into(decoder.writable(), READ_TIMEOUT_SECONDS)
        except OSError as broken:
            raise self._lost(type(broken).__name__) from broken
        if not size:
            raise self._judged(failed, decoder.rows) if failed else self._lost("the server closed it")
        decoder.received(size)
        self._bytes += size
        self._received(size)

    def _judged(self, fields: dict[str, str], rows: int) -> Exception:
        """The server's answer; its text may hold values."""
        state = fields.get("C", "")
        found = f"the server answered with SQLSTATE {state}"
        subject = subject_of(state)
        if subject is Subject.BOUND and not rows:
            return BoundInvalid(found)
        if subject is Subject.DEFINITION:
            return self._plan.moved(found)
        if subject is Subject.MOMENT:
            return server_error(DatabaseError(fields), DOING, self._session.server, self._plan.source)
        return self._plan.invalid(found)

    def _lost(self, found: str) -> SourceConnectionLost:
        return SourceConnectionLost(
            DOING,
            f"the connection to {self._session.server.address} broke ({found})",
            data="Nothing is lost: what had not come is read again",
            source=self._plan.source,
            database=self._plan.table[0],
            table=self._plan.table[1],
        )
