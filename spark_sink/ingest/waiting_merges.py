"""Tables whose changes wait in their changelogs (`tail`): when each must be merged though no batch has more of it.

Comes in: outcomes of batches; at a start, what `cuts` says of the tables. Goes out: the tables to merge now. Nothing
here is durable: the tails are in the tables, and what is not merged before a kill is due at the next start.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_sink.lake.records import last_cuts
from spark_sink.work import CutSeen, Outcome, Result, TableId

#: after a merge that failed; its table's next batch tries it, too, and says why it fails
FAILED_PAUSE_US = 300_000_000


@dataclass(frozen=True, slots=True)
class WaitingTable:
    #: at which the table was written last
    boundary: CutSeen
    until_us: int


@dataclass(slots=True)
class WaitingMerges:
    """One thread changes it while another asks: a change makes another dictionary."""

    tables: Mapping[TableId, WaitingTable] = field(default_factory=dict)

    def begin(self, found: Mapping[TableId, CutSeen]) -> None:
        """At a start: when their changes began to wait is not known here, so they are merged first."""
        self.tables = {table: WaitingTable(boundary, 0) for table, boundary in found.items()}

    def note(self, cuts: Iterable[CutSeen], outcomes: Iterable[Outcome]) -> None:
        """What a batch has done. A table that was brought further than the batch's end keeps its boundary."""
        last = last_cuts(cuts)
        tables = dict(self.tables)
        for outcome in outcomes:
            is_further = outcome.merge_at_us and outcome.changelog_version is None
            if outcome.result is Result.STOPPED or is_further:
                continue
            tables.pop(outcome.table, None)
            if outcome.merge_at_us:
                boundary = last[outcome.table.tenant, outcome.table.source]
                tables[outcome.table] = WaitingTable(boundary, outcome.merge_at_us)
        self.tables = tables

    def due(self, now_us: int, stopped: Collection[TableId], most: int) -> dict[TableId, CutSeen]:
        """The tables that have waited for longest, each with its boundary; not those that have stopped."""
        tables = self.tables
        found = [
            (waiting.until_us, table)
            for table, waiting in tables.items()
            if waiting.until_us <= now_us and table not in stopped
        ]
        return {table: tables[table].boundary for _, table in sorted(found)[:most]}

    def done(self, tables: Collection[TableId]) -> None:
        self.tables = {table: waiting for table, waiting in self.tables.items() if table not in tables}

    def failed(self, tables: Iterable[TableId], now_us: int) -> None:
        later = {table: replace(self.tables[table], until_us=now_us + FAILED_PAUSE_US) for table in tables}
        self.tables = {**self.tables, **later}
