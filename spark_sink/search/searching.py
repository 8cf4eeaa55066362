"""Indexes of a table for who reads them, whichever engine they are of.

Comes in: where indexes are, a table. Goes out: an index to be asked (a `Search` gives `Found`, at a position of the
lake), or one to be compared with the lake. Nothing is changed.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from spark_sink.search.asking import Found, Search
from spark_sink.search.digests import DigestedIndex
from spark_sink.search.entries import Reached, SearchEngine
from spark_sink.search.index import FolderEngine, open_index
from spark_sink.search.index_digests import FolderDigests
from spark_sink.search.index_query import FolderIndex
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.opensearch.digests import ClusterDigests
from spark_sink.search.opensearch.output import ClusterEngine
from spark_sink.search.opensearch.query import ClusterIndex
from spark_sink.work import TableId


class SearchIndex(Protocol):
    """A table's index, opened for one search or for some that follow each other."""

    @property
    def reached(self) -> Reached:
        """Where the rows of the last answer are; before it, where the index was when it was opened."""

    def ask(self, search: Search) -> Found:
        """Raises `SearchRefused`, also where it takes longer than it may; `SearchIndexFailed`."""


def open_search(where: Path | Cluster, table: TableId) -> SearchIndex:
    """Raises `SearchIndexMissing` and `SearchIndexFailed`."""
    return ClusterIndex(where, table) if isinstance(where, Cluster) else FolderIndex(*open_index(where, table))


@contextmanager
def open_digests(where: Path | Cluster, table: TableId) -> Iterator[DigestedIndex]:
    """Raises `SearchIndexMissing` and `SearchIndexFailed`."""
    if isinstance(where, Cluster):
        with closing(ClusterDigests(where, table)) as found:
            yield found
    else:
        yield FolderDigests(*open_index(where, table))


def engine_of(where: Path | Cluster) -> SearchEngine:
    """To write there."""
    return ClusterEngine(where) if isinstance(where, Cluster) else FolderEngine(where)
