"""The port on which agents enrol: HTTPS that asks for no client certificate, and answers two requests.

::

    GET  /v1/ca      the CA's certificate in PEM, which counts where its digest is known from a token
    POST /v1/enrol   {token, secret, agent, request, sources} -> {tenant, agent, certificate, unassigned}

Comes in: connections of which nothing is known. Goes out: certificates, by `Authority`. Whoever can reach the host may
connect, so everything has a bound: places of the process and of an address, seconds for all of a connection, bytes, and
a rate of attempts. A refusal says {code, doing, found, data, remedy}, as MenuraError does, and never what was sent.
"""

import asyncio
import base64
import binascii
import json
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from menura.errors import MenuraError, printable
from menura.identity import CA_PATH, ENROL_PATH, MAX_ENROLMENT_BYTES
from menura.naming import is_identity

from gateway.errors import EnrolmentBusy, EnrolmentRefused, EnrolmentRequestInvalid
from gateway.identity import Authority, Enrolment
from gateway.log_lines import LogLines
from gateway.rate import Rate, Rates, network_of
from gateway.shares import FairThreads

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 8 << 10
#: from the end of the handshake, which has its own bound, to that of the connection
CONNECTION_SECONDS = 20.0
HANDSHAKE_SECONDS = 10.0
ACCEPT_AGAIN_SECONDS = 5.0
MAX_CONNECTIONS = 64
MAX_CONNECTIONS_OF_ADDRESS = 8
#: attempts to enrol
PER_SECOND, BURST = 2, 50
PER_SECOND_OF_ADDRESS, BURST_OF_ADDRESS = 0.2, 10
#: those that tried last
MAX_ADDRESSES = 1_000
MAX_SOURCES = 1_000


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: bytes

    def __repr__(self) -> str:
        return f"_Request({self.method} {self.path})"


class EnrolmentPort:
    """Serves on a listening socket until cancelled."""

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext, authority: Authority, threads: FairThreads
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._authority = authority
        #: for the database, in turns of networks
        self._threads = threads
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._connections: Counter[str] = Counter()
        self._rate = Rate(PER_SECOND, BURST)
        self._rates = Rates[str](PER_SECOND_OF_ADDRESS, BURST_OF_ADDRESS, MAX_ADDRESSES)
        self._log_lines = LogLines()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._places.acquire()
                try:
                    connection, address = await loop.sock_accept(self._listener)
                except OSError as exhausted:  # e.g. no file is left for it: those that wait are served later
                    logger.warning("no connection to enrol is taken for now: %s", exhausted)
                    self._places.release()
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                task = loop.create_task(self._serve(connection, str(address[0])))
                self._tasks.add(task)
                task.add_done_callback(self._over)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._listener.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._places.release()

    async def _serve(self, connection: socket.socket, address: str) -> None:
        network = network_of(address)
        self._connections[network] += 1
        try:
            if self._connections[network] > MAX_CONNECTIONS_OF_ADDRESS:
                connection.close()
                return
            async with asyncio.timeout(CONNECTION_SECONDS):
                await self._exchange(connection, address)
        except (OSError, TimeoutError, EOFError) as gone:  # whoever is there does not speak TLS, or has left
            logger.debug("no enrolment: address=%s: %s", address, gone)
        except Exception:
            logger.exception("enrolment ends by a fault: address=%s", address)
        finally:
            self._connections[network] -= 1
            if not self._connections[network]:
                del self._connections[network]

    async def _exchange(self, connection: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_HEAD_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=self._tls,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=HANDSHAKE_SECONDS,
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            try:
                status, kind, body = await self._answer(await _read(reader), address)
            except MenuraError as refused:
                self._log_lines.write(
                    logger, logging.WARNING, address, "enrolment refused: address=%s: %s", address, refused
                )
                status, kind, body = _status(refused), "application/json", json.dumps(_told(refused)).encode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            writer.close()
            await writer.wait_closed()
        finally:
            transport.abort()

    async def _answer(self, request: _Request, address: str) -> tuple[str, str, bytes]:
        if (request.method, request.path) == ("GET", CA_PATH):
            return "200 OK", "application/x-pem-file", self._authority.ca_pem
        if (request.method, request.path) != ("POST", ENROL_PATH):
            raise _invalid("there is no such path here")
        self._take_turn(address)
        enrolment = _enrolment(request.body)
        owner = network_of(address), address
        enrolled = await (await self._threads.start(owner, partial(self._authority.enrol, enrolment, address)))
        logger.info("agent enrolled: agent=%s/%s address=%s", enrolled.tenant, enrolled.agent, address)
        answer = {
            "tenant": enrolled.tenant,
            "agent": enrolled.agent,
            "certificate": enrolled.certificate_pem.decode(),
            "unassigned": enrolled.unassigned,
        }
        return "200 OK", "application/json", json.dumps(answer).encode()

    def _take_turn(self, address: str) -> None:
        if not (self._rates.of_name(network_of(address)).try_take() and self._rate.try_take()):
            raise EnrolmentBusy(
                "enrolling an agent",
                "there were too many attempts",
                data="Nothing was certified, and the token is as it was",
                remedy="Try again in a minute",
            )


def listening(listen: str) -> socket.socket:
    """Raises OSError."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, int(port)), family=family, backlog=MAX_CONNECTIONS)
    listener.setblocking(False)
    return listener


async def _read(reader: asyncio.StreamReader) -> _Request:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
        line, *fields = head.rstrip("\r\n").split("\r\n")
        method, path, version = line.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    except (asyncio.LimitOverrunError, ValueError) as unreadable:
        raise _invalid("it is no HTTP") from unreadable
    length = headers.get("content-length", "0")
    if version != "HTTP/1.1" or "transfer-encoding" in headers or not (length.isascii() and length.isdigit()):
        raise _invalid("it is no HTTP/1.1 with a Content-Length")
    if int(length[:9]) > MAX_ENROLMENT_BYTES:
        raise _invalid(f"more than {MAX_ENROLMENT_BYTES} bytes")
    return _Request(method, path, await reader.readexactly(int(length[:9])))


def _enrolment(body: bytes) -> Enrolment:
    try:
        said: Any = json.loads(body)
        if not isinstance(said, Mapping):
            raise _invalid("it is no JSON object")
        token, agent, sources = said["token"], said["agent"], said["sources"]
        secret, request = (base64.b64decode(said[name], validate=True) for name in ("secret", "request"))
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as unreadable:
        raise _invalid(f"it lacks what an enrolment says ({type(unreadable).__name__})") from None
    named = [agent, *sources] if isinstance(sources, list) else []
    are_names = all(isinstance(name, str) and is_identity(name) for name in named)
    if not named or len(sources) > MAX_SOURCES or not are_names:
        raise _invalid("its agent or a source is no name: 1 to 63 of a-z, 0-9, '-' and '_'")
    if not isinstance(token, str) or len(token) > 64 or not token.isalnum():
        raise _invalid("its token is none")
    return Enrolment(token, secret, agent, request, tuple(sources))


def _told(refused: MenuraError) -> dict[str, str]:
    fields = {name: printable(getattr(refused, name)) for name in ("doing", "found", "data", "remedy")}
    return {"code": refused.code, **fields}


def _status(refused: MenuraError) -> str:
    if isinstance(refused, EnrolmentBusy):
        return "429 Too Many Requests"
    if isinstance(refused, EnrolmentRequestInvalid):
        return "400 Bad Request"
    return "403 Forbidden" if isinstance(refused, EnrolmentRefused) else "503 Service Unavailable"


def _invalid(found: str) -> EnrolmentRequestInvalid:
    return EnrolmentRequestInvalid("reading a request to enrol", found, data="Nothing was certified")
