"""What the gateway hears of each dump: its state, why it waits and since when, its speed.

Comes in: the works. Goes out: `DumpStatus`es worth telling: at once when the state changes, else once a second.
"""

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from menura.v1 import mysql_client_pb2

from agent.mysql.dump.work import DumpWork

STATUS_SECONDS = 1.0

_Status = mysql_client_pb2.DumpStatus


class Statuses:
    """Of one stream."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[_Status, float]] = {}

    def worth_telling(self, works: Iterable[DumpWork], held_back: Mapping[str, str]) -> list[_Status]:
        """`held_back`: of dumps whose workers wait or were slowed down, by what."""
        now = time.monotonic()
        found: list[_Status] = []
        told: dict[str, tuple[_Status, float]] = {}
        for work in works:
            status = status_of(work, held_back.get(work.dump, ""))
            known, at = self._told.get(work.dump, (None, 0.0))
            is_new = known is None or known.state != status.state
            if is_new or (known != status and now - at >= STATUS_SECONDS):
                found.append(status)
                told[work.dump] = (status, now)
            elif known is not None:
                told[work.dump] = (known, at)
        self._told = told
        return found


def status_of(work: DumpWork, held_back: str) -> _Status:
    rows, size_bytes = work.meter.per_second()
    state, reason = _state(work, held_back)
    return _Status(
        dump=work.dump,
        state=state,
        reason=reason,
        rows_per_second=rows,
        bytes_per_second=size_bytes,
        uncommitted_rows=work.uncommitted_rows,
    )


def _state(work: DumpWork, held_back: str) -> tuple[_Status.State, str]:
    if work.order.paused:
        return _Status.PAUSED, ""
    reason = ""
    if work.reason:
        since = datetime.fromtimestamp(work.reason_since_us / 1_000_000, UTC)
        reason = f"{work.reason} (since {since:%Y-%m-%d %H:%M:%S} UTC)"
    if not work.has_plan:
        return _Status.PLANNING, reason
    if all(left.is_read for left in work.ranges.values()):
        return _Status.ENDING, reason
    if reason:
        return _Status.WAITING, reason
    if held_back:
        return _Status.WAITING, held_back
    if not work.jobs:
        return _Status.WAITING, "the workers are busy with other dumps"
    return _Status.READING, ""
