"""A source's chunks between their reading and the gateway's word that they are committed.

Pure state, locked by `coordinator`.
"""

import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from agent.positions import Position
from agent.snapshot.watermarks import Watermark
from agent.table_positions import Table

#: a chunk that a committed cut has named and of which the gateway says nothing: something is wrong with it
SILENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a key, read."""

    dump: str
    table: Table
    number: int
    range: int
    #: of its watermark
    gsn: int
    #: it shows nothing later
    high: Position


@dataclass(slots=True)
class _Waiting:
    chunk: Chunk
    is_landed: bool = False


class WaitingChunks:
    """Those that no cut has named, each range in its order."""

    def __init__(self) -> None:
        #: by dump and range; none is empty
        self._queues: dict[tuple[str, int], deque[_Waiting]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, chunk: Chunk) -> None:
        self._queues.setdefault((chunk.dump, chunk.range), deque()).append(_Waiting(chunk))

    def put_back(self, chunks: Sequence[Chunk]) -> None:
        """They were taken, in this order, by cuts that are lost; the gateway still has them."""
        for chunk in reversed(chunks):
            self._queues.setdefault((chunk.dump, chunk.range), deque()).appendleft(_Waiting(chunk, is_landed=True))

    def landed(self, dump: str, number: int) -> None:
        for (of_dump, _), queue in self._queues.items():
            for waiting in queue:
                if of_dump == dump and waiting.chunk.number == number:
                    waiting.is_landed = True

    def dumps(self) -> set[str]:
        return {dump for dump, _ in self._queues}

    def dumps_of(self, table: Table) -> set[str]:
        return {dump for (dump, _), queue in self._queues.items() if queue[0].chunk.table == table}

    def dumps_outside(self, tables: Collection[Table]) -> set[str]:
        return {dump for (dump, _), queue in self._queues.items() if queue[0].chunk.table not in tables}

    def is_ready(self, place: Watermark) -> bool:
        """Whether a cut that ends there has all that one of them shows."""
        return any(_is_ready(queue[0], place) for queue in self._queues.values())

    def take_ready(self, place: Watermark) -> Iterator[Chunk]:
        for key, queue in list(self._queues.items()):
            while queue and _is_ready(queue[0], place):
                yield queue.popleft().chunk
            if not queue:
                del self._queues[key]

    def drop(self, dumps: Collection[str]) -> dict[str, set[int]]:
        """Forget these dumps' chunks; their numbers."""
        dropped: dict[str, set[int]] = {}
        for key in [key for key in self._queues if key[0] in dumps]:
            dropped.setdefault(key[0], set()).update(waiting.chunk.number for waiting in self._queues.pop(key))
        return dropped

    def clear(self) -> None:
        self._queues.clear()


def _is_ready(waiting: _Waiting, place: Watermark) -> bool:
    return waiting.is_landed and place.covers(waiting.chunk.table, waiting.chunk.high)


class NamedChunks:
    """Those that a cut has named, until the gateway says that they are committed."""

    def __init__(self) -> None:
        #: by dump and number: the chunk and the cut that names it
        self._cuts: dict[tuple[str, int], tuple[Chunk, int]] = {}
        #: since when that cut is committed
        self._silent_since: dict[tuple[str, int], float] = {}

    def add(self, chunk: Chunk, cut: int) -> None:
        self._cuts[chunk.dump, chunk.number] = chunk, cut

    def committed(self, cut: int) -> None:
        """The gateway has committed all cuts up to this one."""
        now = time.monotonic()
        for key in [key for key, (_, in_cut) in self._cuts.items() if in_cut <= cut]:
            del self._cuts[key]
            self._silent_since[key] = now

    def confirmed(self, dump: str, number: int) -> None:
        self._cuts.pop((dump, number), None)
        self._silent_since.pop((dump, number), None)

    def is_unheard(self) -> bool:
        oldest = min(self._silent_since.values(), default=None)
        return oldest is not None and time.monotonic() - oldest > SILENCE_SECONDS

    def take_lost(self, next_cut: int) -> list[Chunk]:
        """Cuts from this one on will never be committed: what they named, in their order."""
        lost = [chunk for chunk, cut in self._cuts.values() if cut >= next_cut]
        for chunk in lost:
            del self._cuts[chunk.dump, chunk.number]
        return lost

    def over(self, dump: str) -> None:
        for key in [key for key in {**self._cuts, **self._silent_since} if key[0] == dump]:
            self.confirmed(*key)

    def clear(self) -> None:
        self._cuts.clear()
        self._silent_since.clear()
