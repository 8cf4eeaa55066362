"""`menura search serve`: indexes of tables, asked over HTTP.

Comes in: questions (`questions`), with the service's token where it has one. Goes out: rows, how far behind the lake
each index is, and the newest changes of a table, which the lake itself has. Nothing is durable and nothing is
changed: any number of these may run over the same indexes.

The one caller is the control plane's API, which knows who asks and which tenant he may see; here whoever has the
token may ask for any tenant. Without a token, on loopback alone, the name that a request comes to must be loopback's,
so that no page of a browser on this host can ask by a name of its own.

`most_at_once` questions run at once; those beyond are refused, not queued. A search that takes too long can't be
stopped: it is refused, and keeps its turn until its thread has ended, so that no more threads than turns ever burn.
"""

import asyncio
import hmac
import json
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from menura.addresses import names_loopback
from menura.errors import MenuraError
from menura.health import Health, Pulse
from menura.token_file import read_token
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spark_sink.errors import (
    LakeStorageFailed,
    SearchBusy,
    SearchCallerRefused,
    SearchIndexFailed,
    SearchIndexMissing,
    SearchRefused,
    SearchTooLong,
    TableNotInLake,
)
from spark_sink.search import questions
from spark_sink.search.asking import Search
from spark_sink.search.entries import Reached
from spark_sink.search.indexed import indexed_tables, unready
from spark_sink.search.lag import BETWEEN, STORE_FAILURES, Lag, Lags, store_reason
from spark_sink.search.opensearch.cluster import Cluster
from spark_sink.search.questions import MAX_BODY_BYTES, Listing, OfChanges, Question
from spark_sink.search.recent_changes import recent_changes
from spark_sink.search.searching import open_search
from spark_sink.work import TableId

AGAIN_SECONDS = 0.1
_STATUS: Mapping[type[MenuraError], int] = {
    SearchRefused: 422,
    SearchTooLong: 422,
    SearchIndexMissing: 404,
    TableNotInLake: 404,
    SearchBusy: 503,
    SearchCallerRefused: 401,
}

logger = logging.getLogger("menura.search")

T = TypeVar("T")


class SearchService:
    def __init__(
        self,
        where: Path | Cluster,
        lake: str | None = None,
        token: Path | None = None,
        most_at_once: int = 8,
        timeout_seconds: float = 10.0,
    ) -> None:
        """`lake`: where the indexes' lake is now; `token`: a file, read for each question."""
        self._where, self._lake, self._token = where, lake, token
        self._most_at_once, self._timeout_seconds = most_at_once, timeout_seconds
        self._threads = ThreadPoolExecutor(most_at_once, thread_name_prefix="search")
        self._lags = Lags()
        self._late: set[asyncio.Task[None]] = set()
        #: tables whose changes are read now
        self._looked_at: set[TableId] = set()
        self._pulse = Pulse("the event loop")
        #: questions that have a turn
        self.running = 0
        #: how many questions ended so: answered, refused, busy, late, failed
        self.ended: Counter[str] = Counter()
        self.health = Health(self._pulse.stopped, self._unready)
        routes = [
            Route("/v1/indexes", self._answering(self._indexes), methods=["POST"]),
            Route("/v1/search", self._answering(self._search), methods=["POST"]),
            Route("/v1/changes", self._answering(self._changes), methods=["POST"]),
        ]
        self.app = Starlette(routes=routes, lifespan=self._beating)

    @property
    def late(self) -> int:
        """Searches that took too long and go on."""
        return len(self._late)

    async def _indexes(self, body: bytes) -> bytes:
        listing = Listing.read(body)
        return await self._in_turn(lambda: self._listed(listing))

    async def _search(self, body: bytes) -> bytes:
        question = Question.read(body, self._timeout_seconds)
        return await self._in_turn(lambda: self._found(question))

    async def _changes(self, body: bytes) -> bytes:
        """At once of a table one, and of all half of the turns: a store that is slow leaves the rest to searches."""
        asked = OfChanges.read(body)
        if asked.table in self._looked_at or len(self._looked_at) >= max(1, self._most_at_once // 2):
            raise SearchBusy("reading recent changes", "others read them", remedy="Repeat it in a second")
        self._looked_at.add(asked.table)
        try:
            return await self._in_turn(lambda: self._changed(asked))
        finally:
            self._looked_at.discard(asked.table)

    def _changed(self, asked: OfChanges) -> bytes:
        if self._lake is None:
            raise TableNotInLake(
                "reading recent changes",
                "this service was not told where the lake is",
                remedy="Start `menura search serve` with --lake",
                **asked.table.names(),
            )
        try:
            found = recent_changes(self._lake, asked.table, asked.limit)
        except STORE_FAILURES as failure:
            raise LakeStorageFailed(
                "reading recent changes",
                store_reason(failure),
                data="Nothing of the lake is touched by it",
                remedy="Check the lake's storage, then try again",
                **asked.table.names(),
            ) from failure
        return questions.encoded(questions.changes_answer(found))

    def _listed(self, listing: Listing) -> bytes:
        after = listing.after and TableId(listing.tenant, *listing.after)
        tables = [table for table in indexed_tables(self._where, listing.tenant) if not after or table > after]
        shown = tables[: listing.limit]
        last = shown[-1] if len(tables) > len(shown) else None
        return questions.encoded(
            {
                "indexes": [found for table in shown if (found := self._index(table)) is not None],
                "next": last and [last.source, last.database, last.table],
            }
        )

    def _index(self, table: TableId) -> dict[str, Any] | None:
        """None: it was begun, and not completed yet."""
        try:
            index = open_search(self._where, table)
            rows = index.ask(Search(limit=1, timeout_seconds=self._timeout_seconds)).total
        except SearchIndexMissing:
            return None
        except SearchIndexFailed as failure:
            logger.error("an index can't be read: error=%s", failure)  # noqa: TRY400  (the error says all)
            return questions.unusable_index(table, failure)
        return questions.index(table, rows, index.reached, self._lag(table, index.reached))

    def _lag(self, table: TableId, reached: Reached) -> Lag | str:
        return BETWEEN if reached.is_between else self._lags.of(self._lake or reached.lake, table, reached)

    def _found(self, question: Question) -> bytes:
        index = open_search(self._where, question.table)
        found = index.ask(question.search)
        lag = self._lag(question.table, index.reached)
        return questions.encoded(questions.answer(found, index.reached, lag))

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self.running >= self._most_at_once:
            raise SearchBusy(
                "searching",
                f"{self._most_at_once} searches run, {self.late} of which took too long and go on",
                remedy="Repeat it in a second",
            )
        self.running += 1
        still: threading.Thread | None = None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except SearchTooLong as late:
            still = late.running
            raise
        finally:
            if still is None:
                self.running -= 1
            else:
                self._late.add(task := asyncio.create_task(self._give_back(still)))
                task.add_done_callback(self._late.discard)

    async def _give_back(self, still: threading.Thread) -> None:
        while still.is_alive():
            await asyncio.sleep(AGAIN_SECONDS)
        self.running -= 1

    def _answering(self, act: Callable[[bytes], Awaitable[bytes]]) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            try:
                self._check_caller(request)
                answer = await act(await _body(request))
                self.ended["answered"] += 1
                return Response(answer, media_type="application/json")
            except MenuraError as refused:
                self.ended[_ENDS.get(type(refused), "failed")] += 1
                return _problem(refused)

        return answered

    def _check_caller(self, request: Request) -> None:
        doing = "answering a question"
        if request.headers.get("content-type") != "application/json":  # which a page must ask for first
            raise SearchCallerRefused(doing, "it is not JSON", remedy="Send Content-Type: application/json")
        if self._token is None:
            if not names_loopback(request.headers.get("host", "")):
                raise SearchCallerRefused(doing, "it comes to a name that is not loopback's", remedy="Use 127.0.0.1")
            return
        try:
            wanted = f"Bearer {read_token(self._token)}"
        except (OSError, ValueError) as unreadable:
            raise SearchIndexFailed(
                doing, f"{self._token} has no token that can be read", remedy="Correct the file of --token-file"
            ) from unreadable
        if not hmac.compare_digest(wanted.encode(), request.headers.get("authorization", "").encode("latin-1")):
            raise SearchCallerRefused(doing, "it has not the service's token", remedy="Send the one of --token-file")

    def _unready(self) -> list[str]:
        return unready(self._where)

    @asynccontextmanager
    async def _beating(self, _app: Starlette) -> AsyncIterator[None]:
        beating = asyncio.create_task(self._pulse.run())
        try:
            yield
        finally:
            beating.cancel()
            self._pulse.rest()


_ENDS: Mapping[type[MenuraError], str] = {
    SearchRefused: "refused",
    SearchIndexMissing: "refused",
    TableNotInLake: "refused",
    SearchCallerRefused: "refused",
    SearchTooLong: "late",
    SearchBusy: "busy",
}


async def _body(request: Request) -> bytes:
    """Raises `SearchRefused`."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MAX_BODY_BYTES:
            raise SearchRefused(
                "reading a question", f"it has more than {MAX_BODY_BYTES} bytes", remedy="Use fewer filters"
            )
    return bytes(found)


def _problem(error: MenuraError) -> Response:
    """RFC 9457, with what every error of Menura says."""
    status = _STATUS.get(type(error), 500)
    if status == 500:
        logger.error("a question to the search service failed: error=%s", error)
    body = {
        "title": error.code.replace("_", " ").capitalize(),
        "status": status,
        "detail": str(error),
        "code": error.code,
        **{name: getattr(error, name) for name in ("doing", "found", "data", "remedy")},
    }
    headers = {503: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(status, {})
    return Response(json.dumps(body).encode(), status, headers, "application/problem+json")
