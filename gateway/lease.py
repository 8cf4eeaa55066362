"""The lease on a source: only its holder lands the source's cuts.

Every run of a source, from a Replicate to the next, takes an epoch of its own. So what an abandoned run, or a
killed gateway of the same name, left behind can't share a file's name with a later one, and its cuts and
batches are told apart. Calls block; the gateway makes them in worker threads.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.errors import LeaseLost, RegistryFault
from gateway.registry import LeaseHeld, Registry, SourceKey


@dataclass(slots=True)
class Lease:
    registry: Registry
    key: SourceKey
    gateway: str
    ttl_seconds: float
    clock: Callable[[], float] = time.monotonic
    epoch: int = 0
    _valid_until: float = field(default=0.0)

    def acquire_fresh(self) -> int:
        """An epoch that nobody had before. Raises `LeaseLost` while another gateway holds the source."""
        asked = self.clock()
        try:
            # The registry lets a gateway of the same name keep its epoch; giving it back first makes a new one.
            held = self.registry.acquire_lease(self.key, self.gateway, self.ttl_seconds)
            self.registry.release_lease(self.key, self.gateway, held)
            epoch = self.registry.acquire_lease(self.key, self.gateway, self.ttl_seconds)
        except LeaseHeld as other:
            raise self._lost("taking the lease on a source", other) from other
        if epoch <= max(self.epoch, held):
            raise RegistryFault(
                "taking the lease on a source", f"epoch {epoch} after {max(self.epoch, held)}", source=str(self.key)
            )
        self.epoch = epoch
        self._valid_until = asked + self.ttl_seconds
        return epoch

    def renew(self) -> None:
        """Raises `LeaseLost` when somebody else has it; then it is not valid any more either."""
        asked = self.clock()
        try:
            self.registry.renew_lease(self.key, self.gateway, self.epoch, self.ttl_seconds)
        except LeaseHeld as other:
            self._valid_until = 0.0
            raise self._lost("renewing the lease on a source", other) from other
        self._valid_until = asked + self.ttl_seconds

    def release(self) -> None:
        self._valid_until = 0.0
        self.registry.release_lease(self.key, self.gateway, self.epoch)

    def is_valid(self) -> bool:
        return self.clock() < self._valid_until

    def _lost(self, doing: str, other: LeaseHeld) -> LeaseLost:
        return LeaseLost(
            doing,
            str(other),
            data="Its holder goes on",
            remedy="Let the agent dial that gateway, or wait until its lease ends",
            source=str(self.key),
        )
