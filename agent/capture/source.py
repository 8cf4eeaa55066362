"""What a source brings to the capture of its changes: what decodes, what is read, and the log in which tables begin."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol

from menura.v1 import changes_pb2

from agent.columnar.encode import TableBatch
from agent.errors import PositionPurged, SourceRebuilt
from agent.positions import P, Position
from agent.table_positions import P_co

#: why a source can't go on from a position
Reason = PositionPurged | SourceRebuilt


class Decoder(Protocol):
    """Numbers what it decodes, and collects rows by table."""

    #: it returns at the end of the transaction, where a cut may end
    stop_at_transaction_end: bool

    @property
    def pending_rows(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def next_gsn(self) -> int: ...
    @property
    def next_transaction_id(self) -> int: ...
    @property
    def rows(self) -> int:
        """All that were decoded."""

    @property
    def transactions(self) -> int: ...
    def take_gsn(self) -> int: ...
    def take_batches(self) -> Sequence[TableBatch]: ...
    def take_times(self) -> tuple[int, int, int]:
        """Transactions since the last call, the first one's commit time and the last one's."""


class ReadPosition(Protocol):
    """Where the stream is, behind the last finished transaction."""

    #: commit time of the last transaction in a cut
    last_commit_us: int

    @property
    def position(self) -> Position:
        """As of the last `publish`."""

    @property
    def published_at(self) -> float: ...
    def publish(self) -> None:
        """Move the position to the last finished transaction."""


class Stream(Protocol):
    """The connection that the log comes from."""

    def interrupt(self) -> None:
        """End a read of another thread at once."""


@dataclass(frozen=True, slots=True)
class Oldest(Generic[P_co]):
    """A log's beginning."""

    position: P_co
    #: why rows older than it are missing; empty when the log is whole
    earlier_rows_missing: str


class StartLog(Protocol[P]):
    """A source's log when tables begin in it; all that begin at one of its ends begin at the same place."""

    def end(self) -> P: ...
    def oldest(self) -> Oldest[P]: ...
    def parse(self, text: str) -> P:
        """A position in a user's words; raises `PositionInvalid`."""

    def check(self, position: P, *, was_read: bool = True) -> None:
        """Raises a `Reason` where the log does not go on from there, and `PositionInvalid`."""

    def after(self, position: P, why: Reason) -> P:
        """Where reading can go on although the source can't go on from `position`."""

    def stored(self, position: changes_pb2.Position) -> P:
        """A committed position; raises `PositionInvalid`."""

    def place_of(self, position: changes_pb2.Position) -> P:
        """What is told as the place of a table that could not begin: what was asked for, where it can be read."""
