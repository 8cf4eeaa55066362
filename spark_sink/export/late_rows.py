"""Rows of a dump that came into a changelog below the numbers that an export has passed.

A chunk's rows have the number of the change that they are later than, and come when other changes with higher numbers
are there already. Comes in: the changelog as it was at the export's position, and as it is. Goes out: the rows that
came since with such numbers, but for those whose key has a row with a higher number: that one is out, and decides.

Only files that differ are read. Where files were gathered or written anew (an ALTER changed a column's type), numbers
with more rows than before are looked for, and their rows compared with those that were there, as they are written now.
In memory are `Held` rows in order, of `BLOCK_ROWS` the keys, and hashes of at most `COMPARED_ROWS` rows.
"""

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, QueryBuilder
from menura.change_batch import ABSENT, CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN, POSITION, TRANSACTION_ID, UNREPRESENTABLE

from spark_sink.export.ranges import Held, Read, ordered
from spark_sink.export.rows import Row, Shape
from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.delta_table import quoted, scan, schema_of
from spark_sink.lake.logged_changes import TRUNCATE
from spark_sink.landed.lake_schema import fit

#: of which keys are looked for at once among what is out
BLOCK_ROWS = 20_000
COMPARED_ROWS = 1_000_000
#: into so many parts numbers are divided to look where rows came
PARTS = 100_000
READ_ROWS = 8192


def late_rows(former: DeltaTable, changelog: DeltaTable, gsn: int, shape: Shape, held: Held) -> Iterator[Row]:
    """In order. `gsn`: up to which number the export has `former`'s changes."""
    block: list[pa.Table] = []
    for rows in _came_since(former, changelog, gsn, held):
        block.append(rows)
        size = sum(each.nbytes for each in block)
        if sum(map(len, block)) >= min(BLOCK_ROWS, held.rows) or size > held.bytes:
            yield from _undecided(former, changelog, block, gsn, shape)
            block = []
    yield from _undecided(former, changelog, block, gsn, shape)


def _undecided(
    former: DeltaTable, changelog: DeltaTable, block: list[pa.Table], gsn: int, shape: Shape
) -> Iterator[Row]:
    """Those of the block, which is in order, of which nothing later is out."""
    if not block:
        return
    low = block[0][GSN][0].as_py()
    keys = {row.identity for rows in block for row in shape.rows(rows)}
    later: dict[str, int] = {}
    emptied_gsn = 0
    for row in _changes(former, schema_of(changelog), low, gsn, shape):
        if row.kind == TRUNCATE:
            emptied_gsn = max(emptied_gsn, row.gsn)
        elif (key := row.identity) in keys:
            later[key] = max(later.get(key, 0), row.gsn)
    for rows in block:
        yield from (row for row in shape.rows(rows) if row.gsn >= max(later.get(row.identity, 0), emptied_gsn))


def _came_since(former: DeltaTable, changelog: DeltaTable, gsn: int, held: Held) -> Iterator[pa.Table]:
    """In order."""
    before, now = set(_paths(former)), set(_paths(changelog))
    schema = schema_of(changelog)
    new, gone = _files(changelog, now - before), _files(former, before - now)
    if before <= now:
        yield from ordered(lambda *of: _read(new, schema, *of), 0, gsn, held)
        return
    for low, high, count in _grown(former, changelog, gsn, held.rows):
        parts = count // COMPARED_ROWS + 1
        yield from ordered(_without(new, gone, schema, parts), low, high, held)


def _grown(former: DeltaTable, changelog: DeltaTable, gsn: int, most_rows: int) -> list[tuple[int, int, int]]:
    """Ranges of numbers in which rows came, of the numbers that are kept, and how many rows they have now."""
    begins_gsn = read_kept(changelog).begins_gsn
    width = max(gsn - begins_gsn, 0) // PARTS + 1
    sides = " UNION ALL ".join(
        f"SELECT ({quoted(GSN)} - {begins_gsn}) / {width} AS part, {sign} AS more FROM {name}"  # noqa: S608  (numbers)
        f" WHERE {quoted(GSN)} >= {begins_gsn} AND {quoted(GSN)} <= {gsn}"
        for name, sign in (("t", 1), ("f", -1))
    )
    query = (
        "SELECT part, SUM(CASE WHEN more > 0 THEN 1 ELSE 0 END) AS rows"  # noqa: S608  (numbers)
        f" FROM ({sides}) GROUP BY part HAVING SUM(more) > 0 ORDER BY part"
    )
    both = QueryBuilder().register("t", changelog).register("f", former)
    found: list[tuple[int, int, int]] = []
    for batch in pa.RecordBatchReader.from_stream(both.execute(query)):
        for part, rows in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            low = begins_gsn + part * width - 1
            high = min(low + width, gsn)
            if found and found[-1][2] + rows <= most_rows:
                found[-1] = (found[-1][0], high, found[-1][2] + rows)
            else:
                found.append((low, high, rows))
    return found


def _without(new: ds.Dataset, gone: ds.Dataset, schema: pa.Schema, parts: int) -> Read:
    """Rows that one has and the other has not: of equal ones as many as it has more."""

    def read(low: int, high: int, kind: str | None) -> Iterator[pa.Table]:
        for part in range(parts):
            had = Counter(
                digest
                for rows in _read(gone, schema, low, high, kind)
                for digest in _digests(rows)
                if digest % parts == part
            )
            for rows in _read(new, schema, low, high, kind):
                is_new = []
                for digest in _digests(rows):
                    is_of_part = digest % parts == part
                    is_new.append(is_of_part and not had[digest])
                    if is_of_part and had[digest]:
                        had[digest] -= 1
                yield rows.filter(pa.array(is_new, pa.bool_()))

    return read


def _digests(rows: pa.Table) -> Iterator[int]:
    columns = [column.to_pylist() for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield int.from_bytes(blake2b(repr(values).encode("utf-8", "surrogatepass"), digest_size=16).digest())


def _paths(table: DeltaTable) -> list[str]:
    return list(pa.table(table.get_add_actions())["path"].to_pylist())


def _files(table: DeltaTable, paths: set[str]) -> ds.Dataset:
    whole = table.to_pyarrow_dataset()
    fragments = [each for each in whole.get_fragments() if each.path.lstrip("/") in paths]
    return ds.FileSystemDataset(fragments, whole.schema, whole.format, whole.filesystem)


def _read(files: ds.Dataset, schema: pa.Schema, low: int, high: int, kind: str | None) -> Iterator[pa.Table]:
    condition = (pc.field(GSN) > low) & (pc.field(GSN) <= high)
    if kind is not None:
        condition &= pc.field(CHANGE_TYPE) == kind
    # One batch after the other: by default Arrow reads a few million rows ahead.
    batches = files.to_batches(filter=condition, batch_size=READ_ROWS, batch_readahead=1, fragment_readahead=1)
    for batch in batches:
        if batch.num_rows:
            yield as_written(pa.table(batch), files.schema, schema)


def as_written(rows: pa.Table, former: pa.Schema, schema: pa.Schema) -> pa.Table:
    """Rows of a changelog's former columns as it has them now.

    A column keeps its place for ever; it can get another name (`changelog`), and a wider type.
    """
    names = dict(zip(former.names, schema.names, strict=False))
    return fit(rows.rename_columns([names[name] for name in rows.column_names]), schema)


def _changes(former: DeltaTable, schema: pa.Schema, above_gsn: int, gsn: int, shape: Shape) -> Iterator[Row]:
    """Those that are out, with what tells their rows apart."""
    held = schema_of(former)
    key = [column for column in shape.columns if column.name in shape.key] or list(shape.columns)
    facts = (CHANGE_TYPE, GSN, TRANSACTION_ID, COMMIT_TIMESTAMP_US, POSITION, UNREPRESENTABLE, ABSENT)
    wanted = {name.lower() for name in (*(column.lake for column in key), *facts, shape.row_end)}
    names = dict(zip(held.names, schema.names, strict=False))
    chosen = ", ".join(quoted(name) for name in held.names if names[name].lower() in wanted)
    query = f"SELECT {chosen} FROM t WHERE {quoted(GSN)} > {above_gsn} AND {quoted(GSN)} <= {gsn}"  # noqa: S608
    of_key = Shape(tuple(key), shape.key, shape.row_end)
    for batch in scan(former, query):
        yield from of_key.rows(as_written(pa.table(batch), held, schema))
