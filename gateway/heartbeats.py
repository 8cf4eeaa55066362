"""Heartbeats on their way to the registry: the newest one of each agent, written together.

Comes in: what agents say of themselves, each as often as it likes. Goes out: once an interval, pieces of `PIECE_ROWS`
agents and sources, each one call of the registry. So thousands of agents cost few transactions. Nothing is durable, and
no more than one heartbeat of each agent is kept: while the registry is away they are dropped, and the next ones count.
Lives on the event loop alone.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.registry import AgentName, HeartbeatSeen
from gateway.tasks import Reports

PIECE_ROWS = 500
#: that a gateway has its agents send in all; each takes about half a millisecond of a core
MOST_A_SECOND = 400
#: however many agents there are: what is known of each is as old
MOST_INTERVAL_MS = 5_000
#: whose turn it is at the database
_OF_ALL = ("", "heartbeats")


def interval_ms(least_ms: int, agents: int) -> int:
    """Of each agent, where a gateway has so many.

    >>> [interval_ms(1_000, agents) for agents in (1, 400, 1_000, 10_000)]
    [1000, 1000, 2500, 5000]
    """
    return max(least_ms, min(agents * 1_000 // MOST_A_SECOND, MOST_INTERVAL_MS))


@dataclass(slots=True, eq=False)
class Heartbeats:
    reports: Reports
    record: Callable[[Sequence[HeartbeatSeen]], None]
    interval_seconds: float
    _newest: dict[AgentName, HeartbeatSeen] = field(default_factory=dict)
    #: what is still to be written of the last interval
    _due: dict[AgentName, HeartbeatSeen] = field(default_factory=dict)
    #: whose heartbeats are being written, and when they are
    _writing: dict[AgentName, asyncio.Event] = field(default_factory=dict)

    def tell(self, beat: HeartbeatSeen) -> None:
        self._newest[beat.tenant, beat.agent] = beat

    async def forget(self, name: AgentName) -> None:
        """After this nothing more is written of what the agent has told. Waits where that is being written."""
        self._newest.pop(name, None)
        self._due.pop(name, None)
        if (written := self._writing.get(name)) is not None:
            await written.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(self.interval_seconds)
            self._due, self._newest = self._newest, {}
            while piece := _take_piece(self._due):
                await self._write(piece)

    async def _write(self, piece: dict[AgentName, HeartbeatSeen]) -> None:
        written = asyncio.Event()
        self._writing = dict.fromkeys(piece, written)
        try:
            await self.reports.tell(_OF_ALL, partial(self.record, list(piece.values())))
        finally:
            self._writing = {}
            written.set()


def _take_piece(due: dict[AgentName, HeartbeatSeen]) -> dict[AgentName, HeartbeatSeen]:
    """The next `PIECE_ROWS`, or one agent with more sources; what is taken is due no more."""
    piece: dict[AgentName, HeartbeatSeen] = {}
    rows = 0
    for name, beat in due.items():
        rows += 1 + len(beat.sources)
        if piece and rows > PIECE_ROWS:
            break
        piece[name] = beat
    for name in piece:
        del due[name]
    return piece
