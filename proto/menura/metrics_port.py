"""A process's port for those who watch it, at HOST:PORT: /metrics for Prometheus, /livez and /readyz.

Comes in: collectors, which are asked in a thread of their own whenever somebody reads, and the process's health. Goes
out: text; /livez and /readyz answer 200 and "ok", or 503 and a line for each reason. Nothing is durable. Only who wants
metrics imports this module: it needs the package prometheus-client, which an agent does not have.

Who may read: where other machines reach the port, /metrics needs a token, and without one nothing listens. On loopback
it needs one where one is given. /livez and /readyz need none: a prober has no secret, and they name no source.
"""

import logging
import re
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from menura.addresses import is_loopback
from menura.errors import MenuraError
from menura.health import Health
from menura.token_file import KeptToken

logger = logging.getLogger(__name__)

#: a connection that says nothing for so long is closed
REQUEST_SECONDS = 10
_TEXT = "text/plain; charset=utf-8"
#: `int` takes more: spaces, signs, underscores, digits of other scripts
_PORT = re.compile(r"[0-9]{1,5}")


@contextmanager
def serving(
    collectors: Iterable[Collector],
    listen: str,
    refused: type[MenuraError],
    health: Health | None = None,
    token_file: Path | None = None,
) -> Iterator[str]:
    """Serve while the context lasts; gives the address with the port that it got. Raises `refused`.

    `token_file`: whose token /metrics needs; it is read again when it changes. While it can't be, nobody is answered.

    Beside the collectors' figures stand those that Prometheus's client has of each process: memory, CPU, open files.
    """
    host, _, port = listen.rpartition(":")
    if not _PORT.fullmatch(port):
        raise _unusable(listen, refused, "its port is no number of 1 to 5 digits")
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    known = health or Health()
    guard = None if token_file is None else _Guard(_kept(token_file, refused))
    if guard is None and not is_loopback(host):
        raise _open(listen, refused)

    class Asked(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            shown = self.headers.get("Authorization", "")
            refusal = guard.refusal(shown) if guard is not None and path == "/metrics" else None
            status, kind, body = refusal or _answer(path, registry, known)
            self.send_response(status)
            if status is HTTPStatus.UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Said to nobody: a probe comes each few seconds."""

    try:
        server = _server(host.strip("[]"), int(port), Asked)
    except (OSError, ValueError, OverflowError) as unusable:
        raise _unusable(listen, refused, type(unusable).__name__) from unusable
    if guard is None and not is_loopback(str(server.server_address[0])):
        server.server_close()  # a resolver may know another address of this name
        raise _open(listen, refused)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _kept(file: Path, refused: type[MenuraError]) -> KeptToken:
    try:
        return KeptToken(file)
    except (OSError, ValueError) as unusable:
        raise refused(
            "reading the token for metrics",
            f"{file}: {_why(unusable)}",
            data="Nothing was started",
            remedy=f"Put a token alone there, which only its owner may read: openssl rand -hex 24 >{file}; chmod 600"
            f" {file}",
        ) from unusable


def _why(unusable: OSError | ValueError) -> str:
    return (isinstance(unusable, OSError) and unusable.strerror) or str(unusable)


def _open(listen: str, refused: type[MenuraError]) -> MenuraError:
    return refused(
        "opening the port for metrics",
        f"{listen!r} can be reached from other machines, which need a token for /metrics",
        data="Nothing was started",
        remedy="Give --metrics-token-file FILE, a file with a token that only its owner may read, or listen on"
        " 127.0.0.1",
    )


def _unusable(listen: str, refused: type[MenuraError], why: str) -> MenuraError:
    return refused(
        "opening the port for metrics", f"{listen!r} can't be listened on ({why})", remedy="Give a free HOST:PORT"
    )


class _Guard:
    """Of /metrics."""

    def __init__(self, token: KeptToken) -> None:
        self._token = token
        #: why nobody is answered, as it was logged last
        self._told = ""

    def refusal(self, authorization: str) -> tuple[HTTPStatus, str, bytes] | None:
        try:
            is_right = self._token.matches(authorization)
        except (OSError, ValueError) as unusable:
            self._tell(_why(unusable))
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"the token of this port can't be read; its log says why\n"
        self._told = ""
        if is_right:
            return None
        return HTTPStatus.UNAUTHORIZED, _TEXT, b"/metrics needs the token of --metrics-token-file\n"

    def _tell(self, why: str) -> None:
        """Once: whoever scrapes comes each few seconds."""
        if why != self._told:
            logger.error(
                "metrics are not shown, since the file of their token can't be used: %s: %s; put the token back, which"
                " is read again at the next request",
                self._token.file,
                why,
            )
        self._told = why


def _server(host: str, port: int, asked: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """An OSError is of who asked and has gone away."""
            if not isinstance(sys.exception(), OSError):
                logger.exception("a request to the port for metrics was not answered")

    return Server((host, port), asked)


def _answer(path: str, registry: CollectorRegistry, health: Health) -> tuple[HTTPStatus, str, bytes]:
    if path == "/metrics":
        return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest(registry)
    asked = {"/livez": health.lifeless, "/readyz": health.unready}.get(path)
    if asked is None:
        return HTTPStatus.NOT_FOUND, _TEXT, b"/metrics, /livez and /readyz are here\n"
    reasons = asked()
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return status, _TEXT, "".join(f"{reason}\n" for reason in reasons or ["ok"]).encode()
