"""A table's current state: rows and events of a batch, in order, merged into one Delta table.

Comes in: the table's steps. Goes out: one Delta commit for each run of rows with one key and for each event, and a few
for chunks. The last one carries Delta's `txn` {TENANT/SOURCE: cut}, and each {TENANT/SOURCE/gsn: number} too, up to
which all is done, and {TENANT/SOURCE/chunks: cut} where it says more of chunks; a replay leaves out what is at or
below.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError, SchemaMismatchError
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, UNREPRESENTABLE, source_column
from menura.landing import LandedEvent, LandedRepair
from menura.naming import lake_column

from spark_sink.lake.chunk_merge import merge_chunks
from spark_sink.lake.current_rows import (
    copies_held,
    has_living,
    living,
    match_columns,
    merge_effect,
    read_rows,
    unknown_texts,
)
from spark_sink.lake.delta_table import (
    Layout,
    Progress,
    Transactions,
    add_columns,
    commit_nothing,
    compact_when_due,
    create_table,
    dump_began_gsn,
    dump_end_transaction,
    dump_transaction,
    empty,
    progress_transactions,
    read_layout,
    remove_below,
    repair_end_transaction,
    repair_transaction,
    schema_of,
    write_layout,
)
from spark_sink.lake.derived_rows import FollowedRange
from spark_sink.lake.key_bounds import key_bounds
from spark_sink.lake.leaves import Incomparable, kinds_of, range_condition
from spark_sink.lake.logged_changes import LoggedChanges
from spark_sink.lake.net_effect import (
    DELETED,
    KEY_TEXT,
    ROW_HASH,
    in_order,
    key_text,
    keyed_effect,
    keyless_effect,
    needs_copies,
    unknown_hashes,
    with_kept_numbers,
)
from spark_sink.lake.partial_rows import completed, row_keys
from spark_sink.lake.schema_change import Definition, add_key_text, change_schema, current_schema, own_columns
from spark_sink.lake.schema_policy import Departure, Following, SchemaPolicy, read_departure, write_departure
from spark_sink.lake.steps import ChunkStep, EventStep, Segment, Step, fit_current, segment_tables
from spark_sink.lake.table_options import deletion_marks, kept
from spark_sink.landed.lake_schema import grown
from spark_sink.work import TableId

logger = logging.getLogger("menura.sink")

CREATED = "CREATED"
#: the kind of an event that begins a dump
DUMP_STARTED = "DUMP_STARTED"
#: and of one that ends it
DUMPED = "DUMPED"
#: the same of a repair
REPAIR_STARTED, REPAIRED = "REPAIR_STARTED", "REPAIRED"

#: what the commit of such an event says beside its number
_CARRIED = {
    DUMP_STARTED: dump_transaction,
    DUMPED: dump_end_transaction,
    REPAIR_STARTED: repair_transaction,
    REPAIRED: repair_end_transaction,
}

#: writes a segment's rows into the table and commits the transactions; the second is up to where it is merged
MergeRows = Callable[[DeltaTable, Segment, int, Transactions], None]


def follow(
    current: DeltaTable | None,
    folder: str,
    following: Following,
    todo: Sequence[Step],
    merged: Progress,
    end_cut: int,
    merge_rows: MergeRows,
    changelog: DeltaTable | None,
) -> DeltaTable | None:
    """Bring the table to `end_cut`; the changelog already is there, or further. Raises `TableStopped`."""
    table = following.table
    for place, step in enumerate(todo, 1):
        cut = end_cut if place == len(todo) else None
        # Chunks alone can be behind what a killed run has merged.
        end_gsn = max(merged.gsn, step.last_gsn)
        if isinstance(step, ChunkStep):
            assert changelog is not None  # it has the chunks' own rows
            current, segment = prepare_current(current, folder, step.segment, following)
            transactions = progress_transactions(table.application, cut, end_gsn, segment.cut)
            changes = [part.changes for part in segment.parts if isinstance(part, FollowedRange)]
            carried = transactions[:1] if changes else transactions
            merge_chunks(table, current, changelog, segment, end_gsn, carried)
            if changes:  # their rows are left to what their parents have done to them since
                held, layout = schema_of(current), segment.layout
                fitted = pa.concat_tables(fit_current(rows, layout, held) for rows in changes)
                newest = _undecided(fitted, LoggedChanges(changelog, layout, held, end_gsn))
                merge_tables(table, current, layout, [newest], transactions)
        elif isinstance(step, Segment):
            current, segment = prepare_current(current, folder, step, following)
            merge_rows(current, segment, merged.gsn, progress_transactions(table.application, cut, end_gsn))
        else:
            # Those of its own cut come after it.
            transactions = progress_transactions(table.application, cut, end_gsn, step.seen.cut - 1)
            current = _apply_event(current, folder, following, step, transactions)
        if current is not None:
            compact_when_due(current)
    return current


def _undecided(derived: pa.Table, changes: LoggedChanges) -> pa.Table:
    """Without what is derived of rows that a later change stands over: that is in the current state already."""
    match = match_columns(derived.schema, changes.layout.key)
    found = changes.of_keys(derived, match, pc.min(derived[GSN]).as_py() - 1, key_bounds(derived, match))
    last: dict[tuple[object, ...], int] = {}
    for key, gsn in zip(row_keys(derived, match), derived[GSN].to_pylist(), strict=True):
        last[key] = max(last.get(key, 0), gsn)
    over = {
        key for key, gsn in zip(row_keys(found, match), found[GSN].to_pylist(), strict=True) if gsn > last.get(key, gsn)
    }
    return derived.filter(pa.array([key not in over for key in row_keys(derived, match)], pa.bool_()))


def _apply_event(
    current: DeltaTable | None, folder: str, following: Following, step: EventStep, transactions: Transactions
) -> DeltaTable | None:
    """None where there is no table and nothing says which one there should be."""
    definition, event, table = step.definition, step.seen.event, following.table
    if event.kind in _CARRIED:
        transactions = [_CARRIED[event.kind](table.application, event.gsn), *transactions]
    if current is None:
        if definition is None:
            return None
        current = _created(folder, Definition(definition.layout, definition.schema), following)
        commit_nothing(current, transactions)
    elif event.kind == CREATED and following.options.soft_delete and not has_living(current):
        _remove_rows(current, definition, following, transactions)  # it is another table, whose rows these never were
    elif event.gsn in following.marked:
        remove_below(current, event.gsn, (), *_gone(current, event))
        _follow_definition(current, definition, following, transactions)
    elif event.gsn in following.rows_stay:
        departure = replace(read_departure(current), policy=following.policy, rows_stay=event.kind)
        write_departure(current, departure)
        _follow_definition(current, definition, following, transactions)
    elif event.removes_rows:
        _remove_rows(current, definition, following, transactions)
    elif definition is not None:
        _follow_definition(current, definition, following, transactions)
    elif event.removes_rows_before_gsn:
        write_departure(current, replace(read_departure(current), rows_stay=""))
        remove_below(current, event.removes_rows_before_gsn, transactions, *_gone(current, event))
    elif event.repaired is not None:
        keys = _repaired_keys(current, event.repaired)
        remove_below(current, event.repaired.before_gsn, transactions, *_gone(current, event, keys))
    else:
        commit_nothing(current, transactions)
    return current


def _created(folder: str, definition: Definition, following: Following) -> DeltaTable:
    options = following.options
    return create_table(folder, options.schema(definition.schema), definition.layout, options.properties)


def _gone(current: DeltaTable, event: LandedEvent, keys: str = "TRUE") -> tuple[str, Mapping[str, str] | None]:
    """Which rows an event takes away that fulfil the SQL `keys`, and what those get that stay as deleted ones."""
    marks = deletion_marks(schema_of(current), event.gsn, event.commit_timestamp_us)
    return (f"({keys}) AND {living(schema_of(current))}", marks)


def _remove_rows(
    current: DeltaTable, definition: Definition | None, following: Following, transactions: Transactions
) -> None:
    """All of them; columns go with them, unless the table's policy keeps these."""
    if following.policy.keeps:
        write_departure(current, replace(read_departure(current), rows_stay=""))
        empty(current, following.options.schema(schema_of(current)))
        _follow_definition(current, definition, following, transactions)
        return
    write_departure(current, Departure(following.policy, following.unreadable))
    schema = definition.schema if definition is not None else schema_of(current)
    empty(current, following.options.schema(schema), transactions)
    if definition is not None:
        write_layout(current, definition.layout)


def _repaired_keys(current: DeltaTable, repaired: LandedRepair) -> str:
    """SQL for the keys of its ranges. None at all where the lake no longer has such a key: what differs then stays so,
    and the verification that follows a repair tells it."""
    key = [lake_column(source_column(name)) for name in repaired.key]
    try:
        ranges = [(each.above, each.up_to) for each in repaired.ranges]
        return range_condition(key, kinds_of(repaired.kinds, len(key)), ranges, schema_of(current))
    except Incomparable as why:
        logger.warning(
            "a repair takes no row away: those that the source no longer has stay; the verification that follows tells"
            " them, and a resync removes them: table=%s reason=%s",
            current.table_uri,
            why,
        )
        return "FALSE"


def _follow_definition(
    current: DeltaTable, definition: Definition | None, following: Following, transactions: Transactions = ()
) -> Definition | None:
    """Follow it as the table's policy says; gives what is followed. Raises `TableStopped`."""
    if definition is None:
        if transactions:
            commit_nothing(current, transactions)
        return None
    followed, departure = following.definition(current, definition)
    write_departure(current, departure)
    if not transactions and followed.layout == read_layout(current):
        return followed
    try:
        change_schema(current, followed, transactions)
    except (pa.ArrowException, SchemaMismatchError, DeltaProtocolError):
        if following.policy is not SchemaPolicy.TRY_EVOLVE:
            raise
        followed, departure = following.fallback(current, definition)
        write_departure(current, departure)
        change_schema(current, followed, transactions)
    return followed


def prepare_current(
    current: DeltaTable | None, folder: str, segment: Segment, following: Following
) -> tuple[DeltaTable, Segment]:
    """The current state with the columns that the segment needs, and the segment as it follows it.

    Raises `TableStopped`.
    """
    wanted = pa.schema([])
    for part in segment.parts:
        wanted, refused = grown(wanted, current_schema(part.shape))
        assert refused is None  # `steps` takes files apart that have no types in common
    if current is None:
        current = _created(folder, Definition(segment.layout, wanted), following)
    elif read_layout(current) != segment.layout or following.unreadable:
        followed = _follow_definition(current, Definition(segment.layout, wanted), following)
        segment = replace(segment, layout=followed.layout) if followed is not None else segment
    if ABSENT not in schema_of(current).names:
        add_columns(current, pa.schema([pa.field(ABSENT, pa.string())]))
    if KEY_TEXT not in schema_of(current).names and _needs_key_text(segment):
        add_key_text(current, segment.layout)
    return current, segment


def _needs_key_text(segment: Segment) -> bool:
    """Whether a row's key is text that its column can't hold."""
    key = list(segment.layout.key)
    return any(
        pc.any(pc.not_equal(key_text(rows[UNREPRESENTABLE], key), "")).as_py()
        for part in segment.parts
        if key and part.may_have(UNREPRESENTABLE)
        for rows in part.tables()
    )


def merge_segment(
    table: TableId, current: DeltaTable, segment: Segment, merged_gsn: int, transactions: Transactions
) -> None:
    """`MergeRows` in memory, with delta-rs."""
    held = schema_of(current)
    tables = segment_tables(table, segment, held, merged_gsn)
    merge_tables(table, current, segment.layout, list(tables), transactions)


def merge_tables(
    table: TableId, current: DeltaTable, layout: Layout, tables: Sequence[pa.Table], transactions: Transactions
) -> None:
    """Merge rows as `segment_tables` gives them."""
    effect, match = effect_on(table, current, layout, tables)
    merge_effect(current, effect, match, transactions)


def effect_on(
    table: TableId, current: DeltaTable, layout: Layout, tables: Sequence[pa.Table]
) -> tuple[pa.Table, list[str]]:
    """What such rows do to the current state, and the columns that tell its rows apart."""
    match = match_columns(schema_of(current), layout.key)
    rows = with_kept_numbers(in_order(pa.concat_tables(tables, promote_options="default")))
    if layout.key:
        if CHANGE_TYPE in rows.column_names:
            began_gsn = dump_began_gsn(current, table.application)
            rows = completed(rows, match, lambda keys: read_rows(current, match, keys, began_gsn))
        effect = kept(keyed_effect(rows, match))
    else:  # `check_steps` has seen that its rows are whole
        rows = rows.select([name for name in rows.column_names if name != CHANGE_TYPE])
        if needs_copies(rows):
            less_known = unknown_hashes(rows, own_columns(rows, layout), unknown_texts(current))
            hashes = pa.chunked_array([*rows[ROW_HASH].chunks, *less_known], pa.binary())
            deleted = pc.sum(rows[DELETED]).as_py() or 0
            effect = keyless_effect(rows, copies_held(current, hashes, max(1, deleted)), less_known)
        else:
            effect = keyless_effect(rows, {})
    return effect, match
