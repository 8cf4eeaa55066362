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
    #: the publication names the table itself
    is_member: bool
    #: its column list; None: it has none
    listed: frozenset[str] | None


@dataclass(frozen=True, slots=True)
class PublicationState:
    """What a look at the server has found; `publication` None: there is none of that name."""

    publication: Publication | None
    #: of the server, e.g. 150018
    version: int
    #: this user may make one
    may_create: bool
    is_standby: bool
    #: those that were asked for, and where the server filters all that the publication names
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
            if self._is_missing(relation) and relation.is_ours and not self._is_refused(relation)
        )

    def lacks_generated(self, relation: Relation) -> bool:
        """Generated columns identify rows, which the publication could have and has not."""
        return bool(relation.stored) and self.publication is not None and not self.publication.sends_generated

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


def look(connection: Connection, config: PostgresqlConfig, tables: Collection[Table]) -> PublicationState:
    """What is there now. Inside `server_errors`."""
    ((version, may_create, is_standby),) = rows(connection, _SERVER)
    has_lists = version >= LISTS_VERSION
    statement = _PUBLICATION.format(has_schemas=_HAS_SCHEMAS if has_lists else "false")
    found = rows(connection, statement, name=config.publication)
    wanted = set(tables)
    if found and config.filtered_by is FilteredBy.SERVER:
        wanted |= {(schema, table) for schema, table in rows(connection, _MEMBERS, name=config.publication)}
    has_generated = version >= GENERATED_VERSION
    stored, virtual = (_COMPUTED % kind if has_generated else "false" for kind in ("s", "v"))
    named = rows(connection, _RELATIONS.format(stored=stored, virtual=virtual), **_named(wanted))
    relations = {relation.table: relation for relation in map(_relation, named)}
    if not found:
        return PublicationState(None, version, may_create, is_standby, relations)
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
            (schema, table): Published(_names(columns), is_filtered, is_member, _names(listed))
            for schema, table, columns, is_filtered, is_member, listed in rows(
                connection, statement, name=config.publication, **_named(names)
            )
        },
    )


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
    SELECT nspname::text, relname::text FROM pg_publication_rel JOIN pg_class AS one ON one.oid = prrelid
    JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE prpubid = (SELECT oid FROM pg_publication WHERE pubname = :name)
"""
_WANTED = "SELECT * FROM unnest(CAST(:schemas AS text[]), CAST(:tables AS text[]))"
#: what has rows of the table
_PARTS = """
    pg_class AS part JOIN pg_namespace AS part_schema ON part_schema.oid = part.relnamespace
    WHERE part.oid IN (
        SELECT relid FROM pg_partition_tree(one.oid) WHERE isleaf UNION ALL SELECT one.oid WHERE one.relkind = 'r'
    ) AND part.relkind = 'r'
"""
_NAMED_PARTS = f"""
    SELECT json_agg(json_build_array(part_schema.nspname, part.relname) ORDER BY part.oid) FROM {_PARTS}
"""  # noqa: S608
#: of a partition; a deferrable key or one that is not valid identifies no rows
_INDEX = """
    SELECT FROM pg_index WHERE indrelid = part.oid AND indisvalid AND indimmediate
        AND CASE part.relreplident WHEN 'd' THEN indisprimary ELSE indisreplident END
"""
_IDENTIFIED = f"CASE part.relreplident WHEN 'f' THEN true WHEN 'n' THEN false ELSE EXISTS ({_INDEX}) END"
_IDENTIFIES = f"""
    CASE part.relreplident WHEN 'f' THEN true WHEN 'n' THEN false ELSE EXISTS ({_INDEX} AND attnum = ANY (indkey)) END
"""
_COMPUTED = f"""
    EXISTS (SELECT FROM pg_attribute WHERE attrelid = part.oid AND attgenerated = '%s' AND NOT attisdropped
            AND {_IDENTIFIES})
"""
_RELATIONS = f"""
    SELECT nspname::text, relname::text, relkind::text, relpersistence = 'u', pg_has_role(relowner, 'USAGE'),
        EXISTS (SELECT FROM {_PARTS} AND part.relreplident = 'f'),
        (SELECT json_agg(json_build_array(above_schema.nspname, above.relname))
         FROM pg_partition_ancestors(one.oid) AS ancestor JOIN pg_class AS above ON above.oid = ancestor.relid
         JOIN pg_namespace AS above_schema ON above_schema.oid = above.relnamespace WHERE above.oid <> one.oid),
        ({_NAMED_PARTS} AND NOT ({_IDENTIFIED})), ({_NAMED_PARTS} AND {{stored}}), ({_NAMED_PARTS} AND {{virtual}}),
        (SELECT json_agg(attname ORDER BY attnum) FROM pg_attribute
         WHERE attrelid = one.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = ''),
        (SELECT json_agg(DISTINCT attname) FROM pg_attribute, {_PARTS}
            AND attrelid = part.oid AND attnum > 0 AND NOT attisdropped AND {_IDENTIFIES})
    FROM pg_class AS one JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND (nspname, relname) IN ({_WANTED})
"""  # noqa: S608
#: columns and rows that are left out are known from version 15 on, where they can be
_PUBLISHED = f"""
    SELECT schemaname::text, tablename::text, to_jsonb(published) -> 'attnames',
        to_jsonb(published) ->> 'rowfilter' IS NOT NULL, member.oid IS NOT NULL, {{listed}}
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
        _names(identity) or frozenset(),
    )


def _tables(listed: object) -> tuple[Table, ...]:
    return tuple((str(schema), str(table)) for schema, table in listed) if isinstance(listed, list) else ()


def _names(listed: object) -> frozenset[str] | None:
    return frozenset(listed) if isinstance(listed, list) else None
