"""Dumps by level: what the gateway wants, what is read of it, and the next thing to do.

Comes in: DesiredDumps, ChunkLanded and ChunksCommitted of the client's stream, and the desk's news. Goes out: jobs for
workers, DumpStatus, DumpFailed and ChunkDropped. A dump that is no longer desired, or is paused, stops being read at
once. Nothing is durable: when the stream opens anew everything begins again from what the ledger says is left.

Locks are taken in this order: this one's, then the desk's. Nothing is sent, and no connection is touched, under either.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable

from menura.errors import MenuraError
from menura.v1 import mysql_client_pb2, stream_pb2

from agent.errors import ResultInvalid, as_message
from agent.mysql.dump.chunks import Chunk
from agent.mysql.dump.desk import Desk, News
from agent.mysql.dump.dump_events import Ending
from agent.mysql.dump.failures import sync_goes_on
from agent.mysql.dump.jobs import Job, find_job
from agent.mysql.dump.statuses import Statuses
from agent.mysql.dump.whole_tables import WholeTable
from agent.mysql.dump.work import DumpWork, SentChunk
from agent.mysql.positions import Position
from agent.session import Outlet, StreamClosed
from agent.state import SourceState

log = logging.getLogger("menura.dump")

TICK_SECONDS = 0.2
STOP_SECONDS = 5.0
#: a sync that is to begin anew with a dump is heard of sooner
UNWANTED_SECONDS = 20.0


class Orders:
    """All dumps of one source."""

    def __init__(self, source: str, desk: Desk, state: SourceState) -> None:
        self._source = source
        self._desk = desk
        self._state = state
        self._changed = threading.Condition()
        #: the end of a chunk is sent before the word that it is dropped
        self._sending_ends = threading.Lock()
        self._works: dict[str, DumpWork] = {}
        self._jobs: list[Job] = []
        #: a chunk's number is used once in a process, whatever the ledger knows of it
        self._next_chunks: dict[str, int] = {}
        self._statuses = Statuses()
        self._outlet: Outlet | None = None
        self._generation = -1
        self._round = desk.round
        self._has_news = True
        self._stopping = False
        desk.on_news = self._wake
        #: wakes those who wait for credit
        self.wake_senders: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name=f"{source}/dumps", daemon=True)

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    # --- the stream's side: never waits

    def opened(self, outlet: Outlet) -> None:
        with self._changed:
            self._outlet = outlet
            self._generation = -1
            self._has_news = True
        if self._thread.ident is None:
            self._thread.start()

    def closed(self) -> None:
        with self._changed:
            self._outlet = None
            self._works.clear()
            self._desk.client_closed()
            stopped = list(self._jobs)
            self._changed.notify_all()
        self._cancel(stopped)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            stopped = list(self._jobs)
            self._changed.notify_all()
        self._cancel(stopped)
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def desired(self, message: mysql_client_pb2.DesiredDumps) -> None:
        """The whole list, which replaces the one before."""
        with self._changed:
            if message.generation < self._generation or self._outlet is None:
                return
            self._generation = message.generation
            orders = {order.dump: order for order in message.dumps}
            stopping = {dump for dump in self._works if dump not in orders}
            for dump in stopping:
                del self._works[dump]
                self._desk.over(dump)
            for dump, order in orders.items():
                self._order(order)
                if order.paused:
                    stopping.add(dump)
            tables = frozenset(work.table for work in self._works.values())
            stopped = self._jobs_of(stopping)
            self._changed.notify_all()
        self._state.dumping_are(tables)
        self._cancel(stopped)

    def _order(self, order: mysql_client_pb2.DumpOrder) -> None:
        work = self._works.get(order.dump)
        if work is None:
            work = self._works[order.dump] = DumpWork(order, self._next_chunks.get(order.dump, 1))
        work.ordered(order)
        if work.has_plan and not work.is_whole:
            self._desk.decide_keyed(order.dump)

    def committed(self, message: mysql_client_pb2.ChunksCommitted) -> None:
        with self._changed:
            for chunk in message.chunks:
                self._desk.confirmed(chunk.dump, chunk.chunk)
                work = self._works.get(chunk.dump)
                if work is not None:
                    work.committed(chunk.chunk)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def _jobs_of(self, dumps: Iterable[str]) -> list[Job]:
        of = set(dumps)
        return [job for job in self._jobs if job.work.dump in of]

    def _cancel(self, jobs: list[Job]) -> None:
        for job in jobs:
            job.cancel()
        if jobs:
            self.wake_senders()

    # --- the workers' side

    def next_job(self, timeout_seconds: float) -> Job | None:
        """None: nothing for so long, or all is over. A job ends with `done`."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not self._stopping:
                if self._outlet is not None and not self._has_news:
                    job = find_job(self._works.values(), self._desk, self._outlet, self._round)
                    if job is not None:
                        self._next_chunks[job.work.dump] = job.work.next_chunk
                        self._jobs.append(job)
                        return job
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, TICK_SECONDS))
        return None

    def done(self, job: Job) -> None:
        """A worker has left the job, however that went."""
        with self._changed:
            self._jobs.remove(job)
            job.work.jobs -= 1
            if job.part is not None:
                job.part.is_busy = False
            self._changed.notify_all()

    def planned(self, job: Job, *, by_key: bool) -> None:
        """The plan was sent."""
        with self._changed:
            job.work.planned(by_key=by_key)
            job.work.goes_on()
            self._changed.notify_all()

    def chunk_read(self, job: Job, sent: SentChunk, gsn: int, high: Position, end: mysql_client_pb2.ChunkEnd) -> bool:
        """Sends its end. False: it does not count, and its range is read again."""
        chunk = Chunk(job.work.dump, job.work.table, sent.number, sent.range, gsn, high)
        return self._read(job, sent, end, lambda: self._desk.add(chunk, job.round))

    def whole_read(self, job: Job, sent: SentChunk, position: Position, end: mysql_client_pb2.ChunkEnd) -> bool:
        """The same for a table in one snapshot."""
        whole = WholeTable(job.work.dump, job.work.table, sent.number, position)
        return self._read(job, sent, end, lambda: self._desk.add_whole(whole))

    def _read(self, job: Job, sent: SentChunk, end: mysql_client_pb2.ChunkEnd, counts: Callable[[], bool]) -> bool:
        with self._sending_ends:
            with self._changed:
                if job.cancelled.is_set() or not counts():
                    return False
                job.work.sent(sent)
                job.work.goes_on()
            job.outlet.send(stream_pb2.StreamResponse(chunk_end=end))
        return True

    def all_read(self, job: Job, high: Position) -> None:
        """Every chunk is committed, and the server shows nothing later than `high`."""
        ending = Ending(job.work.dump, job.work.table, job.work.order.started_gsn, high)
        with self._changed:
            if not job.cancelled.is_set() and self._desk.want_end(ending, job.round):
                job.work.goes_on()

    def waits(self, job: Job, reason: str, seconds: float) -> None:
        """The job can't be done now."""
        with self._changed:
            job.work.holds(reason, time.monotonic() + seconds)

    def narrows(self, job: Job) -> bool:
        """One of the chunk's rows can't be read: the next chunk has fewer. False: there was only one."""
        with self._changed:
            if job.part is None or job.most_rows <= 1:
                return False
            job.part.suspects = job.most_rows
            return True

    def retries(self, job: Job, error: MenuraError) -> None:
        """The job has failed; it is tried again, each time after a longer while."""
        with self._changed:
            is_new = job.work.reason != str(error)
            job.work.holds(str(error), time.monotonic() + job.work.backoff.next_seconds())
        if is_new:
            log.warning("dump interrupted", extra={"fields": self._fields(job.work, error)})

    def fails(self, work: DumpWork, error: MenuraError) -> None:
        """The dump is over; raises `StreamClosed`."""
        with self._changed:
            if work.is_failed or self._works.get(work.dump) is not work:
                return
            work.is_failed = True
            outlet = self._outlet
            stopped = self._jobs_of([work.dump])
            self._desk.forget(work.dump)
        log.error("dump failed", extra={"fields": self._fields(work, error)})
        self._cancel(stopped)
        if outlet is not None:
            failed = mysql_client_pb2.DumpFailed(dump=work.dump, error=as_message(error))
            outlet.send(stream_pb2.StreamResponse(dump_failed=failed))

    def _fields(self, work: DumpWork, error: MenuraError) -> dict[str, object]:
        # where a row is that can't be read, values of its key tell: the gateway hears of them, a log does not
        told = error.code if isinstance(error, ResultInvalid) else str(error)
        return {"source": self._source, "dump": work.dump, "error": told}

    # --- its own thread

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._has_news and not self._stopping:
                    self._changed.wait(TICK_SECONDS)
                if self._stopping:
                    return
                outlet = self._outlet
            try:
                self._tick(outlet)
            except StreamClosed:
                continue
            except Exception:
                log.exception("defect", extra={"fields": {"source": self._source}})
                if outlet is not None:
                    outlet.abort()

    def _tick(self, outlet: Outlet | None) -> None:
        self._desk.reopen_if_due()
        with self._changed:
            self._has_news = False
            news = self._desk.news()
        if outlet is None:
            return
        if self._desk.is_unheard():
            fields = {"source": self._source}
            log.warning("the gateway does not say that chunks are committed: the stream opens anew", extra=fields)
            outlet.abort()
            return
        self._drop(outlet, news)
        self._lose(news)
        with self._changed:
            works = [work for work in self._works.values() if not work.is_failed]
            statuses = self._statuses.worth_telling(works, self._jobs)
        for status in statuses:
            outlet.send(stream_pb2.StreamResponse(dump_status=status))

    def _drop(self, outlet: Outlet, news: News) -> None:
        """Chunks that no cut will name: the gateway forgets them, and only then they are read again."""
        with self._sending_ends:
            for dump, numbers in news.dropped.items():
                for number in sorted(numbers):
                    dropped = mysql_client_pb2.ChunkDropped(dump=dump, chunk=number)
                    outlet.send(stream_pb2.StreamResponse(chunk_dropped=dropped))
        with self._changed:
            for dump, numbers in news.dropped.items():
                work = self._works.get(dump)
                if work is not None:
                    work.give_back(numbers)
            self._round = news.round
            self._changed.notify_all()

    def _lose(self, news: News) -> None:
        """Tables that may be gone, can't begin, or will not."""
        with self._changed:
            works = list(self._works.values())
        for work in works:
            gsn, kind = news.gone.get(work.table, (0, ""))
            if gsn > work.order.started_gsn > 0:
                # A stream that is behind may meet one of long ago: whether the table is there the next read tells.
                work.gone = kind
            if work.dump in news.refused:
                self.fails(work, news.refused[work.dump])
            elif work.is_whole and self._is_unwanted(work):
                self.fails(work, sync_goes_on(self._source, work.table))

    def _is_unwanted(self, work: DumpWork) -> bool:
        """Whether the stream of a table that must begin with its dump has gone on without it, for longer than it takes
        to hear that it begins anew."""
        if self._desk.is_awaited(work.dump) or not self._desk.is_streamed(work.table):
            work.unwanted_since = None
            return False
        work.unwanted_since = work.unwanted_since or time.monotonic()
        return time.monotonic() - work.unwanted_since > UNWANTED_SECONDS
