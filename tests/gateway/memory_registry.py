"""The registry seam in memory, as strict as the real one, with switches for tests."""

import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from menura.horizon import Horizon
from menura.instants import now_us
from menura.landed_digest import LandedFocus
from menura.landing import LogEntry
from menura.naming import TableName
from menura.source_configuration import digest_of

from gateway.registry import (
    AgentName,
    AgentSeen,
    Assignment,
    CartographyEnd,
    ConfigurationDigests,
    ConfigurationSeen,
    DumpPlanned,
    DumpsDesired,
    DumpSeen,
    Followed,
    GatewayReplaced,
    GatewayRun,
    HeartbeatSeen,
    Held,
    HeldBack,
    LandingOther,
    LockHolder,
    Logged,
    OtherServerSeen,
    PresentElsewhere,
    Problem,
    RegistryUnavailable,
    Removable,
    SourceCommitted,
    SourceConfigured,
    SourceDesired,
    SourceKey,
    SourceOwned,
    Standing,
    TableDesired,
    TableEffective,
    TableSeen,
    VersionDesired,
    VersionSeen,
    table_hash,
)
from tests.gateway.memory_dumps import MemoryDumps


class MemoryRegistry:
    def __init__(self) -> None:
        self.away = False
        self.fail_apply = 0
        self.lock = threading.Lock()
        self.agents: dict[tuple[str, str], AgentSeen] = {}
        #: agents that have enrolled
        self.known: dict[AgentName, Standing] = {}
        self.refusals: list[tuple[AgentName, Problem]] = []
        self.gone: list[tuple[str, str, str]] = []
        self.heartbeats: list[HeartbeatSeen] = []
        self.cartography: dict[SourceKey, tuple[TableSeen, ...]] = {}
        self.cartography_digests: dict[SourceKey, bytes] = {}
        self.effective: dict[SourceKey, tuple[int, tuple[TableEffective, ...]]] = {}
        self.problems: dict[SourceKey, Problem | None] = {}
        self.other_servers: dict[SourceKey, OtherServerSeen | None] = {}
        self.wanted: dict[SourceKey, SourceDesired] = {}
        self.landing: tuple[str, str] | None = None
        self.gateways: dict[str, GatewayRun] = {}
        self.owners: dict[SourceKey, GatewayRun] = {}
        self.last_owners: dict[SourceKey, GatewayRun] = {}
        self.sessions: dict[SourceKey, str] = {}
        #: gateway, session and epoch of each agent that is somewhere
        self.present: dict[AgentName, tuple[GatewayRun, str, int]] = {}
        self.presence_epochs: dict[AgentName, int] = defaultdict(int)
        self.epochs: dict[SourceKey, int] = defaultdict(int)
        self.taken: dict[SourceKey, int] = defaultdict(int)
        self.logged: dict[SourceKey, int] = defaultdict(int)
        self.applied: dict[str, int] = defaultdict(int)
        self.entries: list[LogEntry] = []
        self.positions: dict[SourceKey, SourceCommitted] = {}
        self.dump_states: dict[str, DumpSeen] = {}
        self.ledger = MemoryDumps()
        self.configured: dict[AgentName, tuple[SourceConfigured, ...]] = {}
        self.configurations_seen: dict[AgentName, tuple[ConfigurationSeen, ...]] = {}
        self.reported: dict[AgentName, str] = {}
        self.versions: dict[AgentName, VersionSeen] = {}
        self.orders: dict[AgentName, VersionDesired] = {}
        self.packages: dict[int, bytes] = {}
        self.pieces_read = 0

    def want(self, tenant: str, source: str, *tables: str, oldest: bool = False) -> int:
        """Set the desired tables; the new generation."""
        key = SourceKey(tenant, source)
        generation = self.wanted[key].generation + 1 if key in self.wanted else 1
        wanted = tuple(TableDesired("shop", table, start_oldest=oldest) for table in tables)
        self.wanted[key] = SourceDesired(source, generation, wanted)
        return generation

    def want_dump(
        self,
        tenant: str,
        source: str,
        table: str,
        *,
        verifies: bool = False,
        focus: LandedFocus | None = None,
        tells_anew: bool = False,
    ) -> str:
        """A new dump of the table, a verification or a repair; its UUID."""
        key = SourceKey(tenant, source)
        with self.lock:
            return self.ledger.want(key, "shop", table, verifies=verifies, focus=focus, tells_anew=tells_anew)

    def cancel_dump(self, tenant: str, source: str, dump: str) -> None:
        with self.lock:
            self.ledger.end(SourceKey(tenant, source), dump)

    def _check(self) -> None:
        if self.away:
            raise RegistryUnavailable("the test took it away")

    def record_agent(self, agent: AgentSeen) -> None:
        self._check()
        self.agents[agent.tenant, agent.agent] = agent
        for source in agent.sources:
            self.wanted.setdefault(SourceKey(agent.tenant, source.source), SourceDesired(source.source, 0, ()))

    def standings(self, names: Sequence[AgentName]) -> dict[AgentName, Standing]:
        self._check()
        return {name: self.known[name] for name in names if name in self.known}

    def enrolled_elsewhere(self, tenant: str, agent: str, sources: Sequence[str]) -> frozenset[str]:
        self._check()
        others = [known for name, known in self.known.items() if name[0] == tenant and name[1] != agent]
        return frozenset(sources) & {source for known in others if known.is_enrolled for source in known.sources}

    def configuration_digests(self, names: Sequence[AgentName]) -> dict[AgentName, ConfigurationDigests]:
        self._check()
        return {
            name: ConfigurationDigests(
                digest_of((one.source, one.sha256) for one in self.configured.get(name, ())),
                self.reported.get(name, ""),
            )
            for name in names
        }

    def configurations(self, name: AgentName) -> tuple[SourceConfigured, ...]:
        self._check()
        return self.configured.get(name, ())

    def record_configurations(
        self, name: AgentName, seen: Sequence[ConfigurationSeen], reported: str, at_us: int
    ) -> None:
        self._check()
        self.configurations_seen[name] = tuple(seen)
        self.reported[name] = reported

    def record_version(self, name: AgentName, seen: VersionSeen, at_us: int) -> bool:
        self._check()
        self.versions[name] = seen
        return True

    def version_orders(self, names: Collection[AgentName]) -> dict[AgentName, int]:
        self._check()
        return {name: self.orders[name].generation if name in self.orders else 0 for name in names}

    def desired_version(self, name: AgentName) -> VersionDesired | None:
        self._check()
        return self.orders.get(name)

    def package_piece(self, package_id: int, offset: int, size_bytes: int) -> bytes:
        self._check()
        self.pieces_read += 1
        return self.packages.get(package_id, b"")[offset : offset + (128 << 10)]

    def move_rollouts(self, at_us: int) -> int:
        self._check()
        return 0

    def record_refusal(self, name: AgentName, actor: str, problem: Problem) -> None:
        self._check()
        self.refusals.append((name, problem))

    def record_agent_gone(self, tenant: str, agent: str, session: str, at_us: int) -> None:
        self._check()
        self.gone.append((tenant, agent, session))

    def record_heartbeats(self, beats: Sequence[HeartbeatSeen]) -> None:
        self._check()
        self.heartbeats += beats

    def cartography_digest(self, key: SourceKey) -> bytes:
        self._check()
        return self.cartography_digests.get(key, b"")

    def begin_cartography(self, key: SourceKey, base: bytes) -> bool:
        self._check()
        if base and base != self.cartography_digests.get(key):
            return False
        self.cartography_digests[key] = b""
        return True

    def record_tables(self, key: SourceKey, tables: Sequence[TableSeen], gone: Sequence[tuple[str, str]]) -> None:
        self._check()
        kept = {(seen.database, seen.table): seen for seen in (*self.cartography.get(key, ()), *tables)}
        self.cartography[key] = tuple(seen for name, seen in kept.items() if name not in gone)

    def end_cartography(self, key: SourceKey, told: CartographyEnd, at_us: int) -> None:
        self._check()
        self.cartography[key] = tuple(
            seen
            for seen in self.cartography.get(key, ())
            if told.names is None or table_hash(seen.database, seen.table) in told.names
        )
        self.cartography_digests[key] = told.digest

    def record_effective(
        self,
        key: SourceKey,
        generation: int,
        tables: Sequence[TableEffective],
        problem: Problem | None,
        at_us: int,
        other_server: OtherServerSeen | None = None,
        warnings: Sequence[Problem] = (),
    ) -> None:
        self._check()
        self.other_servers[key] = other_server
        self.effective[key] = generation, tuple(tables)

    def record_source_problem(self, key: SourceKey, problem: Problem | None, at_us: int) -> None:
        self._check()
        self.problems[key] = problem

    def desired(self, key: SourceKey) -> SourceDesired:
        self._check()
        return self.wanted[key]

    def generations(self, tenants_sources: Sequence[SourceKey]) -> dict[SourceKey, int]:
        self._check()
        return {key: self.wanted[key].generation for key in tenants_sources if key in self.wanted}

    def changes(self) -> None:
        return None

    def claim_landing(self, url: str, identity: str) -> str:
        self._check()
        with self.lock:
            if self.landing is None:
                if not identity:
                    return url
                self.landing = url, identity
            if identity != self.landing[1]:
                raise LandingOther(f"the database follows the log of {self.landing[0]} (landing {self.landing[1]})")
            return self.landing[0]

    def begin_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> None:
        self._check()
        self.gateways[gateway.name] = gateway

    def renew_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> dict[SourceKey, int]:
        self._check()
        if self.gateways.get(gateway.name) != gateway:
            raise GatewayReplaced(gateway.name)
        with self.lock:
            return {key: self.epochs[key] for key, owner in self.owners.items() if owner == gateway}

    def end_gateway(self, gateway: GatewayRun) -> None:
        self._check()
        with self.lock:
            self.gateways.pop(gateway.name, None)
            self.owners = {key: owner for key, owner in self.owners.items() if owner != gateway}

    def take_presence(self, name: AgentName, gateway: GatewayRun, session: str) -> int | PresentElsewhere:
        self._check()
        with self.lock:
            owner, of, _ = self.present.get(name, (gateway, session, 0))
            if owner != gateway and of != session and self.gateways.get(owner.name) == owner:
                return PresentElsewhere(owner.name, owner.run, now_us())
            self.presence_epochs[name] += 1
            self.present[name] = gateway, session, self.presence_epochs[name]
            return self.presence_epochs[name]

    def release_presence(self, name: AgentName, gateway: GatewayRun, epoch: int) -> bool:
        self._check()
        with self.lock:
            owner, _, present = self.present.get(name, (None, "", 0))
            if (owner, present) == (gateway, epoch):
                del self.present[name]
            return (owner, present) == (gateway, epoch)

    def presences(self, gateway: GatewayRun) -> dict[AgentName, int]:
        self._check()
        with self.lock:
            return {name: epoch for name, (owner, _, epoch) in self.present.items() if owner == gateway}

    def assign_source(self, key: SourceKey, gateway: GatewayRun, session: str) -> Assignment:
        self._check()
        with self.lock:
            owner = self.owners.get(key, gateway)
            if owner != gateway and self.gateways.get(owner.name) == owner and self.sessions.get(key) != session:
                raise SourceOwned(f"gateway {owner.name} owns it")
            self.epochs[key] += 1
            if self.last_owners.setdefault(key, gateway) != gateway:
                self.last_owners[key], self.taken[key] = gateway, self.epochs[key]
            self.owners[key], self.sessions[key] = gateway, session
            return Assignment(self.epochs[key], needs_fence=self.logged[key] < self.taken[key])

    def release_source(self, key: SourceKey, gateway: GatewayRun, epoch: int) -> None:
        self._check()
        with self.lock:
            if self.owners.get(key) == gateway and self.epochs[key] == epoch:
                del self.owners[key]

    def followed(self, landing: str, keys: Sequence[SourceKey]) -> Followed:
        self._check()
        found = {}
        for key in keys:
            at = self.positions.get(key, SourceCommitted())
            found[key] = Logged(self.logged[key], at.cut, at.last_gsn)
        return Followed(self.applied[landing], found)

    def applied_entry(self, landing: str) -> int:
        self._check()
        return self.applied[landing]

    def removable(self, landing: str) -> Removable:
        self._check()
        return Removable(0)

    def horizon(self, landing: str, identity: str, first_entry: int, at_us: int) -> Horizon:
        raise AssertionError("nothing is removable")

    def apply_horizon(self, landing: str, horizon: Horizon) -> None:
        raise AssertionError("nothing was removed")

    def held(self, landing: str, *, asked: bool) -> list[Held]:
        return []

    def apply_held(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        return True

    def blocked(self, landing: str) -> list[Held]:
        return []

    def lock_holders(self) -> Mapping[LockHolder, str]:
        return {}

    def apply_blocked(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        return True

    def apply_entry(self, landing: str, entry: LogEntry) -> HeldBack:
        self._check()
        if self.fail_apply:
            self.fail_apply -= 1
            raise RegistryUnavailable("the test refuses")
        if entry.entry <= self.applied[landing]:
            return HeldBack()
        assert entry.entry == self.applied[landing] + 1
        for cut in entry.cuts:
            key = SourceKey(cut.tenant, cut.source)
            assert cut.cut == self.positions.get(key, SourceCommitted()).cut + 1
            self._show(key, cut.epoch)
            self.positions[key] = SourceCommitted(
                cut.epoch, cut.cut, cut.last_gsn, cut.last_transaction_id, cut.position, cut.ahead
            )
            with self.lock:
                self.ledger.apply(key, cut)
            if cut.stopped and key in self.wanted:
                stopped = {(stop.database, stop.table) for stop in cut.stopped}
                wanted = self.wanted[key]
                left = tuple(table for table in wanted.tables if (table.database, table.table) not in stopped)
                self.wanted[key] = replace(wanted, generation=wanted.generation + 1, tables=left)
        for fence in entry.fences:
            self._show(SourceKey(fence.tenant, fence.source), fence.epoch)
        self.applied[landing] = entry.entry
        self.entries.append(entry)
        return HeldBack()

    def _show(self, key: SourceKey, epoch: int) -> None:
        if key not in self.last_owners:
            self.last_owners[key] = GatewayRun("", "")
        self.epochs[key], self.logged[key] = max(self.epochs[key], epoch), max(self.logged[key], epoch)

    def last_cuts(self, key: SourceKey) -> dict[TableName, int | None]:
        self._check()
        cuts = [
            cut for entry in self.entries for cut in entry.cuts if (cut.tenant, cut.source) == (key.tenant, key.source)
        ]
        return {(file.database, file.table): cut.cut for cut in cuts for file in cut.files}

    def committed(self, key: SourceKey) -> SourceCommitted:
        self._check()
        return self.positions.get(key, SourceCommitted())

    def order_verifications(self, gateway: GatewayRun, at_us: int) -> int:
        return 0

    def dumps(self, key: SourceKey) -> DumpsDesired:
        self._check()
        with self.lock:
            return self.ledger.desired(key)

    def dump_generations(self, keys: Sequence[SourceKey]) -> dict[SourceKey, int]:
        self._check()
        return {key: self.ledger.desired(key).generation for key in keys}

    def record_dump_plan(self, key: SourceKey, dump: str, plan: DumpPlanned, at_us: int) -> None:
        self._check()
        with self.lock:
            self.ledger.plan(key, dump, plan)

    def record_dump_status(self, key: SourceKey, dumps: Sequence[DumpSeen], at_us: int) -> None:
        self._check()
        self.dump_states |= {seen.dump: seen for seen in dumps}

    def record_dump_failed(self, key: SourceKey, dump: str, problem: Problem, at_us: int) -> None:
        self._check()
        with self.lock:
            self.ledger.fail(key, dump, problem)
