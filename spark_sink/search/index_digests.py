"""Digests of the rows of an index in a folder, for a comparison with the lake. Nothing is changed."""

from collections.abc import Iterator
from dataclasses import dataclass

import tantivy

from spark_sink.search.digests import Sums, bounds, sums_of
from spark_sink.search.entries import Reached
from spark_sink.search.index import PLACE, SUM, OpenIndex


@dataclass(frozen=True, slots=True)
class FolderDigests:
    """A `DigestedIndex`."""

    index: OpenIndex
    reached: Reached

    @property
    def rows(self) -> int:
        return self.index.rows

    def sums(self, bits: int) -> list[Sums]:
        return [sums_of(self.pairs(which, bits)) for which in range(1 << bits)]

    def pairs(self, which: int, bits: int) -> Iterator[tuple[int, int]]:
        integer = tantivy.FieldType.Integer
        query = tantivy.Query.range_query(self.index.schema, PLACE, integer, *bounds(which, bits))
        addresses = [address for _, address in self.index.searcher.search(query, max(1, self.rows), count=False).hits]
        places, sums = (self.index.searcher.fast_field_values(name, addresses) for name in (PLACE, SUM))
        for place, row in zip(places, sums, strict=True):
            yield _number(place), _number(row)


def _number(value: float | bool | None) -> int:
    assert isinstance(value, int)  # each row has both
    return value
