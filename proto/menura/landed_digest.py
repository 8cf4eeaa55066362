"""What stands in the cut log for the rows of a verification's chunk: see `menura.landing` and menura.v1.Digest.

Comes in: what the gateway has checked, or a part of an entry. Goes out: the other of both. Nothing is durable here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from menura.key_values import INTEGER, Key


@dataclass(frozen=True, slots=True)
class LandedLeaf:
    """Rows of a chunk up to a key, as `menura.row_hash` sums them; the last leaf's ends with its chunk.

    Of a digest with buckets `upper` is the bucket.
    """

    upper: Key
    rows: int
    first_sum: int
    second_sum: int
    #: of a bucket of one hash: the key as text, and the columns' hashes
    key: str = ""
    columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LandedRange:
    """See menura.v1.FocusRange."""

    lower: str
    upper: str
    above: Key
    up_to: Key
    #: that the source had there when the focus was made
    rows: int = 0


def united(ranges: Sequence[LandedRange]) -> tuple[LandedRange, ...]:
    """The same keys in as few ranges as there can be, which follow each other, without bounds as texts.

    >>> parts = ((30,), (), 1), ((10,), (20,), 2), ((5,), (12,), 3), ((20,), (25,), 4)
    >>> [(each.above, each.up_to, each.rows) for each in united([LandedRange("", "", *part) for part in parts])]
    [((5,), (25,), 9), ((30,), (), 1)]
    """
    found: list[LandedRange] = []
    for each in sorted(ranges, key=lambda each: each.above):
        last = found[-1] if found else None
        if last is None or (last.up_to and last.up_to < each.above):
            found.append(LandedRange("", "", each.above, each.up_to, each.rows))
        else:
            up_to = max(last.up_to, each.up_to) if last.up_to and each.up_to else ()
            found[-1] = LandedRange("", "", last.above, up_to, last.rows + each.rows)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LandedFocus:
    """See menura.v1.Focus; what stands below `buckets` does not travel to the agent."""

    ranges: tuple[LandedRange, ...] = ()
    bits: int = 0
    buckets: tuple[int, ...] = ()
    #: of the ranges' columns, the first of the key: `menura.key_values`
    kinds: tuple[str, ...] = ()
    #: when the source was read of which all rows but those of `ranges` were equal; 0: that is not known of them
    rest_equal_at_us: int = 0
    #: ... to those of this lake's table: Delta's id of it
    rest_equal_in: str = ""
    #: of a verification: the repair that has read all of these rows again
    repaired_by: str = ""
    #: number of the row at which the verification began by which all but `ranges` was equal; 0: that is not known
    since_gsn: int = 0
    #: all changes above that number which are not logged are told (menura.v1.TableEvent.tells_anew)
    tells_anew: bool = False

    @property
    def asked(self) -> "LandedFocus":
        """What travels."""
        ranges = tuple(LandedRange(each.lower, each.upper, each.above, each.up_to) for each in self.ranges)
        return LandedFocus(ranges, self.bits, self.buckets, self.kinds)


@dataclass(frozen=True, slots=True)
class LandedDigest:
    """What stands for the rows of a chunk of a verification; see menura.v1.Digest."""

    #: landed names and Arrow C format strings, in the order in which they were hashed
    columns: tuple[tuple[str, str], ...]
    #: of the key's columns; without buckets those that its ranges are of
    key: tuple[str, ...]
    leaves: tuple[LandedLeaf, ...]
    #: 0: leaves are ranges
    bits: int = 0
    #: the digest is of these rows alone
    within: LandedFocus | None = None
    #: without buckets: of the key's columns (`menura.key_values`), and where the chunk begins and ends. No kinds: up to
    #: format 12 they were integers, and the chunk's own bounds have them
    kinds: tuple[str, ...] = ()
    above: Key = ()
    up_to: Key = ()


def decode_digest(facts: Mapping[str, Any]) -> LandedDigest:
    """From its `asdict`; raises KeyError or TypeError for another document."""
    leaves = tuple(
        LandedLeaf(**{**leaf, "upper": tuple(leaf["upper"]), "columns": tuple(leaf.get("columns", ()))})
        for leaf in facts["leaves"]
    )
    columns = tuple((str(name), str(format_)) for name, format_ in facts["columns"])
    within = decode_focus(facts["within"]) if facts.get("within") is not None else None
    kinds, above, up_to = (tuple(facts.get(name, ())) for name in ("kinds", "above", "up_to"))
    key, bits = tuple(map(str, facts["key"])), int(facts.get("bits", 0))
    return LandedDigest(columns, key, leaves, bits, within, kinds, above, up_to)


def decode_focus(facts: Mapping[str, Any]) -> LandedFocus:
    """From its `asdict`; raises KeyError or TypeError for another document. Up to format 12 of the landing ranges had
    no kinds: all were of integers."""
    ranges = tuple(
        LandedRange(
            str(each["lower"]), str(each["upper"]), tuple(each["above"]), tuple(each["up_to"]), int(each.get("rows", 0))
        )
        for each in facts["ranges"]
    )
    columns = max((len(each.above or each.up_to) for each in ranges), default=0)
    former = (INTEGER,) * max(columns, 1) if ranges else ()
    return LandedFocus(
        ranges,
        int(facts["bits"]),
        tuple(facts["buckets"]),
        tuple(map(str, facts.get("kinds", ()))) or former,
        int(facts.get("rest_equal_at_us", 0)),
        str(facts.get("rest_equal_in", "")),
        str(facts.get("repaired_by", "")),
        int(facts.get("since_gsn", 0)),
        bool(facts.get("tells_anew", False)),
    )
