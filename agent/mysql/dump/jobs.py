"""The next thing to do for a dump, and for which of them.

Comes in: the works of a source and what the desk knows of its stream. Goes out: a `Job`, or a reason in the work why
there is none. Higher priorities first; equal ones share the workers.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from agent.mysql.dump.desk import Desk
from agent.mysql.dump.governor import Share
from agent.mysql.dump.work import DumpWork, RangeWork
from agent.session import Outlet

#: of a dump, read and not committed: while the stream is behind, more would only wait
MOST_IN_FLIGHT = 32


class Task(Enum):
    PLAN = auto()
    #: a chunk of a range
    CHUNK = auto()
    #: a table in one snapshot
    WHOLE = auto()
    #: where the stream has to be for the dump to end
    END = auto()


@dataclass(slots=True)
class Job:
    task: Task
    work: DumpWork
    outlet: Outlet
    #: of the desk, when it was given out
    round: int
    part: RangeWork | None = None
    number: int = 0
    #: that the chunk may have
    most_rows: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)
    #: of what the governor gives
    share: Share | None = None
    #: batches of it that were sent
    sent_batches: int = 0
    #: since when rows wait for the gateway to take them; 0: none do
    sending_since_us: int = 0
    #: ends a read of another thread at once
    interrupt: Callable[[], None] = lambda: None

    def cancel(self) -> None:
        self.cancelled.set()
        self.interrupt()


def find_job(works: Iterable[DumpWork], desk: Desk, outlet: Outlet, round_: int) -> Job | None:
    """Counted in its work, and its range marked as busy."""
    now = time.monotonic()
    for work in sorted(works, key=lambda work: (-work.order.priority, work.jobs)):
        if work.is_failed or work.order.paused or now < work.retry_at:
            continue
        task = _task_of(work, desk)
        if task is None:
            continue
        if not work.retry_at:
            work.holds("")  # it was noted here, and is over
        job = Job(task, work, outlet, round_)
        if task in (Task.CHUNK, Task.WHOLE):
            job.part = work.free_range()
            assert job.part is not None
            job.part.is_busy = True
            job.number = work.take_number()
        work.jobs += 1
        return job
    return None


def _task_of(work: DumpWork, desk: Desk) -> Task | None:
    """None: nothing now; where the dump waits for something, that is noted."""
    order = work.order
    if not work.has_plan:
        return Task.PLAN if not work.jobs and not work.is_planned else None
    if order.limits.workers and work.jobs >= order.limits.workers:
        return None
    if work.is_whole and not desk.is_awaited(work.dump) and not work.in_flight:
        work.holds("the table's sync has to begin with this dump; the stream has not been told so, or does not run")
        return None
    if not work.is_whole and not order.started_gsn:
        desk.want_start(work.dump, work.table)
        work.holds("the stream of the table has to say that the dump begins, and has not, or does not run")
        return None
    if work.is_read and not work.in_flight:
        return Task.END if not work.jobs and not desk.is_ending(work.dump) else None
    if len(work.in_flight) >= MOST_IN_FLIGHT:
        work.holds(f"{len(work.in_flight)} chunks wait until the stream has committed the changes that they show")
        return None
    if work.free_range() is None:
        return None
    return Task.WHOLE if work.is_whole else Task.CHUNK
