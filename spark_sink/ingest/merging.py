"""When changes that wait in changelogs are merged, and what is recorded of that.

Comes in: the tables whose changes have waited for long enough (`waiting_merges`). Small tables are merged by a job of
all cores, for which batches wait. Large ones' merges are prepared beside batches (`detached_merge`), some at a time,
and committed here between two of them: then a table's versions stand at the boundary that it has by now, and what has
come meanwhile waits on. A merge that was prepared for what the table is no more is given up, its files removed
(`left_merges`), and nothing is lost: the changes wait in the changelog as before. So it is where the table has stopped,
or has lost what waited to a batch. A merge that fails is tried again after a pause; meanwhile readers have what waits,
and a batch that can't wait any longer merges it and says why it fails.

Durable is the merge's commit, then its record. A kill before the former leaves files without a version, which the next
start removes; one between them a version without a record, which is recorded when the sink starts again.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from deltalake.exceptions import DeltaError
from menura.instants import now_us
from menura.stores.options import current
from menura.stores.reasons import reason_of
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sink.ingest.batch_jobs import BatchJobs, condition
from spark_sink.ingest.detached_merge import Came, Failed, MergeStart, Preparation, Turns
from spark_sink.ingest.left_merges import LeftMerges
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.table_states import TableStates
from spark_sink.ingest.table_task import clean_when_due
from spark_sink.lake.file_merge import PreparedMerge, Unplanned
from spark_sink.lake.merge_commit import (
    MergeCommitted,
    commit_merge,
    current_version,
    has_tail,
    merged_version,
)
from spark_sink.lake.recorded import NOTHING
from spark_sink.lake.records import Records
from spark_sink.lake.table_folders import folders_by_rule
from spark_sink.work import CutSeen, Outcome, Result, TableId

#: large tables at once
MOST_PREPARED = 4
#: until a table's merge is prepared again that was prepared in vain, which cost as much as one that counts: where
#: changes come faster than a merge takes them in, its batches do it
VAIN_PAUSE_SECONDS = 300.0

logger = logging.getLogger("menura.sink")


class Merging:
    """Of one sink. `lock`: keeps batches away; `check` raises a `SinkError` where another sink has the lake."""

    def __init__(
        self,
        session: SparkSession,
        settings: SinkSettings,
        tables: TableStates,
        jobs: BatchJobs,
        records: Records,
        lock: AbstractContextManager[object],
        check: Callable[[], object],
    ) -> None:
        self._session = session
        self._settings = settings
        self._tables = tables
        self._jobs = jobs
        self._records = records
        self._lock = lock
        self._check = check
        self._left = LeftMerges(settings.lake)
        #: one of a table
        self._preparations: list[Preparation] = []
        self._turns = Turns()
        #: until when tables rest whose merges were prepared in vain, by the monotonic clock
        self._rests: dict[TableId, float] = {}
        self._has_looked = False
        self._stopping = False

    def start(self) -> None:
        self._preparations, self._has_looked, self._stopping = [], False, False

    def stop(self) -> None:
        """What is prepared is given up, and nothing begins."""
        self._stopping = True
        for preparation in self._preparations:
            preparation.cancel()

    def join(self, seconds: float) -> None:
        """Wait for what was given up, and remove its files; those of what has not ended go at the next start."""
        ends_at = time.monotonic() + seconds
        for preparation in self._preparations:
            preparation.join(max(0.0, ends_at - time.monotonic()))
            if preparation.is_done:
                self._left.has_ended(preparation.start.preparation, (), lives_on=True)

    @property
    def has_more(self) -> bool:
        """Whether there is something to be done now."""
        if any(preparation.is_done for preparation in self._preparations):
            return True
        return bool(self._tables.merges.due(now_us(), dict(self._tables.stopped), 1)) or self._next_due() is not None

    def turn(self) -> None:
        """Commit what is prepared, prepare what is due, merge small tables. Raises what Spark and records raise."""
        for preparation in [each for each in self._preparations if each.is_done]:
            self._commit_prepared(preparation)
        self._cancel_unwanted()
        if not self._has_looked:
            self._remove_left()
        while not self._stopping and (due := self._next_due()) is not None:
            self._prepare(due)
        self._merge_small()

    # --- large tables

    def _next_due(self) -> TableId | None:
        if len(self._preparations) >= MOST_PREPARED:
            return None
        now = time.monotonic()
        self._rests = {table: until for table, until in self._rests.items() if until > now}
        left_out = {*dict(self._tables.stopped), *(each.start.table for each in self._preparations), *self._rests}
        return self._tables.merges.due_detached(now_us(), left_out)

    def _cancel_unwanted(self) -> None:
        """Of tables that have stopped, or of which nothing waits any more."""
        waiting, stopped = self._tables.merges.tables, self._tables.stopped
        for preparation in self._preparations:
            table = preparation.start.table
            if not preparation.is_cancelled and (table in stopped or table not in waiting):
                preparation.cancel()

    def _prepare(self, table: TableId) -> None:
        merges = self._tables.merges
        self._remove_left()
        try:
            version = current_version(self._settings.lake, table)
        except (OSError, DeltaError) as failed:
            self._failed(table, f"{type(failed).__name__} ({reason_of(failed)})")
            return
        recorded = self._tables.recorded.get(table, NOTHING)
        if version is None or recorded.changelog is None:
            merges.is_not_detached(table)
            return
        folder = folders_by_rule(self._settings.lake).get(table)
        own = {table: folder} if folder else {}
        waiting = self._settings.table_waiting
        start = MergeStart(self._settings.lake, table, recorded, version, waiting, current().carried(), own)
        cores = max(1, self._session.sparkContext.defaultParallelism - 1)
        self._preparations.append(Preparation(self._session, start, cores, self._turns))

    def _remove_left(self) -> None:
        """What a kill, or an answer that a store owes, has left: before another merge leaves more."""
        left = self._left.found([each.start.preparation for each in self._preparations])
        settled: Mapping[str, frozenset[str]] = {}
        if left:
            with self._lock:
                if self._stopping:
                    return
                self._check()
                settled = self._left.settle(left)
        self._left.remove(settled)
        self._has_looked = True

    def _commit_prepared(self, preparation: Preparation) -> None:
        came: Came = None
        try:
            came = preparation.take()
        except BaseException as lost:  # noqa: BLE001  (a table's merge never ends the sink, whatever it meets)
            if not preparation.is_cancelled:
                is_of_spark = isinstance(lost, PySparkException | Py4JJavaError)
                came = Failed(condition(lost) if is_of_spark else type(lost).__name__)
        with self._lock:
            if self._stopping:
                return
            self._check()
            self._preparations.remove(preparation)  # from now on its files may be a commit's
            kept = self._end(preparation.start, came)
        if kept is not None:
            lives_on = not isinstance(came, PreparedMerge | Unplanned)
            self._left.has_ended(preparation.start.preparation, kept, lives_on=lives_on)

    def _end(self, start: MergeStart, came: Came) -> frozenset[str] | None:
        """The files that its commit names; None: nobody knows."""
        merges, table = self._tables.merges, start.table
        is_waiting = table in merges.tables and table not in self._tables.stopped
        if isinstance(came, PreparedMerge) and is_waiting:
            try:
                if self._commit(came):
                    return frozenset(each.name for each in came.added)
            except (OSError, DeltaError) as failed:
                self._failed(table, f"{type(failed).__name__} ({reason_of(failed)})")
                return None
        if isinstance(came, Failed):
            self._failed(table, came.message)
        elif came is Unplanned.WHOLE:
            merges.is_not_detached(table)
        elif came is Unplanned.MERGED and is_waiting:
            self._record_merged(table)
        elif not isinstance(came, Unplanned):
            self._rests[table] = time.monotonic() + VAIN_PAUSE_SECONDS
            logger.info("a merge was prepared in vain, and its changes wait on table=%s", table)
        return frozenset()

    def _commit(self, prepared: PreparedMerge) -> bool:
        """Whether it is done. Raises OSError, DeltaError: then nobody knows."""
        table, began = prepared.plan.table, time.monotonic()
        cut = self._tables.merges.tables[table].boundary.cut
        committed = commit_merge(self._settings.lake, prepared, cut, self._settings.table_waiting)
        if committed is None:
            return False
        self._record(table, committed)
        if committed.merged_gsn:
            self._tables.merges.waits_on(table, committed.until_us, now_us())
        else:
            self._tables.merges.done([table])
        logger.info(
            "waiting changes merged beside batches table=%s files=%d seconds=%.3f",
            table,
            len(prepared.added),
            time.monotonic() - began,
        )
        return True

    def _record_merged(self, table: TableId) -> None:
        """Nothing waited: perhaps a kill came between a merge and its record. What has come since waits on."""
        try:
            found = merged_version(self._settings.lake, table, self._tables.recorded.get(table, NOTHING))
            if found is None and has_tail(self._settings.lake, table):
                return
        except (OSError, DeltaError) as failed:
            self._failed(table, f"{type(failed).__name__} ({reason_of(failed)})")
            return
        if found is not None:
            self._record(table, found)
        self._tables.merges.done([table])

    def _record(self, table: TableId, merged: MergeCommitted) -> None:
        """At the boundary that the table has; once in some versions its old files go."""
        boundary, recorded = self._tables.merges.tables[table].boundary, self._tables.recorded[table]
        outcome = Outcome(
            table,
            Result.APPLIED,
            boundary.entry,
            boundary.cut,
            changelog_version=recorded.changelog,
            current_version=merged.current,
            merged_gsn=merged.merged_gsn,
            departure=merged.departure,
        )
        self._records.record_batch([boundary], [outcome])
        settings = self._jobs.task_settings(frozenset(), {})
        self._tables.remember([replace(outcome, unclean=clean_when_due(settings, table, recorded, outcome))])

    def _failed(self, table: TableId, why: str) -> None:
        logger.warning("waiting changes not merged table=%s error=%s", table, why)
        self._tables.merges.failed([table], now_us())

    # --- small ones

    def _merge_small(self) -> None:
        """Of a table a core, for a batch waits."""
        most = self._session.sparkContext.defaultParallelism
        if not self._stopping and self._tables.merges.due(now_us(), self._tables.stopped, most):
            with self._lock:
                if not self._stopping:
                    self._merge(self._tables.merges.due(now_us(), self._tables.stopped, most))

    def _merge(self, due: Mapping[TableId, CutSeen]) -> None:
        if not due:
            return
        self._check()
        began = time.monotonic()
        try:
            outcomes = self._jobs.merge(due, frozenset(self._tables.stopped), self._tables.recorded)
        except (PySparkException, Py4JJavaError) as lost:
            logger.warning("waiting changes not merged tables=%d error=%s", len(due), condition(lost))
            self._tables.merges.failed(due, now_us())
            return
        self._merged(due, outcomes)
        logger.info("waiting changes merged tables=%d seconds=%.3f", len(due), time.monotonic() - began)

    def _merged(self, due: Mapping[TableId, CutSeen], outcomes: Sequence[Outcome]) -> None:
        """Record what of these is done; a table whose merge failed is read with what waits, and goes on."""
        failed = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        for outcome in failed:
            logger.warning("waiting changes not merged table=%s error=%s", outcome.table, outcome.message)
        self._tables.merges.failed([outcome.table for outcome in failed], now_us())
        for boundary in set(due.values()):
            done = [each for each in outcomes if due[each.table] == boundary and each.result is Result.APPLIED]
            self._records.record_batch([boundary], done)
            self._tables.remember(done)
        self._tables.merges.done({outcome.table for outcome in outcomes if outcome.result is not Result.STOPPED})
