"""The plan of a dump: a table's key space in ranges of about as many rows each, walked side by side.

Comes in: a connection made ready by `statements.prepare`, a table and its key. Goes out: ranges whose bounds are keys
that the server returned, in the order of the key's index, so that any collation is right. Cheap on a busy server: the
two ends, then some hundred descents into the index: the estimate of a segment is its index dive (EXPLAIN), and it is
halved at the key that the server finds next to a guess in the middle of its values. No table is scanned, counted or
sampled. Estimates may be off: they only decide how the work is shared.

Both servers tell of no part of an index more than half of the rows that their statistics have. Only few parts can have
that many: where more do, the statistics are stale, and such parts count alike, one halved as often as the other.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection

from agent.sources.mysql.ddl.model import Table
from agent.sources.mysql.server.connection import Facts, is_connection_lost, rows
from agent.sources.mysql.server.quoting import quoted, quoted_name
from agent.sources.mysql.snapshot import statements
from agent.sources.mysql.snapshot.guesses import Guesses
from agent.sources.mysql.snapshot.keys import Form, Key
from agent.sources.mysql.snapshot.statements import Bound, Where

T = TypeVar("T")

MOST_RANGES = 32
#: fewer rows, and fewer bytes, are not worth a range of their own
LEAST_ROWS = 100_000
LEAST_BYTES = 64 << 20
#: segments per range, of which ranges of like size are put together
_FINENESS = 3
#: then the plan is made from what is known
MOST_STATEMENTS = 1_500
MOST_SECONDS = 15.0
#: segments with half of the rows, of a table whose statistics are not stale; an estimate may be twice too high
_MOST_HALVES = 4
#: partitions are halved one by one, and rounded
_HALF_TOLERANCE = 0.01
#: a smaller part cut off a segment is looked for at another guess
_LEAST_PART = 0.1


@dataclass(frozen=True, slots=True)
class Range:
    """As `menura.v1.DumpRange`: above `lower` up to and with `upper`."""

    number: int
    lower: str
    upper: str


@dataclass(frozen=True, slots=True)
class DumpPlanMade:
    #: None: the whole table in one snapshot
    key: Key | None
    #: adjacent, from the first key to the last; never empty with a key
    ranges: tuple[Range, ...]
    #: of the server's statistics; None: they are stale, or there are none
    estimated_rows: int | None
    estimated_bytes: int | None
    #: the first and the last value of the key's first column where that is a number: how far a range is tells how much
    #: is left of it even when the statistics are stale
    ends: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class _Segment:
    """Keys from `first` to `last`, both real ones."""

    first: Bound
    last: Bound
    rows: int
    #: all that the server tells is that it has half of the table's rows, or more
    is_half: bool = False
    #: how often it was halved
    depth: int = 0


def plan(
    connection: "Connection[Any]", facts: Facts, table: Table, key: Key | None, most_ranges: int = MOST_RANGES
) -> DumpPlanMade:
    """Statements inside `server_errors`; with one range at most no row is looked at."""
    estimated_rows, estimated_bytes = _estimates(connection, table)
    if key is None:
        return DumpPlanMade(None, (), estimated_rows, estimated_bytes)
    index = _Index(connection, facts, table, key)
    estimated_rows = index.table_rows
    first = last = None
    # MySQL reads no range of an index with a descending part backwards: looking for a segment's last key would sort it
    if most_ranges > 1 and not any(column.descending for column in key.columns):
        first, last = index.end(backwards=False), index.end(backwards=True)
    bounds = ["", ""]
    ends = None
    if first is not None and last is not None:
        wanted = min(most_ranges, max(estimated_rows // LEAST_ROWS, (estimated_bytes or 0) // LEAST_BYTES))
        segments = _segments(index, first, last, wanted, most_ranges)
        if sum(segment.is_half for segment in segments) > _MOST_HALVES:
            wanted, estimated_rows, estimated_bytes = most_ranges, None, None
        bounds[1:1] = [statements.as_json(key, segment.last) for segment in _shared(segments, wanted)]
        if key.columns[0].form is Form.NUMBER:
            ends = float(first[0]), float(last[0])
    ranges = tuple(Range(n, lower, upper) for n, (lower, upper) in enumerate(pairwise(bounds)))
    return DumpPlanMade(key, ranges, estimated_rows, estimated_bytes, ends)


def _estimates(connection: "Connection[Any]", table: Table) -> tuple[int | None, int | None]:
    statement = (
        "SELECT table_rows, data_length FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    )
    found = rows(connection, statement, table)
    if not found:
        return None, None
    return tuple(None if number is None else int(number) for number in found[0])  # type: ignore[return-value]


def _segments(index: "_Index", first: Bound, last: Bound, wanted: int, most_ranges: int) -> list[_Segment]:
    """Of the whole key space, each small beside one of `wanted` ranges, or many where it can't be told how large."""
    segments = [index.segment(first, last)]
    final: set[_Segment] = set()
    deadline = time.monotonic() + MOST_SECONDS
    while index.statements < MOST_STATEMENTS and time.monotonic() < deadline:
        found = [segment for segment in segments if segment not in final]
        largest = max(found, key=_greatness, default=None)
        if largest is None:
            break
        if largest.is_half:
            is_enough = len(segments) >= most_ranges * _FINENESS
        else:
            is_enough = largest.rows * wanted * _FINENESS <= sum(segment.rows for segment in segments) or wanted <= 1
        if is_enough:
            break
        parts = index.split(largest)
        if parts is None:
            final.add(largest)
        else:
            at = segments.index(largest)
            segments[at : at + 1] = parts
    return segments


def _greatness(segment: _Segment) -> tuple[bool, int]:
    return segment.is_half, -segment.depth if segment.is_half else segment.rows


def _shared(segments: list[_Segment], wanted: int) -> list[_Segment]:
    """The last segment of each range but the last range."""
    aim = sum(segment.rows for segment in segments) / max(1, wanted)
    found: list[_Segment] = []
    taken = 0.0
    for segment in segments[:-1]:
        taken += segment.rows
        # a little early is as good as a little late
        if taken >= aim * (len(found) + 1) - segment.rows / 2 and len(found) < wanted - 1:
            found.append(segment)
    return found


class _Index:
    """The key's index on the server."""

    def __init__(self, connection: "Connection[Any]", facts: Facts, table: Table, key: Key) -> None:
        self.key = key
        self.statements = 0
        self._connection = connection
        self._facts = facts
        self._table = table
        self._guesses = Guesses(key, self._ask, table)
        #: by the server's statistics
        self.table_rows = self.rows(Where())

    def rows(self, where: Where) -> int:
        """The estimate of the keys that fulfil `where`.

        USE INDEX: with FORCE INDEX there is nothing to choose, and MySQL makes no dive.
        """
        format_ = " FORMAT=TRADITIONAL" if self._facts.flavor == "mysql" else ""
        statement = (
            f"EXPLAIN{format_} SELECT 1 FROM {quoted(self._table)} USE INDEX ({quoted_name(self.key.index)})"  # noqa: S608
            f"{where.sql and ' WHERE ' + where.sql}"
        )
        self.statements += 1
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            at = [str(column[0]).lower() for column in cursor.description or ()].index("rows")
            return max((int(row[at] or 0) for row in cursor.fetchall()), default=0)

    def end(self, *, backwards: bool) -> Bound | None:
        """The first key or the last; None: the table is empty, or that can't be read."""
        return self._key(Where(), backwards=backwards)

    def split(self, segment: _Segment) -> tuple[_Segment, _Segment] | None:
        """At the best of some guesses; None: nothing is between."""
        best: tuple[_Segment, _Segment] | None = None
        for guess in self._guesses.between(segment.first, segment.last):
            parts = self._at(guess, segment)
            if parts is not None and (best is None or _least(parts) > _least(best)):
                best = parts
            if best is not None and _least(best) >= segment.rows * _LEAST_PART:
                break
        return best

    def _at(self, guess: Bound, segment: _Segment) -> tuple[_Segment, _Segment] | None:
        key = self.key
        right = self._key(statements.between(key, guess, segment.last, with_lower=True), backwards=False)
        if right is None:
            return None
        from_first = statements.between(key, segment.first, None, with_lower=True)
        left = self._key(from_first & statements.before(key, guess), backwards=True)
        if left is None:
            return None
        depth = segment.depth + 1
        return self.segment(segment.first, left, depth), self.segment(right, segment.last, depth)

    def segment(self, first: Bound, last: Bound, depth: int = 0) -> _Segment:
        if first == last:
            return _Segment(first, last, 1, is_half=False, depth=depth)
        rows = _readable(lambda: self.rows(statements.between(self.key, first, last, with_lower=True))) or 0
        half = max(1, self.table_rows // 2)
        return _Segment(first, last, rows, abs(rows - half) <= half * _HALF_TOLERANCE, depth)

    def _key(self, where: Where, *, backwards: bool) -> Bound | None:
        hidden = statements.hidden_columns(self.key)
        statement = statements.select(self._table, hidden, self.key, where, 1, backwards=backwards)
        found = _readable(lambda: self._ask(statement))
        if not found:
            return None
        bound = statements.bound_texts(self.key, statements.bound_of(self.key, found[0]))
        assert bound is not None
        return bound

    def _ask(self, statement: str) -> list[tuple[bytes, ...]]:
        """Rows of ASCII texts."""
        self.statements += 1
        found = rows(self._connection, statement)
        return [tuple(text if isinstance(text, bytes) else str(text).encode() for text in row) for row in found]


def _readable(ask: Callable[[], T]) -> T | None:
    """None where a page can't be read: the chunk that has it will name its rows, a plan does without them."""
    try:
        return ask()
    except pymysql.err.MySQLError as failed:
        if is_connection_lost(failed):
            raise
        return None


def _least(parts: tuple[_Segment, _Segment]) -> int:
    return min(part.rows for part in parts)
