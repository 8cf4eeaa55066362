"""What a run of changes of one table leaves behind: at most one action per key, all computed in Arrow.

Keyed tables: the last change of a key decides, by `_gsn` and, within an update, its postimage after its
preimage. An update of the key itself ends the old key with its preimage and begins the new one.

Keyless tables are multisets. A row is known by the hash of its values and by its copy number, which no equal row
has: an insert's is its `_gsn` below zero, so that nobody has to look for equal rows and inserts alone are an append;
rows of one number, as of a dump, count up from 0. A delete takes the highest away. So equal rows never need to be told
apart, and the same MERGE serves both kinds. Nulls do not enter the hash: a column added later, null in the rows before
it, changes no row's hash.

A row of which some columns are unknown (its `_absent` names them, and is in its hash) is known by the others. A delete
takes an equal row away; where there is none, one that is equal in all that is known of it. So the lake's rows stay
those of the source: had an equal row been there as well, it would be the other one that is left.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, UNREPRESENTABLE, ChangeType
from menura.naming import lake_column

#: of keyed tables with a date or time in the key: the key's unrepresentable part, '' where it has none
KEY_TEXT = "_menura_key"
#: of keyless tables
ROW_HASH = "_menura_row"
COPY = "_menura_copy"
#: of tables that keep deleted rows (`table_options`): whether the row is one
IS_DELETED = "_menura_is_deleted"
#: of tables that say it: when the row's last change committed
COMMITTED_AT = "_menura_committed_at"
#: of the merge's source only
DELETED = "_menura_deleted"
#: likewise: the number that the row keeps in the current state, where that is not its change's
KEPT_NUMBER = "_menura_kept_gsn"

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


def with_kept_numbers(ordered: pa.Table) -> pa.Table:
    """Rows by `in_order`, with the numbers that they keep."""
    if KEPT_NUMBER not in ordered.column_names:
        return ordered
    kept = pc.coalesce(ordered[KEPT_NUMBER], ordered[GSN])
    return ordered.set_column(ordered.column_names.index(GSN), GSN, kept).drop_columns([KEPT_NUMBER])


def keyed_effect(ordered: pa.Table, key: list[str]) -> pa.Table:
    """The last change of each key; `ordered` comes from `in_order`."""
    numbered = ordered.select(key).append_column(_ORDER, pa.arange(0, ordered.num_rows, 1))
    last = numbered.group_by(key).aggregate([(_ORDER, "max")])[f"{_ORDER}_max"]
    return ordered.take(last)


class _Copies:
    """Copy numbers of one row while changes are followed."""

    def __init__(self, held: Sequence[int]) -> None:
        self.held = frozenset(held)
        self.alive = list(held)
        self._used = set(held)
        self._next = max([-1, *held]) + 1

    def add(self, gsn: int) -> None:
        number = -gsn
        if number in self._used:
            number, self._next = self._next, self._next + 1
        self._used.add(number)
        self.alive.append(number)

    def changed(self) -> list[int]:
        return sorted(self.held.symmetric_difference(self.alive))


def keyless_effect(
    ordered: pa.Table, held: Mapping[bytes, Sequence[int]], less_known: Sequence[pa.Array] = ()
) -> pa.Table:
    """Copies to add and to take away.

    `ordered` has `_menura_row`, and a `_menura_copy` that is filled here; `held` has the copies that the lake has
    (`copies_held`), where `needs_copies` says that they matter.
    `less_known` are the rows' hashes with columns unknown, fewest first (`unknown_hashes`).
    A delete of a row that the lake does not hold (a sync that began after the row) changes nothing.
    """
    hashes = ordered[ROW_HASH].to_pylist()
    others = [found.to_pylist() for found in less_known]
    of_row = {row: _Copies(held.get(row, ())) for row in {*hashes, *(row for found in others for row in found)}}
    last: dict[bytes, int] = {}
    numbered = zip(hashes, ordered[DELETED].to_pylist(), ordered[GSN].to_pylist(), strict=True)
    for place, (row, deleted, gsn) in enumerate(numbered):
        taken = row
        if deleted and not of_row[row].alive:
            taken = next((found[place] for found in others if of_row[found[place]].alive), row)
        if deleted:
            del of_row[taken].alive[-1:]
        else:
            of_row[row].add(gsn)
        if taken == row:
            last[row] = place
        else:
            last.setdefault(taken, place)  # its values are of no matter: it only goes
    changed = [(row, copy, copy in copies.held) for row, copies in of_row.items() for copy in copies.changed()]
    effect = ordered.take(pa.array([last[row] for row, _, _ in changed], pa.int64()))
    columns = {
        DELETED: pa.array([deleted for _, _, deleted in changed], pa.bool_()),
        COPY: pa.array([copy for _, copy, _ in changed], pa.int64()),
        ROW_HASH: pa.array([row for row, _, _ in changed], pa.binary()),
    }
    for name, values in columns.items():
        effect = effect.set_column(effect.schema.get_field_index(name), name, values)
    return effect


def needs_copies(rows: pa.Table) -> bool:
    """Whether what the lake holds decides which copies these rows of a table without a key add or take away."""
    return bool(pc.any(rows[DELETED]).as_py()) or pc.count_distinct(rows[GSN]).as_py() < rows.num_rows


def unknown_hashes(rows: pa.Table, columns: list[str], absent: Sequence[str]) -> list[pa.Array]:
    """Of whole rows their hashes were the columns unknown that one of these texts names, for each of them."""
    return [row_hash(_without(rows, text), columns) for text in absent]


def _without(rows: pa.Table, absent: str) -> pa.Table:
    gone = {name.lower() for name in json.loads(absent)}

    def kept(text: str | None) -> str | None:
        values: dict[str, str] = json.loads(text) if text is not None else {}
        left = {name: value for name, value in values.items() if lake_column(name).lower() not in gone}
        return json.dumps(left, ensure_ascii=False, separators=(",", ":")) if left else None

    columns = []
    for name in rows.column_names:
        if name == ABSENT:
            columns.append(pa.repeat(pa.scalar(absent), rows.num_rows))
        elif name == UNREPRESENTABLE:
            columns.append(pa.array([kept(text) for text in rows[name].to_pylist()], pa.string()))
        elif name.lower() in gone:
            columns.append(pa.nulls(rows.num_rows, rows.schema.field(name).type))
        else:
            columns.append(rows[name])
    return pa.table(columns, schema=rows.schema)


def key_text(unrepresentable: pa.ChunkedArray, key: list[str]) -> pa.Array:
    """The part of `_unrepresentable` that belongs to the key, as canonical JSON; '' where it has none.

    Two rows with the keys 0000-00-00 and 2024-00-00 are both null in the typed column, and differ here.
    """
    folded = {name.lower() for name in key}

    def of_key(text: str | None) -> str:
        if text is None:
            return ""
        values = {lake_column(name).lower(): value for name, value in json.loads(text).items()}
        of_key = {name: value for name, value in values.items() if name in folded}
        return json.dumps(of_key, sort_keys=True) if of_key else ""

    if unrepresentable.null_count == len(unrepresentable):
        return pa.repeat(pa.scalar(""), len(unrepresentable))
    return pa.array([of_key(text) for text in unrepresentable.to_pylist()], pa.string())


def row_hash(rows: pa.Table, columns: list[str]) -> pa.Array:
    """BLAKE2b-128 of each row's values in `columns`, its `_unrepresentable` and `_absent`; names enter without case."""
    own = [name for name in (UNREPRESENTABLE, ABSENT) if name in rows.column_names]
    pieces = [_piece(name.lower(), rows[name]) for name in sorted([*columns, *own], key=str.lower)]
    texts = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    digests = (hashlib.blake2b(text, digest_size=HASH_BYTES).digest() for text in texts.to_pylist())
    return pa.array(digests, pa.binary())


def key_bytes(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    """Each row's values in these columns as one; two rows have the same where all values are equal, or null in both."""
    pieces = [_piece(name.lower(), rows[name]) for name in key]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


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
