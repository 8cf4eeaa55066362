"""The events that begin and end a source's dumps by key, its verifications and its repairs: what is to be said, and
which cut says it.

Pure state, locked by `coordinator`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from menura.v1 import changes_pb2

from agent.positions import Position
from agent.snapshot.publication import Publication
from agent.snapshot.watermarks import Watermark
from agent.table_positions import Table

_Kind = changes_pb2.TableEvent


@dataclass(frozen=True, slots=True)
class Ending:
    """A dump whose ranges are all committed."""

    dump: str
    table: Table
    started_gsn: int
    high: Position
    #: no rows came
    is_verification: bool = False
    #: of a repair
    repaired: changes_pb2.RepairedRanges | None = None


class DumpEvents:
    """Each is said once, until its cut is lost."""

    def __init__(self) -> None:
        self._to_start: dict[str, Table] = {}
        #: of the event that begins it
        self._kinds: dict[str, changes_pb2.TableEvent.Kind] = {}
        #: verifications that were ordered so
        self._tell_anew: set[str] = set()
        self._started_in: dict[str, int] = {}
        self._endings: dict[str, Ending] = {}
        self._ended_in: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._to_start or self._endings)

    def want_start(
        self,
        dump: str,
        table: Table,
        kind: changes_pb2.TableEvent.Kind = _Kind.DUMP_STARTED,
        *,
        tells_anew: bool = False,
    ) -> None:
        self._kinds[dump] = kind
        if tells_anew:
            self._tell_anew.add(dump)
        if dump not in self._started_in:
            self._to_start[dump] = table

    def want_end(self, ending: Ending) -> None:
        if ending.dump not in self._ended_in:
            self._endings[ending.dump] = ending

    def is_ending(self, dump: str) -> bool:
        return dump in self._endings or dump in self._ended_in

    def is_ready(self, place: Watermark, is_live: Callable[[Table], bool]) -> bool:
        """Whether a cut that ends there could say one of them."""
        return any(map(is_live, self._to_start.values())) or any(
            place.covers(ending.table, ending.high) for ending in self._endings.values()
        )

    def publish(self, said: Publication, place: Watermark, live: Collection[Table]) -> None:
        for dump, table in [(dump, table) for dump, table in self._to_start.items() if table in live]:
            del self._to_start[dump]
            self._started_in[dump] = place.cut
            said.started(self._kinds[dump], dump, table, tells_anew=dump in self._tell_anew)
        for ending in list(self._endings.values()):
            if ending.table in live and place.covers(ending.table, ending.high):
                del self._endings[ending.dump]
                self._ended_in[ending.dump] = place.cut
                if ending.is_verification:
                    said.verified(ending.dump, ending.table, ending.high)
                elif ending.repaired is not None:
                    said.repaired(ending.dump, ending.table, ending.high, ending.repaired)
                else:
                    said.dumped(ending.dump, ending.table, ending.high, ending.started_gsn)

    def lose(self, next_cut: int) -> None:
        """Cuts from this one on were not committed; the position of an ending has to be read again."""
        self._endings.clear()
        self._ended_in = {dump: cut for dump, cut in self._ended_in.items() if cut < next_cut}
        self._started_in = {dump: cut for dump, cut in self._started_in.items() if cut < next_cut}

    def forget(self, dump: str) -> None:
        """What no cut has said."""
        self._to_start.pop(dump, None)
        self._endings.pop(dump, None)

    def over(self, dump: str) -> None:
        self.forget(dump)
        self._kinds.pop(dump, None)
        self._tell_anew.discard(dump)
        self._started_in.pop(dump, None)
        self._ended_in.pop(dump, None)

    def clear(self) -> None:
        """All that no cut has said."""
        self._to_start.clear()
        self._endings.clear()
