"""The next thing to do for a dump, and for which of them.

Comes in: the dumps of a source and what the coordinator knows of its stream. Goes out: a `SnapshotTask`, or a reason in
the progress why there is none. Higher priorities first; equal ones share the workers.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from menura.v1 import changes_pb2, snapshot_pb2

from agent.runtime.session import StreamWriter
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.progress import RangeProgress, SnapshotProgress
from agent.snapshot.throttle import WorkerThrottle

_Held = snapshot_pb2.DumpStatus

#: of a dump, read and not committed: while the stream is behind, more would only wait
MOST_IN_FLIGHT = 32


class TaskKind(Enum):
    PLAN = auto()
    #: a chunk of a range
    CHUNK = auto()
    #: a table in one snapshot
    UNCHUNKED = auto()
    #: where the stream has to be for the dump to end
    END = auto()


@dataclass(slots=True)
class SnapshotTask:
    kind: TaskKind
    progress: SnapshotProgress
    writer: StreamWriter
    #: of the coordinator, when it was given out
    attempt: int
    part: RangeProgress | None = None
    number: int = 0
    #: that the chunk may have
    most_rows: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)
    throttle: WorkerThrottle | None = None
    #: batches of it that were sent
    sent_batches: int = 0
    #: since when rows wait for the gateway to take them; 0: none do
    sending_since_us: int = 0
    #: ends a read of another thread at once
    interrupt: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        self.cancelled.set()
        self.interrupt()


def find_task(
    dumps: Iterable[SnapshotProgress], coordinator: SnapshotCoordinator, writer: StreamWriter, attempt: int
) -> SnapshotTask | None:
    """Counted in its progress, and its range marked as busy."""
    now = time.monotonic()
    dumps = list(dumps)
    for progress in sorted(dumps, key=lambda progress: (-progress.order.priority, progress.tasks)):
        if progress.is_failed or progress.order.paused or now < progress.retry_at:
            continue
        if now < progress.begins_at:
            progress.holds(
                _Held.TURN,
                "it is not its turn: dumps of a table that follow each other wait longer and longer, this one for"
                f" {progress.order.begins_in_seconds} s",
            )
            continue
        kind = _kind_of(progress, dumps, coordinator)
        if kind is None:
            continue
        if not progress.retry_at:
            progress.is_free()  # it was noted here, and is over
        task = SnapshotTask(kind, progress, writer, attempt)
        if kind in (TaskKind.CHUNK, TaskKind.UNCHUNKED):
            task.part = progress.free_range()
            assert task.part is not None
            task.part.is_busy = True
            task.number = progress.take_number()
        progress.tasks += 1
        return task
    return None


def _kind_of(
    progress: SnapshotProgress, dumps: Sequence[SnapshotProgress], coordinator: SnapshotCoordinator
) -> TaskKind | None:
    """None: nothing now; where the dump waits for something, that is noted."""
    order = progress.order
    if not progress.has_plan:
        return TaskKind.PLAN if not progress.tasks and not progress.is_planned else None
    if order.limits.workers and progress.tasks >= order.limits.workers:
        return None
    if progress.is_unchunked and not coordinator.is_awaited(progress.dump) and not progress.in_flight:
        words = "the table's sync has to begin with this dump; the stream has not been told so, or does not run"
        progress.holds(_Held.STREAM, words)
        return None
    if not progress.is_unchunked and not order.started_gsn:
        first = next((other for other in dumps if _comes_before(other, progress, coordinator)), None)
        if first is not None and not order.verifies:
            progress.holds(
                _Held.TURN, f"{'.'.join(first.table)}, which the table's foreign keys follow, is dumped first"
            )
            return None
        coordinator.want_start(progress.dump, progress.table, _begins_with(progress), tells_anew=order.tells_anew)
        words = "the stream of the table has to say that the dump begins, and has not, or does not run"
        progress.holds(_Held.STREAM, words)
        return None
    if progress.is_read and not progress.in_flight:
        return TaskKind.END if not progress.tasks and not coordinator.is_ending(progress.dump) else None
    if len(progress.in_flight) >= MOST_IN_FLIGHT:
        progress.holds(
            _Held.STREAM,
            f"{len(progress.in_flight)} chunks wait until the stream has committed the changes that they show",
        )
        return None
    if progress.free_range() is None:
        return None
    return TaskKind.UNCHUNKED if progress.is_unchunked else TaskKind.CHUNK


def _begins_with(progress: SnapshotProgress) -> changes_pb2.TableEvent.Kind:
    if progress.order.verifies:
        return changes_pb2.TableEvent.VERIFICATION_STARTED
    return changes_pb2.TableEvent.REPAIR_STARTED if progress.repairs else changes_pb2.TableEvent.DUMP_STARTED


def _comes_before(other: SnapshotProgress, progress: SnapshotProgress, coordinator: SnapshotCoordinator) -> bool:
    """Whether the rows of the other table are to be there first: else what keys do through it would be read twice."""
    if other.table not in progress.above or progress.table in other.above or other.is_failed or other.order.paused:
        return False
    if time.monotonic() < other.begins_at:  # for longer than anybody should wait for it
        return False
    is_running = coordinator.position_kind is not None  # else it says nothing of either
    return not is_running or coordinator.is_streamed(other.table) or coordinator.is_awaited(other.dump)
