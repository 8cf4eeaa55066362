"""A process's port for those who watch it, at HOST:PORT: /metrics for Prometheus, /livez and /readyz.

Comes in: collectors, which are asked in a thread of their own whenever somebody reads, and the process's health. Goes
out: text; /livez and /readyz answer 200 and "ok", or 503 and a line for each reason. Nothing is durable. Only who wants
metrics imports this module: it needs the package prometheus-client, which an agent does not have.
"""

import logging
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.registry import Collector

from menura.errors import MenuraError
from menura.health import Health

logger = logging.getLogger(__name__)

#: a connection that says nothing for so long is closed
REQUEST_SECONDS = 10
_TEXT = "text/plain; charset=utf-8"


@contextmanager
def serving(
    collectors: Iterable[Collector], listen: str, refused: type[MenuraError], health: Health | None = None
) -> Iterator[str]:
    """Serve while the context lasts; gives the address with the port that it got. Raises `refused`.

    Beside the collectors' figures stand those that Prometheus's client has of each process: memory, CPU, open files.
    """
    host, _, port = listen.rpartition(":")
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    ProcessCollector(registry=registry)
    known = health or Health()

    class Asked(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            status, kind, body = _answer(self.path.partition("?")[0], registry, known)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Said to nobody: a probe comes each few seconds."""

    try:
        server = _server(host.strip("[]"), int(port), Asked)
    except (OSError, ValueError, OverflowError) as unusable:
        raise refused(
            "opening the port for metrics",
            f"{listen!r} can't be listened on ({type(unusable).__name__})",
            remedy="Give a free HOST:PORT",
        ) from unusable
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
