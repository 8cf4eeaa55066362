"""What the gateway hears of each dump: its state, why it waits and since when, its speed.

Comes in: the works, and the jobs that workers are on. Goes out: `DumpStatus`es worth telling: at once when the state
changes, else once a second.
"""

import time
from collections.abc import Collection, Iterable
from datetime import UTC, datetime

from menura.v1 import mysql_client_pb2

from agent.mysql.dump.jobs import Job
from agent.mysql.dump.work import DumpWork

STATUS_SECONDS = 1.0
BUSY = "the workers are busy with other dumps"
GATEWAY_WAITS = "the gateway takes no more rows: what it has must land, or waits for its cut"

_Status = mysql_client_pb2.DumpStatus


class Statuses:
    """Of one stream."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[_Status, float]] = {}

    def worth_telling(self, works: Iterable[DumpWork], jobs: Collection[Job]) -> list[_Status]:
        now = time.monotonic()
        found: list[_Status] = []
        told: dict[str, tuple[_Status, float]] = {}
        for work in works:
            status = status_of(work, [job for job in jobs if job.work is work])
            known, at = self._told.get(work.dump, (None, 0.0))
            is_new = known is None or known.state != status.state
            if is_new or (known != status and now - at >= STATUS_SECONDS):
                found.append(status)
                told[work.dump] = (status, now)
            elif known is not None:
                told[work.dump] = (known, at)
        self._told = told
        return found


def status_of(work: DumpWork, jobs: Collection[Job]) -> _Status:
    """`jobs`: its own."""
    rows, size_bytes = work.meter.per_second()
    state, reason = _state(work, jobs)
    return _Status(
        dump=work.dump,
        state=state,
        reason=reason,
        rows_per_second=rows,
        bytes_per_second=size_bytes,
        uncommitted_rows=work.uncommitted_rows,
    )


def _state(work: DumpWork, jobs: Collection[Job]) -> tuple[_Status.State, str]:
    if work.order.paused:
        return _Status.PAUSED, ""
    held = [_held(job) for job in jobs]
    reason = held[0] if jobs and all(held) else _noted(work, jobs)
    if not work.has_plan:
        return _Status.PLANNING, reason
    if all(left.is_read for left in work.ranges.values()):
        return _Status.ENDING, reason
    if reason:
        return _Status.WAITING, reason
    if not jobs:
        return _Status.WAITING, BUSY
    return _Status.READING, next((job.share.slowed for job in jobs if job.share and job.share.slowed), "")


def _noted(work: DumpWork, jobs: Collection[Job]) -> str:
    """Why nothing of it is done. One that a worker should have looked at again is old."""
    if not work.reason:
        return ""
    if work.retry_at and not jobs and time.monotonic() - work.retry_at > STATUS_SECONDS:
        return BUSY
    return _since(work.reason, work.reason_since_us)


def _held(job: Job) -> str:
    """Why its worker reads nothing now; "": it reads, be it slowly."""
    if job.share is not None and job.share.held:
        return job.share.held
    since_us = job.sending_since_us
    if since_us and time.time_ns() // 1000 - since_us > STATUS_SECONDS * 1_000_000:
        return _since(GATEWAY_WAITS, since_us)
    return ""


def _since(reason: str, since_us: int) -> str:
    since = datetime.fromtimestamp(since_us / 1_000_000, UTC)
    return f"{reason} (since {since:%Y-%m-%d %H:%M:%S} UTC)"
