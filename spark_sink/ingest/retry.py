"""Stopped tables are given what they have missed, from the entry that each stopped at; so they go on, or stop again.

Comes in: tables to try, and the cut log (`missed_rows`). Goes out: one Spark job, whose tables skip what they hold, and
its records; who came to an end goes on with the next batch. Where a dump of a table begins later in the log and the
table can't go on from where it stopped, it begins anew with that dump (`new_beginning`), and after it those whose
foreign keys follow it. Durable are the tables, then the records: a kill between two has the same tables tried again.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from menura.instants import now_us

from spark_sink.errors import EntriesGone, LakeTableLost
from spark_sink.ingest.batch_jobs import BatchJobs
from spark_sink.ingest.cut_log_source import Row
from spark_sink.ingest.families import Families
from spark_sink.ingest.missed_rows import MissedRows, entries_gone
from spark_sink.ingest.new_beginning import bereft, lacking, new_beginning, rows_to_follow
from spark_sink.ingest.table_states import TableStates
from spark_sink.ingest.verifications import Verifications
from spark_sink.lake.recorded import NOTHING, Recorded
from spark_sink.lake.records import StoppedTable
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import Outcome, Result, TableId

#: that stopped tables have missed, kept in memory from one retry to the next; some hundred bytes each
MOST_KEPT_ROWS = 100_000

logger = logging.getLogger("menura.sink")


class Retry:
    """Of one sink."""

    def __init__(
        self,
        tables: TableStates,
        jobs: BatchJobs,
        log: LandingLog,
        events_folder: str,
        verifications: Verifications,
    ) -> None:
        self._tables = tables
        self._jobs = jobs
        self._log = log
        self._events_folder = events_folder
        self._verifications = verifications
        #: how many batches have recorded events, which say how tables follow each other
        self._told = 0
        #: by that, and by the tables with their first entries
        self._missed: dict[tuple[int, frozenset[tuple[TableId, int]]], MissedRows] = {}

    def events_recorded(self) -> None:
        """What was read of the log may be in another order by now."""
        self._told += 1

    def read_ahead(self, tables: Iterable[TableId], last_entry: int | None) -> None:
        """What `run` is going to need, while batches go on. Raises `LogEntryUnreadable`, OSError."""
        held = dict(self._tables.stopped)
        self._missed_of([table for table in tables if table in held]).read_on(last_entry)

    def run(self, tables: Collection[TableId], last_entry: int | None) -> None:
        """Try these; `last_entry`: to where they are to come, None: to the log's end. The caller keeps batches away."""
        states = self._tables
        left = set(tables)
        while left:
            held = dict(states.stopped)
            self._begin_anew(left, self._once(left, last_entry))
            states.tried_in_vain([table for table in left if states.stopped.get(table) == held[table]])
            left = self._concerned(held)
        self._missed = {
            key: found
            for key, found in self._missed.items()
            if len(found) <= MOST_KEPT_ROWS and key[0] == self._told and self._will_be_tried(key[1])
        }
        states.tell()

    def _once(self, tables: Collection[TableId], last_entry: int | None = None) -> list[Row]:
        """Gives the rows that the tables missed."""
        states = self._tables
        self._leave_bereft(tables)
        missed = self._missed_of(tables)
        missed.read_on(last_entry)
        gone = self._leave_gone(tables, missed.gone_entry)
        stops = {table: states.stopped[table] for table in tables}
        cuts, rows = list(missed.cuts), missed.rows()
        followed = rows_to_follow(rows, stops)
        going = {table for table, stop in stops.items() if not stop.is_bereft} - gone
        left_alone = frozenset(states.stopped) - going
        spread = self._jobs.spread(followed, missed.families)
        outcomes = self._jobs.run(spread, left_alone, self._held(stops))  # events were recorded with their batch
        states.record(cuts, outcomes)
        self._verifications.note(outcomes, ())
        # Only what was really done goes on: a table whose entries are gone must not skip them.
        done = [outcome for outcome in outcomes if outcome.result is not Result.STOPPED]
        resumed = [outcome for outcome in done if outcome.table in states.stopped]
        #: their first rows are yet to come
        empty = {each.table: stops[each.table].begins_at_gsn for each in resumed if each.changelog_version is None}
        states.resume([(each, lacking(stops[each.table]), empty.get(each.table, 0)) for each in resumed])
        return rows

    def _held(self, stops: Mapping[TableId, StoppedTable]) -> dict[TableId, Recorded]:
        """What the tables' folders must hold: nothing, of those that begin anew."""
        anew = {table for table, stop in stops.items() if stop.code == LakeTableLost.code or stop.begins_at_gsn}
        recorded = {table: held for table, held in self._tables.recorded.items() if table not in anew}
        return recorded | {
            table: Recorded(begins_at_gsn=stop.begins_at_gsn) for table, stop in stops.items() if stop.begins_at_gsn
        }

    def _begin_anew(self, tables: Collection[TableId], missed: Sequence[Row]) -> None:
        """Those of the tables that are still stopped, and that a dump among the rows that they missed begins anew."""
        stopped = self._tables.stopped
        stops = [stopped[table] for table in tables if table in stopped]
        found = [new_beginning(stop, missed, stopped) for stop in stops]
        anew = [replace(begins, at_us=now_us()) for begins in found if begins is not None]
        if anew:
            self._tables.keep_stops(anew)  # before anything is left out
            self._once([begins.table for begins in anew])

    def _concerned(self, held: Mapping[TableId, StoppedTable]) -> set[TableId]:
        """Whom to try next, since others go on; `held`: the stops of before.

        Nothing that is to come would have them tried: their own dumps may stand in the log already, and tables below
        one that goes on have what they waited for.
        """
        stopped = self._tables.stopped
        resumed = held.keys() - stopped.keys()
        orphans = {table for table, stop in stopped.items() if stop.is_bereft and not _is_same(stop, held.get(table))}
        return orphans | (self._tables.below(resumed) if resumed else set())

    def _will_be_tried(self, first_entries: Iterable[tuple[TableId, int]]) -> bool:
        """Whether all of these are stopped where they were, and go on by themselves."""
        stops = [(self._tables.stopped.get(table), entry) for table, entry in first_entries]
        return all(stop is not None and stop.entry == entry and not stop.terminal for stop, entry in stops)

    def _leave_bereft(self, tables: Collection[TableId]) -> None:
        """Before any of these begins anew: what its foreign keys did to others meanwhile nobody carries out."""
        stopped = self._tables.stopped
        if any(stopped[table].begins_at_gsn for table in tables):
            families = Families()
            families.read(self._events_folder)
            begins = [
                stop
                for table in tables
                if (stop := stopped[table]).begins_at_gsn and not stop.is_bereft and not self._has_begun(stop)
            ]
            self._tables.keep_stops(bereft(stopped, begins, lambda table: families.above([table]), now_us()))

    def _has_begun(self, stop: StoppedTable) -> bool:
        """Whether it has gone on from that beginning already, and stopped again before anything of it was written."""
        return self._tables.recorded.get(stop.table, NOTHING).begins_at_gsn == stop.begins_at_gsn

    def _missed_of(self, tables: Collection[TableId]) -> MissedRows:
        """What these have missed, up to where it was read; reading goes on from there."""
        stopped = self._tables.stopped
        first_entries = {table: stopped[table].entry for table in tables}
        key = (self._told, frozenset(first_entries.items()))
        if key not in self._missed:
            only_anew = {table for table in tables if stopped[table].waits_for_dump}
            self._missed[key] = MissedRows(self._log, self._events_folder, first_entries, only_anew)
        return self._missed[key]

    def _leave_gone(self, tables: Collection[TableId], gone_entry: int) -> set[TableId]:
        """Tables that lack entries which nobody has any more; they can only begin anew, behind those."""
        found = [stop for table in tables if (stop := self._tables.stopped[table]).entry <= gone_entry]
        for stop in found:
            if stop.code != EntriesGone.code and not stop.is_bereft:
                gone = entries_gone(stop, gone_entry)
                self._tables.stop(
                    [Outcome(stop.table, Result.STOPPED, stop.entry, stop.cut, code=gone.code, message=str(gone))]
                )
        return {stop.table for stop in found}


def _is_same(stop: StoppedTable, other: StoppedTable | None) -> bool:
    """But for when it was tried."""
    return other is not None and replace(stop, at_us=other.at_us) == other
