"""What the gateway hears of each dump: its state, why it waits and since when, its speed.

Comes in: the dumps, and the tasks that workers are on. Goes out: `DumpStatus`es worth telling: at once when the state
changes, else once a second.
"""

import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from menura.v1 import snapshot_pb2

from agent.snapshot.progress import SnapshotProgress
from agent.snapshot.tasks import SnapshotTask

STATUS_SECONDS = 1.0
BUSY = "the workers are busy with other dumps"
GATEWAY_WAITS = "the gateway takes no more rows: what it has must land, or waits for its cut"

_Status = snapshot_pb2.DumpStatus
#: what holds a dump, and the words for it
_Held = tuple[_Status.Held, str]
FREE: _Held = (_Status.HELD_UNSPECIFIED, "")


class Statuses:
    """Of one stream."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[_Status, float]] = {}

    def worth_telling(self, dumps: Iterable[SnapshotProgress], tasks: Collection[SnapshotTask]) -> list[_Status]:
        now = time.monotonic()
        found: list[_Status] = []
        told: dict[str, tuple[_Status, float]] = {}
        for progress in dumps:
            status = status_of(progress, [task for task in tasks if task.progress is progress])
            known, at = self._told.get(progress.dump, (None, 0.0))
            is_new = known is None or known.state != status.state
            if is_new or (known != status and now - at >= STATUS_SECONDS):
                found.append(status)
                told[progress.dump] = (status, now)
            elif known is not None:
                told[progress.dump] = (known, at)
        self._told = told
        return found


def status_of(progress: SnapshotProgress, tasks: Collection[SnapshotTask]) -> _Status:
    """`tasks`: its own."""
    rows, size_bytes = progress.meter.per_second()
    state, (held, reason) = _state(progress, tasks)
    return _Status(
        dump=progress.dump,
        state=state,
        held=held,
        reason=reason,
        rows_per_second=rows,
        bytes_per_second=size_bytes,
        uncommitted_rows=progress.uncommitted_rows,
    )


def _state(progress: SnapshotProgress, tasks: Collection[SnapshotTask]) -> tuple[_Status.State, _Held]:
    if progress.order.paused:
        return _Status.PAUSED, FREE
    holds = [_held(task) for task in tasks]
    held = holds[0] if tasks and FREE not in holds else _noted(progress, tasks)
    if not progress.has_plan:
        return _Status.PLANNING, held
    if all(left.is_read for left in progress.ranges.values()):
        return _Status.ENDING, held
    if held != FREE:
        return _Status.WAITING, held
    if not tasks:
        return _Status.WAITING, (_Status.TURN, BUSY)
    slowed = next((task.throttle.slowed for task in tasks if task.throttle and task.throttle.slowed), "")
    return _Status.READING, (_Status.RATE, slowed) if slowed else FREE


def _noted(progress: SnapshotProgress, tasks: Collection[SnapshotTask]) -> _Held:
    """Why nothing of it is done. One that a worker should have looked at again is old."""
    if not progress.reason:
        return FREE
    if progress.retry_at and not tasks and time.monotonic() - progress.retry_at > STATUS_SECONDS:
        return _Status.TURN, BUSY
    return progress.held, _since(progress.reason, progress.reason_since_us)


def _held(task: SnapshotTask) -> _Held:
    """Why its worker reads nothing now; `FREE`: it reads, be it slowly."""
    throttle = task.throttle  # its worker changes it meanwhile
    hold = None if throttle is None else throttle.hold
    if hold is not None:
        return hold.held, hold.reason
    since_us = task.sending_since_us
    if since_us and time.time_ns() // 1000 - since_us > STATUS_SECONDS * 1_000_000:
        return _Status.GATEWAY, _since(GATEWAY_WAITS, since_us)
    return FREE


def _since(reason: str, since_us: int) -> str:
    since = datetime.fromtimestamp(since_us / 1_000_000, UTC)
    return f"{reason} (since {since:%Y-%m-%d %H:%M:%S} UTC)"
