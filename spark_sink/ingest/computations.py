"""Views that are computed at intervals: when each is due, and their work beside that of views that are followed.

Comes in: what a view's turn is given, once it is due. Goes out: its outcome, which the driver's next round takes. Each
is computed in a thread of its own, one at a time, so that no view that is followed waits for a long query. Nothing is
kept: after a restart each view is computed once, then at its interval.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from menura.views.definition import ViewDefinition
from menura.views.scheduled import read_schedule

from spark_sink.ingest.view_task import ViewOutcome
from spark_sink.views.maintain import ViewWork

ViewName = tuple[str, str]
Compute = Callable[[ViewWork], ViewOutcome]


@dataclass(frozen=True, slots=True)
class _Next:
    digest: str
    #: by the monotonic clock
    at: float


class Computations:
    """Of one sink. `wake` is called from any thread once there is an outcome."""

    def __init__(self, compute: Compute, wake: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._compute = compute
        self._wake = wake
        self._clock = clock
        self._next: dict[ViewName, _Next] = {}
        self._lock = threading.Lock()
        self._one = threading.Lock()
        self._running: dict[ViewName, threading.Thread] = {}
        self._done: list[tuple[ViewWork, ViewOutcome]] = []

    def is_running(self, name: ViewName) -> bool:
        """Also until its outcome is taken: nothing else may write the view."""
        with self._lock:
            return name in self._running

    def is_due(self, definition: ViewDefinition) -> bool:
        held = self._next.get((definition.tenant, definition.name))
        return held is None or held.digest != definition.digest or held.at <= self._clock()

    def waits(self) -> bool:
        """Whether a view is due, or an outcome is to be taken."""
        now = self._clock()
        with self._lock:
            return bool(self._done) or any(
                each.at <= now and name not in self._running for name, each in list(self._next.items())
            )

    def begin(self, work: ViewWork) -> None:
        definition = work.definition
        name = (definition.tenant, definition.name)
        every = read_schedule(definition.sql).every_seconds
        self._next[name] = _Next(definition.digest, self._clock() + every)
        thread = threading.Thread(target=self._work, args=(name, work), name=f"view-{definition.name}", daemon=True)
        with self._lock:
            self._running[name] = thread
        thread.start()

    def _work(self, name: ViewName, work: ViewWork) -> None:
        with self._one:
            outcome = self._compute(work)
        with self._lock:
            self._done.append((work, outcome))
        self._wake()

    def take(self) -> list[tuple[ViewWork, ViewOutcome]]:
        """What has come out since the last time."""
        with self._lock:
            found, self._done = self._done, []
            for work, _ in found:
                del self._running[work.definition.tenant, work.definition.name]
        return found

    def keep(self, names: Collection[ViewName]) -> None:
        """Forget when others are due."""
        self._next = {name: each for name, each in self._next.items() if name in names}

    def wait(self) -> None:
        """Until nothing runs."""
        with self._lock:
            running = list(self._running.values())
        for thread in running:
            thread.join()
