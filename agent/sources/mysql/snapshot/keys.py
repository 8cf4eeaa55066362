"""By which key a table is read: the primary one, else the unique one that costs the least.

Comes in: a table's definition and its indexes as the server lists them. Goes out: a `Key`, or None when no key orders
the rows exactly. A key serves when all its columns are NOT NULL and whole (no prefixes, no expressions), the index is
ordered and not hidden from the optimizer, and a value of each column can be written back as an exact literal. FLOAT
and DOUBLE can't; an ENUM or SET is walked value by value, so it may have few of them only. MariaDB's CHAR of a NO PAD
collation can't either: its index is ordered with the padding, a comparison is made without, and rows would be skipped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import takewhile
from typing import Any

from menura.key_values import TEXT, kind_of
from pymysql.connections import Connection

from agent.filter import Verdict
from agent.sources.mysql.ddl.model import ColumnDefinition, Table, TableDefinition
from agent.sources.mysql.server.connection import rows
from agent.sources.mysql.server.quoting import quoted
from agent.sources.mysql.types import INTEGER_KINDS, ColumnType, Kind, arrow_format

#: of an ENUM or SET in a key: neither server makes a range of `enum > 3`, so a bound lists the values beyond it
MOST_LISTED_VALUES = 256
_COLLATIONS = """
    SELECT column_name, data_type, collation_name FROM information_schema.columns
    WHERE table_schema = %s AND table_name = %s AND collation_name IS NOT NULL
"""
#: collations that compare UTF-8 byte by byte, without padding: MySQL's, and MariaDB's
_BINARY_COLLATIONS = frozenset({"utf8mb4_0900_bin", "utf8mb4_nopad_bin", "utf8mb3_nopad_bin", "ascii_nopad_bin"})


class Form(Enum):
    """How a key column's value is written as a bound, and thus as a literal."""

    #: digits: integers, decimals, years, bits
    NUMBER = auto()
    #: the number of an ENUM's label or of a SET's labels
    LISTED = auto()
    #: hex digits of the bytes in the column's charset
    TEXT = auto()
    #: hex digits
    BYTES = auto()
    #: as the server prints dates and times, in UTC
    MOMENT = auto()
    #: as MariaDB prints UUID, INET4 and INET6
    ADDRESS = auto()


_FORMS = {
    **dict.fromkeys((*INTEGER_KINDS, Kind.DECIMAL, Kind.YEAR, Kind.BIT), Form.NUMBER),
    **dict.fromkeys((Kind.ENUM, Kind.SET), Form.LISTED),
    **dict.fromkeys((Kind.CHAR, Kind.VARCHAR), Form.TEXT),
    **dict.fromkeys((Kind.BINARY, Kind.VARBINARY), Form.BYTES),
    **dict.fromkeys((Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP), Form.MOMENT),
    **dict.fromkeys((Kind.INET4, Kind.INET6, Kind.UUID), Form.ADDRESS),
}
_WIDTHS = {
    Kind.TINYINT: 1,
    Kind.YEAR: 1,
    Kind.SMALLINT: 2,
    Kind.ENUM: 2,
    Kind.MEDIUMINT: 3,
    Kind.DATE: 3,
    Kind.INT: 4,
    Kind.INET4: 4,
    Kind.TIME: 6,
    Kind.TIMESTAMP: 7,
    Kind.BIGINT: 8,
    Kind.DATETIME: 8,
    Kind.BIT: 8,
    Kind.SET: 8,
    Kind.INET6: 16,
    Kind.UUID: 16,
}
_DIGITS_PER_BYTE = 2
_MOST_BYTES_PER_CHARACTER = 4


@dataclass(frozen=True, slots=True)
class KeyColumn:
    name: str
    type: ColumnType
    #: how the index orders it
    descending: bool = False
    #: of text
    collation: str = ""

    @property
    def form(self) -> Form:
        return _FORMS[self.type.kind]

    @property
    def greatest_listed(self) -> int:
        """Of a LISTED column: its greatest value; 0 is the ENUM's error value and the empty SET."""
        count = len(self.type.labels)
        return count if self.type.kind is Kind.ENUM else (1 << count) - 1


@dataclass(frozen=True, slots=True)
class Key:
    """A unique index in whose order a table can be read; its rows differ in it under the columns' collations."""

    index: str
    columns: tuple[KeyColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of its first columns, as far as the lake orders them as the index does: `menura.key_values`."""
        return tuple(takewhile(bool, map(_kind, self.columns)))


@dataclass(frozen=True, slots=True)
class _Part:
    """A line of SHOW INDEX."""

    index: str
    column: str
    descending: bool
    usable: bool


def _kind(column: KeyColumn) -> str:
    """'' where the lake's order is another one: of TIME, whose values are numbers there, too."""
    kind = column.type.kind
    if column.descending or kind is Kind.TIME:
        return ""
    if kind is Kind.VARCHAR:
        return TEXT if column.collation in _BINARY_COLLATIONS else ""
    return kind_of(arrow_format(column.type))


def keys_of(connection: "Connection[Any]", table: Table, definition: TableDefinition, verdict: Verdict) -> list[Key]:
    """Those that `table` can be read by, the best first; statements inside `server_errors`.

    The primary key, or the unique one that the server puts in its place (the first without NULLs): InnoDB keeps the
    rows in its order. Else the one of the fewest and then the narrowest columns. A key with an ignored column is none:
    its bounds would leave this host.
    """
    read = [tuple(map(_text, row)) for row in rows(connection, _COLLATIONS, table)]
    # MySQL's NO PAD collations have no such names
    misordered = {name.lower() for name, type_, collation in read if type_ == "char" and "nopad" in collation}
    collations = {name.lower(): collation for name, _, collation in read}
    columns = {name: column for name, column in _by_name(definition).items() if name not in misordered}
    candidates = _unique_indexes(connection, table)
    found = [key for parts in candidates.values() if (key := _key(parts, columns, collations)) is not None]
    keys = [key for key in found if not any(verdict.ignores(name) for name in key.names)]
    clustered = _in_place_of_primary(candidates, columns)
    return sorted(keys, key=lambda key: (key.index != clustered, len(key.columns), _width(key, columns)))


def with_promoted_key(connection: "Connection[Any]", table: Table, definition: TableDefinition) -> TableDefinition:
    """The definition as a log that describes its tables has it: there the unique key that the server puts in the place
    of a primary one is the primary one. Statements inside `server_errors`."""
    if definition.primary_key:
        return definition
    candidates = _unique_indexes(connection, table)
    promoted = candidates.get(_in_place_of_primary(candidates, _by_name(definition)), [])
    return replace(definition, primary_key=tuple(part.column for part in promoted))


def _by_name(definition: TableDefinition) -> dict[str, ColumnDefinition]:
    return {column.name.lower(): column for column in definition.columns}


def _unique_indexes(connection: "Connection[Any]", table: Table) -> dict[str, list[_Part]]:
    """By name, in the server's order: the primary key first, then those without NULLs."""
    found: dict[str, list[_Part]] = {}
    for part in _parts(connection, table):
        found.setdefault(part.index, []).append(part)
    return found


def _in_place_of_primary(candidates: dict[str, list[_Part]], columns: dict[str, ColumnDefinition]) -> str:
    """Name of the index by which InnoDB keeps the rows; empty for none."""
    return next((name for name, parts in candidates.items() if _is_not_null(parts, columns)), "")


def _parts(connection: "Connection[Any]", table: Table) -> Iterable[_Part]:
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW INDEX FROM {quoted(table)} WHERE Non_unique = 0")
        names = [str(column[0]).lower() for column in cursor.description or ()]
        for values in cursor.fetchall():
            row = dict(zip(names, values, strict=True))
            usable = (
                row["column_name"] is not None
                and row["sub_part"] is None
                and row["index_type"] == "BTREE"
                and row.get("visible", "YES") == "YES"
                and row.get("ignored", "NO") == "NO"
            )
            yield _Part(str(row["key_name"]), str(row["column_name"]), row["collation"] == "D", usable)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _key(parts: list[_Part], columns: dict[str, ColumnDefinition], collations: dict[str, str]) -> Key | None:
    found: list[KeyColumn] = []
    for part in parts:
        column = columns.get(part.column.lower())
        if not part.usable or column is None or column.nullable or column.type.kind not in _FORMS:
            return None
        collation = collations.get(part.column.lower(), "")
        found.append(KeyColumn(column.name, column.type, part.descending, collation))
        if found[-1].form is Form.LISTED and found[-1].greatest_listed >= MOST_LISTED_VALUES:
            return None
    return Key(parts[0].index, tuple(found))


def _is_not_null(parts: list[_Part], columns: dict[str, ColumnDefinition]) -> bool:
    found = [columns.get(part.column.lower()) for part in parts]
    return all(column is not None and not column.nullable for column in found) and all(part.usable for part in parts)


def _width(key: Key, columns: dict[str, ColumnDefinition]) -> int:
    """In bytes, at most."""
    return sum(_column_width(columns[name.lower()]) for name in key.names)


def _column_width(column: ColumnDefinition) -> int:
    kind = column.type.kind
    if kind is Kind.DECIMAL:
        return column.type.precision // _DIGITS_PER_BYTE + 1
    if kind in (Kind.CHAR, Kind.VARCHAR):
        return column.length * _MOST_BYTES_PER_CHARACTER
    return column.length if kind in (Kind.BINARY, Kind.VARBINARY) else _WIDTHS[kind]
