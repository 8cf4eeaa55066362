"""What a run of changes of one table leaves behind: at most one action per key, all computed in Arrow.

Keyed tables: the last change of a key decides, by `_gsn` and, within an update, its postimage after its
preimage. An update of the key itself ends the old key with its preimage and begins the new one.

Keyless tables are multisets. A row is known by the hash of its values and by its copy number: n equal rows
are copies 0 to n-1, an insert adds the next number, a delete takes the highest away. So equal rows never
need to be told apart, and the same MERGE serves both kinds. Nulls do not enter the hash: a column added
later, null in the rows before it, changes no row's hash.
"""

import hashlib
import json
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import CHANGE_TYPE, GSN, UNREPRESENTABLE, ChangeType
from menura.naming import lake_column

#: of keyed tables with a date or time in the key: the key's unrepresentable part, '' where it has none
KEY_TEXT = "_menura_key"
#: of keyless tables
ROW_HASH = "_menura_row"
COPY = "_menura_copy"
#: of the merge's source only
DELETED = "_menura_deleted"

_PUTS = pa.array([ChangeType.insert.name, ChangeType.update_postimage.name, ChangeType.snapshot.name])
#: of a change; a snapshot's rows come in chunks
_KNOWN = pa.array([t.name for t in ChangeType if t is not ChangeType.snapshot])
_ORDER = "_menura_order"
HASH_BYTES = 16


def unknown_change_type(rows: pa.Table) -> bool:
    """Whether a row has a change type that this version can't merge."""
    return bool(pc.any(pc.invert(pc.is_in(rows[CHANGE_TYPE], _KNOWN))).as_py())


def with_deleted(rows: pa.Table) -> pa.Table:
    """Rows with `_menura_deleted`: whether the change takes the row away."""
    return rows.append_column(DELETED, pc.invert(pc.is_in(rows[CHANGE_TYPE], _PUTS)))


def in_order(rows: pa.Table) -> pa.Table:
    """Rows by `_gsn`, a postimage after its preimage."""
    return rows.sort_by([(GSN, "ascending"), (DELETED, "descending")])


def keyed_effect(ordered: pa.Table, key: list[str]) -> pa.Table:
    """The last change of each key; `ordered` comes from `in_order`."""
    numbered = ordered.select(key).append_column(_ORDER, pa.arange(0, ordered.num_rows, 1))
    last = numbered.group_by(key).aggregate([(_ORDER, "max")])[f"{_ORDER}_max"]
    return ordered.take(last)


def keyless_effect(ordered: pa.Table, held: Counter[bytes]) -> pa.Table:
    """Copies to add and to take away.

    `ordered` has `_menura_row`, and a `_menura_copy` that is filled here; `held` counts the copies in the lake.
    A delete of a row that the lake does not hold (a sync that began after the row) changes nothing.
    """
    hashes = ordered[ROW_HASH].to_pylist()
    after = Counter({row: held[row] for row in set(hashes)})
    last: dict[bytes, int] = {}
    for place, (row, deleted) in enumerate(zip(hashes, ordered[DELETED].to_pylist(), strict=True)):
        after[row] = max(0, after[row] - 1) if deleted else after[row] + 1
        last[row] = place
    places: list[int] = []
    copies: list[int] = []
    for row, count in after.items():
        changed = range(min(count, held[row]), max(count, held[row]))
        places.extend(last[row] for _ in changed)
        copies.extend(changed)
    effect = ordered.take(pa.array(places, pa.int64()))
    deleted = pa.array([copy >= after[row] for row, copy in zip(effect[ROW_HASH].to_pylist(), copies, strict=True)])
    effect = effect.set_column(effect.schema.get_field_index(DELETED), DELETED, deleted.cast(pa.bool_()))
    return effect.set_column(effect.schema.get_field_index(COPY), COPY, pa.array(copies, pa.int64()))


def key_text(unrepresentable: pa.ChunkedArray, key: list[str]) -> pa.Array:
    """The part of `_unrepresentable` that belongs to the key, as canonical JSON; '' where it has none.

    Two rows with the keys 0000-00-00 and 2024-00-00 are both null in the typed column, and differ here.
    """
    folded = {name.casefold() for name in key}

    def of_key(text: str | None) -> str:
        if text is None:
            return ""
        values = {lake_column(name).casefold(): value for name, value in json.loads(text).items()}
        of_key = {name: value for name, value in values.items() if name in folded}
        return json.dumps(of_key, sort_keys=True) if of_key else ""

    if unrepresentable.null_count == len(unrepresentable):
        return pa.repeat(pa.scalar(""), len(unrepresentable))
    return pa.array([of_key(text) for text in unrepresentable.to_pylist()], pa.string())


def row_hash(rows: pa.Table, columns: list[str]) -> pa.Array:
    """BLAKE2b-128 of each row's values in `columns` and of its `_unrepresentable`; names enter without case."""
    pieces = [_piece(name.casefold(), rows[name]) for name in sorted([*columns, UNREPRESENTABLE], key=str.casefold)]
    texts = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    digests = (hashlib.blake2b(text, digest_size=HASH_BYTES).digest() for text in texts.to_pylist())
    return pa.array(digests, pa.binary())


def _piece(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """`name=length:value;` of each value, nothing of a null."""
    type_ = column.type
    if pa.types.is_floating(type_):  # by their bits: what is equal to the source is equal here
        bits = pa.int32() if type_ == pa.float32() else pa.int64()
        column = pa.chunked_array([chunk.view(bits) for chunk in column.chunks], bits)
    elif pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(type_):
        column = column.cast(pa.int32())
    if not pa.types.is_binary(column.type):
        column = column.cast(pa.string())
    values = column.cast(pa.large_binary())
    lengths = pc.binary_length(values).cast(pa.string()).cast(pa.large_binary())

    def constant(text: str) -> pa.Scalar:
        return pa.scalar(text.encode(), pa.large_binary())

    separator = constant("")
    joined = pc.binary_join_element_wise(constant(f"{name}="), lengths, constant(":"), values, constant(";"), separator)
    return joined.fill_null(b"")
