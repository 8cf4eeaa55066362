"""Where a segment of the key space may be halved: guesses, which need not be keys.

Comes in: a segment's first and last key. Goes out: beginnings of keys, the most promising first. The guess is made in
the first column in which the two differ. Numbers, bytes and times have a middle; what is in the middle of two texts is
the collation's business: the server is given some texts and says which of them lie between, and in what order.
"""

import re
from collections.abc import Callable, Iterator

from agent.sources.mysql.ddl.model import Table
from agent.sources.mysql.snapshot.keys import Form, Key, KeyColumn
from agent.sources.mysql.snapshot.statements import Bound, literal
from agent.sources.mysql.snapshot.values import middle, text_candidates

_COLLATION = re.compile(r"[A-Za-z0-9_]+")
#: of the texts between, in their order
_PLACES = (0.5, 0.25, 0.75)


class Guesses:
    def __init__(self, key: Key, ask: Callable[[str], list[tuple[bytes, ...]]], table: Table) -> None:
        self._key = key
        self._ask = ask
        self._table = table
        self._collations: dict[str, str] = {}

    def between(self, first: Bound, last: Bound) -> Iterator[Bound]:
        """Of which each may lie above `first` and at most at `last` in the index's order."""
        for at, column in enumerate(self._key.columns):
            if first[at] == last[at]:
                continue
            low, high = (last[at], first[at]) if column.descending else (first[at], last[at])
            for value in self._values(column, low, high):
                yield (*first[:at], value)
            yield last[: at + 1]
            # the texts differ and are equal to the collation, or nothing is between: the next column tells them apart

    def _values(self, column: KeyColumn, low: str, high: str) -> Iterator[str]:
        if column.form is not Form.TEXT:
            value = middle(column, low, high)
            if value is not None:
                yield value
            return
        for candidates in text_candidates(column, low, high):
            ordered = self._ordered(column, candidates, low, high) if candidates else []
            if ordered:
                yield from dict.fromkeys(ordered[int(len(ordered) * place)] for place in _PLACES)
                return

    def _ordered(self, column: KeyColumn, candidates: list[str], low: str, high: str) -> list[str]:
        """Those between, as the column's collation orders them; reads no table."""
        collation = self._collation(column)
        texts = [f"{literal(column, text)} COLLATE {collation}" for text in (*candidates, low, high)]
        listed = " UNION ALL ".join(f"SELECT {text}{' AS x' if not n else ''}" for n, text in enumerate(texts[:-2]))
        found = self._ask(f"SELECT HEX(x) FROM ({listed}) AS c WHERE x > {texts[-2]} AND x <= {texts[-1]} ORDER BY x")  # noqa: S608  (literals of hex digits)
        return [text.decode("ascii") for (text,) in found]

    def _collation(self, column: KeyColumn) -> str:
        if column.name not in self._collations:
            database, table, name = (f"X'{part.encode().hex()}'" for part in (*self._table, column.name))
            found = self._ask(
                "SELECT collation_name FROM information_schema.columns WHERE"  # noqa: S608  (literals of hex digits)
                f" table_schema = CONVERT({database} USING utf8mb4) AND table_name = CONVERT({table} USING utf8mb4)"
                f" AND column_name = CONVERT({name} USING utf8mb4)"
            )
            collation = found[0][0].decode("ascii") if found else ""
            if _COLLATION.fullmatch(collation) is None:
                raise ValueError(f"{collation!r} is no collation")
            self._collations[column.name] = collation
        return self._collations[column.name]
