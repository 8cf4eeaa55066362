"""The lease of a gateway's process, and the sources that it owns while it lives.

One lease a gateway: renewed in one statement however many sources it has, whose answer says which of them are still its
own. A source's owner changes only in the database, and each run of a source, from a Replicate to the next, takes an
epoch of its own there: what an abandoned run left behind can't share a file's name with a later one.

The lease says when others may take over, no more. Whose cuts count the cut log says (`gateway.landing.committer`), so a
lease that ran out unnoticed, or a clock that went wrong, lets nothing wrong pass. A kill leaves the lease to run out;
an agent that comes to another gateway itself takes its sources along before that.
"""

import asyncio
import logging
import secrets
import time
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial

from menura.health import Readiness

from gateway.errors import GatewayNameTaken, LeaseLost, RegistryFault
from gateway.lock_waits import told_when_locked
from gateway.metrics import GatewayMetrics
from gateway.registry import (
    Assignment,
    GatewayReplaced,
    GatewayRun,
    Registry,
    RegistryRefused,
    RegistryUnavailable,
    SourceKey,
    SourceOwned,
)
from gateway.shares import FairThreads
from gateway.tasks import ask_registry

logger = logging.getLogger(__name__)

#: of the gateway's readiness
_PART = "lease"


@dataclass(slots=True)
class GatewayLease:
    registry: Registry
    gateway: GatewayRun
    ttl_seconds: float
    #: of commits, and of what runs begin and end with: these leave some of them free
    threads: Executor
    runs: FairThreads
    metrics: GatewayMetrics
    readiness: Readiness
    #: epochs of what is taken
    _owned: dict[SourceKey, int] = field(default_factory=dict)
    #: set when another gateway owns it
    _lost: dict[SourceKey, asyncio.Event] = field(default_factory=dict)

    async def run(self) -> None:
        """Renew until cancelled. Raises `GatewayNameTaken`, which ends the gateway."""
        self._renewed()  # it began with one
        while True:
            await asyncio.sleep(self.ttl_seconds / 3)
            before = set(self._owned)
            try:
                renew = partial(self.registry.renew_gateway, self.gateway, self.ttl_seconds)
                renewing = asyncio.get_running_loop().run_in_executor(self.threads, renew)
                slow = partial(self.readiness.waits, _PART, "the gateway's lease waits: the database is slow or locked")
                owned = await told_when_locked(renewing, self.registry.lock_holders, "renewals of leases", slow)
            except (RegistryRefused, RegistryUnavailable) as unavailable:
                self.readiness.waits(_PART, "the gateway's lease is not renewed: the database is away or refuses")
                logger.warning("the gateway's lease is not renewed: %s", unavailable)
            except GatewayReplaced as replaced:
                raise GatewayNameTaken(
                    "renewing the gateway's lease",
                    f"another process is gateway {self.gateway.name}",
                    data="The other process goes on",
                    remedy="Give each gateway a name of its own: --name",
                ) from replaced
            else:
                self._renewed()
                for key in before & self._lost.keys() - owned.keys():
                    self._lost[key].set()

    def _renewed(self) -> None:
        self.readiness.goes_on(_PART)
        self.metrics.menura_lease_expiry_timestamp_seconds = time.time() + self.ttl_seconds

    async def take(self, key: SourceKey, session: str) -> Assignment:
        """Own a source, under an epoch that nobody had before. Raises `LeaseLost` while another gateway owns it."""
        try:
            owner = key.tenant, key.source
            found = await ask_registry(self.runs, owner, self.registry.assign_source, key, self.gateway, session)
        except SourceOwned as other:
            raise LeaseLost(
                "taking a source over",
                str(other),
                data="Its owner goes on",
                remedy="Let the agent dial that gateway, or wait until its lease ends",
                source=str(key),
            ) from other
        former = self._owned.get(key, 0)
        if found.epoch <= former:
            raise RegistryFault("taking a source over", f"epoch {found.epoch} after {former}", source=str(key))
        self._owned[key] = found.epoch
        self.metrics.menura_lease_sources = len(self._owned)
        return found

    async def lost(self, key: SourceKey) -> None:
        """Wait until a source that was taken is another gateway's; raises `LeaseLost` then."""
        await self._lost.setdefault(key, asyncio.Event()).wait()
        raise LeaseLost(
            "owning a source",
            "another gateway has taken it over",
            data="That gateway goes on",
            remedy="Give each source to one agent",
            source=str(key),
        )

    async def release(self, key: SourceKey) -> None:
        """Nothing of the source is under way here any more."""
        self._lost.pop(key, None)
        epoch = self._owned.pop(key, 0)
        self.metrics.menura_lease_sources = len(self._owned)
        if epoch:
            work = partial(self.registry.release_source, key, self.gateway, epoch)
            await (await self.runs.start((key.tenant, key.source), work))


def new_run(name: str) -> GatewayRun:
    return GatewayRun(name, secrets.token_hex(16))
