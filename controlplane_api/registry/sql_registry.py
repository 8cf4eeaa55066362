"""The gateway's registry over the control plane's database.

What agents report goes in, what is asked of them comes out. Implements `gateway.registry.Registry`, whose
docstrings are the contract. Every call but a cartography's is one transaction; a kill leaves it done or not begun.

The gateway must stop taking cuts of the older generation and follow its log to the end before it reads
`desired` for a new one: only then is a resumed table's position the place where its rows in the lake end.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar

from menura.horizon import Horizon
from menura.landing import LogEntry
from menura.naming import TableName
from sqlalchemy import Connection, Row, Select, select, update
from sqlalchemy.orm import InstrumentedAttribute

from controlplane_api import (
    agent_packages,
    comparisons,
    rereads,
    rollout_turns,
    rules,
    verification_schedules,
    wanted_tables,
)
from controlplane_api.database import Database, bound_lock_waits, is_lock_timeout
from controlplane_api.documents import ahead_from, position_from, problem_document
from controlplane_api.errors import DatabaseRefused, DatabaseUnavailable
from controlplane_api.identity import standings
from controlplane_api.lookups import among
from controlplane_api.models import (
    CommittedPosition,
    Quarantine,
    Source,
    SourceTable,
    Sync,
    Tenant,
)
from controlplane_api.registry import (
    agent_reports,
    blocked,
    cartography,
    changes,
    configurations,
    cut_log,
    desired_syncs,
    dump_reports,
    horizons,
    landings,
    leases,
    lock_holders,
    presences,
    quarantine,
    versions,
)
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
    GatewayRun,
    HeartbeatSeen,
    Held,
    HeldBack,
    LockHolder,
    OtherServerSeen,
    PresentElsewhere,
    Problem,
    RegistryRefused,
    RegistryUnavailable,
    Removable,
    SourceCommitted,
    SourceConfigured,
    SourceDesired,
    SourceKey,
    Standing,
    TableEffective,
    TableSeen,
    VersionDesired,
    VersionSeen,
    WaitForChange,
    sources_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: for locks of other transactions: what waits so long is tried again or told anew, and few threads are for all tenants
LOCK_SECONDS = 1.0


class SqlRegistry:
    """`gateway.registry.Registry` over a `Database`; thread-safe, and several processes may have one each."""

    def __init__(self, database: Database, *, compares_behind_gaps: bool = False) -> None:
        """`compares_behind_gaps`: a large table is compared before it is dumped; see `comparisons`."""
        self._database = database
        self._compares = compares_behind_gaps

    def record_agent(self, agent: AgentSeen) -> None:
        with self._write() as connection:
            agent_reports.record_agent(connection, agent)

    def standings(self, names: Sequence[AgentName]) -> dict[AgentName, Standing]:
        with self._read() as connection:
            return standings.standings(connection, names)

    def enrolled_elsewhere(self, tenant: str, agent: str, sources: Sequence[str]) -> frozenset[str]:
        with self._read() as connection:
            return standings.enrolled_elsewhere(connection, tenant, agent, sources)

    def configuration_digests(self, names: Sequence[AgentName]) -> dict[AgentName, ConfigurationDigests]:
        with self._read() as connection:
            return configurations.digests(connection, names)

    def configurations(self, name: AgentName) -> tuple[SourceConfigured, ...]:
        with self._read() as connection:
            return configurations.of_agent(connection, name)

    def record_configurations(
        self, name: AgentName, seen: Sequence[ConfigurationSeen], reported: str, at_us: int
    ) -> None:
        with self._write() as connection:
            configurations.record(connection, name, seen, reported, at_us)

    def record_version(self, name: AgentName, seen: VersionSeen, at_us: int) -> bool:
        with self._write() as connection:
            return versions.record(connection, name, seen, at_us)

    def version_orders(self, names: Collection[AgentName]) -> dict[AgentName, int]:
        with self._read() as connection:
            return versions.orders(connection, names)

    def desired_version(self, name: AgentName) -> VersionDesired | None:
        with self._read() as connection:
            return versions.desired(connection, name)

    def package_piece(self, package_id: int, offset: int, size_bytes: int) -> bytes:
        with self._read() as connection:
            return agent_packages.read(connection, package_id, offset, size_bytes)

    def move_rollouts(self, at_us: int) -> int:
        with self._read() as connection:
            due = rollout_turns.due(connection, rollout_turns.now_of(connection, at_us))
        moved = 0
        for rollout_id in due:
            try:
                with self._write() as connection:
                    moved += rollout_turns.turn(connection, rollout_id, rollout_turns.now_of(connection, at_us))
            except (RegistryRefused, RegistryUnavailable) as failure:  # one that can't go on holds up no other one
                logger.warning("rollout not looked after, it is tried again: rollout=%d: %s", rollout_id, failure)
        return moved

    def record_refusal(self, name: AgentName, actor: str, problem: Problem) -> None:
        with self._write() as connection:
            agent_reports.record_refusal(connection, name, actor, problem)

    def record_agent_gone(self, tenant: str, agent: str, session: str, at_us: int) -> None:
        with self._write() as connection:
            agent_reports.record_gone(connection, tenant, agent, session, at_us)

    def record_heartbeats(self, beats: Sequence[HeartbeatSeen]) -> None:
        with self._write() as connection:
            agent_reports.record_heartbeats(connection, beats)

    def cartography_digest(self, key: SourceKey) -> bytes:
        with self._read() as connection:
            source_id = connection.execute(_id_of(key)).scalar()
            return b"" if source_id is None else cartography.digest(connection, source_id)

    def begin_cartography(self, key: SourceKey, base: bytes) -> bool:
        with self._read() as connection:
            known = connection.execute(_id_of(key)).scalar()
            unended = [] if known is None else cartography.unended(connection, known)
            is_full = known is not None and cartography.is_full(connection, known)
        if known is not None and (unended or is_full):
            cartography.mark_gone(self._write, unended)
            self._forget(known)
        with self._write() as connection:
            source_id = connection.execute(_id_of(key)).scalar()
            return source_id is not None and cartography.begin(connection, source_id, base)

    def _forget(self, source_id: int) -> None:
        """Tables that are gone, but the newest."""
        with self._read() as connection:
            forgotten = cartography.forgettable(connection, source_id)
        cartography.forget(self._write, forgotten)

    def record_tables(self, key: SourceKey, tables: Sequence[TableSeen], gone: Sequence[tuple[str, str]]) -> None:
        with self._read() as connection:
            source_id = connection.execute(_id_of(key)).scalar_one()
            changed = cartography.changed(connection, source_id, tables)
            ids = cartography.ids_of(connection, source_id, gone)
        cartography.store(self._write, changed)
        cartography.mark_gone(self._write, ids)

    def end_cartography(self, key: SourceKey, told: CartographyEnd, at_us: int) -> None:
        with self._read() as connection:
            source_id = connection.execute(_id_of(key)).scalar_one()
            ids = [] if told.names is None else cartography.ids_but(connection, source_id, told.names)
        cartography.mark_gone(self._write, ids)
        self._forget(source_id)
        with self._write() as connection:
            cartography.end(connection, source_id, told, at_us)
            wanted_tables.begin_known(connection, source_id)
            outcomes = rules.apply(connection, source_id)
        refused = [outcome.refused for outcome in outcomes if outcome.refused is not None]
        if refused:
            logger.warning("tables of a rule not started: source=%s tables=%d: %s", key, len(refused), refused[0])

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
        with self._write() as connection:
            source = _lock_source(connection, key)
            if source is not None and source.generation == generation:
                agent_reports.record_effective(
                    connection, source.id, generation, tables, problem, at_us, other_server, warnings
                )

    def record_source_problem(self, key: SourceKey, problem: Problem | None, at_us: int) -> None:
        with self._write() as connection:
            source = _lock_source(connection, key)
            if source is not None:
                connection.execute(
                    update(Source).where(Source.id == source.id).values(problem=problem_document(problem))
                )

    def desired(self, key: SourceKey) -> SourceDesired:
        with self._read() as connection:
            return desired_syncs.desired(connection, key)

    def generations(self, tenants_sources: Sequence[SourceKey]) -> dict[SourceKey, int]:
        return self._generations(tenants_sources, Source.generation)

    def changes(self) -> AbstractContextManager[WaitForChange] | None:
        engine = self._database.engine
        return changes.listening(engine) if engine.dialect.name == "postgresql" else None

    def claim_landing(self, url: str, identity: str) -> str:
        with self._write(None) as connection:
            return landings.claim(connection, url, identity)

    def begin_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> None:
        with self._write(None) as connection:
            leases.begin(connection, gateway, ttl_seconds)

    def renew_gateway(self, gateway: GatewayRun, ttl_seconds: float) -> dict[SourceKey, int]:
        with self._write(None) as connection:
            return leases.renew(connection, gateway, ttl_seconds)

    def end_gateway(self, gateway: GatewayRun) -> None:
        with self._write(None) as connection:
            leases.end(connection, gateway)

    def take_presence(self, name: AgentName, gateway: GatewayRun, session: str) -> int | PresentElsewhere:
        with self._write() as connection:
            return presences.take(connection, name, gateway, session)

    def release_presence(self, name: AgentName, gateway: GatewayRun, epoch: int) -> bool:
        with self._write() as connection:
            return presences.release(connection, name, gateway, epoch)

    def presences(self, gateway: GatewayRun) -> dict[AgentName, int]:
        with self._read() as connection:
            return presences.of_gateway(connection, gateway)

    def assign_source(self, key: SourceKey, gateway: GatewayRun, session: str) -> Assignment:
        with self._write() as connection:
            return leases.assign(connection, key, gateway, session)

    def release_source(self, key: SourceKey, gateway: GatewayRun, epoch: int) -> None:
        with self._write() as connection:
            leases.release(connection, key, gateway, epoch)

    def followed(self, landing: str, keys: Sequence[SourceKey]) -> Followed:
        with self._read() as connection:
            return landings.followed(connection, landing, keys)

    def applied_entry(self, landing: str) -> int:
        with self._read() as connection:
            return cut_log.applied_entry(connection, landing)

    def apply_entry(self, landing: str, entry: LogEntry) -> HeldBack:
        try:
            with self._write(None) as connection:
                cut_log.apply_entry(connection, landing, entry, compares=self._compares)
                return _held_back(connection, landing, entry)
        except Exception as failure:
            is_of_some = isinstance(failure, RegistryRefused) or quarantine.is_poison(failure)
            if not is_of_some and not is_lock_timeout(failure):
                raise
        with self._write(None) as connection:
            cut_log.apply_apart(connection, landing, entry, compares=self._compares)
            return _held_back(connection, landing, entry)

    def blocked(self, landing: str) -> list[Held]:
        with self._read() as connection:
            return blocked.held(connection, landing)

    def lock_holders(self) -> Mapping[LockHolder, str]:
        with self._read() as connection:
            return lock_holders.holders(connection)

    def apply_blocked(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        try:
            with self._write(None) as connection:
                cut_log.apply_blocked(connection, landing, key, entry, compares=self._compares)
        except RegistryUnavailable as failure:
            if is_lock_timeout(failure):
                return False
            raise
        return True

    def held(self, landing: str, *, asked: bool) -> list[Held]:
        with self._read() as connection:
            return quarantine.held(connection, landing, asked=asked)

    def apply_held(self, landing: str, key: SourceKey, entry: LogEntry) -> bool:
        with self._write(None) as connection:
            return cut_log.apply_held(connection, landing, key, entry)

    def removable(self, landing: str) -> Removable:
        with self._read() as connection:
            return horizons.removable(connection, landing)

    def horizon(self, landing: str, identity: str, first_entry: int, at_us: int) -> Horizon:
        with self._read() as connection:
            return horizons.horizon(connection, landing, identity, first_entry, at_us)

    def apply_horizon(self, landing: str, horizon: Horizon) -> None:
        with self._write(None) as connection:
            cut_log.apply_horizon(connection, landing, horizon)

    def committed(self, key: SourceKey) -> SourceCommitted:
        with self._read() as connection:
            is_blocked = blocked.is_blocked(connection, key)  # first: what is applied meanwhile then counts
            row = connection.execute(
                select(CommittedPosition, Quarantine.problem)
                .join_from(Source, Tenant)
                .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
                .outerjoin(Quarantine, Quarantine.source_id == Source.id)
                .where(Tenant.name == key.tenant, Source.name == key.source)
            ).first()
        if row is None:
            return SourceCommitted(is_blocked=is_blocked)
        problem = None if row.problem is None else Problem(**row.problem)
        if row.cut is None:
            return SourceCommitted(quarantine=problem, is_blocked=is_blocked)
        return SourceCommitted(
            quarantine=problem,
            is_blocked=is_blocked,
            epoch=row.epoch,
            cut=row.cut,
            last_gsn=row.last_gsn,
            last_transaction_id=row.last_transaction_id,
            position=position_from(row.position),
            ahead=ahead_from(row.ahead),
        )

    def last_cuts(self, key: SourceKey) -> dict[TableName, int | None]:
        with self._read() as connection:
            rows = connection.execute(
                select(SourceTable.database, SourceTable.name, Sync.last_cut)
                .join(Sync, Sync.table_id == SourceTable.id)
                .where(Sync.source_id == _id_of(key).scalar_subquery())
            )
            return {(database, name): last_cut for database, name, last_cut in rows}

    def dumps(self, key: SourceKey) -> DumpsDesired:
        with self._read() as connection:
            return dump_reports.desired(connection, key)

    def dump_generations(self, keys: Sequence[SourceKey]) -> dict[SourceKey, int]:
        return self._generations(keys, Source.dump_generation)

    def record_dump_plan(self, key: SourceKey, dump: str, plan: DumpPlanned, at_us: int) -> None:
        with self._write() as connection:
            source = _lock_source(connection, key)
            if source is not None:
                dump_reports.record_plan(connection, source.id, dump, plan, at_us)

    def record_dump_status(self, key: SourceKey, dumps: Sequence[DumpSeen], at_us: int) -> None:
        with self._write() as connection:
            dump_reports.record_status(connection, key, dumps, at_us)

    def record_dump_failed(self, key: SourceKey, dump: str, problem: Problem, at_us: int) -> None:
        with self._write() as connection:
            source = _lock_source(connection, key)
            if source is not None:
                dump_reports.record_failed(connection, source.id, dump, problem, at_us)

    def order_verifications(self, gateway: GatewayRun, at_us: int) -> int:
        with self._read() as connection:
            due = verification_schedules.due_sources(connection, leases.is_owned_by(gateway), at_us)
            overdue = comparisons.overdue(connection, leases.is_owned_by(gateway), at_us)
        for source_id, tables in overdue.items():
            self._unless_locked(partial(rereads.order_due_of, source_id=source_id, table_ids=tables, at_us=at_us))
        turns = [partial(verification_schedules.order_next, source_id=source_id, at_us=at_us) for source_id in due]
        return sum(bool(self._unless_locked(turn)) for turn in turns)

    def _unless_locked(self, do: Callable[[Connection], T]) -> T | None:
        """None where others hold the rows: it has its turn again."""
        try:
            with self._write() as connection:
                return do(connection)
        except RegistryUnavailable as failure:
            if not is_lock_timeout(failure):
                raise
        return None

    def _generations(self, keys: Sequence[SourceKey], column: InstrumentedAttribute[int]) -> dict[SourceKey, int]:
        asked = select(Tenant.name.label("tenant"), Source.name, column.label("generation")).join_from(Source, Tenant)
        named = among((Tenant.name, Source.name), ((key.tenant, key.source) for key in keys))
        with self._read() as connection:
            return {SourceKey(row.tenant, row.name): row.generation for row in connection.execute(asked.where(named))}

    @contextmanager
    def _write(self, lock_seconds: float | None = LOCK_SECONDS) -> Iterator[Connection]:
        """What waits longer for a lock fails as `RegistryUnavailable`; None: it bounds its waits itself."""
        try:
            with self._database.write() as connection:
                if lock_seconds is not None:
                    bound_lock_waits(connection, lock_seconds)
                yield connection
        except DatabaseUnavailable as unavailable:
            raise RegistryUnavailable(str(unavailable)) from unavailable
        except DatabaseRefused as refused:
            raise RegistryRefused(str(refused)) from refused

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        try:
            with self._database.read() as connection:
                yield connection
        except DatabaseUnavailable as unavailable:
            raise RegistryUnavailable(str(unavailable)) from unavailable
        except DatabaseRefused as refused:
            raise RegistryRefused(str(refused)) from refused


def _held_back(connection: Connection, landing: str, entry: LogEntry) -> HeldBack:
    keys = sources_of(entry)
    waiting = keys.intersection(held.key for held in blocked.held(connection, landing))
    return HeldBack(quarantine.among(connection, keys), frozenset(waiting))


def _id_of(key: SourceKey) -> Select[int]:
    return select(Source.id).join_from(Source, Tenant).where(Tenant.name == key.tenant, Source.name == key.source)


def _lock_source(connection: Connection, key: SourceKey) -> Row[int, int] | None:
    """Id and generation, locked: whoever changes a source's syncs holds this."""
    return connection.execute(
        select(Source.id, Source.generation)
        .join_from(Source, Tenant)
        .where(Tenant.name == key.tenant, Source.name == key.source)
        .with_for_update(of=Source, key_share=True)
    ).first()
