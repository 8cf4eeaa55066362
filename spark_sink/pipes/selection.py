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


@dataclass(frozen=True, slots=True)
class Pattern:
    tenant: str
    source: str
    #: of names; None: all
    database: re.Pattern[str] | None
    table: re.Pattern[str] | None
    #: where no part is a pattern
    named: TableId | None

    def has(self, table: TableId) -> bool:
        return (table.tenant, table.source) == (self.tenant, self.source) and all(
            part is None or part.fullmatch(name) is not None
            for part, name in ((self.database, table.database), (self.table, table.table))
        )


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
    database, table = (*map(_name, names), None, None)[:2]
    plain = len(names) == 2 and "*" not in "".join(names)
    named = TableId(tenant, source, *map(name_of_segment, names)) if plain else None
    return Pattern(tenant, source, database, table, named)


def _name(segment: str) -> re.Pattern[str]:
    """`*` is any text, also none; `~2A` is the sign itself."""
    pieces = (re.escape(name_of_segment(piece)) for piece in segment.split("*"))
    return re.compile(".*".join(pieces), re.DOTALL)
