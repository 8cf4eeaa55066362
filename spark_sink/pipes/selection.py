"""Which tables of a lake a pipe has: names and patterns, less those that are left out.

Comes in: words as in the lake, TENANT/SOURCE[/DATABASE[/TABLE]], in whose last two parts `*` stands for any text. Goes
out: whether a table is wanted, also one that comes later. Nothing is read.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from menura.naming import is_identity
from menura.views.definition import VIEW_SOURCE

from spark_sink.work import TableId, name_of_segment

#: in `Name.signs`, where no name has it
_ANY = "\0"


@dataclass(frozen=True, slots=True)
class Name:
    """Texts, with any text between two of them."""

    pieces: tuple[str, ...]

    def has(self, name: str) -> bool:
        return re.fullmatch(".*".join(map(re.escape, self.pieces)), name, re.DOTALL) is not None

    @property
    def signs(self) -> str:
        return _ANY.join(self.pieces)

    def lowered(self) -> "Name":
        return Name(tuple(piece.lower() for piece in self.pieces))

    def covers(self, other: "Name") -> bool:
        """Whether it has all that the other one has.

        >>> Name(("order", "")).covers(Name(("order", "_old"))), Name(("", "_old")).covers(Name(("order", "")))
        (True, False)
        """
        return self.has(other.signs)

    def meets(self, other: "Name") -> bool:
        """Whether some name is of both.

        >>> Name(("order", "")).meets(Name(("", "s"))), Name(("order", "")).meets(Name(("person", "")))
        (True, False)
        """
        signs = other.signs
        #: how much of the other's signs may be used up
        ends = _and_behind_any({0}, signs)
        for sign in self.signs:
            if sign == _ANY:
                further = set(range(min(ends), len(signs) + 1))
            else:
                further = {end + (signs[end] == sign) for end in ends if signs[end : end + 1] in (sign, _ANY)}
            if not (ends := _and_behind_any(further, signs)):
                return False
        return len(signs) in ends


EVERY_NAME = Name(("", ""))


def _and_behind_any(ends: set[int], signs: str) -> set[int]:
    """Any text may be none."""
    found = set(ends)
    for end in ends:
        while signs[end : end + 1] == _ANY:
            end += 1  # noqa: PLW2901
            found.add(end)
    return found


@dataclass(frozen=True, slots=True)
class Pattern:
    #: as it was written
    word: str
    tenant: str
    source: str
    database: Name
    table: Name
    #: where no part is a pattern
    named: TableId | None

    def has(self, table: TableId) -> bool:
        is_of_source = (table.tenant, table.source) == (self.tenant, self.source)
        return is_of_source and self.database.has(table.database) and self.table.has(table.table)


@dataclass(frozen=True, slots=True)
class Selection:
    wanted: tuple[Pattern, ...]
    without: tuple[Pattern, ...] = ()

    def has(self, table: TableId) -> bool:
        return any(each.has(table) for each in self.wanted) and not any(each.has(table) for each in self.without)

    @property
    def named(self) -> list[TableId]:
        """Each must be in the lake."""
        return [each.named for each in self.wanted if each.named is not None]

    @property
    def sources(self) -> list[tuple[str, str]]:
        return sorted({(each.tenant, each.source) for each in self.wanted})


def read_selection(words: Sequence[str], without: Sequence[str] = ()) -> Selection:
    """Raises ValueError.

    >>> chosen = read_selection(["acme/shop/shop/order*"], ["acme/shop/*/*_old"])
    >>> [chosen.has(TableId("acme", "shop", "shop", name)) for name in ("orders", "orders_old", "customers")]
    [True, False, False]
    """
    return Selection(tuple(map(_pattern, words)), tuple(map(_pattern, without)))


def _pattern(word: str) -> Pattern:
    parts = word.rstrip("/").split("/")
    if not 2 <= len(parts) <= 4 or not all(parts):
        raise ValueError(f"{word!r} is none of TENANT/SOURCE, TENANT/SOURCE/DATABASE, TENANT/SOURCE/DATABASE/TABLE")
    tenant, source, *names = parts
    if not (is_identity(tenant) and (is_identity(source) or source == VIEW_SOURCE)):
        raise ValueError(f"{word!r}: a tenant and a source have 1 to 63 of a-z, 0-9, '-' and '_', and no pattern")
    database, table = (*map(_name, names), EVERY_NAME, EVERY_NAME)[:2]
    plain = len(names) == 2 and "*" not in "".join(names)
    named = TableId(tenant, source, *map(name_of_segment, names)) if plain else None
    return Pattern(word, tenant, source, database, table, named)


def _name(segment: str) -> Name:
    """`*` is any text, also none; `~2A` is the sign itself."""
    return Name(tuple(map(name_of_segment, segment.split("*"))))
