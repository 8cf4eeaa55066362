"""A landed column's name and type in the lake, and which later type a lake column can take.

The types of `menura.types` are wide from the start, so most ALTERs change nothing here. What remains, and why:

* Tables have neither Delta's column mapping nor its type widening: delta-rs refuses both, and delta-rs does the merges.
* A new column is added (nullable: rows written before it hold null). A column that is gone stays, null in
  new rows of the changelog and in every row of the current state; when it comes again it is used again.
* A type that the lake's column holds without loss (decimal(10,2) into decimal(20,4), an integer into text) is cast.
* A type that needs a wider column (see `wider`) has the table rewritten once; versions before keep the old type.
* Any other change of type stops the table.
"""

import pyarrow as pa
from menura.change_batch import CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN, LANDED_COLUMNS, POSITION, TRANSACTION_ID
from menura.types import MAX_DECIMAL128_PRECISION, lake_format

_TYPES = {
    "c": pa.int8(),
    "C": pa.uint8(),
    "s": pa.int16(),
    "S": pa.uint16(),
    "i": pa.int32(),
    "I": pa.uint32(),
    "l": pa.int64(),
    "L": pa.uint64(),
    "f": pa.float32(),
    "g": pa.float64(),
    "u": pa.string(),
    "z": pa.binary(),
    "tdD": pa.date32(),
    "tsu:": pa.timestamp("us"),
    "tsu:UTC": pa.timestamp("us", "UTC"),
}
_FORMATS = {type_: format_ for format_, type_ in _TYPES.items()}
_LONG_DIGITS = 19

METADATA_TYPES = {
    CHANGE_TYPE: pa.string(),
    GSN: pa.int64(),
    TRANSACTION_ID: pa.int64(),
    COMMIT_TIMESTAMP_US: pa.int64(),
    POSITION: pa.string(),
}
assert tuple(METADATA_TYPES) == LANDED_COLUMNS


def lake_type(landed: pa.DataType) -> pa.DataType | None:
    """The lake's type of a landed column; None for a type that no source column lands with.

    >>> lake_type(pa.uint64())
    Decimal128Type(decimal128(20, 0))
    """
    if pa.types.is_decimal128(landed):
        return landed
    format_ = _FORMATS.get(landed)
    return None if format_ is None else format_type(format_)


def format_type(format_: str) -> pa.DataType:
    """The lake's type of a column by its Arrow C format string in landing. Raises KeyError for an unknown one.

    >>> format_type("d:10,2"), format_type("C")
    (Decimal128Type(decimal128(10, 2)), DataType(int64))
    """
    wide = lake_format(format_)
    if wide.startswith("d:"):
        precision, scale = wide[2:].split(",")
        return pa.decimal128(int(precision), int(scale))
    return _TYPES[wide]


def wider(lake: pa.DataType, landed: pa.DataType) -> pa.DataType | None:
    """The smallest lake type that holds the values of both without loss; `lake` itself where it does; else None.

    >>> wider(pa.int64(), pa.decimal128(20, 0))
    Decimal128Type(decimal128(20, 0))
    >>> wider(pa.string(), pa.int64()), wider(pa.int64(), pa.float64())
    (DataType(string), None)
    """
    if lake == landed:
        return lake
    if {lake, landed} == {pa.float32(), pa.float64()}:
        return pa.float64()
    digits = [_digits(lake), _digits(landed)]
    if pa.types.is_string(lake) and digits[1]:
        return lake
    if pa.types.is_string(landed) and digits[0]:
        return landed
    if digits[0] is None or digits[1] is None:
        return None
    scale = max(digits[0][1], digits[1][1])
    precision = max(digits[0][0], digits[1][0]) + scale
    return pa.decimal128(precision, scale) if precision <= MAX_DECIMAL128_PRECISION else pa.string()


def _digits(type_: pa.DataType) -> tuple[int, int] | None:
    """Digits before and after the point."""
    if pa.types.is_int64(type_):
        return _LONG_DIGITS, 0
    return (type_.precision - type_.scale, type_.scale) if pa.types.is_decimal128(type_) else None


def grown(lake: pa.Schema, wanted: pa.Schema) -> tuple[pa.Schema, str | None]:
    """`lake` with what `wanted` adds and widens, and the first column whose type it can't take (None: all fit).

    Names are compared without case, as the source's server and Spark do.
    """
    fields = {field.name.casefold(): field for field in lake}
    for field in wanted:
        key = field.name.casefold()
        if key not in fields:
            fields[key] = pa.field(field.name, field.type)
            continue
        type_ = wider(fields[key].type, field.type)
        if type_ is None:
            return lake, field.name
        fields[key] = pa.field(fields[key].name, type_)
    return pa.schema(list(fields.values())), None


def fit(rows: pa.Table, schema: pa.Schema, dropped: frozenset[str] = frozenset()) -> pa.Table:
    """`rows` with the columns of `schema`: cast, and null where they have none or (casefolded) it is `dropped`."""
    places = {name.casefold(): place for place, name in enumerate(rows.column_names)}
    columns = []
    for field in schema:
        place = places.get(field.name.casefold())
        if place is None or field.name.casefold() in dropped:
            columns.append(pa.nulls(rows.num_rows, field.type))
        else:
            columns.append(rows.column(place).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
