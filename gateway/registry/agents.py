"""Agents: who they are, what is configured for them, and what they say of themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.registry.keys import AgentName, Problem


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database says of an agent."""

    #: of the key that it has enrolled; None: any that the CA certifies for it
    key_sha256: str | None
    #: it comes with a certificate, and never without one
    is_enrolled: bool
    is_revoked: bool
    #: the sources that are its own
    sources: frozenset[str] = frozenset()

    def with_sources(self, sources: frozenset[str]) -> "Standing":
        return replace(self, sources=sources)


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A source as its agent announced it."""

    source: str
    flavor: str
    server_version: str
    address: str
    policy_sha256: str
    #: see menura.v1.SourceHello
    started: int = 0


@dataclass(frozen=True, slots=True)
class AgentSeen:
    tenant: str
    agent: str
    session: str
    version: str
    hostname: str
    sources: tuple[SourceSeen, ...]
    at_us: int
    #: it has shown a certificate, which is good until then
    is_identified: bool = False
    certificate_expires_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class SourceConfigured:
    """A source as the control plane has configured it; see menura.v1.SourceConfiguration."""

    source: str
    generation: int
    sha256: str
    document: str


@dataclass(frozen=True, slots=True)
class ConfigurationSeen:
    """What an agent does about a configuration; see menura.v1.EffectiveSource."""

    source: str
    generation: int
    sha256: str
    problem: Problem | None


@dataclass(frozen=True, slots=True)
class ConfigurationDigests:
    """Of all that is configured for an agent (`menura.source_configuration.digest_of`), and of its last report."""

    desired: str
    #: empty before the first one
    reported: str


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """From a heartbeat; None where the agent does not know."""

    source: str
    read_position: str
    source_position: str
    lag_us: int | None
    rows: int
    transactions: int
    read_bytes: int
    sent_bytes: int
    credit_wait_us: int
    problem: Problem | None = None
    decode_cpu_us: int = 0
    restarts: int = 0
    credit_bytes: int | None = None
    log_retention_seconds: int | None = None
    log_room_bytes: int | None = None
    log_is_unlimited: bool | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatSeen:
    """What an agent says of itself, and of sources that it holds."""

    tenant: str
    agent: str
    resident_memory_bytes: int
    cpu_us: int
    sources: Sequence[SourceHealth]
    at_us: int
    #: until the next one
    interval_ms: int = 1000


class AgentRegistry(Protocol):
    def record_agent(self, agent: AgentSeen) -> None:
        """An agent's Control_Config stream opened.

        Where it has no certificate: creates the tenant, the agent and its sources when new, and the sources are its own
        from then on. With one nothing is created, and sources stay whose they are.
        """

    def standings(self, names: Sequence[AgentName]) -> dict[AgentName, Standing]:
        """What is known of those agents that there are."""

    def enrolled_elsewhere(self, tenant: str, agent: str, sources: Sequence[str]) -> frozenset[str]:
        """Those of the sources that are another agent's, which comes with a certificate."""

    def configuration_digests(self, names: Sequence[AgentName]) -> dict[AgentName, ConfigurationDigests]:
        """Of those agents that there are; the gateway polls it, and compares, so that no change is missed."""

    def configurations(self, name: AgentName) -> tuple[SourceConfigured, ...]:
        """All sources that are configured for the agent."""

    def record_configurations(
        self, name: AgentName, seen: Sequence[ConfigurationSeen], reported: str, at_us: int
    ) -> None:
        """The agent's whole report, with its digest."""

    def record_refusal(self, name: AgentName, actor: str, problem: Problem) -> None:
        """What was refused in an agent's name goes into the audit log, and is shown at the agent if there is one."""

    def record_agent_gone(self, tenant: str, agent: str, session: str, at_us: int) -> None:
        """Its last stream closed; ignored when a newer session is known."""

    def record_heartbeats(self, beats: Sequence[HeartbeatSeen]) -> None:
        """One of each agent, which is there."""
