"""By which key a table is read: the primary one, else the unique one of the fewest columns.

Comes in: a table's definition and its indexes as the catalog lists them. Goes out: a `Key`, or none when no key orders
the rows exactly. A key serves when its index is a whole B-tree in ascending order by the types' own operators and the
columns' own collations, and all its columns are NOT NULL and sent. A value is written back as a constant in the
server's own text, which every type reads as what it has printed; but for names of things (regclass), whose text depends
on who looks. Operators of extensions' types are found only by who may use their schema.

An index whose collation has another version than it was built with may be out of order, and rows would be skipped.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from menura.key_values import TEXT, kind_of

from agent.filter import Verdict
from agent.sources.postgresql.server.connection import Connection, rows
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.sources.postgresql.server.quoting import quoted
from agent.sources.postgresql.types import Form, arrow_format

_DEFAULT_COLLATION = 100
_DEFAULT_COLLATION_VERSIONED = 150000

#: one line per column of each candidate
_CANDIDATES = """
    WITH RECURSIVE part AS (
        SELECT of_index.relname AS name, indexrelid AS index, indisprimary AS is_primary, indisreplident AS is_identity,
               place, attname, atttypid, attcollation, one.collated, one.options,
               opcdefault AS is_default, opcfamily AS family, opcintype AS operand
        FROM pg_index
        JOIN pg_class AS of_index ON of_index.oid = indexrelid
        JOIN pg_am ON pg_am.oid = of_index.relam AND amname = 'btree'
        CROSS JOIN LATERAL unnest(indkey::int2[], indclass::oid[], indcollation::oid[], indoption::int2[])
            WITH ORDINALITY AS one (number, class, collated, options, place)
        JOIN pg_opclass ON pg_opclass.oid = one.class
        JOIN pg_attribute ON attrelid = indrelid AND attnum = one.number
        WHERE indrelid = :oid AND indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL
            AND place <= indnkeyatts
    ), made (index, place, oid, kind, base) AS (
        SELECT index, place, pg_type.oid, typtype, typbasetype FROM part JOIN pg_type ON pg_type.oid = atttypid
        UNION ALL
        SELECT index, place, pg_type.oid, typtype, typbasetype
        FROM made JOIN pg_type ON pg_type.oid = made.base WHERE made.kind = 'd'
    )
    SELECT name, is_primary, is_identity, attname, part.collated, part.options = 0 AND is_default
               AND part.collated = attcollation,
           atttypid <> of_type.oid, of_type.oid, of_type.typtype, type_schema.nspname, of_type.typname,
           (SELECT json_agg(DISTINCT nspname) FROM pg_amop JOIN pg_operator ON pg_operator.oid = amopopr
                JOIN pg_namespace ON pg_namespace.oid = oprnamespace
                WHERE amopfamily = family AND amoplefttype = operand AND amoprighttype = operand AND amoppurpose = 's'),
           (SELECT bool_and(oprname = (ARRAY['<', '<=', '=', '>=', '>'])[amopstrategy])
                FROM pg_amop JOIN pg_operator ON pg_operator.oid = amopopr
                WHERE amopfamily = family AND amoplefttype = operand AND amoprighttype = operand AND amoppurpose = 's')
    FROM part JOIN made USING (index, place) JOIN pg_type AS of_type ON of_type.oid = made.oid AND typtype <> 'd'
    JOIN pg_namespace AS type_schema ON type_schema.oid = typnamespace
    ORDER BY index, place
"""
#: of a collation: what its indexes were built with, and what the operating system has now; NULL: it never changes
_VERSIONS = """
    SELECT oid, collversion, CASE WHEN collversion IS NOT NULL THEN pg_collation_actual_version(oid) END
    FROM pg_collation WHERE oid = ANY (CAST(:oids AS oid[]))
"""
_DEFAULT_VERSION = """
    SELECT datcollversion, CASE WHEN datcollversion IS NOT NULL THEN pg_database_collation_actual_version(oid) END
    FROM pg_database WHERE datname = current_database()
"""
#: of the database's own collation
_IS_BINARY = "SELECT 1 FROM pg_database WHERE datname = current_database() AND datcollate IN ('C', 'POSIX')"
_UNUSABLE = """
    SELECT nspname::text FROM pg_namespace WHERE nspname = ANY (CAST(:names AS text[]))
        AND NOT has_schema_privilege(oid, 'USAGE')
"""
#: C and POSIX, which compare bytes
_BINARY_COLLATIONS = (950, 951)
#: of pg_type: text and varchar, uuid
_TEXTS, _UUID = (25, 1043), 2950
#: of pg_type.typtype
_COMPOSITE = "c"


@dataclass(frozen=True, slots=True)
class KeyColumn:
    name: str
    #: quoted, with its schema; of a domain what it is based on
    type: str
    type_oid: int
    #: 0: its type has none
    collation: int
    #: what the order of the collation depends on; '' where on nothing
    collation_version: str = ""
    #: in comparisons it has to be said of which type it is
    is_named: bool = False
    #: of `menura.key_values`; '' where the lake's order is another one
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """A unique index in whose order a table can be read."""

    columns: tuple[KeyColumn, ...]
    #: where its operators are, and types that constants name, beside pg_catalog
    schemas: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of its first columns, as far as the lake orders them as the index does: `menura.key_values`."""
        return tuple(takewhile(bool, (column.kind for column in self.columns)))

    @property
    def order(self) -> str:
        """A digest of how it orders rows: bounds of another one say nothing of it."""
        facts = [[one.name, one.type, one.type_oid, one.collation, one.collation_version] for one in self.columns]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Keys:
    """Those that a table can be read by, the best first."""

    found: tuple[Key, ...]
    #: why a key does not serve that otherwise would; '' where there is none
    unsure: str = ""
    #: schemas that this user may not use, without which no key serves that otherwise would
    unusable: tuple[str, ...] = ()


def keys_of(connection: Connection, version: int, definition: TableDefinition, verdict: Verdict) -> Keys:
    """Statements inside `server_errors`.

    None for a table without a key in the lake: its rows are known by their values, so no change of one can be told to
    come before or after a chunk. None with an ignored column: its bounds would leave this host.
    """
    if not definition.key:
        return Keys(())
    never_null = {attribute.name for attribute in definition.sent if attribute.not_null}
    candidates: dict[str, list[_Part]] = {}
    for name, *row in rows(connection, _CANDIDATES, oid=definition.oid):
        candidates.setdefault(name, []).append(_Part(*row))
    exact = [
        parts
        for parts in candidates.values()
        if all(part.serves and part.name in never_null and not verdict.ignores(part.name) for part in parts)
    ]
    versions, changed = _versions(connection, version, {part.collation for parts in exact for part in parts})
    best = sorted(exact, key=lambda parts: (not parts[0].is_primary, not parts[0].is_identity, len(parts)))
    sure = [parts for parts in best if not any(part.collation in changed for part in parts)]
    kinds = _kinds(connection, version, definition, [part for parts in sure for part in parts])
    found = [_key(parts, versions, kinds) for parts in sure]
    unusable = _unusable(connection, {schema for key in found for schema in key.schemas})
    usable = tuple(key for key in found if not unusable.intersection(key.schemas))
    if usable or not best:
        return Keys(usable)
    if found:
        return Keys((), unusable=tuple(sorted(unusable.intersection(found[0].schemas))))
    return Keys((), unsure=next(changed[part.collation] for part in best[0] if part.collation in changed))


@dataclass(frozen=True, slots=True)
class _Part:
    """A line of `_CANDIDATES`."""

    is_primary: bool
    is_identity: bool
    name: str
    collation: int
    is_plain: bool
    is_domain: bool
    type_oid: int
    type_kind: str
    type_schema: str
    type_name: str
    #: of its operators
    schemas: list[str] | None
    has_usual_operators: bool

    @property
    def is_named(self) -> bool:
        """A constant without a type is no composite one, and domains have no operators of their own."""
        return self.is_domain or self.type_kind == _COMPOSITE

    @property
    def serves(self) -> bool:
        is_thing = self.type_schema == "pg_catalog" and self.type_name.startswith("reg")
        return self.is_plain and bool(self.schemas) and self.has_usual_operators and not is_thing


def _versions(connection: Connection, version: int, collations: Iterable[int]) -> tuple[dict[int, str], dict[int, str]]:
    """Of collations: their versions, and those that are others than their indexes were built with, in words."""
    wanted = sorted(set(collations) - {0})
    found = [tuple(row) for row in rows(connection, _VERSIONS, oids=wanted)] if wanted else []
    if _DEFAULT_COLLATION in wanted and version >= _DEFAULT_COLLATION_VERSIONED:
        found = [row for row in found if row[0] != _DEFAULT_COLLATION]
        found += [(_DEFAULT_COLLATION, *row) for row in rows(connection, _DEFAULT_VERSION)]
    changed = {
        oid: f"its indexes were built with version {built} of a collation, and the server has {actual} now"
        for oid, built, actual in found
        if built is not None and actual is not None and built != actual
    }
    return {oid: str(actual or "") for oid, _, actual in found}, changed


def _unusable(connection: Connection, schemas: Iterable[str]) -> set[str]:
    names = sorted(schemas)
    return {name for (name,) in rows(connection, _UNUSABLE, names=names)} if names else set()


def _kinds(connection: Connection, version: int, definition: TableDefinition, parts: Iterable[_Part]) -> dict[str, str]:
    """Of the columns of keys. Times are numbers in the lake, and UUIDs texts of one length, in the order of their
    bytes; other texts may be of any collation."""
    binary = set(_BINARY_COLLATIONS)
    if any(part.collation == _DEFAULT_COLLATION and part.type_oid in _TEXTS for part in parts):
        provider = " AND datlocprovider = 'c'" if version >= _DEFAULT_COLLATION_VERSIONED else ""
        binary |= {_DEFAULT_COLLATION} if rows(connection, _IS_BINARY + provider) else set()
    is_utf8 = connection.parameter_statuses.get("server_encoding") == "UTF8"
    types = {one.name: one.type for one in definition.sent}
    found = {}
    for part in parts:
        type_ = types[part.name]
        if part.type_oid == _UUID or (part.type_oid in _TEXTS and part.collation in binary and is_utf8):
            found[part.name] = TEXT
        else:
            found[part.name] = kind_of(arrow_format(type_)) if type_.form is not Form.TIME else ""
    return found


def _key(parts: list[_Part], versions: dict[int, str], kinds: dict[str, str]) -> Key:
    columns = tuple(
        KeyColumn(
            part.name,
            f"{quoted(part.type_schema)}.{quoted(part.type_name)}",
            part.type_oid,
            part.collation,
            versions.get(part.collation, ""),
            is_named=part.is_named,
            kind=kinds[part.name],
        )
        for part in parts
    )
    schemas = {schema for part in parts for schema in part.schemas or ()}
    schemas |= {part.type_schema for part in parts if part.is_named}
    return Key(columns, tuple(sorted(schemas - {"pg_catalog"})))
