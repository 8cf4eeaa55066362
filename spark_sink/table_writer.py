"""One changed table's part of a batch, inside a Spark task: append to its changelog, merge into its current state.

Comes in: the table's landed files, in cut order. Goes out: two Delta commits (more only where the schema
changed). Both tables carry Delta's `txn` {TENANT/SOURCE: cut}; a file of a cut at or below it is skipped. So
a kill leaves each table either before or after its commit, and the replay, also one from a lost checkpoint
with other batch bounds, completes what is missing. A kill between the two leaves the current state behind the
changelog until then.

Where the key changes within a batch, the rows before and after are merged one after the other. When that is
in the middle of a cut, the first merge carries `txn` {TENANT/SOURCE/gsn: its last row's _gsn} instead, and a
replay skips rows at or below it. A commit that meets another writer of the same cut (a task whose driver was
killed lives on for a moment) fails, is read anew, and finds its work done.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, UNREPRESENTABLE

from spark_sink.delta_table import (
    Layout,
    add_columns,
    commit_properties,
    create_table,
    open_table,
    quoted,
    read_layout,
    rewrite,
    scan,
    schema_of,
    write_layout,
)
from spark_sink.errors import ChangeTypeUnknown, ColumnTypeChanged, RowsPartial
from spark_sink.lake_schema import METADATA_TYPES, fit, grown
from spark_sink.landed_file import LandedPart, LandedShape, read_landed
from spark_sink.landing_log import LandingLog
from spark_sink.net_effect import (
    COPY,
    DELETED,
    KEY_TEXT,
    ROW_HASH,
    in_order,
    key_text,
    keyed_effect,
    keyless_effect,
    row_hash,
    unknown_change_type,
    with_deleted,
)
from spark_sink.work import CHANGELOG, CURRENT, TableFile, TableId

COMMIT_ATTEMPTS = 5
#: a table's folder of small files is compacted each time its version is a multiple of this
COMPACT_EVERY_VERSIONS = 64
#: a MERGE writes each file anew that it touches, so they stay small
COMPACT_FILE_BYTES = 32 << 20
#: up to this many rows a MERGE prunes files by the batch's key range; above, that costs twice the memory
#: (500,000 changes of a table of 2,000,000 rows: 2.1 GiB instead of 1.0)
PRUNED_MERGE_ROWS = 100_000
WRITER = WriterProperties(compression="ZSTD", compression_level=1)


@dataclass(frozen=True, slots=True)
class Versions:
    """Where the two tables stand; None where an earlier run has brought one beyond the batch's last cut."""

    changelog: int | None
    current: int | None
    changed: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """What a Delta table's `txn` says."""

    cut: int
    gsn: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Files of one key, to be merged at once."""

    parts: tuple[LandedPart, ...]
    #: of the last file
    layout: Layout
    #: the `txn` of its commit
    transaction: tuple[str, int]


def apply_files(log: LandingLog, lake: str, table: TableId, files: Sequence[TableFile]) -> Versions:
    """Bring both tables to the last of `files`. Raises `TableStopped`; OSError when the lake's storage fails."""
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            return _apply_once(log, lake, table, files)
        except CommitFailedError:
            if attempt == COMMIT_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _apply_once(log: LandingLog, lake: str, table: TableId, files: Sequence[TableFile]) -> Versions:
    changelog_folder, current_folder = (f"{table.folder(lake)}/{kind}" for kind in (CHANGELOG, CURRENT))
    changelog, current = open_table(changelog_folder), open_table(current_folder)
    logged, merged = read_progress(changelog, table), read_progress(current, table)
    pending = [file for file in files if file.cut > min(logged.cut, merged.cut)]
    landed = [read_landed(log, table, file) for file in pending]
    for part in landed:
        check_change_types(table, part.file, part.rows)
    to_log = [part for part in landed if part.file.cut > logged.cut]
    if to_log:
        changelog = append_changelog(changelog, changelog_folder, table, to_log)
    for segment in segments(table, [part for part in landed if part.file.cut > merged.cut]):
        current = merge_segment(current, current_folder, table, segment, merged.gsn)
    end = files[-1].cut
    return Versions(
        version_at(changelog, max(logged.cut, end), end), version_at(current, max(merged.cut, end), end), bool(landed)
    )


def version_at(delta: DeltaTable | None, cut: int, end: int) -> int | None:
    return int(delta.version()) if delta is not None and cut == end else None


def read_progress(delta: DeltaTable | None, table: TableId) -> Progress:
    if delta is None:
        return Progress(0, 0)
    return Progress(
        delta.transaction_version(table.application) or 0, delta.transaction_version(gsn_application(table)) or 0
    )


def gsn_application(table: TableId) -> str:
    return f"{table.application}/gsn"


def check_change_types(table: TableId, file: TableFile, rows: pa.Table) -> None:
    if unknown_change_type(rows):
        raise ChangeTypeUnknown(
            "merging a landed file",
            f"{file.path} has a _change_type that this version can't merge",
            data="The table stays at its last version; other tables go on",
            remedy="Upgrade the sink to at least the gateway's version, then start it again",
            **table.where(file.cut),
        )


def check_whole(table: TableId, file: TableFile, rows: pa.Table) -> None:
    if rows[ABSENT].null_count < rows.num_rows:
        raise RowsPartial(
            "merging a landed file",
            f"{file.path} has rows without all of their values",
            data="The table stays at its last version; other tables go on",
            remedy="Set binlog_row_image to FULL on the server, then move the table's folder in the lake away and sync"
            " it anew",
            **table.where(file.cut),
        )


def append_changelog(
    changelog: DeltaTable | None, folder: str, table: TableId, parts: Sequence[LandedPart]
) -> DeltaTable:
    last = parts[-1]
    layout = layout_of(last)
    schema = pa.schema([])
    for part in parts:
        schema = _grown(table, part, schema, part.shape.schema)
    if changelog is None:
        changelog = create_table(folder, schema, layout)
    held = schema_of(changelog)
    is_changed = len({part.file.schema_id for part in parts}) > 1 or read_layout(changelog) != layout
    if is_changed or ABSENT not in held.names:
        schema = _grown(table, last, held, schema)
        _change_schema(changelog, held, schema)
        write_layout(changelog, layout)
    held = schema_of(changelog)
    batches = (batch for part in parts for rows in part.tables() for batch in fit(rows, held).to_batches())
    write_deltalake(
        changelog,
        pa.RecordBatchReader.from_batches(held, batches),
        mode="append",
        writer_properties=WRITER,
        commit_properties=commit_properties((table.application, last.file.cut)),
    )
    compact_when_due(changelog)
    return changelog


def _grown(table: TableId, part: LandedPart, held: pa.Schema, wanted: pa.Schema) -> pa.Schema:
    schema, refused = grown(held, wanted)
    if refused is not None:
        raise ColumnTypeChanged(
            "following a changed column",
            f"{refused} is {held.field(refused).type if refused in held.names else 'of another type'} in the lake "
            f"and {wanted.field(refused).type} now, which it can't hold",
            data="The table stays at its last version; other tables go on",
            remedy="Change the column back, or move the table's folder in the lake away and sync it anew",
            **table.where(part.file.cut),
        )
    return schema


def _change_schema(delta: DeltaTable, held: pa.Schema, schema: pa.Schema) -> None:
    """Columns are added; a wider type has the table rewritten."""
    if any(schema.field(field.name).type != field.type for field in held):
        rewrite(delta, schema, lambda rows: fit(rows, schema))
    else:
        add_columns(delta, schema)


def segments(table: TableId, parts: Sequence[LandedPart]) -> list[Segment]:
    """Runs of files with one key; see the module's text for their transactions."""
    runs = [tuple(run) for _, run in groupby(parts, key=lambda part: part.shape.key)]
    found = []
    for place, run in enumerate(runs, 1):
        last = run[-1].file
        cut_goes_on = place < len(runs) and runs[place][0].file.cut == last.cut
        transaction = (gsn_application(table), last.last_gsn) if cut_goes_on else (table.application, last.cut)
        found.append(Segment(run, layout_of(run[-1]), transaction))
    return found


def layout_of(part: LandedPart) -> Layout:
    return Layout(part.file.schema_id, part.shape.columns, part.shape.key)


def merge_segment(
    current: DeltaTable | None, folder: str, table: TableId, segment: Segment, merged_gsn: int
) -> DeltaTable:
    current = prepare_current(current, folder, table, segment)
    held, key = schema_of(current), segment.layout.key
    rows = in_order(pa.concat_tables(segment_tables(table, segment, held, merged_gsn)))
    if key:
        effect = keyed_effect(rows, match_columns(held, key))
    else:
        effect = keyless_effect(rows, copies_held(current, rows[ROW_HASH]))
    merge_effect(current, effect, match_columns(held, key), segment.transaction)
    compact_when_due(current)
    return current


def prepare_current(current: DeltaTable | None, folder: str, table: TableId, segment: Segment) -> DeltaTable:
    """The current state with the columns that the segment needs. Raises `ColumnTypeChanged`."""
    wanted = pa.schema([])
    for part in segment.parts:
        wanted = _grown(table, part, wanted, current_schema(part.shape))
    if current is None:
        return create_table(folder, wanted, segment.layout)
    if read_layout(current) != segment.layout:
        follow_schema(current, table, segment, wanted)
    return current


def current_schema(shape: LandedShape) -> pa.Schema:
    """The current state's columns: the table's own, then the sink's."""
    own = [shape.schema.field(name) for name in shape.columns]
    own += [pa.field(UNREPRESENTABLE, pa.string()), pa.field(GSN, pa.int64())]
    if not shape.key:
        return pa.schema([*own, pa.field(ROW_HASH, pa.binary()), pa.field(COPY, pa.int64())])
    has_dates = any(pa.types.is_temporal(shape.schema.field(name).type) for name in shape.key)
    return pa.schema([*own, pa.field(KEY_TEXT, pa.string())] if has_dates else own)


def segment_tables(table: TableId, segment: Segment, held: pa.Schema, merged_gsn: int) -> Iterator[pa.Table]:
    """Rows above `merged_gsn` with the current state's columns and `_menura_deleted`. Raises `ChangeTypeUnknown`."""
    live = {name.casefold() for name in (*segment.layout.columns, *METADATA_TYPES, UNREPRESENTABLE, ABSENT)}
    dropped = frozenset(name.casefold() for name in held.names) - live
    schema = pa.schema([*held, pa.field(CHANGE_TYPE, pa.string())])
    for part in segment.parts:
        for rows in part.tables():
            check_change_types(table, part.file, rows)
            check_whole(table, part.file, rows)
            fitted = with_deleted(fit(rows, schema, dropped)).drop_columns([CHANGE_TYPE])
            yield derive(fitted.filter(pc.field(GSN) > merged_gsn), segment.layout)


def derive(rows: pa.Table, layout: Layout) -> pa.Table:
    """Fill the sink's own columns, as far as the table has them."""
    names = rows.column_names
    if not layout.key:
        live = {name.casefold() for name in layout.columns}
        columns = [name for name in names if name.casefold() in live]
        rows = rows.set_column(names.index(ROW_HASH), ROW_HASH, row_hash(rows, columns))
    elif KEY_TEXT in names:
        text = key_text(rows[UNREPRESENTABLE], list(layout.key))
        rows = rows.set_column(names.index(KEY_TEXT), KEY_TEXT, text)
    return rows


def match_columns(held: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """The columns that tell rows apart, by the names that the lake's table gave them first."""
    if not key:
        return [ROW_HASH, COPY]
    names = {name.casefold(): name for name in held.names}
    return [*(names[name.casefold()] for name in key), *([KEY_TEXT] if KEY_TEXT in held.names else [])]


def follow_schema(current: DeltaTable, table: TableId, segment: Segment, wanted: pa.Schema) -> None:
    """Bring a current state to another schema version; what a kill interrupts is done again."""
    before, layout, held = read_layout(current), segment.layout, schema_of(current)
    schema = _grown(table, segment.parts[-1], held, wanted)
    live = {name.casefold() for name in layout.columns}
    gone = frozenset(name.casefold() for name in before.columns) - live
    widened = any(schema.field(field.name).type != field.type for field in held)
    rekeyed = before.key != layout.key
    if gone or widened or rekeyed:
        copies: Counter[bytes] = Counter()
        rewrite(current, schema, lambda rows: _carried_over(rows, schema, gone, layout, copies))
    else:
        add_columns(current, schema)
    write_layout(current, layout)


def _carried_over(
    rows: pa.Table, schema: pa.Schema, gone: frozenset[str], layout: Layout, copies: Counter[bytes]
) -> pa.Table:
    """Rows of an earlier schema version in the columns of a later one; `copies` counts over the whole table."""
    rows = derive(fit(rows, schema, gone), layout)
    if layout.key:
        return rows
    numbers = []
    for row in rows[ROW_HASH].to_pylist():
        numbers.append(copies[row])
        copies[row] += 1
    return rows.set_column(rows.column_names.index(COPY), COPY, pa.array(numbers, pa.int64()))


def copies_held(current: DeltaTable, hashes: pa.ChunkedArray) -> Counter[bytes]:
    """How many copies of each of these rows the lake has."""
    held: Counter[bytes] = Counter()
    wanted = hashes.unique()
    for batch in scan(current, "SELECT _menura_row FROM t"):
        column = batch.column(0)
        held.update(column.filter(pc.is_in(column, wanted)).to_pylist())
    return held


def merge_effect(current: DeltaTable, effect: pa.Table, match: list[str], transaction: tuple[str, int]) -> None:
    """One commit: a MERGE, or a plain append where the table is empty. Always commits, for its transaction's sake."""
    commit = commit_properties(transaction)
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


def match_predicate(effect: pa.Table, match: list[str]) -> str:
    """Equality of all of `match`; null-safe only where a key is null, which an unrepresentable date is."""
    conditions = []
    for name in match:
        equal = "IS NOT DISTINCT FROM" if effect[name].null_count else "="
        conditions.append(f"(t.{quoted(name)} {equal} s.{quoted(name)})")
    return " AND ".join(conditions)


def compact_when_due(delta: DeltaTable) -> None:
    """Gather small files; a commit that changes no row."""
    if delta.version() % COMPACT_EVERY_VERSIONS == 0:
        delta.optimize.compact(target_size=COMPACT_FILE_BYTES, writer_properties=WRITER)
