"""A search of one index: from its text, filters and facets to rows.

Comes in: words, of which a row must have all, each in any of its texts: `word`, `begin*`, `"a phrase"`, `-without`,
`COLUMN:word`; filters, `COLUMN=VALUE`, `!=`, `<`, `<=`, `>`, `>=`, `COLUMN IS NULL`, `COLUMN IS NOT NULL`; columns of
which values are counted. Goes out: the best rows with all of their columns, how many there are, and the counts.

The text is read here, not by tantivy's parser, so that each text has an answer or an error that says what to change.
What is asked is bounded in number, what comes in number and bytes, and `Search.run` in time. Nothing is changed.
"""

import json
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import tantivy

from spark_sink.errors import SearchRefused
from spark_sink.export.fields import Value
from spark_sink.export.rows import Struct
from spark_sink.search.columns import NUMBERS, Column, Kind
from spark_sink.search.entries import Reached, sum_of
from spark_sink.search.index import (
    CLIPPED,
    POSITION,
    STATE,
    VALUE_CHARS,
    OpenIndex,
    analyzer,
    long_field,
    parts,
    parts_fields,
    value_field,
    words_field,
)

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
_MUST, _SHOULD, _NOT = tantivy.Occur.Must, tantivy.Occur.Should, tantivy.Occur.MustNot


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
class Search:
    text: str = ""
    filters: Sequence[str] = ()
    facets: Sequence[str] = ()
    limit: int = 10
    timeout_seconds: float = field(default=10.0, kw_only=True)

    def run(self, index: OpenIndex, reached: Reached) -> Found:
        """Raises `SearchRefused`, also where it takes longer than it may: then a thread of it runs on until its end."""
        _check(len(self.text) <= MOST_CHARS, f"a text of {len(self.text)} characters", f"Use up to {MOST_CHARS}")
        _check(len(self.filters) <= MOST_FILTERS, f"{len(self.filters)} filters", f"Use up to {MOST_FILTERS}")
        _check(len(self.facets) <= MOST_FACETS, f"{len(self.facets)} facets", f"Use up to {MOST_FACETS}")
        _check(1 <= self.limit <= MOST_ROWS, f"a limit of {self.limit}", f"Use 1 to {MOST_ROWS}")
        asked = _Asked(index, reached)
        query, facets = asked.query(self.text, self.filters), [asked.facet(name) for name in self.facets]
        done: list[Found | BaseException] = []

        def search() -> None:
            try:
                done.append(asked.found(query, facets, self.limit))
            except BaseException as failure:  # noqa: BLE001  (raised again where it is waited for)
                done.append(failure)

        thread = threading.Thread(target=search, daemon=True)
        thread.start()
        thread.join(self.timeout_seconds)
        if not done:
            raise SearchRefused(
                "searching",
                f"it took more than {self.timeout_seconds:g} s",
                remedy="Ask for less, or give it more time",
            )
        if isinstance(done[0], Found):
            return done[0]
        if isinstance(done[0], ValueError):  # of tantivy, e.g. a facet of very many values
            raise SearchRefused(
                "searching", str(done[0]).partition("\n")[0][:200], remedy="Ask for fewer facets, or filter more"
            ) from done[0]
        raise done[0]


def _check(is_well: bool, found: str, remedy: str) -> None:
    if not is_well:
        raise SearchRefused(_DOING, found, remedy=remedy)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Words and filters as tantivy's queries, of one index."""

    index: OpenIndex
    reached: Reached

    def query(self, text: str, filters: Sequence[str]) -> tantivy.Query:
        wanted = [*self._words(text), *map(self._filter, filters), (_NOT, self.index.term(STATE, POSITION))]
        if all(occur == _NOT for occur, _ in wanted):
            wanted.append((_MUST, tantivy.Query.all_query()))
        return tantivy.Query.boolean_query(wanted)

    def facet(self, name: str) -> tuple[int, Column]:
        column = self.reached.definition.column(name)
        _check(column.kind is not Kind.BINARY, f"a facet of {name}, which is binary", "Choose another column")
        return self.reached.definition.columns.index(column), column

    def _words(self, text: str) -> Iterator[tuple[tantivy.Occur, tantivy.Query]]:
        rest = _WORD.sub(" ", text).strip()
        _check(not rest, "a quotation mark without its other one", "Put a second one behind the phrase")
        found = list(_WORD.finditer(text))
        _check(len(found) <= MOST_WORDS, f"{len(found)} words", f"Use up to {MOST_WORDS}")
        columns = {column.name: column for column in self.reached.definition.columns}
        for minus, name, phrase, word in (each.groups() for each in found):
            chosen = columns.get(name or "")
            said = word if phrase is None else phrase
            if name and chosen is None:
                said = f"{name}:{said}"  # e.g. an address
            yield (_NOT if minus else _MUST), self._in_texts(said, chosen, is_phrase=phrase is not None)

    def _in_texts(self, said: str, chosen: Column | None, *, is_phrase: bool) -> tantivy.Query:
        columns = self.reached.definition.columns
        if chosen is not None:
            _check(chosen.kind is Kind.TEXT, f"{chosen.name} is no text", f"Use a filter: {chosen.name}=VALUE")
        places = [
            place for place, each in enumerate(columns) if each.kind is Kind.TEXT and (chosen is None or each == chosen)
        ]
        _check(bool(places), "the table has no texts", "Use filters")
        is_prefix = said.endswith("*") and not is_phrase
        words = analyzer().analyze(said)
        _check(bool(words), f"{said[:40]!r} has no letters and digits", "Leave it out, or use a filter")
        _check(not is_prefix or len(words) == 1, f"{said[:40]!r} is several words", "Put * behind one word alone")
        queries = [(_SHOULD, self._in_text(words_field(place), words, is_prefix=is_prefix)) for place in places]
        return tantivy.Query.boolean_query(queries)

    def _in_text(self, name: str, words: list[str], *, is_prefix: bool) -> tantivy.Query:
        if is_prefix:
            return tantivy.Query.regex_query(self.index.schema, name, f"{re.escape(words[0])}.*")
        if len(words) == 1:
            return self.index.term(name, words[0])
        return tantivy.Query.phrase_query(self.index.schema, name, list(words))

    def _filter(self, said: str) -> tuple[tantivy.Occur, tantivy.Query]:
        _check(len(said) <= MOST_CHARS, f"a filter of {len(said)} characters", f"Use up to {MOST_CHARS}")
        column, found = self._filtered(said)
        place = self.reached.definition.columns.index(column)
        there = self._there(place, column)
        if found.re is _NULL:
            _check(
                column.kind is not Kind.BINARY, f"a filter of {column.name}, which is binary", "Choose another column"
            )
            return (_MUST if found[1] else _NOT), there
        operator, value = found[1], column.parse(found[2])
        if operator == "!=":  # SQL's: null is not unequal
            return _MUST, tantivy.Query.boolean_query([(_MUST, there), (_NOT, self._equal(place, column, value))])
        if operator == "=":
            return _MUST, self._equal(place, column, value)
        is_ordered = column.kind in NUMBERS or column.kind in (Kind.FLOAT, Kind.WIDE)
        _check(is_ordered, f"{column.name} has no order here: it is a {column.kind}", "Compare it with = or !=")
        return _MUST, self._range(place, column, operator, value)

    def _filtered(self, said: str) -> tuple[Column, re.Match[str]]:
        """A name may have any characters: the longest one that an operator follows. With `_NULL`'s or `_COMPARED`'s."""
        for column in sorted(self.reached.definition.columns, key=lambda each: len(each.name), reverse=True):
            rest = said.removeprefix(column.name)
            found = _NULL.fullmatch(rest) or _COMPARED.fullmatch(rest)
            if said.startswith(column.name) and found is not None:
                return column, found
        compared = _ANY_COMPARED.match(said)
        if compared is not None:
            self.reached.definition.column(compared[1].strip())  # refuses a name that the table has not
        raise SearchRefused(
            _DOING,
            "a filter that compares nothing",
            remedy="Give COLUMN=VALUE, < > <= >= != or IS [NOT] NULL, and begin with the column's name",
        )

    def _there(self, place: int, column: Column) -> tantivy.Query:
        names = [value_field(place), *([long_field(place)] if column.kind is Kind.TEXT else [])]
        return tantivy.Query.boolean_query([(_SHOULD, tantivy.Query.exists_query(name)) for name in names])

    def _equal(self, place: int, column: Column, value: Value) -> tantivy.Query:
        if column.kind is Kind.WIDE:
            return self._wide(place, "=", value)
        if column.kind is Kind.TEXT and len(value) > VALUE_CHARS:
            return self.index.term(long_field(place), sum_of(value))
        return self.index.term(value_field(place), value)

    def _range(self, place: int, column: Column, operator: str, value: Value) -> tantivy.Query:
        if column.kind is Kind.WIDE:
            return self._wide(place, operator, value)
        if column.kind is Kind.FLOAT:  # what is no number is beyond all
            return self._bound(value_field(place), tantivy.FieldType.Float, operator, value, (-math.inf, math.inf))
        return self._bound(value_field(place), tantivy.FieldType.Integer, operator, value)

    def _bound(
        self,
        name: str,
        kind: tantivy.FieldType,
        operator: str,
        value: Value,
        ends: tuple[Value, Value] = (None, None),
    ) -> tantivy.Query:
        is_included = len(operator) == 2
        if operator[0] == "<":
            return tantivy.Query.range_query(self.index.schema, name, kind, ends[0], value, True, is_included)
        return tantivy.Query.range_query(self.index.schema, name, kind, value, ends[1], is_included, True)

    def _wide(self, place: int, operator: str, number: int) -> tantivy.Query:
        """Of the upper part first, and where that is equal, of the lower one."""
        (upper, lower), (high, low) = parts_fields(place), parts(number)
        integer, unsigned = tantivy.FieldType.Integer, tantivy.FieldType.Unsigned
        rest = self.index.term(lower, low) if operator == "=" else self._bound(lower, unsigned, operator, low)
        equal = tantivy.Query.boolean_query([(_MUST, self.index.term(upper, high)), (_MUST, rest)])
        if operator == "=":
            return equal
        beyond = self._bound(upper, integer, operator[0], high)
        return tantivy.Query.boolean_query([(_SHOULD, beyond), (_SHOULD, equal)])

    def found(self, query: tantivy.Query, facets: Sequence[tuple[int, Column]], limit: int) -> Found:
        searcher = self.index.searcher
        result = searcher.search(query, limit)
        rows, size = list[Struct](), 0
        for _, address in result.hits:
            text = self.index.row(address)
            size += len(text)
            if size > MOST_BYTES and rows:
                break
            rows.append(self._row(text))
        counts = {column.name: self._counts(query, place, column) for place, column in facets}
        clipped = searcher.search(self.index.term(STATE, CLIPPED), 1)
        return Found(_total(result), rows, counts, len(result.hits) - len(rows), _total(clipped))

    def _row(self, text: str) -> Struct:
        values, unrepresentable, _ = (*json.loads(text), {}, ())[:3]
        columns = self.reached.definition.columns
        return {each.name: each.shown(values.get(each.name, unrepresentable.get(each.name))) for each in columns}

    def _counts(self, query: tantivy.Query, place: int, column: Column) -> Facet:
        terms = {"field": value_field(place), "size": MOST_VALUES, "segment_size": 65_000}
        found = self.index.searcher.aggregate(query, {"values": {"terms": terms}})["values"]
        counts = [Count(_facet_value(column, bucket["key"]), bucket["doc_count"]) for bucket in found["buckets"]]
        other = found["sum_other_doc_count"]
        if column.kind is Kind.TEXT:
            texts = tantivy.Query.exists_query(long_field(place))
            other += _total(
                self.index.searcher.search(tantivy.Query.boolean_query([(_MUST, query), (_MUST, texts)]), 1)
            )
        return Facet(counts, other)


def _total(result: tantivy.SearchResult) -> int:
    return int(result.count)  # type: ignore[attr-defined]  # its stub lacks it


def _facet_value(column: Column, key: Value) -> Value:
    if column.kind is Kind.DECIMAL:
        return column.of_number(int(key))
    if column.kind is Kind.BOOLEAN:
        return bool(key)
    return column.shown(int(key)) if column.kind in NUMBERS else key
