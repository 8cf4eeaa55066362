"""A schema registry, by the REST interface of Confluent's, which Apicurio, Karapace and Redpanda have too.

Comes in: a subject and an Avro schema. Goes out: the schema's id, which the registry keeps and gives again for the same
schema. What it has answered is asked once. An id that nothing uses yet, e.g. of a step that fails, does no harm.

A registry that gives no answer is asked again, with pauses that double, for `ANSWER_SECONDS` in all, at each of its
addresses in turn. An answer may be of any size and form: at most `MAX_ANSWER_BYTES` of it are read within
`REQUEST_SECONDS`, and it counts if it has an id. The file with the user's name and password is read for each request,
so it may change.
"""

import base64
import hashlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from itertools import cycle
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

from menura.errors import printable

from spark_sink.errors import ExportOutputFailed, ExportSchemaRefused, SinkSettingInvalid
from spark_sink.work import TableId

ANSWER_SECONDS = 60.0
REQUEST_SECONDS = 10.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.25, 8.0
MAX_ANSWER_BYTES = 1 << 20
MAX_CREDENTIALS_BYTES = 4_096
#: that are kept
MOST_IDS = 100_000
MOST_REASON_CHARS = 1_000
_DOING = "registering a schema"
_DATA = "Nothing of the step was exported, and the position stays where it was"
_JSON = "application/vnd.schemaregistry.v1+json"
#: a schema does not go with those before it, or is none
_REFUSALS = (409, 422)
_FOR_NOW = (408, 429)


class _NoAnswer(Exception):
    """For now."""


class Registry:
    def __init__(self, urls: str, credentials: Path | None = None, ca: Path | None = None) -> None:
        """`urls`: with commas between; `credentials`: a file with USER:PASSWORD; `ca`: whose certificates are good,
        instead of those that the system trusts. Raises `SinkSettingInvalid`."""
        self._addresses = [_parsed(url, has_secret=credentials is not None) for url in urls.split(",")]
        self._turn = cycle(self._addresses)
        self._credentials = credentials
        self._ca = ca
        #: of a subject and a digest of the schema
        self._ids: dict[tuple[str, bytes], int] = {}

    def id_of(self, table: TableId, subject: str, schema: str) -> int:
        """Raises `ExportSchemaRefused`, `ExportOutputFailed`, `SinkSettingInvalid`."""
        key = (subject, hashlib.sha256(schema.encode()).digest())
        if key not in self._ids:
            if len(self._ids) >= MOST_IDS:
                self._ids.pop(next(iter(self._ids)))
            self._ids[key] = self._registered(table, subject, schema)
        return self._ids[key]

    def _registered(self, table: TableId, subject: str, schema: str) -> int:
        body = json.dumps({"schema": schema}).encode()
        give_up_at, pause = time.monotonic() + ANSWER_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            address = next(self._turn)
            try:
                status, answer = self._post(address, f"/subjects/{quote(subject, safe='')}/versions", body)
                return _id(answer) if status == 200 else _refused(address, table, subject, status, answer)
            except _NoAnswer as none:
                if time.monotonic() + pause >= give_up_at:
                    raise ExportOutputFailed(
                        _DOING,
                        f"{_shown(address)}: {none}",
                        data=_DATA,
                        remedy="Check the registry, then start it again",
                    ) from none
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _post(self, address: SplitResult, path: str, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": _JSON, "Accept": f"{_JSON}, application/json", **self._authorization()}
        try:
            with closing(self._connection(address)) as connection:
                connection.connect()
                with _cut_off(connection.sock):
                    connection.request("POST", address.path.rstrip("/") + path, body, headers)
                    response = connection.getresponse()
                    return response.status, response.read(MAX_ANSWER_BYTES)
        except ssl.SSLCertVerificationError as unknown:
            raise SinkSettingInvalid(
                _DOING,
                f"{_shown(address)}: its certificate is not good: {unknown.verify_message}",
                data=_DATA,
                remedy="Give --registry-ca, the file with its authority, or the name that its certificate has",
            ) from unknown
        except (OSError, HTTPException) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else None
            raise _NoAnswer(reason or type(failure).__name__) from failure

    def _connection(self, address: SplitResult) -> HTTPConnection:
        """Straight to the address."""
        assert address.hostname is not None
        if address.scheme == "http":
            return HTTPConnection(address.hostname, address.port, timeout=REQUEST_SECONDS)
        try:
            trusted = ssl.create_default_context(cafile=self._ca)
        except OSError as unreadable:
            raise _invalid(f"--registry-ca {self._ca}", "Name a file of certificates in PEM") from unreadable
        return HTTPSConnection(address.hostname, address.port, timeout=REQUEST_SECONDS, context=trusted)

    def _authorization(self) -> dict[str, str]:
        if self._credentials is None:
            return {}
        try:
            with self._credentials.open("rb") as file:
                found = file.read(MAX_CREDENTIALS_BYTES).strip()
        except OSError as unreadable:
            raise _invalid(f"--registry-credentials {self._credentials}", "Let it be read") from unreadable
        if b":" not in found or b"\n" in found:
            raise _invalid(f"--registry-credentials {self._credentials}", "It has one line, USER:PASSWORD")
        return {"Authorization": f"Basic {base64.b64encode(found).decode()}"}


@contextmanager
def _cut_off(connected: socket.socket) -> Iterator[None]:
    """What comes byte by byte without end."""

    def end() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(REQUEST_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _id(answer: bytes) -> int:
    """Raises `_NoAnswer`: something else than a registry may have answered."""
    try:
        found = json.loads(answer)["id"]
    except (ValueError, RecursionError, TypeError, LookupError):
        found = None
    if type(found) is not int or not 0 <= found < 1 << 31:
        raise _NoAnswer(f"its answer of {len(answer)} bytes has no schema's id")
    return found


def _refused(address: SplitResult, table: TableId, subject: str, status: int, answer: bytes) -> int:
    if status >= 500 or status in _FOR_NOW:
        raise _NoAnswer(f"it answers {status}")
    if status in _REFUSALS:
        raise ExportSchemaRefused(
            _DOING,
            f"{_shown(address)} refuses the schema for {subject}: {_reason(answer)}",
            data="Nothing of this table's changes since the last step was exported",
            remedy=f"If its consumers can read what comes, set the compatibility of {subject} in the registry to NONE"
            " until the schema is registered; else export this table into topics of another cluster, or with --format"
            " json",
            **table.names(),
        )
    if status in (401, 403):
        remedy = f"Check --registry-credentials, and that this user may write the subject {subject}"
        raise SinkSettingInvalid(_DOING, f"{_shown(address)} answers {status}", data=_DATA, remedy=remedy)
    remedy = "Check that --registry is the address of a registry's interface, with its path"
    raise SinkSettingInvalid(_DOING, f"{_shown(address)} answers {status}", data=_DATA, remedy=remedy)


def _reason(answer: bytes) -> str:
    try:
        found = str(json.loads(answer)["message"])
    except (ValueError, RecursionError, TypeError, LookupError):
        found = "it does not say why"
    return printable(found[:MOST_REASON_CHARS]).strip().rstrip(".")


def _invalid(found: str, remedy: str) -> SinkSettingInvalid:
    return SinkSettingInvalid("reading the arguments", found, data=_DATA, remedy=remedy)


def _shown(address: SplitResult) -> str:
    return address.geturl()


def _parsed(url: str, *, has_secret: bool) -> SplitResult:
    try:
        address = urlsplit(url.strip())
        usable = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:
        usable = False
    if not usable or address.query or address.fragment:
        raise _invalid("--registry is not the address of a registry", "Give http://HOST:PORT or https://HOST:PORT")
    if address.username is not None or address.password is not None:
        raise _invalid("--registry holds a user's name", "Give --registry-credentials, a file with USER:PASSWORD")
    if has_secret and address.scheme == "http" and not _is_local(address.hostname or ""):
        raise _invalid(f"{url.strip()} would show the password to the network", "Give https://HOST:PORT")
    return address


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
