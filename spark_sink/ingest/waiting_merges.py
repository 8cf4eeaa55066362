"""Tables whose changes wait in their changelogs (`tail`): when each must be merged though no batch has more of it.

Comes in: outcomes of batches; at a start, what `cuts` says of the tables. Goes out: the tables to merge now. Nothing
here is durable: the tails are in the tables, and what is not merged before a kill is due at the next start.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
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
    #: whether it is merged beside batches
    is_detached: bool = False
    #: it rests until then, whatever batches say, since a merge has failed
    rests_until_us: int = 0
    #: when that was said
    noted_us: int = 0

    @property
    def due_us(self) -> int:
        return max(self.until_us, self.rests_until_us)

    def is_due(self, now_us: int) -> bool:
        """Also where the clock has gone back, since nobody knows for how long it has waited."""
        return self.due_us <= now_us or now_us < self.noted_us


@dataclass(slots=True)
class WaitingMerges:
    """Batches' thread changes it, and that of merges: each change makes another dictionary, one at a time."""

    tables: Mapping[TableId, WaitingTable] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, found: Mapping[TableId, CutSeen], *, is_detached: bool = False) -> None:
        """At a start: when their changes began to wait is not known here, so they are merged first.

        `is_detached`: those may be that are large; who prepares their merges tells those that are not.
        """
        self.tables = {table: WaitingTable(boundary, 0, is_detached) for table, boundary in found.items()}

    def note(self, cuts: Iterable[CutSeen], outcomes: Iterable[Outcome], now_us: int) -> None:
        """What a batch has done. A table that was brought further than the batch's end keeps its boundary."""
        last = last_cuts(cuts)
        with self._changing:
            tables = dict(self.tables)
            for outcome in outcomes:
                is_further = outcome.merge_at_us and outcome.changelog_version is None
                if outcome.result is Result.STOPPED or is_further:
                    continue
                before = tables.pop(outcome.table, None)
                if outcome.merge_at_us:
                    tables[outcome.table] = WaitingTable(
                        last[outcome.table.tenant, outcome.table.source],
                        outcome.merge_at_us,
                        outcome.merges_detached,
                        min(before.rests_until_us, now_us + FAILED_PAUSE_US) if before is not None else 0,
                        now_us,
                    )
            self.tables = tables

    def due(self, now_us: int, stopped: Collection[TableId], most: int) -> dict[TableId, CutSeen]:
        """The tables that have waited for longest, each with its boundary; not those that have stopped."""
        return self._due(now_us, stopped, most, is_detached=False)

    def due_detached(self, now_us: int, left_out: Collection[TableId]) -> TableId | None:
        """The one that has waited for longest of those that are merged beside batches."""
        return next(iter(self._due(now_us, left_out, 1, is_detached=True)), None)

    def _due(
        self, now_us: int, stopped: Collection[TableId], most: int, *, is_detached: bool
    ) -> dict[TableId, CutSeen]:
        tables = self.tables
        found = [
            (waiting.due_us, table)
            for table, waiting in tables.items()
            if waiting.is_detached is is_detached and waiting.is_due(now_us) and table not in stopped
        ]
        return {table: tables[table].boundary for _, table in sorted(found)[:most]}

    def is_not_detached(self, table: TableId) -> None:
        """It is merged as a small one is, this time."""
        self._put([table], lambda waiting: replace(waiting, is_detached=False))

    def waits_on(self, table: TableId, until_us: int, now_us: int) -> None:
        """What has come since a merge was prepared."""
        self._put([table], lambda waiting: replace(waiting, until_us=until_us, noted_us=now_us))

    def done(self, tables: Collection[TableId]) -> None:
        with self._changing:
            self.tables = {table: waiting for table, waiting in self.tables.items() if table not in tables}

    def failed(self, tables: Iterable[TableId], now_us: int) -> None:
        rests_until_us = now_us + FAILED_PAUSE_US
        self._put(tables, lambda waiting: replace(waiting, rests_until_us=rests_until_us, noted_us=now_us))

    def _put(self, tables: Iterable[TableId], change: Callable[[WaitingTable], WaitingTable]) -> None:
        """Of those that wait still."""
        with self._changing:
            held = self.tables
            self.tables = {**held, **{table: change(held[table]) for table in tables if table in held}}
