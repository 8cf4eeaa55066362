"""The MySQLClient plugin: answers what exists on the server, and reads its dumps.

Comes in: CartographyRequest, answered by a thread of its own; what dumps are to be read (`agent.snapshot.scheduler`)
and how much may be sent. Goes out: the cartography in parts, or an Error; again soon after tables came or went, so that
commands can name them; what dumps read (`agent.snapshot.worker`). Nothing is durable: the gateway asks again.
"""

import logging
import threading
import time
from contextlib import closing
from random import Random

from menura.errors import MenuraError
from menura.protocol import PROTOCOL_VERSION
from menura.v1 import config_pb2, stream_pb2

from agent.errors import defect
from agent.positions import PositionKind
from agent.runtime.backoff import Backoff
from agent.runtime.credit import Credit
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.state import FAILED
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.scheduler import SnapshotScheduler
from agent.snapshot.throttles import Throttles
from agent.snapshot.worker import Workers
from agent.source_kind import Context
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.server.cartography import NamesDigest, names_digest, read_cartography
from agent.sources.mysql.server.checks import check_client
from agent.sources.mysql.server.connection import connect, server_errors
from agent.sources.mysql.snapshot.access import Access
from agent.sources.mysql.snapshot.reading import Reader

log = logging.getLogger("menura.client")

RETRY_FIRST_SECONDS = 2.0
RETRY_MOST_SECONDS = 60.0
STOP_SECONDS = 5.0
#: how often it is looked whether tables came or went, and how many times as long as the look takes it is left alone
LOOK_SECONDS = 15.0
_RESTS_PER_LOOK = 100
#: of a source, as its state names it
PART = "client"


class ClientPlugin:
    """One source's client connection."""

    request_type = stream_pb2.MySQLClient

    def __init__(self, context: Context, config: MysqlConfig, coordinator: SnapshotCoordinator) -> None:
        self.source = config.name
        self._config = config
        self._state = context.state
        self._credit = Credit()
        self._coordinator = coordinator
        self._scheduler = SnapshotScheduler(self.source, coordinator, context.state)
        self._workers = Workers(self._config, coordinator, self._scheduler, self._credit, self._open_reader)
        self._backoff = Backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS, Random())  # noqa: S311
        self._changed = threading.Condition()
        self._wanted: StreamWriter | None = None
        self._writer: StreamWriter | None = None
        self._stopping = False
        #: of the last cartography that was sent on the open stream
        self._names: NamesDigest | None = None
        self._look_seconds = LOOK_SECONDS
        #: of the check at the start; later ones are logged
        self.findings: tuple[MenuraError, ...] = ()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name=f"{self.source}/client", daemon=True)

    def _open_reader(self, position_kind: PositionKind, throttles: Throttles) -> Reader:
        access = Access.open(self._config, position_kind)
        return Reader(access, self._coordinator, self._scheduler, self._credit, throttles, self._state)

    def preflight(self) -> str:
        facts, findings = check_client(self._config)
        self._state.seen(facts.flavor, facts.version)
        self.findings = tuple(findings)
        self._state.findings_are(findings)
        self._told = {str(finding) for finding in findings}
        return f"client {self._config.client.address} {facts.flavor} {facts.version}"

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION)

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        self._credit.reset()
        self._writer = writer
        self._scheduler.opened(writer)
        self._workers.start()
        if not self._thread.is_alive():
            self._thread.start()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        match request.WhichOneof("payload"):
            case "cartography_request":
                self._want(self._writer)
            case "credit":
                self._credit.grant(request.credit.bytes)
            case "desired_dumps":
                self._scheduler.desired(request.desired_dumps)
            case "chunk_landed":
                self._coordinator.landed(request.chunk_landed.dump, request.chunk_landed.chunk)
            case "chunks_committed":
                self._scheduler.committed(request.chunks_committed)

    def closed(self) -> None:
        self._writer = None
        self._want(None)
        self._scheduler.closed()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
        self._want(None)
        self._scheduler.stop()
        self._workers.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _want(self, writer: StreamWriter | None) -> None:
        with self._changed:
            self._wanted = writer
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                is_asked = self._changed.wait_for(
                    lambda: self._stopping or self._wanted is not None, self._look_seconds
                )
                if self._stopping:
                    return
                writer, self._wanted = self._wanted if is_asked else self._writer, None
            if writer is None:
                continue
            try:
                self._send_cartography(writer, is_asked=is_asked)
            except StreamClosed:
                continue
            except MenuraError as error:
                self._retry_later(writer, error)
            except Exception as broken:
                log.exception("defect", extra={"fields": {"source": self.source}})
                self._retry_later(writer, defect("reading what tables exist", broken, self.source))

    def _send_cartography(self, writer: StreamWriter, *, is_asked: bool) -> None:
        """Where nobody asked, only what is new."""
        server = self._config.client
        with (
            closing(connect(server, self.source)) as connection,
            server_errors("reading what tables exist", server, self.source, "SELECT"),
        ):
            began = time.monotonic()
            names = names_digest(connection)
            self._look_seconds = max(LOOK_SECONDS, (time.monotonic() - began) * _RESTS_PER_LOOK)
            if names == self._names and not is_asked:
                return
            facts, findings = check_client(self._config)
            self._tell_findings(findings)
            self._state.seen(facts.flavor, facts.version)
            for part in read_cartography(connection, self._config, facts):
                writer.send(stream_pb2.StreamResponse(cartography=part))
            self._names = names
        self._backoff.succeeded()
        self._state.recovered(PART)

    def _tell_findings(self, findings: list[MenuraError]) -> None:
        """What does not fit the filter, once."""
        for finding in findings:
            if str(finding) not in self._told:
                fields = {"source": self.source, "error": str(finding)}
                log.warning("the filter does not fit the server's tables", extra={"fields": fields})
        self._told = {str(finding) for finding in findings}
        self._state.findings_are(findings)

    def _retry_later(self, writer: StreamWriter, error: MenuraError) -> None:
        """Report once, and answer the same question again after a while."""
        if self._state.failed(PART, error):
            log.error(FAILED[error.terminal], extra={"fields": {"source": self.source, "error": str(error)}})
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._wanted is not None, self._backoff.next_seconds())
            if self._writer is writer and self._wanted is None:
                self._wanted = writer
