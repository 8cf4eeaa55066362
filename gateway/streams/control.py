"""A Control_Config stream: says whole desired states, hears whole effective ones.

Comes in: the agent's Hello with its sources, EffectiveState whenever something changed there. Goes out: DesiredState
of each source that the agent holds, whenever its generation moves. What is recorded is the registry's; the rest
begins anew with the next stream.
"""

import asyncio
import logging
from contextlib import ExitStack

from menura.bounds import MAX_NAME_CHARS
from menura.error_message import as_message
from menura.instants import now_us
from menura.naming import is_identity
from menura.v1.config_pb2 import Certificate, DesiredState, EffectiveState, Hello, TableName
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import PayloadInvalid, RenewalUnavailable, SourceHeld, SourceNotAssigned
from gateway.identity import Identity, not_assigned
from gateway.landing_parts import LandingParts
from gateway.presence import ERROR_ROWS, AgentSession, Presence
from gateway.registry import AgentSeen, Problem, SourceKey
from gateway.stream import AgentStream
from gateway.tasks import ask_registry, run_until_first
from gateway.wire.translation import (
    optional_problem,
    other_server,
    problem_from,
    source_seen,
    tables_effective,
    warnings_of,
)

logger = logging.getLogger(__name__)


class Control:
    def __init__(
        self,
        stream: AgentStream,
        parts: LandingParts,
        presence: Presence,
        agent: AgentSession,
        hello: Hello,
        identity: Identity | None,
    ) -> None:
        self._stream = stream
        self._parts = parts
        self._presence = presence
        self._agent = agent
        self._identity = identity
        self._version = hello.version[:MAX_NAME_CHARS]
        self._hostname = hello.hostname[:MAX_NAME_CHARS]
        self._sources = source_seen(hello)
        for name in self._sources:
            if not is_identity(name):
                raise PayloadInvalid("opening a stream", "a source that is no name", remedy="Use a-z, 0-9, '-', '_'")
        self._agent.flavors |= {name: seen.flavor for name, seen in self._sources.items() if seen.flavor}
        #: generation that was sent last, by the sources that are held; None before the first
        self._sent: dict[str, int | None] = {}
        self._refused: set[str] = set()

    async def serve(self) -> None:
        await run_until_first(self._receive(), self._reconcile())

    async def _reconcile(self) -> None:
        """Again and again: take what is its own and free, send what moved."""
        generations = self._parts.generations
        elsewhere = await self._enrolled_elsewhere()
        with ExitStack() as followed:
            while True:
                own = self._own_sources(elsewhere)
                for name in self._sent.keys() - own:
                    self._give_up(name)
                held = self._presence.hold(self._agent, sorted(own))
                new = [name for name in held if name not in self._sent]
                if new or not self._agent.recorded.is_set():
                    await self._record_agent(held)
                    for name in new:
                        followed.enter_context(generations.following(self._key(name)))
                        self._sent[name] = None
                await self._refuse_others(own)
                for name, sent in list(self._sent.items()):
                    current = generations.current(self._key(name))
                    if current is not None and current != sent:
                        await self._send_desired(name)
                await generations.polled()

    async def _record_agent(self, held: list[str]) -> None:
        agent = AgentSeen(
            tenant=self._agent.tenant,
            agent=self._agent.agent,
            session=self._agent.session,
            version=self._version,
            hostname=self._hostname,
            sources=tuple(self._sources[name] for name in held),
            at_us=now_us(),
            is_identified=self._identity is not None,
        )
        await ask_registry(self._parts.registry.record_agent, agent)
        self._agent.recorded.set()

    async def _enrolled_elsewhere(self) -> frozenset[str]:
        """Those of the sources that an agent without a certificate may not have."""
        if self._identity is not None or not self._sources:
            return frozenset()
        ask = self._parts.registry.enrolled_elsewhere
        return await ask_registry(ask, self._agent.tenant, self._agent.agent, list(self._sources))

    def _own_sources(self, elsewhere: frozenset[str]) -> frozenset[str]:
        named = frozenset(self._sources)
        if self._identity is None:
            return named - elsewhere
        return named & self._parts.standings.sources(self._identity.name)

    def _give_up(self, name: str) -> None:
        """It was this agent's; the source's streams see that too."""
        self._presence.drop(self._agent, self._key(name))
        del self._sent[name]
        self._refused.discard(name)

    async def _refuse_others(self, own: frozenset[str]) -> None:
        """Say once for each source that it is another agent's; the other sources go on."""
        for name in self._sources.keys() - self._sent.keys() - self._refused:
            self._refused.add(name)
            try:
                if name not in own:
                    raise not_assigned(self._key(name), self._agent.agent)
                self._presence.check_holds(self._agent, self._key(name))
            except (SourceHeld, SourceNotAssigned) as refused:
                self._log("source refused: %s: %s", self._stream.key, refused)
                if isinstance(refused, SourceNotAssigned):
                    name_of_agent = (self._agent.tenant, self._agent.agent)
                    await self._parts.audit.refused(name_of_agent, self._stream.peer, refused)
                await self._stream.send(StreamRequest(error=as_message(refused)))

    async def _send_desired(self, name: str) -> None:
        desired = await ask_registry(self._parts.registry.desired, self._key(name))
        tables = [TableName(database=table.database, table=table.table) for table in desired.tables]
        await self._stream.send(
            StreamRequest(
                desired_state=DesiredState(
                    source=name, generation=desired.generation, tables=tables, notice=desired.notice
                )
            )
        )
        self._sent[name] = desired.generation
        said = "command sent: %s: desired_state of %s: generation %s, %s tables"
        self._log(said, self._stream.key, name, desired.generation, len(tables), level=logging.INFO)

    async def _receive(self) -> None:
        while (message := await self._stream.read()) is not None:
            if message.WhichOneof("payload") == "effective_state":
                await self._record_effective(message.effective_state)
                continue
            if message.WhichOneof("payload") == "certificate_request":
                await self._renew(message.certificate_request.request)
                continue
            problem = problem_from(message.error, now_us())
            await self._agent.reports.take(ERROR_ROWS)
            self._log("agent reports: %s: %s", self._stream.key, problem.message)
            if message.error.source in self._sent:
                key = self._key(message.error.source)
                await self._record_problem(key, problem)

    async def _renew(self, request: bytes) -> None:
        await self._agent.reports.take(ERROR_ROWS)
        authority, identity = self._parts.authority, self._identity
        if authority is None or identity is None:
            unavailable = RenewalUnavailable(
                "renewing a certificate",
                "this gateway has no CA of the control plane",
                data="The agent keeps its certificate as long as it is good",
                remedy="Start the gateway with --ca, or give the agent certificates of your own CA by gateway.tls",
            )
            await self._stream.send(StreamRequest(error=as_message(unavailable)))
            return
        certificate = await asyncio.to_thread(authority.renew, identity, request)
        self._log("certificate renewed: %s", self._stream.key, level=logging.INFO)
        await self._stream.send(StreamRequest(certificate=Certificate(certificate_pem=certificate)))

    async def _record_problem(self, key: SourceKey, problem: Problem) -> None:
        await self._parts.reports.tell(lambda: self._parts.registry.record_source_problem(key, problem, problem.at_us))

    async def _record_effective(self, state: EffectiveState) -> None:
        if state.source not in self._sent:
            return  # another agent has it now; its word counts
        await self._agent.reports.take(1 + len(state.tables))
        at_us = now_us()
        tables, problem = tables_effective(state, at_us), optional_problem(state, at_us)
        await self._parts.reports.tell(
            lambda: self._parts.registry.record_effective(
                self._key(state.source),
                state.generation,
                tables,
                problem,
                at_us,
                other_server(state),
                warnings_of(state, at_us),
            ),
        )

    def _log(self, message: str, *values: object, level: int = logging.WARNING) -> None:
        owner = f"{self._agent.tenant}/{self._agent.agent}"
        self._parts.log_lines.write(logger, level, owner, message, *values)

    def _key(self, name: str) -> SourceKey:
        return SourceKey(self._agent.tenant, name)
