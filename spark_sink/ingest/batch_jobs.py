"""A batch's rows as Spark jobs: one for all tables, parts of it where a worker was lost, then the large tables.

Comes in: rows of the cut log, a table's together in one partition, and what is recorded of the tables. Goes out: what
the tasks say (`work.Message`). Durable is what the tasks wrote; a job that fails leaves tables done and not done, and
the former skip what they hold when they are given it again.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from menura.landing import decode_event
from menura.stores.options import current
from py4j.protocol import Py4JJavaError
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession

from spark_sink.ingest.at_work import job_folder, tables_at_work
from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.cut_log_source import ROW_SCHEMA, Row, divide
from spark_sink.ingest.families import Families, parents_of
from spark_sink.ingest.isolation import JobLost, isolated
from spark_sink.ingest.large_merge import LargeMerger
from spark_sink.ingest.lost_workers import LostWorkers
from spark_sink.ingest.masters import is_local
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.table_task import TaskSettings, merge_task, parent_stopped, table_task, warm_up, with_folders
from spark_sink.lake.recorded import NOTHING, Recorded
from spark_sink.lake.records import Records
from spark_sink.landed.landing_log import LandingLog, log_entry_missing, log_entry_unreadable
from spark_sink.work import (
    CutSeen,
    EntryProblem,
    EventSeen,
    Message,
    Outcome,
    Result,
    TableId,
    decode,
    row_table,
    split_rows,
)

#: jobs of a batch in a row that lose a worker, before it is done in parts
MOST_LOST = 3

logger = logging.getLogger("menura.sink")


def condition(error: PySparkException | Py4JJavaError) -> str:
    """The error's condition or class; its text may hold values."""
    if isinstance(error, PySparkException):
        return str(error.getCondition() or type(error).__name__)
    return str(error.java_exception.getClass().getName())


class BatchJobs:
    """Of one sink. `check`: whether landing, lake and checkpoint belong together; raises a `SinkError`.

    `may_be_behind`: whether a table can be given what it misses in parts, should it stop now.
    """

    def __init__(
        self,
        session: SparkSession,
        settings: SinkSettings,
        log: LandingLog,
        records: Records,
        check: Callable[[], object],
        may_be_behind: Callable[[TableId], bool],
    ) -> None:
        self._session = session
        self._settings = settings
        self._log = log
        self._records = records
        self._check = check
        self._may_be_behind = may_be_behind
        self._large = LargeMerger(session, log, settings.lake)
        self._lost = LostWorkers()
        #: nobody wants the sink to go on
        self.stopping = False

    def warm_up(self, cores: int) -> None:
        """Start the Python workers and import what they need, before the first change waits for it."""
        self._session.sparkContext.parallelize(range(cores), cores).mapPartitions(warm_up).collect()

    def merge(
        self, due: Mapping[TableId, CutSeen], left_alone: frozenset[TableId], recorded: Mapping[TableId, Recorded]
    ) -> list[Outcome]:
        """Merge what waits of these tables. Raises what Spark raises."""
        task = merge_task(self.task_settings(left_alone, recorded))
        tables = [(table, boundary.cut) for table, boundary in due.items()]
        done = self._session.sparkContext.parallelize(tables, len(tables)).mapPartitions(task).collect()
        return [each for each in map(decode, done) if isinstance(each, Outcome)]

    def spread(self, rows: Sequence[Row], families: Families) -> RDD[SparkRow]:
        """Rows that are no batch's, over the cores; a family's stay together and in order."""
        context = self._session.sparkContext
        parts = divide(rows, context.defaultParallelism, families.family) or [[]]
        found = [[SparkRow(**{name: row.get(name) for name in ROW_SCHEMA.names}) for row in part] for part in parts]
        return context.parallelize(found, len(found)).flatMap(list)

    def run_batch(
        self,
        rows: RDD[SparkRow],
        left_alone: frozenset[TableId],
        recorded: Mapping[TableId, Recorded],
        share: BatchShare | None,
    ) -> tuple[list[CutSeen], list[EventSeen], list[Outcome]]:
        """A batch's: tables beyond the `share` stop, and those that had stopped before say so (`Result.LEFT_OUT`)."""
        return self._run(rows, replace(self.task_settings(left_alone, recorded), share=share, tells_left_out=True))

    def run(
        self, rows: RDD[SparkRow], left_alone: frozenset[TableId], recorded: Mapping[TableId, Recorded]
    ) -> list[Outcome]:
        """Of tables that had stopped."""
        return self._run(rows, self.task_settings(left_alone, recorded))[2]

    def _run(self, rows: RDD[SparkRow], settings: TaskSettings) -> tuple[list[CutSeen], list[EventSeen], list[Outcome]]:
        """The job, then the tables that are too large for a task."""
        run = partial(self._messages, rows)
        done = with_folders(run(settings), settings, self._records.table_folders, run)
        for message in done:
            if isinstance(message, EntryProblem):
                self._check()
                if message.is_missing:
                    is_removed = message.entry < self._log.horizon().first_entry
                    raise log_entry_missing(message.entry, message.problem, is_removed=is_removed)
                raise log_entry_unreadable(message.entry, message.problem)
        cuts = [message for message in done if isinstance(message, CutSeen)]
        events = [message for message in done if isinstance(message, EventSeen)]
        outcomes = [message for message in done if isinstance(message, Outcome)]
        return cuts, events, self._with_large(outcomes, settings.recorded)

    @property
    def tried_alone(self) -> Collection[TableId]:
        """Tables at which a worker was killed, and that have not been written since."""
        return frozenset(self._lost.alone)

    def _messages(self, rows: RDD[SparkRow], settings: TaskSettings, lost_before: int = 0) -> list[Message]:
        # Nobody waits for a sink that runs to an end, and executors have disks of their own.
        tells = not self._settings.available_now and is_local(str(self._session.sparkContext.master))
        with job_folder(is_wanted=tells) as folder:
            told = replace(settings, at_work=folder)
            try:
                done = [decode(message) for message in rows.mapPartitions(table_task(told)).collect()]
            except (PySparkException, Py4JJavaError) as lost:
                if self.stopping or not self._is_well():
                    raise
                at_work = tables_at_work(folder) if lost_before < MOST_LOST else frozenset[TableId]()
                logger.warning("a batch has lost a worker error=%s tables_at_work=%d", condition(lost), len(at_work))
                return self._without(rows, settings, at_work, lost_before, lost)
        self._lost.done(done)
        return done

    def _without(
        self,
        rows: RDD[SparkRow],
        settings: TaskSettings,
        at_work: frozenset[TableId],
        lost_before: int,
        lost: PySparkException | Py4JJavaError,
    ) -> list[Message]:
        """The same without tables of which one has killed its worker, and how these stop; else in parts."""
        parts = rows.glom().collect()
        families = self._families(parts)
        work = split_rows(row.asDict() for part in parts for row in part)[1]
        tables = work.keys() - settings.stopped
        left = sorted(at_work & tables)
        if not left or any(families.is_joined(table) or not self._may_be_behind(table) for table in left):
            return self._isolated(parts, families, settings, lost)
        stops = [self._lost.stop_of(table, work[table][0], is_alone=len(tables) == 1) for table in left]
        without = replace(settings, stopped=settings.stopped | at_work)
        done = self._messages(rows, without, lost_before + 1)
        return [*(each for each in done if not (isinstance(each, Outcome) and each.table in left)), *stops]

    def task_settings(self, left_alone: frozenset[TableId], recorded: Mapping[TableId, Recorded]) -> TaskSettings:
        chosen = self._settings
        return TaskSettings(
            chosen.landing,
            chosen.lake,
            left_alone,
            chosen.size,
            recorded,
            keep_hours=chosen.keep_hours,
            storage=current().carried(),
            keep_changelogs=chosen.keep_changelogs,
            schema_changes=chosen.schema_changes,
            table_options=chosen.table_options,
            waiting=chosen.table_waiting,
            folders=self._records.table_folders.of_tasks,
        )

    def _families(self, parts: Sequence[Sequence[SparkRow]]) -> Families:
        families = Families()
        families.read(self._records.events_folder)
        for row in (row.asDict() for part in parts for row in part):
            if row["event"] is not None:
                families.note_event(row_table(row), decode_event(json.loads(row["event"])))
        return families

    def _isolated(
        self,
        parts: Sequence[Sequence[SparkRow]],
        families: Families,
        settings: TaskSettings,
        lost: PySparkException | Py4JJavaError,
    ) -> list[Message]:
        """The same in parts, one job each. Raises `lost` where that says nothing of a table."""
        logger.warning("batch is done again in parts error=%s", condition(lost))
        context = self._session.sparkContext

        def run(rows: Sequence[SparkRow], left_alone: frozenset[TableId]) -> list[Message]:
            task = table_task(replace(settings, stopped=settings.stopped | left_alone))
            try:
                return [decode(message) for message in context.parallelize(rows, 1).mapPartitions(task).collect()]
            except (PySparkException, Py4JJavaError) as failed:
                raise JobLost from failed

        try:
            done = isolated(parts, run, self._is_well, families)
        except JobLost:
            raise lost from None
        self._lost.done(done)
        return done

    def _is_well(self) -> bool:
        """Whether Spark runs a job that does nothing, and nobody wants the sink to end."""
        try:
            return not self.stopping and self._session.sparkContext.parallelize([0], 1).map(int).collect() == [0]
        except (PySparkException, Py4JJavaError):
            return False

    def _with_large(self, outcomes: Sequence[Outcome], recorded: Mapping[TableId, Recorded]) -> list[Outcome]:
        """Tables that are too large for a task, each after its parents."""
        stopped = {outcome.table for outcome in outcomes if outcome.result is Result.STOPPED}
        found = []
        for outcome in outcomes:
            done = outcome
            if outcome.result is Result.LARGE:
                parents = parents_of(outcome.table, outcome.work) & stopped
                if parents:
                    done = parent_stopped(outcome.table, outcome.work[0], min(parents))
                else:
                    policy = self._settings.schema_changes.of(outcome.table)
                    options = self._settings.table_options.of(outcome.table)
                    applied = self._large.apply(outcome, recorded.get(outcome.table, NOTHING), policy, options)
                    done = replace(applied, has_own=outcome.has_own)
                if done.result is Result.STOPPED:
                    stopped.add(done.table)
            found.append(done)
        return found
