"""Turns of views as tasks of a cluster: one each, and several of one that is divided.

Comes in: views with their inputs. Goes out: what came of each. A first job does all turns; those that begin a division
(`spark_sink.views.division`) come back with their ranges. Of each such view a second job computes the ranges, side by
side, and a third one makes its version of them. A turn is divided into as many tasks as the cluster has cores when it
begins, but for one, which batches of tables have meanwhile; where no batch waits any more, as many as there are.
Nothing is kept here: durable is what the tasks wrote, and a kill between two jobs has the view's turn begin again.

A job that ends without what its tasks came to, as where a worker of it was killed too often, is an outcome of its view.
The first one is done again for each view alone, so that views with which it is not lost go on; a turn that was done
already finds its version.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from menura.stores.options import current, use
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_sink.errors import ViewTaskLost
from spark_sink.ingest.batch_jobs import condition
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings, done, outcome_of, view_task
from spark_sink.views.division import Division
from spark_sink.views.division_end import end_division
from spark_sink.views.maintain import ViewVersion, ViewWork
from spark_sink.views.range_task import Part, compute_range

logger = logging.getLogger("menura.sink")

In = TypeVar("In")
Out = TypeVar("Out")

#: does views' turns and gives what came of each
Run = Callable[[Sequence[ViewWork]], Sequence[ViewOutcome]]


class Tasks(Protocol):
    """Runs a function over values, each one as a task, and gives what came of each in their order.

    Raises what Spark raises.
    """

    def __call__(self, task: Callable[[Iterable[In]], Iterator[Out]], values: Sequence[In]) -> list[Out]: ...


@dataclass(frozen=True, slots=True)
class _Range:
    work: ViewWork
    division: Division
    place: int


@dataclass(frozen=True, slots=True)
class _End:
    work: ViewWork
    division: Division
    parts: tuple[Part, ...]


def spark_run(session: SparkSession, settings: ViewSettings, *, leaves_core: bool) -> Run:
    """`leaves_core`: one is left to batches."""

    def tasks(task: Callable[[Iterable[In]], Iterator[Out]], values: Sequence[In]) -> list[Out]:
        found: list[Out] = session.sparkContext.parallelize(list(values), len(values)).mapPartitions(task).collect()
        return found

    def run(works: Sequence[ViewWork]) -> Sequence[ViewOutcome]:
        cores = session.sparkContext.defaultParallelism - leaves_core
        dividing = replace(settings.dividing, parts=cores)
        return run_views(replace(settings, storage=current().carried(), dividing=dividing), tasks, works)

    return run


def run_views(settings: ViewSettings, tasks: Tasks, works: Sequence[ViewWork]) -> list[ViewOutcome]:
    outcomes = _turns(settings, tasks, works)
    return [
        _divided(settings, tasks, work, each.division) if each.division is not None else each
        for work, each in zip(works, outcomes, strict=True)
    ]


def _turns(settings: ViewSettings, tasks: Tasks, works: Sequence[ViewWork]) -> list[ViewOutcome]:
    """One job for all, or, where Spark gives that up, one for each, so that only those stop with which it is lost."""
    try:
        return tasks(view_task(settings), works)
    except (PySparkException, Py4JJavaError) as lost:
        if len(works) == 1:
            return [_lost_outcome(works[0], lost)]
        logger.warning("views are computed one by one, since their job was lost error=%s", condition(lost))
    return [outcome for work in works for outcome in _turns(settings, tasks, [work])]


def _divided(settings: ViewSettings, tasks: Tasks, work: ViewWork, division: Division) -> ViewOutcome:
    ranges = [_Range(work, division, place) for place in range(len(division.ranges))]
    try:
        came = tasks(_range_task(settings), ranges)
        failed = [each for each in came if isinstance(each, ViewOutcome)]
        if failed:
            return failed[0]
        parts = tuple(each for each in came if isinstance(each, Part))
        (outcome,) = tasks(_end_task(settings), [_End(work, division, parts)])
    except (PySparkException, Py4JJavaError) as lost:
        return _lost_outcome(work, lost)
    return outcome


def _range_task(settings: ViewSettings) -> Callable[[Iterable[_Range]], Iterator[Part | ViewOutcome]]:
    def run(ranges: Iterable[_Range]) -> Iterator[Part | ViewOutcome]:
        use(settings.storage)
        for each in ranges:
            yield _part(settings, each)

    return run


def _part(settings: ViewSettings, of: _Range) -> Part | ViewOutcome:
    return outcome_of(of.work, lambda: compute_range(settings.lake, of.work, of.division, of.place))


def _end_task(settings: ViewSettings) -> Callable[[Iterable[_End]], Iterator[ViewOutcome]]:
    def run(ends: Iterable[_End]) -> Iterator[ViewOutcome]:
        use(settings.storage)
        for each in ends:
            yield _ended(settings, each)

    return run


def _ended(settings: ViewSettings, of: _End) -> ViewOutcome:
    def end() -> ViewVersion:
        return end_division(settings.lake, of.work, of.division, of.parts, settings.waiting)

    came = outcome_of(of.work, end)
    return came if isinstance(came, ViewOutcome) else done(settings, of.work, came)


def _lost_outcome(work: ViewWork, lost: PySparkException | Py4JJavaError) -> ViewOutcome:
    failure = ViewTaskLost(
        "computing a view",
        f"Spark ended its tasks ({condition(lost)}), as where a process is killed for lack of memory",
        data="The view stays at its last version; tables and other views go on",
        remedy="It is tried again by itself, more and more slowly; if it fails again, give the sink's machines more"
        " memory, or fewer cores",
    )
    return ViewOutcome(work.definition.tenant, work.definition.name, None, failure.code, str(failure))
