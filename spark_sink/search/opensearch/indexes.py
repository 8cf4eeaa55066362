"""Indexes of a table in a cluster: their names, who writes them, which of them answers.

Readers use the alias PREFIX-NAME-DIGEST; the index behind it is called ALIAS.TOKEN, each new one by another token. Who
writes an index does so by the alias INDEX.writer.TOKEN of its own, since requests by an alias that is no more fail:
whoever begins takes the former's away in the same request in which it adds its own, so one process writes, the one
that came last. An index takes another's place by one request too, which fails unless the former is this process's
still. An index without the readers' alias was not completed; who comes next removes it.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from spark_sink.errors import SinkError
from spark_sink.search.opensearch.cluster import Answer, Cluster, TooLarge, Unanswered, part
from spark_sink.search.opensearch.mapping import META
from spark_sink.work import TableId

_DOING = "using an index in OpenSearch"
_SLUG_CHARS = 100
#: for an answer to whether it can be asked
READY_SECONDS = 5.0
#: what it answers where an alias is another index's already, or none any more
_LOST = ("illegal_state_exception", "aliases_not_found_exception", "index_not_found_exception")


@dataclass(frozen=True, slots=True)
class Indexes:
    cluster: Cluster
    table: TableId

    @property
    def alias(self) -> str:
        """Of readers."""
        of = self.table
        names = (of.tenant, of.source, of.database, of.table)
        words = _words(".".join(names))[:_SLUG_CHARS]
        digest = hashlib.blake2b(json.dumps(names).encode(), digest_size=16).hexdigest()
        return f"{self.cluster.prefix}-{words}-{digest}"

    def writer(self, index: str, token: str) -> str:
        """Its alias."""
        return f"{index}.writer.{token}"

    def live(self) -> str | None:
        """The index that answers; None: none was completed. Raises `SearchIndexFailed`."""
        answering = [index for index, aliases in self._found().items() if self.alias in aliases]
        if len(answering) > 1:
            raise self.cluster.failed(_DOING, f"{self.alias} is an alias of {len(answering)} indexes")
        return answering[0] if answering else None

    def take(self, token: str) -> str | None:
        """Be the one who writes the table's indexes, of which those go that were not completed; the one that answers.

        None of them can get the place of another one between the first request and the last.
        """
        for index in self._found():
            self._take(index, token)
        live = self.live()
        for index in self._found():
            if index != live:
                self.remove(index)
        return live

    def remove(self, index: str) -> None:
        self._check(self.cluster.tried("DELETE", f"/{index}"), 404)

    def _take(self, index: str, token: str) -> None:
        former = {"remove": {"index": index, "alias": f"{index}.writer.*"}}
        own = {"add": {"index": index, "alias": self.writer(index, token)}}
        self._check(self.cluster.tried("POST", "/_aliases", {"actions": [former, own]}), 404)

    def put_in_place(self, index: str, former: str | None, token: str) -> bool:
        """Readers have this index from now on. False: another process has the place, or the former one."""
        writer = self.writer(index, token)
        gone = [(index, writer), *([(former, self.alias), (former, self.writer(former, token))] if former else ())]
        actions: list[Any] = [{"remove": {"index": of, "alias": each, "must_exist": True}} for of, each in gone]
        actions.append({"add": {"index": index, "alias": writer}})
        actions.append({"add": {"index": index, "alias": self.alias, "is_write_index": True}})  # of one index alone
        answer = self.cluster.tried("POST", "/_aliases", {"actions": actions})
        if self.live() == index:
            return True
        if answer.error not in _LOST:
            self._check(answer)
        return False

    def refresh(self, index: str) -> None:
        """Searches have all that was written."""
        answer = self.cluster.tried("POST", f"/{index}/_refresh")
        self._check(answer)
        if part(answer.document, int, "_shards", "failed"):
            raise self.cluster.failed(_DOING, f"a copy of {index} can't be refreshed")

    def _found(self) -> dict[str, set[str]]:
        """Aliases of each of the table's indexes."""
        answer = self.cluster.tried("GET", f"/{self.alias}.*/_alias")
        self._check(answer)
        own = re.compile(rf"{re.escape(self.alias)}\.[0-9a-f]{{8}}")  # a table may be called as another's index
        found = {index: aliases for index, aliases in part(answer.document, dict).items() if own.fullmatch(index)}
        return {index: set(part(aliases, dict, "aliases")) for index, aliases in found.items()}

    def _check(self, answer: Answer, *statuses: int) -> None:
        if answer.status not in (200, *statuses):
            raise self.cluster.failed(_DOING, f"{self.table}: it answered {answer.reason}")


def tables_of(cluster: Cluster, tenant: str) -> list[TableId]:
    """Of which there are indexes, also some that were not completed. Raises `SearchIndexFailed`."""
    path = f"/{cluster.prefix}-{_words(tenant)}.*/_mapping?filter_path=*.mappings._meta"
    answer = cluster.tried("GET", path)
    if answer.status != 200:
        raise cluster.failed("listing search indexes", f"it answered {answer.reason}")
    named = [part(each, dict, "mappings", "_meta", META) for each in part(answer.document, dict).values()]
    names = ("tenant", "source", "database", "table")
    tables = {TableId(*(part(each, str, name) for name in names)) for each in named}
    return sorted(table for table in tables if table.tenant == tenant)


def unanswering(cluster: Cluster) -> list[str]:
    """Why it can't be asked now."""
    try:
        answer = cluster.ask("GET", f"/{cluster.prefix}-*/_alias", seconds=READY_SECONDS)
    except (Unanswered, TooLarge, SinkError) as failure:
        return [f"{cluster} can't be asked: {failure or type(failure).__name__}"]
    return [] if answer.status == 200 else [f"{cluster} answers {answer.reason}"]


def _words(name: str) -> str:
    return re.sub(r"[^a-z0-9_.-]", "_", name.lower())
