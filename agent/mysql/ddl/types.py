"""A type's words as a `ColumnType`: synonyms, default lengths, charsets, and what becomes of lengths too large.

Pure. `Unreadable` where the words are not known, or mean something that this version can't be sure of.
"""

from dataclasses import dataclass

from menura.types import ColumnType, Kind

from agent.mysql.ddl.charset_texts import as_held
from agent.mysql.ddl.lexer import Unreadable
from agent.mysql.ddl.lexer import words as keywords
from agent.mysql.ddl.model import NOT_FIXED, Server
from agent.mysql.ddl.syntax import Literal, LiteralKind, TypeWords
from agent.mysql.log.charsets import CHARACTER_BYTES, CharsetUnknown, decode_text

REAL_AS_FLOAT = 1 << 0
#: MariaDB
ORACLE = 1 << 9
MAXDB = 1 << 12

_SYNONYMS = {
    "BOOL": "TINYINT",
    "BOOLEAN": "TINYINT",
    "INT1": "TINYINT",
    "INT2": "SMALLINT",
    "INT3": "MEDIUMINT",
    "MIDDLEINT": "MEDIUMINT",
    "INT4": "INT",
    "INTEGER": "INT",
    "INT8": "BIGINT",
    "DEC": "DECIMAL",
    "FIXED": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "DOUBLE PRECISION": "DOUBLE",
    "CHARACTER": "CHAR",
    "CHAR VARYING": "VARCHAR",
    "CHARACTER VARYING": "VARCHAR",
    "VARCHARACTER": "VARCHAR",
    "SQL_TSI_YEAR": "YEAR",
    "LONG": "MEDIUMTEXT",
    "LONG VARCHAR": "MEDIUMTEXT",
    "LONG VARCHARACTER": "MEDIUMTEXT",
    "LONG CHAR VARYING": "MEDIUMTEXT",
    "LONG CHARACTER VARYING": "MEDIUMTEXT",
    "LONG VARBINARY": "MEDIUMBLOB",
}
_NATIONAL_VARYING = frozenset(
    {
        "NVARCHAR",
        "NCHAR VARYING",
        "NCHAR VARCHAR",
        "NCHAR VARCHARACTER",
        "NATIONAL VARCHAR",
        "NATIONAL VARCHARACTER",
        "NATIONAL CHAR VARYING",
        "NATIONAL CHARACTER VARYING",
    }
)
_NATIONAL_FIXED = frozenset({"NCHAR", "NATIONAL CHAR", "NATIONAL CHARACTER"})
#: MariaDB with sql_mode=ORACLE
_ORACLE_SYNONYMS = {
    "VARCHAR2": "VARCHAR",
    "CLOB": "LONGTEXT",
    "BLOB": "LONGBLOB",
    "RAW": "VARBINARY",
    "DATE": "DATETIME",
}

_INTEGERS = {kind.value.upper(): kind for kind in (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT)}
_TEMPORALS = {"TIME": Kind.TIME, "DATETIME": Kind.DATETIME, "TIMESTAMP": Kind.TIMESTAMP}
_TEXTS = frozenset({"TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"})
_BLOBS = frozenset({"TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"})
_PLAIN = {"DATE": Kind.DATE, "YEAR": Kind.YEAR}
_GEOMETRIES = keywords(
    """GEOMETRY POINT LINESTRING POLYGON MULTIPOINT MULTILINESTRING MULTIPOLYGON GEOMETRYCOLLECTION GEOMCOLLECTION"""
)
#: in a key
_POINT_BYTES = 25
_MARIADB_ONLY = {"INET4": Kind.INET4, "INET6": Kind.INET6, "UUID": Kind.UUID}
_MOST_BYTES = 65535
#: MariaDB keeps room for the length and the null bit
_MOST_BYTES_MARIADB = 65532


@dataclass(frozen=True, slots=True)
class TypeContext:
    server: Server
    sql_mode: int
    #: of the table; '' where it is not known
    charset: str


def charset_of(name: str, server: Server) -> str:
    """A charset's name as the server stores it; raises `Unreadable`."""
    if name == "utf8":
        return "utf8mb3" if server.utf8_is_utf8mb3 else "utf8mb4"
    if name not in CHARACTER_BYTES:
        raise Unreadable(f"the charset {name} is not known to this version")
    return name


def charset_of_words(charset: str, collation: str, default: str, server: Server) -> str:
    """Of CHARACTER SET and COLLATE, either of which may be ''; raises `Unreadable`."""
    if charset:
        return charset_of(charset, server)
    if collation and not collation.startswith("uca1400_"):  # MariaDB: those go with any charset
        return charset_of(collation.split("_", 1)[0], server)
    if not default:
        raise Unreadable("the default charset of its database is not known")
    return default


def column_type(words: TypeWords, context: TypeContext) -> tuple[ColumnType, int]:
    """The type, and of strings the length in characters (bytes where it is binary); raises `Unreadable`.

    >>> server = Server(False, (9, 7, 0))
    >>> str(column_type(TypeWords("DEC", ("5",), unsigned=True), TypeContext(server, 0, "utf8mb4"))[0])
    'decimal(5,0) unsigned'
    """
    name = _canonical(words, context)
    if name in _INTEGERS:
        return ColumnType(_INTEGERS[name], words.unsigned), 0
    if name == "SERIAL":
        return ColumnType(Kind.BIGINT, unsigned=True), 0
    if name in ("DECIMAL", "FLOAT", "DOUBLE", "REAL", "NUMBER"):
        return _number(name, words, context), 0
    if name == "BIT":
        return ColumnType(Kind.BIT, precision=_argument(words, 0, 1) or 1), 0
    if name in _TEMPORALS:
        return ColumnType(_TEMPORALS[name], precision=_argument(words, 0, 0)), 0
    if name in _PLAIN:
        return ColumnType(_PLAIN[name]), 0
    if name in _GEOMETRIES:
        return ColumnType(Kind.GEOMETRY), _POINT_BYTES if name == "POINT" else 0
    if name == "VECTOR":
        return ColumnType(Kind.VECTOR), 0
    if name == "JSON":
        return (ColumnType(Kind.TEXT, charset="utf8mb4") if context.server.mariadb else ColumnType(Kind.JSON)), 0
    if name in _MARIADB_ONLY and context.server.mariadb:
        return ColumnType(_MARIADB_ONLY[name]), 0
    return _string(name, words, context)


def _canonical(words: TypeWords, context: TypeContext) -> str:
    name = words.name
    is_oracle = context.server.mariadb and bool(context.sql_mode & ORACLE)
    if "." in name:
        schema, name = name.split(".")
        if schema not in ("MARIADB_SCHEMA", "ORACLE_SCHEMA", "MAXDB_SCHEMA") or not context.server.mariadb:
            raise Unreadable(f"the type {words.name} is not known to this version")
        is_oracle = schema == "ORACLE_SCHEMA"
        if schema == "MAXDB_SCHEMA" and name == "TIMESTAMP":
            return "DATETIME"
    elif context.server.mariadb and context.sql_mode & MAXDB and name == "TIMESTAMP":
        return "DATETIME"
    if is_oracle and name in _ORACLE_SYNONYMS:
        return _ORACLE_SYNONYMS[name]
    if name == "NUMBER" and not is_oracle:
        raise Unreadable("the type NUMBER is not known outside of sql_mode=ORACLE")
    return _SYNONYMS.get(name, name)


def _argument(words: TypeWords, place: int, default: int) -> int:
    if len(words.arguments) <= place:
        return default
    argument = words.arguments[place]
    digits = argument.partition(".")[0]  # a length's fraction is left out
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise Unreadable(f"{words.name} has a length that is no number")
    return int(digits)


def _number(name: str, words: TypeWords, context: TypeContext) -> ColumnType:
    if name == "NUMBER" and not words.arguments:
        return ColumnType(Kind.DOUBLE)
    if name in ("DECIMAL", "NUMBER"):
        precision, scale = _argument(words, 0, 10) or 10, _argument(words, 1, 0)
        return ColumnType(Kind.DECIMAL, words.unsigned, precision=precision, scale=scale)
    if name == "FLOAT" and len(words.arguments) == 1 and _argument(words, 0, 0) > 24:
        name = "DOUBLE"
    if name == "REAL":
        name = "FLOAT" if context.sql_mode & REAL_AS_FLOAT else "DOUBLE"
    return ColumnType(Kind.FLOAT if name == "FLOAT" else Kind.DOUBLE, words.unsigned)


def decimals(words: TypeWords, column_type: ColumnType) -> int | None:
    """As `ColumnDefinition.decimals`."""
    return _argument(words, 1, NOT_FIXED) if column_type.kind in (Kind.FLOAT, Kind.DOUBLE) else None


def _string(name: str, words: TypeWords, context: TypeContext) -> tuple[ColumnType, int]:
    if name == "BINARY":
        length = _argument(words, 0, 1)
        return ColumnType(Kind.BINARY, length_bytes=length), length
    if name == "VARBINARY":
        return _varying("binary", _argument(words, 0, 0), context.server)
    if name in _BLOBS:
        return ColumnType(Kind.BLOB), 0
    if name in _NATIONAL_FIXED or name in _NATIONAL_VARYING:
        charset = "utf8mb3"
        name = "CHAR" if name in _NATIONAL_FIXED else "VARCHAR"
    else:
        charset = charset_of_words(words.charset, words.collation, context.charset, context.server)
    if name in ("ENUM", "SET"):
        labels = tuple(_label(label, charset) for label in words.labels)
        return ColumnType(Kind.ENUM if name == "ENUM" else Kind.SET, charset=charset, labels=labels), 0
    if name == "CHAR":
        length = _argument(words, 0, 1)
        if charset == "binary":
            return ColumnType(Kind.BINARY, length_bytes=length), length
        return ColumnType(Kind.CHAR, charset=charset), length
    if name == "VARCHAR":
        return _varying(charset, _argument(words, 0, 0), context.server)
    if name in _TEXTS:
        return (ColumnType(Kind.BLOB) if charset == "binary" else ColumnType(Kind.TEXT, charset=charset)), 0
    raise Unreadable(f"the type {words.name} is not known to this version")


def _varying(charset: str, length: int, server: Server) -> tuple[ColumnType, int]:
    """VARCHAR and VARBINARY; what is too long for a row becomes TEXT or BLOB where the sql_mode is not strict."""
    is_too_long = length * CHARACTER_BYTES[charset] > (_MOST_BYTES_MARIADB if server.mariadb else _MOST_BYTES)
    if charset == "binary":
        return (ColumnType(Kind.BLOB), 0) if is_too_long else (ColumnType(Kind.VARBINARY), length)
    if is_too_long:
        return ColumnType(Kind.TEXT, charset=charset), 0
    return ColumnType(Kind.VARCHAR, charset=charset), length


def with_charset(column_type: ColumnType, length: int, charset: str, server: Server) -> tuple[ColumnType, int]:
    """What CONVERT TO CHARACTER SET makes of a column with characters."""
    if column_type.kind is Kind.CHAR:
        if charset == "binary":
            return ColumnType(Kind.BINARY, length_bytes=length), length
        return ColumnType(Kind.CHAR, charset=charset), length
    if column_type.kind is Kind.VARCHAR:
        return _varying(charset, length, server)
    if column_type.kind is Kind.TEXT:
        return (ColumnType(Kind.BLOB) if charset == "binary" else ColumnType(Kind.TEXT, charset=charset)), 0
    return ColumnType(column_type.kind, charset=charset, labels=column_type.labels), 0


def _label(label: Literal, charset: str) -> str:
    text = label.text
    if label.kind is LiteralKind.HEX:
        try:
            text = decode_text(label.charset or charset, bytes.fromhex(text.zfill((len(text) + 1) // 2 * 2)))
        except (CharsetUnknown, UnicodeDecodeError) as broken:
            raise Unreadable("a label is no text of its charset") from broken
    elif label.kind is not LiteralKind.STRING or (label.charset and not text.isascii()):
        raise Unreadable("a label that is written in bits, or with a charset of its own, is not read")
    if label.kind is not LiteralKind.HEX or label.charset:
        held = as_held(charset, text)
        if held is None:
            raise Unreadable(f"what {charset} makes of a label is not known")
        text = held
    return text if charset == "binary" else text.rstrip(" ")
