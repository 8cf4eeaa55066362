"""Rounds of the views' turns as boundaries of the lake: those of a tenant's views are a source of their own.

Comes in: what turns have made, and how all views of their tenant stand. Durable is a batch of LAKE/_menura/cuts, with
the next number. A kill before it leaves versions that the next round records, since each look says where a view is.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

from menura.instants import now_us
from menura.views.definition import VIEW_SOURCE, ViewState

from spark_sink.ingest.view_task import ViewOutcome
from spark_sink.lake.boundaries import read_boundaries
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.records import Records
from spark_sink.views.maintain import view_table_id
from spark_sink.work import CutSeen, Outcome, Result


class ViewRounds:
    """`lock`: held while records are written."""

    def __init__(self, records: Records, lock: AbstractContextManager[object]) -> None:
        self._records = records
        self._lock = lock
        self._round = -1

    def record(self, done: Sequence[ViewOutcome], states: Iterable[ViewState]) -> None:
        """A boundary of each tenant's views, of which some have a new version."""
        held = list(states)
        for tenant in dict.fromkeys(each.tenant for each in done):
            with self._lock:
                if self._round < 0:
                    self._round = _last_round(self._records)
                self._round += 1
                own = [state for state in held if state.tenant == tenant]
                committed_us = max((cut.committed_us for state in own for cut in state.cuts), default=0)
                boundary = CutSeen(tenant, VIEW_SOURCE, 0, self._round, 0, now_us(), committed_us, committed_us)
                outcomes = [
                    _recorded(each, self._round) for each in done if each.tenant == tenant and each.version is not None
                ]
                self._records.record_batch([boundary], outcomes, whole=True)


def _recorded(done: ViewOutcome, cut: int) -> Outcome:
    assert done.version is not None
    return Outcome(
        view_table_id(done.tenant, done.name),
        Result.APPLIED,
        0,
        cut,
        done.version.changes,
        changelog_version=done.version.changelog_version,
        current_version=done.version.current_version,
    )


def _last_round(records: Records) -> int:
    """The highest number that views of any tenant have."""
    cuts = open_table(records.cuts_folder)
    tenants = {table.tenant for table in records.table_folders.tables() if table.source == VIEW_SOURCE}
    found = [read_boundaries(cuts, tenant, VIEW_SOURCE).found for tenant in tenants]
    return max((each[-1].cut for each in found if each), default=0)
