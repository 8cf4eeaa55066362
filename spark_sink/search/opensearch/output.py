"""Writes a table's index in a cluster: rows first, then the position, then both are seen.

Comes in: entries, and how far they are. Goes out: an index, whose document `position` says how far it is. Searches see
what was there at its last refresh, which follows the position, which follows the rows: so they see a cut's rows and no
others. Before the first row of a step the position says that it is between two cuts, since a node that starts anew, or
whoever refreshes, shows what is there. A kill leaves such an index; the next process goes on from the position that it
had, and the same changes by key, the last one deciding, end at the same rows: what a forgotten delete brought back
(OpenSearch forgets a deleted document's version after a minute) is deleted again before the position moves.

An index that is built anew answers from its first commit on, by the alias; until then the former does. Each write of
the position names the one before (`if_seq_no`), and each request goes by this process's alias: once another process has
taken the index, both fail.
"""

import os
import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from spark_sink.search.columns import Definition
from spark_sink.search.entries import Entry, Gone, Reached
from spark_sink.search.opensearch.bulk import Bulk, Operation, taken
from spark_sink.search.opensearch.cluster import Cluster, part
from spark_sink.search.opensearch.indexes import Indexes
from spark_sink.search.opensearch.mapping import POSITION, document_of, index_of
from spark_sink.search.opensearch.position import Written, written
from spark_sink.search.opensearch.position import document_of as position_of
from spark_sink.work import TableId

_DOING = "writing an index in OpenSearch"


class ClusterEngine:
    """A `SearchEngine`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._token = secrets.token_hex(4)

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Each index is taken for itself, once it is written."""
        yield

    def reached(self, table: TableId) -> Reached | None:
        indexes = Indexes(self._cluster, table)
        live = indexes.live()
        held = written(self._cluster, live) if live is not None else None
        if held is None or live is None:
            return None
        if not held.reached.is_between:
            indexes.refresh(live)  # a kill may have come before
        return held.reached

    def output(self, table: TableId, definition: Definition, held: Reached | None) -> "IndexOutput":
        return IndexOutput(Indexes(self._cluster, table), definition, held, self._token)


class IndexOutput:
    """A `SearchOutput`."""

    def __init__(self, indexes: Indexes, definition: Definition, held: Reached | None, token: str) -> None:
        self._indexes, self._definition, self._token = indexes, definition, token
        self._cluster = indexes.cluster
        self._me = f"{socket.gethostname()}:{os.getpid()}:{token}"
        #: the index that answers
        self._live = indexes.take(token)
        if held is None:
            self._begin()
            return
        if self._live is None:
            raise self._cluster.failed(_DOING, f"the index of {indexes.table} was removed; the next run builds it anew")
        found = written(self._cluster, self._live)
        if found is None or found.reached.position != held.position:
            raise taken(indexes.table, found.writer if found is not None else "")
        self._use(self._live, found)

    def upsert(self, entries: Iterable[Entry], *, are_new: bool = False) -> None:
        for entry in entries:
            self._mark()
            self._bulk.add(Operation.put(entry.key, entry.gsn, document_of(entry, self._definition)))

    def delete(self, keys: Iterable[Gone]) -> None:
        for gone in keys:
            self._mark()
            self._bulk.add(Operation.delete(gone.key, gone.gsn))

    def clear(self) -> None:
        """By an index beside it: searches see no half of it, and nothing is to be deleted row by row."""
        self._bulk.close()
        if self._index != self._live:
            self._indexes.remove(self._index)
        self._begin()

    def commit(self, reached: Reached) -> None:
        self._bulk.flush()
        self._put_position(reached)
        self._indexes.refresh(self._index)
        if self._index != self._live:
            if not self._indexes.put_in_place(self._index, self._live, self._token):
                raise taken(self._indexes.table)
            if self._live is not None:
                self._indexes.remove(self._live)
            self._live = self._index

    def roll_back(self) -> None:
        self._bulk.forget()

    def close(self) -> None:
        self._bulk.close()

    def _begin(self) -> None:
        """An empty index, which nobody reads yet."""
        index = f"{self._indexes.alias}.{secrets.token_hex(4)}"
        made = index_of(self._definition, self._indexes.table)
        aliases: dict[str, Any] = {self._indexes.writer(index, self._token): {}}
        answer = self._cluster.tried("PUT", f"/{index}", {**made, "aliases": aliases})
        # The second one of two requests finds what the first one has made: nobody else knows the name.
        if answer.status != 200 and answer.error != "resource_already_exists_exception":
            raise self._cluster.failed(_DOING, f"it does not make an index of {self._indexes.table}: {answer.reason}")
        self._use(index, None)

    def _use(self, index: str, found: Written | None) -> None:
        self._index, self._written = index, found
        self._bulk = Bulk(self._cluster, self._indexes.table, self._indexes.writer(index, self._token))

    def _mark(self) -> None:
        """Before the first change of a step."""
        if self._written is not None and not self._written.reached.is_between:
            self._put_position(replace(self._written.reached, is_between=True))

    def _put_position(self, reached: Reached) -> None:
        """In place of the one that this process knows."""
        former = self._written
        which = f"if_seq_no={former.seq_no}&if_primary_term={former.primary_term}" if former else "op_type=create"
        path = f"/{self._bulk.alias}/_doc/{POSITION}?require_alias=true&{which}"
        answer = self._cluster.tried("PUT", path, position_of(reached, self._me))
        if answer.status in (200, 201):
            numbers = [part(answer.document, int, name) for name in ("_seq_no", "_primary_term")]
            self._written = Written(reached, self._me, *numbers)
            return
        if answer.status not in (404, 409):
            raise self._cluster.failed(_DOING, f"{self._indexes.table}: it answered {answer.reason}")
        found = written(self._cluster, self._index)
        if found is None or (found.reached, found.writer) != (reached, self._me):
            raise taken(self._indexes.table, found.writer if found is not None else "")
        self._written = found  # by a request whose answer was lost
