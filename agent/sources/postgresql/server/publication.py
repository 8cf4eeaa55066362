"""The publication: which tables' changes the server sends, and how tables get there.

Comes in: the tables of a sync. Goes out: for each table whose changes do not come whole an error that has the statement
which mends it. What this user may do is done: the publication is made, and tables are added to it.

A table whose rows nothing identifies is never added: from then on its server would refuse the application's UPDATE and
DELETE on it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from menura.naming import sync_anew, sync_retry
from pg8000.exceptions import DatabaseError

from agent.errors import TableError
from agent.sources.postgresql.config import PostgresqlConfig
from agent.sources.postgresql.errors import TableIdentityMissing, TableUnpublished
from agent.sources.postgresql.server.connection import DUPLICATE_OBJECT, Connection, rows, sqlstate, writing
from agent.sources.postgresql.server.quoting import quoted, quoted_table
from agent.table_positions import Table

#: so many statements a message has
MOST_STATEMENTS = 10
#: for each of them but the last the tables were altered meanwhile
_LOOKS = 10
DOING = "checking whether the table's changes are published"
_UNREAD = "None of its changes is read; the source's other tables are not concerned"
_OPTIONS = "WITH (publish_via_partition_root = true)"
_KINDS = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True, slots=True)
class Publication:
    name: str
    #: those of `_KINDS` that it has
    kinds: frozenset[str]
    via_root: bool
    #: this user may alter it
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, as far as it matters for its publication."""

    table: Table
    kind: str
    is_unlogged: bool
    #: partitioned tables that it is a partition of
    above: tuple[Table, ...]
    #: this user may have it published
    is_ours: bool
    #: it, or those of its partitions, whose rows nothing identifies
    unidentified: tuple[Table, ...]
    #: without generated ones
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class Published:
    #: None: all
    columns: frozenset[str] | None
    is_filtered: bool


@dataclass(frozen=True, slots=True)
class Lack:
    """Why not all changes of a table come, and what mends it."""

    found: str
    statements: tuple[str, ...]
    #: nothing identifies its rows
    is_identity: bool = False
    #: which comes instead
    in_its_place: Table | None = None


@dataclass(frozen=True, slots=True)
class PublicationState:
    """What a look at the server has found; `publication` None: there is none of that name."""

    publication: Publication | None
    #: this user may make one
    may_create: bool
    is_standby: bool
    relations: Mapping[Table, Relation] = field(default_factory=dict)
    published: Mapping[Table, Published] = field(default_factory=dict)

    def addable(self) -> list[Table]:
        """What can be added, and only lacks that."""
        may = self.publication.is_ours if self.publication is not None else self.may_create
        if not may or self.is_standby:
            return []
        return sorted(
            table
            for table, relation in self.relations.items()
            if self._is_missing(relation) and relation.is_ours and not relation.unidentified
        )

    def _is_missing(self, relation: Relation) -> bool:
        """It is not published, and can be by its own name."""
        via_root = self.publication is None or self.publication.via_root
        return (
            relation.table not in self.published
            and not relation.is_unlogged
            and not any(above in self.published for above in relation.above)
            and (relation.kind == "r" or (relation.kind == "p" and via_root))
        )


def ensure_published(
    connection: Connection, config: PostgresqlConfig, tables: Collection[Table]
) -> dict[Table, TableError]:
    """Have the tables' changes published where this user may; the errors of those that are not, or not whole.

    Tables that do not exist are left out. On the server whose changes are read; inside `server_errors`.
    """
    state = look(connection, config.publication, tables)
    added = state.addable()
    if state.publication is None and state.may_create and not state.is_standby:
        _write(connection, f"CREATE PUBLICATION {quoted(config.publication)} {_OPTIONS}")
        state = look(connection, config.publication, tables)
    if added:
        _write(connection, _addition(config.publication, [state.relations[table] for table in added]))
        state = look(connection, config.publication, tables)
    return unpublished(_settled(connection, config, tables, state), config)


def _settled(
    connection: Connection, config: PostgresqlConfig, tables: Collection[Table], state: PublicationState
) -> PublicationState:
    """Where something lacks, the newest look that another one confirms: a look has several statements, and one that
    alters a table between two of them makes columns lack that are gone."""
    for _ in range(_LOOKS):
        if not unpublished(state, config):
            break
        before, state = state, look(connection, config.publication, tables)
        if state == before:
            break
    return state


def unpublished(state: PublicationState, config: PostgresqlConfig) -> dict[Table, TableError]:
    """Tables whose changes do not come, or not whole, and why."""
    lacks = ((table, lack_of(state, config, relation)) for table, relation in state.relations.items())
    return {table: _error(lack, config, table) for table, lack in lacks if lack is not None}


def look(connection: Connection, publication: str, tables: Collection[Table]) -> PublicationState:
    """What is there now; changes nothing. Inside `server_errors`."""
    ((may_create, is_standby),) = rows(connection, _MAY)
    found = rows(connection, _PUBLICATION, name=publication)
    relations = {
        relation.table: relation for relation in map(_relation, rows(connection, _RELATIONS, **_named(tables)))
    }
    if not found:
        return PublicationState(None, may_create, is_standby, relations)
    *kinds, via_root, is_ours = found[0]
    names = {*relations, *(above for relation in relations.values() for above in relation.above)}
    return PublicationState(
        Publication(
            publication, frozenset(kind for kind, has in zip(_KINDS, kinds, strict=True) if has), via_root, is_ours
        ),
        may_create,
        is_standby,
        relations,
        {
            (schema, table): Published(None if columns is None else frozenset(columns), is_filtered)
            for schema, table, columns, is_filtered in rows(connection, _PUBLISHED, name=publication, **_named(names))
        },
    )


_MAY = "SELECT has_database_privilege(current_database(), 'CREATE'), pg_is_in_recovery()"
_PUBLICATION = """
    SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, pg_has_role(pubowner, 'USAGE')
    FROM pg_publication WHERE pubname = :name
"""
_WANTED = "SELECT * FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]))"
#: a deferrable key or one that is not valid identifies no rows
_IDENTIFIED = """
    CASE part.relreplident WHEN 'f' THEN true WHEN 'n' THEN false ELSE EXISTS (
        SELECT FROM pg_index WHERE indrelid = part.oid AND indisvalid AND indimmediate
            AND CASE part.relreplident WHEN 'd' THEN indisprimary ELSE indisreplident END
    ) END
"""
_RELATIONS = f"""
    SELECT nspname::text, relname::text, relkind::text, relpersistence = 'u', pg_has_role(relowner, 'USAGE'),
        (SELECT json_agg(json_build_array(above_schema.nspname, above.relname))
         FROM pg_partition_ancestors(one.oid) AS ancestor JOIN pg_class AS above ON above.oid = ancestor.relid
         JOIN pg_namespace AS above_schema ON above_schema.oid = above.relnamespace WHERE above.oid <> one.oid),
        (SELECT json_agg(json_build_array(part_schema.nspname, part.relname) ORDER BY part.oid)
         FROM pg_class AS part JOIN pg_namespace AS part_schema ON part_schema.oid = part.relnamespace
         WHERE part.oid IN (
             SELECT relid FROM pg_partition_tree(one.oid) WHERE isleaf UNION ALL SELECT one.oid WHERE one.relkind = 'r'
         ) AND part.relkind = 'r' AND NOT ({_IDENTIFIED})),
        (SELECT json_agg(attname) FROM pg_attribute
         WHERE attrelid = one.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '')
    FROM pg_class AS one JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND (nspname, relname) IN ({_WANTED})
"""  # noqa: S608
#: columns and rows that are left out are known from version 15 on, where they can be
_PUBLISHED = f"""
    SELECT schemaname::text, tablename::text, to_jsonb(published) -> 'attnames',
        to_jsonb(published) ->> 'rowfilter' IS NOT NULL
    FROM pg_publication_tables AS published WHERE pubname = :name AND (schemaname, tablename) IN ({_WANTED})
"""  # noqa: S608


def _named(tables: Iterable[Table]) -> dict[str, list[str]]:
    named = sorted(tables)
    return {"schemas": [schema for schema, _ in named], "tables": [table for _, table in named]}


def _relation(row: tuple[object, ...]) -> Relation:
    schema, table, kind, is_unlogged, is_ours, above, unidentified, columns = row
    return Relation(
        (str(schema), str(table)),
        str(kind),
        bool(is_unlogged),
        _tables(above),
        bool(is_ours),
        _tables(unidentified),
        frozenset(columns if isinstance(columns, list) else ()),
    )


def _tables(listed: object) -> tuple[Table, ...]:
    return tuple((str(schema), str(table)) for schema, table in listed) if isinstance(listed, list) else ()


def _write(connection: Connection, statement: str) -> None:
    try:
        with writing(connection):
            rows(connection, statement)
    except DatabaseError as failed:
        if sqlstate(failed) != DUPLICATE_OBJECT:  # somebody was faster: the next look shows it
            raise


def _addition(publication: str, relations: Iterable[Relation]) -> str:
    """Without tables that inherit from them: these are published by their own names, or not."""
    names = (quoted_table(one.table) if one.kind == "p" else f"ONLY {quoted_table(one.table)}" for one in relations)
    return f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {', '.join(names)}"


def lack_of(state: PublicationState, config: PostgresqlConfig, relation: Relation) -> Lack | None:
    """Why not all changes of a table come; None: all do."""
    name, table = quoted(config.publication), quoted_table(relation.table)
    published, publication = state.published.get(relation.table), state.publication
    if published is None or publication is None:
        return _missing(state, config, relation)
    if publication.kinds != frozenset(_KINDS):
        lacking = ", ".join(kind for kind in _KINDS if kind not in publication.kinds)
        statement = f"ALTER PUBLICATION {name} SET (publish = '{', '.join(_KINDS)}')"
        return Lack(f"the publication {name} leaves out {lacking}", (statement,))
    anew = (f"ALTER PUBLICATION {name} DROP TABLE {table}", _addition(config.publication, [relation]))
    if published.is_filtered:
        return Lack(f"the publication {name} leaves out rows, by a row filter", anew)
    verdict = config.filter.verdict(*relation.table)
    hidden = relation.columns - (relation.columns if published.columns is None else published.columns)
    hidden = frozenset(column for column in hidden if not verdict.ignores(column))
    if hidden:
        return Lack(f"the publication {name} leaves out columns: {', '.join(sorted(hidden))}", anew)
    return None


def _missing(state: PublicationState, config: PostgresqlConfig, relation: Relation) -> Lack:
    name, table = quoted(config.publication), quoted_table(relation.table)
    if relation.is_unlogged:
        found = "the table is UNLOGGED: its changes are not in the server's WAL"
        return Lack(found, (f"ALTER TABLE {table} SET LOGGED",))
    above = next((above for above in relation.above if above in state.published), None)
    if above is not None:
        found = f"its changes are published as those of {quoted_table(above)}, of which it is a partition"
        return Lack(found, (), in_its_place=above)
    if relation.kind == "p" and state.publication is not None and not state.publication.via_root:
        statement = f"ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
        return Lack(f"the publication {name} has its partitions, and not the partitioned table", (statement,))
    if relation.unidentified:
        parts = "" if relation.unidentified == (relation.table,) else f" of {len(relation.unidentified)} partitions"
        return Lack(
            f"nothing identifies the rows{parts}: there is neither a primary key nor another replica identity, and once"
            " they are published the server refuses UPDATE and DELETE of them",
            tuple(f"ALTER TABLE {quoted_table(one)} REPLICA IDENTITY FULL" for one in relation.unidentified),
            is_identity=True,
        )
    addition = _addition(config.publication, [relation])
    if state.publication is None:
        found = f"there is no publication {name}, and this user may not make it"
        return Lack(found, (f"CREATE PUBLICATION {name} {_OPTIONS}", addition))
    return Lack(f"the publication {name} lacks the table, and this user may not add it", (addition,))


def joined(statements: Iterable[str]) -> str:
    """For a message, each once; of many only the first."""
    different = list(dict.fromkeys(statements))
    more = len(different) - MOST_STATEMENTS
    return "; ".join(different[:MOST_STATEMENTS]) + (f"; and {more} more like these" if more > 0 else "")


def _error(lack: Lack, config: PostgresqlConfig, table: Table) -> TableError:
    kind = TableIdentityMissing if lack.is_identity else TableUnpublished
    otherwise = "; or give it a primary key" if lack.is_identity else ""
    remedy = (
        f"Run on the server, as the owner of the table and of the publication: {joined(lack.statements)}{otherwise};"
        f" then run: {sync_retry(config.name, *table)}"
    )
    if lack.in_its_place is not None:
        remedy = f"Sync that table in its place: {sync_anew(config.name, *lack.in_its_place)}"
    return kind(DOING, lack.found, data=_UNREAD, remedy=remedy, source=config.name, database=table[0], table=table[1])
