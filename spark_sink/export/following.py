"""Consumers that follow a lake, each at a position of its own: plug-ins, and what pipes write to.

Comes in: a consumer, the feed of its tables, where to begin. Goes out: the steps of the feed, one after the other. A
step is durable at the consumer, with the position behind it, before the next one is read. A kill leaves the position
before the step or behind it: the consumer says which, and the step comes again or does not. A consumer that says
another position after a failure (a backup's, none, that of another run) is followed from there.

What fails (the consumer, a table that can't be read, the lake's store) comes again, behind a pause that doubles up to
`LONGEST_PAUSE_SECONDS`, or stops the consumer: its policy says which. A run that is to end stops a consumer that has
failed for as long as it may (`Follower.retry_seconds`). Two failures stop it under each policy: whoever
read standard output has gone, and another export has taken the name. A table whose changes can't be written in the
wanted form is left out, and the others go on. Other consumers are never concerned, but where they have one thread.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from spark_sink.errors import (
    ExportOutputFailed,
    ExportSchemaRefused,
    ExportTaken,
    ExportValueRefused,
    LakeStorageFailed,
    SinkError,
)
from spark_sink.export.feed import Feed, Source, Step
from spark_sink.export.lake_access import store_failures, waiting
from spark_sink.export.outputs import ReaderGone
from spark_sink.export.position import BEGINNING, Position, is_same
from spark_sink.work import TableId

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
#: how long a run that is to end tries again what fails, where nobody says
RETRY_SECONDS = 3600.0
#: where one without a position may begin, beside the number of a cut
BEGINNINGS = ("beginning", "state", "newest")

_GOES_ON = ". What is not out is kept: the next run goes on behind its position"

logger = logging.getLogger("menura.export")


class OnError(StrEnum):
    RETRY = "retry"
    STOP = "stop"


class State(StrEnum):
    BEGINS = "begins"
    #: there was something for it
    FOLLOWS = "follows"
    #: there is nothing new
    UP_TO_DATE = "up to date"
    RETRIES = "retries"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a consumer stands."""

    state: State
    #: up to which cut of each source it has all, by tenant and source
    cuts: Mapping[Source, int] = field(default_factory=dict)
    #: since it last went on
    failures: int = 0
    #: the last one of these
    failure: str = ""
    #: tables whose changes wait, or that are left out, and why
    without: Mapping[TableId, str] = field(default_factory=dict)


class Consumer(Protocol):
    @property
    def name(self) -> str: ...

    def position(self) -> Position | None:
        """Behind what is durable there; None: nothing is. Asked first, and after each failure. Raises `SinkError`."""

    def take(self, step: Step, stop: threading.Event) -> bool:
        """All of the step, which is durable then; False: it was to stop before the end.

        Raises `SinkError`; errors of the lake's store; `ReaderGone`.
        """

    def close(self) -> None:
        """The run ends. Raises `SinkError`."""


C = TypeVar("C", bound=Consumer)


def nobody(_standing: Standing) -> None:
    """Is told."""


@dataclass(slots=True)
class Follower(Generic[C]):
    """One consumer."""

    consumer: C
    feed: Feed
    on_error: OnError
    #: where one without a position begins: one of `BEGINNINGS`, or a cut's number
    begin: str
    #: is told of each change of how it stands
    tell: Callable[[Standing], None] = nobody
    #: how long what fails is tried again, and then it is stopped; None: until somebody stops the run
    retry_seconds: float | None = None
    #: what it is in the midst of
    step: Step | None = None
    #: where it stands is known
    is_begun: bool = False
    failures: int = 0
    #: of the monotonic clock: since when it has failed, and not before when it is tried again
    failing_since: float = 0.0
    again_at: float = 0.0
    stopped: SinkError | None = None
    _without: dict[TableId, str] = field(default_factory=dict)
    _standing: Standing | None = None

    def turn(self, stop: threading.Event) -> bool:
        """Whether there was something for it."""
        if self.stopped is not None or time.monotonic() < self.again_at:
            return False
        try:
            with store_failures():
                if not self.is_begun:
                    self._begin()
                return self._go_on(stop)
        except ReaderGone as gone:
            failure = ExportOutputFailed(
                f"exporting by {self.consumer.name}",
                "whoever read the output has gone",
                data="What was not written is not counted as out, and comes with the next start",
                remedy="Start it again with something that reads its output",
            )
            failure.__cause__ = gone
            self._stop(failure)
        except BrokenPipeError as broken:
            failed = LakeStorageFailed(
                "exporting changes",
                "a store failed: its connection broke",
                data="The position stays where it was; what is not out comes with the next try",
                remedy="Check the lake's storage",
            )
            failed.__cause__ = broken
            self._fail(failed)
        except ExportTaken as taken:
            self._stop(taken)
        except SinkError as failure:
            self._fail(failure)
        return True

    def _begin(self) -> None:
        """Also after a failure: what failed may be durable, whatever was raised.

        The consumer's word holds: a step that was made from elsewhere is made anew from there, since the consumer's
        data may be a backup's, or gone, or another run has gone on.
        """
        self._say(State.BEGINS)
        held = self.consumer.position()
        if self.step is not None and held is not None and is_same(held, self.step.position):
            self.feed.position, self.step = self.step.position, None
        elif not is_same(held, self.feed.position):
            self.feed.position, self.step = held if held is not None else BEGINNING, None
        elif held is not None and self.feed.position == BEGINNING:
            self.feed.position = held  # which has cuts, and no table
        if held is None and self.step is None and self.feed.position == BEGINNING:
            self.step = self._first_step()
        self.is_begun = True

    def _first_step(self) -> Step | None:
        """None: the changelog's beginning. Raises `SinkError`."""
        if self.begin == "state":
            return self.feed.state()
        if self.begin == "beginning":
            return None
        return Step((), self.feed.at_cut(None if self.begin == "newest" else int(self.begin)))

    def _go_on(self, stop: threading.Event) -> bool:
        if self.step is None:
            self.step = self.feed.next()
            self._tell_without()
        step = self.step
        if step is None:
            self._well(State.UP_TO_DATE)
            return False
        try:
            is_out = self.consumer.take(step, stop)
        except (ExportSchemaRefused, ExportValueRefused) as refused:
            self.feed.leave_out(refused, step)
            self.step, self.is_begun = None, False
            return True
        if is_out:
            self.feed.position, self.step = step.position, None
            self._well(State.FOLLOWS)
        return True

    @property
    def waits(self) -> bool:
        """For its next try."""
        return self.stopped is None and self.failures > 0

    def close(self) -> None:
        try:
            self.consumer.close()
        except SinkError as failure:
            logger.error("%s", failure)  # noqa: TRY400  (its frames hold values)

    def _well(self, state: State) -> None:
        if self.failures:
            logger.info("%s goes on after %d failures", self.consumer.name, self.failures)
        self.failures = 0
        self._say(state)

    def _fail(self, failure: SinkError) -> None:
        if self.on_error == OnError.STOP:
            self._stop(failure)
            return
        now = time.monotonic()
        self.failing_since = self.failing_since if self.failures else now
        failed_seconds = now - self.failing_since
        if self.retry_seconds is not None and failed_seconds >= self.retry_seconds:
            self._stop(failure, f" after {self.failures + 1} attempts in {failed_seconds:.0f} s")
            return
        self.failures += 1
        self.is_begun = False
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(self.failures - 1, 30), LONGEST_PAUSE_SECONDS)
        until = "until it is stopped"
        if self.retry_seconds is not None:
            left = self.retry_seconds - failed_seconds
            pause, until = min(pause, left), f"for {left:.0f} s more"
        self.again_at = now + pause
        words = "%s failed %d times, tried again in %.0f s, %s: %s"
        logger.warning(words, self.consumer.name, self.failures, pause, until, failure, exc_info=_debug(failure))
        self._say(State.RETRIES, str(failure))

    def _stop(self, failure: SinkError, tried: str = "") -> None:
        """`tried`: how often and how long, where it was more than once."""
        self.failures += 1
        self.stopped = failure
        words = "%s stopped%s, others go on: %s" + (_GOES_ON if tried else "")
        logger.error(words, self.consumer.name, tried, failure, exc_info=_debug(failure))
        self._say(State.STOPPED, str(failure))

    def _tell_without(self) -> None:
        found = waiting(self.feed) if self.step is None else dict[TableId, str]()
        found |= {table: f"{table} is left out, others go on: {why}" for table, why in self.feed.failed.items()}
        for table, words in found.items():
            if self._without.get(table) != words:
                logger.error("%s: %s", self.consumer.name, words)
        self._without = found

    def _say(self, state: State, failure: str = "") -> None:
        standing = Standing(state, self.feed.position.cuts, self.failures, failure, self._without)
        if state == State.BEGINS and self.failures:
            return  # as it was told, until it goes on
        if standing != self._standing:
            self._standing = standing
            self.tell(standing)


def follow(followers: Sequence[Follower[C]], stop: threading.Event, poll_seconds: float | None) -> int:
    """In turn, until somebody stops it; without `poll_seconds` until there is nothing new, nor to be tried again.

    For how long something is tried again each follower says. Gives the exit code: that of one that was stopped, or of a
    table that is left out.
    """
    try:
        while not stop.is_set() and not all(each.stopped for each in followers):
            moved = [each.turn(stop) for each in followers]
            if any(moved):
                continue
            again = min((each.again_at for each in followers if each.waits), default=None)
            if again is None and poll_seconds is None:
                break
            pauses = [] if again is None else [max(again - time.monotonic(), 0.0)]
            stop.wait(min([*pauses, *([poll_seconds] if poll_seconds is not None else [])]))
    finally:
        for each in followers:
            each.close()
    failures = [each.stopped for each in followers if each.stopped is not None]
    failures += [why for each in followers for why in each.feed.failed.values()]
    return max((failure.exit_code for failure in failures), default=0)


def _debug(failure: SinkError) -> BaseException | None:
    return failure.__cause__ if logger.isEnabledFor(logging.DEBUG) else None
