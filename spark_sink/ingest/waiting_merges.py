"""Tables whose changes wait in their changelogs (`tail`): when each must be merged, and the merge, beside the batches.

Comes in: outcomes of batches; at a start, what `cuts` says of the tables. Goes out: the tables to merge now, and jobs
that merge them while batches go on, which append to the same changelogs meanwhile. Nothing here is durable: the tails
are in the tables, and what is not merged before a kill is due at the next start. What a merge has reached is recorded
at the table's last boundary, if no batch has written the table since the merge looked; else the next batch of the table
records it.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from menura.instants import now_us
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from spark_sink.ingest.batch_jobs import BatchJobs, condition
from spark_sink.lake.recorded import NOTHING, Recorded
from spark_sink.lake.records import Records, last_cuts
from spark_sink.lake.tail import MERGE_SECONDS
from spark_sink.work import CutSeen, Outcome, Result, TableId

#: after a merge that failed; its table's next batch tries it, too, and says why it fails
FAILED_PAUSE_US = 300_000_000
#: that are merged in one job
MOST_AT_ONCE = 64

logger = logging.getLogger("menura.sink")


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
        """What a batch has done."""
        last = last_cuts(cuts)
        tables = dict(self.tables)
        for outcome in outcomes:
            if outcome.result is Result.STOPPED:
                continue
            tables.pop(outcome.table, None)
            if outcome.merge_at_us:
                boundary = last[outcome.table.tenant, outcome.table.source]
                tables[outcome.table] = WaitingTable(boundary, outcome.merge_at_us)
        self.tables = tables

    def due(self, now_us: int, stopped: Collection[TableId]) -> dict[TableId, CutSeen]:
        """The tables that have waited for longest, each with its boundary; not those that have stopped."""
        tables = self.tables
        found = [
            (waiting.until_us, table)
            for table, waiting in tables.items()
            if waiting.until_us <= now_us and table not in stopped
        ]
        return {table: tables[table].boundary for _, table in sorted(found)[:MOST_AT_ONCE]}

    def done(self, tables: Collection[TableId]) -> None:
        self.tables = {table: waiting for table, waiting in self.tables.items() if table not in tables}

    def failed(self, tables: Iterable[TableId], now_us: int) -> None:
        self.later(tables, now_us + FAILED_PAUSE_US)

    def later(self, tables: Iterable[TableId], until_us: int) -> None:
        """Those of them that wait."""
        held = self.tables
        later = {table: replace(held[table], until_us=until_us) for table in tables if table in held}
        self.tables = {**held, **later}


class MergesBeside:
    """The jobs. `writing`: held while batches write; `remember`: is told outcomes, with the tables' versions."""

    def __init__(
        self,
        waiting: WaitingMerges,
        jobs: BatchJobs,
        records: Records,
        recorded: Mapping[TableId, Recorded],
        writing: AbstractContextManager[object],
        remember: Callable[[Sequence[Outcome]], object],
    ) -> None:
        self._waiting = waiting
        self._jobs = jobs
        self._records = records
        self._recorded = recorded
        self._writing = writing
        self._remember = remember

    def merge_due(self, stopped: Collection[TableId], check: Callable[[], object]) -> None:
        """All that is due, so many at once. `check` raises a `SinkError` where another sink has the lake."""
        while not self._jobs.stopping and (due := self._waiting.due(now_us(), stopped)):
            began = time.monotonic()
            with self._writing:
                check()
                recorded, left_alone = dict(self._recorded), frozenset(stopped)
            try:
                outcomes = self._jobs.merge(due, left_alone, recorded)
            except (PySparkException, Py4JJavaError) as lost:
                logger.warning("waiting changes not merged tables=%d error=%s", len(due), condition(lost))
                with self._writing:
                    self._waiting.failed(due, now_us())
                continue
            with self._writing:
                self._merged(outcomes)
            logger.info("waiting changes merged tables=%d seconds=%.3f", len(due), time.monotonic() - began)

    def _merged(self, outcomes: Sequence[Outcome]) -> None:
        """Record what of these is done; a table whose merge failed is read with what waits, and goes on."""
        failed = [outcome for outcome in outcomes if outcome.result is Result.STOPPED]
        for outcome in failed:
            logger.warning("waiting changes not merged table=%s error=%s", outcome.table, outcome.message)
        self._waiting.failed([outcome.table for outcome in failed], now_us())
        done = [outcome for outcome in outcomes if outcome.result is not Result.STOPPED]
        boundaries = self._waiting.tables
        newest = [
            each
            for each in done
            if each.table in boundaries
            and each.current_version is not None
            and each.changelog_version == self._recorded.get(each.table, NOTHING).changelog
        ]
        for boundary in {boundaries[each.table].boundary for each in newest}:
            self._records.record_batch(
                [boundary], [each for each in newest if boundaries[each.table].boundary == boundary]
            )
        self._remember(newest)
        kept = {each.table for each in newest} | {each.table for each in done if each.current_version is None}
        self._waiting.done(kept)
        # What came meanwhile has not waited yet.
        others = {each.table for each in done} - kept
        self._waiting.later(others, now_us() + int(MERGE_SECONDS * 1e6))
