"""The registry seam in memory, as strict as the real one, with switches for tests."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from menura.landing import LogEntry
from menura.naming import TableName

from gateway.registry import (
    AgentName,
    AgentSeen,
    DumpPlanned,
    DumpsDesired,
    DumpSeen,
    Held,
    LeaseHeld,
    OtherServerSeen,
    Problem,
    RegistryUnavailable,
    SourceCommitted,
    SourceDesired,
    SourceHealth,
    SourceKey,
    Standing,
    TableDesired,
    TableEffective,
    TableSeen,
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
        self.heartbeats: list[tuple[str, str, tuple[SourceHealth, ...]]] = []
        self.cartography: dict[SourceKey, tuple[TableSeen, ...]] = {}
        self.effective: dict[SourceKey, tuple[int, tuple[TableEffective, ...]]] = {}
        self.problems: dict[SourceKey, Problem | None] = {}
        self.other_servers: dict[SourceKey, OtherServerSeen | None] = {}
        self.wanted: dict[SourceKey, SourceDesired] = {}
        self.leases: dict[SourceKey, tuple[str, int]] = {}
        self.epochs: dict[SourceKey, int] = defaultdict(int)
        self.applied: dict[str, int] = defaultdict(int)
        self.identity = ""
        self.entries: list[LogEntry] = []
        self.positions: dict[SourceKey, SourceCommitted] = {}
        self.dump_states: dict[str, DumpSeen] = {}
        self.ledger = MemoryDumps()

    def want(self, tenant: str, source: str, *tables: str, oldest: bool = False) -> int:
        """Set the desired tables; the new generation."""
        key = SourceKey(tenant, source)
        generation = self.wanted[key].generation + 1 if key in self.wanted else 1
        wanted = tuple(TableDesired("shop", table, start_oldest=oldest) for table in tables)
        self.wanted[key] = SourceDesired(source, generation, wanted)
        return generation

    def want_dump(self, tenant: str, source: str, table: str) -> str:
        """A new dump of the table; its UUID."""
        with self.lock:
            return self.ledger.want(SourceKey(tenant, source), "shop", table)

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

    def record_refusal(self, name: AgentName, actor: str, problem: Problem) -> None:
        self._check()
        self.refusals.append((name, problem))

    def record_agent_gone(self, tenant: str, agent: str, session: str, at_us: int) -> None:
        self._check()
        self.gone.append((tenant, agent, session))

    def record_heartbeat(
        self,
        tenant: str,
        agent: str,
        resident_memory_bytes: int,
        cpu_us: int,
        sources: Sequence[SourceHealth],
        at_us: int,
    ) -> None:
        self._check()
        self.heartbeats.append((tenant, agent, tuple(sources)))

    def record_cartography(
        self,
        key: SourceKey,
        flavor: str,
        server_version: str,
        server_identity: str,
        tables: Sequence[TableSeen],
        at_us: int,
    ) -> None:
        self._check()
        self.cartography[key] = tuple(tables)

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

    def acquire_lease(self, key: SourceKey, gateway: str, ttl_seconds: float) -> int:
        self._check()
        with self.lock:
            if key in self.leases:
                holder, epoch = self.leases[key]
                if holder != gateway:
                    raise LeaseHeld(f"gateway {holder} holds it")
                return epoch
            self.epochs[key] += 1
            self.leases[key] = gateway, self.epochs[key]
            return self.epochs[key]

    def renew_lease(self, key: SourceKey, gateway: str, epoch: int, ttl_seconds: float) -> None:
        self._check()
        if self.leases.get(key) != (gateway, epoch):
            raise LeaseHeld("another one has it")

    def release_lease(self, key: SourceKey, gateway: str, epoch: int) -> None:
        self._check()
        if self.leases.get(key) == (gateway, epoch):
            del self.leases[key]

    def claim_landing(self, landing: str, identity: str) -> str:
        self._check()
        self.identity = self.identity or identity
        return self.identity

    def applied_entry(self, landing: str) -> int:
        self._check()
        return self.applied[landing]

    def held(self, landing: str, *, asked: bool) -> list[Held]:
        return []

    def apply_held(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        return True

    def apply_entry(self, landing: str, entry: LogEntry) -> frozenset[SourceKey]:
        self._check()
        if self.fail_apply:
            self.fail_apply -= 1
            raise RegistryUnavailable("the test refuses")
        if entry.entry <= self.applied[landing]:
            return frozenset()
        assert entry.entry == self.applied[landing] + 1
        for cut in entry.cuts:
            key = SourceKey(cut.tenant, cut.source)
            assert cut.cut == self.positions.get(key, SourceCommitted()).cut + 1
            self.epochs[key] = max(self.epochs[key], cut.epoch)
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
        self.applied[landing] = entry.entry
        self.entries.append(entry)
        return frozenset()

    def last_cuts(self, key: SourceKey) -> dict[TableName, int | None]:
        self._check()
        cuts = [
            cut for entry in self.entries for cut in entry.cuts if (cut.tenant, cut.source) == (key.tenant, key.source)
        ]
        return {(file.database, file.table): cut.cut for cut in cuts for file in cut.files}

    def committed(self, key: SourceKey) -> SourceCommitted:
        self._check()
        return self.positions.get(key, SourceCommitted())

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
