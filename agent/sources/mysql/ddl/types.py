"""A type's words as a `ColumnType`: synonyms, default lengths, charsets, and what becomes of lengths too large.

Pure. `Unreadable` where the words are not known, or mean something that this version can't be sure of.
"""

from dataclasses import dataclass

from agent.sources.mysql.ddl.charset_texts import as_held
from agent.sources.mysql.ddl.lexer import Unreadable
from agent.sources.mysql.ddl.lexer import words as keywords
from agent.sources.mysql.ddl.model import NOT_FIXED, Server
from agent.sources.mysql.ddl.syntax import Literal, LiteralKind, TypeSpec
from agent.sources.mysql.log.charsets import CHARACTER_BYTES, CharsetUnknown, decode_text
from agent.sources.mysql.types import ColumnType, Kind

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
_SIZES = {"TINY": 0xFF, "": 0xFFFF, "MEDIUM": 0xFFFFFF, "LONG": 0xFFFFFFFF}
#: the most bytes of their values
_TEXTS = {f"{size}TEXT": most for size, most in _SIZES.items()}
_BLOBS = {f"{size}BLOB": most for size, most in _SIZES.items()}
MOST_BYTES = _TEXTS | _BLOBS
_PLAIN = {"DATE": Kind.DATE, "YEAR": Kind.YEAR}
_GEOMETRIES = keywords(
    """GEOMETRY POINT LINESTRING POLYGON MULTIPOINT MULTILINESTRING MULTIPOLYGON GEOMETRYCOLLECTION GEOMCOLLECTION"""
)
_WITHOUT_ASCII = frozenset({"ucs2", "utf16", "utf16le", "utf32", "swe7"})
#: in a key
_POINT_BYTES = 25
#: MySQL: where the type does not say it
_VECTOR_ELEMENTS = 2048
VECTOR_ELEMENT_BYTES = 4
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


def charset_of_spec(charset: str, collation: str, default: str, server: Server) -> str:
    """Of CHARACTER SET and COLLATE, either of which may be ''; raises `Unreadable`."""
    if charset:
        return charset_of(charset, server)
    if collation and not collation.startswith("uca1400_"):  # MariaDB: those go with any charset
        return charset_of(collation.split("_", 1)[0], server)
    if not default:
        raise Unreadable("the default charset of its database is not known")
    return default


def column_type(spec: TypeSpec, context: TypeContext) -> tuple[ColumnType, int]:
    """The type, and its length as `ColumnDefinition.length` has it; raises `Unreadable`.

    >>> server = Server(False, (9, 7, 0))
    >>> str(column_type(TypeSpec("DEC", ("5",), unsigned=True), TypeContext(server, 0, "utf8mb4"))[0])
    'decimal(5,0) unsigned'
    """
    name = _canonical(spec, context)
    if name in _INTEGERS:
        return ColumnType(_INTEGERS[name], spec.unsigned), 0
    if name == "SERIAL":
        return ColumnType(Kind.BIGINT, unsigned=True), 0
    if name in ("DECIMAL", "FLOAT", "DOUBLE", "REAL", "NUMBER"):
        type_ = _number(name, spec, context)
        return type_, _argument(spec, 0, 0) if decimals(spec, type_) not in (None, NOT_FIXED) else 0
    if name == "BIT":
        return ColumnType(Kind.BIT, precision=_argument(spec, 0, 1) or 1), 0
    if name in _TEMPORALS:
        return ColumnType(_TEMPORALS[name], precision=_argument(spec, 0, 0)), 0
    if name in _PLAIN:
        return ColumnType(_PLAIN[name]), 0
    if name in _GEOMETRIES:
        return ColumnType(Kind.GEOMETRY), _POINT_BYTES if name == "POINT" else 0
    if name == "VECTOR":
        return ColumnType(Kind.VECTOR), _argument(spec, 0, _VECTOR_ELEMENTS) * VECTOR_ELEMENT_BYTES
    if name == "JSON":
        if context.server.mariadb:
            return ColumnType(Kind.TEXT, charset="utf8mb4"), _TEXTS["LONGTEXT"]
        return ColumnType(Kind.JSON), 0
    if name in _MARIADB_ONLY and context.server.mariadb:
        return ColumnType(_MARIADB_ONLY[name]), 0
    return _string(name, spec, context)


def _canonical(spec: TypeSpec, context: TypeContext) -> str:
    name = spec.name
    is_oracle = context.server.mariadb and bool(context.sql_mode & ORACLE)
    if "." in name:
        schema, name = name.split(".")
        if schema not in ("MARIADB_SCHEMA", "ORACLE_SCHEMA", "MAXDB_SCHEMA") or not context.server.mariadb:
            raise Unreadable(f"the type {spec.name} is not known to this version")
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


def _argument(spec: TypeSpec, place: int, default: int) -> int:
    if len(spec.arguments) <= place:
        return default
    argument = spec.arguments[place]
    digits = argument.partition(".")[0]  # a length's fraction is left out
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise Unreadable(f"{spec.name} has a length that is no number")
    return int(digits)


def _number(name: str, spec: TypeSpec, context: TypeContext) -> ColumnType:
    if name == "NUMBER" and not spec.arguments:
        return ColumnType(Kind.DOUBLE)
    if name in ("DECIMAL", "NUMBER"):
        precision, scale = _argument(spec, 0, 10) or 10, _argument(spec, 1, 0)
        return ColumnType(Kind.DECIMAL, spec.unsigned, precision=precision, scale=scale)
    if name == "FLOAT" and len(spec.arguments) == 1 and _argument(spec, 0, 0) > 24:
        name = "DOUBLE"
    if name == "REAL":
        name = "FLOAT" if context.sql_mode & REAL_AS_FLOAT else "DOUBLE"
    return ColumnType(Kind.FLOAT if name == "FLOAT" else Kind.DOUBLE, spec.unsigned)


def decimals(spec: TypeSpec, column_type: ColumnType) -> int | None:
    """As `ColumnDefinition.decimals`."""
    return _argument(spec, 1, NOT_FIXED) if column_type.kind in (Kind.FLOAT, Kind.DOUBLE) else None


def shape(spec: TypeSpec, column_type: ColumnType) -> str:
    """As `ColumnDefinition.shape`."""
    if column_type.kind is not Kind.GEOMETRY:
        return ""
    return "GEOMETRYCOLLECTION" if spec.name == "GEOMCOLLECTION" else spec.name


def _string(name: str, spec: TypeSpec, context: TypeContext) -> tuple[ColumnType, int]:
    if name == "BINARY":
        length = _argument(spec, 0, 1)
        return ColumnType(Kind.BINARY, length_bytes=length), length
    if name == "VARBINARY":
        return _varying("binary", _argument(spec, 0, 0), context.server)
    if name in _BLOBS:
        return ColumnType(Kind.BLOB), _most_bytes(_argument(spec, 0, 0) if name == "BLOB" else _BLOBS[name])
    if name in _NATIONAL_FIXED or name in _NATIONAL_VARYING:
        charset = "utf8mb3"
        name = "CHAR" if name in _NATIONAL_FIXED else "VARCHAR"
    else:
        charset = charset_of_spec(spec.charset, spec.collation, context.charset, context.server)
    if name in ("ENUM", "SET"):
        labels = tuple(_label(label, charset) for label in spec.labels)
        return ColumnType(Kind.ENUM if name == "ENUM" else Kind.SET, charset=charset, labels=labels), 0
    if name == "CHAR":
        length = _argument(spec, 0, 1)
        if charset == "binary":
            return ColumnType(Kind.BINARY, length_bytes=length), length
        return ColumnType(Kind.CHAR, charset=charset), length
    if name == "VARCHAR":
        return _varying(charset, _argument(spec, 0, 0), context.server)
    if name in _TEXTS:
        wanted = _argument(spec, 0, 0) * CHARACTER_BYTES[charset] if name == "TEXT" else _TEXTS[name]
        return (ColumnType(Kind.BLOB) if charset == "binary" else ColumnType(Kind.TEXT, charset=charset)), _most_bytes(
            wanted
        )
    raise Unreadable(f"the type {spec.name} is not known to this version")


def _most_bytes(wanted: int) -> int:
    """Of the smallest TEXT or BLOB that holds as many bytes; without a wish, of the plain one."""
    return next((most for most in _SIZES.values() if wanted <= most), _SIZES["LONG"]) if wanted else _SIZES[""]


def _varying(charset: str, length: int, server: Server) -> tuple[ColumnType, int]:
    """VARCHAR and VARBINARY; what is too long for a row becomes TEXT or BLOB where the sql_mode is not strict."""
    is_too_long = length * CHARACTER_BYTES[charset] > (_MOST_BYTES_MARIADB if server.mariadb else _MOST_BYTES)
    most_bytes = _most_bytes(length * CHARACTER_BYTES[charset])
    if charset == "binary":
        return (ColumnType(Kind.BLOB), most_bytes) if is_too_long else (ColumnType(Kind.VARBINARY), length)
    if is_too_long:
        return ColumnType(Kind.TEXT, charset=charset), most_bytes
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
        wanted = length // CHARACTER_BYTES[column_type.charset] * CHARACTER_BYTES[charset]
        most_bytes = _most_bytes(wanted)
        return ColumnType(Kind.BLOB) if charset == "binary" else ColumnType(Kind.TEXT, charset=charset), most_bytes
    if not _keeps_labels(column_type.charset, charset, column_type.labels):
        raise Unreadable("servers take the bytes of members for bytes of the new charset")
    return ColumnType(column_type.kind, charset=charset, labels=column_type.labels), 0


def _keeps_labels(before: str, after: str, labels: tuple[str, ...]) -> bool:
    """Whether CONVERT TO leaves members what they are: both servers take their bytes for bytes of the new charset."""
    if before == after or (before, after) == ("utf8mb3", "utf8mb4"):
        return True
    return not {before, after} & _WITHOUT_ASCII and all(map(str.isascii, labels))


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
