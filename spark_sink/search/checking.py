"""Whether an index has its table's rows.

Comes in: an index, and the lake's rows at the index's cut. Goes out: numbers of rows, and of rows that differ. Rows are
compared by their keys' places: each range of places has a count and sums of keys' and rows' digests on both sides, and
where these differ, its rows are compared one by one. Nothing is changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from deltalake import DeltaTable

from spark_sink.errors import SearchIndexFailed
from spark_sink.export.rows import Shape
from spark_sink.lake.delta_table import read_layout
from spark_sink.reading import open_rows, own_columns
from spark_sink.search.columns import Definition, field_of
from spark_sink.search.digests import MODULUS, NO_ROWS, DigestedIndex, place_of, plus, range_of
from spark_sink.search.entries import Entry, Reached, sum_of
from spark_sink.work import TableId

#: of a range, at most, on average
RANGE_ROWS = 10_000
#: ranges whose rows are compared one by one; of others it is only said that they differ
MOST_RANGES = 64
#: of the number of ranges: OpenSearch gives 65,535 of them at most
MOST_BITS = 15


@dataclass(frozen=True, slots=True)
class Comparison:
    table: TableId
    cut: int
    index_rows: int
    lake_rows: int
    key_sums: tuple[int, int]
    #: of places, that differ
    ranges: int = 0
    #: of the first `MOST_RANGES` that differ: rows that only the lake has, only the index, both with other values
    missing: int = 0
    extra: int = 0
    other: int = 0
    #: the index was made for other columns
    columns_differ: bool = False

    @property
    def is_equal(self) -> bool:
        return not (self.ranges or self.columns_differ) and self.index_rows == self.lake_rows


def compare(lake: str | None, index: DigestedIndex, table: TableId) -> Comparison:
    """With the lake's rows at the index's cut; `lake` None: the lake that it was made from.

    Raises `SearchIndexFailed`, also for an index between two cuts; `TableNotInLake` where the lake has not that cut any
    more; OSError and DeltaError of the store.
    """
    reached = index.reached
    if reached.is_between:
        raise SearchIndexFailed(
            "comparing an index with the lake",
            f"the index of {table} has rows of cut {reached.cut} and some later ones: a process was ended in the midst",
            data="Nothing was compared",
            remedy="Bring it to the newest cut with `menura search index`, then compare again",
        )
    bits = min(MOST_BITS, (index.rows // RANGE_ROWS).bit_length())
    held = _LakeRows(lake or reached.lake, table, reached)
    of_lake = [NO_ROWS] * (1 << bits)
    for place, row in held.pairs():
        which = range_of(place, bits)
        of_lake[which] = plus(of_lake[which], place, row)
    of_index = index.sums(bits)
    differing = [which for which in range(1 << bits) if of_lake[which] != of_index[which]]
    missing, extra, other = _differences(index, held, differing[:MOST_RANGES], bits)
    return Comparison(
        table,
        reached.cut,
        index.rows,
        sum(rows for rows, _, _ in of_lake),
        (sum(keys for _, keys, _ in of_index) % MODULUS, sum(keys for _, keys, _ in of_lake) % MODULUS),
        len(differing),
        missing,
        extra,
        other,
        held.definition != reached.definition,
    )


class _LakeRows:
    """Read as an index is built."""

    def __init__(self, lake: str, table: TableId, reached: Reached) -> None:
        self._rows = open_rows(lake, table, reached.cut)
        current: DeltaTable = self._rows.current
        self._shape = Shape.of(self._rows.schema, read_layout(current), field_of)
        self.definition = Definition.of(self._shape)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Of each row its key's place and its digest."""
        for found in self._rows.tables(own_columns(self._rows)):
            for row in self._shape.rows(found):
                entry = Entry.of(row, self.definition)
                yield place_of(entry.key), sum_of(entry.text)


def _differences(index: DigestedIndex, held: _LakeRows, ranges: list[int], bits: int) -> tuple[int, int, int]:
    if not ranges:
        return 0, 0, 0
    chosen = set(ranges)
    of_lake = {place: row for place, row in held.pairs() if range_of(place, bits) in chosen}
    of_index = [pair for which in ranges for pair in index.pairs(which, bits)]
    seen = dict(of_index)
    twice = len(of_index) - len(seen)
    both = of_lake.keys() & seen.keys()
    other = sum(of_lake[place] != seen[place] for place in both)
    return len(of_lake) - len(both), len(seen) - len(both) + twice, other
