"""Rows of a current state by their key: read, and written in one commit.

Comes in: the Delta table and rows or keys in its columns. Goes out: rows, or a commit that carries Delta's `txn`.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from heapq import heappush, heappushpop

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import ABSENT, GSN

from spark_sink.lake.delta_table import (
    WRITER,
    Transactions,
    append,
    commit_properties,
    has_change_feed,
    has_files,
    quoted,
    read_small,
    replace_rows,
    scan,
    schema_of,
    size_bytes,
)
from spark_sink.lake.key_bounds import KeyBounds, key_bounds
from spark_sink.lake.net_effect import COPY, DELETED, IS_DELETED, KEY_TEXT, ROW_HASH
from spark_sink.lake.partial_rows import Key, row_keys

#: up to this many rows a MERGE prunes files by the batch's key range; above, that costs twice the memory
#: (500,000 changes of a table of 2,000,000 rows: 2.1 GiB instead of 1.0)
PRUNED_MERGE_ROWS = 100_000
#: a table is small up to so many bytes in its files, rows, and bytes in memory: two changes of 10,000 rows of 8 columns
#: take 12 ms of CPU where a MERGE takes 32
SMALL_BYTES, SMALL_ROWS, SMALL_PLAIN_BYTES = 256 << 10, 10_000, 8 << 20


def match_columns(held: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """The columns that tell rows apart, by the names that the lake's table gave them first."""
    if not key:
        return [ROW_HASH, COPY]
    names = {name.lower(): name for name in held.names}
    return [*(names[name.lower()] for name in key), *([KEY_TEXT] if KEY_TEXT in held.names else [])]


def living(held: pa.Schema) -> str:
    """SQL for the rows that are not deleted."""
    return f"{quoted(IS_DELETED)} IS NOT TRUE" if IS_DELETED in held.names else "TRUE"


def has_living(current: DeltaTable) -> bool:
    query = f"SELECT {quoted(GSN)} FROM t WHERE {living(schema_of(current))} LIMIT 1"  # noqa: S608  (constants)
    return bool(scan(current, query).read_all().num_rows)


def read_rows(current: DeltaTable, match: Sequence[str], keys: set[Key], from_gsn: int) -> pa.Table:
    """The current state's living rows with these keys and this number or a higher one."""
    schema = schema_of(current)
    columns = [pa.array([key[place] for key in keys], schema.field(name).type) for place, name in enumerate(match)]
    wanted = pa.table(columns, list(match))
    within = key_bounds(wanted, match).condition({found.name: found for found in schema})
    first = wanted[match[0]].unique()
    found = [schema.empty_table()]
    condition = f"{quoted(GSN)} >= {from_gsn} AND {within} AND {living(schema)}"
    for batch in scan(current, f"SELECT * FROM t WHERE {condition}"):  # noqa: S608  (quoted names, own literals)
        near = pa.table(batch).filter(pc.is_in(batch.column(match[0]), first)).cast(schema)
        found.append(near.filter(pa.array([key in keys for key in row_keys(near, match)], pa.bool_())))
    return pa.concat_tables(found)


def copies_held(current: DeltaTable, hashes: pa.ChunkedArray, most: int) -> dict[bytes, list[int]]:
    """Of each of these rows the highest copy numbers that the lake has, at most so many, in order."""
    held: defaultdict[bytes, list[int]] = defaultdict(list)
    wanted = hashes.unique()
    for batch in scan(current, f"SELECT {ROW_HASH}, {COPY} FROM t"):  # noqa: S608  (constants)
        found = batch.filter(pc.is_in(batch.column(0), wanted))
        for row, copy in zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True):
            copies = held[row]
            if len(copies) < most:
                heappush(copies, copy)
            else:
                heappushpop(copies, copy)
    return {row: sorted(copies) for row, copies in held.items()}


def unknown_texts(current: DeltaTable) -> list[str]:
    """What rows of the table have in `_absent`, those with the fewest columns first."""
    if ABSENT not in schema_of(current).names:
        return []
    query = f"SELECT DISTINCT {quoted(ABSENT)} FROM t WHERE {quoted(ABSENT)} IS NOT NULL"  # noqa: S608  (a constant)
    return sorted(scan(current, query).read_all()[ABSENT].to_pylist(), key=lambda text: (len(json.loads(text)), text))


def merge_effect(
    current: DeltaTable,
    effect: pa.Table,
    match: Sequence[str],
    transactions: Transactions,
    bounds: KeyBounds | None = None,
) -> None:
    """One commit: a MERGE; all rows anew where the table is small and has no change feed; a plain append where no row
    of the table can be one of the effect's: it is empty, or the effect has new copies of rows without a key alone. It
    always commits, for its transactions' sake.

    `bounds` of the effect's keys have it skip files where it is large, too.
    """
    is_new = list(match) == [ROW_HASH, COPY] and not pc.any(effect[DELETED]).as_py()
    if is_new or not has_files(current) or effect.num_rows == 0:
        append(current, effect.filter(pc.invert(effect[DELETED])).select(schema_of(current).names), transactions)
        return
    if not has_change_feed(current) and (rows := _merged_rows(current, effect, match)) is not None:
        replace_rows(current, rows, transactions)
        return
    deleted = f"s.{quoted(DELETED)}"
    # Spelled out: delta-rs's own "all columns" breaks on a name with a backtick.
    values = {f"t.{quoted(name)}": f"s.{quoted(name)}" for name in effect.column_names if name != DELETED}
    (
        current.merge(
            effect,
            match_predicate(current, effect, match, bounds),
            source_alias="s",
            target_alias="t",
            # Not streamed, delta-rs reads the source's key range first and skips files outside of it.
            streamed_exec=effect.num_rows > PRUNED_MERGE_ROWS,
            writer_properties=WRITER,
            commit_properties=commit_properties(*transactions),
        )
        .when_matched_delete(deleted)
        .when_matched_update(values)
        .when_not_matched_insert(values, f"NOT {deleted}")
        .execute()
    )


def _merged_rows(current: DeltaTable, effect: pa.Table, match: Sequence[str]) -> pa.Table | None:
    """All rows of a small table with the effect: planning a MERGE costs more. None where a MERGE must tell."""
    schema = schema_of(current)
    names = set(effect.column_names)
    if size_bytes(current) > SMALL_BYTES or effect.num_rows > SMALL_ROWS or not names.issuperset(schema.names):
        return None
    if any(pa.types.is_floating(schema.field(name).type) for name in match):
        return None  # there are two zeros, and what is no number equals itself in a MERGE alone
    held = read_small(current, SMALL_ROWS, SMALL_PLAIN_BYTES)
    if held is None:
        return None
    kept = without_keys(held, effect, match)
    puts = effect.filter(pc.invert(effect[DELETED])).select(schema.names).cast(schema)
    return pa.concat_tables([kept, puts]).combine_chunks()


def without_keys(rows: pa.Table, effect: pa.Table, match: Sequence[str]) -> pa.Table:
    """The rows that have no key of the effect's; few have one of its values in the first column, and another key."""
    near = pc.is_in(rows[match[0]], effect[match[0]].combine_chunks().cast(rows[match[0]].type).unique())
    places = pc.indices_nonzero(near)
    if not len(places):
        return rows
    gone: pa.Array | list[bool] = [True] * len(places)
    if len(match) > 1:
        changed = set(row_keys(_comparable(effect, match), match))
        gone = [key in changed for key in row_keys(_comparable(rows.take(places), match), match)]
    kept = pa.repeat(pa.scalar(value=True), rows.num_rows)
    return rows.filter(pc.replace_with_mask(kept, near.combine_chunks(), pc.invert(pa.array(gone, pa.bool_()))))


def _comparable(rows: pa.Table, match: Sequence[str]) -> pa.Table:
    """The key's columns, of which Python has each value: its calendar ends in the year 9999."""
    columns = [rows[name] for name in match]
    return pa.table(
        [each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in columns], list(match)
    )


def match_predicate(current: DeltaTable, effect: pa.Table, match: Sequence[str], bounds: KeyBounds | None) -> str:
    """Equality of all of `match`; null-safe only where a key is null, which an unrepresentable value is."""
    conditions = []
    for name in match:
        equal = "IS NOT DISTINCT FROM" if effect[name].null_count else "="
        conditions.append(f"(t.{quoted(name)} {equal} s.{quoted(name)})")
    if bounds is not None:
        conditions.append(f"({bounds.condition({found.name: found for found in schema_of(current)}, 't.')})")
    return " AND ".join(conditions)
