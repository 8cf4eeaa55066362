"""A Control_Config stream: says whole desired states, hears whole effective ones.

Comes in: the agent's Hello with its sources, EffectiveSources and EffectiveState whenever something changed there. Goes
out: DesiredSources, all that is configured for the agent, whenever that has another digest; DesiredState of each source
that the agent holds, whenever its generation moves. Its software is `Upgrade`'s. What is recorded is the registry's; a
report that its database has lost, being an older copy now, is recorded again. All else begins anew with each stream.
"""

import asyncio
import logging
from contextlib import ExitStack, suppress
from functools import partial

from menura.bounds import MAX_NAME_CHARS
from menura.error_message import as_message
from menura.instants import now_us
from menura.source_configuration import digest_of, sha256_of
from menura.v1.config_pb2 import (
    Certificate,
    DesiredSources,
    EffectiveSources,
    EffectiveState,
    Hello,
    SourceConfiguration,
)
from menura.v1.error_pb2 import Error
from menura.v1.stream_pb2 import StreamRequest

from gateway.errors import (
    PayloadInvalid,
    RenewalUnavailable,
    SourceHeld,
    SourceNotAssigned,
    TablesTooMany,
)
from gateway.identity import Identity, not_assigned
from gateway.landing_parts import LandingParts
from gateway.log_lines import MAX_VALUE_CHARS
from gateway.presence import MAX_HELLO_SOURCES, AgentSession, Presence
from gateway.quotas import ERROR_ROWS
from gateway.registry import AgentName, AgentSeen, ConfigurationSeen, SourceKey, SourceSeen
from gateway.stream import AgentStream
from gateway.streams.upgrade import Upgrade
from gateway.tasks import run_until_first
from gateway.wire.translation import (
    configurations_seen,
    desired_state,
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
        #: generation that was sent last, by the sources that are held; None before the first
        self._sent: dict[str, int | None] = {}
        self._followed: dict[str, ExitStack] = {}
        self._refused: set[str] = set()
        #: digest of what is configured, as it was sent last; None before
        self._configured: str | None = None
        #: the agent's last report of it, with its digest
        self._report: tuple[tuple[ConfigurationSeen, ...], str] | None = None
        self._sources: dict[str, SourceSeen] = {}
        #: the sources are others than the registry has heard of
        self._is_anew = True
        self._upgrade = Upgrade(stream, parts, agent)
        #: set when what is desired, or what the agent says of its sources, is something else than before
        self._moved = asyncio.Event()
        self._run_are(source_seen(hello.sources))

    async def serve(self) -> None:
        await run_until_first(self._receive(), self._reconcile(), self._follow_standing())

    async def _reconcile(self) -> None:
        """Take what is its own and free, send what moved: when something has, and by the clock."""
        generations, elsewhere = self._parts.generations, frozenset[str]()
        with ExitStack() as followed:
            followed.enter_context(self._parts.configurations.following(self._name, self._moved))
            followed.enter_context(self._parts.orders.following(self._name, self._moved))
            followed.callback(self._give_up_all)
            while True:
                self._moved.clear()
                is_anew, self._is_anew = self._is_anew, False
                if is_anew:
                    elsewhere = await self._enrolled_elsewhere()
                own = self._own_sources(elsewhere)
                for name in self._sent.keys() - own:
                    self._give_up(name)
                held = self._presence.hold(self._agent, sorted(own))
                new = [name for name in held if name not in self._sent]
                if new or is_anew:
                    await self._record_agent(held)
                    for name in new:
                        self._followed[name] = ExitStack()
                        self._followed[name].enter_context(generations.following(self._key(name), self._moved))
                        self._sent[name] = None
                await self._refuse_others(own)
                await self._configure()
                await self._upgrade.follow()
                for name, sent in list(self._sent.items()):
                    current = generations.current(self._key(name))
                    if current is not None and current != sent:
                        await self._send_desired(name)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._parts.changes.clock_seconds):
                        await self._moved.wait()

    async def _follow_standing(self) -> None:
        """Sources may become its own, or another agent's."""
        while True:
            await self._parts.standings.changed(self._name)
            self._moved.set()

    async def _configure(self) -> None:
        """Send what is configured where the agent may have another list; record again what the database has lost."""
        digests = self._parts.configurations.current(self._name)
        if digests is None:
            return
        if digests.desired != self._configured:
            found = await self._parts.ask(self._name, self._parts.registry.configurations, self._name)
            self._configured = digest_of((one.source, one.sha256) for one in found)
            sources = [
                SourceConfiguration(
                    source=one.source, generation=one.generation, sha256=one.sha256, document=one.document
                )
                for one in found
            ]
            await self._stream.send(
                StreamRequest(desired_sources=DesiredSources(digest=self._configured, sources=sources))
            )
        if self._report is not None and digests.reported != self._report[1]:
            await self._record_configurations()

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
            certificate_expires_at_us=None if self._identity is None else self._identity.expires_at_us,
        )
        await self._parts.ask(self._name, self._parts.registry.record_agent, agent)
        self._agent.recorded.set()

    async def _enrolled_elsewhere(self) -> frozenset[str]:
        """Those of the sources that an agent without a certificate may not have."""
        if self._identity is not None or not self._sources:
            return frozenset()
        ask = self._parts.registry.enrolled_elsewhere
        return await self._parts.ask(self._name, ask, self._agent.tenant, self._agent.agent, list(self._sources))

    def _own_sources(self, elsewhere: frozenset[str]) -> frozenset[str]:
        named = frozenset(self._sources)
        if self._identity is None:
            return named - elsewhere
        return named & self._parts.standings.sources(self._identity.name)

    def _give_up(self, name: str) -> None:
        """It was this agent's; the source's streams see that too."""
        self._presence.drop(self._agent, self._key(name))
        del self._sent[name]
        self._followed.pop(name).close()
        self._refused.discard(name)

    def _give_up_all(self) -> None:
        """The stream ends; the agent's other streams keep the sources."""
        for followed in self._followed.values():
            followed.close()

    async def _refuse_others(self, own: frozenset[str]) -> None:
        """Say once for each source that it is another agent's; the other sources go on."""
        self._refused &= self._sources.keys()
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
        desired = await self._parts.ask(self._name, self._parts.registry.desired, self._key(name))
        self._sent[name] = desired.generation
        try:
            state = desired_state(desired)
        except TablesTooMany as refused:
            self._log("desired state not sent: %s: %s", self._stream.key, refused)
            await self._stream.send(StreamRequest(error=as_message(refused)))
            return
        await self._stream.send(StreamRequest(desired_state=state))
        said = "command sent: %s: desired_state of %s: generation %s, %s tables"
        self._log(said, self._stream.key, name, desired.generation, len(state.tables), level=logging.INFO)

    async def _receive(self) -> None:
        while (message := await self._stream.read()) is not None:
            if message.WhichOneof("payload") == "effective_state":
                await self._record_effective(message.effective_state)
                continue
            if message.WhichOneof("payload") == "effective_sources":
                await self._take_sources(message.effective_sources)
                continue
            if message.WhichOneof("payload") == "certificate_request":
                await self._renew(message.certificate_request.request)
                continue
            if message.WhichOneof("payload") == "effective_version":
                await self._upgrade.take(message.effective_version)
                self._moved.set()
                continue
            if message.WhichOneof("payload") == "package_request":
                await self._upgrade.give(message.package_request)
                continue
            self._stream.quota.rows.owe(ERROR_ROWS)
            words = problem_from(message.error, now_us(), MAX_VALUE_CHARS).message
            self._log("agent reports: %s: %s", self._stream.key, words)
            if message.error.source in self._sent:
                await self._record_problem(message.error)

    def _run_are(self, sources: dict[str, SourceSeen]) -> None:
        """The agent runs these now; one that has begun again knows no desired state."""
        for name in self._sent.keys() & sources.keys():
            former = self._sources.get(name)
            if former is None or sources[name].started != former.started:
                self._sent[name] = None
        self._is_anew = self._is_anew or sources != self._sources
        self._moved.set()
        self._sources = sources
        self._agent.flavors |= {name: seen.flavor for name, seen in sources.items() if seen.flavor}

    async def _take_sources(self, state: EffectiveSources) -> None:
        if max(len(state.running), len(state.sources)) > MAX_HELLO_SOURCES:
            raise PayloadInvalid("reading which sources run", f"more than {MAX_HELLO_SOURCES} sources")
        self._stream.quota.rows.owe(1 + len(state.running) + len(state.sources))
        self._run_are(source_seen(state.running))
        seen = configurations_seen(state, now_us())
        # of what it says, not of when
        said = [(one.source, one.generation, one.sha256, one.problem and one.problem.message) for one in seen]
        self._report = seen, sha256_of(repr(said))
        await self._record_configurations()

    async def _record_configurations(self) -> None:
        assert self._report is not None
        seen, digest = self._report
        await self._parts.reports.tell(
            self._name, lambda: self._parts.registry.record_configurations(self._name, seen, digest, now_us())
        )

    async def _renew(self, request: bytes) -> None:
        self._stream.quota.rows.owe(ERROR_ROWS)
        authority, identity = self._parts.authority, self._identity
        if authority is None or identity is None:
            unavailable = RenewalUnavailable(
                "renewing a certificate",
                "this gateway has no CA of the control plane",
                data="The agent keeps its certificate as long as it is good",
                remedy="Start the gateway with --ca, or give the agent certificates of your own CA by gateway.tls",
            )
            self._stream.post(StreamRequest(error=as_message(unavailable)))
            return
        certificate = await (await self._parts.asking.start(self._name, partial(authority.renew, identity, request)))
        self._log("certificate renewed: %s", self._stream.key, level=logging.INFO)
        self._stream.post(StreamRequest(certificate=Certificate(certificate_pem=certificate)))

    async def _record_problem(self, error: Error) -> None:
        at_us = now_us()

        def record() -> None:
            problem = problem_from(error, at_us)
            self._parts.registry.record_source_problem(self._key(error.source), problem, problem.at_us)

        await self._parts.reports.tell(self._name, record)

    async def _record_effective(self, state: EffectiveState) -> None:
        if state.source not in self._sent:
            return  # another agent has it now; its word counts
        self._stream.quota.rows.owe(1 + len(state.tables))
        at_us = now_us()
        await self._parts.reports.tell(
            self._name,
            # Also what is made of it is for a thread: it may have hundreds of thousands of tables.
            lambda: self._parts.registry.record_effective(
                self._key(state.source),
                state.generation,
                tables_effective(state, at_us),
                optional_problem(state, at_us),
                at_us,
                other_server(state),
                warnings_of(state, at_us),
            ),
        )

    def _log(self, message: str, *values: object, level: int = logging.WARNING) -> None:
        owner = f"{self._agent.tenant}/{self._agent.agent}"
        self._parts.log_lines.write(logger, level, owner, message, *values)

    @property
    def _name(self) -> AgentName:
        return self._agent.tenant, self._agent.agent

    def _key(self, name: str) -> SourceKey:
        return SourceKey(self._agent.tenant, name)
