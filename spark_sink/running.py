"""A sink that runs: its query is followed until somebody stops it, and begun again where it ended by itself.

Comes in: a Spark session and settings. Goes out: batches, retries and merges, one after the other (`ingest.query`), and
what is told of them. Durable is what these write; a query that is broken off is replayed from its checkpoint.
"""

import logging
import threading
import time
from dataclasses import dataclass, replace

from deltalake.exceptions import DeltaError
from menura.instants import now_us
from menura.lake_report import LakeProblem, clipped
from menura.stores.address import is_local
from menura.stores.reasons import reason_of
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_sink.errors import QueryFailed, SinkError
from spark_sink.ingest.batch_jobs import condition
from spark_sink.ingest.query import Sink
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.reporter import Reporter

WAIT_SECONDS = 1.0
#: where there is more to be done: a batch that has come meanwhile goes first
SHORT_WAIT_SECONDS = 0.1
#: a batch in progress may end within this time after a stop; then it is broken off, and replayed at the next start
STOP_GRACE_SECONDS = 5.0
#: how long a query that Spark ends again and again, without a batch in between, is begun again: on a starved machine no
#: Python process may start within Spark's 10 s for many times on end
RESTARTS_SECONDS = 600.0
#: between two restarts; they double from 2 s
LONGEST_PAUSE_SECONDS = 30.0
#: between two looks whether a store that is away is back; they double
FIRST_PAUSE_SECONDS = 0.5

logger = logging.getLogger("menura.sink")


def run(
    session: SparkSession,
    settings: SinkSettings,
    stop: threading.Event,
    status: SinkStatus | None = None,
    reporter: Reporter | None = None,
) -> None:
    """Run until `stop` is set or, with `available_now`, until all is done. Raises `SinkError`.

    What Spark itself ends, e.g. since a Python process was killed or did not start in time, begins again from the
    checkpoint; where that happens for `RESTARTS_SECONDS` without a batch, the error is raised. A store that is away is
    waited for, however long that takes, unless the sink has an end (`available_now`).
    """
    sink = Sink(session, settings, status or SinkStatus())
    restarts = Restarts()
    while True:
        try:
            _follow(sink, stop, reporter)
        except (SinkError, PySparkException, Py4JJavaError, OSError, DeltaError) as failed:
            failure = _failure_of(failed)
            if failure is None:
                raise
            if _waits_for_stores(sink, stop, reporter):
                continue
            restarts = restarts.after_failure(time.monotonic(), sink.batches)
            is_of_folder = failure is sink.failure and is_local(sink.settings.lake)
            if is_of_folder or restarts.is_over(time.monotonic()):
                raise failure from failed
            logger.warning("query begins again failures=%d error=%s", restarts.failures, failure)
            stop.wait(restarts.pause_seconds)
        else:
            break
    sink.views.stop(STOP_GRACE_SECONDS, finish=settings.available_now)
    sink.verifications.stop(STOP_GRACE_SECONDS, finish=settings.available_now)
    logger.info("sink stopped")


def _failure_of(failed: Exception) -> SinkError | None:
    """What may be over when the query begins again; None for what may not."""
    if isinstance(failed, PySparkException | Py4JJavaError):
        return ended_by_spark(f"Spark ended it: {condition(failed)}")
    if isinstance(failed, SinkError):
        return None if failed.terminal else failed
    if isinstance(failed, ConnectionError | Py4JNetworkError):  # of the socket between Python and the JVM
        return None
    return QueryFailed(
        "starting the sink",
        f"a store failed: {reason_of(failed)}",
        data="Nothing was written",
        remedy="Check the storage of landing, lake and checkpoint, then start the sink again",
    )


def _waits_for_stores(sink: Sink, stop: threading.Event, reporter: Reporter | None) -> bool:
    """Whether stores were away; until they are back, or the sink is to end, they are asked again and it is told."""
    since_us, began, pause = now_us(), time.monotonic(), FIRST_PAUSE_SECONDS
    told = ""
    while not stop.is_set() and (away := sink.store_problem(since_us)) is not None:
        if sink.settings.available_now and time.monotonic() - began > RESTARTS_SECONDS:
            raise away
        if str(away) != told:
            logger.warning("the sink waits for its store error=%s", away)
            told = str(away)
        sink.status.waits_for(LakeProblem(away.code, clipped(str(away)), terminal=False))
        if reporter is not None:
            _begin_reports(reporter, sink)
        stop.wait(pause)
        pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
    sink.status.waits_for(None)
    if told and not stop.is_set():
        logger.warning("the sink's stores answer again, the query begins again")
    return bool(told)


@dataclass(frozen=True, slots=True)
class Restarts:
    """The query's failures in a row: how many, and when the first and the last were, in monotonic seconds.

    A batch ends the row; so does a query that has run for `RESTARTS_SECONDS`, though a quiet source gave it none.
    """

    failures: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    batches: int = 0

    def after_failure(self, now: float, batches: int) -> "Restarts":
        if self.failures and batches == self.batches and now - self.last_at <= RESTARTS_SECONDS:
            return replace(self, failures=self.failures + 1, last_at=now)
        return Restarts(1, now, now, batches)

    def is_over(self, now: float) -> bool:
        return now - self.first_at > RESTARTS_SECONDS

    @property
    def pause_seconds(self) -> float:
        return float(min(2.0**self.failures, LONGEST_PAUSE_SECONDS))


def _follow(sink: Sink, stop: threading.Event, reporter: Reporter | None) -> None:
    query = sink.start()
    logger.info("sink started landing=%s lake=%s", sink.settings.landing, sink.settings.lake)
    if reporter is not None:
        _begin_reports(reporter, sink)
    pulse = sink.status.pulse
    try:
        with sink.status.following():
            while not stop.is_set():
                pulse.beat()
                has_ended = _ended(query, sink)
                with pulse.excused():
                    sink.retry_due()  # also what the last batch has asked for
                    sink.merge_due()
                if has_ended:
                    break
    finally:
        sink.stop_batches(STOP_GRACE_SECONDS)
        query.stop()


def _begin_reports(reporter: Reporter, sink: Sink) -> None:
    want = None if sink.settings.views else sink.views.want
    reporter.start(sink.ask_retry, sink.verifications.suspected, want)


def _ended(query: StreamingQuery, sink: Sink) -> bool:
    """Whether the query ended within the next moment. Raises the error that ended it."""
    try:
        seconds = SHORT_WAIT_SECONDS if sink.has_more else WAIT_SECONDS
        return bool(query.awaitTermination(seconds))  # type: ignore[arg-type]
    except StreamingQueryException as failed:
        if sink.failure is not None:
            raise sink.failure from failed
        raise ended_by_spark(condition(failed)) from failed


def ended_by_spark(found: str) -> QueryFailed:
    return QueryFailed(
        "running the streaming query",
        f"Spark ended it: {found}",
        data="What was not checkpointed will be done again; nothing is written twice",
        remedy="Start the sink again; when it repeats, report it",
    )
