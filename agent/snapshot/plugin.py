"""The plugin of the role CATALOG: tells what tables a source has, and reads its dumps.

Comes in: CartographyRequest, answered by a thread of its own; what dumps are to be read (`scheduler`) and how much may
be sent. Goes out: the cartography in parts, or an Error; again soon after tables came or went, or the log has said that
one was altered, so that commands can name them and their columns; what dumps read (`worker`). Nothing is durable: the
gateway asks again.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from menura.errors import MenuraError
from menura.protocol import PROTOCOL_VERSION
from menura.v1 import catalog_pb2, config_pb2, stream_pb2

from agent.errors import GatewayError, defect
from agent.runtime.backoff import Backoff
from agent.runtime.commands import Bucket
from agent.runtime.credit import Credit
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.state import FAILED, SourceState
from agent.settings import SourceConfig
from agent.snapshot.cartography import SendTables, Sent, Telling, bounded
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.reader import OpenReader
from agent.snapshot.scheduler import SnapshotScheduler
from agent.snapshot.worker import Workers
from agent.veto.policy import Request

log = logging.getLogger("menura.client")

RETRY_FIRST_SECONDS = 2.0
RETRY_MOST_SECONDS = 60.0
STOP_SECONDS = 5.0
#: how often it is looked whether tables came or went, and how many times as long as the look takes it is left alone
LOOK_SECONDS = 15.0
_RESTS_PER_LOOK = 100
#: how many times as long as reading all tables takes, none is read for another statement of the log
_RESTS_PER_READING = 20
#: how often the gateway gets all tables anew when it asks
ANSWERS_PER_SECOND, BURST_ANSWERS = 1 / LOOK_SECONDS, 10
#: of a source, as its state names them: what asks its server for tables, and what the gateway says of the stream
PART, REFUSED = "client", "client stream"


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the source's tables found."""

    #: of their names; another one: tables came, went or were renamed
    digest: object
    #: that asking for the digest took
    seconds: float
    #: what does not fit the filter; None: no more than the digest was asked for, since it is the one that was known
    findings: Collection[MenuraError] | None


class Catalog(Protocol):
    """What a source does for it."""

    def preflight(self) -> tuple[str, Collection[MenuraError]]:
        """Check the server: what was found, in one line, and what stops no source. Raises an `AgentError`."""

    def look(self, known: object, send: SendTables) -> Look:
        """Send the tables, unless the digest is `known`. Raises a `SourceError`."""


class CatalogPlugin:
    """Of one source."""

    def __init__(
        self,
        request_type: stream_pb2.RequestType,
        config: SourceConfig,
        state: SourceState,
        coordinator: SnapshotCoordinator,
        catalog: Catalog,
        open_reader: OpenReader | None,
    ) -> None:
        """`open_reader` None: the source has no snapshots."""
        assert config.has_snapshots == (open_reader is not None)
        self.request_type = request_type
        self.source = config.name
        self._state = state
        self._veto = config.filter.veto
        self._column_veto = config.filter.column_veto
        self._catalog = catalog
        self._credit = Credit()
        self._coordinator = coordinator
        self._scheduler = SnapshotScheduler(self.source, coordinator, state)
        self._workers = Workers(config, coordinator, self._scheduler, self._credit, open_reader)
        self._backoff = Backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS, Random())  # noqa: S311
        self._changed = threading.Condition()
        self._wanted: StreamWriter | None = None
        self._writer: StreamWriter | None = None
        self._stopping = False
        #: of the names of tables that were sent last on the open stream
        self._names: object = None
        #: the last cartography that was sent, also on a former stream
        self._sent = Sent()
        #: digest of the one that the gateway has, as it said or was sent since
        self._known = b""
        self._answers = Bucket(ANSWERS_PER_SECOND, BURST_ANSWERS)
        self._look_seconds = LOOK_SECONDS
        #: the log has said since the last reading that a table was altered; and when it may be read for that
        self._is_altered = threading.Event()
        self._read_again_at = 0.0
        coordinator.on_definition = self._is_altered.set
        #: of the check at the start; later ones are logged
        self.findings: tuple[MenuraError, ...] = ()
        self._told: set[str] = set()
        self._opened_at = time.monotonic()
        #: how long the stream had been open that the gateway refused last; None: it has taken one since
        self._refused_after_seconds: float | None = None
        state.former_policies.on_due = lambda: self._want(self._writer)
        self._thread = threading.Thread(target=self._run, name=f"{self.source}/catalog", daemon=True)

    def preflight(self) -> str:
        found, findings = self._catalog.preflight()
        self.findings = tuple(findings)
        self._state.findings_are(self.findings)
        self._told = {str(finding) for finding in findings}
        return found

    def tables(self, send: SendTables) -> None:
        """All of them, for who asks on this host. Raises a `SourceError`."""
        self._catalog.look(None, send)

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION)

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        self._credit.reset()
        self._opened_at = time.monotonic()
        self._writer = writer
        self._scheduler.opened(writer)
        self._workers.start()
        if not self._thread.is_alive():
            self._thread.start()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        match request.WhichOneof("payload"):
            case "cartography_request":
                with self._changed:
                    self._known = request.cartography_request.known
                    self._want(self._writer)
            case "credit":
                self._credit.grant(request.credit.bytes)
            case "desired_dumps":
                self._scheduler.desired(request.desired_dumps)
            case "chunk_landed":
                self._coordinator.landed(request.chunk_landed.dump, request.chunk_landed.chunk)
            case "chunks_committed":
                self._scheduler.committed(request.chunks_committed)

    def refused(self, error: GatewayError) -> None:
        """The stream of changes goes on, so it is a warning of the source's."""
        if error.terminal:
            self._refused_after_seconds = time.monotonic() - self._opened_at
            self._state.failed(REFUSED, error)

    def _forget_refusal(self) -> None:
        """Once the stream has been open for longer than the one that was refused."""
        after_seconds = self._refused_after_seconds
        if after_seconds is None or self._writer is None:
            return
        if time.monotonic() - self._opened_at > after_seconds + LOOK_SECONDS:
            self._refused_after_seconds = None
            self._state.recovered(REFUSED)

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
                while is_asked and not self._stopping and (wait_seconds := self._answers.take()):
                    self._changed.wait(wait_seconds)
                if self._stopping:
                    return
                writer, self._wanted = self._wanted if is_asked else self._writer, None
            if writer is None:
                continue
            self._forget_refusal()
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
        refusal = self._veto.refusal(Request.CARTOGRAPHY)
        if refusal is not None:
            raise refusal

        former = self._state.former_policies

        def send(head: catalog_pb2.Cartography, cards: Iterable[catalog_pb2.TableCard]) -> None:
            telling = Telling(
                head,
                map(bounded, self._veto.cards(former.compared(cards), self._column_veto)),
                self._sent if self._known == self._sent.digest else Sent(),
            )
            for part in telling.parts():
                writer.send(stream_pb2.StreamResponse(cartography=part))
            self._sent = telling.sent
            with self._changed:
                if self._wanted is None:  # else the gateway has said meanwhile what it has
                    self._known = self._sent.digest

        began_at = time.monotonic()
        is_altered = self._is_altered.is_set() and began_at >= self._read_again_at
        if is_altered or is_asked:
            self._is_altered.clear()  # what is said from here on may come after the reading
        reads_all = is_asked or is_altered or not former.is_settled
        try:
            look = self._catalog.look(None if reads_all else self._names, send)
        except BaseException:
            if is_altered:
                self._is_altered.set()
            raise
        if reads_all:
            self._read_again_at = time.monotonic() + _RESTS_PER_READING * (time.monotonic() - began_at)
        self._look_seconds = max(LOOK_SECONDS, look.seconds * _RESTS_PER_LOOK)
        if look.findings is None:
            return
        self._tell_findings(look.findings)
        self._names = look.digest
        self._state.looked_at_tables()
        self._backoff.succeeded()
        self._state.recovered(PART)

    def _tell_findings(self, findings: Collection[MenuraError]) -> None:
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
