"""A search in an index of a folder: its conditions as tantivy's queries, and what tantivy gives.

Comes in: `Asked`. Goes out: `Found`: the best rows with all of their columns, how many there are, and the counts.
Nothing is changed. A search that takes longer than it may is refused; its thread runs on until its end.
"""

import json
import math
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import tantivy

from spark_sink.errors import SearchRefused
from spark_sink.export.fields import Value
from spark_sink.export.rows import Struct
from spark_sink.search.asking import (
    MOST_VALUES,
    Compared,
    Condition,
    Count,
    Facet,
    Found,
    Known,
    Place,
    Search,
    Words,
    first_bytes,
    shown,
    took_too_long,
)
from spark_sink.search.columns import NUMBERS, Column, Kind
from spark_sink.search.entries import Reached, sum_of
from spark_sink.search.index import (
    CLIPPED,
    POSITION,
    STATE,
    VALUE_CHARS,
    OpenIndex,
    long_field,
    parts,
    parts_fields,
    value_field,
    words_field,
)

_MUST, _SHOULD, _NOT = tantivy.Occur.Must, tantivy.Occur.Should, tantivy.Occur.MustNot


@dataclass(frozen=True, slots=True)
class FolderIndex:
    """A `SearchIndex`, as it was when it was opened."""

    index: OpenIndex
    reached: Reached

    def ask(self, search: Search) -> Found:
        asked = search.read(self.reached.definition)
        query = _Queries(self.index).all_of(asked.conditions)
        done: list[Found | BaseException] = []

        def run() -> None:
            try:
                done.append(self._found(query, asked.facets, asked.limit))
            except BaseException as failure:  # noqa: BLE001  (raised again where it is waited for)
                done.append(failure)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(asked.timeout_seconds)
        if not done:
            raise took_too_long(asked.timeout_seconds, thread)
        if isinstance(done[0], Found):
            return done[0]
        if isinstance(done[0], ValueError):  # of tantivy, e.g. a facet of very many values
            raise SearchRefused(
                "searching", str(done[0]).partition("\n")[0][:200], remedy="Ask for fewer facets, or filter more"
            ) from done[0]
        raise done[0]

    def _found(self, query: tantivy.Query, facets: Sequence[Place], limit: int) -> Found:
        searcher = self.index.searcher
        result = searcher.search(query, limit)
        texts = (self.index.row(address) for _, address in result.hits)
        rows = first_bytes((len(text), self._row(text)) for text in texts)
        counts = {each.column.name: self._counts(query, each) for each in facets}
        clipped = searcher.search(self.index.term(STATE, CLIPPED), 1)
        return Found(_total(result), rows, counts, len(result.hits) - len(rows), _total(clipped))

    def _row(self, text: str) -> Struct:
        values, unrepresentable, _ = (*json.loads(text), {}, ())[:3]
        return shown(self.reached.definition, values, unrepresentable)

    def _counts(self, query: tantivy.Query, place: Place) -> Facet:
        terms = {"field": value_field(place.number), "size": MOST_VALUES, "segment_size": 65_000}
        found = self.index.searcher.aggregate(query, {"values": {"terms": terms}})["values"]
        counts = [Count(_facet_value(place.column, bucket["key"]), bucket["doc_count"]) for bucket in found["buckets"]]
        other = found["sum_other_doc_count"]
        if place.column.kind is Kind.TEXT:
            texts = tantivy.Query.exists_query(long_field(place.number))
            both = tantivy.Query.boolean_query([(_MUST, query), (_MUST, texts)])
            other += _total(self.index.searcher.search(both, 1))
        return Facet(counts, other)


@dataclass(frozen=True, slots=True)
class _Queries:
    index: OpenIndex

    def all_of(self, conditions: Sequence[Condition]) -> tantivy.Query:
        wanted = [*map(self._of, conditions), (_NOT, self.index.term(STATE, POSITION))]
        if all(occur == _NOT for occur, _ in wanted):
            wanted.append((_MUST, tantivy.Query.all_query()))
        return tantivy.Query.boolean_query(wanted)

    def _of(self, condition: Condition) -> tuple[tantivy.Occur, tantivy.Query]:
        match condition:
            case Words():
                queries = [(_SHOULD, self._in_text(words_field(each.number), condition)) for each in condition.texts]
                return (_NOT if condition.is_without else _MUST), tantivy.Query.boolean_query(queries)
            case Known():
                return (_MUST if condition.is_known else _NOT), self._there(condition.place)
            case Compared():
                return _MUST, self._compared(condition)

    def _in_text(self, name: str, said: Words) -> tantivy.Query:
        if said.is_prefix:
            return tantivy.Query.regex_query(self.index.schema, name, f"{re.escape(said.words[0])}.*")
        if len(said.words) == 1:
            return self.index.term(name, said.words[0])
        return tantivy.Query.phrase_query(self.index.schema, name, list(said.words))

    def _there(self, place: Place) -> tantivy.Query:
        names = [value_field(place.number), *([long_field(place.number)] if place.column.kind is Kind.TEXT else [])]
        return tantivy.Query.boolean_query([(_SHOULD, tantivy.Query.exists_query(name)) for name in names])

    def _compared(self, condition: Compared) -> tantivy.Query:
        place, operator, value = condition.place, condition.operator, condition.value
        if operator == "!=":
            unequal = [(_MUST, self._there(place)), (_NOT, self._equal(place, value))]
            return tantivy.Query.boolean_query(unequal)
        return self._equal(place, value) if operator == "=" else self._range(place, operator, value)

    def _equal(self, place: Place, value: Value) -> tantivy.Query:
        if place.column.kind is Kind.WIDE:
            return self._wide(place.number, "=", value)
        if place.column.kind is Kind.TEXT and len(value) > VALUE_CHARS:
            return self.index.term(long_field(place.number), sum_of(value))
        return self.index.term(value_field(place.number), value)

    def _range(self, place: Place, operator: str, value: Value) -> tantivy.Query:
        if place.column.kind is Kind.WIDE:
            return self._wide(place.number, operator, value)
        name = value_field(place.number)
        if place.column.kind is Kind.FLOAT:  # what is no number is beyond all
            return self._bound(name, tantivy.FieldType.Float, operator, value, (-math.inf, math.inf))
        return self._bound(name, tantivy.FieldType.Integer, operator, value)

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


def _total(result: tantivy.SearchResult) -> int:
    return int(result.count)  # type: ignore[attr-defined]  # its stub lacks it


def _facet_value(column: Column, key: Value) -> Value:
    if column.kind is Kind.DECIMAL:
        return column.of_number(int(key))
    if column.kind is Kind.BOOLEAN:
        return bool(key)
    return column.shown(int(key)) if column.kind in NUMBERS else key
