"""Which values of partial rows the log did not carry, and what of them is known all the same.

Comes in: `_absent` as it lands (`menura.change_batch`), and columns' defaults. Goes out: the lake's `_absent`, a JSON
array of column names, and inserts whose absent columns hold their defaults: of those nothing is unknown. Pure.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import ABSENT, CHANGE_TYPE, UNREPRESENTABLE, ChangeType

from spark_sink.landed.default_values import DefaultValue


@dataclass(frozen=True, slots=True)
class AbsentMasks:
    columns: Sequence[str]
    #: of the masks that differ, a bit per column
    bits: tuple[int, ...]
    #: each row's place in `bits`; null for a whole row
    of_row: pa.Int32Array

    def texts(self, known: Collection[str] = ()) -> pa.StringArray:
        """The names of each row's absent columns other than `known`; null where there is none."""
        texts = []
        for bits in self.bits:
            names = [name for place, name in enumerate(self.columns) if bits >> place & 1 and name not in known]
            texts.append(json.dumps(names, ensure_ascii=False) if names else None)
        return pa.array(texts, pa.string()).take(self.of_row)

    def lacks(self, place: int) -> pa.BooleanArray:
        """Of each row: whether the column at this place is absent."""
        return pa.array([bool(bits >> place & 1) for bits in self.bits], pa.bool_()).take(self.of_row).fill_null(False)

    def of(self, columns: Sequence[str]) -> "AbsentMasks":
        """The same of some of the columns, in their order."""
        places = [self.columns.index(name) for name in columns]
        bits = tuple(sum((mask >> place & 1) << after for after, place in enumerate(places)) for mask in self.bits)
        return AbsentMasks(columns, bits, self.of_row)


def absent_masks(absent: pa.Array, columns: Sequence[str]) -> AbsentMasks:
    """Read `_absent` as it lands. Raises ArrowInvalid.

    >>> absent_masks(pa.array([None, b"\\x05"], pa.binary()), ["id", "b", "c"]).texts().to_pylist()
    [None, '["id", "c"]']
    """
    masks = absent if pa.types.is_dictionary(absent.type) else absent.dictionary_encode()
    width = (len(columns) + 7) // 8
    found = []
    for mask in masks.dictionary.to_pylist():
        bits = int.from_bytes(mask, "little")
        if len(mask) != width or bits >> len(columns):
            raise pa.ArrowInvalid(f"{ABSENT} has {len(mask)} bytes for {len(columns)} columns")
        found.append(bits)
    return AbsentMasks(columns, tuple(found), masks.indices)


def with_defaults(rows: pa.Table, masks: AbsentMasks, defaults: Mapping[str, DefaultValue]) -> pa.Table:
    """Rows with the lake's columns, of which inserts hold the defaults of what they lack."""
    inserts = pc.equal(rows[CHANGE_TYPE], ChangeType.insert.name).combine_chunks()
    unrepresentable: dict[int, dict[str, str]] = {}
    for place, name in enumerate(masks.columns):
        fill = defaults.get(name)
        filled = pc.and_(masks.lacks(place), inserts)
        if fill is None or not pc.any(filled).as_py():
            continue
        index = rows.column_names.index(name)
        rows = rows.set_column(index, rows.schema.field(index), pc.if_else(filled, fill.value, rows.column(index)))
        if fill.unrepresentable is not None:
            for row in pc.indices_nonzero(filled).to_pylist():
                unrepresentable.setdefault(row, {})[name] = fill.unrepresentable
    absent = pc.if_else(inserts, masks.texts(defaults), masks.texts())
    rows = rows.set_column(rows.column_names.index(ABSENT), rows.schema.field(ABSENT), absent)
    return _with_unrepresentable(rows, unrepresentable) if unrepresentable else rows


def _with_unrepresentable(rows: pa.Table, more: Mapping[int, Mapping[str, str]]) -> pa.Table:
    texts = rows[UNREPRESENTABLE].to_pylist()
    for row, values in more.items():
        texts[row] = json.dumps({**json.loads(texts[row] or "{}"), **values}, ensure_ascii=False)
    column = pa.array(texts, pa.string())
    return rows.set_column(rows.column_names.index(UNREPRESENTABLE), rows.schema.field(UNREPRESENTABLE), column)
