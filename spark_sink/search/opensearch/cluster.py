"""Requests to an OpenSearch cluster, straight to its address.

Comes in: method, path and body. Goes out: the answer's status and JSON, bounded in bytes and time before they are read.
The file with the login is read for each request, so it may change; neither it nor a row's value is in an error. Each
request may be sent a second time: what it asks for is so then, or its answer tells that it was so before.
"""

import base64
import json
import random
import re
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

from menura.errors import printable

from spark_sink.errors import SearchIndexFailed, SinkSettingInvalid

PREFIX = "menura"
ANSWER_SECONDS = 120.0
#: of an answer whose size is that of the question
MOST_ANSWER_BYTES = 64 << 20
MOST_LOGIN_BYTES = 16_384
#: in which a request is sent again and again
RETRY_SECONDS = 120.0
MOST_PAUSE_SECONDS = 10.0
#: the cluster is busy, or has no node for it now
BUSY = frozenset({429, 502, 503, 504})
_REASON_CHARS = 200

T = TypeVar("T")


class Unanswered(Exception):
    """Whether the request was carried out is not known; says why."""


class TimedOut(Unanswered):
    """There was no answer in time."""


class TooLarge(Exception):
    """The answer has more bytes than it may."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    document: object

    @property
    def error(self) -> str:
        """The error's type, e.g. `mapper_parsing_exception`: a reason may have a row's values."""
        return error_type(self.document)

    @property
    def reason(self) -> str:
        """Of a request without rows."""
        found = _at(self.document, "error", "root_cause", 0, "reason") or _at(self.document, "error", "reason")
        words = f": {printable(found)[:_REASON_CHARS]}" if isinstance(found, str) else ""
        return f"{self.status} {self.error}{words}{' (the login is refused)' if self.status == 401 else ''}"


class Cluster:
    """Where indexes are, whose names begin with a prefix. May be used by several threads."""

    def __init__(self, url: str, login: Path | None = None, ca: Path | None = None, prefix: str = PREFIX) -> None:
        """`login`: a file with USER:PASSWORD, or with `Bearer TOKEN`; `ca`: whose certificates are good; None: those
        that the system trusts. Raises `SinkSettingInvalid`.
        """
        self.address = _parse(url)
        if login is not None and self.address.scheme != "https":
            raise SinkSettingInvalid(
                "reading the arguments", "a login for OpenSearch over http, where all can read it", remedy="Give https"
            )
        if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,39}", prefix) is None:
            raise SinkSettingInvalid(
                "reading the arguments",
                f"a prefix of indexes {prefix[:60]!r}",
                remedy="Use 1 to 40 of a-z, 0-9, '-' and '_'",
            )
        self.prefix = prefix
        self._login, self._ca = login, ca
        self._idle = deque[HTTPConnection]()

    def __str__(self) -> str:
        return f"{self.address.scheme}://{self.address.netloc}"

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        seconds: float = ANSWER_SECONDS,
        most_bytes: int = MOST_ANSWER_BYTES,
    ) -> Answer:
        """`body`: of JSON, or bytes of lines of JSON. Raises `Unanswered`, `TooLarge`, `SearchIndexFailed`."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        headers = {"Content-Type": kind, **self._authorization()}
        deadline = time.monotonic() + seconds
        while True:
            is_kept, connection = self._connection(seconds)
            try:
                connection.request(method, path, sent, headers)
                response = connection.getresponse()
                text = _read(response, deadline, most_bytes)
                break
            except TimeoutError as late:
                connection.close()
                raise TimedOut("no answer in time") from late
            except (OSError, HTTPException) as failure:
                connection.close()
                if not (is_kept and isinstance(failure, ConnectionError)):  # the cluster may have closed a kept one
                    raise Unanswered(_reason_of(failure)) from failure
            except TooLarge:
                connection.close()
                raise
        if response.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return self._answer(response.status, text)

    def tried(self, method: str, path: str, body: object = None) -> Answer:
        """Again and again while the cluster is busy or does not answer. Raises `SearchIndexFailed`."""
        return persist(lambda: self.ask(method, path, body), lambda answer: answer.status in BUSY, self)

    def close(self) -> None:
        """Connections that no request uses."""
        while self._idle:
            self._idle.pop().close()

    def failed(self, doing: str, found: str) -> SearchIndexFailed:
        return SearchIndexFailed(
            doing,
            f"{self}: {found}",
            data="The index stays as it was committed last, or says that it is between two cuts",
            remedy="Check the cluster and what the login may do, then try again",
        )

    def _answer(self, status: int, text: bytes) -> Answer:
        try:
            return Answer(status, json.loads(text))
        except (ValueError, RecursionError) as unreadable:
            if status != 200:  # of a proxy before it, or 413
                return Answer(status, None)
            raise self.failed("asking OpenSearch", "it answered with what is no JSON") from unreadable

    def _connection(self, seconds: float) -> tuple[bool, HTTPConnection]:
        """Whether it was used before, and the connection."""
        while self._idle:
            try:
                kept = self._idle.pop()
            except IndexError:  # by another thread
                break
            if kept.sock is not None:
                kept.sock.settimeout(seconds)
                return True, kept
        host, port = self.address.hostname, self.address.port
        assert host is not None
        if self.address.scheme == "http":
            return False, HTTPConnection(host, port, timeout=seconds)
        try:
            trusted = ssl.create_default_context(cafile=self._ca)
        except OSError as unreadable:  # ssl.SSLError too
            raise SinkSettingInvalid(
                "reading certificates", f"{self._ca} can't be read: {_reason_of(unreadable)}", remedy="Give a PEM file"
            ) from unreadable
        return False, HTTPSConnection(host, port, timeout=seconds, context=trusted)

    def _authorization(self) -> dict[str, str]:
        if self._login is None:
            return {}
        try:
            with self._login.open("rb") as opened:
                held = opened.read(MOST_LOGIN_BYTES).strip()
        except OSError as unreadable:
            raise SinkSettingInvalid(
                "reading the login", f"{self._login} can't be read: {_reason_of(unreadable)}", remedy="Check the file"
            ) from unreadable
        if re.fullmatch(rb"Bearer [!-~]+", held):
            return {"Authorization": held.decode()}
        if re.fullmatch(rb"[^:\r\n]+:[^\r\n]+", held):
            return {"Authorization": f"Basic {base64.b64encode(held).decode()}"}
        raise SinkSettingInvalid(
            "reading the login",
            f"{self._login} has another form than is known",
            remedy="Put USER:PASSWORD into it, or Bearer TOKEN, in one line",
        )


def persist(send: Callable[[], Answer], is_busy: Callable[[Answer], bool], cluster: Cluster) -> Answer:
    """Send until the cluster is not busy any more. Raises `SearchIndexFailed` where that lasts `RETRY_SECONDS`."""
    deadline = time.monotonic() + RETRY_SECONDS
    pause_seconds = 0.1
    while True:
        try:
            answer = send()
            if not is_busy(answer):
                return answer
            found = f"it is busy: {answer.status} {answer.error}"
        except Unanswered as unanswered:
            found = str(unanswered)
        except TooLarge as large:
            raise cluster.failed("asking OpenSearch", "its answer is too large") from large
        if time.monotonic() > deadline:
            raise cluster.failed("asking OpenSearch", f"{found}, for {RETRY_SECONDS:.0f} s")
        pause(pause_seconds * random.uniform(0.5, 1))  # noqa: S311
        pause_seconds = min(2 * pause_seconds, MOST_PAUSE_SECONDS)


def pause(seconds: float) -> None:
    time.sleep(seconds)


def part(document: object, kind: type[T], *names: str | int) -> T:
    """What an answer has there. Raises `SearchIndexFailed` where it has something else."""
    found = _at(document, *names)
    if isinstance(found, kind) and (kind is bool or not isinstance(found, bool)):
        return found
    raise SearchIndexFailed(
        "reading OpenSearch's answer",
        f"it has no {kind.__name__} at {'.'.join(map(str, names))}",
        data="Nothing was changed by it",
        remedy="Check that the address is OpenSearch's, of version 2.4 or later",
    )


def error_type(document: object) -> str:
    found = _at(document, "error", "type")
    return found if isinstance(found, str) and re.fullmatch(r"[a-z_]{1,80}", found) else "an error without a type"


def _at(document: object, *names: str | int) -> object:
    found: Any = document
    for name in names:
        try:
            found = found[name]
        except (KeyError, IndexError, TypeError):
            return None
    return found


def _read(response: HTTPResponse, deadline: float, most_bytes: int) -> bytes:
    parts, size = list[bytes](), 0
    while found := response.read1(1 << 16):
        parts.append(found)
        size += len(found)
        if size > most_bytes:
            raise TooLarge
        if time.monotonic() > deadline:
            raise TimeoutError
    if response.length:
        raise ConnectionError("the answer ends too early")
    response.close()  # the connection stays
    return b"".join(parts)


def _reason_of(failure: Exception) -> str:
    if isinstance(failure, OSError) and failure.strerror:
        return printable(failure.strerror)[:_REASON_CHARS]
    return type(failure).__name__


def _parse(url: str) -> SplitResult:
    """Raises `SinkSettingInvalid`."""
    try:
        address = urlsplit(url)
        is_usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
        is_usable &= "@" not in address.netloc and address.path in ("", "/") and not (address.query or address.fragment)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise SinkSettingInvalid(  # without the address: it may have a password
            "reading the arguments",
            "an address of OpenSearch that can't be used",
            remedy="Give https://HOST:PORT alone, and the login in a file",
        )
    return address
