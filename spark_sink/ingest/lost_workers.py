"""Tables at whose writing a Python worker was killed: others go on without them, and each is tried alone.

Spark ends a job with its first lost worker, as for lack of memory, and does not say which table was to blame. Comes in:
the few tables that were at work (`at_work`), and whether one was alone in its job. Goes out: how they stop. At first
they are behind, as tables of which much lands (`batch_share`): so batches leave them out, and `catching_up` gives them
what they miss, each alone. One that was alone `ATTEMPTS` times stops until somebody asks.

Nothing here is durable: a sink that starts again counts anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_sink.errors import WorkerKilled
from spark_sink.ingest.batch_share import behind
from spark_sink.ingest.isolation import ATTEMPTS, worker_killed
from spark_sink.ingest.table_task import stopped
from spark_sink.work import Message, Outcome, Result, TableId, Work

WORKER_LOST = "a process was killed that wrote it, or another table beside it, so it is written alone"
_NOT_TO_BLAME = frozenset({Result.APPLIED, Result.SKIPPED, Result.LARGE})


@dataclass(frozen=True, slots=True)
class LostWorkers:
    """Of one sink."""

    #: how often each was alone when its worker was killed
    alone: dict[TableId, int] = field(default_factory=dict)

    def stop_of(self, table: TableId, first: Work, *, is_alone: bool) -> Outcome:
        """Of one that was at work; `first` of what it was given."""
        times = self.alone.get(table, 0) + is_alone
        self.alone[table] = times
        if times < ATTEMPTS:
            return stopped(table, first, behind(table, first.cut, WORKER_LOST))
        del self.alone[table]
        return stopped(table, first, worker_killed(table, first.cut))

    def done(self, messages: Iterable[Message]) -> None:
        """These are no more to blame than others, or have been found to be."""
        for each in messages if self.alone else ():
            if isinstance(each, Outcome) and (each.result in _NOT_TO_BLAME or each.code == WorkerKilled.code):
                self.alone.pop(each.table, None)
