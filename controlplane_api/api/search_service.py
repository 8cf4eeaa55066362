"""The search service (`menura search serve`), as the API asks it for a tenant.

Comes in: a tenant and what is asked of its indexes. Goes out: answers of bounded size, of the form that the API
promises. Nothing is durable. Each question names the tenant of the caller's path, which `api.gate` has let him into:
the service knows no callers, and answers for any tenant to whoever has its token.

`MOST_AT_ONCE` questions wait for the service at once, of one tenant half of them; beyond that they are refused, not
queued. They take no turn of the tenant's other requests (`api.gate`). No proxy and no redirect is followed. What was
searched for is in no error of this module and in no log.
"""

import asyncio
import json
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from menura.addresses import is_loopback
from menura.bounds import clean_text
from menura.errors import printable
from menura.token_file import read_token
from pydantic import ValidationError

from controlplane_api.api.views.base import View
from controlplane_api.errors import (
    ControlPlaneError,
    RecentChangesUnknown,
    SearchAway,
    SearchBusy,
    SearchIndexUnknown,
    SearchMissing,
    SearchRefused,
    SearchUnusable,
)

MOST_AT_ONCE = 16
#: more than the service gives a search
ANSWER_SECONDS = 20.0
MAX_ANSWER_BYTES = 8 << 20
MAX_SAID_CHARS = 1_000
_DOING = "asking the search service"
#: by the code that the service answers with
_REFUSALS: Mapping[object, type[ControlPlaneError]] = {
    "SEARCH_INDEX_MISSING": SearchIndexUnknown,
    "TABLE_NOT_IN_LAKE": RecentChangesUnknown,
    "SEARCH_REFUSED": SearchRefused,
    "SEARCH_TOO_LONG": SearchRefused,
    "SEARCH_BUSY": SearchBusy,
}

logger = logging.getLogger(__name__)

V = TypeVar("V", bound=View)


class SearchService:
    """Of one event loop. Raises `SearchUnusable` for an address or files that can't be used."""

    def __init__(self, url: str, token: Path | None = None, ca: Path | None = None) -> None:
        """`token`: the file of the service's token, read for each question; `ca`: whose certificates are good."""
        where = urlsplit(url)
        doing = "reading the address of the search service"
        if where.scheme not in ("http", "https") or not where.hostname or where.query or where.fragment:
            raise SearchUnusable(doing, f"{url!r} is no address", remedy="Set --search to https://HOST:PORT.")
        if where.scheme == "http" and not is_loopback(where.hostname):
            raise SearchUnusable(
                doing,
                f"{url} is not HTTPS, and rows would come from there in clear",
                remedy="Set --search to https://HOST:PORT; beyond loopback the search service serves no other.",
            )
        self._url = url.rstrip("/")
        self._token = token
        self._authorization()
        self._running: Counter[str] = Counter()
        try:
            self._trusted = ssl.create_default_context(cafile=ca)
        except OSError as unusable:  # an ssl.SSLError is one
            raise SearchUnusable(doing, f"{ca}: {unusable.strerror}", remedy="Correct --search-ca.") from unusable

    async def ask(
        self,
        answer: type[V],
        tenant: str,
        path: str,
        question: Mapping[str, Any],
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> V:
        """`before`: what is done before rows leave; it has the question's turn still.

        Raises `SearchAway`, `SearchBusy`, `SearchIndexUnknown`, `RecentChangesUnknown`, `SearchRefused`.
        """
        async with self._turn(tenant):
            status, content = await self._answered(path, question)
            if status != httpx.codes.OK:
                raise _refusal(status, content)
            try:
                found = answer.model_validate_json(content)
            except ValidationError as strange:
                raise _away("its answer is not of the form that this version knows") from strange
            if before is not None:
                await before()
            return found

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        if self._running.total() >= MOST_AT_ONCE or self._running[tenant] >= MOST_AT_ONCE // 2:
            raise SearchBusy("searching", "as many searches run as may at once", remedy="Repeat it in a second.")
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    async def _answered(self, path: str, question: Mapping[str, Any]) -> tuple[int, bytes]:
        headers = self._authorization()
        content = bytearray()
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                httpx.AsyncClient(verify=self._trusted, timeout=ANSWER_SECONDS, trust_env=False) as client,
                client.stream("POST", self._url + path, headers=headers, json=question) as answer,
            ):
                async for part in answer.aiter_raw():
                    content += part
                    if len(content) > MAX_ANSWER_BYTES:
                        raise _away(f"it answers more than {MAX_ANSWER_BYTES} bytes")
        except TimeoutError as late:
            raise _away(f"it has not answered within {ANSWER_SECONDS:g} s") from late
        except httpx.HTTPError as failure:
            raise _away(f"it can't be reached ({type(failure).__name__})") from failure
        return answer.status_code, bytes(content)

    def _authorization(self) -> dict[str, str]:
        """Raises `SearchUnusable`."""
        if self._token is None:
            return {}
        try:
            return {"authorization": f"Bearer {read_token(self._token)}"}
        except (OSError, ValueError) as unusable:
            found = f"{self._token}: {unusable.strerror if isinstance(unusable, OSError) else unusable}"
            raise SearchUnusable(
                "reading the token of the search service", found, remedy="Correct the file of --search-token-file."
            ) from unusable


def required(service: SearchService | None) -> SearchService:
    """Raises `SearchMissing`."""
    if service is None:
        raise SearchMissing(
            "searching",
            "this API was started without a search service",
            remedy="Run `menura search serve`, and start the API with --search URL.",
        )
    return service


def _refusal(status: int, content: bytes) -> ControlPlaneError:
    """What the service said, to the caller: words about his own search, and names of columns."""
    try:
        document = json.loads(content)
        facts = document if isinstance(document, dict) else {}
    except (ValueError, RecursionError):
        facts = {}
    code, found, remedy = (_said(facts.get(name)) for name in ("code", "found", "remedy"))
    error = _REFUSALS.get(code)
    if error is None:
        logger.error("the search service refuses the API: status=%s code=%s", status, code)
        return _away(f"it answers with status {status}{f' and {code}' if code else ''}")
    # its own words name folders of its host
    if error is SearchIndexUnknown:
        return error("searching", "there is no index of it that was completed", remedy=error.fix)
    if error is RecentChangesUnknown:
        return error("reading recent changes", "the search service knows no lake with changes of it", remedy=error.fix)
    return error("searching", found, remedy=remedy)


def _said(text: object) -> str:
    return clean_text(printable(text[:MAX_SAID_CHARS])) if isinstance(text, str) else ""


def _away(found: str) -> SearchAway:
    return SearchAway(
        _DOING,
        found,
        data="Indexes are not touched by it.",
        remedy="Check that `menura search serve` runs, and --search, --search-token-file and --search-ca of the API.",
    )
