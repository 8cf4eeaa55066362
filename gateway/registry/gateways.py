"""Several gateways of one database: which of them live, and which agents and sources each has."""

from dataclasses import dataclass
from typing import Protocol

from gateway.registry.keys import AgentName, SourceKey


class SourceOwned(Exception):
    """Another live gateway owns this source; says which and until when."""


class GatewayReplaced(Exception):
    """Another process has this gateway's name now."""


@dataclass(frozen=True, slots=True)
class GatewayRun:
    """One process of a gateway."""

    name: str
    #: no other process has this word
    run: str


@dataclass(frozen=True, slots=True)
class PresentElsewhere:
    """Another gateway has an agent, as long as its lease lasts; it is good until then, and grows with each renewal."""

    gateway: str
    run: str
    expires_at_us: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """A source that a gateway owns from now on."""

    #: above every earlier one
    epoch: int
    #: whether the cut log does not show this owner yet, so that the former one may still write
    needs_fence: bool


class GatewayRegistry(Protocol):
    def begin_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> None:
        """A process has started; another one of its name has to end."""

    def renew_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> dict[SourceKey, int]:
        """This process lives, and owns these sources, by their epochs. Raises `GatewayReplaced`."""

    def end_gateway(self, gateway: GatewayRun) -> None:
        """It stops: what it owns is free at once."""

    def take_presence(self, name: AgentName, gateway: GatewayRun, session: str) -> int | PresentElsewhere:
        """The agent is at this gateway from now on, under an epoch above every earlier one.

        Not while another gateway has it that lives, but for the same session, which came here from there.
        """

    def release_presence(self, name: AgentName, gateway: GatewayRun, epoch: int) -> bool:
        """The agent may be anywhere; ignored, for False, where that presence is over already."""

    def presences(self, gateway: GatewayRun) -> dict[AgentName, int]:
        """Epochs of the agents that this process has."""

    def assign_source(self, key: SourceKey, gateway: GatewayRun, session: str) -> Assignment:
        """Make this gateway the source's owner, under an epoch of its own.

        Raises `SourceOwned` while another gateway lives that owns it for another run of an agent: an agent that comes
        here itself takes its sources along.
        """

    def release_source(self, key: SourceKey, gateway: GatewayRun, epoch: int) -> None:
        """Free for others at once; ignored where it has another owner."""
