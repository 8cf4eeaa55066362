"""The driver's part of the sink: one Structured Streaming query over the cut log, one Spark job a micro-batch.

Comes in: the cut log's rows, a table's files together in one partition. The job's tasks (`table_task`) write the
tables and send back an outcome each; here the outcomes are checked, recorded in LAKE/_menura (`records`) and
logged. Durable are the tables, the records, and the checkpoint, in this order; a kill between two
has the batch replayed, and its tables skip what they hold.

A table that stopped is left alone by later batches and recorded with the entry that it stopped at. So is one of which
more landed than others are to wait for: it catches up in parts between batches (`catching_up`). It is tried again
from there when the sink starts, when somebody asks for it and, where the failure was transient, after a minute and then
more and more slowly; what it missed is read from the cut log, so nothing of it is lost. Where a dump of it begins later
in the log and it can't go on from where it stopped, it begins anew with that dump: see `new_beginning`. A table whose
folder does not hold what was recorded of it (`recorded`) is given all of its rows from the log's first entry on.
"""

import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from deltalake.exceptions import DeltaError
from menura.instants import now_us
from menura.stores.address import is_local
from menura.stores.options import current
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import (
    EntriesGone,
    LakeTableLost,
    ParentStopped,
    QueryFailed,
    SinkError,
    StoreAway,
    TableBehind,
)
from spark_sink.ingest.batch_jobs import BatchJobs, condition
from spark_sink.ingest.catching_up import CatchingUp, Turn
from spark_sink.ingest.checkpoint import Checkpoint
from spark_sink.ingest.cut_log_source import FORMAT_NAME, Row
from spark_sink.ingest.families import Families
from spark_sink.ingest.horizon import begin_at_horizon
from spark_sink.ingest.identity import check_identity
from spark_sink.ingest.missed_rows import MissedRows, entries_gone
from spark_sink.ingest.new_beginning import begins_anew, bereft, lacking, new_beginning, rows_to_follow
from spark_sink.ingest.parallelism import Parallelism
from spark_sink.ingest.retries import Retries
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.verifications import Verifications
from spark_sink.ingest.views import views_of
from spark_sink.ingest.waiting_merges import WaitingMerges
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.record_rows import recording
from spark_sink.lake.recorded import NOTHING, Recorded, departed_tables, lost_tables, recorded_tables, waiting_tables
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.lake.schema_policy import SchemaPolicy, told
from spark_sink.lake.writers import LakeWriter
from spark_sink.landed.landing_log import LandingLog
from spark_sink.landed.storage import store_away
from spark_sink.work import CutSeen, Outcome, Result, TableId

#: that stopped tables have missed, kept in memory from one retry to the next; some hundred bytes each
MOST_KEPT_ROWS = 100_000
#: from the last batch until the checkpoint is read
LOOK_SECONDS = 60.0

logger = logging.getLogger("menura.sink")


def _is_same(stop: StoppedTable, other: StoppedTable | None) -> bool:
    """But for when it was tried."""
    return other is not None and replace(stop, at_us=other.at_us) == other


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
        #: when the checkpoint is to be looked at
        self._look_at: float | None = None
        self.parallelism = Parallelism(lambda: session.sparkContext.defaultParallelism)
        self._stopped: dict[TableId, StoppedTable] = {}
        self._recorded: dict[TableId, Recorded] = {}
        #: of tables whose policies for schema changes are to be told, what is told
        self._policies: dict[TableId, str] = {}
        #: held while tables are written: a stop waits for them, a retry does not run beside a batch
        self._writing = threading.Lock()
        self._stopping = False
        self._landing = ""
        #: how many batches have recorded events, which say how tables follow each other
        self._told = 0
        #: by that, and by the tables with their first entries
        self._missed: dict[tuple[int, frozenset[tuple[TableId, int]]], MissedRows] = {}
        self._retries = Retries()
        self._parts = CatchingUp(self.log, self.records.events_folder, settings.share)
        self._merges = WaitingMerges()
        self.status = status
        self.views = views_of(session, settings, self.records, self._writing, status.views_are)
        #: tables to be tried again soon; another thread asks
        self._asked: set[TableId] = set()
        self._asking = threading.Lock()

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
        self._stopped = self.records.stopped_tables()
        self.status.began(entry, self._stopped)
        cuts = open_table(self.records.cuts_folder)
        self._recorded = recorded_tables(cuts, self.records.begun_anew())
        departed = departed_tables(cuts)
        self._policies = self._told_policies((table, departed.get(table, "")) for table in self._recorded)
        self.status.policies_are(self._policies)
        self._merges.begin(waiting_tables(cuts))
        self._stop_lost()
        self._tell_stops()
        self.verifications.start()
        self.views.start()
        in_parts = [] if self.settings.available_now else list(filter(self._is_done_in_parts, self._stopped))
        self._parts.begin(in_parts)
        self.retry_stopped([table for table in self._stopped if table not in in_parts])
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
        due = self._retries.due(self._transient(), time.monotonic())
        again = {table for table in asked | due if table in self._stopped}
        in_parts = set(filter(self._is_done_in_parts, again))
        self._parts.go_on(in_parts)
        self.retry_stopped([*again - in_parts])
        self._catch_up()

    def _is_done_in_parts(self, table: TableId) -> bool:
        return not self.settings.available_now and self._parts.is_possible(self._stopped[table])

    @property
    def has_more(self) -> bool:
        """Whether there is more to be done now, whatever lands."""
        return bool(self._late() or self._merges.due(now_us(), dict(self._stopped), 1))

    def _late(self) -> dict[TableId, StoppedTable]:
        return self._parts.of(dict(self._stopped), time.monotonic(), self.status.now().entry)

    def _catch_up(self) -> None:
        """A turn of tables that are behind; with the last one they join the batches again."""
        if self.settings.available_now or not (stops := self._late()):
            return
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
            self._parts.failed([table for table in turn.tables if table in self._stopped], time.monotonic())
            return
        with self._writing:
            if not self._stopping:
                self._writer.check()
                self._give(turn, turn.rows)

    def _give(self, turn: Turn, rows: Sequence[Row]) -> None:
        """Raises what Spark raises."""
        began = time.monotonic()
        left_alone = frozenset(self._stopped) - turn.tables
        spread = self._jobs.spread(rows, turn.families or Families())
        outcomes = self._jobs.run(spread, left_alone, self._recorded)
        self.verifications.note(outcomes, ())
        failed = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        self._remember(outcomes)
        self._stop(failed)
        have = turn.tables - {outcome.table for outcome in failed}
        moved = turn.moved(self._stopped[table] for table in have)
        self.records.record_stops(moved)
        self._stopped.update({stop.table: stop for stop in moved})
        self._parts.failed([outcome.table for outcome in failed], time.monotonic())
        done, seconds = sum(outcome.rows for outcome in outcomes), time.monotonic() - began
        self._parts.given(have, turn, seconds)
        self.status.caught_up(done)
        self._tell_stops()
        logger.info(
            "tables catch up tables=%d rows=%d up_to_entry=%d seconds=%.3f", len(have), done, turn.last_entry, seconds
        )

    def _tell_stops(self) -> None:
        self.status.stopped_are(self._stopped)
        self.verifications.late_are(filter(self._is_done_in_parts, self._stopped))

    def _look_at_checkpoint(self) -> None:
        """Once after the last batch: no other one comes that would say that it is done for good."""
        if self._look_at is not None and time.monotonic() >= self._look_at:
            try:
                self.status.is_durable(self.checkpoint.read()[0])
                self._look_at = None
            except OSError:
                self._look_at = time.monotonic() + LOOK_SECONDS

    def merge_due(self) -> None:
        """Merge changes that have waited for long enough in their changelogs; of a table a core, for a batch waits."""
        most = self.session.sparkContext.defaultParallelism
        if not self._stopping and self._merges.due(now_us(), self._stopped, most):
            with self._writing:
                if not self._stopping:
                    self._merge(self._merges.due(now_us(), self._stopped, most))

    def _merge(self, due: Mapping[TableId, CutSeen]) -> None:
        if not due:
            return
        self._writer.check()
        began = time.monotonic()
        try:
            outcomes = self._jobs.merge(due, frozenset(self._stopped), self._recorded)
        except (PySparkException, Py4JJavaError) as lost:
            logger.warning("waiting changes not merged tables=%d error=%s", len(due), condition(lost))
            self._merges.failed(due, now_us())
            return
        self._merged(due, outcomes)
        logger.info("waiting changes merged tables=%d seconds=%.3f", len(due), time.monotonic() - began)

    def _merged(self, due: Mapping[TableId, CutSeen], outcomes: Sequence[Outcome]) -> None:
        """Record what of these is done; a table whose merge failed is read with what waits, and goes on."""
        failed = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        for outcome in failed:
            logger.warning("waiting changes not merged table=%s error=%s", outcome.table, outcome.message)
        self._merges.failed([outcome.table for outcome in failed], now_us())
        for boundary in set(due.values()):
            done = [each for each in outcomes if due[each.table] == boundary and each.result is Result.APPLIED]
            self.records.record_batch([boundary], done)
            self._remember(done)
        self._merges.done({outcome.table for outcome in outcomes if outcome.result is not Result.STOPPED})

    def _transient(self) -> set[TableId]:
        """Stopped tables that may go on by themselves: not those below one that waits for somebody.

        Nor those that are behind, which go on at once.
        """
        stopped = {table: stop for table, stop in dict(self._stopped).items() if not self._is_behind(stop)}
        found = {table for table, stop in stopped.items() if not stop.terminal}
        waiting = stopped.keys() - found
        return found - self._below(waiting) if found and waiting else found

    def _is_behind(self, stop: StoppedTable) -> bool:
        return stop.code == TableBehind.code and not stop.begins_at_gsn and not self.settings.available_now

    def _below(self, tables: Collection[TableId]) -> set[TableId]:
        """Tables that have stopped since one above them had; of these."""
        stops = [stop for stop in list(self._stopped.values()) if stop.code == ParentStopped.code]
        if not stops:
            return set()
        families = Families()
        families.read(self.records.events_folder)
        return {stop.table for stop in stops if not families.above([stop.table]).isdisjoint(tables)}

    def retry_stopped(self, tables: Sequence[TableId], *, with_batches: bool = False) -> None:
        """Give tables what they missed, from the entry that they stopped at to the log's end.

        `with_batches`: to where batches have come.
        One that can't go on from there begins anew where the log has a dump of it; so do, after it, those whose
        foreign keys follow it.
        """
        if not tables:
            return
        held = dict(self._stopped)
        last_entry = self.status.now().entry if with_batches else None
        self._missed_of([table for table in tables if table in held]).read_on(last_entry)  # batches go on meanwhile
        with self._writing:
            self._writer.check()
            last_entry = self.status.now().entry if with_batches else None
            left = set(tables)
            while left:
                held = dict(self._stopped)
                self._begin_anew(left, self._retry(left, last_entry))
                self._tried_in_vain([table for table in left if self._stopped.get(table) == held[table]])
                left = self._concerned(held)
            self._missed = {
                key: found
                for key, found in self._missed.items()
                if len(found) <= MOST_KEPT_ROWS and key[0] == self._told and self._will_be_tried(key[1])
            }
            self._tell_stops()

    def _will_be_tried(self, first_entries: Iterable[tuple[TableId, int]]) -> bool:
        """Whether all of these are stopped where they were, and go on by themselves."""
        stops = [(self._stopped.get(table), entry) for table, entry in first_entries]
        return all(stop is not None and stop.entry == entry and not stop.terminal for stop, entry in stops)

    def _concerned(self, held: Mapping[TableId, StoppedTable]) -> set[TableId]:
        """Whom to try next, since others go on; `held`: the stops of before.

        Nothing that is to come would have them tried: their own dumps may stand in the log already, and tables below
        one that goes on have what they waited for.
        """
        resumed = held.keys() - self._stopped.keys()
        bereft = {
            table for table, stop in self._stopped.items() if stop.is_bereft and not _is_same(stop, held.get(table))
        }
        return bereft | (self._below(resumed) if resumed else set())

    def _tried_in_vain(self, tables: Iterable[TableId]) -> None:
        """Whoever asked for it sees that it was done: a table that can only begin anew has no outcome."""
        stops = [replace(self._stopped[table], at_us=now_us()) for table in tables]
        self.records.record_stops(stops)
        self._stopped.update({stop.table: stop for stop in stops})

    def _begin_anew(self, tables: Collection[TableId], missed: Sequence[Row]) -> None:
        """Those of the tables that are still stopped, and that a dump among the rows that they missed begins anew."""
        stops = [self._stopped[table] for table in tables if table in self._stopped]
        found = [new_beginning(stop, missed, self._stopped) for stop in stops]
        anew = [replace(begins, at_us=now_us()) for begins in found if begins is not None]
        if anew:
            self.records.record_stops(anew)  # before anything is left out
            self._stopped.update({begins.table: begins for begins in anew})
            self._retry([begins.table for begins in anew])

    def _retry(self, tables: Collection[TableId], last_entry: int | None = None) -> list[Row]:
        """Once; gives the rows that the tables missed."""
        self._leave_bereft(tables)
        missed = self._missed_of(tables)
        missed.read_on(last_entry)
        gone = self._leave_gone(tables, missed.gone_entry)
        stops = {table: self._stopped[table] for table in tables}
        cuts, rows = list(missed.cuts), missed.rows()
        followed = rows_to_follow(rows, stops)
        going = {table for table, stop in stops.items() if not stop.is_bereft} - gone
        anew = {table for table, stop in stops.items() if stop.code == LakeTableLost.code or stop.begins_at_gsn}
        recorded = {table: held for table, held in self._recorded.items() if table not in anew}
        recorded |= {
            table: Recorded(begins_at_gsn=stop.begins_at_gsn) for table, stop in stops.items() if stop.begins_at_gsn
        }
        left_alone = frozenset(self._stopped) - going
        spread = self._jobs.spread(followed, missed.families)
        outcomes = self._jobs.run(spread, left_alone, recorded)  # events were recorded with their batch
        self._record(cuts, outcomes)
        self.verifications.note(outcomes, ())
        # Only what was really done goes on: a table whose entries are gone must not skip them.
        done = [outcome for outcome in outcomes if outcome.result is not Result.STOPPED]
        resumed = [outcome for outcome in done if outcome.table in self._stopped]
        #: their first rows are yet to come
        empty = {each.table: stops[each.table].begins_at_gsn for each in resumed if each.changelog_version is None}
        self.records.record_resumed((each, lacking(stops[each.table]), empty.get(each.table, 0)) for each in resumed)
        for outcome in resumed:
            del self._stopped[outcome.table]
            if empty.get(outcome.table):
                self._recorded[outcome.table] = Recorded(begins_at_gsn=empty[outcome.table])
            begun_anew = stops[outcome.table].begins_at_gsn > 0
            logger.info("table resumed table=%s cut=%d begun_anew=%s", outcome.table, outcome.cut, begun_anew)
        return rows

    def _leave_bereft(self, tables: Collection[TableId]) -> None:
        """Before any of these begins anew: what its foreign keys did to others meanwhile nobody carries out."""
        if any(self._stopped[table].begins_at_gsn for table in tables):
            families = Families()
            families.read(self.records.events_folder)
            begins = [
                stop
                for table in tables
                if (stop := self._stopped[table]).begins_at_gsn and not stop.is_bereft and not self._has_begun(stop)
            ]
            stops = bereft(self._stopped, begins, lambda table: families.above([table]), now_us())
            self.records.record_stops(stops)
            self._stopped.update({stop.table: stop for stop in stops})

    def _has_begun(self, stop: StoppedTable) -> bool:
        """Whether it has gone on from that beginning already, and stopped again before anything of it was written."""
        return self._recorded.get(stop.table, NOTHING).begins_at_gsn == stop.begins_at_gsn

    def _missed_of(self, tables: Collection[TableId]) -> MissedRows:
        """What these have missed, up to where it was read; reading goes on from there."""
        first_entries = {table: self._stopped[table].entry for table in tables}
        key = (self._told, frozenset(first_entries.items()))
        if key not in self._missed:
            only_anew = {table for table in tables if self._stopped[table].waits_for_dump}
            self._missed[key] = MissedRows(self.log, self.records.events_folder, first_entries, only_anew)
        return self._missed[key]

    def _leave_gone(self, tables: Collection[TableId], gone_entry: int) -> set[TableId]:
        """Tables that lack entries which nobody has any more; they can only begin anew, behind those."""
        lacking = [stop for table in tables if (stop := self._stopped[table]).entry <= gone_entry]
        for stop in lacking:
            if stop.code != EntriesGone.code and not stop.is_bereft:
                gone = entries_gone(stop, gone_entry)
                self._stop(
                    [Outcome(stop.table, Result.STOPPED, stop.entry, stop.cut, code=gone.code, message=str(gone))]
                )
        return {stop.table for stop in lacking}

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
        cuts, events, found = self._jobs.run_batch(frame.rdd, frozenset(self._stopped), self._recorded, share)
        left_out = [outcome for outcome in found if outcome.result is Result.LEFT_OUT]
        outcomes = [outcome for outcome in found if outcome.result is not Result.LEFT_OUT]
        self.records.record_events(events)
        self._told += bool(events)
        stopped = self._record(cuts, outcomes, left_out, whole=True)
        self._tell_stops()
        self.verifications.note(outcomes, events)
        self._note_done(cuts)
        self.batches += 1
        self.views.wake()
        self._look_at = time.monotonic() + LOOK_SECONDS
        seconds = time.monotonic() - began
        self.parallelism.note()  # executors come and go
        self.status.applied(cuts, sum(outcome.rows for outcome in outcomes), seconds)
        self.ask_retry(seen.table for seen in events if seen.table in self._stopped and begins_anew(seen.seen.event))
        self.ask_retry(each.table for each in stopped if self._stopped[each.table].begins_at_gsn)
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

    def _record(
        self,
        cuts: Sequence[CutSeen],
        outcomes: Sequence[Outcome],
        left_out: Sequence[Outcome] = (),
        *,
        whole: bool = False,
    ) -> list[Outcome]:
        """Write the batch's records; gives the outcomes that stopped. `whole`: no retry, which may be ahead.

        Tables that were left out are not readable at its boundary: what a retry has recorded of them may be older.
        What a batch that is done again has of before their stops says nothing new.
        """
        left_out = [outcome for outcome in left_out if outcome.cut >= self._stopped[outcome.table].cut]
        stopped = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        told = [outcome for outcome in [*outcomes, *left_out] if not outcome.says_nothing]
        self.records.record_batch(cuts, told, whole=whole)
        self._merges.note(cuts, outcomes)
        self._remember(outcomes)
        self._stop(stopped)
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
        new = {table: stop for table, stop in lost.items() if table not in self._stopped}
        self._stop(
            Outcome(
                table, Result.STOPPED, stop.from_entry, 0, code=stop.code, message=str(stop), terminal=stop.terminal
            )
            for table, stop in new.items()
        )

    def _stop(self, outcomes: Iterable[Outcome]) -> None:
        stops = [self._stop_of(outcome) for outcome in outcomes]
        self.records.record_stops(stops)
        for stop in stops:
            self._stopped[stop.table] = stop
            if self._is_behind(stop):
                logger.info("table is behind, and catches up between batches table=%s cut=%d", stop.table, stop.cut)
            else:
                logger.error("table stopped table=%s cut=%d error=%s", stop.table, stop.cut, stop.message)

    def _stop_of(self, outcome: Outcome) -> StoppedTable:
        """A table that was stopped already keeps what is known of its first stop.

        One that has begun anew, and of which nothing is written yet, keeps with what it began.
        """
        held = self._stopped.get(outcome.table)
        begins_at_gsn = self._recorded.get(outcome.table, NOTHING).begins_at_gsn
        return StoppedTable(
            outcome.table,
            outcome.entry,
            outcome.cut,
            outcome.code,
            outcome.message,
            outcome.terminal,
            now_us(),
            held.last_commit_timestamp_us if held is not None else self.status.last_commit_us(outcome.table),
            (held.begins_at_gsn if held is not None else 0) or begins_at_gsn,
        )
