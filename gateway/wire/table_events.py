"""From the events of a CutEnd to landed events; what an agent may say of a table's definition is bounded here.

Pure: messages in, values out. Every fault is a `StreamError`.
"""

import re
from collections.abc import Collection

from menura.bounds import MAX_INT64, MAX_KEY_COLUMNS, MAX_NAME_CHARS, MAX_TEXT_CHARS, clean_text
from menura.change_batch import MAX_EVENTS_BYTES, MAX_STATEMENT_BYTES, MAX_TABLE_COLUMNS
from menura.key_values import is_kind, read
from menura.landing import KeyNumbers, LandedColumn, LandedEvent, LandedForeignKey, LandedRepair
from menura.naming import TableName
from menura.row_versions import ROW_END_FORMATS
from menura.text_comparison import TextComparison
from menura.types import ARROW_TYPES, decimal_digits
from menura.v1 import changes_pb2 as wire
from menura.v1.changes_pb2 import ColumnAfter, CutEnd, ForeignKey, TableEvent

from gateway.errors import NOTHING_LOST, GatewayError, OutOfSequence, PayloadInvalid, TableNotDesired
from gateway.wire.translation import table_name

#: of one transaction
MAX_POSITION_CHARS = 1024
MAX_UNLOGGED_CHARS = 4096
#: the server's own limit is 64, or none
MAX_FOREIGN_KEYS = 1000
_ACTIONS = {ForeignKey.NONE: "", ForeignKey.CASCADE: "cascade", ForeignKey.SET_NULL: "set_null"}
_DUMP = re.compile(r"[0-9A-Za-z-]{0,64}")
_EARLIER_ROWS = {
    None: "",
    "is_null": "null",
    "text": "literal",
    "unrepresentable": "unrepresentable",
    "is_unknown": "unknown",
}


def landed_events(end: CutEnd, tables: Collection[TableName], after_gsn: int) -> tuple[LandedEvent, ...]:
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


_OF_DUMPS = (
    TableEvent.DUMP_STARTED, TableEvent.DUMPED, TableEvent.VERIFICATION_STARTED, TableEvent.VERIFIED,
    TableEvent.REPAIR_STARTED, TableEvent.REPAIRED,
)  # fmt: skip


def _landed_event(table: TableName, event: TableEvent) -> LandedEvent:
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
    _check_unlogged(table, event)
    _check_keys(table, event)
    return LandedEvent(
        *table,
        kind=known[event.kind].name,
        gsn=event.gsn,
        transaction_id=event.transaction_id,
        commit_timestamp_us=event.commit_timestamp_us,
        position=clean_text(event.position),
        statement=clean_text(event.statement),
        removes_rows=event.removes_rows,
        columns=_landed_columns(table, event),
        new_name=table_name(event.new_name) if event.HasField("new_name") else (),
        dump=event.dump,
        removes_rows_before_gsn=event.removes_rows_before_gsn,
        unlogged_changes=clean_text(event.unlogged_changes),
        reread=event.reread or event.tells_anew,
        most_rereads_per_hour=event.most_rereads_per_hour,
        foreign_keys=tuple(_landed_key(table, key) for key in event.foreign_keys),
        unchecked_from_gsn=event.unchecked_from_gsn,
        gap_from=clean_text(event.gap_from),
        gap_to=clean_text(event.gap_to),
        repaired=_landed_repair(table, event) if event.HasField("repaired") else None,
    )


def _check_dump(table: TableName, event: TableEvent) -> None:
    if (event.kind in _OF_DUMPS) != bool(event.dump):
        raise _invalid(table, "a dump's event without a dump, or another one with a dump")
    if not _DUMP.fullmatch(event.dump):
        raise _invalid(table, "a dump that is no UUID")
    if event.HasField("repaired") != (event.kind == TableEvent.REPAIRED):
        raise _invalid(table, "a repair's end without its ranges, or another event with some")
    if event.tells_anew and event.kind != TableEvent.VERIFICATION_STARTED:
        raise _invalid(table, "unlogged changes told again from an event on that begins no verification")
    if event.kind == TableEvent.DUMPED:
        if event.removes_rows == bool(event.removes_rows_before_gsn):
            raise _invalid(table, "a dump's end that removes all rows and some, or none")
        if not 0 <= event.removes_rows_before_gsn <= event.gsn:
            raise _invalid(table, "a dump's end that removes rows after it")
    elif event.removes_rows_before_gsn or (event.dump and event.removes_rows):
        raise _invalid(table, "rows removed by an event that removes none")


def _landed_repair(table: TableName, event: TableEvent) -> LandedRepair:
    """That its ranges are those of its order is checked where that is known (`cut_dumps`)."""
    said = event.repaired
    if len(said.key) > MAX_KEY_COLUMNS or not 0 < said.before_gsn < event.gsn:
        raise _invalid(table, "a repair's end that removes rows after it, or of a key that can't be")
    if any(not 0 < len(name) <= MAX_NAME_CHARS or "\0" in name for name in said.key):
        raise _invalid(table, "a repair's key with an impossible name")
    kinds = tuple(said.kinds)
    if len(kinds) != len(said.key) or not all(map(is_kind, kinds)):
        raise _invalid(table, "a repair of a key of other kinds")
    try:
        ranges = tuple(KeyNumbers(read(kinds, each.above), read(kinds, each.up_to)) for each in said.ranges)
    except ValueError as wrong:
        raise _invalid(table, "a repair's bound that is no key of its kinds") from wrong
    return LandedRepair(said.before_gsn, tuple(said.key), ranges, kinds)


def _check_unlogged(table: TableName, event: TableEvent) -> None:
    if len(event.unlogged_changes) > MAX_UNLOGGED_CHARS:
        raise _invalid(table, f"a reason of more than {MAX_UNLOGGED_CHARS} characters for unlogged changes")
    if event.unlogged_changes and event.dump:
        raise _invalid(table, "unlogged changes in a dump's event")
    has_reason = event.unlogged_changes or event.kind == TableEvent.FOREIGN_KEYS
    if event.reread != bool(event.most_rereads_per_hour) or (event.reread and not has_reason):
        raise _invalid(table, "a re-read without a reason or a bound, or a bound without a re-read")
    if event.kind in (TableEvent.ROWS_UNLOGGED, TableEvent.LOG_GAP) and not event.unlogged_changes:
        raise _invalid(table, "rows that changed unlogged for no reason")
    if event.kind != TableEvent.LOG_GAP and (event.gap_from or event.gap_to):
        raise _invalid(table, "a gap's positions in another event")
    if max(len(event.gap_from), len(event.gap_to)) > MAX_POSITION_CHARS:
        raise _invalid(table, f"a gap's position of more than {MAX_POSITION_CHARS} characters")


def _check_keys(table: TableName, event: TableEvent) -> None:
    if event.foreign_keys and event.kind != TableEvent.FOREIGN_KEYS:
        raise _invalid(table, "foreign keys in an event of another kind")
    if len(event.foreign_keys) > MAX_FOREIGN_KEYS:
        raise _invalid(table, f"{len(event.foreign_keys)} foreign keys")
    is_unchecked = event.kind == TableEvent.FOREIGN_KEYS_UNCHECKED
    if is_unchecked != bool(event.unchecked_from_gsn) or not 0 <= event.unchecked_from_gsn <= event.gsn:
        raise _invalid(table, "unchecked rows of no such event, or after it")


def _landed_key(table: TableName, key: ForeignKey) -> LandedForeignKey:
    lists = (key.columns, key.parent_columns, key.comparisons)
    if len({len(listed) for listed in lists}) != 1 or not 0 < len(key.columns) <= MAX_KEY_COLUMNS:
        raise _invalid(table, "a foreign key whose columns are none, too many, or more on one side")
    names = [key.name, *key.columns, *key.parent_columns]
    if any(not 0 < len(name) <= MAX_NAME_CHARS or "\0" in name for name in names):
        raise _invalid(table, "a foreign key with an impossible name")
    if key.on_delete not in _ACTIONS or key.on_update not in _ACTIONS or not (key.on_delete or key.on_update):
        raise _invalid(table, "a foreign key with no action, or one that is unknown")
    return LandedForeignKey(
        name=key.name,
        columns=tuple(key.columns),
        parent=table_name(key.parent),
        parent_columns=tuple(key.parent_columns),
        on_delete=_ACTIONS[key.on_delete],
        on_update=_ACTIONS[key.on_update],
        comparisons=tuple(map(_comparison, key.comparisons)),
    )


def _comparison(how: wire.TextComparison) -> TextComparison | None:
    return TextComparison(how.ignores_case, how.pads, how.is_binary) if how.is_text else None


def _landed_columns(table: TableName, event: TableEvent) -> tuple[LandedColumn, ...]:
    columns = event.columns
    if len(columns) > MAX_TABLE_COLUMNS or len({column.name for column in columns}) != len(columns):
        raise _invalid(table, f"{len(columns)} columns, each needs a name of its own")
    places = sorted(column.key for column in columns if column.key)
    if len(set(places)) != len(places):  # a part that the agent's filter keeps back leaves a gap
        raise _invalid(table, "a primary key with two columns at one place")
    row_ends = [column.arrow_format for column in columns if column.row_end]
    if len(row_ends) > 1 or not set(row_ends) <= set(ROW_END_FORMATS):
        raise _invalid(table, "two columns that end a row, or one that can't")
    return tuple(_landed_column(table, column) for column in columns)


def _landed_column(table: TableName, column: ColumnAfter) -> LandedColumn:
    for name in (column.name, column.renamed_from or column.name):
        if not 0 < len(name) <= MAX_NAME_CHARS or "\0" in name:
            raise _invalid(table, "a column with an impossible name")
    if column.arrow_format not in ARROW_TYPES and decimal_digits(column.arrow_format) is None:
        raise _invalid(table, "a column of a type that no source type has")
    earlier = column.WhichOneof("earlier_rows")
    text = column.text or column.unrepresentable
    if len(column.source_type) > MAX_TEXT_CHARS or len(text) > MAX_TEXT_CHARS:
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
        earlier_text=text,
        row_end=column.row_end,
    )


def _invalid(table: TableName, found: str) -> GatewayError:
    return _at(table, PayloadInvalid("reading a cut's events", found))


def _at(table: TableName, error: GatewayError) -> GatewayError:
    error.data = NOTHING_LOST
    error.database, error.table = table
    return error
