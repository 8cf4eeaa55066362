"""The turn of a view on a schedule in a process beside Spark, where Spark is on this machine alone.

Comes in: a view's turn, as Spark's tasks are given it. Goes out: its outcome; VIEW_TASK_LOST where the process ended
without one, and then the turn is tried again as a task's. A query of minutes so takes no core of `local[N]` from
batches of tables, which go on beside it with one core, too.

The process (`view_process_main`) is given its folder, in which all that it writes aside stands: its own scratch files
and those of the query that it computes. The folder's path is the sink's, and this process alone removes it: before each
turn, after it, and when a sink begins, which is where one that was killed has left it. A process that a killed sink has
started ends by itself; until then it holds the folder's lock, and no turn begins beside it.
"""

import fcntl
import logging
import os
import pickle
import shutil
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from menura.stores.options import current

from spark_sink.errors import ViewTaskLost
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings, outcome_of
from spark_sink.views.child_process import Child, started
from spark_sink.views.maintain import ViewWork
from spark_sink.views.query_process import BOUNDS
from spark_sink.views.store_folders import be_own, digest

_MODULE = "spark_sink.ingest.view_process_main"
#: before what a process is given: how many bytes it is
SIZE = struct.Struct(">Q")
#: of a turn: its query's, and an hour for what is read and committed; beyond it the store hangs, and other views wait
MOST_SECONDS = BOUNDS.seconds + 3600.0

logger = logging.getLogger("menura.sink")


def folder_of(lake: str, checkpoint: str) -> Path:
    """Of the one sink that has both."""
    return Path(tempfile.gettempdir(), f"menura-view-turns-{os.geteuid()}", digest(f"{lake} {checkpoint}"))


class ViewProcesses:
    """Of one sink, one at a time; a `Run`."""

    def __init__(self, settings: ViewSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._child: Child | None = None
        self._changing = threading.Lock()

    def __call__(self, works: Sequence[ViewWork]) -> Sequence[ViewOutcome]:
        return [outcome_of(work, partial(self._outcome, work)) for work in works]

    def clear(self) -> None:
        """Remove what a killed sink has left."""
        try:
            with self._own_folder():
                pass
        except (OSError, ViewTaskLost) as failed:
            logger.warning("folder of views' turns not cleared folder=%s error=%s", self._folder, type(failed).__name__)

    def end(self) -> None:
        """Kill the process that is there."""
        with self._changing:
            if self._child is not None:
                self._child.kill()

    def _outcome(self, work: ViewWork) -> ViewOutcome:
        """Raises `ViewTaskLost`, OSError."""
        command = [sys.executable, "-m", _MODULE]
        paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        given = pickle.dumps((replace(self._settings, storage=current().carried()), work))
        with self._own_folder() as (folder, lock):
            environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder)}
            with (
                started(
                    command, str(folder), environment, seconds=MOST_SECONDS, says_errors=True, holds=[lock]
                ) as child,
                self._ended_with(child),
            ):
                try:
                    child.given.write(SIZE.pack(len(given)) + given)
                    child.given.flush()
                    answer = child.gives.read()
                    outcome = pickle.loads(answer)  # noqa: S301  (of our own process)
                except (OSError, EOFError, pickle.UnpicklingError) as gone:
                    raise _lost(child.ended()) from gone
        assert isinstance(outcome, ViewOutcome)
        return outcome

    @contextmanager
    def _ended_with(self, child: Child) -> Iterator[None]:
        with self._changing:
            self._child = child
        try:
            yield
        finally:
            with self._changing:
                self._child = None

    @contextmanager
    def _own_folder(self) -> Iterator[tuple[Path, int]]:
        """An empty folder of this turn alone, and its lock's file, which is held; the folder goes afterwards.

        A query of the turn before may be about to end, and still write to that turn's.
        """
        be_own(self._folder.parent)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        be_own(self._folder)
        work = self._folder / "work"
        with (self._folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as held:
                raise _lost("a process of the sink before this one has not ended yet") from held
            _remove(work)
            work.mkdir(mode=0o700, exist_ok=True)
            try:
                yield Path(tempfile.mkdtemp(dir=work)), lock.fileno()
            finally:
                _remove(work)


def _remove(folder: Path) -> None:
    """A query's process that ends removes its own files at the same time."""
    shutil.rmtree(folder, ignore_errors=True)


def _lost(found: str) -> ViewTaskLost:
    return ViewTaskLost(
        "recomputing a view",
        found,
        data="The view stays at its last version; tables and other views go on",
        remedy="It is tried again by itself, more and more slowly; if it fails again, give the machine more memory",
    )
