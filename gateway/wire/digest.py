"""From a verification's Digest to what lands of it; every number of it is taken for hostile until it is checked.

Pure: a message in, a value out. Names and bounds of keys may be values of rows: they stand in no error.
"""

from collections.abc import Sequence
from itertools import pairwise

from menura.bounds import MAX_INSTANT_US, MAX_KEY_COLUMNS, MAX_NAME_CHARS
from menura.change_batch import MAX_TABLE_COLUMNS
from menura.key_texts import MOST_CHARACTERS
from menura.key_values import MOST_END_BYTES, Key, is_key, is_kind, read, written
from menura.landed_digest import LandedDigest, LandedFocus, LandedLeaf, LandedRange
from menura.types import ARROW_TYPES, decimal_digits
from menura.v1.snapshot_pb2 import Digest, Focus, FocusRange

from gateway.errors import NOTHING_LOST, PayloadInvalid

#: of one chunk; an agent's leaves have 16,384 rows
MAX_LEAVES = 4096
WHOLE_HASH_BITS = 64


def landed_digest(digest: Digest, rows: int, focus: LandedFocus | None = None) -> LandedDigest:
    """`rows`: how many the chunk is said to have; `focus`: of its order. Raises `PayloadInvalid`."""
    columns = tuple((column.name, column.arrow_format) for column in digest.columns)
    names = [name for name, _ in columns]
    if len(names) > MAX_TABLE_COLUMNS + 1 or len(set(names)) != len(names):
        raise _invalid(f"{len(names)} columns, each needs a name of its own")
    if any(not 0 < len(name) <= MAX_NAME_CHARS or "\0" in name for name in (*names, *digest.key)):
        raise _invalid("a column with an impossible name")
    if any(format_ not in ARROW_TYPES and decimal_digits(format_) is None for _, format_ in columns):
        raise _invalid("a column of a type that no source type has")
    if len(digest.key) > MAX_KEY_COLUMNS or len(set(digest.key)) != len(digest.key):
        raise _invalid(f"a key of {len(digest.key)} columns")
    if rows and not set(digest.key) <= set(names):
        raise _invalid("a key with a column that was not hashed")
    if not digest.bits and not digest.key:
        raise _invalid("ranges of no key")
    within = landed_focus(digest.within) if digest.HasField("within") else None
    if (
        within != (focus.asked if focus is not None else None)
        or digest.bits > WHOLE_HASH_BITS
        or (within is not None and not digest.bits)
    ):
        raise _invalid("leaves of other rows than were asked for")
    kinds = tuple(digest.kinds)
    if len(kinds) != (0 if digest.bits else len(digest.key)) or not all(map(is_kind, kinds)):
        raise _invalid("a key of other kinds")
    leaves = tuple(
        LandedLeaf(
            tuple(leaf.upper) or _key(kinds, leaf.up_to),
            leaf.rows,
            leaf.first_sum,
            leaf.second_sum,
            leaf.key,
            tuple(leaf.columns),
        )
        for leaf in digest.leaves
    )
    _check_rows(leaves, rows, len(columns) if digest.bits == WHOLE_HASH_BITS else 0)
    above, up_to = _key(kinds, digest.above), _key(kinds, digest.up_to)
    if digest.bits:
        _check_buckets(leaves)
    else:
        _check_ranges(leaves, kinds, above, up_to)
    return LandedDigest(columns, tuple(digest.key), leaves, digest.bits, focus, kinds, above, up_to)


def landed_focus(focus: Focus) -> LandedFocus:
    kinds = tuple(focus.kinds)
    if len(kinds) > MAX_KEY_COLUMNS or not all(map(is_kind, kinds)):
        raise _invalid("ranges of other kinds")
    ranges = tuple(
        LandedRange(each.lower, each.upper, _key(kinds, each.above), _key(kinds, each.up_to)) for each in focus.ranges
    )
    return LandedFocus(ranges, focus.bits, tuple(focus.buckets), kinds)


def focus_message(focus: LandedFocus) -> Focus:
    ranges = [
        FocusRange(lower=each.lower, upper=each.upper, above=written(each.above), up_to=written(each.up_to))
        for each in focus.ranges
    ]
    return Focus(ranges=ranges, bits=focus.bits, buckets=focus.buckets, kinds=focus.kinds)


def _key(kinds: Sequence[str], texts: Sequence[str]) -> Key:
    try:
        return read(kinds, texts)
    except ValueError as wrong:
        raise _invalid("a bound that is no key of its kinds") from wrong


def _check_rows(leaves: tuple[LandedLeaf, ...], rows: int, columns: int) -> None:
    """`columns`: whose hashes a leaf may have."""
    if len(leaves) > MAX_LEAVES:
        raise _invalid(f"{len(leaves)} leaves")
    if any(leaf.rows > MAX_INSTANT_US for leaf in leaves) or sum(leaf.rows for leaf in leaves) != rows:
        raise _invalid(f"leaves whose rows are not the chunk's {rows}")
    if any(len(leaf.columns) not in (0, columns) for leaf in leaves):
        raise _invalid(f"a leaf with hashes of other columns than its {columns}")
    if any(len(leaf.key) > (MOST_CHARACTERS if columns else 0) or "\0" in leaf.key for leaf in leaves):
        raise _invalid("a key that is too long, or of no row")


def _check_buckets(leaves: tuple[LandedLeaf, ...]) -> None:
    if any(len(leaf.upper) != 1 for leaf in leaves) or len({leaf.upper for leaf in leaves}) != len(leaves):
        raise _invalid("leaves that are no buckets of their own")


def _check_ranges(leaves: tuple[LandedLeaf, ...], kinds: tuple[str, ...], above: Key, up_to: Key) -> None:
    if not leaves:
        raise _invalid("0 leaves")
    bounds = [leaf.upper for leaf in leaves]
    if bounds[-1] or not all(bound and is_key(kinds, bound, MOST_END_BYTES) for bound in bounds[:-1]):
        raise _invalid("leaves that do not end with a key, or a last one that does")
    if above and above == up_to and len(leaves) == 1 and not leaves[0].rows:
        return  # of no keys: former agents sent it behind a chunk that ended with its range
    ends = [bound for bound in (above, *bounds[:-1], up_to) if bound]
    if any(after <= before for before, after in pairwise(ends)):
        raise _invalid("leaves that do not follow each other")


def _invalid(found: str) -> PayloadInvalid:
    return PayloadInvalid("reading a verification's digest", found, data=NOTHING_LOST)
