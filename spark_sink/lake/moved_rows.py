"""Whether changes that lack values may have carried values of a row to another key, while it was proven part by part.

Comes in: a table's changelog, and the number at which the first of its verifications began. Goes out: why that may be.
Nothing is written.

A verification and a repair look at each part of a table at a moment of its own. A change that lacks values and stays
with its key is of the part in which its row was proven. One that gives its row another key takes values along, perhaps
from a part that is not proven yet to one that is. So what such changes leave is not known to be the source's.

Of the changes since then only keys are read, those of changes that lack values are held, and all of it is bounded.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, ChangeType

from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.current_rows import match_columns
from spark_sink.lake.delta_table import quoted, read_layout, scan, schema_of
from spark_sink.lake.net_effect import KEY_TEXT

#: rows of files with changes that are looked at
MOST_CHANGES = 50_000_000
#: changes that lack values, of which the keys are in memory
MOST_PARTIAL, MOST_PARTIAL_BYTES = 1_000_000, 64 << 20
#: of preimages, looked up at once
PIECE_ROWS, PIECE_BYTES = 262_144, 16 << 20

MOVED = "a change without all values gave a row another key in the meantime, and where these are from can't be told"
WITHOUT_KEY = "a change without all values came to the table, which has no key, in the meantime"
CUT_OFF = "the lake does not keep the changes of the meantime, and one without all values may have moved a row"
TOO_MANY = "more changes came in the meantime than are looked at for rows that were moved without all values"


def why_unsure(changelog: DeltaTable, since_gsn: int) -> str:
    """Why a row may have been moved so by a change above this number; '' where none was."""
    schema, key = schema_of(changelog), read_layout(changelog).key
    if ABSENT not in schema.names:
        return ""
    if read_kept(changelog).begins_gsn > since_gsn + 1:
        return CUT_OFF
    if _rows_above(changelog, since_gsn) > MOST_CHANGES:
        return TOO_MANY
    names = [name for name in match_columns(schema, key) if name != KEY_TEXT] if key else []
    after = _partial(_images(changelog, names, f"{quoted(GSN)} > {since_gsn} AND {_IS_PARTIAL}"))
    if after is None:
        return TOO_MANY
    if not after.num_rows:
        return ""
    if not key:
        return WITHOUT_KEY
    first, last = after[GSN][0].as_py() - 1, after[GSN][-1].as_py()
    between = f"{quoted(GSN)} >= {first} AND {quoted(GSN)} <= {last} AND {_IS_BEFORE}"
    moved = any(_has_moved(before, after, names) for before in _pieces(_images(changelog, names, between)))
    return MOVED if moved else ""


_IS_PARTIAL = f"{quoted(CHANGE_TYPE)} = '{ChangeType.update_postimage.name}' AND {quoted(ABSENT)} IS NOT NULL"
_IS_BEFORE = f"{quoted(CHANGE_TYPE)} = '{ChangeType.update_preimage.name}'"


def _rows_above(changelog: DeltaTable, gsn: int) -> int:
    """Of all files that may have such a row; one without statistics counts as too many."""
    files = pa.table(changelog.get_add_actions(flatten=True))
    highest = files[f"max.{GSN}"].to_pylist() if f"max.{GSN}" in files.column_names else [None] * files.num_rows
    rows = [
        count if count is not None else MOST_CHANGES + 1
        for high, count in zip(highest, files["num_records"].to_pylist(), strict=True)
        if high is None or high > gsn
    ]
    return sum(rows)


def _images(changelog: DeltaTable, names: Sequence[str], condition: str) -> Iterator[pa.RecordBatch]:
    """Their numbers and these columns, as they are read."""
    chosen = ", ".join(map(quoted, [GSN, *names]))
    yield from scan(changelog, f"SELECT {chosen} FROM t WHERE {condition}")  # noqa: S608  (own literals, numbers)


def _partial(images: Iterator[pa.RecordBatch]) -> pa.Table | None:
    """In the order of their numbers; None where they are more than are held."""
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in images:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows > MOST_PARTIAL or size > MOST_PARTIAL_BYTES:
            return None
    if not batches:
        return pa.table({GSN: pa.array([], pa.int64())})
    return pa.Table.from_batches(batches).sort_by(GSN).combine_chunks()


def _pieces(images: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in images:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PIECE_ROWS or size >= PIECE_BYTES:
            yield pa.Table.from_batches(batches).combine_chunks()
            batches, rows, size = [], 0, 0
    if batches:
        yield pa.Table.from_batches(batches).combine_chunks()


def _has_moved(before: pa.Table, after: pa.Table, names: Sequence[str]) -> bool:
    """Whether a preimage has another key than its postimage among `after`, or one that is not known.

    An update's two images have numbers that follow each other. Those that the lake derives from a parent's change have
    its number, both of them, and several may have the same one: these are not told apart.
    """
    numbers = after[GSN].combine_chunks()
    if pc.any(pc.is_in(before[GSN], numbers)).as_py():
        return True
    places = pc.index_in(pc.add(before[GSN], 1), numbers)
    old, new = before.filter(places.is_valid()), after.take(places.drop_null())
    return not all(_are_same(new[name], old[name]) for name in names)


def _are_same(after: pa.ChunkedArray, before: pa.ChunkedArray) -> bool:
    """A value that is not known is another one."""
    return bool(pc.all(pc.equal(after, before).fill_null(False), min_count=0).as_py())
