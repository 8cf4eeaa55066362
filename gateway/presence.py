"""Who is there: agents' sessions, and which of them holds a source.

A session is one run of an agent's process. It begins with its Control_Config stream and lives while one of its
streams is open. The first agent that names a source holds it until its session ends. Nothing here is durable: after
a restart the agents say again who they are; at which gateway an agent is `gateway.shared_presence` settles. Lives on
the event loop alone.

Two sessions of one agent are two processes with one identity, unless one of them is dead and nobody has noticed yet. So
a newer one waits: where the older one still sends heartbeats it stays, and the newer one is refused (`DuplicateAgent`).
"""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from gateway.errors import DuplicateAgent, SessionUnknown, SourceHeld
from gateway.registry import AgentName, SourceKey

#: how long a data stream may be ahead of its agent's Control_Config stream
ANNOUNCE_SECONDS = 60.0
#: how long it may be ahead of what the agent tells of its sources
HELD_SECONDS = 2.0
#: after a newer session has come, of the older one
LIVING_HEARTBEATS = 2
LOOK_SECONDS = 0.1
#: of heartbeats: an agent that misses so many makes room for another process of its name. A host that stands still for
#: some seconds, as virtual ones do while they move, has not vanished.
SILENT_INTERVALS = 6
#: of one agent
MAX_HELLO_SOURCES = 1000


@dataclass(slots=True, eq=False)
class AgentSession:
    tenant: str
    agent: str
    session: str
    #: set when a newer session of the same agent came, or it came to another gateway
    replaced: asyncio.Event = field(default_factory=asyncio.Event)
    #: set when the registry knows the agent and its sources
    recorded: asyncio.Event = field(default_factory=asyncio.Event)
    #: that have come, and as often as it was told last to send them
    heartbeats: int = 0
    heartbeat_ms: int = 0
    flavors: dict[str, str] = field(default_factory=dict)
    streams: int = 0
    #: of its presence in the database; 0: not taken yet
    epoch: int = 0
    #: of its streams that take it
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def name(self) -> AgentName:
        return self.tenant, self.agent


class Presence:
    def __init__(self, silent_seconds: float = 3.0) -> None:
        #: a session that sends no heartbeat for so long, and for `SILENT_INTERVALS`, makes room for a newer one of its
        #: agent
        self._silent_seconds = silent_seconds
        self._sessions: dict[tuple[str, str], AgentSession] = {}
        self._holders: dict[SourceKey, AgentSession] = {}
        #: set when a session of the agent opens; there while a stream waits for that
        self._opened: WeakValueDictionary[AgentName, asyncio.Event] = WeakValueDictionary()

    async def open(self, tenant: str, agent: str, session: str) -> AgentSession:
        """A Control_Config stream came. Raises `DuplicateAgent` where another session of the agent lives."""
        name = tenant, agent
        while (current := self._sessions.get(name)) is not None and current.session != session:
            if await self._lives(current):
                raise duplicate(agent)
            self.replace(current)
        if current is None:
            current = self._sessions[name] = AgentSession(tenant, agent, session)
            self._opened.pop(name, asyncio.Event()).set()
        current.streams += 1
        return current

    def replace(self, session: AgentSession) -> None:
        """It is not the agent's any more: its streams end."""
        if self._sessions.get(session.name) is session:
            session.replaced.set()
            self._release(session)
            del self._sessions[session.name]

    @property
    def agents(self) -> int:
        """How many are here."""
        return len(self._sessions)

    def has(self, name: AgentName) -> bool:
        return name in self._sessions

    def epochs(self) -> dict[AgentSession, int]:
        """Of those sessions whose presence is taken."""
        return {session: session.epoch for session in self._sessions.values() if session.epoch}

    async def _lives(self, session: AgentSession) -> bool:
        """Whether it sends heartbeats: one may have been on its way when its process died."""
        silent_seconds = max(self._silent_seconds, SILENT_INTERVALS * session.heartbeat_ms / 1000)
        before, deadline = session.heartbeats, time.monotonic() + silent_seconds
        while self._sessions.get((session.tenant, session.agent)) is session:
            if session.heartbeats - before >= LIVING_HEARTBEATS:
                return True
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return False

    async def join(self, tenant: str, agent: str, session: str) -> AgentSession:
        """Another stream of a session came; waits a moment for the session.

        Raises `SessionUnknown`, or `DuplicateAgent` where another session of the agent is there.
        """
        name = tenant, agent
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCE_SECONDS):
                while (current := self._sessions.get(name)) is None or current.session != session:
                    opened = self._opened.setdefault(name, asyncio.Event())
                    await opened.wait()
        current = self._sessions.get(name)
        if current is None:
            raise SessionUnknown(
                "opening a stream",
                f"agent {agent} has no Control_Config stream with this session",
                remedy="The agent opens Control_Config first; it is tried again by itself",
            )
        if current.session != session:
            raise duplicate(agent)
        current.streams += 1
        return current

    def leave(self, session: AgentSession) -> bool:
        """A stream closed; True when it was the session's last and no newer session came."""
        session.streams -= 1
        if session.streams or self._sessions.get((session.tenant, session.agent)) is not session:
            return False
        del self._sessions[session.tenant, session.agent]
        self._release(session)
        return True

    def hold(self, session: AgentSession, sources: Iterable[str]) -> list[str]:
        """Hold those of the sources that nobody else holds; returns them. A session that was replaced holds nothing."""
        if session.replaced.is_set():
            return []
        held = []
        for source in sources:
            if self._holders.setdefault(SourceKey(session.tenant, source), session) is session:
                held.append(source)
        return held

    def drop(self, session: AgentSession, key: SourceKey) -> None:
        if self._holders.get(key) is session:
            del self._holders[key]

    def is_held_by(self, key: SourceKey, agent: str) -> bool:
        holder = self._holders.get(key)
        return holder is not None and holder.agent == agent

    def check_holds(self, session: AgentSession, key: SourceKey) -> None:
        """Raises `SourceHeld` when another agent holds it."""
        holder = self._holders.get(key)
        if holder is not session:
            by = f"agent {holder.agent} holds it" if holder is not None else "the agent's Hello did not name it"
            raise SourceHeld(
                "opening a source's stream",
                by,
                data="The other agent goes on" if holder is not None else "",
                remedy="Give each source to one agent, or stop the other one",
                source=key.source,
            )

    async def holding(self, session: AgentSession, key: SourceKey) -> None:
        """Wait a moment until the session has told that it has the source; raises `SourceHeld`."""
        deadline = time.monotonic() + HELD_SECONDS
        while key not in self._holders and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
        self.check_holds(session, key)

    def _release(self, session: AgentSession) -> None:
        for key in [key for key, holder in self._holders.items() if holder is session]:
            del self._holders[key]


def duplicate(agent: str, gateway: str = "") -> DuplicateAgent:
    where = f" at gateway {gateway}" if gateway else ""
    return DuplicateAgent(
        "opening a stream",
        f"another process is agent {agent}{where}, and lives",
        data="The other process goes on; this one tries again by itself",
        remedy="Give each agent a name and an enrolment of its own; enrol a host anew that is a copy of another one",
    )
