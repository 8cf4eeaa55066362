"""Digests of the rows of a cluster's index, for a comparison with the lake: sums that OpenSearch makes.

Comes in: a table. Goes out: counts and sums by ranges of keys, and the digests of a range, all of one moment, which the
cluster keeps until it is closed (a point in time). Sums are of doubles there: halves of digests of up to two million
rows are exact. Nothing is changed.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from spark_sink.errors import SearchIndexMissing
from spark_sink.reading_at import folder_path
from spark_sink.search.digests import MODULUS, NO_ROWS, PLACE_BITS, Sums, bounds
from spark_sink.search.opensearch import position
from spark_sink.search.opensearch.cluster import Answer, Cluster, part
from spark_sink.search.opensearch.indexes import Indexes
from spark_sink.search.opensearch.mapping import KEY_HIGH, KEY_LOW, SUM_HIGH, SUM_LOW
from spark_sink.work import TableId

KEEP_ALIVE = "10m"
PAGE_ROWS = 10_000
#: of a place, that `KEY_HIGH` has
_HIGH_BITS = PLACE_BITS - 32
_FIELDS = (KEY_HIGH, KEY_LOW, SUM_HIGH, SUM_LOW)
_DOING = "comparing an index in OpenSearch"


class ClusterDigests:
    """A `DigestedIndex`, until it is closed."""

    def __init__(self, cluster: Cluster, table: TableId) -> None:
        """Raises `SearchIndexMissing` and `SearchIndexFailed`."""
        self._cluster, self._table = cluster, table
        path = f"/{Indexes(cluster, table).alias}/_search/point_in_time?keep_alive={KEEP_ALIVE}"
        answer = cluster.tried("POST", path)
        if answer.status == 404:
            raise SearchIndexMissing(
                "opening a search index",
                f"{cluster} has none of {table} that was completed",
                remedy=f"Build it: menura search index {folder_path(table)} --lake LAKE --opensearch {cluster}",
            )
        self._id = part(self._checked(answer).document, str, "pit_id")
        found = self._search({"query": {"match_all": {}}, "size": 0, "track_total_hits": True})
        self.rows = part(found.document, int, "hits", "total", "value") - 1
        found = self._search({"query": position.QUERY, "size": 1})
        self.reached = position.read(part(found.document, dict, "hits", "hits", 0, "_source"), str(table))

    def close(self) -> None:
        self._checked(self._cluster.tried("DELETE", "/_search/point_in_time", {"pit_id": [self._id]}))

    def sums(self, bits: int) -> list[Sums]:
        sums = {name: {"sum": {"field": name}} for name in _FIELDS}
        width = 1 << (_HIGH_BITS - bits)
        ranges = {"histogram": {"field": KEY_HIGH, "interval": width, "min_doc_count": 1}, "aggs": sums}
        answer = self._search({"size": 0, "aggs": {"ranges": ranges}})
        found = [NO_ROWS] * (1 << bits)
        for bucket in part(answer.document, list, "aggregations", "ranges", "buckets"):
            which = int(part(bucket, float, "key")) // width
            if not 0 <= which < len(found):
                raise self._cluster.failed(_DOING, "it answered of a range that was not asked for")
            key_high, key_low, sum_high, sum_low = (int(part(bucket, float, name, "value")) for name in _FIELDS)
            keys, rows = (key_high << 32) + key_low, (sum_high << 32) + sum_low
            found[which] = part(bucket, int, "doc_count"), keys % MODULUS, rows % MODULUS
        return found

    def pairs(self, which: int, bits: int) -> Iterator[tuple[int, int]]:
        low, high = (place >> 32 for place in bounds(which, bits))
        query = {"range": {KEY_HIGH: {"gte": low, "lte": high}}}
        asked: dict[str, Any] = {"query": query, "size": PAGE_ROWS, "_source": False, "docvalue_fields": list(_FIELDS)}
        asked["sort"] = [{KEY_HIGH: "asc"}, {KEY_LOW: "asc"}]
        while True:
            hits = part(self._search(asked).document, list, "hits", "hits")
            for hit in hits:
                key_high, key_low, sum_high, sum_low = (part(hit, int, "fields", name, 0) for name in _FIELDS)
                row = (sum_high << 32) + sum_low
                yield (key_high << 32) + key_low, row - MODULUS * (row >> 63)
            if len(hits) < PAGE_ROWS:
                return
            asked["search_after"] = part(hits[-1], list, "sort")

    def _search(self, asked: Mapping[str, Any]) -> Answer:
        body = {**asked, "pit": {"id": self._id, "keep_alive": KEEP_ALIVE}}
        answer = self._checked(self._cluster.tried("POST", "/_search?allow_partial_search_results=false", body))
        if part(answer.document, bool, "timed_out"):
            raise self._cluster.failed(_DOING, "it did not come to an end in its time")
        return answer

    def _checked(self, answer: Answer) -> Answer:
        if answer.status != 200:
            raise self._cluster.failed(_DOING, f"{self._table}: it answered {answer.reason}")
        return answer
