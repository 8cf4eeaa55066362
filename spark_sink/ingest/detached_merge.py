"""The merge of a large table's waiting changes, prepared beside batches: Spark jobs of a thread of their own.

Comes in: a table, and its versions. Goes out: files that no commit names (`spark_sink.lake.file_merge`), for whoever
commits them between two batches. A job has one step, or one for each core but one, and a step is less than a second's
work: what of a batch finds all cores taken waits for no more than that. Several tables have their turns one job after
the other (`Turns`), so no table waits for another one's whole merge. Nothing of the driver is changed here, and what
this was given is a copy, so a preparation that is cancelled, fails, or is killed with its process leaves files alone.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import pairwise
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
    NewRows,
    Piece,
    PreparedMerge,
    Rows,
    Unplanned,
    look,
    plan_merge,
    write_piece,
)
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.table_folders import told_folders
from spark_sink.lake.tail import Waiting
from spark_sink.work import TableId

#: of keys that a step reads; of rows that it writes, which have so many bytes before they are compressed
LOOK_ROWS, WRITE_ROWS, WRITE_BYTES = 1_000_000, 200_000, 32 << 20

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
    #: of this preparation, and of no other one
    preparation: str = field(default_factory=lambda: uuid4().hex)


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


class Turns:
    """Whose job is next: the one's that has waited for longest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        #: the first one has its turn
        self._waiting: deque[object] = deque()

    @contextmanager
    def turn(self) -> Iterator[None]:
        own = object()
        with self._changed:
            self._waiting.append(own)
            self._changed.wait_for(lambda: self._waiting[0] is own)
        try:
            yield
        finally:
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()


def prepare(
    tasks: Tasks,
    start: MergeStart,
    cores: int,
    is_wanted: Callable[[], bool],
    turn: Callable[[], AbstractContextManager[None]],
) -> Came:
    """`cores`: how many steps a job has at most. Raises what `tasks` raises."""
    steps = _Steps(tasks, start, cores, is_wanted, turn)
    lake, table = start.lake, start.table
    try:
        (plan,) = steps.run(
            [partial(plan_merge, lake, table, start.recorded, start.version, start.waiting, start.preparation)]
        )
        if isinstance(plan, Unplanned):
            return plan
        looked = steps.run([partial(look, plan, ranges) for ranges in _groups(plan.files)])
        pieces = _pieces(plan, looked)
        written = steps.run([partial(write_piece, plan, piece) for piece in pieces])
    except _StepFailed as failed:
        return Failed(str(failed))
    except _Unwanted:
        return None
    removed = dict.fromkeys(piece.rows.file for piece in pieces if piece.rows is not None)
    return PreparedMerge(plan, tuple(removed), tuple(file for files in written for file in files))


@dataclass(frozen=True, slots=True)
class _Steps:
    tasks: Tasks
    start: MergeStart
    cores: int
    is_wanted: Callable[[], bool]
    turn: Callable[[], AbstractContextManager[None]]

    def run(self, steps: Sequence[Callable[[], T]]) -> list[T]:
        """Raises `_StepFailed`, `_Unwanted`, what Spark raises."""
        found: list[T] = []
        for first in range(0, len(steps), self.cores):
            with self.turn():
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


def _groups(files: Sequence[HeldFile]) -> list[list[Rows]]:
    """Rows whose keys one step reads."""
    groups: list[list[Rows]] = []
    for rows in (rows for file in files for rows in _divided(file, LOOK_ROWS)):
        if groups and sum(each.end - each.first for each in groups[-1]) + rows.end - rows.first <= LOOK_ROWS:
            groups[-1].append(rows)
        else:
            groups.append([rows])
    return groups


def _divided(file: HeldFile, most_rows: int) -> list[Rows]:
    """All of its rows in parts that are alike."""
    parts = max(1, -(-file.rows // most_rows))
    bounds = [file.rows * part // parts for part in range(parts + 1)]
    return [Rows(file, first, end) for first, end in pairwise(bounds)]


def _pieces(plan: MergePlan, looked: Sequence[Looked]) -> list[Piece]:
    """What is written: new rows come with the smallest file, whatever else becomes of that; many by themselves."""
    plain = {file: plain_bytes for part in looked for file, plain_bytes in part.files}
    none = bytes(len(plan.puts))
    found = bytes(reduce(or_, flags) for flags in zip(none, *(part.found for part in looked), strict=True))
    pieces = [Piece(rows) for file, plain_bytes in plain.items() for rows in _divided(file, _most(file, plain_bytes))]
    count, into = plan.new_rows(found), plan.smallest
    if count > WRITE_ROWS or (count and into is None):
        bounds = range(0, count, WRITE_ROWS)
        return [*pieces, *(Piece(None, NewRows(found, first, min(count, first + WRITE_ROWS))) for first in bounds)]
    if count and into is not None:
        if into not in plain:
            pieces += [Piece(rows) for rows in _divided(into, WRITE_ROWS)]
        last = max(place for place, each in enumerate(pieces) if each.rows is not None and each.rows.file == into)
        pieces[last] = replace(pieces[last], new=NewRows(found, 0, count))
    return pieces


def _most(file: HeldFile, plain_bytes: int) -> int:
    """Rows of a file that one step writes."""
    return max(1, min(WRITE_ROWS, WRITE_BYTES * file.rows // max(1, plain_bytes)))


class Preparation:
    """One, in a thread of its own; what it came to is for whoever commits it."""

    def __init__(self, session: SparkSession, start: MergeStart, cores: int, turns: Turns) -> None:
        self.start = start
        self.is_cancelled = False
        self._context = session.sparkContext
        self._group = f"menura-merge-{uuid4()}"
        self._unwanted = threading.Event()
        self._came: Future[Came] = Future()
        work = partial(prepare, self._run_job, start, cores, lambda: not self._unwanted.is_set(), turns.turn)
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
