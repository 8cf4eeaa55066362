"""A process's figures for Prometheus, at HOST:PORT/metrics.

Only who wants metrics imports this module: it needs the package prometheus-client, which an agent does not have.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from menura.errors import MenuraError


@contextmanager
def serving(collector: Collector, listen: str, refused: type[MenuraError]) -> Iterator[str]:
    """Serve while the context lasts; gives the address with the port that it got. Raises `refused`.

    The collector is asked in a thread of its own, whenever somebody reads.
    """
    host, _, port = listen.rpartition(":")
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except (OSError, ValueError, OverflowError) as unusable:
        raise refused(
            "opening the port for metrics",
            f"{listen!r} can't be listened on ({type(unusable).__name__})",
            remedy="Give a free HOST:PORT",
        ) from unusable
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
