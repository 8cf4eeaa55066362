"""Dumps by level: what the gateway wants, what is read of it, and the next thing to do.

Comes in: DesiredDumps, ChunkLanded and ChunksCommitted of the client's stream, and the coordinator's news. Goes out:
tasks for workers, DumpStatus, DumpFailed and ChunkDropped. A dump that is no longer desired, or is paused, stops being
read at once. Nothing is durable: when the stream opens anew everything begins again from what the ledger says is left.

Locks are taken in this order: this one's, then the coordinator's. Nothing is sent, and no connection is touched, under
either.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from menura.error_message import as_message
from menura.errors import MenuraError
from menura.v1 import snapshot_pb2, stream_pb2

from agent.errors import ResultInvalid
from agent.positions import Position
from agent.runtime.session import StreamClosed, StreamWriter
from agent.runtime.state import SourceState
from agent.snapshot.chunks import Chunk
from agent.snapshot.coordinator import News, SnapshotCoordinator
from agent.snapshot.dump_events import Ending
from agent.snapshot.failures import sync_goes_on
from agent.snapshot.progress import SentChunk, SnapshotProgress
from agent.snapshot.repair import repaired_ranges
from agent.snapshot.statuses import Statuses
from agent.snapshot.tasks import SnapshotTask, find_task
from agent.snapshot.unchunked_snapshots import UnchunkedSnapshot
from agent.table_positions import Table

log = logging.getLogger("menura.dump")

TICK_SECONDS = 0.2
STOP_SECONDS = 5.0
#: a sync that is to begin anew with a dump is heard of sooner
UNWANTED_SECONDS = 20.0
#: tables that are remembered; the oldest ones are found so again
MOST_UNORDERED = 1_000


class SnapshotScheduler:
    """All dumps of one source."""

    def __init__(self, source: str, coordinator: SnapshotCoordinator, state: SourceState) -> None:
        self._source = source
        self._coordinator = coordinator
        self._state = state
        self._changed = threading.Condition()
        #: the end of a chunk is sent before the word that it is dropped
        self._sending_ends = threading.Lock()
        self._dumps: dict[str, SnapshotProgress] = {}
        self._tasks: list[SnapshotTask] = []
        #: a chunk's number is used once in a process, whatever the ledger knows of it
        self._next_chunks: dict[str, int] = {}
        self._statuses = Statuses()
        #: of which the lake has no place for some rows in the order of the key
        self._unordered: dict[Table, None] = {}
        self._writer: StreamWriter | None = None
        self._generation = -1
        self._attempt = coordinator.attempt
        self._has_news = True
        self._stopping = False
        coordinator.on_news = self._wake
        #: wakes those who wait for credit
        self.wake_senders: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=f"{source}/dumps", daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    # --- the stream's side: never waits

    def opened(self, writer: StreamWriter) -> None:
        with self._changed:
            self._writer = writer
            self._generation = -1
            self._has_news = True
        if self._thread.ident is None:
            self._thread.start()

    def closed(self) -> None:
        with self._changed:
            self._writer = None
            self._dumps.clear()
            self._coordinator.client_closed()
            stopped = list(self._tasks)
            self._changed.notify_all()
        self._cancel(stopped)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            stopped = list(self._tasks)
            self._changed.notify_all()
        self._cancel(stopped)
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def desired(self, message: snapshot_pb2.DesiredDumps) -> None:
        """The whole list, which replaces the one before."""
        with self._changed:
            if message.generation < self._generation or self._writer is None:
                return
            self._generation = message.generation
            dumps = {order.dump: order for order in message.dumps}
            stopping = {dump for dump in self._dumps if dump not in dumps}
            for dump in stopping:
                del self._dumps[dump]
                self._coordinator.over(dump)
            for dump, order in dumps.items():
                self._order(order)
                if order.paused:
                    stopping.add(dump)
            tables = frozenset(progress.table for progress in self._dumps.values() if progress.is_copy)
            stopped = self._tasks_of(stopping)
            self._changed.notify_all()
        self._state.dumping_are(tables)
        self._cancel(stopped)

    def _order(self, order: snapshot_pb2.DumpOrder) -> None:
        progress = self._dumps.get(order.dump)
        if progress is None:
            progress = self._dumps[order.dump] = SnapshotProgress(order, self._next_chunks.get(order.dump, 1))
        progress.ordered(order)
        if progress.has_plan and not progress.is_unchunked:
            self._coordinator.decide_keyed(order.dump)

    def committed(self, message: snapshot_pb2.ChunksCommitted) -> None:
        with self._changed:
            for chunk in message.chunks:
                self._coordinator.confirmed(chunk.dump, chunk.chunk)
                progress = self._dumps.get(chunk.dump)
                if progress is not None:
                    progress.committed(chunk.chunk)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def _tasks_of(self, dumps: Iterable[str]) -> list[SnapshotTask]:
        of = set(dumps)
        return [task for task in self._tasks if task.progress.dump in of]

    def _cancel(self, tasks: list[SnapshotTask]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            self.wake_senders()

    # --- the workers' side

    def next_task(self, timeout_seconds: float) -> SnapshotTask | None:
        """None: nothing for so long, or all is over. A task ends with `done`."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._stopping:
                if self._writer is not None and not self._has_news:
                    task = find_task(self._dumps.values(), self._coordinator, self._writer, self._attempt)
                    if task is not None:
                        self._next_chunks[task.progress.dump] = task.progress.next_chunk
                        self._tasks.append(task)
                        return task
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, TICK_SECONDS))
        return None

    def done(self, task: SnapshotTask) -> None:
        """A worker has left the task, however that went."""
        with self._changed:
            self._tasks.remove(task)
            task.progress.tasks -= 1
            if task.part is not None:
                task.part.is_busy = False
            self._changed.notify_all()

    def planned(self, task: SnapshotTask, *, by_key: bool, above: frozenset[Table]) -> None:
        """The plan was sent. `above`: tables whose dumps come first."""
        with self._changed:
            task.progress.planned(by_key=by_key)
            task.progress.above = above
            task.progress.goes_on()
            self._changed.notify_all()

    def is_unordered(self, table: Table) -> bool:
        with self._changed:
            return table in self._unordered

    def found_unordered(self, table: Table) -> None:
        """From now on it is verified in one snapshot."""
        with self._changed:
            self._unordered[table] = None
            if len(self._unordered) > MOST_UNORDERED:
                del self._unordered[next(iter(self._unordered))]

    def chunk_read(
        self, task: SnapshotTask, sent: SentChunk, gsn: int, high: Position, end: snapshot_pb2.ChunkEnd
    ) -> bool:
        """Sends its end. False: it does not count, and its range is read again."""
        chunk = Chunk(task.progress.dump, task.progress.table, sent.number, sent.range, gsn, high)
        return self._read(task, sent, end, lambda: self._coordinator.add(chunk, task.attempt))

    def unchunked_read(
        self, task: SnapshotTask, sent: SentChunk, position: Position, end: snapshot_pb2.ChunkEnd
    ) -> bool:
        """The same for a table in one snapshot."""
        snapshot = UnchunkedSnapshot(task.progress.dump, task.progress.table, sent.number, position)
        return self._read(task, sent, end, lambda: self._coordinator.add_unchunked(snapshot))

    def _read(
        self, task: SnapshotTask, sent: SentChunk, end: snapshot_pb2.ChunkEnd, counts: Callable[[], bool]
    ) -> bool:
        with self._sending_ends:
            with self._changed:
                if task.cancelled.is_set() or not counts():
                    return False
                task.progress.sent(sent)
                task.progress.goes_on()
            task.writer.send(stream_pb2.StreamResponse(chunk_end=end))
        return True

    def all_read(self, task: SnapshotTask, high: Position) -> None:
        """Every chunk is committed, and the server shows nothing later than `high`."""
        order = task.progress.order
        repaired = repaired_ranges(order) if task.progress.repairs else None
        ending = Ending(task.progress.dump, task.progress.table, order.started_gsn, high, order.verifies, repaired)
        with self._changed:
            if not task.cancelled.is_set() and self._coordinator.want_end(ending, task.attempt):
                task.progress.goes_on()

    def waits(self, task: SnapshotTask, held: snapshot_pb2.DumpStatus.Held, reason: str, seconds: float) -> None:
        """The task can't be done now."""
        with self._changed:
            task.progress.holds(held, reason, time.monotonic() + seconds)

    def narrows(self, task: SnapshotTask) -> bool:
        """One of the chunk's rows can't be read: the next chunk has fewer. False: there was only one."""
        with self._changed:
            if task.part is None or task.most_rows <= 1:
                return False
            task.part.suspects = task.most_rows
            return True

    def retries(self, task: SnapshotTask, error: MenuraError) -> None:
        """The task has failed; it is tried again, each time after a longer while."""
        with self._changed:
            is_new = task.progress.reason != str(error)
            retry_at = time.monotonic() + task.progress.backoff.next_seconds()
            task.progress.holds(snapshot_pb2.DumpStatus.ERROR, str(error), retry_at, error)
        if is_new:
            log.warning("dump interrupted", extra={"fields": self._fields(task.progress, error)})

    def fails(self, progress: SnapshotProgress, error: MenuraError) -> None:
        """The dump is over; raises `StreamClosed`."""
        with self._changed:
            if progress.is_failed or self._dumps.get(progress.dump) is not progress:
                return
            progress.is_failed = True
            writer = self._writer
            stopped = self._tasks_of([progress.dump])
            self._coordinator.forget(progress.dump)
        log.error("dump failed", extra={"fields": self._fields(progress, error)})
        self._cancel(stopped)
        if writer is not None:
            failed = snapshot_pb2.DumpFailed(dump=progress.dump, error=as_message(error))
            writer.send(stream_pb2.StreamResponse(dump_failed=failed))

    def _fields(self, progress: SnapshotProgress, error: MenuraError) -> dict[str, object]:
        # where a row is that can't be read, values of its key tell: the gateway hears of them, a log does not
        told = error.code if isinstance(error, ResultInvalid) else str(error)
        return {"source": self._source, "dump": progress.dump, "error": told}

    # --- its own thread

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._has_news and not self._stopping:
                    self._changed.wait(TICK_SECONDS)
                if self._stopping:
                    return
                writer = self._writer
            try:
                self._tick(writer)
            except StreamClosed:
                continue
            except Exception:
                log.exception("defect", extra={"fields": {"source": self._source}})
                if writer is not None:
                    writer.abort()

    def _tick(self, writer: StreamWriter | None) -> None:
        self._coordinator.reopen_if_due()
        with self._changed:
            self._has_news = False
            news = self._coordinator.news()
        if writer is None:
            return
        if self._coordinator.is_unheard():
            fields = {"source": self._source}
            log.warning("the gateway does not say that chunks are committed: the stream opens anew", extra=fields)
            writer.abort()
            return
        self._drop(writer, news)
        self._lose(news)
        with self._changed:
            dumps = [progress for progress in self._dumps.values() if not progress.is_failed]
            statuses = self._statuses.worth_telling(dumps, self._tasks)
            held = {progress.table: progress.error for progress in dumps if progress.error is not None}
        self._state.held_dumps_are(held)
        for status in statuses:
            writer.send(stream_pb2.StreamResponse(dump_status=status))

    def _drop(self, writer: StreamWriter, news: News) -> None:
        """Chunks that no cut will name: the gateway forgets them, and only then they are read again."""
        with self._sending_ends:
            for dump, numbers in news.dropped.items():
                for number in sorted(numbers):
                    dropped = snapshot_pb2.ChunkDropped(dump=dump, chunk=number)
                    writer.send(stream_pb2.StreamResponse(chunk_dropped=dropped))
        with self._changed:
            for dump, numbers in news.dropped.items():
                progress = self._dumps.get(dump)
                if progress is not None:
                    progress.give_back(numbers)
            self._attempt = news.attempt
            self._changed.notify_all()

    def _lose(self, news: News) -> None:
        """Tables that may be gone, can't begin, or will not."""
        with self._changed:
            dumps = list(self._dumps.values())
        for progress in dumps:
            gsn, kind = news.gone.get(progress.table, (0, ""))
            if gsn > progress.order.started_gsn > 0:
                # A stream that is behind may meet one of long ago: whether the table is there the next read tells.
                progress.gone = kind
            if progress.dump in news.refused:
                self.fails(progress, news.refused[progress.dump])
            elif progress.is_unchunked and self._is_unwanted(progress):
                self.fails(progress, sync_goes_on(self._source, progress.table))

    def _is_unwanted(self, progress: SnapshotProgress) -> bool:
        """Whether the stream of a table that must begin with its dump has gone on without it, for longer than it takes
        to hear that it begins anew."""
        if self._coordinator.is_awaited(progress.dump) or not self._coordinator.is_streamed(progress.table):
            progress.unwanted_since = None
            return False
        progress.unwanted_since = progress.unwanted_since or time.monotonic()
        return time.monotonic() - progress.unwanted_since > UNWANTED_SECONDS
