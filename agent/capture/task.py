"""Work on one Replicate: when it is over, and where its batches and cuts go.

Comes in: batches and cuts as the reader makes them. Goes out: messages with the Replicate's generation and epoch, under
the gateway's credit, and to the source's state how far the work is. Nothing is durable.
"""

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from menura.errors import MenuraError
from menura.v1 import changes_pb2, config_pb2, stream_pb2

from agent.capture.source import Decoder, Stream
from agent.columnar.encode import TableBatch, encode
from agent.positions import Position
from agent.runtime.credit import Credit
from agent.runtime.session import StreamWriter
from agent.runtime.state import READING, SourceState
from agent.table_positions import Stop, Table, TablePositions

log = logging.getLogger("menura.replicator")


class TaskCancelled(Exception):
    """A newer Replicate has come, or the stream has closed."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """What has to be committed before a refusal is over: so many cuts behind the first one of a Replicate."""

    generation: int
    cuts: int


@dataclass(slots=True)
class Task:
    """Work on one Replicate."""

    replicate: changes_pb2.Replicate
    writer: StreamWriter
    cancelled: threading.Event = field(default_factory=threading.Event)
    stream: Stream | None = None
    #: the newest that the gateway has told of
    committed_cut: int = 0
    #: the newest of which something was sent
    sent_cut: int = 0

    def awaited(self) -> Awaited | None:
        """When what was sent is refused; None: all of it is committed. The first cut is made anew each time."""
        first = self.replicate.next_cut
        if self.sent_cut <= max(self.committed_cut, first - 1):
            return None
        return Awaited(self.replicate.generation, 0 if self.sent_cut == first else 1)

    def cancel(self) -> None:
        self.cancelled.set()
        if self.stream is not None:
            self.stream.interrupt()

    def check(self) -> None:
        if self.cancelled.is_set():
            raise TaskCancelled


class TaskSink:
    """Sends a task's batches and cuts, numbered with its generation and epoch, and tells the state how far it is."""

    def __init__(
        self,
        task: Task,
        decoder: Decoder,
        credit: Credit,
        state: SourceState,
        table_positions: TablePositions[Position],
    ) -> None:
        self._task = task
        self._decoder = decoder
        self._credit = credit
        self._state = state
        self._table_positions = table_positions
        self._failed: dict[Table, Stop[Position]] = {}
        self._counted_rows = 0
        self._counted_transactions = 0

    def send_batch(self, batch: TableBatch, cut: int) -> None:
        self._credit.wait(self._task.cancelled)
        encoded = encode(batch, self._task.writer.compression)
        response = stream_pb2.StreamResponse()
        message = response.change_batch
        message.generation = self._task.replicate.generation
        message.lease_epoch = self._task.replicate.lease_epoch
        message.cut = cut
        message.table.database, message.table.table = batch.plan.database, batch.plan.table
        message.schema_id = batch.plan.schema_id
        message.row_count = batch.row_count
        message.first_gsn = batch.first_gsn
        message.last_gsn = batch.last_gsn
        message.transactions = encoded.transactions
        message.rows_bytes = encoded.rows_bytes
        message.transactions_bytes = encoded.transactions_bytes
        size = sum(map(len, encoded.rows)) + len(encoded.transactions)
        self._credit.spend(encoded.rows_bytes + encoded.transactions_bytes)
        self._task.sent_cut = cut
        self._task.writer.send(response, encoded.rows)
        self._state.counters.sent_bytes += size
        if batch.is_partial:
            self._state.saw_partial_rows((batch.plan.database, batch.plan.table))
        log.debug(
            "batch sent",
            extra={"fields": {"source": self._state.name, "cut": cut, "rows": batch.row_count, "bytes": size}},
        )

    def send_cut(self, end: changes_pb2.CutEnd) -> None:
        end.generation = self._task.replicate.generation
        end.lease_epoch = self._task.replicate.lease_epoch
        self._task.sent_cut = end.cut
        self._task.writer.send(stream_pb2.StreamResponse(cut_end=end))

    def received(self, size: int) -> None:
        self._task.check()
        self._state.counters.read_bytes += size
        self._state.recovered(READING)

    def position_is(self, position: Position, commit_us: int) -> None:
        counters = self._state.counters
        counters.rows += self._decoder.rows - self._counted_rows
        counters.transactions += self._decoder.transactions - self._counted_transactions
        self._counted_rows, self._counted_transactions = self._decoder.rows, self._decoder.transactions
        counters.decode_cpu_us = time.thread_time_ns() // 1000
        self._state.read_is(position, commit_us)

    def committed_cut(self) -> int:
        return self._task.committed_cut

    def tables_are(self, stopped: Iterable[Stop[Position]]) -> None:
        """Tables stopped, caught up or began."""
        self._failed |= {stop.table: stop for stop in stopped}
        behind = self._table_positions.any_ahead
        states: dict[Table, tuple[config_pb2.TableState.State, MenuraError | None]] = {}
        for table in self._table_positions.synced():
            is_late = behind and not self._table_positions.is_ahead(table)
            states[table] = (config_pb2.TableState.CATCHING_UP if is_late else config_pb2.TableState.STREAMING, None)
        for table, stop in self._failed.items():
            states[table] = (config_pb2.TableState.FAILED, stop.error)
        self._state.tables_are(states)
