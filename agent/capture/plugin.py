"""The plugin of the role CHANGES: works on the gateway's newest Replicate, in a thread of its own.

Comes in: Replicate, Credit and CutCommitted. Goes out, by the source's `Changes`: the start cut, batches under credit,
cuts. After any failure everything read is dropped and the stream opens anew: the next Replicate names the last
committed cut, and the log is read again from there. What the gateway refuses comes again each time: the source's state
says why nothing lands until something of it is committed. Nothing here is durable.
"""

import logging
import threading
from random import Random

from menura.error_message import as_message
from menura.errors import MenuraError
from menura.protocol import PROTOCOL_VERSION
from menura.v1 import changes_pb2, config_pb2, stream_pb2

from agent.capture.changes import Changes, ReadAgain
from agent.capture.task import Awaited, Task, TaskCancelled
from agent.errors import GatewayError, defect
from agent.runtime.backoff import Backoff
from agent.runtime.commands import Bucket
from agent.runtime.credit import Credit, CreditCancelled
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.state import FAILED, READING, SourceState
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.unchunked_snapshots import DumpForgotten
from agent.veto.policy import Request

log = logging.getLogger("menura.replicator")

RETRY_FIRST_SECONDS = 0.5
RETRY_MOST_SECONDS = 30.0
#: a terminal error waits for somebody: look again this often
TERMINAL_FIRST_SECONDS = 5.0
TERMINAL_MOST_SECONDS = 60.0
STOP_SECONDS = 5.0
#: how often reading begins anew, whatever the gateway says: each time the database reads its log again
RESTARTS_PER_SECOND, BURST_RESTARTS = 5.0, 100


class ChangesPlugin:
    """Of one source."""

    findings: tuple[MenuraError, ...] = ()

    def __init__(
        self,
        request_type: stream_pb2.RequestType,
        state: SourceState,
        coordinator: SnapshotCoordinator,
        credit: Credit,
        changes: Changes,
    ) -> None:
        self.request_type = request_type
        self.source = state.name
        self._state = state
        self._coordinator = coordinator
        coordinator.reopen = self._reopen
        self._credit = credit
        self._state.credit_wait_us = lambda: self._credit.waited_us
        self._state.credit_bytes = lambda: self._credit.left_bytes
        self._changes = changes
        self._changed = threading.Condition()
        self._writer: StreamWriter | None = None
        self._task: Task | None = None
        self._is_new = False
        self._restarts = Bucket(RESTARTS_PER_SECOND, BURST_RESTARTS)
        #: Replicates that a newer one replaced before they were worked on
        self._superseded = 0
        #: what the gateway's last refusal waits for; None: for a stream that it takes
        self._awaited: Awaited | None = None
        self._stopping = False
        self._transient = Backoff(RETRY_FIRST_SECONDS, RETRY_MOST_SECONDS, Random())  # noqa: S311
        self._terminal = Backoff(TERMINAL_FIRST_SECONDS, TERMINAL_MOST_SECONDS, Random())  # noqa: S311
        self._thread = threading.Thread(target=self._run, name=f"{self.source}/changes", daemon=True)

    # --- the stream's side

    def preflight(self) -> str:
        return self._changes.preflight()

    def hello(self) -> config_pb2.Hello:
        return config_pb2.Hello(protocol=PROTOCOL_VERSION, sources=[self._state.hello()])

    def opened(self, writer: StreamWriter, ack: config_pb2.HelloAck) -> None:
        self._credit.reset()
        self._writer = writer
        if not self._thread.is_alive():
            self._changes.watch(self._log_was_reset)
            self._thread.start()

    def received(self, request: stream_pb2.StreamRequest) -> None:
        match request.WhichOneof("payload"):
            case "replicate":
                assert self._writer is not None
                self._begins(request.replicate)
                self._assign(Task(request.replicate, self._writer))
            case "credit":
                self._credit.grant(request.credit.bytes)
            case "cut_committed":
                committed = request.cut_committed
                task = self._task
                if task is not None:
                    task.committed_cut = committed.cut
                    self._coordinator.committed(committed.cut)
                    if committed.cut > task.replicate.next_cut:
                        self._changes.progressed()
                        self._transient.succeeded()
                        self._terminal.succeeded()
                    if self._awaited is not None and committed.cut >= task.replicate.next_cut + self._awaited.cuts:
                        self._accepted()
                log.debug("cut committed", extra={"fields": {"source": self.source, "cut": committed.cut}})

    def refused(self, error: GatewayError) -> None:
        if self._task is not None:
            self._awaited = self._task.awaited()
        self._state.refused(error)

    def _begins(self, replicate: changes_pb2.Replicate) -> None:
        """What was refused is read again, unless something else is desired now."""
        if self._awaited is None or not replicate.tables:
            self._accepted()
        elif self._awaited.generation != replicate.generation:
            self._awaited = Awaited(replicate.generation, 0)

    def _accepted(self) -> None:
        self._awaited = None
        self._state.refused(None)

    def closed(self) -> None:
        self._assign(None)
        self._coordinator.end()

    def _reopen(self) -> None:
        """Tables can begin now."""
        self._begin_anew("tables can begin with their dumps")

    def _log_was_reset(self) -> None:
        self._begin_anew("the server's log was reset: its new one is compared with the committed position")

    def _begin_anew(self, why: str) -> None:
        task = self._task
        if task is not None:
            log.info(why, extra={"fields": {"source": self.source}})
            task.writer.abort()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
        self._assign(None)
        self._changes.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _assign(self, task: Task | None) -> None:
        with self._changed:
            self._superseded += self._is_new and self._task is not None
            previous, self._task, self._is_new = self._task, task, True
            self._changed.notify_all()
        if previous is not None:
            previous.cancel()
        self._credit.wake()

    # --- the worker's side

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            self._state.counters.restarts += 1
            try:
                self._state.check(Request.CHANGES)
                self._state.reads_log()
                self._changes.read(task)
            except (StreamClosed, TaskCancelled, CreditCancelled):
                continue
            except (ReadAgain, DumpForgotten):
                task.writer.abort()
            except MenuraError as error:
                if not task.cancelled.is_set():
                    self._retry_later(task, error)
            except Exception as broken:
                log.exception("defect", extra={"fields": {"source": self.source}})
                self._retry_later(task, defect("reading the source's log", broken, self.source))

    def _next_task(self) -> Task | None:
        with self._changed:
            while True:
                if self._stopping:
                    return None
                if self._task is None or not self._is_new:
                    self._changed.wait()
                    continue
                wait_seconds = self._restarts.take()
                if wait_seconds:
                    self._changed.wait(wait_seconds)
                    continue
                self._tell_superseded()
                self._is_new = False
                return self._task

    def _tell_superseded(self) -> None:
        if self._superseded:
            fields = {"source": self.source, "superseded": self._superseded}
            log.info("Replicates come faster than reading may begin anew: the newest counts", extra={"fields": fields})
        self._superseded = 0

    def _retry_later(self, task: Task, error: MenuraError) -> None:
        """Report once, wait, and let the stream open anew."""
        if self._state.failed(READING, error):
            log.error(FAILED[error.terminal], extra={"fields": {"source": self.source, "error": str(error)}})
            try:
                task.writer.send(stream_pb2.StreamResponse(error=as_message(error)))
            except StreamClosed:
                return
        backoff = self._terminal if error.terminal else self._transient
        if not task.cancelled.wait(backoff.next_seconds()):
            task.writer.abort()
