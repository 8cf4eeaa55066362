"""What the sink knows of its lake, for whoever asks while batches run: the report to the control plane, and metrics.

Comes in: what each batch and each retry has done, from the driver's threads. Goes out: a `Snapshot` of it at one
moment. Nothing here is durable: after a start the entry comes from the checkpoint, stopped tables from the lake's
records, and a source's cut with its next batch.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from menura.health import Health, Pulse
from menura.lake_report import LakeProblem, LakeSource, LakeVerdict
from menura.views.definition import ViewState

from spark_sink.lake.records import StoppedTable, last_cuts
from spark_sink.work import CutSeen, TableId

SourceName = tuple[str, str]
#: a starved machine takes long for anything
STILL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    #: of the log: all up to it is in the lake, but for stopped tables; 0 for none
    entry: int = 0
    #: the same, and Spark's checkpoint has it
    durable_entry: int = 0
    sources: Mapping[SourceName, LakeSource] = field(default_factory=dict)
    stopped: Mapping[TableId, StoppedTable] = field(default_factory=dict)
    #: of each table those that `verdicts.kept` keeps, the oldest first
    verdicts: Mapping[TableId, tuple[LakeVerdict, ...]] = field(default_factory=dict)
    #: what is told of tables' policies for schema changes
    policies: Mapping[TableId, str] = field(default_factory=dict)
    #: of all joined views that the sink has
    views: tuple[ViewState, ...] = ()
    #: since the sink started
    batches: int = 0
    rows: int = 0
    batch_seconds: float = 0.0
    #: why it does not go on now; it will by itself
    problem: LakeProblem | None = None


class SinkStatus:
    """Thread-safe."""

    def __init__(self, traced: Callable[[Sequence[CutSeen], float], None] | None = None) -> None:
        """`traced`: is told each batch's cuts, and how many seconds it took, by the thread that has applied it."""
        self._traced = traced
        self._moved = threading.Condition()
        self._now = Snapshot()
        self._changes = 0
        #: of the loop that follows the query; what Spark does while it waits in vain is never over
        self.pulse = Pulse("the loop that follows Spark's query", STILL_SECONDS)
        self._starting = ["the sink has not begun to follow its landing"]

    @contextmanager
    def following(self) -> Iterator[None]:
        """The query runs."""
        self._starting, before = [], self._starting
        try:
            yield
        finally:
            self._starting = before
            self.pulse.rest()

    def health(self) -> Health:
        return Health(lifeless=self.pulse.stopped, unready=self._unready)

    def _unready(self) -> list[str]:
        problem = self.now().problem
        return [*self._starting, *([] if problem is None else [f"the sink waits for its stores: {problem.code}"])]

    def began(self, entry: int, stopped: Mapping[TableId, StoppedTable]) -> None:
        with self._moved:
            self._become(replace(self._now, entry=entry, durable_entry=entry, stopped=dict(stopped)))

    def is_durable(self, entry: int) -> None:
        """What was applied up to this entry will not be done again."""
        with self._moved:
            if self._now.durable_entry < entry:
                self._become(replace(self._now, durable_entry=entry))

    def applied(self, cuts: Iterable[CutSeen], rows: int, seconds: float) -> None:
        """A batch is in the lake and recorded."""
        found = list(cuts)
        with self._moved:
            now = self._now
            sources = {**now.sources, **{name: _source(cut, now.sources) for name, cut in last_cuts(found).items()}}
            self._become(
                replace(
                    now,
                    entry=max([now.entry, *(cut.entry for cut in found)]),
                    sources=sources,
                    batches=now.batches + 1,
                    rows=now.rows + rows,
                    batch_seconds=now.batch_seconds + seconds,
                )
            )
        if self._traced is not None:
            self._traced(found, seconds)

    def caught_up(self, rows: int) -> None:
        """Tables that are behind were given so many."""
        with self._moved:
            self._become(replace(self._now, rows=self._now.rows + rows))

    def stopped_are(self, stopped: Mapping[TableId, StoppedTable]) -> None:
        with self._moved:
            self._become(replace(self._now, stopped=dict(stopped)))

    def verdicts_are(self, verdicts: Mapping[TableId, tuple[LakeVerdict, ...]]) -> None:
        """Of these tables."""
        with self._moved:
            self._become(replace(self._now, verdicts={**self._now.verdicts, **verdicts}))

    def policies_are(self, policies: Mapping[TableId, str]) -> None:
        with self._moved:
            if policies != self._now.policies:
                self._become(replace(self._now, policies=dict(policies)))

    def views_are(self, views: Iterable[ViewState]) -> None:
        with self._moved:
            found = tuple(views)
            if found != self._now.views:
                self._become(replace(self._now, views=found))

    def waits_for(self, problem: LakeProblem | None) -> None:
        """None: it goes on."""
        with self._moved:
            if problem != self._now.problem:
                self._become(replace(self._now, problem=problem))

    def last_commit_us(self, table: TableId) -> int:
        """Commit time of the newest transaction of the table's source in the lake; 0 while unknown."""
        source = self.now().sources.get((table.tenant, table.source))
        return 0 if source is None else source.last_commit_timestamp_us

    def now(self) -> Snapshot:
        with self._moved:
            return self._now

    def changes(self) -> int:
        with self._moved:
            return self._changes

    def wait_for_change(self, seen: int, seconds: float) -> None:
        """Until there are more changes than `seen`, or the time is over."""
        with self._moved:
            self._moved.wait_for(lambda: self._changes != seen, seconds)

    def wake(self) -> None:
        """End a wait."""
        with self._moved:
            self._become(self._now)

    def _become(self, now: Snapshot) -> None:
        """Whoever calls it holds the lock since it has read what it changes."""
        self._now = now
        self._changes += 1
        self._moved.notify_all()


def _source(cut: CutSeen, before: Mapping[SourceName, LakeSource]) -> LakeSource:
    """A cut without a transaction leaves the newest one as it was."""
    held = before.get((cut.tenant, cut.source))
    commit_us = cut.last_commit_timestamp_us or (held.last_commit_timestamp_us if held is not None else 0)
    return LakeSource(cut.tenant, cut.source, cut.entry, cut.cut, cut.committed_at_us, commit_us)
