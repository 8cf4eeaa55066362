"""The driver's part of the sink: one Structured Streaming query over the cut log, one Spark job a micro-batch.

Comes in: the cut log's rows, a table's files together in one partition. The job's tasks (`table_task`) write the
tables and send back an outcome each; here the outcomes are checked, recorded in LAKE/_menura (`records`) and
logged. Durable are the tables, the records, and the checkpoint, in this order; a kill between two
has the batch replayed, and its tables skip what they hold.

A table that stopped (`table_states`) is left alone by later batches. It is tried again (`retry`) when the sink starts,
when somebody asks for it and, where the failure was transient, after a minute and then more and more slowly; what it
missed is read from the cut log, so nothing of it is lost. One of which more landed than others are to wait for catches
up in parts between batches (`catching_up`). A table whose folder does not hold what was recorded of it (`recorded`) is
given all of its rows from the log's first entry on.
"""

import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Sequence

from deltalake.exceptions import DeltaError
from menura.instants import now_us
from menura.stores.address import is_local
from menura.stores.options import current
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import QueryFailed, SinkError, StoreAway
from spark_sink.ingest.batch_jobs import BatchJobs, condition
from spark_sink.ingest.catching_up import CatchingUp, Turn
from spark_sink.ingest.checkpoint import Checkpoint
from spark_sink.ingest.cut_log_source import FORMAT_NAME, Row
from spark_sink.ingest.families import Families
from spark_sink.ingest.horizon import begin_at_horizon
from spark_sink.ingest.identity import check_identity
from spark_sink.ingest.merging import Merging
from spark_sink.ingest.new_beginning import begins_anew
from spark_sink.ingest.parallelism import Parallelism
from spark_sink.ingest.retry import Retry
from spark_sink.ingest.retry_pauses import RetryPauses
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_states import TableStates
from spark_sink.ingest.verifications import Verifications
from spark_sink.ingest.views import views_of
from spark_sink.lake.record_rows import recording
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.lake.writers import LakeWriter
from spark_sink.landed.landing_log import LandingLog
from spark_sink.landed.storage import store_away
from spark_sink.work import CutSeen, Result, TableId

#: from the last batch until the checkpoint is read
LOOK_SECONDS = 60.0

logger = logging.getLogger("menura.sink")


class Sink:
    """One running sink. `failure` is what ended a batch, for whoever awaits the query."""

    def __init__(self, session: SparkSession, settings: SinkSettings, status: SinkStatus) -> None:
        self.session = session
        self.settings = settings
        self.log = LandingLog(settings.landing)
        self._writer = LakeWriter(settings.lake)
        self.records = Records(settings.lake, settings.keep_hours, settings.table_folders, self._writer.check)
        self.verifications = Verifications(settings.lake, status.verdicts_are)
        self.checkpoint = Checkpoint(settings.checkpoint)
        self.tables = TableStates(settings, self.records, status, self.verifications)
        self._jobs = BatchJobs(
            session, settings, self.log, self.records, self._check_identity, self.tables.may_be_behind
        )
        self.failure: SinkError | None = None
        #: how many were applied
        self.batches = 0
        #: when the checkpoint is to be looked at
        self._look_at: float | None = None
        self.parallelism = Parallelism(lambda: session.sparkContext.defaultParallelism)
        #: held while tables are written: a stop waits for them, a retry does not run beside a batch
        self._writing = threading.Lock()
        self._stopping = False
        self._landing = ""
        self._retry = Retry(self.tables, self._jobs, self.log, self.records.events_folder, self.verifications)
        self._pauses = RetryPauses()
        self._merging = Merging(
            session, settings, self.tables, self._jobs, self.records, self._writing, self._writer.check
        )
        self._parts = CatchingUp(self.log, self.records.events_folder, settings.share)
        self.status = status
        self.views = views_of(session, settings, self.records, self._writing, status.views_are)
        #: tables to be tried again soon; another thread asks
        self._asked: set[TableId] = set()
        self._asking = threading.Lock()

    def start(self) -> StreamingQuery:
        """Warm the workers up, try stopped tables again, and start the query; again after one that has ended."""
        self._stopping = self._jobs.stopping = False
        self._merging.start()
        self.failure = None
        self._landing = self._check_identity()
        entry, _ = self.checkpoint.read()
        begins_behind = entry or begin_at_horizon(self.log, self.records)
        self._jobs.warm_up(self.parallelism.note())
        self._writer.take()  # what would keep this sink from starting has not ended another one
        self.records.table_folders.begin()
        self.tables.begin(entry)
        self.verifications.start()
        self.views.start()
        in_parts = {table for table, stop in self.tables.stopped.items() if self.tables.may_catch_up(stop)}
        self._parts.begin(in_parts)
        self.retry_stopped([table for table in self.tables.stopped if table not in in_parts])
        limits = self.settings.limits
        frame = (
            self.session.readStream.format(FORMAT_NAME)
            .option("landing", self.settings.landing)
            .option("lake", self.settings.lake)
            .option("storage", json.dumps(current().words()))
            .option("beginsBehind", begins_behind)
            .option("partitions", str(self.parallelism.file))
            .option("maxCuts", limits.cuts)
            .option("maxFiles", limits.files)
            .option("maxBytes", limits.bytes)
            .load()
        )
        writer = frame.writeStream.foreachBatch(self._guarded).option("checkpointLocation", self.checkpoint.location())
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

    def _check_identity(self) -> str:
        """The landing's; raises a `SinkError` where lake and checkpoint are another one's."""
        return check_identity(self.log, self.records, self.checkpoint)

    def stop_batches(self, seconds: float) -> None:
        """Wait for the batch in progress, at most `seconds`; a later one fails before it writes."""
        self._stopping = self._jobs.stopping = True
        self._merging.stop()
        ends_at = time.monotonic() + seconds
        if self._writing.acquire(timeout=seconds):
            self._writing.release()
        self._merging.join(max(0.0, ends_at - time.monotonic()))

    def ask_retry(self, tables: Iterable[TableId]) -> None:
        """Let `retry_due` try these tables again, those of them that are stopped; from any thread."""
        with self._asking:
            self._asked.update(tables)

    def retry_due(self) -> None:
        """Try tables again that somebody asks for, and transiently stopped ones, more and more slowly.

        Of those that catch up in parts some have their turn.
        """
        self._writer.check_now_and_then()
        self._look_at_checkpoint()
        with self._asking:
            asked, self._asked = self._asked, set()
        due = self._pauses.due(self.tables.transient(), time.monotonic())
        stops = {table: self.tables.stopped[table] for table in asked | due if table in self.tables.stopped}
        in_parts = {table for table, stop in stops.items() if self.tables.may_catch_up(stop)}
        self._parts.go_on(in_parts)
        self.retry_stopped([*stops.keys() - in_parts])
        self._catch_up()

    def retry_stopped(self, tables: Collection[TableId], *, with_batches: bool = False) -> None:
        """Give tables what they missed, from the entry that they stopped at to the log's end.

        `with_batches`: to where batches have come.
        """
        if not tables:
            return
        self._retry.read_ahead(tables, self.status.now().entry if with_batches else None)
        with self._writing:
            self._writer.check()
            self._retry.run(tables, self.status.now().entry if with_batches else None)

    @property
    def has_more(self) -> bool:
        """Whether there is more to be done now, whatever lands."""
        return bool(self._late() or self._merging.has_more)

    def _late(self) -> dict[TableId, StoppedTable]:
        return self._parts.of(dict(self.tables.stopped), time.monotonic(), self.status.now().entry)

    def _catch_up(self) -> None:
        """A turn of tables that are behind; with the last one they join the batches again."""
        if self.settings.available_now or not (stops := self._late()):
            return
        if alone := stops.keys() & self._jobs.tried_alone:
            first = min(alone)
            stops = {first: stops[first]}
        try:
            turn = self._parts.next_turn(stops, self.session.sparkContext.defaultParallelism, self.status.now().entry)
        except (OSError, DeltaError) as failed:
            logger.warning(
                "what tables have missed was not read from the landing, and they stay where they are; it is tried again"
                " in a minute tables=%d error=%s",
                len(stops),
                type(failed).__name__,
            )
            self._parts.failed(stops, time.monotonic())
            return
        if turn.rows is None:
            self.retry_stopped(list(turn.tables), with_batches=True)
            self._parts.failed([table for table in turn.tables if table in self.tables.stopped], time.monotonic())
            return
        with self._writing:
            if not self._stopping:
                self._writer.check()
                self._give(turn, turn.rows)

    def _give(self, turn: Turn, rows: Sequence[Row]) -> None:
        """Raises what Spark raises."""
        began = time.monotonic()
        left_alone = frozenset(self.tables.stopped) - turn.tables
        spread = self._jobs.spread(rows, turn.families or Families())
        outcomes = self._jobs.run(spread, left_alone, self.tables.recorded)
        self.verifications.note(outcomes, ())
        failed = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        self.tables.remember(outcomes)
        self.tables.stop(failed)
        have = turn.tables - {outcome.table for outcome in failed}
        moved = turn.moved(self.tables.stopped[table] for table in have)
        self.tables.keep_stops(moved)
        self._parts.failed([outcome.table for outcome in failed], time.monotonic())
        done, seconds = sum(outcome.rows for outcome in outcomes), time.monotonic() - began
        self._parts.given(have, turn, seconds)
        self.status.caught_up(done)
        self.tables.tell()
        logger.info(
            "tables catch up tables=%d rows=%d up_to_entry=%d seconds=%.3f", len(have), done, turn.last_entry, seconds
        )

    def _look_at_checkpoint(self) -> None:
        """Once after the last batch: no other one comes that would say that it is done for good."""
        if self._look_at is not None and time.monotonic() >= self._look_at:
            try:
                self.status.is_durable(self.checkpoint.read()[0])
                self._look_at = None
            except OSError:
                self._look_at = time.monotonic() + LOOK_SECONDS

    def merge_due(self) -> None:
        """Merge changes that have waited for long enough in their changelogs."""
        self._merging.turn()

    def _guarded(self, frame: DataFrame, batch: int) -> None:
        """Spark keeps of a batch's failure its text alone; this keeps the error itself."""
        with self._writing:
            if self._stopping:
                raise QueryFailed("beginning a batch", "the sink is stopping", data="The batch will be done again")
            try:
                self._writer.check()
                self._apply_batch(frame, batch)
            except SinkError as failure:
                self.failure = failure
                raise

    def _apply_batch(self, frame: DataFrame, batch: int) -> None:
        began = time.monotonic()
        self.status.is_durable(self.status.now().entry)  # of the batch before, or this one would not come
        if not self._landing:  # no gateway had opened it when the sink started
            self._landing = self._check_identity()
        share = None if self.settings.available_now else self.settings.share
        cuts, events, found = self._jobs.run_batch(
            frame.rdd, frozenset(self.tables.stopped), self.tables.recorded, share
        )
        left_out = [outcome for outcome in found if outcome.result is Result.LEFT_OUT]
        outcomes = [outcome for outcome in found if outcome.result is not Result.LEFT_OUT]
        self.records.record_events(events)
        if events:
            self._retry.events_recorded()
        stopped = self.tables.record(cuts, outcomes, left_out, whole=True)
        self.tables.tell()
        self.verifications.note(outcomes, events)
        self._note_done(cuts)
        self.batches += 1
        self.views.wake()
        self._look_at = time.monotonic() + LOOK_SECONDS
        seconds = time.monotonic() - began
        self.parallelism.note()  # executors come and go
        self.status.applied(cuts, sum(outcome.rows for outcome in outcomes), seconds)
        self.ask_retry(
            seen.table for seen in events if seen.table in self.tables.stopped and begins_anew(seen.seen.event)
        )
        self.ask_retry(each.table for each in stopped if self.tables.stopped[each.table].begins_at_gsn)
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
            seconds,
            (now - min((cut.committed_at_us for cut in cuts), default=now)) / 1e6,
            # Of the newest transaction in the lake; a batch without one says nothing of it.
            f"{(now - max(committed_us)) / 1e6:.3f}" if committed_us else "unknown",
        )

    def _note_done(self, cuts: Sequence[CutSeen]) -> None:
        if cuts:
            with recording(self.checkpoint.url):
                self.checkpoint.done(max(cut.entry for cut in cuts), self._landing)

    def store_problem(self, since_us: int) -> StoreAway | None:
        """Why nothing can go on: a store that is not a folder does not answer; None where all do."""
        asked = {
            self.settings.landing: self.log.identity,
            self.settings.lake: self.records.landing,
            self.settings.checkpoint: self.checkpoint.read,
        }
        for url, ask in asked.items():
            try:
                if not is_local(url):
                    ask()
            except (OSError, DeltaError) as failure:
                return store_away(url, failure, since_us)
        return None
