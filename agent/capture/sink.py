"""Where batches and cuts go: the seam between the state machine and the stream to the gateway."""

from collections.abc import Iterable
from typing import Protocol

from menura.v1 import changes_pb2

from agent.columnar.encode import TableBatch
from agent.positions import Position
from agent.table_positions import Stop


class Sink(Protocol):
    """Sending may wait, for credit or the network; each call raises when it is over."""

    def send_batch(self, batch: TableBatch, cut: int) -> None: ...
    def send_cut(self, end: changes_pb2.CutEnd) -> None: ...
    def received(self, size: int) -> None: ...
    def position_is(self, position: Position, commit_us: int) -> None: ...
    def tables_are(self, stopped: Iterable[Stop[Position]]) -> None: ...
    def committed_cut(self) -> int: ...
