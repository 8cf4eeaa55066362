"""What the seam's other modules share: who is meant, why something failed, and how a call ends."""

from dataclasses import dataclass


class RegistryUnavailable(Exception):
    """The database could not be reached or refused; transient."""


class RegistryRefused(Exception):
    """The database takes these values neither now nor later."""


#: tenant and agent
AgentName = tuple[str, str]


@dataclass(frozen=True, slots=True)
class SourceKey:
    tenant: str
    source: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.source}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A failure as an operator reads it; mirrors menura.v1.Error."""

    code: str
    message: str
    terminal: bool
    at_us: int
