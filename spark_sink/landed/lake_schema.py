"""A landed column's name and type in the lake, and which later type a lake column can take.

The types of `menura.types` are wide from the start, so most ALTERs change nothing here. What remains, and why:

* Tables have neither Delta's column mapping nor its type widening: delta-rs refuses both, and delta-rs does the merges.
* A new column is added (nullable: rows written before it hold null). A column that is gone stays, null in
  new rows of the changelog and in every row of the current state; when it comes again it is used again.
* A type that the lake's column holds without loss (decimal(10,2) into decimal(20,4), an integer into text) is cast.
* A type that needs a wider column (see `wider`) has the table rewritten once; versions before keep the old type.
* Any other type is another column under that name: see `schema_change` and `changelog`.
"""

import pyarrow as pa
from menura.change_batch import CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN, LANDED_COLUMNS, POSITION, TRANSACTION_ID
from menura.types import ARROW_TYPES, decimal_digits, lake_format, wider_format

_TYPES = {format_: getattr(pa, name)(*takes) for format_, (name, *takes) in ARROW_TYPES.items()}
_FORMATS = {type_: format_ for format_, type_ in _TYPES.items()}

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
    digits = decimal_digits(wide)
    return _TYPES[wide] if digits is None else pa.decimal128(*digits)


def wider(lake: pa.DataType, landed: pa.DataType) -> pa.DataType | None:
    """The smallest lake type that holds the values of both without loss; `lake` itself where it does; else None.

    >>> wider(pa.int64(), pa.decimal128(20, 0))
    Decimal128Type(decimal128(20, 0))
    >>> wider(pa.string(), pa.int64()), wider(pa.int64(), pa.float64())
    (DataType(string), None)
    """
    if lake == landed:
        return lake
    format_ = wider_format(format_of(lake), format_of(landed))
    return None if format_ is None else format_type(format_)


def format_of(type_: pa.DataType) -> str:
    """The Arrow C format string of a lake type, which `format_type` makes it of.

    >>> format_of(pa.decimal128(12, 2)), format_of(pa.string())
    ('d:12,2', 'u')
    """
    if pa.types.is_decimal128(type_):
        return f"d:{type_.precision},{type_.scale}"
    return _FORMATS[type_]


def grown(lake: pa.Schema, wanted: pa.Schema) -> tuple[pa.Schema, str | None]:
    """`lake` with what `wanted` adds and widens, and the first column whose type it can't take (None: all fit).

    Names are compared without case, as the source's server and Spark do.
    """
    fields = {field.name.lower(): field for field in lake}
    for field in wanted:
        key = field.name.lower()
        if key not in fields:
            fields[key] = pa.field(field.name, field.type)
            continue
        type_ = wider(fields[key].type, field.type)
        if type_ is None:
            return lake, field.name
        fields[key] = pa.field(fields[key].name, type_)
    return pa.schema(list(fields.values())), None


def fit(rows: pa.Table, schema: pa.Schema, dropped: frozenset[str] = frozenset()) -> pa.Table:
    """`rows` with the columns of `schema`: cast, and null where they have none or (lower-case) it is `dropped`."""
    places = {name.lower(): place for place, name in enumerate(rows.column_names)}
    columns = []
    for field in schema:
        place = places.get(field.name.lower())
        if place is None or field.name.lower() in dropped:
            columns.append(pa.nulls(rows.num_rows, field.type))
        else:
            columns.append(rows.column(place).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
