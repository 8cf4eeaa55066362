"""The workers of a source's dumps: each does tasks, one after the other, on a connection of its own.

Comes in: tasks. Goes out: what became of them: done, to be tried again, or the end of the dump. What fails ends no
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
    ... of an unchunked snapshot                          again at once; the dump fails if nothing has moved
"""

import logging
import threading
import time

from menura.errors import MenuraError
from menura.v1 import snapshot_pb2

from agent.errors import (
    DefinitionMoved,
    ResultInvalid,
    SourceConnectionLost,
    SourceGrantMissing,
    TableError,
    defect,
)
from agent.runtime.credit import Credit, CreditCancelled
from agent.runtime.session import StreamClosed
from agent.settings import SourceConfig
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.failures import (
    key_changed,
    no_snapshots,
    row_unreadable,
    rows_unreadable,
    server_ends,
    table_gone,
)
from agent.snapshot.progress import RangeProgress
from agent.snapshot.reader import BoundInvalid, KeyMissing, OpenReader, OrderChanged, TableMissing
from agent.snapshot.reading import NotYet, ServerEnds, SnapshotReading
from agent.snapshot.scheduler import SnapshotScheduler
from agent.snapshot.tasks import SnapshotTask, TaskKind
from agent.snapshot.throttle import ReadCancelled
from agent.snapshot.throttles import Throttles

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

    def __init__(
        self,
        config: SourceConfig,
        coordinator: SnapshotCoordinator,
        scheduler: SnapshotScheduler,
        credit: Credit,
        open_reader: OpenReader | None,
    ) -> None:
        throttles = Throttles(config)
        self._workers = [
            Worker(number, config, coordinator, scheduler, credit, throttles, open_reader)
            for number in range(config.dump.workers)
        ]
        scheduler.wake_senders = credit.wake

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def stop(self) -> None:
        """After `SnapshotScheduler.stop`."""
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers:
            worker.join(deadline - time.monotonic())


class Worker:
    def __init__(
        self,
        number: int,
        config: SourceConfig,
        coordinator: SnapshotCoordinator,
        scheduler: SnapshotScheduler,
        credit: Credit,
        throttles: Throttles,
        open_reader: OpenReader | None,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._scheduler = scheduler
        self._credit = credit
        self._throttles = throttles
        self._open_reader = open_reader
        self._reading: SnapshotReading | None = None
        self._thread = threading.Thread(target=self._run, name=f"{config.name}/dump-{number}", daemon=True)

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def join(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._thread.join(max(0.0, seconds))

    def _run(self) -> None:
        while not self._scheduler.is_stopping:
            task = self._scheduler.next_task(IDLE_SECONDS)
            if task is None:
                self._disconnect()
                continue
            try:
                self._do(task)
            finally:
                self._scheduler.done(task)
        self._disconnect()

    def _do(self, task: SnapshotTask) -> None:
        try:
            self._reading_for(task).do(task)
        except Exception as failed:  # noqa: BLE001  (judged by its class; a defect is logged there)
            self._abandon(task, failed)
        finally:
            task.interrupt = lambda: None

    def _abandon(self, task: SnapshotTask, failed: Exception) -> None:
        """Give up what was begun, and say what is to become of the task."""
        try:
            if self._reading is not None:
                self._reading.give_up(task)
            if not task.cancelled.is_set():
                self._judge(task, failed)
        except StreamClosed:  # everything begins again with the next one
            pass
        finally:
            if (
                task.cancelled.is_set()
                and self._reading is not None
                and task.kind in (TaskKind.CHUNK, TaskKind.UNCHUNKED)
            ):
                self._reading.tables.end_on_server()
            if task.cancelled.is_set() or not isinstance(failed, (NotYet, TableMissing)):
                self._disconnect()

    def _judge(self, task: SnapshotTask, failed: Exception) -> None:
        scheduler, progress, name = self._scheduler, task.progress, self._config.name
        match failed:
            case StreamClosed() | CreditCancelled() | ReadCancelled():
                return
            case NotYet():
                scheduler.waits(task, snapshot_pb2.DumpStatus.STREAM, str(failed), LOOK_SECONDS)
            case TableMissing():
                self._missing(task)
            case KeyMissing() | OrderChanged() | BoundInvalid():
                key = tuple(progress.order.plan.key)
                is_missing = isinstance(failed, KeyMissing)
                found = (
                    "it was dropped or renamed" if is_missing else "the types or collations of its columns are others"
                )
                self._moved(task, f"the table's key: {found}", key_changed(name, progress.table, key, found))
            case DefinitionMoved():
                self._moved(task, failed.found, failed)
            case SourceConnectionLost():
                losses = task.part.losses if task.part is not None else progress.losses
                losses.lost_on = self._reading.tables.started if self._reading is not None else None
                scheduler.retries(task, failed)
            case ServerEnds():
                scheduler.fails(
                    progress,
                    server_ends(name, progress.table, tuple(progress.order.plan.key), task.part, progress.losses),
                )
            case ResultInvalid() if task.part is not None:
                self._unreadable(task, task.part, failed)
            case SourceGrantMissing() if task.kind is TaskKind.PLAN:
                scheduler.fails(progress, failed)
            case TableError() if failed.terminal:
                scheduler.fails(progress, failed)
            case MenuraError():
                scheduler.retries(task, failed)
            case _:
                log.exception("defect", exc_info=failed, extra={"fields": {"source": name, "dump": progress.dump}})
                scheduler.retries(task, defect(f"dumping {'.'.join(progress.table)}", failed, name))

    def _unreadable(self, task: SnapshotTask, part: RangeProgress, failed: ResultInvalid) -> None:
        scheduler, progress, name = self._scheduler, task.progress, self._config.name
        if task.kind is TaskKind.UNCHUNKED:
            self._moved(task, failed.found, rows_unreadable(name, progress.table, failed))
        elif not scheduler.narrows(task):
            scheduler.fails(
                progress, row_unreadable(name, progress.table, tuple(progress.order.plan.key), part, failed)
            )

    def _missing(self, task: SnapshotTask) -> None:
        now = time.monotonic()
        since = task.progress.missing_since = task.progress.missing_since or now
        if not task.progress.gone and now - since < MISSING_SECONDS:
            held = snapshot_pb2.DumpStatus.TABLE_MISSING
            self._scheduler.waits(task, held, "the table is not there", LOOK_SECONDS)
        else:
            found = (
                f"the stream has met its {task.progress.gone}"
                if task.progress.gone
                else "the server has none of this name"
            )
            self._scheduler.fails(task.progress, table_gone(self._config.name, task.progress.table, found))

    def _moved(self, task: SnapshotTask, found: str, final: MenuraError) -> None:
        """A definition that does not fit what is read has moved on, or goes; if it was the same before, it has not."""
        used = self._reading.tables.used if self._reading is not None else None
        if used is not None and used == task.progress.moved_with:
            self._scheduler.fails(task.progress, final)
            return
        task.progress.moved_with = used
        self._scheduler.waits(task, snapshot_pb2.DumpStatus.STREAM, found, LOOK_SECONDS)

    # --- its connection

    def _reading_for(self, task: SnapshotTask) -> SnapshotReading:
        if self._open_reader is None:
            raise no_snapshots(self._config.name, task.progress.table)
        position_kind = self._coordinator.position_kind
        if position_kind is None:
            raise NotYet("the stream of the source does not run")
        if self._reading is not None and self._reading.tables.position_kind is not position_kind:
            self._disconnect()
        if self._reading is None:
            self._reading = SnapshotReading(
                self._open_reader(position_kind),
                self._config,
                self._coordinator,
                self._scheduler,
                self._credit,
                self._throttles,
            )
        task.interrupt = self._reading.tables.interrupt
        if task.cancelled.is_set():  # before the line above it had nothing to interrupt
            raise ReadCancelled
        return self._reading

    def _disconnect(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.tables.close()
