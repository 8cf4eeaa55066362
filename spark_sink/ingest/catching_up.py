"""Tables that others do not wait for: which they are, and the next part of what they have missed.

A table of which a batch has more than its share (`batch_share`) is left out of batches, as a stopped one is; so goes on
one that its store had failed. Comes in: the stops, and the cut log. Goes out: rows of the log for one job, no more than
a share of a table and a share for each core, or nothing where the rest is so little that a retry takes it, with which
the table joins the batches again. Batches come between two parts.

Durable is the entry of a stop, which is moved to the last one with rows of its table; how far parts have come
beyond it is known here alone. A kill has at most one part read again, of which the table skips what it holds.
Only a retry does tables that begin anew, that follow others by foreign keys, or that lack entries of the log.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from menura.instants import now_us

from spark_sink.errors import LakeStorageFailed, TableBehind
from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.cut_log_source import Row
from spark_sink.ingest.families import Families
from spark_sink.ingest.missed_rows import MissedRows
from spark_sink.lake.records import StoppedTable, last_cuts
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import CutSeen, TableId, is_cut, row_table


@dataclass(frozen=True, slots=True)
class Part:
    """What some of the tables are given at once."""

    tables: frozenset[TableId]
    rows: Sequence[Row]
    cuts: Sequence[CutSeen]
    last_entry: int
    families: Families

    def moved(self, stop: StoppedTable) -> StoppedTable:
        """The stop of a table that has all of the part."""
        entry = max((row["entry"] for row in self.rows if row_table(row) == stop.table), default=stop.entry)
        last = last_cuts(self.cuts).get((stop.table.tenant, stop.table.source))
        message = stop.message if stop.code == TableBehind.code else GOES_ON
        entry = max(entry, stop.entry)
        moved = replace(stop, code=TableBehind.code, message=message, at_us=now_us(), entry=entry)
        if last is None:
            return moved
        commit_us = last.last_commit_timestamp_us or stop.last_commit_timestamp_us
        return replace(moved, cut=max(stop.cut, last.cut + 1), last_commit_timestamp_us=commit_us)


#: of a table that had stopped for another reason
GOES_ON = "The table is given what it has missed, in parts between the batches of the others."


class CatchingUp:
    """One thread changes it."""

    def __init__(self, log: LandingLog, events_folder: str, share: BatchShare) -> None:
        self._log = log
        self._events_folder = events_folder
        self._share = share
        #: that go on though their stops have other reasons
        self._going_on: set[TableId] = set()
        #: up to which entry parts have come
        self._reached: dict[TableId, int] = {}

    @staticmethod
    def is_possible(stop: StoppedTable) -> bool:
        return stop.code in (TableBehind.code, LakeStorageFailed.code) and not stop.begins_at_gsn

    def begin(self, tables: Iterable[TableId]) -> None:
        """Only these go on, and those that are behind; from where they stopped."""
        self._going_on, self._reached = set(tables), {}

    def go_on(self, tables: Iterable[TableId]) -> None:
        self._going_on.update(tables)

    def of(self, stopped: Mapping[TableId, StoppedTable]) -> dict[TableId, StoppedTable]:
        """The tables whose turn it is."""
        going = {
            table: stop
            for table, stop in stopped.items()
            if self.is_possible(stop) and (stop.code == TableBehind.code or table in self._going_on)
        }
        self._going_on &= going.keys()
        self._reached = {table: entry for table, entry in self._reached.items() if table in going}
        return going

    def next_part(self, stops: Mapping[TableId, StoppedTable], shares: int) -> Part | None:
        """None: what is left a retry does. Raises `LogEntryUnreadable`, OSError."""
        first = {table: max(stop.entry, self._reached.get(table, 0) + 1) for table, stop in stops.items()}
        missed = MissedRows(self._log, self._events_folder, first)
        if missed.read_part(self._share, shares) or missed.gone_entry or missed.follows_others:
            return None
        cuts, rows = missed.rows()
        tables = frozenset(table for table, entry in first.items() if entry <= missed.last_entry)
        return Part(tables, [row for row in rows if not is_cut(row)], cuts, missed.last_entry, missed.families)

    def reached(self, tables: Collection[TableId], entry: int) -> None:
        """These have all up to there."""
        self._reached.update(dict.fromkeys(tables, entry))

    def failed(self, tables: Collection[TableId]) -> None:
        """These wait until they are tried again."""
        self._going_on.difference_update(tables)
