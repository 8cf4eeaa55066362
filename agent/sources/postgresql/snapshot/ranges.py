"""The plan of a dump: a table's key space in ranges of about as many rows each, walked side by side.

Comes in: a session in a transaction, a table and its key. Goes out: ranges whose bounds are keys that the server
returned and put in order, so that any type and collation is right. A sample of pages decides (TABLESAMPLE SYSTEM): the
server reads some hundred of them, sorts their keys and tells those in equal distances, whatever columns the key has and
whatever the statistics say. Nothing is counted. Estimates may be off: they only decide how the work is shared.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

from pg8000.exceptions import DatabaseError

from agent.sources.postgresql.server.connection import is_connection_lost
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.sources.postgresql.server.quoting import quoted
from agent.sources.postgresql.snapshot.keys import Key
from agent.sources.postgresql.snapshot.session import Session
from agent.sources.postgresql.snapshot.statements import BY_INDEX, select, source_of, write_bound

MOST_RANGES = 32
#: fewer rows, and fewer bytes, are not worth a range of their own
LEAST_ROWS = 100_000
LEAST_BYTES = 64 << 20
#: of which the sample is
SAMPLED_PAGES = 400
#: then the plan is made without
_SAMPLE_SECONDS = 30

#: rows as the server's last look at them says, for as many pages as there are now: what its planner goes by. NULL: it
#: has not looked yet.
_ESTIMATES = """
    SELECT sum(pages)::bigint, sum(pages)::bigint * current_setting('block_size')::int,
           sum(pg_table_size(oid))::bigint,
           CASE WHEN bool_and(reltuples >= 0 AND (relpages > 0 OR pages = 0)) THEN
               sum(CASE WHEN relpages > 0 THEN reltuples / relpages * pages ELSE 0 END)::bigint END
    FROM (SELECT oid, reltuples, relpages, pg_relation_size(oid) / current_setting('block_size')::int AS pages
          FROM pg_class WHERE oid = ANY (CAST(:oids AS oid[]))) AS part
"""
_NUMBERS = ("int2", "int4", "int8", "numeric", "float4", "float8", "oid")
_NUMBER_TYPES = frozenset(f'"pg_catalog"."{name}"' for name in _NUMBERS)


@dataclass(frozen=True, slots=True)
class Range:
    """As `menura.v1.DumpRange`: above `lower` up to and with `upper`."""

    number: int
    lower: str
    upper: str


@dataclass(frozen=True, slots=True)
class DumpPlanMade:
    #: adjacent, from the first key to the last; none without a key
    ranges: tuple[Range, ...]
    #: of the server's statistics; None: there are none yet
    estimated_rows: int | None
    estimated_bytes: int | None
    #: the first and the last value of the key's first column where that is a number: how far a range is tells how much
    #: is left of it even when the statistics are stale
    ends: tuple[float, float] | None = None


def plan(
    session: Session, definition: TableDefinition, key: Key | None, most_ranges: int = MOST_RANGES
) -> DumpPlanMade:
    """Statements inside `server_errors`, in a transaction that may fail by it; with one range at most no row is looked
    at."""
    oids = [oid for oid, _ in definition.storage]
    ((pages, _, size, estimated),) = session.rows(_ESTIMATES, oids=oids) if oids else [(0, 0, 0, 0)]
    if key is None:
        return DumpPlanMade((), estimated, size)
    bounds, ends = ["", ""], None
    if most_ranges > 1:
        index = _Index(session, definition, key)
        ends = index.ends()
        wanted = min(most_ranges, max((estimated or 0) // LEAST_ROWS, (size or 0) // LEAST_BYTES))
        if wanted > 1:
            bounds[1:1] = index.shared(wanted, pages)
    ranges = tuple(Range(n, lower, upper) for n, (lower, upper) in enumerate(pairwise(bounds)))
    return DumpPlanMade(ranges, estimated, size, ends)


class _Index:
    def __init__(self, session: Session, definition: TableDefinition, key: Key) -> None:
        self._session = session
        self._definition = definition
        self._key = key

    def ends(self) -> tuple[float, float] | None:
        first = self._key.columns[0]
        if first.type not in _NUMBER_TYPES:
            return None
        found = [self._end(first.name, backwards=backwards) for backwards in (False, True)]
        return None if found[0] is None or found[1] is None else (found[0], found[1])

    def _end(self, column: str, *, backwards: bool) -> float | None:
        rows = self._readable(select(self._definition, [column], self._key, (), 1, backwards=backwards))
        number = float(str(rows[0][0])) if rows else None
        return number if number is not None and isfinite(number) else None

    def shared(self, wanted: int, pages: int) -> list[str]:
        """The last key of each range but the last."""
        names = ", ".join(map(quoted, self._key.names))
        part = min(100.0, 100.0 * SAMPLED_PAGES / max(1, pages))
        statement = (
            f"SELECT {self._texts()} FROM (SELECT {names}, row_number() OVER (ORDER BY {names}) AS place,"  # noqa: S608
            f" count(*) OVER () AS count FROM {source_of(self._definition)} TABLESAMPLE SYSTEM ({part:.8f})) AS sample"
            f" WHERE place < count AND place * {wanted} / count <> (place + 1) * {wanted} / count"
            f" ORDER BY {names}"
        )
        found = [tuple(map(str, row)) for row in self._readable(statement)]
        return [write_bound(self._key, bound) for bound in found]

    def _texts(self) -> str:
        """By the types' output functions."""
        return ", ".join(f"format('%s', {quoted(name)})" for name in self._key.names)

    def _readable(self, statement: str) -> list[tuple[object, ...]]:
        """None where a page can't be read, or that takes too long: the chunk that has it will name its rows, a plan
        does without them."""
        session = self._session
        session.rows("SAVEPOINT menura")
        session.rows(f"{BY_INDEX}; SET LOCAL statement_timeout = '{_SAMPLE_SECONDS}s'")
        try:
            return session.rows(statement)
        except DatabaseError as failed:
            if is_connection_lost(failed):
                raise
            return []
        finally:
            session.rows("ROLLBACK TO SAVEPOINT menura")
