"""What a cut says of dumps: the chunks that appear with it, and the events that begin and end a dump.

Comes in: what is to be said. Goes out: `ChunkRef`s and `TableEvent`s; an event, and an unchunked snapshot's chunk, take
a number of the decoder's, behind all rows of the cut.
"""

import time
from typing import Protocol

from menura.v1 import changes_pb2

from agent.positions import Position
from agent.table_positions import Table, name_message

_Kind = changes_pb2.TableEvent


class Numbers(Protocol):
    """The decoder's row numbers."""

    def take_gsn(self) -> int: ...

    @property
    def next_gsn(self) -> int: ...


class Publication:
    """Of one cut, while it ends."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self.events: list[changes_pb2.TableEvent] = []
        self.chunks: list[changes_pb2.ChunkRef] = []

    def chunk(self, dump: str, table: Table, number: int, gsn: int | None = None) -> None:
        """Its rows have this number, or the next."""
        gsn = self._numbers.take_gsn() if gsn is None else gsn
        self.chunks.append(changes_pb2.ChunkRef(table=name_message(table), dump=dump, chunk=number, gsn=gsn))

    def started(self, kind: changes_pb2.TableEvent.Kind, dump: str, table: Table, *, tells_anew: bool = False) -> None:
        """A dump, a verification or a repair begins: `kind` says which. `tells_anew`: see `StaleTables`."""
        event = self._event(kind, dump, table)
        event.tells_anew = tells_anew
        self.events.append(event)

    def verified(self, dump: str, table: Table, position: Position) -> None:
        """All chunks of a verification are said; it shows nothing later than `position`."""
        event = self._event(_Kind.VERIFIED, dump, table)
        event.position = str(position)
        self.events.append(event)

    def repaired(self, dump: str, table: Table, position: Position, gone: changes_pb2.RepairedRanges) -> None:
        """All chunks of a repair are said; it shows nothing later than `position`."""
        event = self._event(_Kind.REPAIRED, dump, table)
        event.position = str(position)
        event.repaired.CopyFrom(gone)
        self.events.append(event)

    def dumped(self, dump: str, table: Table, position: Position, removes_before_gsn: int = 0) -> None:
        """The table is whole at `position`; rows of before that number, or all that were there, are gone."""
        event = self._event(_Kind.DUMPED, dump, table)
        event.position = str(position)
        if removes_before_gsn:
            event.removes_rows_before_gsn = removes_before_gsn
        else:
            event.removes_rows = True
        self.events.append(event)

    def _event(self, kind: changes_pb2.TableEvent.Kind, dump: str, table: Table) -> changes_pb2.TableEvent:
        return changes_pb2.TableEvent(
            table=name_message(table),
            kind=kind,
            gsn=self._numbers.take_gsn(),
            commit_timestamp_us=time.time_ns() // 1000,
            dump=dump,
        )
