"""Between which keys some rows lie, as a condition in delta-rs's SQL that lets a scan skip files and row groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.delta_table import quoted


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Of leading columns of a key; all but the last have one value. Without columns: everywhere."""

    #: name, type, the least and the greatest value, whether one is null
    columns: tuple[tuple[str, pa.DataType, str, str, bool], ...]

    def condition(self, fields: Mapping[str, pa.Field], prefix: str = "") -> str:
        """For a table that has these columns as `fields`, by our names; a column of another type bounds nothing."""
        terms = ["TRUE"]
        for name, type_, least, greatest, has_null in self.columns:
            if fields[name].type != type_:
                break
            place = prefix + quoted(fields[name].name)
            between = f"{place} BETWEEN {least} AND {greatest}"
            terms.append(f"({between} OR {place} IS NULL)" if has_null else between)
        return " AND ".join(terms[1:] or terms)


def key_bounds(rows: pa.Table, match: Sequence[str]) -> KeyBounds:
    """Bounds of the rows' keys, as far as their types have words in SQL."""
    found = []
    for name in match:
        literal = _literal_of(rows.schema.field(name).type)
        least_greatest = pc.min_max(rows[name]) if literal is not None else None
        if literal is None or least_greatest is None or not least_greatest["min"].is_valid:
            break
        least, greatest = (literal(least_greatest[side].as_py()) for side in ("min", "max"))
        found.append((name, rows.schema.field(name).type, least, greatest, rows[name].null_count > 0))
        if least != greatest or rows[name].null_count:
            break
    return KeyBounds(tuple(found))


def _literal_of(type_: pa.DataType) -> Callable[[object], str] | None:
    if pa.types.is_int64(type_):
        return str
    if pa.types.is_decimal128(type_):
        return lambda value: f"CAST('{value:f}' AS DECIMAL({type_.precision}, {type_.scale}))"
    if pa.types.is_date32(type_):
        return lambda value: f"CAST('{value}' AS DATE)"
    if pa.types.is_string(type_):
        return lambda value: "'" + str(value).replace("'", "''") + "'"
    return None
