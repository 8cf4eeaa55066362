"""Agents' software: what each runs, and what it shall run."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from gateway.registry.keys import AgentName, Problem


@dataclass(frozen=True, slots=True)
class VersionSeen:
    """What an agent says of its software; see menura.v1.EffectiveVersion, `state` is the name of its State."""

    #: of the order that it answers; 0: none has come
    generation: int
    version: str
    #: "deb", "rpm", "tar"; empty: installed in another form
    format: str
    machine: str
    state: str
    downloaded_bytes: int
    problem: Problem | None
    #: of the agent that says it
    session: str = ""


@dataclass(frozen=True, slots=True)
class PackageDesired:
    """See menura.v1.AgentPackage; `package_id` is the database's name for its bytes."""

    package_id: int
    version: str
    name: str
    sha256: str
    size_bytes: int
    sums: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class VersionDesired:
    """What an agent shall run; see menura.v1.DesiredVersion. No packages: its order is withdrawn."""

    generation: int
    package: PackageDesired | None
    way_back: PackageDesired | None


class VersionRegistry(Protocol):
    def record_version(self, name: AgentName, seen: VersionSeen, at_us: int) -> bool:
        """What an agent says that it runs, and how far it is with what was ordered; False: nobody knows the agent.

        What was told before a report that is here already changes nothing."""

    def version_orders(self, names: Collection[AgentName]) -> dict[AgentName, int]:
        """Generation of each agent's order that is in work, or of a withdrawal that it has not answered; 0: none is.

        The gateway polls it."""

    def desired_version(self, name: AgentName) -> VersionDesired | None:
        """What the agent shall run, or that its order is withdrawn; None: nothing is ordered."""

    def package_piece(self, package_id: int, offset: int, size_bytes: int) -> bytes:
        """At most 128 KiB of a package from there, fewer only at its end; empty: it is gone."""

    def move_rollouts(self, at_us: int) -> int:
        """Look after the rollouts whose turn it is by this clock; how many."""
