"""The merge of a large table's waiting changes, prepared beside batches: Spark jobs of a thread of their own.

Comes in: a table, and its versions. Goes out: files that no commit names (`spark_sink.lake.file_merge`), for whoever
commits them between two batches. A job has one step, or one for each core but one, and a step is a second's work or
so: what of a batch finds all cores taken waits for no more than that. Nothing of the driver is changed here, and what
this was given is a copy, so a preparation that is cancelled, fails, or is killed with its process leaves files alone.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from typing import Protocol, TypeVar, cast
from uuid import uuid4

from menura.stores.options import StorageOptions, use
from pyspark.sql import SparkSession

from spark_sink.errors import TableStopped
from spark_sink.ingest.table_task import tried
from spark_sink.lake.file_merge import (
    HeldFile,
    Looked,
    MergePlan,
    Piece,
    PreparedMerge,
    Unplanned,
    look,
    plan_merge,
    write_piece,
)
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.table_folders import told_folders
from spark_sink.lake.tail import Waiting
from spark_sink.work import TableId

#: of keys that a step reads, and of rows that it writes; a row group is never divided
LOOK_ROWS, WRITE_ROWS = 4_000_000, 500_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MergeStart:
    """What a preparation is given."""

    lake: str
    table: TableId
    recorded: Recorded
    #: the current state's
    version: int
    #: says which tables are large
    waiting: Waiting
    storage: StorageOptions
    folders: Mapping[TableId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """Why no files came of it."""

    message: str


#: None: nobody wants it any more
Came = PreparedMerge | Unplanned | Failed | None
Step = Callable[[], object]


class Tasks(Protocol):
    """Runs steps as a job, each one as a task, and gives what came of each in their order. Raises what Spark raises."""

    def __call__(self, task: Callable[[Iterable[Step]], Iterator[object]], steps: Sequence[Step]) -> list[object]: ...


class _StepFailed(Exception):
    """One of the steps; says why."""


class _Unwanted(Exception):
    """Nobody wants the merge any more."""


def prepare(tasks: Tasks, start: MergeStart, cores: int, is_wanted: Callable[[], bool]) -> Came:
    """`cores`: how many steps a job has at most. Raises what `tasks` raises."""
    steps = _Steps(tasks, start, cores, is_wanted)
    try:
        (plan,) = steps.run(
            [partial(plan_merge, start.lake, start.table, start.recorded, start.version, start.waiting)]
        )
        if isinstance(plan, Unplanned):
            return plan
        looked = steps.run([partial(look, start.lake, plan, files) for files in _groups(plan.files)])
        found = _found(plan, looked)
        touched = [each for part in looked for each in part.files]
        pieces = _pieces(plan, touched, found)
        written = steps.run([partial(write_piece, start.lake, plan, piece) for piece in pieces])
    except _StepFailed as failed:
        return Failed(str(failed))
    except _Unwanted:
        return None
    removed = dict.fromkeys(piece.file for piece in pieces if piece.file is not None)
    return PreparedMerge(plan, tuple(removed), tuple(file for files in written for file in files))


@dataclass(frozen=True, slots=True)
class _Steps:
    tasks: Tasks
    start: MergeStart
    cores: int
    is_wanted: Callable[[], bool]

    def run(self, steps: Sequence[Callable[[], T]]) -> list[T]:
        """Raises `_StepFailed`, `_Unwanted`, what Spark raises."""
        found: list[T] = []
        for first in range(0, len(steps), self.cores):
            if not self.is_wanted():
                raise _Unwanted
            came = self.tasks(_step_task(self.start), steps[first : first + self.cores])
            for each in came:
                if isinstance(each, Failed):
                    raise _StepFailed(each.message)
                found.append(cast("T", each))
        return found


def _step_task(start: MergeStart) -> Callable[[Iterable[Step]], Iterator[object]]:
    def run(steps: Iterable[Step]) -> Iterator[object]:
        use(start.storage)
        with told_folders(start.lake, start.folders):
            for step in steps:
                came = tried(start.table, 0, step)
                yield Failed(str(came)) if isinstance(came, TableStopped) else came

    return run


def _groups(files: Sequence[HeldFile]) -> list[list[HeldFile]]:
    """Files whose keys one step reads."""
    groups: list[list[HeldFile]] = []
    for each in files:
        if groups and sum(held.rows for held in groups[-1]) + each.rows <= LOOK_ROWS:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _found(plan: MergePlan, looked: Sequence[Looked]) -> bytes:
    """Which rows of the effect any file has."""
    none = bytes(len(plan.puts))
    return bytes(reduce(or_, flags) for flags in zip(none, *(part.found for part in looked), strict=True))


def _pieces(plan: MergePlan, touched: Sequence[tuple[HeldFile, tuple[int, ...]]], found: bytes) -> list[Piece]:
    """What is written: new rows come with the smallest file, whatever else becomes of that."""
    pieces = [piece for file, groups in touched for piece in _pieces_of(file, groups)]
    if plan.new_rows(found):
        into = plan.smallest
        last = max((place for place, each in enumerate(pieces) if each.file == into), default=None)
        if into is None or last is None:
            pieces.append(Piece(into, found=found))
        else:
            pieces[last] = replace(pieces[last], found=found)
    return pieces


def _pieces_of(file: HeldFile, groups: Sequence[int]) -> Iterator[Piece]:
    """Row groups of some `WRITE_ROWS`, given their rows."""
    first = rows = 0
    for place, count in enumerate(groups):
        if rows and rows + count > WRITE_ROWS:
            yield Piece(file, first, place)
            first, rows = place, 0
        rows += count
    yield Piece(file, first, len(groups))


class Preparation:
    """One, in a thread of its own; what it came to is for whoever commits it."""

    def __init__(self, session: SparkSession, start: MergeStart, cores: int) -> None:
        self.start = start
        self.is_cancelled = False
        self._context = session.sparkContext
        self._group = f"menura-merge-{uuid4()}"
        self._unwanted = threading.Event()
        self._came: Future[Came] = Future()
        work = partial(prepare, self._run_job, start, cores, lambda: not self._unwanted.is_set())
        self._thread = threading.Thread(target=self._follow, args=(work,), name="merge", daemon=True)
        self._thread.start()

    def _follow(self, work: Callable[[], Came]) -> None:
        try:
            self._context.setJobGroup(self._group, f"merge of {self.start.table}")
            self._came.set_result(work())
        except BaseException as failed:  # noqa: BLE001  (whoever takes it raises it)
            self._came.set_exception(failed)

    def _run_job(self, task: Callable[[Iterable[Step]], Iterator[object]], steps: Sequence[Step]) -> list[object]:
        found: list[object] = self._context.parallelize(list(steps), len(steps)).mapPartitions(task).collect()
        return found

    @property
    def is_done(self) -> bool:
        return self._came.done()

    def take(self) -> Came:
        """What it came to, once it `is_done`. Raises what Spark raised, and what nobody expects."""
        return self._came.result()

    def cancel(self) -> None:
        """Its job ends at once, or its next one does not begin."""
        self.is_cancelled = True
        self._unwanted.set()
        self._context.cancelJobGroup(self._group)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)
