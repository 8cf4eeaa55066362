"""The types of PostgreSQL, and what each is on its way (`menura.types`).

A value is read from the server's text, which is the same in the stream and in a SELECT. A type has a form of its own
where its values are numbers, bytes, dates or times; the values of every other type, also one that an extension brings,
are the text that the server prints. `LINES` is the whole table, agent/TYPES.md prints it.
"""

from dataclasses import dataclass, replace
from enum import Enum

from menura.types import MAX_DECIMAL128_PRECISION


class Form(Enum):
    """How the text of a type's values is read; the value is the Arrow C data interface's format, '' of DECIMAL."""

    BOOL = "b"
    INT2 = "s"
    INT4 = "i"
    INT8 = "l"
    UINT4 = "I"
    FLOAT4 = "f"
    FLOAT8 = "g"
    DECIMAL = ""
    TEXT = "u"
    BYTES = "z"
    DATE = "tdD"
    #: microseconds of the day, up to 24:00:00
    TIME = "time"
    TIMESTAMP = "tsu:"
    TIMESTAMPTZ = "tsu:UTC"


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type: what the server calls it, and how its values are read.

    >>> str(builtin_type(1700, ((10 << 16) | 2) + 4)), str(builtin_type(1009, -1))
    ('numeric(10,2)', 'text[]')
    """

    #: as the server's format_type has it, e.g. "numeric(10,2)" or "shop.mood"
    name: str
    form: Form
    #: DECIMAL: digits in all
    precision: int = 0
    #: DECIMAL: digits after the point
    scale: int = 0

    def __str__(self) -> str:
        return self.name


def arrow_format(column_type: ColumnType) -> str:
    """The Arrow C data interface's format string of a column, as on the wire and in landing.

    >>> arrow_format(builtin_type(1700, ((10 << 16) | 2) + 4)), arrow_format(builtin_type(1700, -1))
    ('d:10,2', 'u')
    """
    if column_type.form is Form.DECIMAL:
        return f"d:{column_type.precision},{column_type.scale}"
    return "l" if column_type.form is Form.TIME else column_type.form.value


def named_type(name: str, base: ColumnType | None = None) -> ColumnType:
    """A type that is not built in: a domain is read as its base type is, all others as text.

    >>> named_type("shop.price", builtin_type(23, -1)).form, named_type("shop.mood").form
    (<Form.INT4: 'i'>, <Form.TEXT: 'u'>)
    """
    return ColumnType(name, Form.TEXT) if base is None else replace(base, name=name)


def builtin_type(type_oid: int, modifier: int) -> ColumnType | None:
    """A type that every server has under this number, with a column's modifier (atttypmod; -1: none); None: it is none.

    >>> builtin_type(1043, 24), builtin_type(16403, -1)
    (ColumnType(name='character varying(20)', form=<Form.TEXT: 'u'>, precision=0, scale=0), None)
    """
    if type_oid in _ELEMENTS:
        return ColumnType(_name(_ELEMENTS[type_oid], modifier) + "[]", Form.TEXT)
    if type_oid not in _NAMES:
        return None
    name = _name(type_oid, modifier)
    if type_oid == _NUMERIC and modifier >= _HEADER_BYTES:
        precision, scale = _digits(modifier)
        if precision <= MAX_DECIMAL128_PRECISION and 0 <= scale <= precision:
            return ColumnType(name, Form.DECIMAL, precision, scale)
    return ColumnType(name, _FORMS.get(type_oid, Form.TEXT))


#: pg_type.dat: number, name, number of the array type. What only a system catalog's columns have is not here.
_BUILTIN = (
    (16, "boolean", 1000),
    (17, "bytea", 1001),
    (18, '"char"', 1002),
    (19, "name", 1003),
    (20, "bigint", 1016),
    (21, "smallint", 1005),
    (22, "int2vector", 1006),
    (23, "integer", 1007),
    (24, "regproc", 1008),
    (25, "text", 1009),
    (26, "oid", 1028),
    (27, "tid", 1010),
    (28, "xid", 1011),
    (29, "cid", 1012),
    (30, "oidvector", 1013),
    (114, "json", 199),
    (142, "xml", 143),
    (600, "point", 1017),
    (601, "lseg", 1018),
    (602, "path", 1019),
    (603, "box", 1020),
    (604, "polygon", 1027),
    (628, "line", 629),
    (650, "cidr", 651),
    (700, "real", 1021),
    (701, "double precision", 1022),
    (718, "circle", 719),
    (774, "macaddr8", 775),
    (790, "money", 791),
    (829, "macaddr", 1040),
    (869, "inet", 1041),
    (1033, "aclitem", 1034),
    (1042, "character", 1014),
    (1043, "character varying", 1015),
    (1082, "date", 1182),
    (1083, "time", 1183),
    (1114, "timestamp", 1115),
    (1184, "timestamp", 1185),
    (1186, "interval", 1187),
    (1266, "time", 1270),
    (1560, "bit", 1561),
    (1562, "bit varying", 1563),
    (1700, "numeric", 1231),
    (1790, "refcursor", 2201),
    (2202, "regprocedure", 2207),
    (2203, "regoper", 2208),
    (2204, "regoperator", 2209),
    (2205, "regclass", 2210),
    (2206, "regtype", 2211),
    (2950, "uuid", 2951),
    (2970, "txid_snapshot", 2949),
    (3220, "pg_lsn", 3221),
    (3614, "tsvector", 3643),
    (3615, "tsquery", 3645),
    (3642, "gtsvector", 3644),
    (3734, "regconfig", 3735),
    (3769, "regdictionary", 3770),
    (3802, "jsonb", 3807),
    (3904, "int4range", 3905),
    (3906, "numrange", 3907),
    (3908, "tsrange", 3909),
    (3910, "tstzrange", 3911),
    (3912, "daterange", 3913),
    (3926, "int8range", 3927),
    (4072, "jsonpath", 4073),
    (4089, "regnamespace", 4090),
    (4096, "regrole", 4097),
    (4191, "regcollation", 4192),
    (4451, "int4multirange", 6150),
    (4532, "nummultirange", 6151),
    (4533, "tsmultirange", 6152),
    (4534, "tstzmultirange", 6153),
    (4535, "datemultirange", 6155),
    (4536, "int8multirange", 6157),
    (5038, "pg_snapshot", 5039),
    (5069, "xid8", 271),
)
_NAMES = {oid: name for oid, name, _ in _BUILTIN}
_ELEMENTS = {array: oid for oid, _, array in _BUILTIN}

_FORMS = {
    16: Form.BOOL,
    17: Form.BYTES,
    20: Form.INT8,
    21: Form.INT2,
    23: Form.INT4,
    26: Form.UINT4,
    28: Form.UINT4,
    29: Form.UINT4,
    700: Form.FLOAT4,
    701: Form.FLOAT8,
    1082: Form.DATE,
    1083: Form.TIME,
    1114: Form.TIMESTAMP,
    1184: Form.TIMESTAMPTZ,
}

_BPCHAR, _VARCHAR, _INTERVAL, _BIT, _VARBIT, _NUMERIC = 1042, 1043, 1186, 1560, 1562, 1700
_ZONES = {1083: " without time zone", 1114: " without time zone", 1184: " with time zone", 1266: " with time zone"}
#: the keyword alone means a length of 1
_WITHOUT_LENGTH = {_BPCHAR: "bpchar", _BIT: '"bit"'}
#: a modifier that is a length counts the value's head
_HEADER_BYTES = 4
_SCALE_BITS = 11

#: bits of an interval's modifier: datatype/timestamp.h
_INTERVAL_FULL_PRECISION = 0xFFFF
_INTERVAL_FIELDS = {
    1 << 2: " year",
    1 << 1: " month",
    1 << 3: " day",
    1 << 10: " hour",
    1 << 11: " minute",
    1 << 12: " second",
    (1 << 2) | (1 << 1): " year to month",
    (1 << 3) | (1 << 10): " day to hour",
    (1 << 3) | (1 << 10) | (1 << 11): " day to minute",
    (1 << 3) | (1 << 10) | (1 << 11) | (1 << 12): " day to second",
    (1 << 10) | (1 << 11): " hour to minute",
    (1 << 10) | (1 << 11) | (1 << 12): " hour to second",
    (1 << 11) | (1 << 12): " minute to second",
}


def _name(type_oid: int, modifier: int) -> str:
    name, zone = _NAMES[type_oid], _ZONES.get(type_oid, "")
    if modifier < 0:
        return _WITHOUT_LENGTH.get(type_oid, name + zone)
    if type_oid == _NUMERIC and modifier >= _HEADER_BYTES:
        return "{}({},{})".format(name, *_digits(modifier))
    if type_oid in (_BPCHAR, _VARCHAR) and modifier > _HEADER_BYTES:
        return f"{name}({modifier - _HEADER_BYTES})"
    if type_oid in (_BIT, _VARBIT) or zone:
        return f"{name}({modifier}){zone}"
    if type_oid == _INTERVAL:
        precision = modifier & _INTERVAL_FULL_PRECISION
        name += _INTERVAL_FIELDS.get(modifier >> 16 & 0x7FFF, "")
        return name if precision == _INTERVAL_FULL_PRECISION else f"{name}({precision})"
    return name


def _digits(modifier: int) -> tuple[int, int]:
    """Precision and scale, which is below 0 for numbers that are rounded before the point."""
    scale = (modifier - _HEADER_BYTES) & ((1 << _SCALE_BITS) - 1)
    half = 1 << (_SCALE_BITS - 1)
    return (modifier - _HEADER_BYTES) >> 16 & 0xFFFF, (scale ^ half) - half


@dataclass(frozen=True, slots=True)
class Line:
    """How values of some types are represented: a line of agent/TYPES.md."""

    #: as the server's manual writes them
    source: str
    #: one of each that has an Arrow format of its own
    types: tuple[ColumnType, ...]
    remark: str = ""


def _of(form: Form, precision: int = 0, scale: int = 0) -> tuple[ColumnType, ...]:
    return (ColumnType(form.name.lower(), form, precision, scale),)


_OUTSIDE = "infinity, BC and years above 9999: see *unrepresentable*"

LINES = (
    Line("boolean", _of(Form.BOOL)),
    Line("smallint, integer", (*_of(Form.INT2), *_of(Form.INT4)), "wide in the lake from the start"),
    Line("bigint", _of(Form.INT8)),
    Line("oid, xid, cid", _of(Form.UINT4)),
    Line("numeric(p<=38,0<=s<=p)", _of(Form.DECIMAL, 38, 10), "NaN: see *unrepresentable*"),
    Line("numeric of other digits, or of any", _of(Form.TEXT), "every digit, NaN and Infinity too, as printed"),
    Line("real", _of(Form.FLOAT4), "-0, NaN and Infinity stay themselves"),
    Line("double precision", _of(Form.FLOAT8), "-0, NaN and Infinity stay themselves"),
    Line("text, varchar(n), char(n), name", _of(Form.TEXT), "char(n) padded, as the server prints it"),
    Line("bytea", _of(Form.BYTES)),
    Line("date", _of(Form.DATE), _OUTSIDE),
    Line("timestamp(f)", _of(Form.TIMESTAMP), _OUTSIDE),
    Line("timestamp(f) with time zone", _of(Form.TIMESTAMPTZ), f"an instant, in no time zone's words; {_OUTSIDE}"),
    Line("time(f)", _of(Form.TIME), "microseconds; 24:00:00 fits"),
    Line("domains", (), "as their base type"),
    Line(
        "time with time zone, interval, uuid, json, jsonb, xml, money, bit(n), varbit(n), inet, cidr, macaddr, pg_lsn,"
        " xid8, tsvector, geometric types, ranges, arrays, enums, composite types, types of extensions",
        _of(Form.TEXT),
        "as the server prints them: an enum's label, an array as {a,b}, an interval as 1 day 02:00:00",
    ),
)
