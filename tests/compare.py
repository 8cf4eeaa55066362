"""Is a lake table equal to its source table, row for row and value for value?

The source is asked with a plain SELECT over the text protocol, so that its side is the server's own words.
The lake's side is turned into the same words. Both are compared as multisets.
"""

import datetime
import decimal
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pymysql.converters
from pymysql.connections import Connection

from tests.servers import Server

#: values stay in the server's own words: bytes for binary columns, else text
_ENCODERS_ONLY = {kind: encode for kind, encode in pymysql.converters.conversions.items() if not isinstance(kind, int)}

#: charsets with codes that are no characters
_WITH_UNASSIGNED = frozenset({"ascii", "big5", "cp932", "eucjpms", "euckr", "gb2312", "gbk", "sjis", "ujis"})
#: in the highest byte of EWKB's type
_HAS_SRID = 0x20
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"})
#: in a column of the lake that holds numbers or text of another type too, their values are those of that column's type
_WHOLE_NUMBERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint", "year", "bit", "time"})
_SPATIAL = frozenset(
    {
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
        *("geometrycollection", "geomcollection"),
    }
)

#: of a value in the lake, by the source's type; what is not here may be of several
_PYTHON_TYPES: dict[str, type] = {
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(_SPATIAL, bytes),
    **dict.fromkeys(("datetime", "timestamp"), datetime.datetime),
    "date": datetime.date,
    **dict.fromkeys(_WHOLE_NUMBERS, int),
}

Row = tuple[object, ...]

#: in place of a value whose column the lake does not have (yet)
NO_COLUMN = "(no such column)"


@dataclass(frozen=True)
class Comparison:
    table: str
    source_rows: int
    lake_rows: int
    only_in_source: list[Row]
    only_in_lake: list[Row]
    columns: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.only_in_source and not self.only_in_lake

    def __str__(self) -> str:
        if self.equal:
            return f"{self.table}: {self.source_rows} rows, equal"
        return (
            f"{self.table}: {self.source_rows} rows in the source, {self.lake_rows} in the lake; "
            f"only in the source, e.g. {self.only_in_source[:2]}; only in the lake, e.g. {self.only_in_lake[:2]}"
        )


@dataclass(frozen=True)
class SourceColumn:
    name: str
    data_type: str
    column_type: str
    scale: int
    fraction_digits: int
    #: of texts
    charset: str = ""


def source_columns(connection: Connection, database: str, table: str) -> list[SourceColumn]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type, column_type, numeric_scale, datetime_precision, character_set_name "
            "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (database, table),
        )
        return [
            SourceColumn(
                str(name),
                str(data_type).lower(),
                str(column_type).lower(),
                int(scale or 0),
                int(fraction or 0),
                str(charset or ""),
            )
            for name, data_type, column_type, scale, fraction, charset in cursor.fetchall()
        ]


def read_source(
    server: Server, database: str, table: str, ignored: Iterable[str] = ()
) -> tuple[list[SourceColumn], list[Row]]:
    """Every row as the server prints it in UTC: bytes for binary and bit, float for float and double, else str.

    A text that is none is 0x and its bytes in the column's charset.
    """
    with server.connect(conv=_ENCODERS_ONLY, init_command="SET time_zone = '+00:00'") as connection:
        columns = [c for c in source_columns(connection, database, table) if c.name not in set(ignored)]
        with connection.cursor() as cursor:
            chosen = [_chosen(column) for column in columns]
            from_table = f"FROM {_quoted(database)}.{_quoted(table)}"
            try:
                cursor.execute(f"SELECT {', '.join(chosen)} {from_table}")
                rows = cursor.fetchall()
            except UnicodeDecodeError:
                rows = None
    if rows is None:
        rows = _with_invalid_texts(server, columns, chosen, from_table)
    readers = [float if column.data_type in ("float", "double") else _as_is for column in columns]
    return columns, [
        tuple(None if value is None else read(value) for read, value in zip(readers, row, strict=True)) for row in rows
    ]


def _with_invalid_texts(
    server: Server, columns: list[SourceColumn], chosen: list[str], from_table: str
) -> tuple[Row, ...]:
    """The same rows, some of whose texts are none in UTF-8."""
    raw = [f"HEX({name})" if c.data_type in _TEXTS else "NULL" for c, name in zip(columns, chosen, strict=True)]
    setting = "SET time_zone = '+00:00'"
    with (
        server.connect(conv=_ENCODERS_ONLY, init_command=setting, use_unicode=False) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT {', '.join([*chosen, *raw])} {from_table}")
        return tuple(
            tuple(_text(c, *pair) for c, pair in zip(columns, zip(row, row[len(columns) :], strict=False), strict=True))
            for row in cursor.fetchall()
        )


def _text(column: SourceColumn, value: object, raw: object) -> object:
    is_binary = column.data_type in ("bit", "vector", *_SPATIAL) or column.data_type.endswith(("binary", "blob"))
    if not isinstance(value, bytes) or is_binary:
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        assert isinstance(raw, bytes)
        return f"0x{raw.decode()}"


def _chosen(column: SourceColumn) -> str:
    name = _quoted(column.name)
    if column.data_type in ("float", "double"):  # printed with six digits or those of its definition; so with all
        return f"CAST({name} AS DOUBLE)"
    if column.data_type == "vector":  # PyMySQL takes it for text
        return f"CAST({name} AS BINARY)"
    if column.charset in _WITH_UNASSIGNED:  # printed as question marks, which it does not have
        shown, held = _question_marks(f"CONVERT({name} USING utf8mb4)"), _question_marks(f"CAST({name} AS BINARY)")
        return f"IF({shown} > {held}, CONCAT('0x', HEX({name})), {name})"
    return name


def _question_marks(text: str) -> str:
    return f"(CHAR_LENGTH({text}) - CHAR_LENGTH(REPLACE({text}, '?', '')))"


def _as_is(value: object) -> object:
    return value


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def lake_value(column: SourceColumn, value: object, unrepresentable: str | None) -> object:
    """A lake value in the source's words. One of another type, as while the lake is behind an ALTER, equals none."""
    if value is None:
        return unrepresentable
    kind = column.data_type
    if kind == "decimal" and isinstance(value, str):
        number = _number(value)
        if number is None:
            return _of_another_type(value)
        return _decimal_text(column, number) if "E" in value else _zerofilled(column, value)
    if kind in _WHOLE_NUMBERS and isinstance(value, (str, decimal.Decimal)):
        number = _number(value)
        if number is None or number != int(number):
            return _of_another_type(value)
        value = int(number)
    if not isinstance(value, _PYTHON_TYPES.get(kind, object)):
        return _of_another_type(value)
    if kind in ("float", "double"):
        return value
    if kind in _SPATIAL:
        assert isinstance(value, bytes)
        return _stored_geometry(value)
    if kind == "time":
        return _time_text(value, column.fraction_digits)
    if kind in ("datetime", "timestamp"):
        assert isinstance(value, datetime.datetime)
        value = value.replace(tzinfo=None)
        text = f"{value.year:04}-{value:%m-%d %H:%M:%S}"
        return text + (f".{value.microsecond:06}"[: column.fraction_digits + 1] if column.fraction_digits else "")
    if kind == "date":
        assert isinstance(value, datetime.date)
        return f"{value.year:04}-{value:%m-%d}"
    if kind == "year":
        return f"{value:04}"
    if kind == "bit":
        assert isinstance(value, int)
        bits = int(column.column_type.partition("(")[2].rstrip(")") or 1)
        number, size = int(value) & (2**64 - 1), (bits + 7) // 8
        return number.to_bytes(size, "big") if number < 1 << 8 * size else _of_another_type(value)
    if isinstance(value, decimal.Decimal):
        return _decimal_text(column, value)
    if isinstance(value, int):
        return _zerofilled(column, str(value))
    return value


def _stored_geometry(ewkb: bytes) -> bytes:
    """EWKB as the server holds a geometry: its SRID, then WKB."""
    if ewkb[4] & _HAS_SRID:
        return ewkb[5:9] + ewkb[:4] + bytes([ewkb[4] & ~_HAS_SRID]) + ewkb[9:]
    return bytes(4) + ewkb


def _number(text: str | decimal.Decimal) -> decimal.Decimal | None:
    try:
        number = decimal.Decimal(text)
    except decimal.InvalidOperation:
        return None
    return number if number.is_finite() else None


def _of_another_type(value: object) -> object:
    return type(value).__name__, value


def _decimal_text(column: SourceColumn, value: decimal.Decimal) -> object:
    """With the source's digits behind the point: the lake's column may have more."""
    with decimal.localcontext(prec=100):
        exact = value.quantize(decimal.Decimal(1).scaleb(-column.scale))
    if exact != value:
        return _of_another_type(value)
    return _zerofilled(column, f"{exact:f}")


def _zerofilled(column: SourceColumn, text: str) -> str:
    if "zerofill" not in column.column_type:
        return text
    digits = int(column.column_type.partition("(")[2].partition(")")[0].partition(",")[0])
    return text.zfill(digits + bool(column.scale))


def _time_text(value: object, digits: int) -> str:
    assert isinstance(value, int)
    seconds, micros = divmod(abs(value), 1_000_000)
    text = f"{'-' if value < 0 else ''}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return text + (f".{micros:06}"[: digits + 1] if digits else "")


def compare(
    name: str,
    columns: list[SourceColumn],
    source: list[Row],
    lake: list[Mapping[str, object]],
    lake_names: Mapping[str, str],
) -> Comparison:
    """`lake` rows are mappings by lake column; `lake_names` maps a source column's name to the lake's."""
    import json  # noqa: PLC0415

    def words(row: Mapping[str, object]) -> Row:
        extra = json.loads(str(row["_unrepresentable"])) if row.get("_unrepresentable") else {}
        return tuple(
            lake_value(c, row[lake_names[c.name]], extra.get(c.name)) if lake_names[c.name] in row else NO_COLUMN
            for c in columns
        )

    in_source, in_lake = Counter(source), Counter(words(row) for row in lake)
    return Comparison(
        name,
        len(source),
        len(lake),
        list((in_source - in_lake).elements()),
        list((in_lake - in_source).elements()),
        tuple(column.name for column in columns),
    )
