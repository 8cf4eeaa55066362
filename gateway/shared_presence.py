"""At which gateway each agent is: its presence in the database, which a session takes and gives back.

Comes in: sessions that have opened here (`gateway.presence`). Goes out: a row for each agent with its gateway, the
agent's session and an epoch that only grows. Taking it is one compare-and-set. It succeeds where nobody has the agent:
it was given back, its gateway's lease is over, this gateway has it, or the same process of the agent came from another
gateway to this one. Durable is that row alone. A kill of the gateway leaves it to the lease; a kill between the
database's answer and ours leaves a row without a session here, which the next comparison gives back. Whoever gives back
names the epoch, so a late one ends nothing newer.

Another gateway's lease that is renewed while we wait proves that the gateway lives, and so that its session does: the
newcomer is refused (`DuplicateAgent`). One that is not renewed is waited for until it is over.
"""

import asyncio
import logging
from dataclasses import dataclass

from menura.instants import now_us

from gateway.presence import AgentSession, Presence, duplicate
from gateway.registry import GatewayRun, PresentElsewhere, Registry, RegistryRefused, RegistryUnavailable
from gateway.shares import FairThreads
from gateway.tasks import Reports, ask_registry

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class SharedPresence:
    registry: Registry
    gateway: GatewayRun
    sessions: Presence
    reports: Reports
    asking: FairThreads
    #: between two comparisons with the database
    interval_seconds: float

    async def take(self, session: AgentSession) -> None:
        """The agent is here from now on. Raises `DuplicateAgent`, or `RegistryAway`."""
        async with session.turn:
            first: PresentElsewhere | None = None
            while not session.epoch:
                found = await ask_registry(
                    self.asking, session.name, self.registry.take_presence, session.name, self.gateway, session.session
                )
                if isinstance(found, int):
                    session.epoch = found
                    return
                if first is None or first.run != found.run:
                    first = found
                if found.expires_at_us > first.expires_at_us:
                    raise duplicate(session.agent, found.gateway)
                await asyncio.sleep(LOOK_SECONDS)

    async def end(self, session: AgentSession) -> None:
        """The session is over; what is known of the agent says so, unless it is elsewhere already."""
        epoch, registry = session.epoch, self.registry
        if epoch and await self.reports.tell(
            session.name, lambda: registry.release_presence(session.name, self.gateway, epoch)
        ):
            at_us = now_us()
            await self.reports.tell(
                session.name, lambda: registry.record_agent_gone(session.tenant, session.agent, session.session, at_us)
            )

    async def run(self) -> None:
        """Compare what the database says with the sessions that are here, until cancelled."""
        while True:
            await asyncio.sleep(self.interval_seconds)
            try:
                await self._compare()
            except (RegistryRefused, RegistryUnavailable) as unavailable:
                logger.debug("presences are not compared: %s", unavailable)

    async def _compare(self) -> None:
        before = self.sessions.epochs()
        found = await asyncio.to_thread(self.registry.presences, self.gateway)
        here = self.sessions.epochs()
        for session, epoch in before.items():
            if here.get(session) == epoch != found.get(session.name):
                logger.warning("agent is at another gateway: %s/%s", session.tenant, session.agent)
                self.sessions.replace(session)
        for name, epoch in found.items():
            if not self.sessions.has(name):
                await asyncio.to_thread(self.registry.release_presence, name, self.gateway, epoch)
