"""Tables that batches leave alone, and how they come back: each is given what it missed while the batches go on.

Comes in: outcomes that are stops, and whom to try again. Goes out: stops in LAKE/_menura/errors, and jobs (`BatchJobs`)
that give tables their rows of the cut log, from the entry that each stopped at to the log's end. A table comes back in
two steps. The first one takes as long as it takes and holds no lock: batches go on, and leave the table alone. The
second holds the batches' lock: it gives the table the little that landed meanwhile, within a batch's share, records it,
and takes the stop away. Where that is too much again (`TableBehind`), the first step is repeated later.

Two threads do this: one tries tables that failed (`retry_due`), the other one does what takes long (`catch_up_due`).
So those that failed do not wait for what takes long. One of the two has a table at a time.

Durable is what the jobs wrote, then the record, then the row that says that the table goes on. A kill between two has
the next start try the table again, which skips what it holds.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from menura.instants import now_us

from spark_sink.errors import EntriesGone, LakeTableLost, ParentStopped, TableBehind
from spark_sink.ingest.batch_jobs import BatchJobs, Turn
from spark_sink.ingest.cut_log_source import Row
from spark_sink.ingest.families import Families
from spark_sink.ingest.missed_rows import MissedRows, entries_gone
from spark_sink.ingest.new_beginning import bereft, lacking, new_beginning, rows_to_follow
from spark_sink.ingest.retries import Retries
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.verifications import Verifications
from spark_sink.lake.recorded import NOTHING, Recorded
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import CutSeen, Outcome, Result, TableId

#: that stopped tables have missed, kept in memory from one retry to the next; some hundred bytes each
MOST_KEPT_ROWS = 100_000

logger = logging.getLogger("menura.sink")

#: writes a job's records and remembers the tables' versions; what is stopped among the outcomes it gives to `stop`
Record = Callable[[Sequence[CutSeen], Sequence[Outcome]], object]


def _is_same(stop: StoppedTable, other: StoppedTable | None) -> bool:
    """But for when it was tried."""
    return other is not None and replace(stop, at_us=other.at_us) == other


class StoppedTables:
    """Of one sink. `writing`: held while batches write; `recorded`: the sink's own, which it changes."""

    def __init__(
        self,
        log: LandingLog,
        jobs: BatchJobs,
        records: Records,
        recorded: dict[TableId, Recorded],
        writing: AbstractContextManager[object],
        status: SinkStatus,
        verifications: Verifications,
        check: Callable[[], object],
        record: Record,
    ) -> None:
        """`check` raises a `SinkError` where another sink has the lake."""
        self._log = log
        self._records = records
        self._jobs = jobs
        self._status = status
        self._verifications = verifications
        self._writing = writing
        self._recorded = recorded
        self._check = check
        self._record = record
        self.tables: dict[TableId, StoppedTable] = {}
        #: how many batches have recorded events, which say how tables follow each other
        self.told = 0
        #: by that, and by the tables with their first entries
        self._missed: dict[tuple[int, frozenset[tuple[TableId, int]]], MissedRows] = {}
        self._retries = Retries()
        self._asking = threading.Lock()
        #: tables to be tried again soon; any thread asks
        self._asked: set[TableId] = set()
        #: tables of which more is to be done than others would wait for, whatever their stops say
        self._behind: set[TableId] = set()
        #: tables that a thread gives what they missed
        self._taken: set[TableId] = set()

    def begin(self) -> None:
        """At a start of the query."""
        self.tables = self._records.stopped_tables()

    def ask(self, tables: Iterable[TableId]) -> None:
        """Let the next turn try these again, those of them that are stopped; from any thread."""
        with self._asking:
            self._asked.update(tables)

    def retry_due(self) -> None:
        """Try tables again that somebody asks for, and transiently stopped ones, more and more slowly."""
        with self._asking:
            asked, self._asked = self._asked, set()
        due = (asked | self._retries.due(self._transient(), time.monotonic())) - self._late()
        self.retry([table for table in due if table in self.tables])

    def catch_up_due(self) -> None:
        """Bring tables to the log's end whose turns are too long for a batch."""
        self.retry(list(self._late()), Turn.BESIDE)

    def _late(self) -> set[TableId]:
        stopped = dict(self.tables)
        behind = {table for table, stop in stopped.items() if stop.code == TableBehind.code}
        return behind | (self._behind & stopped.keys())

    def _transient(self) -> set[TableId]:
        """Stopped tables that may go on by themselves: not those below one that waits for somebody."""
        stopped = dict(self.tables)
        found = {table for table, stop in stopped.items() if not stop.terminal}
        waiting = stopped.keys() - found
        return found - self._below(waiting) if found and waiting else found

    def _below(self, tables: Collection[TableId]) -> set[TableId]:
        """Tables that have stopped since one above them had; of these."""
        stops = [stop for stop in list(self.tables.values()) if stop.code == ParentStopped.code]
        if not stops:
            return set()
        families = self._known_families()
        return {stop.table for stop in stops if not families.above([stop.table]).isdisjoint(tables)}

    def _known_families(self) -> Families:
        families = Families()
        families.read(self._records.events_folder)
        return families

    def retry(self, tables: Iterable[TableId], turn: Turn = Turn.RETRY) -> None:
        """Give tables what they missed, from the entry that they stopped at to the log's end.

        One that can't go on from there begins anew where the log has a dump of it; so do, after it, those whose
        foreign keys follow it. Tables that another thread has are left to it.
        """
        left = set(tables)
        while left:
            with self._taking(left) as mine:
                held = dict(self.tables)
                tried = mine & held.keys()
                if not tried:
                    return
                ahead = self._catch_up(tried, turn)
                with self._writing:
                    self._check()
                    self._begin_anew(tried, self._retry(tried, ahead))
                    self._tried_in_vain([table for table in tried if self.tables.get(table) == held[table]])
                    left = self._concerned(held)
                    self._forget_missed()
                    self._status.stopped_are(self.tables)

    @contextmanager
    def _taking(self, tables: Collection[TableId]) -> Iterator[set[TableId]]:
        """Those that no other thread has; it will have the others tried again."""
        with self._asking:
            mine = set(tables) - self._taken
            self._asked |= set(tables) - mine
            self._taken |= mine
        try:
            yield mine
        finally:
            with self._asking:
                self._taken -= mine

    def _catch_up(self, tables: Collection[TableId], turn: Turn) -> dict[TableId, Outcome]:
        """The first step: what came of these, in a job while batches go on."""
        with self._writing:
            self._check()
            self._leave_bereft(tables)
            missed = self._missed_of(tables)
        missed.read_on()
        with self._writing:
            job = self._job(tables, turn, {})
        return {outcome.table: outcome for outcome in job()}

    def _job(
        self, tables: Collection[TableId], turn: Turn, failed: Mapping[TableId, Outcome]
    ) -> Callable[[], list[Outcome]]:
        """What is to be run of these, up to where it was read; those that have `failed` are left alone."""
        missed = self._missed_of(tables)
        gone = self._leave_gone(tables, missed.gone_entry)
        stops = {table: self.tables[table] for table in tables}
        followed = rows_to_follow(missed.rows()[1], stops)
        going = {table for table, stop in stops.items() if not stop.is_bereft} - gone - failed.keys()
        anew = {table for table, stop in stops.items() if stop.code == LakeTableLost.code or stop.begins_at_gsn}
        recorded = {table: held for table, held in self._recorded.items() if table not in anew}
        recorded |= {
            table: Recorded(begins_at_gsn=stop.begins_at_gsn) for table, stop in stops.items() if stop.begins_at_gsn
        }
        left_alone = frozenset(self.tables) - going
        families = missed.families
        if not going:
            return list
        return lambda: self._jobs.run_rows(followed, left_alone, recorded, turn, families)

    def _retry(self, tables: Collection[TableId], ahead: Mapping[TableId, Outcome]) -> list[Row]:
        """The second step, once, with what came of the first; gives the rows that the tables missed."""
        self._leave_bereft(tables)
        missed = self._missed_of(tables)
        caught_up = missed.last_entry
        missed.read_on()
        failed = {table: outcome for table, outcome in ahead.items() if outcome.result is Result.STOPPED}
        found = self._job(tables, Turn.BATCH, failed)()
        outcomes = [_together(ahead.get(each.table), each, caught_up) for each in found if each.table not in failed] + [
            failed[table] for table in tables if table in failed
        ]
        stops = {table: self.tables[table] for table in tables}
        late = [each for each in outcomes if each.code == TableBehind.code]
        self._stay_behind(late, ahead, caught_up)
        cuts, rows = missed.rows()
        self._record(cuts, [each for each in outcomes if each.code != TableBehind.code])
        self._verifications.note(outcomes, ())
        # Only what was really done goes on: a table whose entries are gone must not skip them.
        resumed = [each for each in outcomes if each.result is not Result.STOPPED and each.table in self.tables]
        #: their first rows are yet to come
        empty = {each.table: stops[each.table].begins_at_gsn for each in resumed if each.changelog_version is None}
        self._records.record_resumed((each, lacking(stops[each.table]), empty.get(each.table, 0)) for each in resumed)
        for outcome in resumed:
            del self.tables[outcome.table]
            self._behind.discard(outcome.table)
            if empty.get(outcome.table):
                self._recorded[outcome.table] = Recorded(begins_at_gsn=empty[outcome.table])
            begun_anew = stops[outcome.table].begins_at_gsn > 0
            logger.info("table resumed table=%s cut=%d begun_anew=%s", outcome.table, outcome.cut, begun_anew)
        return rows

    def _stay_behind(self, late: Sequence[Outcome], ahead: Mapping[TableId, Outcome], caught_up: int) -> None:
        """Tables of which more is to be done than others wait for; what is done already is not read again."""
        self._behind.difference_update(ahead)
        self._behind.update(each.table for each in late)
        for outcome in late:
            stop = self.tables.get(outcome.table)
            if stop is None:
                self.stop([outcome])
                continue
            first = ahead.get(outcome.table)
            is_done = first is not None and first.result is not Result.STOPPED
            if is_done and stop.code == TableBehind.code and not stop.begins_at_gsn:
                further = replace(stop, entry=max(stop.entry, caught_up + 1), at_us=now_us())
                self._records.record_stops([further])
                self.tables[outcome.table] = further

    def _forget_missed(self) -> None:
        for key, found in list(self._missed.items()):
            if len(found) > MOST_KEPT_ROWS or key[0] != self.told or not self._will_be_tried(key[1]):
                self._missed.pop(key, None)

    def _will_be_tried(self, first_entries: Iterable[tuple[TableId, int]]) -> bool:
        """Whether all of these are stopped where they were, and go on by themselves."""
        stops = [(self.tables.get(table), entry) for table, entry in first_entries]
        return all(stop is not None and stop.entry == entry and not stop.terminal for stop, entry in stops)

    def _concerned(self, held: Mapping[TableId, StoppedTable]) -> set[TableId]:
        """Whom to try next, since others go on; `held`: the stops of before.

        Nothing that is to come would have them tried: their own dumps may stand in the log already, and tables below
        one that goes on have what they waited for.
        """
        resumed = held.keys() - self.tables.keys()
        bereft = {
            table for table, stop in self.tables.items() if stop.is_bereft and not _is_same(stop, held.get(table))
        }
        return bereft | (self._below(resumed) if resumed else set())

    def _tried_in_vain(self, tables: Iterable[TableId]) -> None:
        """Whoever asked for it sees that it was done: a table that can only begin anew has no outcome."""
        stops = [replace(self.tables[table], at_us=now_us()) for table in tables]
        self._records.record_stops(stops)
        self.tables.update({stop.table: stop for stop in stops})

    def _begin_anew(self, tables: Collection[TableId], missed: Sequence[Row]) -> None:
        """Those of the tables that are still stopped, and that a dump among the rows that they missed begins anew."""
        stops = [self.tables[table] for table in tables if table in self.tables]
        found = [new_beginning(stop, missed, self.tables) for stop in stops]
        anew = [replace(begins, at_us=now_us()) for begins in found if begins is not None]
        if anew:
            self._records.record_stops(anew)  # before anything is left out
            self.tables.update({begins.table: begins for begins in anew})
            self._retry([begins.table for begins in anew], {})

    def _leave_bereft(self, tables: Collection[TableId]) -> None:
        """Before any of these begins anew: what its foreign keys did to others meanwhile nobody carries out."""
        if any(self.tables[table].begins_at_gsn for table in tables):
            families = self._known_families()
            begins = [
                stop
                for table in tables
                if (stop := self.tables[table]).begins_at_gsn and not stop.is_bereft and not self._has_begun(stop)
            ]
            stops = bereft(self.tables, begins, lambda table: families.above([table]), now_us())
            self._records.record_stops(stops)
            self.tables.update({stop.table: stop for stop in stops})

    def _has_begun(self, stop: StoppedTable) -> bool:
        """Whether it has gone on from that beginning already, and stopped again before anything of it was written."""
        return self._recorded.get(stop.table, NOTHING).begins_at_gsn == stop.begins_at_gsn

    def _missed_of(self, tables: Collection[TableId]) -> MissedRows:
        """What these have missed, up to where it was read; reading goes on from there."""
        first_entries = {table: self.tables[table].entry for table in tables}
        key = (self.told, frozenset(first_entries.items()))
        found = self._missed.get(key)
        if found is None:
            only_anew = {table for table in tables if self.tables[table].waits_for_dump}
            found = MissedRows(self._log, self._records.events_folder, first_entries, only_anew)
            self._missed[key] = found
        return found

    def _leave_gone(self, tables: Collection[TableId], gone_entry: int) -> set[TableId]:
        """Tables that lack entries which nobody has any more; they can only begin anew, behind those."""
        lacking = [stop for table in tables if (stop := self.tables[table]).entry <= gone_entry]
        for stop in lacking:
            if stop.code != EntriesGone.code and not stop.is_bereft:
                gone = entries_gone(stop, gone_entry)
                self.stop(
                    [Outcome(stop.table, Result.STOPPED, stop.entry, stop.cut, code=gone.code, message=str(gone))]
                )
        return {stop.table for stop in lacking}

    def stop(self, outcomes: Iterable[Outcome]) -> None:
        """From now on batches leave these alone. Whoever calls it holds the lock."""
        stops = [self._stop_of(outcome) for outcome in outcomes]
        self._records.record_stops(stops)
        for stop in stops:
            self.tables[stop.table] = stop
            if stop.code == TableBehind.code:
                logger.info(
                    "table catches up beside the others table=%s cut=%d reason=%s", stop.table, stop.cut, stop.message
                )
            else:
                logger.error("table stopped table=%s cut=%d error=%s", stop.table, stop.cut, stop.message)

    def _stop_of(self, outcome: Outcome) -> StoppedTable:
        """A table that was stopped already keeps what is known of its first stop.

        One that has begun anew, and of which nothing is written yet, keeps with what it began.
        """
        held = self.tables.get(outcome.table)
        begins_at_gsn = self._recorded.get(outcome.table, NOTHING).begins_at_gsn
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


def _together(first: Outcome | None, second: Outcome, caught_up: int) -> Outcome:
    """What came of a table in both steps; the second one finds what the first one did, up to that entry, done."""
    if first is None or second.result is Result.STOPPED:
        return second
    later = [due for due in second.due if due.digest.entry > caught_up]
    begins_gsn = second.changelog_begins_gsn or first.changelog_begins_gsn
    return replace(second, due=(*first.due, *later), changelog_begins_gsn=begins_gsn)
