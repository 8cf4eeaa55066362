"""The document that says how far an index is, in the index itself: `position`.

Comes in: a `Reached`, and who writes it. Goes out: the document, and what is read of it: by its id as it was written
last, or by a search, with the rows of the same moment::

    {"state": "position", "reached": {"format": 1, "cut": 41, "is_between": true, "writer": "host:77:5b0c...", ...}}
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_sink.search.entries import Reached
from spark_sink.search.opensearch.cluster import Cluster, part
from spark_sink.search.opensearch.mapping import POSITION, REACHED, STATE

_WRITER = "writer"
QUERY: Mapping[str, Any] = {"term": {STATE: POSITION}}


@dataclass(frozen=True, slots=True)
class Written:
    reached: Reached
    #: who wrote it
    writer: str
    seq_no: int
    primary_term: int


def document_of(reached: Reached, writer: str) -> dict[str, Any]:
    return {STATE: POSITION, REACHED: {**reached.document(), _WRITER: writer}}


def read(source: object, where: str) -> Reached:
    """Raises `SearchIndexFailed`."""
    return Reached.read(json.dumps(part(source, dict, REACHED)), where)


def written(cluster: Cluster, index: str) -> Written | None:
    """As it was written last. Raises `SearchIndexFailed`."""
    answer = cluster.tried("GET", f"/{index}/_doc/{POSITION}")
    if answer.status == 404:
        return None
    if answer.status != 200:
        raise cluster.failed("reading an index's position", f"{index}: it answered {answer.reason}")
    source, writer = part(answer.document, dict, "_source"), part(answer.document, str, "_source", REACHED, _WRITER)
    seq_no, term = part(answer.document, int, "_seq_no"), part(answer.document, int, "_primary_term")
    return Written(read(source, index), writer, seq_no, term)
