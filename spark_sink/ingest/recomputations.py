"""Views that are recomputed on a schedule: whose turn it is, and its work beside that of views that are followed.

Comes in: the views that are due, and what the turn of one of them is given. Goes out: its outcome, which the driver's
next round takes. On a cluster a turn is a Spark task, elsewhere a process beside Spark (`view_process`). One is
computed at a time, and a thread here waits for it, so that no other view waits for a long query, and all of them use
one core. Tenants have their turns one after the other, and so have the views of each. Nothing is kept: when a view was
computed last stands with its version.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from itertools import count

from spark_sink.ingest.divided_views import Run
from spark_sink.ingest.view_task import ViewOutcome, outcome_of
from spark_sink.views.maintain import ViewWork

ViewName = tuple[str, str]


class Recomputations:
    """Of one sink. `wake` is called from any thread once there is an outcome."""

    def __init__(self, run: Run, wake: Callable[[], None], end: Callable[[], None] = lambda: None) -> None:
        """`end`: has the turn that runs fail at once, where it can."""
        self._run = run
        self._end = end
        self._wake = wake
        self._lock = threading.Lock()
        self._running: ViewName | None = None
        self._thread: threading.Thread | None = None
        self._done: tuple[ViewWork, ViewOutcome] | None = None
        self._turns = count(1)
        #: the number of the last turn of each tenant and view
        self._last: dict[str | ViewName, int] = {}

    @property
    def running(self) -> ViewName | None:
        """Also until its outcome is taken: nothing else may write the view."""
        with self._lock:
            return self._running

    @property
    def has_outcome(self) -> bool:
        with self._lock:
            return self._done is not None

    def in_turn(self, due: Collection[ViewName]) -> Sequence[ViewName]:
        """In the order in which they are to be tried."""
        return sorted(due, key=lambda name: (self._last.get(name[0], 0), self._last.get(name, 0), name))

    def begin(self, work: ViewWork) -> None:
        """While none is running."""
        name = (work.definition.tenant, work.definition.name)
        self._last[name[0]] = self._last[name] = next(self._turns)
        with self._lock:
            assert self._running is None
            self._running = name
        self._thread = threading.Thread(target=self._work, args=(work,), name=f"view-{name[1]}", daemon=True)
        self._thread.start()

    def take(self) -> tuple[ViewWork, ViewOutcome] | None:
        """What has come out; then another one may begin."""
        with self._lock:
            found, self._done = self._done, None
            if found is not None:
                self._running = None
        return found

    def wait(self) -> bool:
        """Until nothing runs; gives whether there is an outcome to be taken."""
        if self._thread is not None:
            self._thread.join()
        return self.has_outcome

    def stop(self) -> None:
        """Have the turn that runs end without an outcome."""
        self._end()

    def keep(self, wanted: Collection[ViewName]) -> None:
        """Forget the turns of others."""
        tenants = {tenant for tenant, _ in wanted}
        self._last = {of: turn for of, turn in self._last.items() if of in wanted or of in tenants}

    def _work(self, work: ViewWork) -> None:
        outcome = outcome_of(work, lambda: self._run([work])[0])
        with self._lock:
            self._done = (work, outcome)
        self._wake()
