"""A table's current state: rows and events of a batch, in order, merged into one Delta table.

Comes in: the table's `Stage`s. Goes out: one Delta commit for each run of rows with one key and for each event. The
last one carries Delta's `txn` {TENANT/SOURCE: cut}, and each {TENANT/SOURCE/gsn: number} too, up to which all is done;
a replay leaves out what is at or below either. What stands before an event that removes all rows is not merged at all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, UNREPRESENTABLE

from spark_sink.delta_table import (
    WRITER,
    Layout,
    Progress,
    Transactions,
    add_columns,
    commit_properties,
    compact_when_due,
    create_table,
    empty,
    progress_transactions,
    quoted,
    read_layout,
    scan,
    schema_of,
    write_layout,
)
from spark_sink.errors import ChangeTypeUnknown, RowsPartial
from spark_sink.event_columns import event_columns
from spark_sink.lake_schema import METADATA_TYPES, fit, grown
from spark_sink.landed_file import LandedPart
from spark_sink.net_effect import (
    COPY,
    DELETED,
    KEY_TEXT,
    ROW_HASH,
    in_order,
    key_text,
    keyed_effect,
    keyless_effect,
    unknown_change_type,
    with_deleted,
)
from spark_sink.partial_rows import Key, absent_columns, completed, has_partial, row_keys
from spark_sink.schema_change import (
    Definition,
    add_key_text,
    change_schema,
    column_type_changed,
    commit_nothing,
    current_schema,
    derive,
    event_definition,
)
from spark_sink.stages import Stage
from spark_sink.work import CutEvent, TableFile, TableId

#: up to this many rows a MERGE prunes files by the batch's key range; above, that costs twice the memory
#: (500,000 changes of a table of 2,000,000 rows: 2.1 GiB instead of 1.0)
PRUNED_MERGE_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Segment:
    """Files of one key, to be merged at once."""

    parts: tuple[LandedPart, ...]
    #: of the last file
    layout: Layout
    #: every number up to here is done once it is merged
    last_gsn: int

    @property
    def cut(self) -> int:
        return self.parts[-1].file.cut

    @property
    def may_be_partial(self) -> bool:
        """Whether rows may lack values; False is certain."""
        return any(part.may_have(ABSENT) for part in self.parts)


@dataclass(frozen=True, slots=True)
class EventStep:
    """An event of a table, and the columns after it; None where nothing tells them."""

    seen: CutEvent
    definition: Definition | None

    @property
    def last_gsn(self) -> int:
        return self.seen.last_gsn


#: writes a segment's rows into the table and commits the transactions; the second is up to where it is merged
MergeRows = Callable[[DeltaTable, Segment, int, Transactions], None]


def follow(
    current: DeltaTable | None,
    folder: str,
    table: TableId,
    found: Sequence[Stage],
    merged: Progress,
    end_cut: int,
    merge_rows: MergeRows,
) -> DeltaTable | None:
    """Bring the table to `end_cut`. Raises `TableStopped`."""
    steps = _steps(table, found, merged)
    for place, step in enumerate(steps, 1):
        cut = end_cut if place == len(steps) else None
        transactions = progress_transactions(table.application, cut, step.last_gsn)
        if isinstance(step, Segment):
            current = prepare_current(current, folder, table, step)
            merge_rows(current, step, merged.gsn, transactions)
        else:
            current = _apply_event(current, folder, table, step, transactions)
        if current is not None:
            compact_when_due(current)
    return current


def check_mergeable(table: TableId, found: Sequence[Stage], merged: Progress) -> None:
    """Before anything is written: whether rows that lack values can be merged. Raises `RowsPartial`."""
    for step in _steps(table, found, merged):
        if isinstance(step, Segment):
            for part in step.parts:
                if part.may_have(ABSENT):
                    for rows in part.tables():
                        check_partial(table, part.file, step.layout, rows)


def _steps(table: TableId, found: Sequence[Stage], merged: Progress) -> list[Segment | EventStep]:
    """What is still to do, from the last event that removes all rows on."""
    pending = [stage for stage in found if stage.last_gsn > merged.gsn]
    removals = [place for place, stage in enumerate(pending) if stage.removes_rows and _is_new(stage, merged)]
    first = removals[-1] if removals else 0
    steps: list[Segment | EventStep] = []
    for place, stage in enumerate(pending[first:], first):
        if stage.event is not None and _is_new(stage, merged):
            # What is not merged before a removal still says which columns the table has.
            until = pending[: place + 1] if removals and place == first else [stage]
            steps.append(EventStep(stage.event, _last_definition(table, until)))
        steps.extend(segment for segment in segments(stage) if segment.last_gsn > merged.gsn)
    return steps


def _is_new(stage: Stage, merged: Progress) -> bool:
    return stage.event is not None and stage.event.first_gsn > merged.gsn


def _last_definition(table: TableId, found: Sequence[Stage]) -> Definition | None:
    """The columns at the last stage's event, as far as these stages tell them."""
    for place, stage in enumerate(reversed(found)):
        if place and stage.parts:
            last = stage.parts[-1]
            return Definition(layout_of(last), current_schema(last.shape))
        if stage.event is not None and (columns := event_columns(table, stage.event)) is not None:
            return event_definition(columns)
    return None


def segments(stage: Stage) -> list[Segment]:
    """Runs of files with one key."""
    runs = [tuple(run) for _, run in groupby(stage.parts, key=lambda part: part.shape.key)]
    lasts = [max(part.file.last_gsn for part in run) for run in runs]
    return [
        Segment(run, layout_of(run[-1]), stage.last_gsn if place == len(runs) else last)
        for place, (run, last) in enumerate(zip(runs, lasts, strict=True), 1)
    ]


def layout_of(part: LandedPart) -> Layout:
    return Layout(part.file.schema_id, part.shape.columns, part.shape.key)


def _apply_event(
    current: DeltaTable | None, folder: str, table: TableId, step: EventStep, transactions: Transactions
) -> DeltaTable | None:
    """None where there is no table and nothing says which one there should be."""
    definition = step.definition
    if current is None:
        if definition is None:
            return None
        current = create_table(folder, definition.schema, definition.layout)
        commit_nothing(current, transactions)
    elif step.seen.event.removes_rows:
        empty(current, definition.schema if definition is not None else schema_of(current), transactions)
        if definition is not None:
            write_layout(current, definition.layout)
    elif definition is not None:
        change_schema(current, table, step.seen.cut, definition, transactions)
    else:
        commit_nothing(current, transactions)
    return current


def prepare_current(current: DeltaTable | None, folder: str, table: TableId, segment: Segment) -> DeltaTable:
    """The current state with the columns that the segment needs. Raises `TableStopped`."""
    wanted = pa.schema([])
    for part in segment.parts:
        before = wanted
        wanted, refused = grown(before, current_schema(part.shape))
        if refused is not None:
            raise column_type_changed(table, part.file.cut, refused, before, part.shape.schema)
    if current is None:
        current = create_table(folder, wanted, segment.layout)
    elif read_layout(current) != segment.layout:
        change_schema(current, table, segment.cut, Definition(segment.layout, wanted))
    if ABSENT not in schema_of(current).names and segment.may_be_partial:
        add_columns(current, pa.schema([pa.field(ABSENT, pa.string())]))
    if KEY_TEXT not in schema_of(current).names and _needs_key_text(segment):
        add_key_text(current, segment.layout)
    return current


def _needs_key_text(segment: Segment) -> bool:
    """Whether a row's key is text that its column can't hold."""
    key = list(segment.layout.key)
    return any(
        pc.any(pc.not_equal(key_text(rows[UNREPRESENTABLE], key), "")).as_py()
        for part in segment.parts
        if key and part.may_have(UNREPRESENTABLE)
        for rows in part.tables()
    )


def segment_tables(table: TableId, segment: Segment, held: pa.Schema, merged_gsn: int) -> Iterator[pa.Table]:
    """Rows above `merged_gsn` with the current state's columns and `_menura_deleted`, `_change_type` if any is partial.

    Raises `TableStopped`.
    """
    live = {name.casefold() for name in (*segment.layout.columns, *METADATA_TYPES, UNREPRESENTABLE, ABSENT)}
    dropped = frozenset(name.casefold() for name in held.names) - live
    schema = pa.schema([*held, pa.field(CHANGE_TYPE, pa.string())])
    may_be_partial = segment.may_be_partial
    for part in segment.parts:
        for rows in part.tables():
            check_change_types(table, part.file, rows)
            fitted = with_deleted(fit(rows, schema, dropped))
            if not may_be_partial:
                fitted = fitted.drop_columns([CHANGE_TYPE])
            yield derive(fitted.filter(pc.field(GSN) > merged_gsn), segment.layout)


def check_change_types(table: TableId, file: TableFile, rows: pa.Table) -> None:
    if unknown_change_type(rows):
        raise ChangeTypeUnknown(
            "merging a landed file",
            f"{file.path} has a _change_type that this version can't merge",
            data="The table stays at its last version; other tables go on",
            remedy="Upgrade the sink to at least the gateway's version, then start it again",
            **table.where(file.cut),
        )


def check_partial(table: TableId, file: TableFile, layout: Layout, rows: pa.Table) -> None:
    """A row that lacks values must have a key, and the key."""
    if not has_partial(rows):
        return
    if not layout.key or absent_columns(rows) & {name.casefold() for name in layout.key}:
        raise RowsPartial(
            "merging a landed file",
            f"{file.path} has rows without all of their values, and "
            + ("without the primary key's" if layout.key else "the table has no primary key to find them by"),
            data="The table stays at its last version; other tables go on",
            remedy="Set binlog_row_image to FULL on the server, then move the table's folder in the lake away and sync"
            " it anew",
            **table.where(file.cut),
        )


def merge_segment(
    table: TableId, current: DeltaTable, segment: Segment, merged_gsn: int, transactions: Transactions
) -> None:
    """`MergeRows` in memory, with delta-rs."""
    held = schema_of(current)
    tables = segment_tables(table, segment, held, merged_gsn)
    merge_tables(current, segment.layout, list(tables), transactions)


def merge_tables(current: DeltaTable, layout: Layout, tables: Sequence[pa.Table], transactions: Transactions) -> None:
    """Merge rows as `segment_tables` gives them."""
    match = match_columns(schema_of(current), layout.key)
    rows = in_order(pa.concat_tables(tables))
    if layout.key:
        if CHANGE_TYPE in rows.column_names:
            rows = completed(rows, match, lambda keys: read_rows(current, match, keys))
        effect = keyed_effect(rows, match)
    else:  # `check_mergeable` has seen that its rows are whole
        rows = rows.select([name for name in rows.column_names if name != CHANGE_TYPE])
        effect = keyless_effect(rows, copies_held(current, rows[ROW_HASH]))
    merge_effect(current, effect, match, transactions)


def match_columns(held: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """The columns that tell rows apart, by the names that the lake's table gave them first."""
    if not key:
        return [ROW_HASH, COPY]
    names = {name.casefold(): name for name in held.names}
    return [*(names[name.casefold()] for name in key), *([KEY_TEXT] if KEY_TEXT in held.names else [])]


def read_rows(current: DeltaTable, match: Sequence[str], keys: set[Key]) -> pa.Table:
    """The current state's rows with these keys; files outside of the keys' range are skipped where it is a number's."""
    schema = schema_of(current)
    first = [key[0] for key in keys]
    query = "SELECT * FROM t"
    numbers = [value for value in first if isinstance(value, int)]
    if pa.types.is_int64(schema.field(match[0]).type) and len(numbers) == len(first):
        query += f" WHERE {quoted(match[0])} BETWEEN {min(numbers)} AND {max(numbers)}"
    wanted = pa.array(first, schema.field(match[0]).type).unique()
    found = []
    for batch in scan(current, query):
        near = pa.table(batch).filter(pc.is_in(batch.column(match[0]), wanted)).cast(schema)
        found.append(near.filter(pa.array([key in keys for key in row_keys(near, match)], pa.bool_())))
    return pa.concat_tables([schema.empty_table(), *found])


def copies_held(current: DeltaTable, hashes: pa.ChunkedArray) -> Counter[bytes]:
    """How many copies of each of these rows the lake has."""
    held: Counter[bytes] = Counter()
    wanted = hashes.unique()
    for batch in scan(current, "SELECT _menura_row FROM t"):
        column = batch.column(0)
        held.update(column.filter(pc.is_in(column, wanted)).to_pylist())
    return held


def merge_effect(current: DeltaTable, effect: pa.Table, match: Sequence[str], transactions: Transactions) -> None:
    """One commit: a MERGE, or a plain append where the table is empty. Always commits, for its transactions' sake."""
    commit = commit_properties(*transactions)
    if current.get_add_actions().num_rows == 0 or effect.num_rows == 0:
        rows = effect.filter(pc.invert(effect[DELETED])).select(schema_of(current).names)
        write_deltalake(current, rows, mode="append", writer_properties=WRITER, commit_properties=commit)
        return
    deleted = f"s.{quoted(DELETED)}"
    # Spelled out: delta-rs's own "all columns" breaks on a name with a backtick.
    values = {f"t.{quoted(name)}": f"s.{quoted(name)}" for name in effect.column_names if name != DELETED}
    (
        current.merge(
            effect,
            match_predicate(effect, match),
            source_alias="s",
            target_alias="t",
            # Not streamed, delta-rs reads the source's key range first and skips files outside of it.
            streamed_exec=effect.num_rows > PRUNED_MERGE_ROWS,
            writer_properties=WRITER,
            commit_properties=commit,
        )
        .when_matched_delete(deleted)
        .when_matched_update(values)
        .when_not_matched_insert(values, f"NOT {deleted}")
        .execute()
    )


def match_predicate(effect: pa.Table, match: Sequence[str]) -> str:
    """Equality of all of `match`; null-safe only where a key is null, which an unrepresentable value is."""
    conditions = []
    for name in match:
        equal = "IS NOT DISTINCT FROM" if effect[name].null_count else "="
        conditions.append(f"(t.{quoted(name)} {equal} s.{quoted(name)})")
    return " AND ".join(conditions)
