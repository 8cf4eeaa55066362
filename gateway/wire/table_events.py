"""From the events of a CutEnd to landed events; what an agent may say of a table's definition is bounded here.

Pure: messages in, values out. Every fault is a `StreamError`.
"""

import json
import re
from collections.abc import Collection
from dataclasses import asdict

from menura.change_batch import MAX_EVENTS_BYTES, MAX_STATEMENT_BYTES, MAX_TABLE_COLUMNS, is_reserved
from menura.landing import LandedColumn, LandedEvent
from menura.v1.mysql_binlog_pb2 import ColumnAfter, CutEnd, TableEvent

from gateway.errors import NOTHING_LOST, GatewayError, OutOfSequence, PayloadInvalid, TableNotDesired
from gateway.wire.translation import MAX_INT64, MAX_NAME_CHARS, MAX_TEXT_CHARS, table_name

#: of NUL, which PostgreSQL does not store
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: a tagged GTID or FILE:OFFSET
MAX_POSITION_CHARS = 1024
#: what `menura.types.arrow_format` can give, beside decimal128
_FORMATS = frozenset(("c", "C", "s", "S", "i", "I", "l", "L", "f", "g", "u", "z", "tdD", "tsu:", "tsu:UTC"))
_DECIMAL_FORMAT = re.compile(r"d:([1-9]|[12]\d|3[0-8]),(\d|[12]\d|3[0-8])")
_DUMP = re.compile(r"[0-9A-Za-z-]{0,64}")
_EARLIER_ROWS = {None: "", "is_null": "null", "text": "text", "is_unknown": "unknown"}


def landed_events(end: CutEnd, tables: Collection[tuple[str, str]], after_gsn: int) -> tuple[LandedEvent, ...]:
    """The events above `after_gsn`; those at or below it were committed before and are left out."""
    size_bytes = sum(event.ByteSize() for event in end.events)
    if size_bytes > MAX_EVENTS_BYTES:
        raise PayloadInvalid("reading a cut's events", f"{size_bytes} bytes, at most {MAX_EVENTS_BYTES} are allowed")
    events, before = [], 0
    for event in end.events:
        table = table_name(event.table)
        if table not in tables:
            raise _at(table, TableNotDesired("reading a cut's events", f"a table that is not among the {len(tables)}"))
        if not before < event.gsn <= end.last_gsn or not 0 <= event.transaction_id <= end.last_transaction_id:
            found = (
                f"row number {event.gsn} and transaction {event.transaction_id} after {before}, in a cut that ends at"
            )
            found += f" {end.last_gsn} and {end.last_transaction_id}"
            raise _at(table, OutOfSequence("reading a cut's events", found))
        before = event.gsn
        if event.gsn > after_gsn:
            events.append(_landed_event(table, event))
    return tuple(events)


def encoded_bytes(events: tuple[LandedEvent, ...]) -> int:
    """What the events take of a log entry."""
    return len(json.dumps([asdict(event) for event in events], ensure_ascii=False).encode()) if events else 0


def _landed_event(table: tuple[str, str], event: TableEvent) -> LandedEvent:
    known = TableEvent.Kind.DESCRIPTOR.values_by_number
    if event.kind == TableEvent.KIND_UNSPECIFIED or event.kind not in known:
        raise _invalid(table, f"an event of the unknown kind {event.kind}")
    if not 0 <= event.commit_timestamp_us <= MAX_INT64 or len(event.position) > MAX_POSITION_CHARS:
        raise _invalid(table, "an event at a time or position that no server has")
    if len(event.statement.encode()) > MAX_STATEMENT_BYTES:
        raise _invalid(table, f"a statement of more than {MAX_STATEMENT_BYTES} bytes")
    if event.HasField("new_name") and event.kind != TableEvent.RENAMED:  # the agent's filter may keep a new name back
        raise _invalid(table, "a new name of a table that is not renamed")
    _check_dump(table, event)
    return LandedEvent(
        *table,
        kind=known[event.kind].name,
        gsn=event.gsn,
        transaction_id=event.transaction_id,
        commit_timestamp_us=event.commit_timestamp_us,
        position=event.position.replace("\0", REPLACEMENT),
        statement=event.statement.replace("\0", REPLACEMENT),
        removes_rows=event.removes_rows,
        columns=_landed_columns(table, event),
        new_name=table_name(event.new_name) if event.HasField("new_name") else (),
        dump=event.dump,
        removes_rows_before_gsn=event.removes_rows_before_gsn,
    )


def _check_dump(table: tuple[str, str], event: TableEvent) -> None:
    if (event.kind in (TableEvent.DUMP_STARTED, TableEvent.DUMPED)) != bool(event.dump):
        raise _invalid(table, "a dump's event without a dump, or another one with a dump")
    if not _DUMP.fullmatch(event.dump):
        raise _invalid(table, "a dump that is no UUID")
    if event.kind == TableEvent.DUMPED:
        if event.removes_rows == bool(event.removes_rows_before_gsn):
            raise _invalid(table, "a dump's end that removes all rows and some, or none")
        if not 0 <= event.removes_rows_before_gsn <= event.gsn:
            raise _invalid(table, "a dump's end that removes rows after it")
    elif event.removes_rows_before_gsn or (event.dump and event.removes_rows):
        raise _invalid(table, "rows removed by an event that removes none")


def _landed_columns(table: tuple[str, str], event: TableEvent) -> tuple[LandedColumn, ...]:
    columns = event.columns
    if len(columns) > MAX_TABLE_COLUMNS or len({column.name for column in columns}) != len(columns):
        raise _invalid(table, f"{len(columns)} columns, each needs a name of its own")
    places = sorted(column.key for column in columns if column.key)
    if len(set(places)) != len(places):  # a part that the agent's filter keeps back leaves a gap
        raise _invalid(table, "a primary key with two columns at one place")
    return tuple(_landed_column(table, column) for column in columns)


def _landed_column(table: tuple[str, str], column: ColumnAfter) -> LandedColumn:
    for name in (column.name, column.renamed_from or column.name):
        if not 0 < len(name) <= MAX_NAME_CHARS or "\0" in name or is_reserved(name):
            raise _invalid(table, "a column with a reserved or impossible name")
    decimal = _DECIMAL_FORMAT.fullmatch(column.arrow_format)
    if column.arrow_format not in _FORMATS and (decimal is None or int(decimal[2]) > int(decimal[1])):
        raise _invalid(table, "a column of a type that no source type has")
    earlier = column.WhichOneof("earlier_rows")
    if len(column.source_type) > MAX_TEXT_CHARS or len(column.text) > MAX_TEXT_CHARS:
        raise _invalid(table, f"a column's type or earlier value of more than {MAX_TEXT_CHARS} characters")
    if earlier is not None and column.renamed_from:
        raise _invalid(table, "a column that is both added and renamed")
    return LandedColumn(
        name=column.name,
        source_type=column.source_type,
        arrow_format=column.arrow_format,
        key=column.key,
        renamed_from=column.renamed_from,
        earlier_rows=_EARLIER_ROWS[earlier],
        earlier_text=column.text,
    )


def _invalid(table: tuple[str, str], found: str) -> GatewayError:
    return _at(table, PayloadInvalid("reading a cut's events", found))


def _at(table: tuple[str, str], error: GatewayError) -> GatewayError:
    error.data = NOTHING_LOST
    error.database, error.table = table
    return error
