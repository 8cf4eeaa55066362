"""From a verification's Digest to what lands of it; every number of it is taken for hostile until it is checked.

Pure: a message in, a value out. Names and bounds of keys may be values of rows: they stand in no error.
"""

from itertools import pairwise

from menura.bounds import MAX_INSTANT_US, MAX_KEY_COLUMNS, MAX_NAME_CHARS
from menura.change_batch import MAX_TABLE_COLUMNS
from menura.landing import LandedDigest, LandedLeaf
from menura.types import ARROW_TYPES, decimal_digits
from menura.v1.snapshot_pb2 import Digest

from gateway.errors import NOTHING_LOST, PayloadInvalid

#: of one chunk; an agent's leaves have 16,384 rows
MAX_LEAVES = 4096


def landed_digest(digest: Digest, rows: int) -> LandedDigest:
    """`rows`: how many the chunk is said to have. Raises `PayloadInvalid`."""
    columns = tuple((column.name, column.arrow_format) for column in digest.columns)
    names = [name for name, _ in columns]
    if len(names) > MAX_TABLE_COLUMNS + 1 or len(set(names)) != len(names):
        raise _invalid(f"{len(names)} columns, each needs a name of its own")
    if any(not 0 < len(name) <= MAX_NAME_CHARS or "\0" in name for name in (*names, *digest.key)):
        raise _invalid("a column with an impossible name")
    if any(format_ not in ARROW_TYPES and decimal_digits(format_) is None for _, format_ in columns):
        raise _invalid("a column of a type that no source type has")
    if not 0 < len(digest.key) <= MAX_KEY_COLUMNS or len(set(digest.key)) != len(digest.key):
        raise _invalid(f"a key of {len(digest.key)} columns")
    if rows and not set(digest.key) <= set(names):
        raise _invalid("a key with a column that was not hashed")
    leaves = tuple(LandedLeaf(tuple(leaf.upper), leaf.rows, leaf.first_sum, leaf.second_sum) for leaf in digest.leaves)
    _check_leaves(leaves, len(digest.key), rows)
    return LandedDigest(columns, tuple(digest.key), leaves)


def _check_leaves(leaves: tuple[LandedLeaf, ...], key_columns: int, rows: int) -> None:
    if not 0 < len(leaves) <= MAX_LEAVES:
        raise _invalid(f"{len(leaves)} leaves")
    if any(leaf.rows > MAX_INSTANT_US for leaf in leaves) or sum(leaf.rows for leaf in leaves) != rows:
        raise _invalid(f"leaves whose rows are not the chunk's {rows}")
    bounds = [leaf.upper for leaf in leaves]
    if bounds[-1] or any(len(bound) != key_columns for bound in bounds[:-1]):
        raise _invalid("leaves that do not end with a key, or a last one that does")
    if any(after <= before for before, after in pairwise(bounds[:-1])):
        raise _invalid("leaves that do not follow each other")


def _invalid(found: str) -> PayloadInvalid:
    return PayloadInvalid("reading a verification's digest", found, data=NOTHING_LOST)
