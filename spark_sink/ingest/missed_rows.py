"""What stopped tables have missed: their rows of the cut log, from the entry that each stopped at to the log's end.

Comes in: entries of the log. Goes out: rows of `cut_log_source.ROW_SCHEMA`, each table's behind those of the tables
that its foreign keys follow. Nothing is durable. A retry reads on from where the last one ended, so that a table that
is tried often costs no more than its rows are many; who keeps one from retry to retry bounds its length.

Entries may be gone, or removed. What stands behind them is read all the same, since a dump there begins a table anew;
`gone_entry` says which tables can't go on from where they stopped. Of one that is known to be such (`only_anew`)
nothing is kept but what it may begin with: it may wait for long, and then reads on from there.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Mapping

from menura.landing import decode_event

from spark_sink.errors import EntriesGone
from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.cut_log_source import Row, entry_rows
from spark_sink.ingest.families import Families
from spark_sink.ingest.new_beginning import begins_anew
from spark_sink.lake.records import StoppedTable
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import CutSeen, TableFile, TableId, is_cut, row_table, split_rows


class MissedRows:
    """Of these tables, each from an entry on."""

    def __init__(
        self,
        log: LandingLog,
        events_folder: str,
        first_entries: Mapping[TableId, int],
        only_anew: Collection[TableId] = (),
    ) -> None:
        self._log = log
        self._first_entries = dict(first_entries)
        self._only_anew = frozenset(only_anew)
        self._first = self._next = min(first_entries.values())
        self.families = Families()
        self.families.read(events_folder)
        self.cuts: list[CutSeen] = []
        self._rows: list[Row] = []
        #: the last one of the log that is gone; 0: none is
        self.gone_entry = 0

    def __len__(self) -> int:
        """Rows of files, events and cuts that are held."""
        return len(self._rows)

    @property
    def last_entry(self) -> int:
        """The last one that was read."""
        return self._next - 1

    @property
    def tables(self) -> Collection[TableId]:
        return self._first_entries

    def read_on(self, last_entry: int | None = None) -> None:
        """To there; None: to the log's end. Raises `LogEntryUnreadable`, OSError."""
        while (last_entry is None or self._next <= last_entry) and self._read_next() is not None:
            pass

    def read_part(self, share: BatchShare, most: float, most_together: float, last_entry: int) -> bool:
        """On to the entry with which a table has so many shares, or all together. Whether that is all there is.

        Raises as `read_on`.
        """
        sizes: defaultdict[TableId, float] = defaultdict(float)
        while self._next <= last_entry and (rows := self._read_next()) is not None:
            for row in rows:
                if row.get("path") is not None:
                    (file,) = split_rows([row])[1][row_table(row)]
                    assert isinstance(file, TableFile)
                    sizes[row_table(row)] += share.shares(file)
            if max(sizes.values(), default=0) >= most or sum(sizes.values()) >= most_together:
                return False
        return True

    def _read_next(self) -> list[Row] | None:
        """What of the next entry is kept; None: it is not there."""
        entry = self._log.read_entry(self._next)
        rows: list[Row] = []
        if entry is None:
            if not self._log.missing(self._next):
                return None
            self._next = self.gone_entry = max(self._next, self._log.horizon().first_entry - 1)
        else:
            self.families.note(entry)
            wanted = self._wanted()
            for row in entry_rows(entry):
                if is_cut(row) and row.get("event") is not None:
                    continue  # recorded with its batch
                if is_cut(row):
                    self.cuts.append(CutSeen(**{name: row[name] for name in CutSeen.__slots__}))
                    rows.append(row)
                elif self._next >= wanted.get(row_table(row), self._next + 1) and self._is_needed(row):
                    rows.append(row)
        self._rows += rows
        self._next += 1
        return rows

    def _is_needed(self, row: Row) -> bool:
        if row_table(row) not in self._only_anew:
            return True
        return row.get("event") is not None and begins_anew(decode_event(json.loads(row["event"])))

    def rows(self) -> list[Row]:
        """In order."""
        arranged = [row for row in self.families.arranged(self._rows) if not is_cut(row)]
        wanted = self._wanted()
        return [row for row in arranged if row["entry"] >= wanted.get(row_table(row), self._next)]

    def _wanted(self) -> dict[TableId, int]:
        """Tables above must have all that a child takes of them; what they have already is left out."""
        return dict.fromkeys(self.families.above(self._first_entries), self._first) | self._first_entries


def entries_gone(stop: StoppedTable, gone_entry: int) -> EntriesGone:
    """Why a table can't go on from where it stopped."""
    return EntriesGone(
        "giving the table what it missed",
        f"it stopped at entry {stop.entry} of the cut log, and the log lacks entry {gone_entry}",
        data=f"The table stays at its last version; other tables go on. It had stopped with: {stop.message}",
        remedy=f"Begin the table anew: {stop.table.resync}",
        **stop.table.where(stop.cut),
    )
