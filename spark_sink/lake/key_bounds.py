"""Between which keys some rows lie, as a condition in delta-rs's SQL that lets a scan skip files, row groups and pages.

A scan skips by the statistics in Delta's log, of the columns that `delta_table` keeps them for, and by those in the
Parquet files, of all columns. Delta's may round a time to a millisecond, so the bounds of times are whole ones. Floats
have no bounds: which zero is the lesser, and where NaN stands, depends on who writes the statistics and who compares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.lake.delta_table import quoted, text

MILLISECOND_US = 1000


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Of leading columns of a key; all but the last have one value. Without columns: everywhere."""

    #: name, type, the least and the greatest value, whether one is null
    columns: tuple[tuple[str, pa.DataType, str, str, bool], ...]

    def condition(self, fields: Mapping[str, pa.Field], prefix: str = "") -> str:
        """For a table that has these columns as `fields`, by our names.

        A column that it lacks (a changelog has no key's text) or has with another type bounds nothing.
        """
        terms = ["TRUE"]
        for name, type_, least, greatest, has_null in self.columns:
            found = fields.get(name)
            if found is None or found.type != type_:
                break
            place = prefix + quoted(found.name)
            between = f"{place} BETWEEN {least} AND {greatest}"
            terms.append(f"({between} OR {place} IS NULL)" if has_null else between)
        return " AND ".join(terms[1:] or terms)


def key_bounds(rows: pa.Table, match: Sequence[str]) -> KeyBounds:
    """Bounds of the rows' keys, as far as their types have any."""
    found = []
    for name in match:
        type_, nulls = rows.schema.field(name).type, rows[name].null_count
        if pa.types.is_floating(type_) or nulls == rows.num_rows:
            break
        ends = pc.min_max(rows[name])
        least, greatest = ends["min"], ends["max"]
        literals = _end(least, type_, up=False), _end(greatest, type_, up=True)
        found.append((name, type_, *literals, nulls > 0))
        if least != greatest or nulls:
            break
    return KeyBounds(tuple(found))


def bounded(field: pa.Field, low: pa.Scalar | None, high: pa.Scalar | None) -> str:
    """For a column's values from `low` on and below `high`, null among them without `low`; others may fulfil it too."""
    type_, place = field.type, quoted(field.name)
    least, greatest = (None if end is None else _end(end, type_, up=up) for end, up in ((low, False), (high, True)))
    terms = [f"{place} >= {least}"] if least is not None else []
    if greatest is not None:
        below = f"{place} <= {greatest}"
        terms.append(below if least is not None else f"({below} OR {place} IS NULL)")
    return " AND ".join(terms) or "TRUE"


def _end(value: pa.Scalar, type_: pa.DataType, *, up: bool) -> str:
    if pa.types.is_date32(type_):
        return f"arrow_cast({value.value}, 'Date32')"  # Python's calendar ends sooner
    if not pa.types.is_timestamp(type_):
        return _literal(value.as_py(), type_)
    milliseconds = -(-value.value // MILLISECOND_US) if up else value.value // MILLISECOND_US
    return _instant(milliseconds * MILLISECOND_US, type_)


def _instant(us: int, type_: pa.TimestampType) -> str:
    zone = "None" if type_.tz is None else f'Some("{type_.tz}")'
    return f"arrow_cast({us}, 'Timestamp(Microsecond, {zone})')"


def _literal(value: object, type_: pa.DataType) -> str:
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS DECIMAL({type_.precision}, {type_.scale}))"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return str(value)
