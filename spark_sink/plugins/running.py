"""Plug-ins that follow a lake, each at a position of its own.

Comes in: plug-ins in order, each with its tables. Goes out: their calls. In turn each gets the step that is next for
it; behind the step its position is durable: in a folder of its own, or by a `TransactionalPlugin` beside its data. A
kill leaves the position before the step, which then comes again. So it does after a failure, behind a pause that
doubles, unless the plug-in's policy is to stop; meanwhile the others go on. One whose calls take long holds up those
behind it: it belongs into a run of its own.
"""

import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from spark_sink.errors import PluginFailed, SinkError
from spark_sink.export.feed import Feed, Step
from spark_sink.export.outputs import FolderOutput, Form
from spark_sink.export.position import Position, read_position
from spark_sink.plugins.delivery import Delivery
from spark_sink.plugins.plugin import TransactionalPlugin
from spark_sink.work import TableId

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0

logger = logging.getLogger("menura.plugins")


class OnError(StrEnum):
    RETRY = "retry"
    STOP = "stop"


class Keeps:
    """A plug-in's position: in a folder, which this run alone has from here on, or in the plug-in itself."""

    def __init__(self, delivery: Delivery, folder: Path) -> None:
        """Raises `SinkError`."""
        self._delivery = delivery
        self._folder = FolderOutput(folder, Form())
        self._held = self._folder.position()

    @property
    def transactional(self) -> bool:
        return isinstance(self._delivery.plugin, TransactionalPlugin)

    def read(self) -> Position | None:
        """None: nothing was told yet. Raises `PluginFailed`, `ExportPositionInvalid`."""
        plugin = self._delivery.plugin
        if not isinstance(plugin, TransactionalPlugin):
            return self._held
        with self._delivery.calling("position"):
            text = plugin.position()
        return None if text is None else read_position(text, f"plug-in {self._delivery.name}")

    def write(self, position: Position) -> None:
        """Raises `SinkError`."""
        if not self.transactional:
            self._folder.write(Step((), position))
            self._held = position

    def close(self) -> None:
        """Lets go of the folder."""
        self._folder.close()


@dataclass(slots=True)
class Running:
    """One plug-in."""

    delivery: Delivery
    feed: Feed
    keeps: Keeps
    on_error: OnError
    #: where one without a position begins
    begin: str
    #: what it is in the midst of
    step: Step | None = None
    #: where it stands is known
    is_begun: bool = False
    failures: int = 0
    #: of the monotonic clock: not before
    again_at: float = 0.0
    stopped: PluginFailed | None = None
    _told: dict[TableId, str] = field(default_factory=dict)

    def turn(self, stop: threading.Event) -> bool:
        """Whether there was something for it. Raises `SinkError` and the store's errors, but those of the plug-in."""
        if self.stopped is not None or time.monotonic() < self.again_at:
            return False
        try:
            if not self.is_begun:
                self._begin()
            return self._go_on(stop)
        except PluginFailed as failure:
            self._fail(failure)
        return True

    def _begin(self) -> None:
        """Also after a failure of a `TransactionalPlugin`: its last checkpoint may be durable, whatever it raised."""
        held = self.keeps.read()
        if held is not None:
            self.feed.position = held
        if self.step is None or self.step.position == held:
            self.step = self._first_step() if held is None else None
        self.is_begun = True

    def _first_step(self) -> Step | None:
        """None: the changelog's beginning. Raises `SinkError`."""
        if self.begin == "state":
            return self.feed.state()
        return Step((), self.feed.at_cut(None)) if self.begin == "newest" else None

    def _go_on(self, stop: threading.Event) -> bool:
        if self.step is None:
            self.step = self.feed.next()
            self._tell_left_out()
        step = self.step
        if step is None:
            self.failures = 0
            return False
        if self.delivery.deliver(step, stop):
            self.delivery.checkpoint(json.dumps(step.position.document()))
            self.keeps.write(step.position)
            self.feed.position, self.step, self.failures = step.position, None, 0
        return True

    @property
    def waits(self) -> bool:
        """For its next try."""
        return self.stopped is None and self.failures > 0

    def close(self) -> None:
        try:
            self.delivery.close()
        except PluginFailed as failure:
            logger.error("%s", failure)  # noqa: TRY400  (its frames hold values)
        self.keeps.close()

    def _fail(self, failure: PluginFailed) -> None:
        self.failures += 1
        self.is_begun = not self.keeps.transactional and self.is_begun
        if self.on_error == OnError.STOP:
            self.stopped = failure
            logger.error("plug-in stopped, others go on: %s", failure, exc_info=_debug(failure))
            return
        pause = min(FIRST_PAUSE_SECONDS * 2 ** min(self.failures - 1, 30), LONGEST_PAUSE_SECONDS)
        self.again_at = time.monotonic() + pause
        words = "failed %d times, tried again in %.0f s: %s"
        logger.warning(words, self.failures, pause, failure, exc_info=_debug(failure))

    def _tell_left_out(self) -> None:
        failed = {table: str(why) for table, why in self.feed.failed.items()}
        for table, why in failed.items():
            if self._told.get(table) != why:
                logger.error("%s: %s is left out, others go on: %s", self.delivery.name, table, why)
        self._told = failed


def follow(plugins: Sequence[Running], stop: threading.Event, poll_seconds: float | None) -> int:
    """Until somebody stops it; without `poll_seconds` until there is nothing new.

    Gives the exit code: that of a plug-in that was stopped, or of a table that is left out.

    Raises `SinkError` and the store's errors.
    """
    try:
        while not stop.is_set() and not all(each.stopped for each in plugins):
            moved = [each.turn(stop) for each in plugins]
            if any(moved):
                continue
            again = min((each.again_at for each in plugins if each.waits), default=None)
            if again is None and poll_seconds is None:
                break
            pauses = [] if again is None else [max(again - time.monotonic(), 0.0)]
            stop.wait(min([*pauses, *([poll_seconds] if poll_seconds is not None else [])]))
    finally:
        for each in plugins:
            each.close()
    failures: list[SinkError] = [each.stopped for each in plugins if each.stopped is not None]
    failures += [why for each in plugins for why in each.feed.failed.values()]
    return max((failure.exit_code for failure in failures), default=0)


def _debug(failure: PluginFailed) -> BaseException | None:
    return failure.__cause__ if logger.isEnabledFor(logging.DEBUG) else None
