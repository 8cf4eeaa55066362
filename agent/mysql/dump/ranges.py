"""The plan of a dump: a table's key space in ranges of about as many rows each, walked side by side.

Comes in: a connection made ready by `statements.prepare`, a table and its key. Goes out: ranges whose bounds are keys
that the server returned, in the order of the key's index, so that any collation is right. Cheap on a busy server: the
two ends, then some hundred descents into the index: the estimate of a segment is its index dive (EXPLAIN), and it is
halved at the key that the server finds next to a guess in the middle of its values. No table is scanned, counted or
sampled. Estimates may be off: they only decide how the work is shared.
"""

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pymysql.connections import Connection

from agent.mysql.ddl.model import Table
from agent.mysql.dump import statements
from agent.mysql.dump.guesses import Guesses
from agent.mysql.dump.keys import Form, Key
from agent.mysql.dump.statements import Bound, Where
from agent.mysql.server.connection import Facts, rows
from agent.mysql.server.identifiers import quoted, quoted_name

MOST_RANGES = 32
#: fewer rows, and fewer bytes, are not worth a range of their own
LEAST_ROWS = 100_000
LEAST_BYTES = 64 << 20
#: segments per range, of which ranges of like size are put together
_FINENESS = 3
#: then the plan is made from what is known
MOST_STATEMENTS = 1_500
MOST_SECONDS = 15.0
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
    #: of the server's statistics
    estimated_rows: int | None
    estimated_bytes: int | None
    #: the first and the last value of the key's first column where that is a number: how far a range is tells how much
    #: is left of it even when the statistics are stale
    ends: tuple[float, float] | None = None

    @property
    def row_bytes(self) -> int | None:
        if not self.estimated_rows or self.estimated_bytes is None:
            return None
        return self.estimated_bytes // self.estimated_rows


@dataclass(frozen=True, slots=True)
class _Segment:
    """Keys from `first` to `last`, both real ones."""

    first: Bound
    last: Bound
    rows: int


def plan(
    connection: "Connection[Any]", facts: Facts, table: Table, key: Key | None, most_ranges: int = MOST_RANGES
) -> DumpPlanMade:
    """Statements inside `server_errors`."""
    estimated_rows, estimated_bytes = _estimates(connection, table)
    if key is None:
        return DumpPlanMade(None, (), estimated_rows, estimated_bytes)
    index = _Index(connection, facts, table, key)
    estimated_rows = index.rows(Where())
    wanted = max(estimated_rows // LEAST_ROWS, (estimated_bytes or 0) // LEAST_BYTES)
    first = last = None
    # MySQL reads no range of an index with a descending part backwards: looking for a segment's last key would sort it
    if not any(column.descending for column in key.columns):
        first, last = index.end(backwards=False), index.end(backwards=True)
    bounds = ["", ""]
    ends = None
    if first is not None and last is not None:
        if wanted > 1 and most_ranges > 1:
            bounds[1:1] = _uppers(index, first, last, min(wanted, most_ranges))
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


def _uppers(index: "_Index", first: Bound, last: Bound, wanted: int) -> list[str]:
    """The upper bounds of the ranges but the last."""
    segments = [_Segment(first, last, index.rows(statements.between(index.key, first, last, with_lower=True)))]
    final: set[_Segment] = set()
    deadline = time.monotonic() + MOST_SECONDS
    while index.statements < MOST_STATEMENTS and time.monotonic() < deadline:
        enough = sum(segment.rows for segment in segments) / (wanted * _FINENESS)
        at = max((n for n, s in enumerate(segments) if s not in final), key=lambda n: segments[n].rows, default=None)
        if at is None or segments[at].rows <= enough:
            break
        parts = index.split(segments[at])
        if parts is None:
            final.add(segments[at])
        else:
            segments[at : at + 1] = parts
    return [statements.as_json(index.key, segment.last) for segment in _shared(segments, wanted)]


def _shared(segments: list[_Segment], wanted: int) -> list[_Segment]:
    """The last segment of each range but the last range."""
    aim = sum(segment.rows for segment in segments) / wanted
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
        """The first key or the last; None: the table is empty."""
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
        return self._segment(segment.first, left), self._segment(right, segment.last)

    def _segment(self, first: Bound, last: Bound) -> _Segment:
        where = statements.between(self.key, first, last, with_lower=True)
        return _Segment(first, last, 1 if first == last else self.rows(where))

    def _key(self, where: Where, *, backwards: bool) -> Bound | None:
        hidden = statements.hidden_columns(self.key)
        found = self._ask(statements.select(self._table, hidden, self.key, where, 1, backwards=backwards))
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


def _least(parts: tuple[_Segment, _Segment]) -> int:
    return min(part.rows for part in parts)
