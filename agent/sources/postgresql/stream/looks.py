"""Looks at a server's catalog, for what the stream of its changes does not tell: how tables look now, whether they are
published, and whether what runs since then is published too.

Comes in: a session, and which tables are followed. Goes out: a `Look`, with where the log ended before it and after.
What a look shows has been committed before its end: when the stream has passed that, no earlier row follows.

A transaction that changed a table before it was published is decoded as it was then: without these changes, even if it
commits later. So a table that was just published counts as *settled* only when every transaction that ran then is
over, and its commit is flushed: a stream or a dump that begins from there on lacks nothing.

Nothing is durable: after a restart the transactions that run then are waited for.
"""

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.errors import TableError
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.first_names import FirstNames
from agent.sources.postgresql.positions import parse_lsn
from agent.sources.postgresql.seen_transactions import SNAPSHOT_STATEMENT, Snapshot
from agent.sources.postgresql.server.connection import Connection, Facts, rows
from agent.sources.postgresql.server.definitions import TableDefinition, read_definitions
from agent.sources.postgresql.server.made_lists import MadeLists
from agent.sources.postgresql.server.partitions import tell_partitions
from agent.sources.postgresql.server.publication import Lack, ensure_published
from agent.table_positions import Table

#: of a page of the log, before its first record: where nothing ends
_PAGE_HEADER_BYTES = 40
#: pg_publication_namespace is there
_SCHEMAS_VERSION = 150000
_PARTITIONED = "p"

_ENDS = """
    SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text,
           CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text,
           current_setting('wal_block_size')::int
"""
_OF_SCHEMA = """
    (SELECT 'schema ' || oid FROM pg_publication_namespace WHERE pnpubid = publication.oid AND pnnspid = relnamespace),
"""
_WRITTEN_BY = " by "
#: By what each table is published: another one when it was taken out and put back, and by which transaction the
#: publication's options were written last. A row filter or a column list is never written anew in its place.
_PUBLISHED = """
    SELECT one.oid, publication.oid || ' ' || coalesce(
        CASE WHEN puballtables THEN 'all' END, {of_schema}
        (SELECT oid::text FROM pg_publication_rel WHERE prpubid = publication.oid AND prrelid = one.oid)
    ) || '{written_by}' || publication.xmin
    FROM pg_class AS one JOIN pg_publication AS publication ON pubname = :name
    WHERE one.oid = ANY (CAST(:oids AS oid[]))
"""
#: Partitions that were made by CREATE TABLE ... PARTITION OF, below ones that are older. Such a statement makes the
#: table and its place in few steps; an INSERT between the two would be one more.
_BORN = """
    WITH RECURSIVE above (leaf, parent, made, is_born) AS (
        SELECT inhrelid, inhparent, part.xmin,
               part.xmin = place.xmin AND place.cmin::text::bigint - part.cmin::text::bigint BETWEEN 0 AND 2
        FROM pg_inherits AS place JOIN pg_attribute AS part ON attrelid = inhrelid AND attnum = -1
        WHERE inhrelid = ANY (CAST(:oids AS oid[]))
        UNION ALL
        SELECT leaf, inhparent, made, is_born AND age(place.xmin) >= age(made)
        FROM above JOIN pg_inherits AS place ON inhrelid = parent
    )
    SELECT leaf FROM above GROUP BY leaf HAVING bool_and(is_born)
"""


#: what publishes any table of the database, or of the schema
_OF_ALL = (" all", " schema ")


@dataclass(frozen=True, slots=True)
class Ends:
    #: behind all that is written, and so behind all that is visible
    written_lsn: int
    flushed_lsn: int


@dataclass(frozen=True, slots=True)
class Look:
    #: monotone seconds
    began_at: float
    #: the log's end before it: what was committed until then is shown
    before_lsn: int
    #: what is shown was committed until then
    after_lsn: int
    #: all that was written until `before_lsn` is shown: no transaction ran that may have written it
    is_whole: bool
    #: by the names that were asked for
    definitions: Mapping[Table, TableDefinition]
    #: those, and those whose numbers were asked for
    by_oid: Mapping[int, TableDefinition]
    #: by what the tables are published
    published: Mapping[Table, str] = field(default_factory=dict)
    #: tables whose changes are not published, or not whole
    errors: Mapping[Table, TableError] = field(default_factory=dict)
    #: tables that were published while transactions ran that are not over, or of which the publication is to change
    unsettled: frozenset[Table] = frozenset()
    #: partitions that were made as such, so that all rows that they ever had came by the stream
    born: frozenset[int] = frozenset()
    #: published tables of which the server refuses UPDATE and DELETE
    refused: Mapping[Table, Lack] = field(default_factory=dict)
    #: tables that were asked for, and that the filter denied then: nothing of them is shown
    denied: frozenset[Table] = frozenset()
    #: of all tables by number, where the filter keeps something back
    names: Mapping[int, Table] = field(default_factory=dict)
    #: numbers of tables that were seen before, and are there no more
    gone: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Waiting:
    """For the transactions that ran when a table was published."""

    oid: int
    published: str
    next_xid: int
    #: they are over: the log's end then; 0: they are not
    ended_lsn: int = 0


class Looks:
    """Of one source; looks one at a time, from any thread."""

    def __init__(self, config: PostgresqlConfig, made: MadeLists, names: FirstNames) -> None:
        self._config = config
        self._made = made
        self._names = names
        self._lock = threading.Lock()
        #: by table: its oid and what publishes it
        self._settled: dict[Table, tuple[int, str]] = {}
        self._waiting: dict[Table, _Waiting] = {}

    def look(self, connection: Connection, facts: Facts, tables: Collection[Table], oids: Collection[int] = ()) -> Look:
        """With the tables published where this user may; inside `server_errors`."""
        with self._lock:
            began = time.monotonic()
            before = read_ends(connection)
            is_whole = not _snapshot(connection).pending
            names, gone = self._names.seen(connection)
            tell_partitions(connection, self._config.filter)
            allowed = [table for table in tables if self._config.filter.verdict(*table).allowed]
            ensured = ensure_published(connection, self._config, self._made, allowed)
            definitions = read_definitions(connection, tables=allowed)
            by_oid = {one.oid: one for one in definitions.values()}
            others = [oid for oid in oids if oid not in by_oid]
            by_oid |= {one.oid: one for one in read_definitions(connection, oids=others).values()}
            published = _published(connection, facts, self._config.publication, list(by_oid))
            by_table = {one.table: published.get(one.oid, "") for one in definitions.values()}
            unsettled = self._settle(
                connection, {table: (definitions[table].oid, by) for table, by in by_table.items()}
            )
            born = _born(connection, definitions.values())
            after = read_ends(connection)
        return Look(
            began,
            before.flushed_lsn,
            after.written_lsn,
            is_whole,
            definitions,
            by_oid,
            by_table,
            ensured.errors,
            ensured.later.union(unsettled),
            born,
            ensured.refused,
            frozenset(tables).difference(allowed),
            names,
            gone,
        )

    def _settle(self, connection: Connection, published: Mapping[Table, tuple[int, str]]) -> list[Table]:
        snapshot = _snapshot(connection)
        ends = read_ends(connection)
        for table, (oid, by) in published.items():
            if not by or self._settled.get(table) == (oid, by):
                continue
            waiting = self._waiting.get(table)
            if waiting is None or (waiting.oid, waiting.published) != (oid, by):
                waiting = self._waiting[table] = _Waiting(oid, by, snapshot.next_xid)
            if not waiting.ended_lsn and snapshot.xmin >= waiting.next_xid:
                waiting.ended_lsn = ends.written_lsn
            if waiting.ended_lsn and ends.flushed_lsn >= waiting.ended_lsn:
                self._settled[table] = (oid, by)
                del self._waiting[table]
        return [table for table, (_, by) in published.items() if by and table in self._waiting]


def read_ends(connection: Connection) -> Ends:
    """Inside `server_errors`."""
    written, flushed, block_bytes = rows(connection, _ENDS)[0]
    end = parse_lsn(str(written))
    if end % block_bytes <= _PAGE_HEADER_BYTES:  # the next record begins there, and none ends before
        end -= end % block_bytes
    return Ends(end, parse_lsn(str(flushed)))


def _snapshot(connection: Connection) -> Snapshot:
    return Snapshot.parse(str(rows(connection, SNAPSHOT_STATEMENT)[0][0]))


def _published(connection: Connection, facts: Facts, publication: str, oids: Collection[int]) -> dict[int, str]:
    of_schema = _OF_SCHEMA if facts.version >= _SCHEMAS_VERSION else ""
    statement = _PUBLISHED.format(of_schema=of_schema, written_by=_WRITTEN_BY)
    found = rows(connection, statement, name=publication, oids=list(oids)) if oids else []
    return {oid: str(by) for oid, by in found if by is not None}


def published_alike(before: str, now: str) -> bool:
    """Whether a table was published all the while; `before` may be of a former version, which asked for no writer.

    >>> published_alike("16390 16400", "16390 16400 by 735")
    True
    >>> published_alike("16390 16400 by 735", "16390 16400 by 740")
    False
    """
    return before in (now, now.rpartition(_WRITTEN_BY)[0])


def is_named(published: str) -> bool:
    """Whether the publication names the table itself.

    >>> is_named("16390 16400 by 735"), is_named("16390 all by 735"), is_named("")
    (True, False, False)
    """
    return bool(published) and not any(words in published for words in _OF_ALL)


def _born(connection: Connection, definitions: Iterable[TableDefinition]) -> frozenset[int]:
    oids = [oid for one in definitions if one.kind == _PARTITIONED for oid, _ in one.storage]
    return frozenset(oid for (oid,) in rows(connection, _BORN, oids=oids)) if oids else frozenset()
