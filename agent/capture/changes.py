"""What a source does when its log is to be read: the seam between `agent.capture.plugin` and a kind of source."""

from collections.abc import Callable
from typing import Protocol

from agent.capture.task import Task


class ReadAgain(Exception):
    """No failure: the source knows more now, and reads its log again from the last committed cut."""


class Changes(Protocol):
    """What a source does for `agent.capture.plugin`."""

    def preflight(self) -> str:
        """Check the server; one line that says what was found. Raises an `AgentError`."""

    def watch(self, on_reset: Callable[[], None]) -> None:
        """From now on watch the log's end, for the source's state; `on_reset`: the log is another one now."""

    def read(self, task: Task) -> None:
        """Read the log for a Replicate. Returns where there is no table to read; else raises: `ReadAgain`, what a
        cancelled task or a closed stream raises, or a `MenuraError`."""

    def progressed(self) -> None:
        """Cuts of the task are committed: its server serves the position that was asked for."""

    def stop(self) -> None:
        """End what `watch` began, within seconds."""
