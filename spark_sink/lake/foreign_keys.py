"""A child's foreign keys as the lake follows them: which hold at a row's number, and how their values compare.

Comes in: the keys that events have told, with the numbers of these. Goes out: `FollowedKey`s, each with the numbers
between which it holds, in the lake's names. Pure.

Texts compare as `menura.text_comparison` says; where two different ones may be equal and nobody here can tell, the
child stops.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from menura.landing import LandedForeignKey
from menura.naming import lake_column
from menura.text_comparison import TextComparison, is_plain, may_be_equal

from spark_sink.errors import CascadeUncertain
from spark_sink.work import KeysAt, TableId, UncheckedRows

#: a number that no row has
NEVER = 2**63 - 1
#: pairs of texts that are looked at one by one; with more the child stops
MOST_COMPARED = 1_000_000

Value = object
Values = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class FollowedKey:
    """A key and where it holds: for parents' changes with a number above `since` and not above `until`."""

    key: LandedForeignKey
    since: int
    until: int

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(map(lake_column, self.key.columns))

    @property
    def parent_columns(self) -> tuple[str, ...]:
        return tuple(map(lake_column, self.key.parent_columns))

    @property
    def comparisons(self) -> tuple[TextComparison | None, ...]:
        """Of each column; None: it holds no text."""
        return self.key.comparisons

    def words(self) -> str:
        parent = ".".join(self.key.parent)
        columns, others = ", ".join(self.key.columns), ", ".join(self.key.parent_columns)
        return f"foreign key {self.key.name} ({columns}) REFERENCES {parent} ({others})"


def followed_keys(history: Iterable[KeysAt], above_gsn: int) -> list[FollowedKey]:
    """The keys that hold somewhere above a number."""
    steps = sorted(history, key=lambda step: step.gsn)
    found: list[FollowedKey] = []
    for place, step in enumerate(steps):
        until = steps[place + 1].gsn if place + 1 < len(steps) else NEVER
        if until > above_gsn:
            found.extend(FollowedKey(key, step.gsn, until) for key in step.keys)
    return found


def is_unchecked(gsn: int, unchecked: Sequence[UncheckedRows]) -> bool:
    """Whether keys were not checked when a row of the table of these changed."""
    return any(rows.first_gsn <= gsn <= rows.last_gsn for rows in unchecked)


def comparable(column: pa.ChunkedArray, how: TextComparison | None) -> pa.ChunkedArray:
    """Values that are equal where the key's are, but for texts that `check_certain` is about."""
    if how is None or not pa.types.is_string(column.type):
        return column
    if how.ignores_case:
        column = pc.ascii_lower(column)
    return pc.ascii_rtrim(column, " ") if how.pads else column


def check_certain(
    table: TableId,
    cut: int,
    key: FollowedKey,
    how: TextComparison | None,
    sides: tuple[pa.ChunkedArray, pa.ChunkedArray],
) -> None:
    """Of `comparable` values of parents and children: raises `CascadeUncertain` where different ones may be equal."""
    if how is None or how.is_binary or not pa.types.is_string(sides[0].type):
        return
    if not how.is_known:
        raise uncertain(table, cut, key, "how its texts compare is not in the landing, which was of a former format")
    parents, children = ([text for text in side.unique().to_pylist() if text is not None] for side in sides)
    odd_parents = [text for text in parents if not is_plain(text)]
    odd_children = [text for text in children if not is_plain(text)]
    compared = len(odd_parents) * len(children) + len(odd_children) * len(parents)
    pairs = [(parent, child) for parent in odd_parents for child in children] if compared <= MOST_COMPARED else []
    pairs += [(parent, child) for child in odd_children for parent in parents] if compared <= MOST_COMPARED else []
    if compared > MOST_COMPARED or any(one != other and may_be_equal(one, other) for one, other in pairs):
        raise uncertain(
            table, cut, key, "its texts are beyond ASCII, and which of them its server takes for equal is not known"
        )


def uncertain(table: TableId, cut: int, key: FollowedKey, why: str) -> CascadeUncertain:
    return CascadeUncertain(
        "carrying out a foreign key's action",
        f"{key.words()}: {why}",
        data="The table stays at its last version; other tables go on",
        remedy=f"Bring its rows as they are: {table.resync}",
        **table.where(cut),
    )
