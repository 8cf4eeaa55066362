"""The workers of a source's dumps: each does jobs, one after the other, on a connection of its own.

Comes in: jobs. Goes out: what became of them: done, to be tried again, or the end of the dump. What fails ends no
worker, and neither the stream nor other dumps.

::

    the server can't be reached, refuses, breaks off     again, after a while that grows; the status says why
    ... and was started anew, twice, at the same rows     the dump fails: they may be what ends the server
    ... while the dump is planned                         again without a look at its rows; after that as above
    ... while the dump is planned, for a lack of grants   the dump fails: it could never be read
    the definition moved while it was read                again at once; the dump fails if nothing has moved
    the table is not there                                the dump fails where the stream has met its DROPPED or
                                                          RENAMED; else after a moment: a swap may be going on
    the key, or its order, is another one                 again at once, since the table may be going; the dump fails
                                                          if nothing has moved: what was read is of another order
    a row can't be read                                   its chunk again in smaller parts, until that row is alone:
                                                          the dump fails, and names where it is
    ... of a table that is read whole                     again at once; the dump fails if nothing has moved
"""

import logging
import threading
import time

from menura.errors import MenuraError

from agent.config import SourceConfig
from agent.credit import Credit, CreditCancelled
from agent.errors import (
    DefinitionMoved,
    ResultInvalid,
    SourceConnectionLost,
    SourceGrantMissing,
    TableError,
    defect,
)
from agent.mysql.dump.access import Access
from agent.mysql.dump.bounds import OrderChanged
from agent.mysql.dump.desk import Desk
from agent.mysql.dump.failures import key_changed, row_unreadable, rows_unreadable, server_ends, table_gone
from agent.mysql.dump.governing import Governing
from agent.mysql.dump.governor import ReadCancelled
from agent.mysql.dump.jobs import Job, Task
from agent.mysql.dump.orders import Orders
from agent.mysql.dump.reading import KeyMissing, NotYet, Reader, ServerEnds, TableMissing
from agent.mysql.dump.statements import BoundInvalid
from agent.mysql.dump.work import RangeWork
from agent.session import StreamClosed
from agent.state import SourceState

log = logging.getLogger("menura.dump")

#: a connection that nobody needs is given back
IDLE_SECONDS = 5.0
STOP_SECONDS = 5.0
#: how soon something that is not there yet is looked for again
LOOK_SECONDS = 0.25
#: the two statements of an online schema change's swap may leave a table without its name for a moment
MISSING_SECONDS = 10.0


class Workers:
    """Of one source; they begin with its first stream."""

    def __init__(self, config: SourceConfig, desk: Desk, orders: Orders, credit: Credit, state: SourceState) -> None:
        governing = Governing(config)
        self._workers = [
            Worker(number, config, desk, orders, credit, governing, state) for number in range(config.dump.workers)
        ]
        orders.wake_senders = credit.wake

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """After `Orders.stop`."""
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers:
            worker.join(deadline - time.monotonic())


class Worker:
    def __init__(
        self,
        number: int,
        config: SourceConfig,
        desk: Desk,
        orders: Orders,
        credit: Credit,
        governing: Governing,
        state: SourceState,
    ) -> None:
        self._config = config
        self._desk = desk
        self._orders = orders
        self._credit = credit
        self._governing = governing
        self._state = state
        self._reader: Reader | None = None
        self._thread = threading.Thread(target=self._run, name=f"{config.name}/dump-{number}", daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def join(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        while not self._orders.is_stopping:
            job = self._orders.next_job(IDLE_SECONDS)
            if job is None:
                self._disconnect()
                continue
            try:
                self._do(job)
            finally:
                self._orders.done(job)
        self._disconnect()

    def _do(self, job: Job) -> None:
        try:
            self._reader_for(job).do(job)
        except Exception as failed:  # noqa: BLE001  (judged by its class; a defect is logged there)
            self._abandon(job, failed)
        finally:
            job.interrupt = lambda: None

    def _abandon(self, job: Job, failed: Exception) -> None:
        """Give up what was begun, and say what is to become of the job."""
        try:
            if self._reader is not None:
                self._reader.give_up(job)
            if not job.cancelled.is_set():
                self._judge(job, failed)
        except StreamClosed:  # everything begins again with the next one
            pass
        finally:
            if job.cancelled.is_set() and self._reader is not None and job.task in (Task.CHUNK, Task.WHOLE):
                self._reader.access.end_on_server()
            if job.cancelled.is_set() or not isinstance(failed, (NotYet, TableMissing)):
                self._disconnect()

    def _judge(self, job: Job, failed: Exception) -> None:
        orders, work, name = self._orders, job.work, self._config.name
        match failed:
            case StreamClosed() | CreditCancelled() | ReadCancelled():
                return
            case NotYet():
                orders.waits(job, str(failed), LOOK_SECONDS)
            case TableMissing():
                self._missing(job)
            case KeyMissing() | OrderChanged() | BoundInvalid():
                key = tuple(work.order.plan.key)
                is_missing = isinstance(failed, KeyMissing)
                found = (
                    "it was dropped or renamed" if is_missing else "the types or collations of its columns are others"
                )
                self._moved(job, f"the table's key: {found}", key_changed(name, work.table, key, found))
            case DefinitionMoved():
                self._moved(job, failed.found, failed)
            case SourceConnectionLost():
                losses = job.part.losses if job.part is not None else work.losses
                losses.lost_on = self._reader.access.started if self._reader is not None else None
                orders.retries(job, failed)
            case ServerEnds():
                orders.fails(work, server_ends(name, work.table, tuple(work.order.plan.key), job.part, work.losses))
            case ResultInvalid() if job.part is not None:
                self._unreadable(job, job.part, failed)
            case SourceGrantMissing() if job.task is Task.PLAN:
                orders.fails(work, failed)
            case TableError() if failed.terminal:
                orders.fails(work, failed)
            case MenuraError():
                orders.retries(job, failed)
            case _:
                log.exception("defect", exc_info=failed, extra={"fields": {"source": name, "dump": work.dump}})
                orders.retries(job, defect(f"dumping {'.'.join(work.table)}", failed, name))

    def _unreadable(self, job: Job, part: RangeWork, failed: ResultInvalid) -> None:
        orders, work, name = self._orders, job.work, self._config.name
        if job.task is Task.WHOLE:
            self._moved(job, failed.found, rows_unreadable(name, work.table, failed))
        elif not orders.narrows(job):
            orders.fails(work, row_unreadable(name, work.table, tuple(work.order.plan.key), part, failed))

    def _missing(self, job: Job) -> None:
        now = time.monotonic()
        since = job.work.missing_since = job.work.missing_since or now
        if not job.work.gone and now - since < MISSING_SECONDS:
            self._orders.waits(job, "the table is not there", LOOK_SECONDS)
        else:
            found = f"the stream has met its {job.work.gone}" if job.work.gone else "the server has none of this name"
            self._orders.fails(job.work, table_gone(self._config.name, job.work.table, found))

    def _moved(self, job: Job, found: str, final: MenuraError) -> None:
        """A definition that does not fit what is read has moved on, or goes; if it was the same before, it has not."""
        used = self._reader.used if self._reader is not None else None
        if used is not None and used == job.work.moved_with:
            self._orders.fails(job.work, final)
            return
        job.work.moved_with = used
        self._orders.waits(job, found, LOOK_SECONDS)

    # --- its connection

    def _reader_for(self, job: Job) -> Reader:
        scheme = self._desk.scheme
        if scheme is None:
            raise NotYet("the stream of the source does not run")
        if self._reader is not None and self._reader.access.scheme is not scheme:
            self._disconnect()
        if self._reader is None:
            access = Access.open(self._config, scheme)
            self._reader = Reader(access, self._desk, self._orders, self._credit, self._governing, self._state)
        job.interrupt = self._reader.access.interrupt
        if job.cancelled.is_set():  # before the line above it had nothing to interrupt
            raise ReadCancelled
        return self._reader

    def _disconnect(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.access.close()
