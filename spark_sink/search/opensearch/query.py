"""A search in a cluster's index: its conditions in OpenSearch's query language, and what OpenSearch gives.

Comes in: `Asked`. Goes out: `Found`: the best rows with all of their columns, how many there are, and the counts. Each
search asks for the index's position too, as the first of the rows: both are of one moment. Nothing is changed.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spark_sink.errors import SearchIndexFailed, SearchIndexMissing, SearchRefused
from spark_sink.export.fields import Value
from spark_sink.export.rows import Struct
from spark_sink.reading_at import folder_path
from spark_sink.search import asking
from spark_sink.search.asking import (
    MOST_VALUES,
    Asked,
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
    took_too_long,
)
from spark_sink.search.columns import Kind
from spark_sink.search.entries import Reached, sum_of
from spark_sink.search.index import VALUE_CHARS
from spark_sink.search.opensearch import position
from spark_sink.search.opensearch.cluster import Answer, Cluster, TimedOut, TooLarge, Unanswered, part
from spark_sink.search.opensearch.indexes import Indexes
from spark_sink.search.opensearch.mapping import (
    EXACT,
    KEY_HIGH,
    KEYWORDS,
    LONG,
    MORE,
    REACHED,
    ROW,
    exact,
    field_name,
    of_exact,
    ordered,
    row_of,
)
from spark_sink.work import TableId

#: a search whose index was built anew with other columns meanwhile is asked again
TRIES = 3
#: of an answer beside its rows
_MORE_BYTES = 8 << 20
_FIRST = 1e30
_OPERATORS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_DOING = "searching"

Query = Mapping[str, Any]


class ClusterIndex:
    """A `SearchIndex`, whose position is that of the last answer."""

    def __init__(self, cluster: Cluster, table: TableId) -> None:
        """Raises `SearchIndexMissing` and `SearchIndexFailed`."""
        self._cluster, self._table = cluster, table
        self._path = f"/{Indexes(cluster, table).alias}/_search?allow_partial_search_results=false"
        self.reached = self._position(
            self._answer({"query": position.QUERY, "size": 1}, asking.Search().timeout_seconds)
        )

    def ask(self, search: Search) -> Found:
        deadline = time.monotonic() + search.timeout_seconds
        for _ in range(TRIES):
            asked, definition = search.read(self.reached.definition), self.reached.definition
            answer, limit = self._searched(asked, deadline)
            self.reached = self._position(answer)
            if self.reached.definition == definition:
                return self._found(answer, asked, limit)
        raise SearchIndexFailed(
            _DOING, f"the index of {self._table} is built anew again and again", remedy="Try again later"
        )

    def _searched(self, asked: Asked, deadline: float) -> tuple[Answer, int]:
        """With so many rows as are not too many bytes."""
        limit = asked.limit
        while True:
            body = {
                "query": with_position(query_of(asked.conditions)),
                "size": limit + 1,
                "track_total_hits": True,
                "_source": [ROW, MORE, REACHED],
                "sort": ["_score", {KEY_HIGH: {"order": "asc", "missing": "_first"}}],
                "aggs": dict(_aggregations(asked.facets)),
            }
            try:
                return self._answer(body, deadline - time.monotonic(), asked.timeout_seconds), limit
            except TooLarge:
                if limit == 1:
                    raise SearchRefused(
                        _DOING, "the best row alone has too many bytes", remedy="Filter, so that others are found"
                    ) from None
                limit //= 2

    def _answer(self, body: Query, seconds: float, allowed_seconds: float | None = None) -> Answer:
        allowed_seconds = allowed_seconds or seconds
        if seconds <= 0:
            raise took_too_long(allowed_seconds)
        body = {**body, "timeout": f"{max(1, int(seconds * 1000))}ms"}
        try:
            answer = self._cluster.ask(
                "POST", self._path, body, seconds=seconds, most_bytes=asking.MOST_BYTES + _MORE_BYTES
            )
        except TimedOut as late:
            raise took_too_long(allowed_seconds) from late
        except Unanswered as unanswered:
            raise self._cluster.failed(_DOING, str(unanswered)) from unanswered
        if answer.status == 404:
            raise SearchIndexMissing(
                "opening a search index",
                f"{self._cluster} has none of {self._table} that was completed",
                remedy=f"Build it: menura search index {folder_path(self._table)} --lake LAKE"
                f" --opensearch {self._cluster}",
            )
        if answer.status == 400:
            raise SearchRefused(_DOING, f"OpenSearch refuses it: {answer.reason}", remedy="Ask for less")
        if answer.status != 200:
            raise self._cluster.failed(_DOING, f"{self._table}: it answered {answer.reason}")
        if part(answer.document, bool, "timed_out"):
            raise took_too_long(allowed_seconds)
        return answer

    def _position(self, answer: Answer) -> Reached:
        return position.read(part(answer.document, dict, "hits", "hits", 0, "_source"), str(self._table))

    def _found(self, answer: Answer, asked: Asked, limit: int) -> Found:
        hits = part(answer.document, list, "hits", "hits")[1:]
        if len(hits) > limit:
            raise self._cluster.failed(_DOING, "it answered more rows than it was asked for")
        rows = first_bytes(self._rows(hits))
        total = part(answer.document, int, "hits", "total", "value") - 1
        facets = {each.column.name: self._facet(answer, number, each) for number, each in enumerate(asked.facets)}
        return Found(total, rows, facets, min(total, asked.limit) - len(rows), 0)

    def _rows(self, hits: Sequence[object]) -> Iterator[tuple[int, Struct]]:
        for hit in hits:
            source = part(hit, dict, "_source")
            try:
                yield len(str(source)), row_of(source, self.reached.definition)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as wrong:
                raise self._cluster.failed(
                    _DOING, f"a document of {self._table} is none of ours ({type(wrong).__name__})"
                ) from wrong

    def _facet(self, answer: Answer, number: int, place: Place) -> Facet:
        found = part(answer.document, dict, "aggregations", f"values{number}")
        other = part(found, int, "sum_other_doc_count")
        if place.column.kind is Kind.TEXT:
            other += part(answer.document, int, "aggregations", f"long{number}", "doc_count")
        kind: type[int | str] = str if place.column.kind in KEYWORDS else int
        buckets = part(found, list, "buckets")
        try:
            counts = [
                Count(of_exact(place.column, part(each, kind, "key")), part(each, int, "doc_count")) for each in buckets
            ]
        except (ValueError, OverflowError) as wrong:
            raise self._cluster.failed(_DOING, f"a count of {self._table} is of no value of ours") from wrong
        return Facet(counts, other)


def with_position(query: Query) -> Query:
    """These rows, and before them the document that says how far the index is."""
    first = {"constant_score": {"filter": position.QUERY, "boost": _FIRST}}
    return {"bool": {"should": [first, query], "minimum_should_match": 1}}


def query_of(conditions: Sequence[Condition]) -> Query:
    """Rows for which all are so. The words alone say which are the best."""
    clauses: dict[str, list[Query]] = {"must": [], "filter": [], "must_not": [position.QUERY]}
    for condition in conditions:
        match condition:
            case Words():
                query = _any([_in_text(field_name(ROW, each.column), condition) for each in condition.texts])
                clauses["must_not" if condition.is_without else "must"].append(query)
            case Known():
                clauses["filter" if condition.is_known else "must_not"].append(_there(condition.place))
            case Compared(place, "!=", value):
                clauses["filter"].append(_there(place))
                clauses["must_not"].append(_equal(place, value))
            case Compared(place, "=", value):
                clauses["filter"].append(_equal(place, value))
            case Compared():
                clauses["filter"].append(_range(condition))
    return {"bool": clauses}


def _in_text(field: str, said: Words) -> Query:
    """The text as it was said: its words are those that OpenSearch makes of it, as it did of the rows."""
    return {"match_bool_prefix" if said.is_prefix else "match_phrase": {field: {"query": said.text}}}


def _there(place: Place) -> Query:
    folders = (EXACT, LONG) if place.column.kind is Kind.TEXT else (EXACT,)
    return _any([{"exists": {"field": field_name(folder, place.column)}} for folder in folders])


def _equal(place: Place, value: Value) -> Query:
    if place.column.kind is Kind.TEXT and len(value) > VALUE_CHARS:
        return {"term": {field_name(LONG, place.column): sum_of(value)}}
    return {"term": {field_name(EXACT, place.column): exact(place.column, value)}}


def _range(condition: Compared) -> Query:
    column = condition.place.column
    ends: dict[str, int | str] = {_OPERATORS[condition.operator]: exact(column, condition.value)}
    if column.kind is Kind.FLOAT and condition.operator[0] == "<":  # what is no number is beyond all
        ends["gte"] = ordered(-math.inf)
    elif column.kind is Kind.FLOAT:
        ends["lte"] = ordered(math.inf)
    return {"range": {field_name(EXACT, column): ends}}


def _any(queries: Sequence[Query]) -> Query:
    return {"bool": {"should": list(queries), "minimum_should_match": 1}}


def _aggregations(facets: Sequence[Place]) -> Iterator[tuple[str, Query]]:
    for number, place in enumerate(facets):
        yield f"values{number}", {"terms": {"field": field_name(EXACT, place.column), "size": MOST_VALUES}}
        if place.column.kind is Kind.TEXT:
            yield f"long{number}", {"filter": {"exists": {"field": field_name(LONG, place.column)}}}
