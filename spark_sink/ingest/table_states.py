"""What the driver knows of each table between two jobs: its recorded versions, whether it has stopped, its policy.

Comes in: outcomes of jobs. Goes out: rows of LAKE/_menura, lines of the log, and what the sink's status tells. Durable
is LAKE/_menura alone, which is read at each start; a kill before a record is written leaves tables ahead of it, and the
job that is done again skips what they hold.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from menura.instants import now_us

from spark_sink.errors import LakeTableLost, ParentStopped, TableBehind
from spark_sink.ingest.catching_up import CatchingUp
from spark_sink.ingest.families import Families
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.verifications import Verifications
from spark_sink.ingest.waiting_merges import WaitingMerges
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.recorded import NOTHING, Recorded, departed_tables, lost_tables, recorded_tables, waiting_tables
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.lake.schema_policy import SchemaPolicy, told
from spark_sink.work import CutSeen, Outcome, Result, TableId

logger = logging.getLogger("menura.sink")


class TableStates:
    """Of one sink. Whoever changes them holds its lock of writers; another thread may read."""

    def __init__(
        self, settings: SinkSettings, records: Records, status: SinkStatus, verifications: Verifications
    ) -> None:
        self._settings = settings
        self._records = records
        self._status = status
        self._verifications = verifications
        self.stopped: dict[TableId, StoppedTable] = {}
        self.recorded: dict[TableId, Recorded] = {}
        #: of tables whose policies for schema changes are to be told, what is told
        self._policies: dict[TableId, str] = {}
        self.merges = WaitingMerges()

    def begin(self, entry: int) -> None:
        """Read them from the lake; `entry`: to where its checkpoint has come."""
        self.stopped = self._records.stopped_tables()
        self._status.began(entry, self.stopped)
        cuts = open_table(self._records.cuts_folder)
        self.recorded = recorded_tables(cuts, self._records.begun_anew())
        departed = departed_tables(cuts)
        self._policies = self._told_policies((table, departed.get(table, "")) for table in self.recorded)
        self._status.policies_are(self._policies)
        is_detached = self._settings.table_waiting.detached_bytes is not None
        self.merges.begin(waiting_tables(cuts), is_detached=is_detached)
        self._stop_lost()
        self.tell()

    def tell(self) -> None:
        """Which have stopped, and of which verifications wait for what they have missed."""
        self._status.stopped_are(self.stopped)
        self._verifications.late_are(table for table, stop in self.stopped.items() if self.may_catch_up(stop))

    def may_catch_up(self, stop: StoppedTable) -> bool:
        """Whether the table can be given what it missed in parts, while others go on."""
        return not self._settings.available_now and CatchingUp.is_possible(stop)

    def may_be_behind(self, table: TableId) -> bool:
        """Whether it could catch up in parts if it stopped now: one that is written from its beginning on can't."""
        stop = self.stopped.get(table)
        if stop is not None and (stop.begins_at_gsn or stop.code == LakeTableLost.code):
            return False
        return not self.recorded.get(table, NOTHING).begins_at_gsn

    def _is_behind(self, stop: StoppedTable) -> bool:
        """It has stopped for nothing but that others do not wait for it."""
        return stop.code == TableBehind.code and self.may_catch_up(stop)

    def transient(self) -> set[TableId]:
        """Stopped tables that may go on by themselves: not those below one that waits for somebody.

        Nor those that are behind, which go on at once.
        """
        stopped = {table: stop for table, stop in dict(self.stopped).items() if not self._is_behind(stop)}
        found = {table for table, stop in stopped.items() if not stop.terminal}
        waiting = stopped.keys() - found
        return found - self.below(waiting) if found and waiting else found

    def below(self, tables: Collection[TableId]) -> set[TableId]:
        """Tables that have stopped since one above them had; of these."""
        stops = [stop for stop in list(self.stopped.values()) if stop.code == ParentStopped.code]
        if not stops:
            return set()
        families = Families()
        families.read(self._records.events_folder)
        return {stop.table for stop in stops if not families.above([stop.table]).isdisjoint(tables)}

    def record(
        self,
        cuts: Sequence[CutSeen],
        outcomes: Sequence[Outcome],
        left_out: Sequence[Outcome] = (),
        *,
        whole: bool = False,
    ) -> list[Outcome]:
        """Write a job's records; gives the outcomes that stopped. `whole`: of a batch, not a retry, which may be ahead.

        Tables that were left out are not readable at its boundary: what a retry has recorded of them may be older.
        What a batch that is done again has of before their stops says nothing new.
        """
        left_out = [outcome for outcome in left_out if outcome.cut >= self.stopped[outcome.table].cut]
        stopped = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        said = [outcome for outcome in [*outcomes, *left_out] if not outcome.says_nothing]
        self._records.record_batch(cuts, said, whole=whole)
        self.merges.note(cuts, outcomes, now_us())
        self.remember(outcomes)
        self.stop(stopped)
        return stopped

    def remember(self, outcomes: Sequence[Outcome]) -> None:
        """Which versions the tables have now."""
        self._note_policies(outcomes)
        for outcome in outcomes:
            if outcome.result is not Result.STOPPED:
                before = self.recorded.get(outcome.table, NOTHING)
                self.recorded[outcome.table] = before.followed_by(outcome.changelog_version, outcome.current_version)
            if outcome.changelog_begins_gsn:
                logger.info("changelog kept table=%s from_gsn=%d", outcome.table, outcome.changelog_begins_gsn)
            if outcome.unclean:
                logger.warning(
                    "table not cleaned, it keeps old files until its next turn table=%s error=%s",
                    outcome.table,
                    outcome.unclean,
                )

    def stop(self, outcomes: Iterable[Outcome]) -> None:
        stops = [self._stop_of(outcome) for outcome in outcomes]
        self.keep_stops(stops)
        for stop in stops:
            if self._is_behind(stop):
                logger.info("table is behind, and catches up between batches table=%s cut=%d", stop.table, stop.cut)
            else:
                logger.error("table stopped table=%s cut=%d error=%s", stop.table, stop.cut, stop.message)

    def keep_stops(self, stops: Sequence[StoppedTable]) -> None:
        """Record how these have stopped, or where else they go on."""
        self._records.record_stops(stops)
        self.stopped.update({stop.table: stop for stop in stops})

    def resume(self, resumed: Sequence[tuple[Outcome, str, int]]) -> None:
        """Record that these go on, each with what its changelog lacks, and with the number of the event with which it
        has begun anew, where nothing of it is written yet (`Records.record_resumed`)."""
        self._records.record_resumed(resumed)
        for outcome, _, begins_at_gsn in resumed:
            stop = self.stopped.pop(outcome.table)
            if begins_at_gsn:
                self.recorded[outcome.table] = Recorded(begins_at_gsn=begins_at_gsn)
            begun_anew = stop.begins_at_gsn > 0
            logger.info("table resumed table=%s cut=%d begun_anew=%s", outcome.table, outcome.cut, begun_anew)

    def tried_in_vain(self, tables: Iterable[TableId]) -> None:
        """Whoever asked for it sees that it was done: a table that can only begin anew has no outcome."""
        self.keep_stops([replace(self.stopped[table], at_us=now_us()) for table in tables])

    def _stop_of(self, outcome: Outcome) -> StoppedTable:
        """A table that was stopped already keeps what is known of its first stop.

        One that has begun anew, and of which nothing is written yet, keeps with what it began.
        """
        held = self.stopped.get(outcome.table)
        begins_at_gsn = self.recorded.get(outcome.table, NOTHING).begins_at_gsn
        return StoppedTable(
            outcome.table,
            outcome.entry,
            outcome.cut,
            outcome.code,
            outcome.message,
            outcome.terminal,
            now_us(),
            held.last_commit_timestamp_us if held is not None else self._status.last_commit_us(outcome.table),
            (held.begins_at_gsn if held is not None else 0) or begins_at_gsn,
        )

    def _stop_lost(self) -> None:
        """Tables whose folders do not hold what was recorded when the sink last ran."""
        lost = lost_tables(self._settings.lake, self.recorded)
        new = {table: stop for table, stop in lost.items() if table not in self.stopped}
        self.stop(
            Outcome(
                table, Result.STOPPED, stop.from_entry, 0, code=stop.code, message=str(stop), terminal=stop.terminal
            )
            for table, stop in new.items()
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
            self._status.policies_are(self._policies)

    def _told_policies(self, tables: Iterable[tuple[TableId, str]]) -> dict[TableId, str]:
        """Of tables, each with in what it is not its source's; none of those of which there is nothing to tell."""
        rules = self._settings.schema_changes
        return {table: said for table, departure in tables if (said := told(rules.of(table), departure))}
