"""Tables that others do not wait for: which they are, and the next part of what they have missed.

A table of which a batch has more than its share (`batch_share`) is left out of batches, as a stopped one is; so goes on
one that its store had failed. Comes in: the stops, and the cut log. Goes out a turn: rows of the log for one job, about
a second's work for each core, or tables of which so little is left that a retry takes it, with which they join the
batches again. The table that has waited for longest has its turn, and with it those that lack the same entries; batches
come between two turns.

Durable is the entry of a stop, which is moved to the last one with rows of its table, so that a retry has some; how far
parts have come beyond it is known here alone. A kill has at most one part read again, of which the table skips what it
holds. Only a retry does tables that begin anew, that foreign keys join with others, or that lack entries of the log.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from menura.instants import now_us

from spark_sink.errors import LakeStorageFailed, TableBehind
from spark_sink.ingest.batch_share import STORE_IS_BACK, BatchShare, behind
from spark_sink.ingest.cut_log_source import Row
from spark_sink.ingest.families import Families
from spark_sink.ingest.missed_rows import MissedRows
from spark_sink.lake.records import StoppedTable, last_cuts
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import CutSeen, TableId, split_rows

#: a part that was done sooner than this is followed by one of twice the size, up to so many shares
QUICK_SECONDS, SLOW_SECONDS = 0.7, 1.5
MOST_SHARES = 16
#: until a table has its turn again whose retry came to nothing
REST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    tables: frozenset[TableId]
    #: None: a retry does the rest
    rows: Sequence[Row] | None = None
    cuts: Sequence[CutSeen] = ()
    last_entry: int = 0
    families: Families | None = None

    def moved(self, stops: Iterable[StoppedTable]) -> list[StoppedTable]:
        """The stops of tables that have all of it; not those that stay where they are."""
        found = []
        work, last = split_rows(self.rows or ())[1], last_cuts(self.cuts)
        for stop in stops:
            own = work.get(stop.table)
            if own is None and stop.code == TableBehind.code:
                continue
            is_behind = stop.code == TableBehind.code
            message = stop.message if is_behind else str(behind(stop.table, stop.cut, STORE_IS_BACK))
            entry = max(stop.entry, own[-1].entry if own is not None else 0)
            moved = replace(stop, code=TableBehind.code, message=message, at_us=now_us(), entry=entry)
            cut = last.get((stop.table.tenant, stop.table.source))
            if cut is not None:
                commit_us = cut.last_commit_timestamp_us or stop.last_commit_timestamp_us
                moved = replace(moved, cut=max(stop.cut, cut.cut + 1), last_commit_timestamp_us=commit_us)
            found.append(moved)
        return found


class CatchingUp:
    """One thread changes it."""

    def __init__(self, log: LandingLog, events_folder: str, share: BatchShare) -> None:
        self._log = log
        self._events_folder = events_folder
        self._share = share
        #: of a table in a part, where it is more than one
        self._shares: dict[TableId, float] = {}
        #: that go on though their stops have other reasons
        self._going_on: set[TableId] = set()
        #: up to which entry parts have come
        self._reached: dict[TableId, int] = {}
        #: of each table that had one the number of its last turn, so that who is behind again does not go first
        self._served: dict[TableId, int] = {}
        self._turns = count(1)
        #: until when those rest whose retry came to nothing, by the monotonic clock
        self._rests: dict[TableId, float] = {}

    @staticmethod
    def is_possible(stop: StoppedTable) -> bool:
        return stop.code in (TableBehind.code, LakeStorageFailed.code) and not stop.begins_at_gsn

    def begin(self, tables: Iterable[TableId]) -> None:
        """Only these go on, and those that are behind; from where they stopped."""
        self._going_on, self._reached, self._served, self._rests = set(tables), {}, {}, {}

    def go_on(self, tables: Collection[TableId]) -> None:
        self._going_on.update(tables)
        self._rests = {table: until for table, until in self._rests.items() if table not in tables}

    def of(self, stopped: Mapping[TableId, StoppedTable], now: float, last_entry: int) -> dict[TableId, StoppedTable]:
        """The tables that are to be given something of what batches have come to."""
        going = {
            table: stop
            for table, stop in stopped.items()
            if self.is_possible(stop) and (stop.code == TableBehind.code or table in self._going_on)
        }
        self._going_on &= going.keys()
        self._reached = {table: entry for table, entry in self._reached.items() if table in going}
        self._shares = {table: shares for table, shares in self._shares.items() if table in going}
        self._rests = {table: until for table, until in self._rests.items() if table in going}
        return {
            table: stop
            for table, stop in going.items()
            if stop.entry <= last_entry and self._rests.get(table, 0.0) <= now
        }

    def next_turn(self, stops: Mapping[TableId, StoppedTable], cores: int, last_entry: int) -> Turn:
        """Of the table that has waited for longest, and those with it: no table is to be ahead of the batches.

        Raises `LogEntryUnreadable`, OSError.
        """
        first = {table: max(stop.entry, self._reached.get(table, 0) + 1) for table, stop in stops.items()}
        eldest = min(stops, key=lambda table: (self._served.get(table, 0), first[table], table))
        missed = MissedRows(
            self._log,
            self._events_folder,
            {table: entry for table, entry in first.items() if entry >= first[eldest]},
        )
        shares = min(self._shares.get(table, 1.0) for table in missed.tables)
        is_whole = missed.read_part(self._share, shares, shares * cores, last_entry)
        tables = frozenset(table for table in missed.tables if is_whole or first[table] <= missed.last_entry)
        self._served.update(dict.fromkeys(tables, next(self._turns)))
        joined = {table for table in tables if missed.families.is_joined(table)}
        lacking = {table for table in tables if stops[table].entry <= missed.gone_entry}
        if is_whole or joined or lacking:
            return Turn(tables if is_whole else frozenset(joined | lacking))
        return Turn(tables, missed.rows(), missed.cuts, missed.last_entry, missed.families)

    def given(self, tables: Collection[TableId], turn: Turn, seconds: float) -> None:
        """These have all of it, which took so long."""
        self._reached.update(dict.fromkeys(tables, turn.last_entry))
        factor = 2.0 if seconds < QUICK_SECONDS else min(1.0, SLOW_SECONDS / seconds)
        for table in tables:
            self._shares[table] = max(1.0, min(MOST_SHARES, self._shares.get(table, 1.0) * factor))

    def failed(self, tables: Collection[TableId], now: float) -> None:
        """These wait until they are tried again."""
        self._going_on.difference_update(tables)
        self._rests.update(dict.fromkeys(tables, now + REST_SECONDS))
