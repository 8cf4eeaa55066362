"""What a stream is for: routes each by its role to the few things that the gateway does with it.

Comes in: an opened stream. Goes out: reports into the registry, desired states and requests to the agent; landing
is `Replication`'s. A report that the registry can't take now is dropped, since the next one says the same anew.
"""

import logging
import time
from dataclasses import dataclass

from menura.instants import now_us
from menura.roles import Role
from menura.v1.config_pb2 import Heartbeat, HeartbeatAck, Hello, HelloAck
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import PayloadInvalid, SessionReplaced
from gateway.heartbeats import interval_ms
from gateway.identity import Identity, check_assigned
from gateway.landing_parts import LandingParts
from gateway.log_lines import MAX_VALUE_CHARS
from gateway.presence import MAX_HELLO_SOURCES, AgentSession, Presence
from gateway.quotas import ERROR_ROWS
from gateway.registry import HeartbeatSeen, SourceKey
from gateway.shared_presence import SharedPresence
from gateway.stream import AgentStream
from gateway.streams.client import Client
from gateway.streams.control import Control
from gateway.streams.replication import Replication
from gateway.tasks import finish, run_until_first
from gateway.wire.translation import problem_from, source_health, source_seen

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Session:
    """One stream of an agent, from its Hello to its end."""

    stream: AgentStream
    parts: LandingParts
    presence: Presence
    shared: SharedPresence
    #: None where agents are taken at their word
    identity: Identity | None

    async def serve(self, hello: Hello) -> None:
        key = self.stream.key
        assert key is not None
        if len(hello.sources) > MAX_HELLO_SOURCES:
            raise PayloadInvalid("opening a stream", f"{len(hello.sources)} sources, at most {MAX_HELLO_SOURCES}")
        if key.role is Role.CONFIG:
            agent = await self.presence.open(key.tenant, key.agent, key.session)
        else:
            agent = await self.presence.join(key.tenant, key.agent, key.session)
        try:
            ready = self.shared.take(agent) if key.role is Role.CONFIG else _recorded(agent)
            await run_until_first(ready, _leave_when_replaced(agent))
            await self._serve_until_replaced(agent, hello)
        finally:
            if self.presence.leave(agent):
                await finish(self._end(agent))

    async def _serve_until_replaced(self, agent: AgentSession, hello: Hello) -> None:
        key = self.stream.key
        self._log(logging.INFO, "stream opened: %s", key)
        try:
            await run_until_first(self._serve_as(agent, hello), _leave_when_replaced(agent))
        finally:
            self._log(logging.INFO, "stream closed: %s", key)

    async def _serve_as(self, agent: AgentSession, hello: Hello) -> None:
        key = self.stream.key
        assert key is not None
        told_ms = self._interval_ms()
        await self.stream.send(
            StreamRequest(hello_ack=HelloAck(gateway=self.parts.config.name, heartbeat_interval_ms=told_ms))
        )
        if key.role is Role.CONFIG:
            await Control(self.stream, self.parts, self.presence, agent, hello, self.identity).serve()
        elif key.role is Role.HEARTBEAT:
            agent.heartbeat_ms = told_ms
            await self._serve_heartbeats(agent)
        else:
            source = SourceKey(key.tenant, key.source)
            if self.identity is not None:
                check_assigned(self.parts.standings.sources(key.of_agent), source, key.agent)
            await self.presence.holding(agent, source)
            await run_until_first(self._serve_source(agent, source, hello), self._leave_when_not_assigned(source))

    async def _serve_source(self, agent: AgentSession, source: SourceKey, hello: Hello) -> None:
        key = self.stream.key
        assert key is not None
        if key.role is Role.CATALOG:
            await Client(self.stream, self.parts, agent, source).serve()
            return
        said = source_seen(hello.sources).get(key.source)
        if said is not None and said.flavor:
            agent.flavors[key.source] = said.flavor

        def flavor() -> str:
            return agent.flavors.get(source.source, "")

        await Replication(self.stream, source, key.session, flavor, self.parts).serve()

    async def _leave_when_not_assigned(self, source: SourceKey) -> None:
        key, standings = self.stream.key, self.parts.standings
        assert key is not None
        while True:
            if self.identity is not None:
                check_assigned(standings.sources(key.of_agent), source, key.agent)
            await standings.changed(key.of_agent)

    def _log(self, level: int, message: str, *values: object) -> None:
        key = self.stream.key
        assert key is not None
        self.parts.log_lines.write(logger, level, f"{key.tenant}/{key.agent}", message, *values)

    async def _serve_heartbeats(self, agent: AgentSession) -> None:
        recorded_at = 0.0
        while (message := await self.stream.read()) is not None:
            if message.WhichOneof("payload") == "error":
                self.stream.quota.rows.owe(ERROR_ROWS)
                words = problem_from(message.error, now_us(), MAX_VALUE_CHARS).message
                self._log(logging.WARNING, "agent reports: %s: %s", self.stream.key, words)
                continue
            if len(message.heartbeat.sources) > MAX_HELLO_SOURCES:
                found = f"{len(message.heartbeat.sources)} sources, at most {MAX_HELLO_SOURCES}"
                raise PayloadInvalid("reading a heartbeat", found)
            agent.heartbeats += 1
            self.stream.quota.rows.owe(1 + len(message.heartbeat.sources))
            spacing_seconds = agent.heartbeat_ms / 1000 * 0.9  # clocks of two machines differ
            agent.heartbeat_ms = self._interval_ms()
            ack = HeartbeatAck(received_at_us=now_us(), heartbeat_interval_ms=agent.heartbeat_ms)
            self.stream.post(StreamRequest(heartbeat_ack=ack))
            if time.monotonic() - recorded_at >= spacing_seconds:
                recorded_at = time.monotonic()
                self._tell_heartbeat(message.heartbeat, agent.heartbeat_ms)

    def _interval_ms(self) -> int:
        return interval_ms(self.parts.config.heartbeat_interval_ms, self.presence.agents)

    def _tell_heartbeat(self, heartbeat: Heartbeat, until_next_ms: int) -> None:
        key = self.stream.key
        assert key is not None
        held = [
            health
            for health in source_health(heartbeat, now_us())
            if self.presence.is_held_by(SourceKey(key.tenant, health.source), key.agent)
        ]
        memory_bytes, cpu_us = heartbeat.resident_memory_bytes, heartbeat.cpu_us
        self.parts.heartbeats.tell(
            HeartbeatSeen(key.tenant, key.agent, memory_bytes, cpu_us, held, now_us(), until_next_ms)
        )

    async def _end(self, agent: AgentSession) -> None:
        await self.parts.heartbeats.forget(agent.name)
        await self.shared.end(agent)


async def _recorded(agent: AgentSession) -> None:
    """The registry knows the agent: thousands that come at once may wait for that longer than for their own Hello."""
    await agent.recorded.wait()


async def _leave_when_replaced(agent: AgentSession) -> None:
    await agent.replaced.wait()
    raise SessionReplaced(
        "serving an agent",
        f"agent {agent.agent} has come anew, here after a while without heartbeats or at another gateway",
        data="The newer session goes on",
        remedy="Give each agent a name and an enrolment of its own",
    )
