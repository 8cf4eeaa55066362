"""What a kind of source brings beside its `SourceKind` so that `menura doctor` and `menura agent grants` know it.

A module that is an entry point of the group `menura.source_doctors`, under the kind's name. A running agent loads none.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from menura.distributions import entry_points
from menura.doctor import Check, Finding, Result

from agent.errors import SourceError
from agent.settings import SourceConfig

GROUP = "menura.source_doctors"
F = TypeVar("F")

_REACHABLE = "reachable", "Nothing can be read from a server that does not answer, or lets nobody in."


class SourceDoctor(Protocol):
    @property
    def flavors(self) -> tuple[str, ...]:
        """Of its servers, as `menura agent grants` is asked for them."""

    def grants(self, flavor: str, user: str, host: str, database: str, names: Sequence[str]) -> Sequence[str]:
        """The least that the agent's account needs, as statements for an administrator, each a line.

        `host`: from where it logs in, empty where that is not said. `database`: which one a source is of, where a
        source is one database. `names`: what may be read alone, each a database or a schema, as the kind has it.
        """

    def examine(self, tenant: str, agent: str, source: SourceConfig) -> list[Finding]:
        """Ask its servers, and judge; what can't be asked is a finding too."""


def doctors() -> dict[str, SourceDoctor]:
    """By kind."""
    return {point.name: point.load() for point in entry_points(GROUP)}


def reachable(part: str, address: str) -> Finding:
    name, why = _REACHABLE
    return Finding(part, name, Result.OK, f"{address} answers", why, "")


def unreachable(part: str, error: SourceError, checks: Iterable[Check[F]]) -> list[Finding]:
    """And what could not be checked for it."""
    name, why = _REACHABLE
    first = Finding(part, name, Result.FAILED, error.found, why, error.remedy)
    others = (Finding(part, one.name, Result.UNKNOWN, "the server could not be asked", one.why, "") for one in checks)
    return [first, *others]
