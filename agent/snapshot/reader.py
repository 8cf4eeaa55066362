"""How a source reads a table for a dump: the seam between the workers and a server.

A source opens a `Reader` for a worker, which does one task after the other over a connection of its own. What keeps it
from doing one it raises: an `AgentError`, or one of the words below.
"""

from collections.abc import Callable
from typing import Protocol

from agent.positions import PositionKind
from agent.snapshot.tasks import SnapshotTask
from agent.snapshot.throttles import Throttles


class NotYet(Exception):
    """The task has to wait; says for what."""


class TableMissing(Exception):
    """The server has no such table."""


class ServerEnds(Exception):
    """The server has ended each time that these rows were read, or the plan was made."""


class KeyMissing(Exception):
    """The table has no such key any more."""


class OrderChanged(Exception):
    """A bound is of another order than the key's present one."""


class BoundInvalid(ValueError):
    """A bound that is none of its key; says which part, without the value."""


class Access(Protocol):
    """A way to the dump's server, in the hand of one thread, but for `interrupt`."""

    @property
    def position_kind(self) -> PositionKind:
        """Of the stream that it was opened for."""

    @property
    def started(self) -> float:
        """When the server was started, to some seconds."""

    def interrupt(self) -> None:
        """End what another thread waits for on the connection, at once."""

    def end_on_server(self) -> None:
        """After `interrupt`: a statement that sends nothing would go on there."""

    def close(self) -> None:
        """Safe whatever state the connections are in."""


class Reader(Protocol):
    """In one thread. After any exception its connection is of no use."""

    @property
    def access(self) -> Access: ...

    @property
    def used(self) -> object | None:
        """How the table of the last task looked, which can be compared; None: the task did not come to that."""

    def do(self, task: SnapshotTask) -> None:
        """Raises what keeps it from being done."""

    def give_up(self, task: SnapshotTask) -> None:
        """The gateway forgets what came of the chunk."""


#: raises a `SourceError`
OpenReader = Callable[[PositionKind, Throttles], Reader]
