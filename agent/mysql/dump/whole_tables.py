"""A source's tables that are read in one snapshot, until a start cut has named them.

Pure state, locked by `desk`.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from agent.mysql.dump.publication import Publication
from agent.mysql.positions import Position, Scheme
from agent.mysql.progress import Table


class DumpForgotten(Exception):
    """A table was about to begin with rows that the gateway does not have any more: the stream opens anew."""


@dataclass(frozen=True, slots=True)
class WholeTable:
    """A table's only chunk: all its rows at `position`."""

    dump: str
    table: Table
    number: int
    position: Position


class WholeTables:
    def __init__(self) -> None:
        self._read: dict[str, WholeTable] = {}
        self._landed: dict[str, WholeTable] = {}
        #: in a cut of the present stream
        self._named: set[str] = set()

    def add(self, whole: WholeTable) -> None:
        self._read[whole.dump] = whole

    def landed(self, dump: str, number: int) -> bool:
        """False: that chunk is none of these."""
        whole = self._read.get(dump)
        if whole is None or whole.number != number:
            return False
        self._landed[dump] = self._read.pop(dump)
        return True

    def get(self, dump: str) -> WholeTable | None:
        """That can begin, or has begun."""
        return self._landed.get(dump)

    def landed_dumps(self) -> Collection[str]:
        return self._landed.keys()

    def start_of(self, dump: str) -> Position | None:
        return self._landed[dump].position if dump in self._landed and dump not in self._named else None

    def take_other(self, dump: str, scheme: Scheme) -> WholeTable | None:
        """Forget it if the way of keeping positions has changed since it was read."""
        whole = self._landed.get(dump)
        if whole is None or (whole.position.gtids is None) is (scheme is Scheme.FILE):
            return None
        return self._landed.pop(dump)

    def take_uncertain(self, dumps: Collection[str]) -> list[WholeTable]:
        """A stream begins in which these dumps' tables have not begun: whether the gateway still has those that a cut
        had named nobody knows."""
        uncertain = [self._landed.pop(dump) for dump in self._named & set(dumps) if dump in self._landed]
        self._named.clear()
        return uncertain

    def publish(self, said: Publication, wholes: Iterable[WholeTable]) -> None:
        """In the start cut; raises `DumpForgotten`."""
        for whole in wholes:
            if whole.dump in self._named:
                continue
            if self._landed.get(whole.dump) != whole:
                raise DumpForgotten
            self._named.add(whole.dump)
            said.dumped(whole.dump, whole.table, whole.position)
            said.chunk(whole.dump, whole.table, whole.number)

    def forget(self, dump: str) -> None:
        self._read.pop(dump, None)
        self._landed.pop(dump, None)

    def over(self, dump: str) -> None:
        self.forget(dump)
        self._named.discard(dump)

    def clear(self) -> None:
        self._read.clear()
        self._landed.clear()
