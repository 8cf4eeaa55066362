"""A changelog's rows by number, however many there are, in parts that fit into memory.

Comes in: a way to read rows of a range of numbers, in any order. Goes out: those rows in order, as tables of few rows.
What is sorted at once is within `Held`; where a range has more it is read to its end for a sample of its numbers, which
parts it, and then again, part by part. Rows of one number that are more are not sorted but read once for each kind, in
the order in which kinds count.

Beside what is held there are two of the reader's batches (of at most 8192 rows), and the sample.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import CHANGE_TYPE, GSN

from spark_sink.export.rows import PLACES

HELD_ROWS, HELD_BYTES = 100_000, 64 << 20
#: of one table, however many share what may be held
LEAST_ROWS, LEAST_BYTES = 1000, 1 << 20
CONVERTED_ROWS = 4096
#: numbers of a range, and of each of its parts
SAMPLED, SAMPLED_OF_PART = 1 << 14, 64
_PLACE = "_menura_place"
T = TypeVar("T")

#: rows with numbers above the first up to the second; of this kind, or of all
Read = Callable[[int, int, str | None], Iterator[pa.Table]]


@dataclass(frozen=True, slots=True)
class Held:
    """How much is held at once; twice as many bytes while it is sorted."""

    rows: int = HELD_ROWS
    bytes: int = HELD_BYTES

    def shared(self, tables: int) -> "Held":
        """What each of these tables may hold."""
        count = max(tables, 1)
        return Held(max(self.rows // count, LEAST_ROWS), max(self.bytes // count, LEAST_BYTES))


def ordered(read: Read, low: int, high: int, held: Held) -> Iterator[pa.Table]:
    """By number, and those of one number by kind."""
    todo = [(low, high)]
    while todo:
        low, high = todo.pop()
        found, ends = _within(read(low, high, None), held)
        if not ends:
            yield from _sorted(found)
        elif high - low == 1:
            for kind in PLACES:
                for rows in read(low, high, kind):
                    yield from _slices(rows)
        else:
            inner = sorted({min(end, high - 1) for end in ends})
            todo += reversed(list(zip([low, *inner], [*inner, high], strict=True)))


def _within(batches: Iterator[pa.Table], held: Held) -> tuple[list[pa.Table], list[int]]:
    """All of them; or none, and numbers between parts of half as much as may be held, where they are more."""
    found: list[pa.Table] = []
    sample: list[int] = []  # of each `step`th row
    rows, size, step = 0, 0, 1
    for batch in batches:
        sample += batch[GSN].to_pylist()[-rows % step :: step]
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows <= held.rows and size <= held.bytes:
            found.append(batch)
        else:
            found.clear()
        while len(sample) > SAMPLED:
            sample, step = sample[::2], 2 * step
    if rows <= held.rows and size <= held.bytes:
        return found, []
    wanted = int(2 * max(rows / held.rows, size / held.bytes)) + 1
    parts = max(min(wanted, len(sample) // SAMPLED_OF_PART), 2)
    sample.sort()
    return [], [sample[len(sample) * part // parts] for part in range(1, parts)]


def _sorted(found: list[pa.Table]) -> Iterator[pa.Table]:
    if not found:
        return
    rows = pa.concat_tables(found)
    found.clear()  # the caller's, which waits meanwhile
    place = pc.index_in(rows[CHANGE_TYPE], pa.array(PLACES))
    rows = rows.append_column(_PLACE, place).sort_by([(GSN, "ascending"), (_PLACE, "ascending")])
    yield from _slices(rows.drop_columns([_PLACE]))


def _slices(rows: pa.Table) -> Iterator[pa.Table]:
    for begin in range(0, rows.num_rows, CONVERTED_ROWS):
        yield rows.slice(begin, CONVERTED_ROWS)


def merged(parts: Sequence[tuple[int, Callable[[], Iterator[T]]]], number: Callable[[T], int]) -> Iterator[T]:
    """By number; each part is in order, has none below its number, and is begun only where its turn may be.

    >>> list(merged([(5, lambda: iter([7, 9])), (1, lambda: iter([1, 8]))], lambda each: each))
    [1, 7, 8, 9]
    """
    waiting = sorted(((first, place) for place, (first, _) in enumerate(parts)), reverse=True)
    begun: list[tuple[int, int, T, Iterator[T]]] = []
    while waiting or begun:
        if waiting and (not begun or waiting[-1][0] <= begun[0][0]):
            place = waiting.pop()[1]
            items = parts[place][1]()
            for item in items:
                heappush(begun, (number(item), place, item, items))
                break
            continue
        _, place, item, items = begun[0]
        yield item
        following = next(items, None)
        if following is None:
            heappop(begun)
        else:
            heapreplace(begun, (number(following), place, following, items))
