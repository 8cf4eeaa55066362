"""Which share of the source's governor a job has; a limit that changes holds from the next receive on. A chunk that was
meant for another limit is read again: at a lower one its SELECT would stay open for long.

The governor needs to know the dump's server, so it is made when that is first reached. Thread-safe.
"""

import threading

from agent.config import SourceConfig
from agent.mysql.dump.governor import Governor, Limits, ReadCancelled, Share, governor_of
from agent.mysql.dump.jobs import Job, Task
from agent.mysql.server.connection import Facts, connect


class Governing:
    """Of one source."""

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._governor: Governor | None = None

    def share(self, job: Job, facts: Facts) -> Share:
        """The job's, under the limits that its order has now; the workers of a dump keep them together.

        Raises `ReadCancelled` in a chunk that began under others.
        """
        wanted = job.work.order.limits
        limits = Limits(wanted.workers, wanted.rows_per_second, wanted.bytes_per_second)
        governed = job.work.governed
        if job.share is not None and governed is not None and governed.limits == limits:
            return job.share
        if job.share is not None and job.task is Task.CHUNK:
            raise ReadCancelled
        with self._lock:
            governed = job.work.governed
            if governed is None or governed.limits != limits:
                governed = job.work.governed = self._of_source(facts).order(limits)
        job.share = governed.share(job.cancelled)
        return job.share

    def _of_source(self, facts: Facts) -> Governor:
        if self._governor is None:
            config = self._config
            self._governor = governor_of(config, facts, lambda: connect(config.client, config.name))
        return self._governor
