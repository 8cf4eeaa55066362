"""What a search asks: from its text, filters and facets to conditions that each engine can test.

Comes in: words, of which a row must have all, each in any of its texts: `word`, `begin*`, `"a phrase"`, `-without`,
`COLUMN:word`; filters, `COLUMN=VALUE`, `!=`, `<`, `<=`, `>`, `>=`, `COLUMN IS NULL`, `COLUMN IS NOT NULL`; columns of
which values are counted. Goes out: `Asked`, of which an engine's module makes its own query. What it gives is `Found`.

The text is read here, not by an engine's parser, so that each text has one answer, or one error that says what to
change, whichever engine the index is of. What is asked is bounded in number, what comes in number and bytes, and both
in time. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Thread

from spark_sink.errors import SearchRefused, SearchTooLong
from spark_sink.export.fields import Value
from spark_sink.export.rows import Struct
from spark_sink.search.columns import NUMBERS, Column, Definition, Kind
from spark_sink.search.words import words_of

MOST_CHARS = 1000
MOST_WORDS = 32
MOST_FILTERS = 32
MOST_FACETS = 8
MOST_ROWS = 1000
#: of a facet
MOST_VALUES = 100
MOST_BYTES = 16 << 20
_DOING = "reading a search"
_WORD = re.compile(r'(-?)(?:([^\s":]+):)?(?:"([^"]*)"|([^\s"]+))')
_COMPARED = re.compile(r"\s*(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
_ANY_COMPARED = re.compile(r"(.*?)(<=|>=|!=|=|<|>|\s+is\s+)", re.IGNORECASE | re.DOTALL)
_NULL = re.compile(r"\s+is\s+(not\s+)?null\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Count:
    value: Value
    rows: int


@dataclass(frozen=True, slots=True)
class Facet:
    """The values that most rows have, and how many rows have others; nulls are in neither."""

    counts: Sequence[Count]
    other_rows: int


@dataclass(frozen=True, slots=True)
class Found:
    total: int
    #: by column, as results show values
    rows: Sequence[Struct]
    #: by column
    facets: dict[str, Facet]
    #: rows that would have been too many bytes
    left_out: int
    #: rows of the table with texts that are searchable only to `SEARCHED_CHARS`
    clipped: int


@dataclass(frozen=True, slots=True)
class Place:
    """A column, and which one of the definition's it is."""

    number: int
    column: Column


@dataclass(frozen=True, slots=True)
class Words:
    """One word, its beginning, or several in a row, in any of these texts."""

    texts: tuple[Place, ...]
    #: as it was written, without `*`
    text: str
    #: as `words_of` has them
    words: tuple[str, ...]
    is_prefix: bool
    is_without: bool


@dataclass(frozen=True, slots=True)
class Compared:
    place: Place
    #: = != < <= > >=; SQL's: null is not unequal
    operator: str
    #: as `Column.parse` gives it
    value: Value


@dataclass(frozen=True, slots=True)
class Known:
    """The column has a value; or it has none."""

    place: Place
    is_known: bool


Condition = Words | Compared | Known


@dataclass(frozen=True, slots=True)
class Asked:
    """Rows for which all conditions are so; without one, all rows."""

    conditions: tuple[Condition, ...]
    facets: tuple[Place, ...]
    limit: int
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Search:
    text: str = ""
    filters: Sequence[str] = ()
    facets: Sequence[str] = ()
    limit: int = 10
    timeout_seconds: float = field(default=10.0, kw_only=True)

    def read(self, definition: Definition) -> Asked:
        """Raises `SearchRefused`."""
        _check(len(self.text) <= MOST_CHARS, f"a text of {len(self.text)} characters", f"Use up to {MOST_CHARS}")
        _check(len(self.filters) <= MOST_FILTERS, f"{len(self.filters)} filters", f"Use up to {MOST_FILTERS}")
        _check(len(self.facets) <= MOST_FACETS, f"{len(self.facets)} facets", f"Use up to {MOST_FACETS}")
        _check(1 <= self.limit <= MOST_ROWS, f"a limit of {self.limit}", f"Use 1 to {MOST_ROWS}")
        read = _Reading(definition, tuple(Place(*each) for each in enumerate(definition.columns)))
        conditions = (*read.words(self.text), *map(read.filter, self.filters))
        return Asked(conditions, tuple(map(read.facet, self.facets)), self.limit, self.timeout_seconds)


def shown(definition: Definition, values: Mapping[str, Value], unrepresentable: Mapping[str, Value]) -> Struct:
    """A row as results have it: each column."""
    return {each.name: each.shown(values.get(each.name, unrepresentable.get(each.name))) for each in definition.columns}


def first_bytes(rows: Iterable[tuple[int, Struct]]) -> list[Struct]:
    """Of rows with their sizes, the first ones that are not too many bytes; one at least."""
    kept, size = list[Struct](), 0
    for bytes_, row in rows:
        size += bytes_
        if size > MOST_BYTES and kept:
            break
        kept.append(row)
    return kept


def took_too_long(seconds: float, running: Thread | None = None) -> SearchTooLong:
    """`running`: what of it goes on."""
    late = SearchTooLong("searching", f"it took more than {seconds:g} s", remedy="Ask for less, or give it more time")
    late.running = running
    return late


def _check(is_well: bool, found: str, remedy: str) -> None:
    if not is_well:
        raise SearchRefused(_DOING, found, remedy=remedy)


@dataclass(frozen=True, slots=True)
class _Reading:
    definition: Definition
    places: tuple[Place, ...]

    def facet(self, name: str) -> Place:
        column = self.definition.column(name)
        _check(column.kind is not Kind.BINARY, f"a facet of {name}, which is binary", "Choose another column")
        return self._place(column)

    def words(self, text: str) -> Iterator[Words]:
        rest = _WORD.sub(" ", text).strip()
        _check(not rest, "a quotation mark without its other one", "Put a second one behind the phrase")
        found = list(_WORD.finditer(text))
        _check(len(found) <= MOST_WORDS, f"{len(found)} words", f"Use up to {MOST_WORDS}")
        columns = {column.name: column for column in self.definition.columns}
        for minus, name, phrase, word in (each.groups() for each in found):
            chosen = columns.get(name or "")
            said = word if phrase is None else phrase
            if name and chosen is None:
                said = f"{name}:{said}"  # e.g. an address
            yield self._in_texts(said, chosen, is_phrase=phrase is not None, is_without=bool(minus))

    def _in_texts(self, said: str, chosen: Column | None, *, is_phrase: bool, is_without: bool) -> Words:
        if chosen is not None:
            _check(chosen.kind is Kind.TEXT, f"{chosen.name} is no text", f"Use a filter: {chosen.name}=VALUE")
        texts = [each for each in self.places if each.column.kind is Kind.TEXT and chosen in (None, each.column)]
        _check(bool(texts), "the table has no texts", "Use filters")
        is_prefix = said.endswith("*") and not is_phrase
        words = words_of(said)
        _check(bool(words), f"{said[:40]!r} has no letters and digits", "Leave it out, or use a filter")
        _check(not is_prefix or len(words) == 1, f"{said[:40]!r} is several words", "Put * behind one word alone")
        return Words(tuple(texts), said.removesuffix("*") if is_prefix else said, tuple(words), is_prefix, is_without)

    def filter(self, said: str) -> Condition:
        _check(len(said) <= MOST_CHARS, f"a filter of {len(said)} characters", f"Use up to {MOST_CHARS}")
        column, found = self._filtered(said)
        if found.re is _NULL:
            _check(
                column.kind is not Kind.BINARY, f"a filter of {column.name}, which is binary", "Choose another column"
            )
            return Known(self._place(column), bool(found[1]))
        operator, value = found[1], column.parse(found[2])
        is_ordered = column.kind in NUMBERS or column.kind in (Kind.FLOAT, Kind.WIDE)
        _check(
            is_ordered or operator in ("=", "!="),
            f"{column.name} has no order here: it is a {column.kind}",
            "Compare it with = or !=",
        )
        return Compared(self._place(column), operator, value)

    def _filtered(self, said: str) -> tuple[Column, re.Match[str]]:
        """A name may have any characters: the longest one that an operator follows. With `_NULL`'s or `_COMPARED`'s."""
        for column in sorted(self.definition.columns, key=lambda each: len(each.name), reverse=True):
            rest = said.removeprefix(column.name)
            found = _NULL.fullmatch(rest) or _COMPARED.fullmatch(rest)
            if said.startswith(column.name) and found is not None:
                return column, found
        compared = _ANY_COMPARED.match(said)
        if compared is not None:
            self.definition.column(compared[1].strip())  # refuses a name that the table has not
        raise SearchRefused(
            _DOING,
            "a filter that compares nothing",
            remedy="Give COLUMN=VALUE, < > <= >= != or IS [NOT] NULL, and begin with the column's name",
        )

    def _place(self, column: Column) -> Place:
        return self.places[self.definition.columns.index(column)]
