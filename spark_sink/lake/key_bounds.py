"""Between which keys some rows lie, as a condition in delta-rs's SQL that lets a scan skip files, row groups and pages.

A scan skips by the statistics in Delta's log, of the columns that `delta_table` keeps them for, and by those in the
Parquet files, of all columns. Delta's may round a time to a millisecond, so the bounds of times are whole ones. Floats
have no bounds: which zero is the lesser, and where NaN stands, depends on who writes the statistics and who compares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
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
        if pa.types.is_timestamp(type_):
            low, high = (least.value // MILLISECOND_US, -(-greatest.value // MILLISECOND_US))
            literals = _instant(low * MILLISECOND_US, type_), _instant(high * MILLISECOND_US, type_)
        else:
            literals = _literal(least.as_py(), type_), _literal(greatest.as_py(), type_)
        found.append((name, type_, *literals, nulls > 0))
        if least != greatest or nulls:
            break
    return KeyBounds(tuple(found))


def _instant(us: int, type_: pa.TimestampType) -> str:
    zone = "None" if type_.tz is None else f'Some("{type_.tz}")'
    return f"arrow_cast({us}, 'Timestamp(Microsecond, {zone})')"


def _literal(value: object, type_: pa.DataType) -> str:
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS DECIMAL({type_.precision}, {type_.scale}))"
    if isinstance(value, date):
        return f"CAST('{value}' AS DATE)"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return str(value)
