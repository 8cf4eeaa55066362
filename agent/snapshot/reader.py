"""How a source reads a table for a dump: the seam between `agent.snapshot.reading` and a server.

A source opens a `TableReader` for each worker, over a connection of its own. What keeps it from reading it raises: an
`AgentError`, or one of the words below.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from menura.key_values import Key
from menura.v1 import snapshot_pb2

from agent.columnar.encode import SnapshotRows
from agent.positions import P, PositionKind
from agent.snapshot.throttles import ReadLoad
from agent.table_positions import Table


class TableMissing(Exception):
    """The server has no such table."""


class KeyMissing(Exception):
    """The table has no such key any more."""


class OrderChanged(Exception):
    """A bound is of another order than the key's present one."""


class BoundInvalid(ValueError):
    """A bound that is none of its key; says which part, without the value."""


class Rows(Protocol):
    """Rows that are read: iterate once, to the end; then the rest is known."""

    def __iter__(self) -> Iterator[SnapshotRows]: ...

    @property
    def source_bytes(self) -> int:
        """As the server sent them."""

    @property
    def upper(self) -> str:
        """Bound of a chunk's last row; '' where it has none."""


class TableReader(Protocol[P]):
    """Reads a source's tables over a connection, in the hand of one thread, but for `interrupt`.

    Positions are those of the log that is streamed. After an exception it may be asked what it used, and is closed;
    after `TableMissing`, and where a chunk has to wait, it reads on.
    """

    @property
    def position_kind(self) -> PositionKind:
        """Of the stream that it was opened for."""

    @property
    def started(self) -> float:
        """When the server was started, to some seconds."""

    @property
    def used(self) -> object | None:
        """How the table that was read last looked, which can be compared; None: that was not found out."""

    def read_load(self) -> ReadLoad:
        """What asks the server how busy it is; of a connection of its own, which outlives this one."""

    def plan(self, order: snapshot_pb2.DumpOrder, *, looks_at_rows: bool, is_repeated: bool) -> snapshot_pb2.DumpPlan:
        """Without a key where the table is to be read in one snapshot. Where it may not look at rows, which seem to end
        the server, it has one range. `is_repeated`: dumps of the hour before did not settle the table."""

    def key_kinds(self, table: Table, key: tuple[str, ...]) -> tuple[str, ...]:
        """Of the table that was planned or read last: the kinds of this key's first columns (`menura.key_values`), as
        far as its index rises with them in the lake's order; none where it does not."""

    def bounds(self, table: Table, key: tuple[str, ...], values: Sequence[Key]) -> list[str]:
        """Bounds of `read_chunk` at these values of the key's first columns, '' for none: after `plan`, or inside of
        `chunk`. Raises what `read_chunk` does, also where the key has less kinds."""

    def values(self, table: Table, key: tuple[str, ...], bound: str) -> Key:
        """The same back, of a bound of the table that was read last, as many as the key has kinds. ValueError: one of
        them is no value of its kind."""

    def above(self, table: Table) -> frozenset[Table]:
        """The tables whose rows have to be there before what the table's foreign keys do can be told."""

    def chunk(self, table: Table) -> AbstractContextManager[P]:
        """Around the reading of a chunk: its low watermark, a position whose transactions the reading shows."""

    def read_chunk(
        self, table: Table, key: tuple[str, ...], lower: str, upper: str, limit: int, received: Callable[[int], None]
    ) -> Rows:
        """At most `limit` rows above `lower`, up to and with `upper`, in the order of the key. `received` is told how
        many bytes came: it may wait, or raise to end the reading."""

    def snapshot(self, table: Table) -> AbstractContextManager[P]:
        """Around the reading of a whole table: it shows exactly what is in this position."""

    def read_table(self, table: Table, received: Callable[[int], None]) -> Rows: ...

    def high(self) -> P:
        """Has each transaction that was shown so far."""

    def in_the_log(self, position: P) -> P:
        """What of `position`, just read, is in the log that is streamed; a replica may have transactions of its own."""

    def interrupt(self) -> None:
        """End what another thread waits for on the connection, at once."""

    def end_on_server(self) -> None:
        """After `interrupt`: a statement that sends nothing would go on there."""

    def close(self) -> None:
        """Safe whatever state the connections are in."""


#: raises a `SourceError`
OpenReader = Callable[[PositionKind], TableReader[Any]]
