"""The driver's part of the sink: one Structured Streaming query over the cut log, one Spark job a micro-batch.

Comes in: the cut log's rows, a table's files together in one partition. The job's tasks (`table_task`) write the
tables and send back an outcome each; here the outcomes are checked, recorded in LAKE/_menura (`records`) and
logged. Durable are the tables, the records, and the checkpoint, in this order; a kill between two
has the batch replayed, and its tables skip what they hold.

Three things run at the same time: batches; what takes long (`turn_beside`); and tables that failed (`turn`), which are
tried again. So nobody waits in a batch for more than a batch's share (`batch_share`) of another table.

A table that stopped is left alone by later batches and recorded with the entry that it stopped at. It is tried again
from there (`stopped_tables`) when the sink starts, when somebody asks for it and, where the failure was transient, at
once, after a minute and then more and more slowly; what it missed is read from the cut log, so nothing of it is lost.
Where a dump of it begins later in the log and it can't go on from where it stopped, it begins anew with that dump: see
`new_beginning`. A table whose folder does not hold what was recorded of it (`recorded`) is given all of its rows from
the log's first entry on.
"""

import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from deltalake.exceptions import DeltaError
from menura.instants import now_us
from menura.stores.address import is_local
from menura.stores.options import current
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import ParentStopped, QueryFailed, SinkError, StoreAway, TableBehind
from spark_sink.ingest.batch_jobs import BatchJobs, Turn, condition
from spark_sink.ingest.checkpoint import Checkpoint
from spark_sink.ingest.cut_log_source import FORMAT_NAME
from spark_sink.ingest.horizon import begin_at_horizon
from spark_sink.ingest.identity import check_identity
from spark_sink.ingest.new_beginning import begins_anew
from spark_sink.ingest.parallelism import Parallelism
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.stopped_tables import StoppedTables
from spark_sink.ingest.verifications import Verifications
from spark_sink.ingest.views import views_of
from spark_sink.ingest.waiting_merges import MergesBeside, WaitingMerges
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.record_rows import recording
from spark_sink.lake.recorded import NOTHING, Recorded, departed_tables, lost_tables, recorded_tables, waiting_tables
from spark_sink.lake.records import Records
from spark_sink.lake.schema_policy import SchemaPolicy, told
from spark_sink.lake.writers import LakeWriter
from spark_sink.landed.landing_log import LandingLog
from spark_sink.landed.storage import store_away
from spark_sink.work import CutSeen, Outcome, Result, TableId

#: between two looks for what is due beside the batches
BESIDE_SECONDS = 0.5
#: for what runs beside them to be given up
GIVE_UP_SECONDS = 8.0
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
        self._jobs = BatchJobs(session, settings, self.log, self.records, self._check_identity)
        self.failure: SinkError | None = None
        #: how many were applied
        self.batches = 0
        #: what ended the thread beside the batches
        self._beside_failure: Exception | None = None
        #: when the checkpoint is to be looked at
        self._look_at: float | None = None
        self.parallelism = Parallelism(lambda: session.sparkContext.defaultParallelism)
        self._recorded: dict[TableId, Recorded] = {}
        #: of tables whose policies for schema changes are to be told, what is told
        self._policies: dict[TableId, str] = {}
        #: held while tables are written: a stop waits for them, a retry does not run beside a batch
        self._writing = threading.Lock()
        self._stopping = False
        self._landing = ""
        self._merges = WaitingMerges()
        self.status = status
        self.views = views_of(session, settings, self.records, self._writing, status.views_are)
        own = self._jobs, self.records, self._recorded, self._writing
        self._merging = MergesBeside(self._merges, *own, self._remember)
        self.stops = StoppedTables(self.log, *own, status, self.verifications, self._writer.check, self._record)

    def start(self) -> StreamingQuery:
        """Warm the workers up, try stopped tables again, and start the query; again after one that has ended."""
        self._stopping = self._jobs.stopping = False
        self.failure = None
        self._landing = self._check_identity()
        entry, _ = self.checkpoint.read()
        begins_behind = entry or begin_at_horizon(self.log, self.records)
        self._jobs.warm_up(self.parallelism.note())
        self._writer.take()  # what would keep this sink from starting has not ended another one
        self.records.table_folders.begin()
        self.stops.begin()
        self.status.began(entry, self.stops.tables)
        cuts = open_table(self.records.cuts_folder)
        self._recorded.clear()
        self._recorded.update(recorded_tables(cuts, self.records.begun_anew()))
        departed = departed_tables(cuts)
        self._policies = self._told_policies((table, departed.get(table, "")) for table in self._recorded)
        self.status.policies_are(self._policies)
        self._merges.begin(waiting_tables(cuts))
        self._stop_lost()
        self.verifications.start()
        self.views.start()
        if self.settings.available_now:
            self.stops.retry(list(self.stops.tables), Turn.BESIDE)
        else:
            self.stops.ask(list(self.stops.tables))
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
        if self._writing.acquire(timeout=seconds):
            self._writing.release()

    def turn(self) -> None:
        """What is due of tables that failed. Raises what has ended the thread beside the batches."""
        if self._beside_failure is not None:
            failure, self._beside_failure = self._beside_failure, None
            raise failure
        self._writer.check_now_and_then()
        self._look_at_checkpoint()
        self.stops.retry_due()

    def turn_beside(self) -> None:
        """What takes long: tables that are behind, and merges of changes that have waited for long enough."""
        self.stops.catch_up_due()
        self._merging.merge_due(self.stops.tables, self._writer.check)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """`turn_beside` again and again, in a thread; at the end what it does is given up."""
        ended = threading.Event()

        def work() -> None:
            while not ended.wait(BESIDE_SECONDS) and self._beside_failure is None:
                try:
                    self.turn_beside()
                except (SinkError, PySparkException, Py4JJavaError, OSError, DeltaError) as failed:
                    if not ended.is_set():
                        self._beside_failure = failed

        thread = threading.Thread(target=work, name="menura-beside", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            self._stopping = self._jobs.stopping = True
            until = time.monotonic() + GIVE_UP_SECONDS
            while thread.is_alive() and time.monotonic() < until:
                self._jobs.cancel_beside()
                thread.join(0.5)

    def _look_at_checkpoint(self) -> None:
        """Once after the last batch: no other one comes that would say that it is done for good."""
        if self._look_at is not None and time.monotonic() >= self._look_at:
            try:
                self.status.is_durable(self.checkpoint.read()[0])
                self._look_at = None
            except OSError:
                self._look_at = time.monotonic() + LOOK_SECONDS

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
        cuts, events, outcomes = self._jobs.run(frame.rdd, frozenset(self.stops.tables), self._recorded)
        self.records.record_events(events)
        self.stops.told += bool(events)
        stopped = self._record(cuts, outcomes, whole=True)
        self.verifications.note(outcomes, events)
        self._note_done(cuts)
        self.batches += 1
        self.views.wake()
        self._look_at = time.monotonic() + LOOK_SECONDS
        seconds = time.monotonic() - began
        self.parallelism.note()  # executors come and go
        self.status.applied(cuts, sum(outcome.rows for outcome in outcomes), seconds)
        self.status.stopped_are(self.stops.tables)
        self.stops.ask(seen.table for seen in events if begins_anew(seen.seen.event))
        if not self.settings.available_now:
            waiting = (ParentStopped.code, TableBehind.code)
            self.stops.ask(each.table for each in stopped if not each.terminal and each.code not in waiting)
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

    def _record(self, cuts: Sequence[CutSeen], outcomes: Sequence[Outcome], *, whole: bool = False) -> list[Outcome]:
        """Write the batch's records; gives the outcomes that stopped. `whole`: no retry, which may be ahead."""
        stopped = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        told = [outcome for outcome in outcomes if not outcome.says_nothing]
        self.records.record_batch(cuts, told, whole=whole)
        self._merges.note(cuts, outcomes)
        self._remember(outcomes)
        self.stops.stop(stopped)
        return stopped

    def _remember(self, outcomes: Sequence[Outcome]) -> None:
        """Which versions the tables have now."""
        self._note_policies(outcomes)
        for outcome in outcomes:
            if outcome.result is not Result.STOPPED:
                before = self._recorded.get(outcome.table, NOTHING)
                self._recorded[outcome.table] = before.followed_by(outcome.changelog_version, outcome.current_version)
            if outcome.changelog_begins_gsn:
                logger.info("changelog kept table=%s from_gsn=%d", outcome.table, outcome.changelog_begins_gsn)
            if outcome.unclean:
                logger.warning(
                    "table not cleaned, it keeps old files until its next turn table=%s error=%s",
                    outcome.table,
                    outcome.unclean,
                )

    def _note_policies(self, outcomes: Iterable[Outcome]) -> None:
        """What of the tables' policies is told otherwise now."""
        found = [(each.table, each.departure) for each in outcomes if each.current_version is not None]
        after = self._told_policies(found)
        changed = {table for table, _ in found if after.get(table) != self._policies.get(table)}
        if changed:
            for table in changed:
                logger.info("policy for schema changes table=%s says=%s", table, after.get(table, SchemaPolicy.EVOLVE))
            kept = {table: said for table, said in self._policies.items() if table not in changed}
            self._policies = {**kept, **{table: after[table] for table in changed & after.keys()}}
            self.status.policies_are(self._policies)

    def _told_policies(self, tables: Iterable[tuple[TableId, str]]) -> dict[TableId, str]:
        """Of tables, each with in what it is not its source's; none of those of which there is nothing to tell."""
        rules = self.settings.schema_changes
        return {table: said for table, departure in tables if (said := told(rules.of(table), departure))}

    def _stop_lost(self) -> None:
        """Tables whose folders do not hold what was recorded when the sink last ran."""
        lost = lost_tables(self.settings.lake, self._recorded)
        new = {table: stop for table, stop in lost.items() if table not in self.stops.tables}
        self.stops.stop(
            Outcome(
                table, Result.STOPPED, stop.from_entry, 0, code=stop.code, message=str(stop), terminal=stop.terminal
            )
            for table, stop in new.items()
        )
