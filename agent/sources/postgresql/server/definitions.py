"""Definitions of tables as the catalog describes them now: in one moment, by a few statements for any number of tables.

Comes in: a connection, and names or numbers of tables; any user may read what is asked here. Goes out:
`TableDefinition`s.

Whoever compares two of a table finds the columns that are the same by their numbers (`Attribute.number`), tells whether
its rows were written anew by `storage`, and whether what was stored is printed otherwise by `restated`.

A partitioned table stands for its partitions, whose changes are published as its own: they are left out unless they are
asked for. Tables of sessions, views and foreign tables are never listed; tables whose changes are not logged are, so
that it can be said why they have none.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from agent.sources.postgresql.columns import Column, distinct_names
from agent.sources.postgresql.server.connection import Connection, Row, rows
from agent.sources.postgresql.server.missing_values import Missing, MissingValue, missing_value
from agent.sources.postgresql.server.type_names import Composite, Label, TypeNames, read_type_names
from agent.sources.postgresql.types import ColumnType
from agent.table_positions import Table

#: of a table, or of one of its partitions: its oid, and the number of the files that hold its rows
Storage = tuple[int, int]

#: also those of sessions' temporary tables (pg_temp_3), which are nobody else's
NOT_SYSTEM = "nspname NOT IN ('pg_catalog', 'information_schema') AND nspname !~ '^pg_(toast|temp)'"

_TABLES = """
    SELECT of_class.oid, nspname, relname, relkind, relfilenode, relreplident, relpersistence, relispartition,
           relnatts::int, reltoastrelid::bigint
    FROM pg_class AS of_class JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE relkind IN ('r', 'p') AND relpersistence <> 't' AND {where}
"""
_ALL = f"NOT relispartition AND {NOT_SYSTEM}"
_BY_OID = "of_class.oid = ANY (CAST(:oids AS oid[]))"
_BY_NAME = """(nspname, relname) IN (
    SELECT one.schema::name, one.name::name FROM unnest(CAST(:schemas AS text[]), CAST(:names AS text[]))
        AS one (schema, name)
)"""
#: those that a partitioned table's rows are in; a partition that is being detached has left it
_PARTITIONS = """
    WITH RECURSIVE tree (root, oid) AS (
        SELECT inhparent, inhrelid FROM pg_inherits WHERE inhparent = ANY (CAST(:roots AS oid[]))
            AND NOT inhdetachpending
        UNION ALL
        SELECT root, inhrelid FROM tree JOIN pg_inherits ON inhparent = tree.oid WHERE NOT inhdetachpending
    )
    SELECT root, of_class.oid, nspname, relname, relkind, relfilenode, relreplident, relpersistence, relispartition
    FROM tree JOIN pg_class AS of_class ON of_class.oid = tree.oid
    JOIN pg_namespace AS of_schema ON of_schema.oid = relnamespace
    WHERE relkind <> 'p' ORDER BY root, of_class.oid
"""
_ATTRIBUTES = """
    SELECT attrelid, attnum::int, attname, atttypid, atttypmod, format_type(atttypid, atttypmod), attnotnull,
           attgenerated <> '', CASE WHEN atthasmissing THEN attmissingval::text END,
           CASE WHEN attcollation <> 0 THEN attcollation::regcollation::text ELSE '' END, xmin::text::bigint
    FROM pg_attribute WHERE attrelid = ANY (CAST(:oids AS oid[])) AND attnum > 0 AND NOT attisdropped
    ORDER BY attrelid, attnum
"""
_MISSING_IN_PARTITIONS = """
    SELECT attrelid, attname, attmissingval::text
    FROM pg_attribute WHERE attrelid = ANY (CAST(:oids AS oid[])) AND attnum > 0 AND NOT attisdropped AND atthasmissing
"""
#: a deferrable key does not tell rows apart in the middle of a transaction, and servers take none as an identity
_INDEXES = """
    SELECT indrelid, indisprimary, indisreplident,
        (SELECT array_agg(attname::text ORDER BY place)
         FROM unnest(indkey) WITH ORDINALITY AS part (number, place)
         JOIN pg_attribute ON attrelid = indrelid AND attnum = number
         WHERE place <= indnkeyatts)
    FROM pg_index WHERE indrelid = ANY (CAST(:oids AS oid[])) AND (indisprimary OR indisreplident)
        AND indisvalid AND indimmediate
"""
#: from version 18 on a column may be NOT NULL from now on, with older rows that are
_NULLS_LEFT = """
    SELECT conrelid, conkey[1]::int FROM pg_constraint
    WHERE contype = 'n' AND NOT convalidated AND conrelid = ANY (CAST(:oids AS oid[]))
"""

#: of pg_class.relreplident
DEFAULT, FULL, INDEX, NOTHING = "d", "f", "i", "n"
_UNLOGGED = "u"
_FOREIGN = "f"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column."""

    #: stays the same for its whole life, whatever it is called
    number: int
    name: str
    type: ColumnType
    type_oid: int
    modifier: int
    not_null: bool
    #: computed from others, and neither logged nor dumped
    generated: bool
    #: what rows hold that are older than the column
    missing: MissingValue
    #: with its schema unless that is pg_catalog, quoted; '' where the type has none
    collation: str


@dataclass(frozen=True, slots=True)
class TableDefinition:
    oid: int
    schema: str
    name: str
    #: of pg_class.relkind: 'r', or 'p' for a partitioned table
    kind: str
    #: number of the files that hold its rows, another one when they were written anew; 0 of a partitioned table
    file_node: int
    #: of pg_class.relreplident, as a Relation message has it
    replica_identity: str
    #: without dropped ones, by number
    attributes: tuple[Attribute, ...]
    #: of an index that tells rows apart at each moment; empty for none
    primary_key: tuple[str, ...]
    #: columns whose former values each UPDATE and DELETE logs, whatever partition its row is in; empty for none
    identity: tuple[str, ...]
    #: what holds its rows: the table itself, or its partitions, sorted
    storage: tuple[Storage, ...] = ()
    #: of its columns' enums, and of those inside of other types
    labels: tuple[Label, ...] = ()
    #: likewise
    composites: tuple[Composite, ...] = ()
    #: partitions that log less of a former row than the table's own replica identity says
    weak_partitions: tuple[Table, ...] = field(default=())
    #: what of it is not logged: the table itself, or partitions that are unlogged or foreign tables
    unlogged: tuple[Table, ...] = ()
    #: it is another table's partition: its changes are published as that one's
    is_partition: bool = False
    #: the greatest number that a column of it ever had
    last_number: int = 0
    #: of each column in `sent` its number, and the transaction that wrote it into the catalog last; empty: not known
    written_by: tuple[tuple[int, int], ...] = ()
    #: its TOAST table; 0: it has none. None: not known
    toast: int | None = None

    @property
    def table(self) -> Table:
        return self.schema, self.name

    @property
    def sent(self) -> tuple[Attribute, ...]:
        """Those that the log and dumps have."""
        return tuple(attribute for attribute in self.attributes if not attribute.generated)

    @property
    def columns(self) -> tuple[Column, ...]:
        """Those of `sent`, as the stream and dumps send them: two whose names differ in case alone have others here."""
        places = {name: place for place, name in enumerate(self.key, 1)}
        names = distinct_names([one.name for one in self.sent])
        return tuple(
            Column(name, one.type, nullable=not one.not_null, key=places.get(one.name, 0))
            for name, one in zip(names, self.sent, strict=True)
        )

    @property
    def key(self) -> tuple[str, ...]:
        """By which the lake knows its rows; empty: by all their values."""
        found = {DEFAULT: self.primary_key, INDEX: self.identity, FULL: self.primary_key}.get(self.replica_identity, ())
        names = {attribute.name for attribute in self.sent}
        return found if names.issuperset(found) else ()


def restated(before: TableDefinition, after: TableDefinition) -> str:
    """Why rows that both have are printed otherwise now, which nothing logs; '' where they are not.

    A label that an enum got, or a column of the table itself, changes no row. What was changed and changed back counts:
    rows of meanwhile were printed as it was then.
    """
    labels = {number: (label, named_by) for number, label, named_by in before.labels}
    for number, label, named_by in after.labels:
        former, former_by = labels.get(number, (label, named_by))
        if former != label:
            return f"the enum's label {former!r} was renamed to {label!r}"
        if former_by != named_by:
            return f"the enum's label {label!r} was written anew, and may have had another name meanwhile"
    composites = {number: parts for number, *parts in before.composites}
    for number, *parts in after.composites:
        if composites.get(number, parts) != parts:
            return "a composite type has other attributes, or had"
    return ""


def read_definitions(
    connection: Connection,
    tables: Collection[Table] | None = None,
    oids: Collection[int] | None = None,
    *,
    in_transaction: bool = False,
) -> dict[Table, TableDefinition]:
    """Of those that are there; neither names nor numbers: of all, without partitions. Inside `server_errors`.

    `in_transaction`: the connection is in one, which then decides of what moment they are.
    """
    if in_transaction:
        return _read(connection, tables, oids)
    with one_moment(connection):
        return _read(connection, tables, oids)


@contextmanager
def one_moment(connection: Connection) -> Iterator[None]:
    """All statements inside see the catalog as it is at the first of them."""
    rows(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        rows(connection, "ROLLBACK")


def _read(
    connection: Connection, tables: Collection[Table] | None, oids: Collection[int] | None
) -> dict[Table, TableDefinition]:
    found = [_Class(*row) for row in _classes(connection, tables, oids)]
    partitions = _partitions(connection, [one.oid for one in found if one.kind == "p"])
    every = [*(one.oid for one in found), *(part.oid for parts in partitions.values() for part in parts)]
    indexes: dict[int, list[_Index]] = defaultdict(list)
    for owner, is_primary, is_identity, names in rows(connection, _INDEXES, oids=every) if every else ():
        indexes[owner].append(_Index(is_primary, is_identity, tuple(names or ())))
    attributes = _attributes(connection, found, partitions)
    types = read_type_names(connection, {row[3] for of_table in attributes.values() for row in of_table})
    shared = _Shared(types)
    return {
        one.table: _definition(one, attributes.get(one.oid, []), partitions.get(one.oid, ()), indexes, shared)
        for one in found
    }


def _classes(connection: Connection, tables: Collection[Table] | None, oids: Collection[int] | None) -> list[Row]:
    if oids is not None:
        return rows(connection, _TABLES.format(where=_BY_OID), oids=list(oids)) if oids else []
    if tables is None:
        return rows(connection, _TABLES.format(where=_ALL))
    schemas, names = [schema for schema, _ in tables], [name for _, name in tables]
    return rows(connection, _TABLES.format(where=_BY_NAME), schemas=schemas, names=names) if tables else []


@dataclass(frozen=True, slots=True)
class _Class:
    """A line of `_TABLES`."""

    oid: int
    schema: str
    name: str
    kind: str
    file_node: int
    replica_identity: str
    persistence: str
    is_partition: bool
    last_number: int = 0
    toast: int = 0

    @property
    def table(self) -> Table:
        return self.schema, self.name

    @property
    def is_logged(self) -> bool:
        return self.persistence != _UNLOGGED and self.kind != _FOREIGN


@dataclass(frozen=True, slots=True)
class _Index:
    is_primary: bool
    is_identity: bool
    names: tuple[str, ...]


class _Shared:
    """What many tables have in common is there once."""

    def __init__(self, types: TypeNames) -> None:
        self.types = types
        self._labels: dict[frozenset[int], tuple[Label, ...]] = {}
        self._composites: dict[frozenset[int], tuple[Composite, ...]] = {}

    def labels(self, type_oids: frozenset[int]) -> tuple[Label, ...]:
        if type_oids not in self._labels:
            self._labels[type_oids] = self.types.labels(type_oids)
        return self._labels[type_oids]

    def composites(self, type_oids: frozenset[int]) -> tuple[Composite, ...]:
        if type_oids not in self._composites:
            self._composites[type_oids] = self.types.composites(type_oids)
        return self._composites[type_oids]


def _partitions(connection: Connection, roots: Sequence[int]) -> dict[int, list[_Class]]:
    found: dict[int, list[_Class]] = defaultdict(list)
    for root, *row in rows(connection, _PARTITIONS, roots=list(roots)) if roots else ():
        found[root].append(_Class(*row))
    return found


def _attributes(
    connection: Connection, found: Sequence[_Class], partitions: dict[int, list[_Class]]
) -> dict[int, list[Row]]:
    """By table; the values of `_ATTRIBUTES`, with what is missing in partitions where it is partitioned."""
    if not found:
        return {}
    oids = [one.oid for one in found]
    nulls_left = {(owner, number) for owner, number in rows(connection, _NULLS_LEFT, oids=oids)}
    missing: dict[tuple[int, str], set[str]] = defaultdict(set)
    parts = {part.oid: root for root, of_root in partitions.items() for part in of_root}
    for owner, name, value in rows(connection, _MISSING_IN_PARTITIONS, oids=list(parts)) if parts else ():
        missing[parts[owner], name].add(value)
    attributes: dict[int, list[Row]] = defaultdict(list)
    for row in rows(connection, _ATTRIBUTES, oids=oids):
        owner, number, name, *more, not_null, generated, value, collation, written_by = row
        never_null = not_null and (owner, number) not in nulls_left
        before = missing.get((owner, name), value)
        attributes[owner].append((owner, number, name, *more, never_null, generated, before, collation, written_by))
    return attributes


def _definition(
    found: _Class,
    attributes: Sequence[Row],
    partitions: Sequence[_Class],
    indexes: dict[int, list[_Index]],
    shared: _Shared,
) -> TableDefinition:
    columns = tuple(_attribute(row, shared.types) for row in attributes)
    names = tuple(column.name for column in columns if not column.generated)
    identity = _identity(found.replica_identity, indexes[found.oid], names)
    logged = [set(_identity(part.replica_identity, indexes[part.oid], names)) for part in partitions]
    in_all = tuple(name for name in identity if all(name in one for one in logged))
    holders = [found] if found.kind == "r" else partitions
    types = frozenset(column.type_oid for column in columns)
    writers = [row[-1] for row in attributes]
    return TableDefinition(
        oid=found.oid,
        schema=found.schema,
        name=found.name,
        kind=found.kind,
        file_node=found.file_node,
        replica_identity=found.replica_identity,
        attributes=columns,
        primary_key=next((index.names for index in indexes[found.oid] if index.is_primary), ()),
        identity=in_all,
        storage=tuple(sorted((part.oid, part.file_node) for part in holders)),
        labels=shared.labels(types),
        composites=shared.composites(types),
        weak_partitions=tuple(
            part.table for part, one in zip(partitions, logged, strict=True) if not one.issuperset(identity)
        ),
        unlogged=tuple(part.table for part in holders if not part.is_logged),
        is_partition=found.is_partition,
        last_number=found.last_number,
        written_by=tuple((one.number, by) for one, by in zip(columns, writers, strict=True) if not one.generated),
        toast=found.toast,
    )


def _identity(replica_identity: str, indexes: Iterable[_Index], names: tuple[str, ...]) -> tuple[str, ...]:
    """Columns of which a former row's values are logged."""
    if replica_identity == FULL:
        return names
    by = {DEFAULT: "is_primary", INDEX: "is_identity"}.get(replica_identity)
    return next((index.names for index in indexes if by is not None and getattr(index, by)), ())


def _attribute(row: Row, types: TypeNames) -> Attribute:
    _, number, name, type_oid, modifier, type_name, not_null, generated, missing, collation, _ = row
    column_type = types.column_type(type_oid, modifier, type_name)
    value = _missing(missing, column_type)
    return Attribute(number, name, column_type, type_oid, modifier, not_null, generated, value, collation)


def _missing(found: object, column_type: ColumnType) -> MissingValue:
    """Of a partitioned table: a set of what its partitions say."""
    if found is None:
        return None
    texts = found if isinstance(found, set) else {found}
    if len(texts) > 1:
        return Missing.UNKNOWN
    return missing_value(str(next(iter(texts))), column_type)
