"""Refusals that the control plane keeps: who was refused and why. Bounded, since whoever is refused comes again.

Comes in: errors of streams. Goes out: rows in the registry; those beyond the rate are in the log alone.
"""

from dataclasses import dataclass, field

from menura.instants import now_us

from gateway.errors import IdentityRefused
from gateway.rate import Rate, Rates
from gateway.registry import AgentName, Problem, Registry
from gateway.tasks import Reports

#: of one agent, and of all
PER_SECOND, BURST = 0.1, 20
PER_SECOND_OF_ALL, BURST_OF_ALL = 2, 200
#: those that were refused last
MAX_NAMES = 10_000


@dataclass(slots=True)
class Audit:
    registry: Registry
    reports: Reports
    _rates: Rates[AgentName] = field(default_factory=lambda: Rates(PER_SECOND, BURST, MAX_NAMES))
    _of_all: Rate = field(default_factory=lambda: Rate(PER_SECOND_OF_ALL, BURST_OF_ALL))

    async def refused(self, name: AgentName, peer: str, error: IdentityRefused) -> None:
        """`name`: that of the certificate, else the header's; `peer`: the connection."""
        if self._rates.of_name(name).try_take() and self._of_all.try_take():
            problem = Problem(error.code, str(error), error.terminal, now_us())
            actor = f"agent {name[1]} from {peer}"
            await self.reports.tell(name, lambda: self.registry.record_refusal(name, actor, problem))
