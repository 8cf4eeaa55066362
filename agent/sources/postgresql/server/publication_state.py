"""What a publication has, and what of some tables matters for it: as one look at the catalog finds it.

Comes in: a session, the publication's name, tables. Goes out: a `PublicationState`. Nothing is changed on the server.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from agent.sources.postgresql.config import FilteredBy, PostgresqlConfig
from agent.sources.postgresql.server.connection import Connection, rows
from agent.table_positions import Table

#: column lists, and tables of schemas, are there
LISTS_VERSION = 150000
#: generated columns can be published, and those that identify rows must be
GENERATED_VERSION = 180000
KINDS = ("insert", "update", "delete", "truncate")


@dataclass(frozen=True, slots=True)
class Publication:
    name: str
    #: those of `KINDS` that it has
    kinds: frozenset[str]
    via_root: bool
    #: this user may alter it
    is_ours: bool
    #: it has stored generated columns too
    sends_generated: bool
    #: of all tables, or of schemas: it takes no column lists
    is_of_all: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, as far as it matters for its publication. Of a partitioned table its partitions count."""

    table: Table
    kind: str
    is_unlogged: bool
    #: this user may have it published
    is_ours: bool
    #: a former row is logged with all its columns
    is_full: bool
    #: partitioned tables that it is a partition of
    above: tuple[Table, ...]
    #: those whose rows nothing identifies
    unidentified: tuple[Table, ...]
    #: those whose rows are identified by generated columns too: stored ones; and virtual ones, which no publication has
    stored: tuple[Table, ...]
    virtual: tuple[Table, ...]
    #: by number, without generated ones
    columns: tuple[str, ...]
    #: those that identify rows
    identity: frozenset[str]


@dataclass(frozen=True, slots=True)
class Published:
    #: None: all
    columns: frozenset[str] | None
    #: rows are left out
    is_filtered: bool
    #: by which the publication names the table itself, another one when it was taken out and put back; 0: it does not
    number: int
    #: its column list; None: it has none
    listed: frozenset[str] | None

    @property
    def is_member(self) -> bool:
        return self.number != 0


@dataclass(frozen=True, slots=True)
class PublicationState:
    """What a look at the server has found; `publication` None: there is none of that name."""

    publication: Publication | None
    #: of the server, e.g. 150018
    version: int
    #: this user may make one
    may_create: bool
    is_standby: bool
    #: those that were asked for, and where the server filters those of which the publication has too much, or a list
    relations: Mapping[Table, Relation] = field(default_factory=dict)
    published: Mapping[Table, Published] = field(default_factory=dict)
    #: numbers of the lists that this agent has made
    made: frozenset[int] = frozenset()

    def addable(self) -> list[Table]:
        """What can be added, and only lacks that."""
        may = self.publication.is_ours if self.publication is not None else self.may_create
        if not may or self.is_standby:
            return []
        return sorted(
            table
            for table, relation in self.relations.items()
            if self._is_missing(relation) and relation.is_ours and not self._is_refused(relation)
        )

    def lacks_generated(self, relation: Relation) -> bool:
        """Generated columns identify rows, which the publication must have and has not."""
        lacks = self.publication is not None and not self.publication.sends_generated
        return self.version >= GENERATED_VERSION and lacks and bool(relation.stored)

    def _is_refused(self, relation: Relation) -> bool:
        """Once it is published, the server refuses UPDATE and DELETE of it."""
        return bool(relation.unidentified or relation.virtual) or self.lacks_generated(relation)

    def _is_missing(self, relation: Relation) -> bool:
        """It is not published, and can be by its own name."""
        via_root = self.publication is None or self.publication.via_root
        return (
            relation.table not in self.published
            and not relation.is_unlogged
            and not any(above in self.published for above in relation.above)
            and (relation.kind == "r" or (relation.kind == "p" and via_root))
        )


def look(
    connection: Connection, config: PostgresqlConfig, tables: Collection[Table], made: frozenset[int] = frozenset()
) -> PublicationState:
    """What is there now; `made`: lists of this agent, which are looked at too. Inside `server_errors`."""
    ((version, may_create, is_standby),) = rows(connection, _SERVER)
    has_lists = version >= LISTS_VERSION
    statement = _PUBLICATION.format(has_schemas=_HAS_SCHEMAS if has_lists else "false")
    found = rows(connection, statement, name=config.publication)
    wanted = set(tables)
    if found and (made or config.filtered_by is FilteredBy.SERVER):
        wanted |= _members(connection, config, has_lists=has_lists)
    found_relations = rows(connection, _RELATIONS, **_named(wanted))
    relations = {relation.table: relation for relation in map(_relation, found_relations)}
    if not found:
        return PublicationState(None, version, may_create, is_standby, relations, made=made)
    *kinds, via_root, is_ours, sends_generated, is_of_all = found[0]
    has = frozenset(kind for kind, is_there in zip(KINDS, kinds, strict=True) if is_there)
    names = {*relations, *(above for relation in relations.values() for above in relation.above)}
    statement = _PUBLISHED.format(listed=_LISTED if has_lists else "NULL::json")
    return PublicationState(
        Publication(config.publication, has, via_root, is_ours, sends_generated, is_of_all),
        version,
        may_create,
        is_standby,
        relations,
        {
            (schema, table): Published(_names(columns), is_filtered, number, _names(listed))
            for schema, table, columns, is_filtered, number, listed in rows(
                connection, statement, name=config.publication, **_named(names)
            )
        },
        made,
    )


def _members(connection: Connection, config: PostgresqlConfig, *, has_lists: bool) -> set[Table]:
    """Those of which the filter, or a list, leaves something out."""
    statement = _MEMBERS.format(has_list="prattrs IS NOT NULL" if has_lists else "false")
    found: set[Table] = set()
    for schema, table, has_list in rows(connection, statement, name=config.publication):
        verdict = config.filter.verdict(schema, table)
        if has_list or verdict.keeps_columns or not verdict.allowed:
            found.add((schema, table))
    return found


_SERVER = """
    SELECT current_setting('server_version_num')::int, has_database_privilege(current_database(), 'CREATE'),
        pg_is_in_recovery()
"""
_PUBLICATION = """
    SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, pg_has_role(pubowner, 'USAGE'),
        coalesce(to_jsonb(one) ->> 'pubgencols' = 's', false), puballtables OR {has_schemas}
    FROM pg_publication AS one WHERE pubname = :name
"""
_HAS_SCHEMAS = "EXISTS (SELECT FROM pg_publication_namespace WHERE pnpubid = one.oid)"
_MEMBERS = """
    SELECT nspname::text, relname::text, {has_list} FROM pg_publication_rel JOIN pg_class AS one ON one.oid = prrelid
    JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE prpubid = (SELECT oid FROM pg_publication WHERE pubname = :name)
"""
_WANTED = "SELECT * FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]))"
#: By a few joins, whatever the number of tables. `part`: what has a table's rows; `key`: the index that identifies
#: them, where one does: a deferrable one or one that is not valid does not.
_RELATIONS = f"""
    WITH one AS (
        SELECT one.oid, nspname, relname, relkind, relpersistence, relowner
        FROM pg_class AS one JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
        WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND (nspname, relname) IN ({_WANTED})
    ), part AS (
        SELECT one.oid AS root, part.oid, part_schema.nspname, part.relname, part.relreplident
        FROM one CROSS JOIN LATERAL (
            SELECT relid FROM pg_partition_tree(one.oid) WHERE isleaf AND one.relkind = 'p'
            UNION ALL SELECT one.oid WHERE one.relkind = 'r'
        ) AS leaf JOIN pg_class AS part ON part.oid = leaf.relid
        JOIN pg_namespace AS part_schema ON part_schema.oid = part.relnamespace
        WHERE part.relkind = 'r'
    ), key AS (
        SELECT root, part.oid, indkey FROM part JOIN pg_index ON indrelid = part.oid AND indisvalid AND indimmediate
            AND CASE relreplident WHEN 'd' THEN indisprimary WHEN 'i' THEN indisreplident ELSE false END
    ), identity AS (
        SELECT root, part.oid, json_agg(attname) AS names, bool_or(attgenerated = 's') AS stored,
            bool_or(attgenerated = 'v') AS virtual
        FROM part LEFT JOIN key USING (root, oid) JOIN pg_attribute ON attrelid = part.oid AND attnum > 0
            AND NOT attisdropped AND (relreplident = 'f' OR attnum = ANY (indkey))
        GROUP BY root, part.oid
    ), parts AS (
        SELECT root, bool_or(relreplident = 'f') AS is_full,
            json_agg(json_build_array(nspname, relname) ORDER BY oid)
                FILTER (WHERE names IS NULL AND relreplident <> 'f') AS unidentified,
            json_agg(json_build_array(nspname, relname) ORDER BY oid) FILTER (WHERE stored) AS stored,
            json_agg(json_build_array(nspname, relname) ORDER BY oid) FILTER (WHERE virtual) AS virtual,
            json_agg(names) FILTER (WHERE names IS NOT NULL) AS names
        FROM part LEFT JOIN identity USING (root, oid) GROUP BY root
    )
    SELECT nspname::text, relname::text, relkind::text, relpersistence = 'u', pg_has_role(relowner, 'USAGE'),
        coalesce(is_full, false),
        (SELECT json_agg(json_build_array(above_schema.nspname, above.relname))
         FROM pg_partition_ancestors(one.oid) AS ancestor JOIN pg_class AS above ON above.oid = ancestor.relid
         JOIN pg_namespace AS above_schema ON above_schema.oid = above.relnamespace WHERE above.oid <> one.oid),
        unidentified, stored, virtual,
        (SELECT json_agg(attname ORDER BY attnum) FROM pg_attribute
         WHERE attrelid = one.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''),
        names
    FROM one LEFT JOIN parts ON root = one.oid
"""  # noqa: S608
#: columns and rows that are left out are known from version 15 on, where they can be
_PUBLISHED = f"""
    SELECT schemaname::text, tablename::text, to_jsonb(published) -> 'attnames',
        to_jsonb(published) ->> 'rowfilter' IS NOT NULL, coalesce(member.oid::bigint, 0), {{listed}}
    FROM pg_publication_tables AS published
    JOIN pg_namespace AS of_schema ON nspname = schemaname
    JOIN pg_class AS one ON relnamespace = of_schema.oid AND relname = tablename
    LEFT JOIN pg_publication_rel AS member
        ON prrelid = one.oid AND prpubid = (SELECT oid FROM pg_publication WHERE pubname = published.pubname)
    WHERE pubname = :name AND (schemaname, tablename) IN ({_WANTED})
"""  # noqa: S608
_LISTED = """
    CASE WHEN prattrs IS NOT NULL THEN
        (SELECT json_agg(attname) FROM pg_attribute WHERE attrelid = prrelid AND attnum = ANY (prattrs)) END
"""


def _named(tables: Iterable[Table]) -> dict[str, list[str]]:
    named = sorted(tables)
    return {"schemas": [schema for schema, _ in named], "tables": [table for _, table in named]}


def _relation(row: tuple[object, ...]) -> Relation:
    schema, table, kind, is_unlogged, is_ours, is_full, *listed, columns, identity = row
    above, unidentified, stored, virtual = map(_tables, listed)
    return Relation(
        (str(schema), str(table)),
        str(kind),
        bool(is_unlogged),
        bool(is_ours),
        bool(is_full),
        above,
        unidentified,
        stored,
        virtual,
        tuple(columns) if isinstance(columns, list) else (),
        frozenset(name for names in identity for name in names) if isinstance(identity, list) else frozenset(),
    )


def _tables(listed: object) -> tuple[Table, ...]:
    return tuple((str(schema), str(table)) for schema, table in listed) if isinstance(listed, list) else ()


def _names(listed: object) -> frozenset[str] | None:
    return frozenset(listed) if isinstance(listed, list) else None
