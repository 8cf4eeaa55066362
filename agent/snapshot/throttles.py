"""How a source's dumps are held back, task by task; a limit that changes holds from the next receive on. A chunk that
was meant for another limit is read again: at a lower one its SELECT would stay open for long.

The throttle needs to know the dump's server, so it is made when that is first reached. Thread-safe.
"""

import threading
from collections.abc import Callable

from agent.settings import SourceConfig
from agent.snapshot.tasks import SnapshotTask, TaskKind
from agent.snapshot.throttle import Limits, Load, ReadCancelled, Throttle, WorkerThrottle

#: may raise a `SourceError`
ReadLoad = Callable[[], Load]


class Throttles:
    """Of one source."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._throttle: Throttle | None = None

    def of_task(self, task: SnapshotTask, load_reader: Callable[[], ReadLoad]) -> WorkerThrottle:
        """The task's, under the limits that its order has now; the workers of a dump keep them together.

        `load_reader` makes what asks the dump's server, when that is needed first. Raises `ReadCancelled` in a chunk
        that began under others.
        """
        wanted = task.progress.order.limits
        limits = Limits(wanted.workers, wanted.rows_per_second, wanted.bytes_per_second)
        of_dump = task.progress.throttle
        if task.throttle is not None and of_dump is not None and of_dump.limits == limits:
            return task.throttle
        if task.throttle is not None and task.kind is TaskKind.CHUNK:
            raise ReadCancelled
        with self._lock:
            of_dump = task.progress.throttle
            if of_dump is None or of_dump.limits != limits:
                of_dump = task.progress.throttle = self._of_source(load_reader).of_dump(limits)
        task.throttle = of_dump.of_worker(task.cancelled)
        return task.throttle

    def _of_source(self, load_reader: Callable[[], ReadLoad]) -> Throttle:
        if self._throttle is None:
            self._throttle = Throttle(self._config.name, self._config.dump, load_reader())
        return self._throttle
