"""The driver's part of the sink: one Structured Streaming query over the cut log, one Spark job a micro-batch.

Comes in: the cut log's rows, a table's files together in one partition. The job's tasks (`table_task`) write the
tables and send back an outcome each; here the outcomes are checked, recorded in LAKE/_menura (`records`) and
logged. Durable are the tables, the records, and Spark's checkpoint, in this order; a kill between two
has the batch replayed, and its tables skip what they hold.

A table that stopped is left alone by later batches and recorded with the entry that it stopped at. It is
tried again from there when the sink starts and, where the failure was transient, each minute; what it missed is
read from the cut log, so nothing of it is lost.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from menura.instants import now_us
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import QueryFailed, SinkError
from spark_sink.ingest.cut_log_source import FORMAT_NAME, ROW_DDL, Limits, Row, entry_rows
from spark_sink.ingest.large_merge import LargeMerger
from spark_sink.ingest.table_task import TaskSettings, TaskSize, table_task, warm_up
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.landed.landing_log import LandingLog, log_entry_unreadable
from spark_sink.work import CutSeen, EntryProblem, EventSeen, Outcome, Result, TableId, decode, is_cut, row_table

RETRY_SECONDS = 60.0
PARTITIONS_PER_CORE = 4

logger = logging.getLogger("menura.sink")


@dataclass(frozen=True, slots=True)
class SinkSettings:
    landing: str
    lake: str
    checkpoint: str
    trigger_seconds: float = 1.0
    available_now: bool = False
    limits: Limits = field(default_factory=Limits)
    size: TaskSize = field(default_factory=TaskSize)


def condition(error: PySparkException | Py4JJavaError) -> str:
    """The error's condition or class; its text may hold values."""
    if isinstance(error, PySparkException):
        return str(error.getCondition() or type(error).__name__)
    return str(error.java_exception.getClass().getName())


class Sink:
    """One running sink. `failure` is what ended a batch, for whoever awaits the query."""

    def __init__(self, session: SparkSession, settings: SinkSettings) -> None:
        self.session = session
        self.settings = settings
        self.log = LandingLog(settings.landing)
        self.records = Records(settings.lake)
        self.large = LargeMerger(session, self.log, settings.lake)
        self.failure: SinkError | None = None
        self.partitions = session.sparkContext.defaultParallelism * PARTITIONS_PER_CORE
        self._stopped: dict[TableId, StoppedTable] = {}
        #: held while tables are written: a stop waits for them, a retry does not run beside a batch
        self._writing = threading.Lock()
        self._stopping = False
        self._next_retry = 0.0

    def start(self) -> StreamingQuery:
        """Warm the workers up, try stopped tables again, and start the query."""
        self._warm_up()
        self._stopped = self.records.stopped_tables()
        self.retry_stopped(list(self._stopped))
        limits = self.settings.limits
        frame = (
            self.session.readStream.format(FORMAT_NAME)
            .option("landing", self.settings.landing)
            .option("partitions", self.partitions)
            .option("maxCuts", limits.cuts)
            .option("maxFiles", limits.files)
            .option("maxBytes", limits.bytes)
            .load()
        )
        writer = frame.writeStream.foreachBatch(self._guarded).option("checkpointLocation", self.settings.checkpoint)
        if self.settings.available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{int(self.settings.trigger_seconds * 1000)} milliseconds")
        try:
            return writer.start()
        except (PySparkException, Py4JJavaError) as refused:
            raise QueryFailed(
                "starting the streaming query",
                f"Spark refused it: {condition(refused)}",
                data="Nothing was written",
                remedy=f"Check that {self.settings.checkpoint} can be written and is this sink's own checkpoint",
            ) from refused

    def stop_batches(self, seconds: float) -> None:
        """Wait for the batch in progress, at most `seconds`; a later one fails before it writes."""
        self._stopping = True
        if self._writing.acquire(timeout=seconds):
            self._writing.release()

    def retry_due(self) -> None:
        """Try transiently stopped tables again, each `RETRY_SECONDS`."""
        waiting = [table for table, stop in self._stopped.items() if not stop.terminal]
        if waiting and time.monotonic() >= self._next_retry:
            self.retry_stopped(waiting)

    def retry_stopped(self, tables: Sequence[TableId]) -> None:
        """Give tables what they missed, from the entry that they stopped at to the log's end."""
        if not tables:
            return
        with self._writing:
            self._next_retry = time.monotonic() + RETRY_SECONDS
            cuts, rows = self._missed_rows({table: self._stopped[table].entry for table in tables})
            frame = self.session.createDataFrame(rows, ROW_DDL).coalesce(1)
            _, _, outcomes = self._run(frame, frozenset())  # the events were recorded when their batch was
            self._record(cuts, outcomes)
            # Only what was really done goes on: a table whose entries are gone must not skip them.
            resumed = [outcome for outcome in outcomes if outcome.result is not Result.STOPPED]
            self.records.record_resumed(resumed)
            for outcome in resumed:
                del self._stopped[outcome.table]
                logger.info("table resumed table=%s cut=%d", outcome.table, outcome.cut)

    def _missed_rows(self, first_entries: dict[TableId, int]) -> tuple[list[CutSeen], list[Row]]:
        cuts: list[CutSeen] = []
        rows: list[Row] = []
        number = min(first_entries.values())
        while (entry := self.log.read_entry(number)) is not None:
            for row in entry_rows(entry):
                if is_cut(row):
                    cuts.append(CutSeen(**{name: row[name] for name in CutSeen.__slots__}))
                elif number >= first_entries.get(row_table(row), number + 1):
                    rows.append(row)
            number += 1
        return cuts, rows

    def _guarded(self, frame: DataFrame, batch: int) -> None:
        """Spark keeps of a batch's failure its text alone; this keeps the error itself."""
        with self._writing:
            if self._stopping:
                raise QueryFailed("beginning a batch", "the sink is stopping", data="The batch will be done again")
            try:
                self._apply_batch(frame, batch)
            except SinkError as failure:
                self.failure = failure
                raise

    def _apply_batch(self, frame: DataFrame, batch: int) -> None:
        began = time.monotonic()
        cuts, events, outcomes = self._run(frame, frozenset(self._stopped))
        self.records.record_events(events)
        stopped = self._record(cuts, outcomes)
        now = now_us()
        committed_us = [cut.last_commit_timestamp_us for cut in cuts if cut.last_commit_timestamp_us]
        logger.info(
            "batch applied batch=%d entries=%d cuts=%d tables=%d stopped=%d rows=%d seconds=%.3f "
            "since_landing_seconds=%.3f freshness_seconds=%s",
            batch,
            len({cut.entry for cut in cuts}),
            len(cuts),
            len(outcomes) - len(stopped),
            len(stopped),
            sum(outcome.rows for outcome in outcomes),
            time.monotonic() - began,
            (now - min((cut.committed_at_us for cut in cuts), default=now)) / 1e6,
            # Of the newest transaction in the lake; a batch without one says nothing of it.
            f"{(now - max(committed_us)) / 1e6:.3f}" if committed_us else "unknown",
        )

    def _run(
        self, frame: DataFrame, left_alone: frozenset[TableId]
    ) -> tuple[list[CutSeen], list[EventSeen], list[Outcome]]:
        """The job, then the tables that are too large for a task."""
        settings = TaskSettings(self.settings.landing, self.settings.lake, left_alone, self.settings.size)
        done = [decode(message) for message in frame.rdd.mapPartitions(table_task(settings)).collect()]
        for message in done:
            if isinstance(message, EntryProblem):
                raise log_entry_unreadable(message.entry, message.problem)
        cuts = [message for message in done if isinstance(message, CutSeen)]
        events = [message for message in done if isinstance(message, EventSeen)]
        outcomes = [message for message in done if isinstance(message, Outcome)]
        return cuts, events, [self.large.apply(o) if o.result is Result.LARGE else o for o in outcomes]

    def _record(self, cuts: Sequence[CutSeen], outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Write the batch's records; gives the outcomes of tables that stopped."""
        stopped = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        self.records.record_batch(cuts, outcomes)
        self.records.record_stops(stopped)
        at_us = now_us()
        for stop in stopped:
            self._stopped[stop.table] = StoppedTable(
                stop.table, stop.entry, stop.cut, stop.code, stop.message, stop.terminal, at_us
            )
            logger.error("table stopped table=%s cut=%d error=%s", stop.table, stop.cut, stop.message)
        return stopped

    def _warm_up(self) -> None:
        """Start the Python workers and import what they need, before the first change waits for it."""
        cores = self.partitions // PARTITIONS_PER_CORE
        self.session.sparkContext.parallelize(range(cores), cores).mapPartitions(warm_up).collect()
