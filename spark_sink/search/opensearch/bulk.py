"""Rows and deletes to an index in requests of bounded bytes, some of which are on their way at once.

Comes in: operations, each with its key's digest and the number of its change, which is the document's version: a later
change is never replaced by an earlier one. Goes out: their answers, each of which is looked at. What the cluster is too
busy for is sent again; a document that it refuses is an error. Of one key only one operation is on its way. A version
that is there already with a higher number (of a process that was killed, whose changes are handed over again) has to be
followed by an operation of its key that is taken, until `flush`.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from spark_sink.errors import SearchDocumentRefused, SearchIndexTaken
from spark_sink.search.opensearch.cluster import BUSY, Answer, Cluster, error_type, part, persist
from spark_sink.work import TableId

BULK_BYTES = 4 << 20
IN_FLIGHT = 2
_DOING = "putting rows into OpenSearch"
#: of the alias of this process: another one has taken it away
_NO_ALIAS = "index_not_found_exception"


@dataclass(frozen=True, slots=True)
class Operation:
    key: str
    #: one line, or two
    text: bytes

    @classmethod
    def put(cls, key: str, gsn: int, document: Mapping[str, Any]) -> "Operation":
        row = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        return cls(key, f"{_action('index', key, gsn)}\n{row}\n".encode())

    @classmethod
    def delete(cls, key: str, gsn: int) -> "Operation":
        return cls(key, f"{_action('delete', key, gsn)}\n".encode())


def _action(name: str, key: str, gsn: int) -> str:
    return json.dumps({name: {"_id": key, "version": gsn, "version_type": "external_gte"}})


@dataclass(frozen=True, slots=True)
class _Done:
    #: operations of these keys were taken, or what is there is newer
    taken: frozenset[str]
    stale: frozenset[str]


class Bulk:
    def __init__(self, cluster: Cluster, table: TableId, alias: str) -> None:
        """`alias`: by which this process writes."""
        self._cluster, self._table = cluster, table
        self.alias = alias
        self._waiting: dict[str, Operation] = {}
        self._bytes = 0
        self._ahead = deque[tuple[frozenset[str], Future[_Done]]]()
        self._stale = set[str]()
        self._pool = ThreadPoolExecutor(IN_FLIGHT, "opensearch")

    def add(self, operation: Operation) -> None:
        """In order of a key's operations. Raises `SearchIndexFailed`, `SearchDocumentRefused`, also of earlier ones."""
        former = self._waiting.pop(operation.key, None)
        self._waiting[operation.key] = operation
        self._bytes += len(operation.text) - (len(former.text) if former is not None else 0)
        if self._bytes >= BULK_BYTES:
            self._send()

    def flush(self) -> None:
        """All that came is there. Raises as `add`, and `SearchIndexTaken` where something newer is."""
        self._send()
        while self._ahead:
            self._settle()
        if self._stale:
            raise SearchIndexTaken(
                _DOING,
                f"the index has newer rows of {len(self._stale)} keys, e.g. of the digest {min(self._stale)}, than the"
                " changes that are read from the lake",
                data="These rows stay, and the index says that it is between two cuts",
                remedy="End the other process that writes this index, or the one of another lake with the same prefix",
                **self._table.where(0),
            )

    def forget(self) -> None:
        """What is not sent, and whether what is sent was taken."""
        self._waiting.clear()
        self._bytes = 0
        while self._ahead:
            self._ahead.popleft()[1].exception()
        self._stale.clear()

    def close(self) -> None:
        self.forget()
        self._pool.shutdown()

    def _send(self) -> None:
        if not self._waiting:
            return
        operations, keys = tuple(self._waiting.values()), frozenset(self._waiting)
        while self._ahead and (
            len(self._ahead) >= IN_FLIGHT or any(not keys.isdisjoint(ahead) for ahead, _ in self._ahead)
        ):
            self._settle()
        self._waiting, self._bytes = {}, 0
        self._ahead.append((keys, self._pool.submit(self._sent, operations)))

    def _settle(self) -> None:
        """The oldest one."""
        done = self._ahead.popleft()[1].result()
        self._stale -= done.taken
        self._stale |= done.stale

    def _sent(self, operations: Sequence[Operation]) -> _Done:
        left = {each.key: each for each in operations}
        stale = set[str]()

        def send() -> Answer:
            answer = self._cluster.ask(
                "POST",
                f"/{self.alias}/_bulk?require_alias=true&timeout=30s",
                b"".join(each.text for each in left.values()),
            )
            if answer.status == 200:
                self._read(answer, left, stale)
            return answer

        answer = persist(
            send, lambda answer: answer.status in BUSY or (answer.status == 200 and bool(left)), self._cluster
        )
        if answer.status == 413 and len(operations) > 1:  # of a cluster that takes less at once
            halves = [self._sent(half) for half in (operations[::2], operations[1::2])]
            return _Done(halves[0].taken | halves[1].taken, halves[0].stale | halves[1].stale)
        if answer.status == 413:
            raise self._refused(operations[0].key, f"413: it has {len(operations[0].text)} bytes")
        if answer.status != 200:
            raise self._cluster.failed(_DOING, f"{self._table}: it answered {answer.reason}")
        return _Done(frozenset(each.key for each in operations) - stale, frozenset(stale))

    def _read(self, answer: Answer, left: dict[str, Operation], stale: set[str]) -> None:
        """Take out of `left` what is settled."""
        items = part(answer.document, list, "items")
        if len(items) != len(left):
            raise self._cluster.failed(_DOING, f"it answered {len(items)} of {len(left)} operations")
        for key, item in zip(list(left), items, strict=True):
            (name,) = item if isinstance(item, dict) and len(item) == 1 else ("index",)
            status, found = part(item, int, name, "status"), part(item, dict, name)
            if part(item, str, name, "_id") != key:
                raise self._cluster.failed(_DOING, "it answered of other documents than were sent")
            if status in BUSY:
                continue
            if status in (401, 403):
                raise self._cluster.failed(_DOING, f"{self._table}: it answered {status} {error_type(found)}")
            if status == 409:
                stale.add(key)
            elif error_type(found) == _NO_ALIAS:
                raise taken(self._table)
            elif "error" in found or not (status in (200, 201) or (name == "delete" and status == 404)):
                raise self._refused(key, f"{status} {error_type(found)}")
            del left[key]

    def _refused(self, key: str, found: str) -> SearchDocumentRefused:
        return SearchDocumentRefused(
            _DOING,
            f"OpenSearch refuses the row of {self._table} whose key has the digest {key}: {found}",
            data="The index is between two cuts and says so; its table is tried again with its next version",
            remedy="Check the cluster's limits (http.max_content_length) and its templates, then start again",
            **self._table.where(0),
        )


def taken(table: TableId, by: str = "") -> SearchIndexTaken:
    return SearchIndexTaken(
        _DOING,
        f"another process{by and f' ({by})'} writes the index of {table} now, or has removed it",
        data="This one writes nothing more there; the other one goes on from the index's position",
        remedy="Let one process follow a table; end this one or the other",
        **table.where(0),
    )
