"""When changes that wait in changelogs are merged, and what is recorded of that.

Comes in: the tables whose changes have waited for long enough (`waiting_merges`). Small tables are merged by a job of
all cores, for which batches wait. A large one's merge is prepared beside batches (`detached_merge`), one at a time, and
committed here between two of them: then its versions stand at the boundary that the table has by now, and what has come
meanwhile waits on. A merge that was prepared for what the table is no more is given up, its files removed, and nothing
is lost: the changes wait in the changelog as before. So it is where the table has stopped, or has lost what waited to a
batch. A merge that fails is tried again after a pause; meanwhile readers have what waits, and a batch that can't wait
any longer merges it and says why it fails.

Durable is the merge's commit, then its record. A kill before the former leaves files without a version; one between
them a version without a record, which is recorded when the sink starts again.
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
from spark_sink.ingest.detached_merge import Came, Failed, MergeStart, Preparation
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.table_states import TableStates
from spark_sink.ingest.table_task import clean_when_due
from spark_sink.lake.file_merge import PreparedMerge, Unplanned
from spark_sink.lake.merge_commit import (
    MergeCommitted,
    begin_merge,
    commit_merge,
    merged_version,
    remove_effect,
    remove_left,
)
from spark_sink.lake.recorded import NOTHING
from spark_sink.lake.records import Records
from spark_sink.lake.table_folders import folders_by_rule
from spark_sink.work import CutSeen, Outcome, Result, TableId

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
        self._preparation: Preparation | None = None
        self._stopping = False

    def start(self) -> None:
        self._preparation, self._stopping = None, False

    def stop(self) -> None:
        """What is prepared is given up, and nothing begins."""
        self._stopping = True
        if self._preparation is not None:
            self._preparation.cancel()

    def join(self, seconds: float) -> None:
        """Wait for a preparation that was given up."""
        if self._preparation is not None:
            self._preparation.join(seconds)

    @property
    def has_more(self) -> bool:
        """Whether there is something to be done now."""
        stopped, merges = dict(self._tables.stopped), self._tables.merges
        if merges.due(now_us(), stopped, 1):
            return True
        if self._preparation is not None:
            return self._preparation.is_done
        return merges.due_detached(now_us(), stopped) is not None

    def turn(self) -> None:
        """Commit what is prepared, prepare what is due, merge small tables. Raises what Spark and records raise."""
        self._commit_prepared()
        self._prepare_next()
        self._merge_small()

    # --- large tables

    def _prepare_next(self) -> None:
        merges, stopped = self._tables.merges, dict(self._tables.stopped)
        if self._preparation is not None:
            table = self._preparation.start.table
            if not self._preparation.is_cancelled and (table in stopped or table not in merges.tables):
                self._preparation.cancel()
            return
        due = merges.due_detached(now_us(), stopped)
        if due is None or self._stopping:
            return
        try:
            version = begin_merge(self._settings.lake, due)
        except (OSError, DeltaError) as failed:
            self._failed(due, f"{type(failed).__name__} ({reason_of(failed)})")
            return
        recorded = self._tables.recorded.get(due, NOTHING)
        if version is None or recorded.changelog is None:
            merges.is_not_detached(due)
            return
        folder = folders_by_rule(self._settings.lake).get(due)
        own = {due: folder} if folder else {}
        waiting = self._settings.table_waiting
        start = MergeStart(self._settings.lake, due, recorded, version, waiting, current().carried(), own)
        self._preparation = Preparation(self._session, start, max(1, self._session.sparkContext.defaultParallelism - 1))

    def _commit_prepared(self) -> None:
        preparation = self._preparation
        if preparation is None or not preparation.is_done or self._stopping:
            return
        self._preparation = None
        came: Came = None
        try:
            came = preparation.take()
        except (PySparkException, Py4JJavaError) as lost:
            if not preparation.is_cancelled:
                came = Failed(condition(lost))
        with self._lock:
            if not self._stopping:
                self._check()
                self._end(preparation.start, came)

    def _end(self, start: MergeStart, came: Came) -> None:
        merges, table = self._tables.merges, start.table
        is_waiting = table in merges.tables and table not in self._tables.stopped
        if isinstance(came, PreparedMerge) and is_waiting and self._commit(came):
            return
        if isinstance(came, Failed):
            self._failed(table, came.message)
        elif came is Unplanned.WHOLE:
            merges.is_not_detached(table)
        elif came is Unplanned.MERGED and is_waiting:
            self._record_merged(table)
        elif not isinstance(came, Unplanned):
            logger.info("a merge was prepared in vain, and its changes wait on table=%s", table)
        try:
            remove_left(self._settings.lake, table, start.version)
        except OSError as failed:
            logger.warning("files of a merge not removed table=%s error=%s", table, type(failed).__name__)

    def _commit(self, prepared: PreparedMerge) -> bool:
        """Whether it is done, or nobody knows."""
        table, began = prepared.plan.table, time.monotonic()
        cut = self._tables.merges.tables[table].boundary.cut
        try:
            committed = commit_merge(self._settings.lake, prepared, cut, self._settings.table_waiting)
        except (OSError, DeltaError) as failed:
            self._failed(table, f"{type(failed).__name__} ({reason_of(failed)})")
            return True
        if committed is None:
            return False
        self._record(table, committed)
        if committed.merged_gsn:
            self._tables.merges.waits_on(table, committed.until_us)
        else:
            self._tables.merges.done([table])
        try:
            remove_effect(self._settings.lake, prepared.plan)
        except OSError as failed:
            logger.warning("files of a merge not removed table=%s error=%s", table, type(failed).__name__)
        logger.info(
            "waiting changes merged beside batches table=%s files=%d seconds=%.3f",
            table,
            len(prepared.added),
            time.monotonic() - began,
        )
        return True

    def _record_merged(self, table: TableId) -> None:
        """Nothing waits: perhaps a kill came between a merge and its record."""
        try:
            found = merged_version(self._settings.lake, table, self._tables.recorded.get(table, NOTHING))
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
