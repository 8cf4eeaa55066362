"""Keys: what the primary one makes of its columns, and which unique ones have a hidden column on MariaDB."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from itertools import chain, count

from agent.sources.mysql.ddl.lexer import Unreadable
from agent.sources.mysql.ddl.model import ColumnDefinition, Default, KeyDefinition
from agent.sources.mysql.ddl.syntax import ColumnSpec, KeyPart, KeySpec, PeriodSpec
from agent.sources.mysql.log.charsets import CHARACTER_BYTES
from agent.sources.mysql.types import ColumnType, Kind

#: they have hash indexes of their own
ENGINES_OF_HASHES = ("MEMORY", "HEAP")
#: of an index
_MOST_KEY_BYTES = {"MYISAM": 1000, "ARIA": 2300, "MARIA": 2300}
_MOST_KEY_BYTES_OF_INNODB = 3072
#: of a shape that is in a key without a length
_SHAPE_BYTES = 8
_STRINGS = frozenset({Kind.CHAR, Kind.VARCHAR, Kind.BINARY, Kind.VARBINARY})
_LONG_KINDS = frozenset({Kind.TEXT, Kind.BLOB, Kind.JSON})
#: without a fraction of a second
_FIXED_BYTES = {
    Kind.TINYINT: 1,
    Kind.SMALLINT: 2,
    Kind.MEDIUMINT: 3,
    Kind.INT: 4,
    Kind.BIGINT: 8,
    Kind.FLOAT: 4,
    Kind.DOUBLE: 8,
    Kind.DATE: 3,
    Kind.TIME: 3,
    Kind.DATETIME: 5,
    Kind.TIMESTAMP: 4,
    Kind.YEAR: 1,
    Kind.INET4: 4,
    Kind.INET6: 16,
    Kind.UUID: 16,
}
#: of a decimal's digits beyond nines
_DIGITS_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4)


def inline_keys(spec: ColumnSpec) -> list[KeySpec]:
    """PRIMARY KEY or else UNIQUE among a column's attributes."""
    if spec.primary:
        return [KeySpec(True, "PRIMARY", (KeyPart(spec.name),))]
    is_unique = spec.unique or spec.type.name == "SERIAL"
    return [KeySpec(False, "", (KeyPart(spec.name),))] if is_unique else []


def with_period_columns(keys: list[KeySpec], periods: list[PeriodSpec]) -> list[KeySpec]:
    """MariaDB: a period WITHOUT OVERLAPS is its end and its start in a key."""
    known = {period.name.lower(): (KeyPart(period.end), KeyPart(period.start)) for period in periods}

    def columns_of(part: KeyPart) -> tuple[KeyPart, ...]:
        if not part.is_period:
            return (part,)
        if part.column.lower() not in known:
            raise Unreadable("a key has a period whose columns are not known")
        return known[part.column.lower()]

    return [replace(key, parts=tuple(column for part in key.parts for column in columns_of(part))) for key in keys]


def with_periods(columns: list[ColumnDefinition], periods: list[PeriodSpec]) -> list[ColumnDefinition]:
    """The columns, those of periods being NOT NULL; raises `Unreadable`."""
    wanted = {name.lower() for period in periods for name in (period.start, period.end)}
    if not wanted <= {column.name.lower() for column in columns}:
        raise Unreadable("a period has a column that was not known to be there")
    return [_required(column) if column.name.lower() in wanted else column for column in columns]


def with_primary_key(
    columns: list[ColumnDefinition], primary_key: tuple[str, ...]
) -> tuple[list[ColumnDefinition], tuple[str, ...]]:
    """The columns, those of the key being NOT NULL, and the key in their spelling; raises `Unreadable`."""
    names = {column.name.lower(): column.name for column in columns}
    wanted = [name.lower() for name in primary_key]
    if not set(wanted) <= set(names):
        raise Unreadable("its primary key has a column that was not known to be there")
    made = [_required(column) if column.name.lower() in wanted else column for column in columns]
    return made, tuple(names[name] for name in wanted)


def _required(column: ColumnDefinition) -> ColumnDefinition:
    """As NOT NULL."""
    default = Default.NONE if column.default is Default.NULL else column.default
    return replace(column, nullable=False, default=default)


def is_generated_key(column: ColumnDefinition, primary_key: tuple[str, ...]) -> bool:
    """Whether it is what MySQL gives a table without a primary key."""
    is_its_type = column.type == ColumnType(Kind.BIGINT, unsigned=True) and column.auto_increment
    return is_its_type and not column.visible and primary_key == (column.name,) and column.name.lower() == "my_row_id"


def added_keys(keys: Iterable[KeyDefinition], specs: Iterable[KeySpec]) -> tuple[KeyDefinition, ...]:
    """MariaDB: the keys with those of a statement, the primary one left out."""
    made = list(keys)
    for key in specs:
        names = {other.name.lower() for other in made}
        if key.primary or (key.if_not_exists and (key.name or key.parts[0].column).lower() in names):
            continue
        parts = tuple((part.column, part.length) for part in key.parts)
        made.append(KeyDefinition(key.name or _free_name(parts[0][0], names), parts, key.unique, key.uses_hash))
    return tuple(made)


def _free_name(column: str, names: Container[str]) -> str:
    """As the server makes it for a key without a name."""
    tries = chain([column] if column.lower() != "primary" else [], (f"{column}_{number}" for number in count(2)))
    return next(name for name in tries if name.lower() not in names)


def with_hashes(
    keys: Iterable[KeyDefinition], columns: Iterable[ColumnDefinition], engine: str
) -> tuple[KeyDefinition, ...]:
    """The keys as a table has them; those that use a hash whatever their length are marked already."""
    by_name = {column.name.lower(): column for column in columns}
    if not {name.lower() for key in keys if key.unique for name, _ in key.parts} <= set(by_name):
        raise Unreadable("a unique key has a column that was not known to be there")
    made = []
    for key in keys:
        parts = tuple((name, _length_in_key(by_name.get(name.lower()), length)) for name, length in key.parts)
        is_whole = any(length == 0 and _is_shape(by_name.get(name.lower())) for name, length in key.parts)
        uses_hash = key.unique and (key.hashed or is_whole or _is_too_long(parts, by_name, engine))
        made.append(replace(key, parts=parts, hashed=uses_hash))
    return tuple(made)


def _is_shape(column: ColumnDefinition | None) -> bool:
    """Of any length. As a whole it has a hash, until an ALTER TABLE makes its first bytes the key."""
    return column is not None and column.type.kind is Kind.GEOMETRY and not column.length


def _length_in_key(column: ColumnDefinition | None, length: int) -> int:
    """0 where the whole column is in the key: no text, or one that is not longer; a point is its own prefix."""
    if column is None or column.type.kind in _LONG_KINDS:
        return length
    if column.type.kind is Kind.GEOMETRY:
        return column.length or length or _SHAPE_BYTES
    return length if column.type.kind in _STRINGS and length < column.length else 0


def hash_count(keys: Iterable[KeyDefinition], engine: str) -> int:
    """How many hidden columns the keys have."""
    return 0 if engine in ENGINES_OF_HASHES else sum(key.hashed for key in keys)


def _is_too_long(parts: Iterable[tuple[str, int]], columns: Mapping[str, ColumnDefinition], engine: str) -> bool:
    """Whether no index can hold such a unique key; `columns` by their names in lower case."""
    sizes = [_bytes_in_key(columns[name.lower()], length) for name, length in parts]
    return None in sizes or sum(filter(None, sizes)) > _MOST_KEY_BYTES.get(engine, _MOST_KEY_BYTES_OF_INNODB)


def _bytes_in_key(column: ColumnDefinition, length: int) -> int | None:
    """None: of any length."""
    type_ = column.type
    if type_.kind in _STRINGS:
        return (length or column.length) * CHARACTER_BYTES[type_.charset or "binary"]
    if type_.kind in _LONG_KINDS:
        return length * CHARACTER_BYTES[type_.charset or "binary"] or None
    if type_.kind is Kind.GEOMETRY:
        return length or None
    if type_.kind is Kind.DECIMAL:
        parts = (type_.precision - type_.scale, type_.scale)
        return sum(digits // 9 * 4 + _DIGITS_BYTES[digits % 9] for digits in parts)
    if type_.kind is Kind.BIT:
        return (type_.precision + 7) // 8
    if type_.kind is Kind.ENUM:
        return 1 if len(type_.labels) < 256 else 2
    if type_.kind is Kind.SET:
        return next(size for size in (1, 2, 3, 4, 8) if len(type_.labels) <= 8 * size)
    if type_.kind in _FIXED_BYTES:
        return _FIXED_BYTES[type_.kind] + (type_.precision + 1) // 2
    raise Unreadable(f"a unique key has a column of type {type_.kind}")


def with_row_end(primary_key: tuple[str, ...], row_end: str) -> tuple[str, ...]:
    """MariaDB: the primary key of a versioned table has the period's end as its last column."""
    return (*primary_key, row_end) if primary_key and row_end not in primary_key else primary_key
