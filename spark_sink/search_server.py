"""`menura search serve`, from its arguments to a port that answers: TLS, token, metrics and health.

Comes in: where the indexes are, and files of this host. Goes out: `spark_sink.search.service` on a port. Nothing is
durable.
"""

import argparse
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from menura import log_format
from menura.addresses import is_loopback
from menura.http_server import server_of
from menura.metric_families import Families, Figure
from menura.metrics_port import serving
from menura.server_certificate import TlsFiles, follow, server_context
from menura.stores.address import absolute
from menura.token_file import read_token
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from spark_sink.errors import SinkSettingInvalid
from spark_sink.search.service import SearchService
from spark_sink.search_arguments import where_of

#: beyond what the API asks for at once
MOST_CONNECTIONS = 256
FIGURES = (
    Figure(
        "menura_search_questions_total",
        "Questions to the search service, by how they ended: answered, refused, busy (too many ran), late (took too"
        " long), failed.",
        ("state",),
    ),
    Figure("menura_search_running", "Questions that run now; they are as many as --most-at-once at most."),
    Figure("menura_search_late", "Of these, searches that took too long, were refused, and go on until their end."),
)
_DOING = "opening the port for searches"


class SearchCollector(Collector):
    def __init__(self, service: SearchService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        found = Families(FIGURES)
        for state in ("answered", "refused", "busy", "late", "failed"):
            found.add("menura_search_questions_total", self._service.ended[state], state)
        found.add("menura_search_running", self._service.running)
        found.add("menura_search_late", self._service.late)
        yield from found


def serve(arguments: argparse.Namespace) -> int:
    """Until SIGTERM or Ctrl-C. Raises `SinkSettingInvalid`."""
    log_format.to_stderr()
    log_format.use(arguments.log_format)
    host, port = _address(arguments.listen)
    tls = _tls(arguments)
    if not is_loopback(host) and (tls is None or arguments.token_file is None):
        raise SinkSettingInvalid(
            _DOING,
            f"{arguments.listen} can be reached from other machines, which need a token and TLS for it",
            remedy="Give --token-file, --tls-certificate and --tls-key, or listen on 127.0.0.1",
        )
    _check_token(arguments.token_file)
    with ExitStack() as ends:
        service = SearchService(
            ends.enter_context(where_of(arguments)),
            absolute(arguments.lake) if arguments.lake else None,
            arguments.token_file,
            arguments.most_at_once,
            arguments.timeout_seconds,
        )
        context = None if tls is None else server_context(tls, SinkSettingInvalid)
        if tls is not None and context is not None:
            stop = threading.Event()
            ends.callback(stop.set)
            follow(tls, context, stop)
        if arguments.metrics:
            collectors = [SearchCollector(service)]
            needed = arguments.metrics_token_file
            at = ends.enter_context(serving(collectors, arguments.metrics, SinkSettingInvalid, service.health, needed))
            print(f"metrics and health on http://{at}", flush=True)
        listener = ends.enter_context(_listener(host, port))
        shown = f"[{host}]" if ":" in host else host
        print(f"searches on http{'s' if tls else ''}://{shown}:{listener.getsockname()[1]}", flush=True)
        server_of(service.app, tls=context, most_connections=MOST_CONNECTIONS).run(sockets=[listener])
    return 0


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise SinkSettingInvalid(_DOING, f"{listen!r} is not an address", remedy="Set --listen to HOST:PORT")
    return host, int(port)


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=256)
    except OSError as taken:
        raise SinkSettingInvalid(
            _DOING,
            f"{host}:{port} can't be listened on ({taken.strerror})",
            remedy="Stop what listens there, or set --listen to another port",
        ) from taken


def _tls(arguments: argparse.Namespace) -> TlsFiles | None:
    certificate, key = arguments.tls_certificate, arguments.tls_key
    if (certificate is None) != (key is None):
        raise SinkSettingInvalid(
            "reading the arguments",
            "a certificate and its key come together, and one is missing",
            remedy="Give --tls-certificate and --tls-key",
        )
    return None if certificate is None else TlsFiles(certificate, key)


def _check_token(file: Path | None) -> None:
    try:
        if file is not None:
            read_token(file)
    except (OSError, ValueError) as unusable:
        found = unusable.strerror if isinstance(unusable, OSError) else unusable
        raise SinkSettingInvalid(
            "reading the token", f"{file}: {found}", remedy="Name a file with a token alone: --token-file"
        ) from unusable
