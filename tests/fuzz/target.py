"""What is fuzzed: the decoder fed with a stream of packets, and the Python that handles what it hands over.

Comes in: packets without checksums. Goes out: what became of them: batches, or a typed error. Anything else is a
finding: another exception, a batch that is no valid Arrow data, an answer that depends on how the bytes were cut.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from agent.sources.mysql.ddl.model import Server
from agent.sources.mysql.ddl.session import statement_of
from agent.sources.mysql.ddl.statements import read as read_statement
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.events import EventBodyError, parse_format_description, parse_query, parse_rotate
from agent.sources.mysql.log.table_map import TableMapError, parse_table_map
from agent.sources.mysql.native.decoder import (
    BinlogDecoder,
    DecodeError,
    Reason,
    TableBatch,
    TablePlan,
    UnsupportedColumn,
)
from agent.sources.mysql.schema.column_types import FIXED_BINARY_BYTES, ColumnTypeUnknown, needs_definition
from agent.sources.mysql.types import ColumnType, Kind
from tests.agent.native.capture import Definitions, plan_of

#: what hostile bytes may lead to
TYPED = (DecodeError, EventBodyError, TableMapError, ColumnTypeUnknown, UnsupportedColumn)
_OLD_TEMPORALS = {
    binlog.MYSQL_TYPE_TIME: Kind.TIME,
    binlog.MYSQL_TYPE_DATETIME: Kind.DATETIME,
    binlog.MYSQL_TYPE_TIMESTAMP: Kind.TIMESTAMP,
}
MOST_PLANS = 4096
#: of events that are kept
KEPT_PART_BYTES = 512
_PREFIX = {False: b"MySQL\n", True: b"MariaDB\n"}

#: called with a decoder that was just fed: makes what lies behind the bytes unreadable, and afterwards readable
Guard = Callable[[BinlogDecoder], Callable[[], None]]


@dataclass
class Outcome:
    error: str = ""
    batches: list[TableBatch] = field(default_factory=list)
    rows: int = 0


class Target:
    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard
        self._plans: dict[tuple[bool, bytes], TablePlan | Exception] = {}

    def run(self, stream: bytes, *, mariadb: bool, at_once: bool = False) -> Outcome:
        """Feed packet by packet, so that a read beyond an event leaves what was received; or `at_once`."""
        decoder = BinlogDecoder(mariadb=mariadb, checksum=False, next_gsn=1, next_transaction_id=1)
        outcome = Outcome()

        def decode() -> bool:
            return self._decode(decoder, outcome, mariadb) is not Reason.NEED_BYTES

        _feed(decoder, stream, decode, outcome, at_once=at_once)
        # Also after an error: a plan's batch would else keep its rows for the next decoder.
        outcome.batches += decoder.take_batches()
        outcome.rows = decoder.rows
        return outcome

    def run_kept(self, stream: bytes, *, mariadb: bool) -> Outcome:
        """Keep the events first, in small parts, and decode them afterwards: as with a prepared XA transaction."""
        keeper = BinlogDecoder(
            mariadb=mariadb, checksum=False, next_gsn=1, next_transaction_id=1, pending_bytes=KEPT_PART_BYTES
        )
        keeper.keep_events = True
        outcome = Outcome()
        parts: list[bytes] = []

        def keep() -> bool:
            while (reason := self._reason(keeper)) is not Reason.NEED_BYTES:
                if reason is Reason.EVENT:
                    self._handle(keeper, mariadb)
                elif reason is Reason.BATCH_FULL:
                    parts.append(keeper.take_kept())
                else:
                    return True
            return False

        _feed(keeper, stream, keep, outcome)
        parts.append(keeper.take_kept())
        decoder = BinlogDecoder(mariadb=mariadb, checksum=False, next_gsn=1, next_transaction_id=1)
        try:
            for part in filter(None, parts):
                decoder.inject(part)
                reason = self._decode(decoder, outcome, mariadb)
                assert reason is Reason.INJECTED, reason
            decoder.transaction_finished()
        except TYPED as error:
            outcome.error = f"{type(error).__name__}: {error}"
        outcome.batches += decoder.take_batches()
        outcome.rows = decoder.rows
        return outcome

    def _reason(self, decoder: BinlogDecoder) -> Reason:
        unguard = self._guard(decoder) if self._guard else None
        try:
            return decoder.decode()
        finally:
            if unguard:
                unguard()

    def _decode(self, decoder: BinlogDecoder, outcome: Outcome, mariadb: bool) -> Reason:
        """Up to what neither rows nor events lead to."""
        while True:
            reason = self._reason(decoder)
            if reason is Reason.EVENT:
                self._handle(decoder, mariadb)
            elif reason is Reason.BATCH_FULL:
                outcome.batches += decoder.take_batches()
            else:
                return reason

    def _handle(self, decoder: BinlogDecoder, mariadb: bool) -> None:
        event = decoder.event
        if event.type == binlog.TABLE_MAP_EVENT:
            table_id = int.from_bytes(event.body[:6], "little")
            decoder.define_table(table_id, event.body, self._plan(event.body, mariadb))
        elif event.type in (binlog.QUERY_EVENT, binlog.EXECUTE_LOAD_QUERY_EVENT):
            query = parse_query(event.body, is_load=event.type == binlog.EXECUTE_LOAD_QUERY_EVENT)
            server = Server(mariadb, (11, 8, 0) if mariadb else (9, 7, 0))
            read_statement(statement_of(query, server), server)
            decoder.transaction_finished()
        elif event.type == binlog.FORMAT_DESCRIPTION_EVENT:
            parse_format_description(event.body)
            decoder.forget_tables()
        elif event.type == binlog.ROTATE_EVENT:
            decoder.set_file(parse_rotate(event.body).file)
            decoder.forget_tables()

    def _plan(self, body: bytes, mariadb: bool) -> TablePlan:
        """A real plan of the table map and an assumed definition; byte-equal maps share one, as in the agent."""
        key = (mariadb, body[6:])
        known = self._plans.get(key)
        if known is None:
            try:
                known = plan_of(body, mariadb=mariadb, defined=_assumed(body, mariadb))
            except TYPED as error:
                known = error
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = known
        if isinstance(known, Exception):
            raise known
        return known


def _feed(
    decoder: BinlogDecoder, stream: bytes, decode: Callable[[], bool], outcome: Outcome, *, at_once: bool = False
) -> None:
    """Until `decode` says that the stream has ended, or fails."""
    at = 0
    try:
        while at < len(stream):
            size = len(stream) - at
            if not at_once:
                size = min(size, 4 + int.from_bytes(stream[at : at + 3], "little"))
            space = decoder.writable()
            size = min(size, len(space))
            space[:size] = stream[at : at + size]
            decoder.received(size)
            at += size
            if decode():
                return
    except TYPED as error:
        outcome.error = f"{type(error).__name__}: {error}"


def _assumed(body: bytes, mariadb: bool) -> Definitions:
    """A definition for what the map leaves open; which one depends on the column's name alone."""
    mapped = parse_table_map(body, mariadb=mariadb)
    types: dict[str, ColumnType] = {}
    for column in mapped.columns:
        if column.name is None or not needs_definition(column, mariadb=mariadb):
            continue
        choice = sum(column.name.encode())
        if column.type in _OLD_TEMPORALS:
            types[column.name] = ColumnType(_OLD_TEMPORALS[column.type], precision=choice % 7)
        elif column.type == binlog.MYSQL_TYPE_DECIMAL:
            precision = choice % 65 + 1
            scale = min(precision, choice % 31)
            types[column.name] = ColumnType(
                Kind.DECIMAL, unsigned=bool(column.unsigned), precision=precision, scale=scale
            )
        else:
            fitting = [kind for kind, size in FIXED_BINARY_BYTES.items() if size == column.metadata]
            types[column.name] = ColumnType(fitting[choice % len(fitting)])
    return {mapped.table: types}


def check(target: Target, stream: bytes, outcome: Outcome, *, mariadb: bool) -> None:
    """The slower properties: valid Arrow data, and the same answer when all bytes come at once or events are kept."""
    tables = _tables(outcome)
    again = target.run(stream, mariadb=mariadb, at_once=True)
    assert (again.error, again.rows) == (outcome.error, outcome.rows), (again.error, outcome.error)
    for ours, theirs in zip(tables, _tables(again), strict=True):
        assert ours.equals(theirs) or _has_nan(ours), "the rows depend on how the bytes were cut"
    kept = target.run_kept(stream, mariadb=mariadb)
    _tables(kept)
    if not outcome.error:
        assert (kept.error, kept.rows) == ("", outcome.rows), (kept.error, kept.rows, outcome.rows)


def _tables(outcome: Outcome) -> list[pa.Table]:
    tables = []
    for batch in outcome.batches:
        part = pa.record_batch(batch.rows)
        part.validate(full=True)
        pa.record_batch(batch.transactions).validate(full=True)
        tables.append(pa.Table.from_batches([part]))
    return tables


def _has_nan(table: pa.Table) -> bool:
    return any(pa.types.is_floating(column.type) for column in table.schema)


def to_file(stream: bytes, *, mariadb: bool) -> bytes:
    return _PREFIX[mariadb] + stream


def from_file(path: Path) -> tuple[bytes, bool]:
    flavor, _, stream = path.read_bytes().partition(b"\n")
    return stream, flavor == b"MariaDB"
