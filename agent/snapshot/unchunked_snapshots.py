"""A source's tables that are read in one snapshot, until a start cut has named them.

Pure state, locked by `coordinator`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from agent.positions import Position, PositionKind
from agent.snapshot.publication import Publication
from agent.table_positions import Table


class DumpForgotten(Exception):
    """A table was about to begin with rows that the gateway does not have any more: the stream opens anew."""


@dataclass(frozen=True, slots=True)
class UnchunkedSnapshot:
    """A table's only chunk: all its rows at `position`."""

    dump: str
    table: Table
    number: int
    position: Position


class UnchunkedSnapshots:
    def __init__(self) -> None:
        self._read: dict[str, UnchunkedSnapshot] = {}
        self._landed: dict[str, UnchunkedSnapshot] = {}
        #: in a cut of the present stream
        self._named: set[str] = set()
        #: the cut that names them, while it is not committed
        self._named_in: dict[str, int] = {}
        #: in a committed cut
        self._begun: set[str] = set()

    def add(self, snapshot: UnchunkedSnapshot) -> None:
        self._read[snapshot.dump] = snapshot
        self._begun.discard(snapshot.dump)

    def landed(self, dump: str, number: int) -> bool:
        """False: that chunk is none of these."""
        snapshot = self._read.get(dump)
        if snapshot is None or snapshot.number != number:
            return False
        self._landed[dump] = self._read.pop(dump)
        return True

    def get(self, dump: str) -> UnchunkedSnapshot | None:
        """That can begin, or has begun."""
        return self._landed.get(dump)

    def pending_starts(self) -> list[Position]:
        """Positions of those that no committed cut has named."""
        landed = [snapshot for dump, snapshot in self._landed.items() if dump not in self._begun]
        return [snapshot.position for snapshot in (*self._read.values(), *landed)]

    def committed(self, cut: int) -> None:
        """All cuts up to this one are."""
        self._begun |= {dump for dump, named in self._named_in.items() if named <= cut}
        self._named_in = {dump: named for dump, named in self._named_in.items() if named > cut}

    def landed_dumps(self) -> Collection[str]:
        return self._landed.keys()

    def start_of(self, dump: str) -> Position | None:
        return self._landed[dump].position if dump in self._landed and dump not in self._named else None

    def take_other(self, dump: str, position_kind: PositionKind) -> UnchunkedSnapshot | None:
        """Forget it if the way of keeping positions has changed since it was read."""
        snapshot = self._landed.get(dump)
        if snapshot is None or snapshot.position.is_of(position_kind):
            return None
        return self._landed.pop(dump)

    def take_uncertain(self, dumps: Collection[str]) -> list[UnchunkedSnapshot]:
        """A stream begins in which these dumps' tables have not begun: whether the gateway still has those that a cut
        had named nobody knows."""
        uncertain = [self._landed.pop(dump) for dump in self._named & set(dumps) if dump in self._landed]
        self._begun -= set(dumps)
        self._named.clear()
        self._named_in.clear()
        return uncertain

    def publish(self, said: Publication, unchunked: Iterable[UnchunkedSnapshot], cut: int) -> None:
        """In the start cut; raises `DumpForgotten`."""
        for snapshot in unchunked:
            if snapshot.dump in self._named:
                continue
            if self._landed.get(snapshot.dump) != snapshot:
                raise DumpForgotten
            self._named.add(snapshot.dump)
            self._named_in[snapshot.dump] = cut
            said.dumped(snapshot.dump, snapshot.table, snapshot.position)
            said.chunk(snapshot.dump, snapshot.table, snapshot.number)

    def forget(self, dump: str) -> None:
        self._read.pop(dump, None)
        self._landed.pop(dump, None)

    def over(self, dump: str) -> None:
        self.forget(dump)
        self._named.discard(dump)
        self._named_in.pop(dump, None)
        self._begun.discard(dump)

    def clear(self) -> None:
        self._read.clear()
        self._landed.clear()
        self._begun.clear()
