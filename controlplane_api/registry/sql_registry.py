"""The gateway's registry over the control plane's database.

What agents report goes in, what is asked of them comes out. Implements `gateway.registry.Registry`, whose
docstrings are the contract. Every call is one transaction; a kill leaves it done or not begun. Reports are
written in bulk and only where they differ from what is stored, since a source may have tens of thousands of
tables and says all of them each time.

The gateway must stop taking cuts of the older generation and follow its log to the end before it reads
`desired` for a new one: only then is a resumed table's position the place where its rows in the lake end.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from menura.landing import LogEntry
from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute

from controlplane_api.database import Database
from controlplane_api.documents import ahead_from, clean_int64, clean_text, insert_into, position_from, problem_document
from controlplane_api.errors import DatabaseUnavailable
from controlplane_api.models import Agent, CommittedPosition, Dump, Source, SourceHealth, SourceTable, Sync, Tenant
from controlplane_api.registry import cut_log, dump_reports, leases
from controlplane_api.registry.cartography import store_cartography
from controlplane_api.states import Desired, DumpEnd, StartKind, State
from gateway.registry import (
    AgentSeen,
    DumpPlanned,
    DumpsDesired,
    DumpSeen,
    Problem,
    RegistryUnavailable,
    SourceCommitted,
    SourceDesired,
    SourceKey,
    TableDesired,
    TableEffective,
    TableSeen,
)
from gateway.registry import SourceHealth as SourceHealthSeen

AnyRow = Row[*tuple[Any, ...]]

#: what the agent's states are called here
_STATES = {
    "PENDING": State.PENDING,
    "CATCHING_UP": State.CATCHING_UP,
    "STREAMING": State.STREAMING,
    "DENIED": State.DENIED,
    "FAILED": State.FAILED,
    "DUMPING": State.DUMPING,
}


class SqlRegistry:
    """`gateway.registry.Registry` over a `Database`; thread-safe, and several processes may have one each."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record_agent(self, agent: AgentSeen) -> None:
        with self._write() as connection:
            tenant_id = cut_log.ensure_tenants(connection, {agent.tenant}, agent.at_us)[agent.tenant]
            seen = {
                "session": clean_text(agent.session),
                "version": clean_text(agent.version),
                "hostname": clean_text(agent.hostname),
                "connected": True,
                "connected_at_us": agent.at_us,
                "seen_at_us": agent.at_us,
            }
            agent_id = connection.execute(
                insert_into(connection, Agent)
                .values(tenant_id=tenant_id, name=agent.agent, **seen)
                .on_conflict_do_update(index_elements=[Agent.tenant_id, Agent.name], set_=seen)
                .returning(Agent.id)
            ).scalar_one()
            if agent.sources:
                statement = insert_into(connection, Source)
                said = ("flavor", "server_version", "address", "policy_sha256")
                connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=[Source.tenant_id, Source.name],
                        set_={name: statement.excluded[name] for name in ("agent_id", *said)},
                    ),
                    [
                        {"tenant_id": tenant_id, "agent_id": agent_id, "name": source.source}
                        | {name: clean_text(getattr(source, name)) for name in said}
                        for source in sorted(agent.sources, key=lambda source: source.source)
                    ],
                )

    def record_agent_gone(self, tenant: str, agent: str, session: str, at_us: int) -> None:
        with self._write() as connection:
            connection.execute(
                update(Agent)
                .where(_agent_is(tenant, agent), Agent.session == session)
                .values(connected=False, seen_at_us=at_us)
            )

    def record_heartbeat(
        self,
        tenant: str,
        agent: str,
        resident_memory_bytes: int,
        cpu_us: int,
        sources: Sequence[SourceHealthSeen],
        at_us: int,
    ) -> None:
        with self._write() as connection:
            connection.execute(
                update(Agent)
                .where(_agent_is(tenant, agent))
                .values(
                    connected=True,
                    seen_at_us=at_us,
                    resident_memory_bytes=clean_int64(resident_memory_bytes),
                    cpu_us=clean_int64(cpu_us),
                )
            )
            ids, before = _health_before(connection, tenant, [health.source for health in sources])
            rows = [
                _health_row(ids[health.source], health, before.get(ids[health.source]), at_us)
                for health in sources
                if health.source in ids
            ]
            if rows:
                statement = insert_into(connection, SourceHealth)
                connection.execute(
                    statement.on_conflict_do_update(
                        index_elements=[SourceHealth.source_id],
                        set_={name: statement.excluded[name] for name in rows[0] if name != "source_id"},
                    ),
                    sorted(rows, key=lambda row: row["source_id"]),
                )

    def record_cartography(
        self,
        key: SourceKey,
        flavor: str,
        server_version: str,
        server_uuid: str,
        tables: Sequence[TableSeen],
        at_us: int,
    ) -> None:
        with self._write() as connection:
            source = _lock_source(connection, key)
            if source is None:
                return
            store_cartography(connection, source.id, tables)
            connection.execute(
                update(Source)
                .where(Source.id == source.id)
                .values(
                    flavor=clean_text(flavor),
                    server_version=clean_text(server_version),
                    server_uuid=clean_text(server_uuid),
                    cartography_at_us=at_us,
                )
            )

    def record_effective(
        self, key: SourceKey, generation: int, tables: Sequence[TableEffective], problem: Problem | None, at_us: int
    ) -> None:
        with self._write() as connection:
            source = _lock_source(connection, key)
            if source is None or source.generation != generation:
                return
            connection.execute(update(Source).where(Source.id == source.id).values(problem=problem_document(problem)))
            stored = {
                (row.database, row.name): row
                for row in connection.execute(
                    select(
                        SourceTable.database, SourceTable.name, Sync.table_id, Sync.state, Sync.problem,
                        Sync.ignored_columns,
                    )
                    .join_from(Sync, SourceTable)
                    .where(Sync.source_id == source.id, *_ASKED_OF_AGENT)
                )
            }  # fmt: skip
            changed = [
                change
                for table in tables
                if (row := stored.get((table.database, table.table))) and (change := _effective_change(row, table))
            ]
            if changed:
                connection.execute(_UPDATE_EFFECTIVE, changed)

    def record_source_problem(self, key: SourceKey, problem: Problem | None, at_us: int) -> None:
        with self._write() as connection:
            source = _lock_source(connection, key)
            if source is not None:
                connection.execute(
                    update(Source).where(Source.id == source.id).values(problem=problem_document(problem))
                )

    def desired(self, key: SourceKey) -> SourceDesired:
        with self._read() as connection:
            # In one statement, so that the generation is that of the tables.
            rows = connection.execute(
                select(
                    Source.generation,
                    SourceTable.database,
                    SourceTable.name,
                    Sync.start,
                    Sync.start_text,
                    Sync.position,
                    Dump.state.label("dump_state"),
                )
                .select_from(Source)
                .join(Tenant)
                .outerjoin(Sync, (Sync.source_id == Source.id) & _ASKED_OF_AGENT[0] & _ASKED_OF_AGENT[1])
                .outerjoin(SourceTable, SourceTable.id == Sync.table_id)
                .outerjoin(Dump, _BEGINS_WITH)
                .where(Tenant.name == key.tenant, Source.name == key.source)
                .order_by(SourceTable.database, SourceTable.name)
            ).all()  # fmt: skip
            return SourceDesired(
                source=key.source,
                generation=rows[0].generation if rows else 0,
                tables=tuple(_desired_table(row) for row in rows if row.name is not None),
            )

    def generations(self, tenants_sources: Sequence[SourceKey]) -> dict[SourceKey, int]:
        return self._generations(tenants_sources, Source.generation)

    def acquire_lease(self, key: SourceKey, gateway: str, ttl_seconds: float) -> int:
        with self._write() as connection:
            return leases.acquire(connection, key, gateway, ttl_seconds)

    def renew_lease(self, key: SourceKey, gateway: str, epoch: int, ttl_seconds: float) -> None:
        with self._write() as connection:
            leases.renew(connection, key, gateway, epoch, ttl_seconds)

    def release_lease(self, key: SourceKey, gateway: str, epoch: int) -> None:
        with self._write() as connection:
            leases.release(connection, key, gateway, epoch)

    def applied_entry(self, landing: str) -> int:
        with self._read() as connection:
            return cut_log.applied_entry(connection, landing)

    def apply_entry(self, landing: str, entry: LogEntry) -> None:
        with self._write() as connection:
            cut_log.apply_entry(connection, landing, entry)

    def committed(self, key: SourceKey) -> SourceCommitted:
        with self._read() as connection:
            row = connection.execute(
                select(CommittedPosition)
                .join(Source, Source.id == CommittedPosition.source_id)
                .join(Tenant)
                .where(Tenant.name == key.tenant, Source.name == key.source)
            ).first()
        if row is None:
            return SourceCommitted()
        return SourceCommitted(
            epoch=row.epoch,
            cut=row.cut,
            last_gsn=row.last_gsn,
            last_transaction_id=row.last_transaction_id,
            position=position_from(row.position),
            ahead=ahead_from(row.ahead),
        )

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

    def _generations(self, keys: Sequence[SourceKey], column: InstrumentedAttribute[int]) -> dict[SourceKey, int]:
        if not keys:
            return {}
        with self._read() as connection:
            rows = connection.execute(
                select(Tenant.name.label("tenant"), Source.name, column.label("generation"))
                .join_from(Source, Tenant)
                .where(tuple_(Tenant.name, Source.name).in_([(key.tenant, key.source) for key in keys]))
            )
            return {SourceKey(row.tenant, row.name): row.generation for row in rows}

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        try:
            with self._database.write() as connection:
                yield connection
        except DatabaseUnavailable as unavailable:
            raise RegistryUnavailable(str(unavailable)) from unavailable

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        try:
            with self._database.read() as connection:
                yield connection
        except DatabaseUnavailable as unavailable:
            raise RegistryUnavailable(str(unavailable)) from unavailable


_ASKED_OF_AGENT = (Sync.desired == Desired.SYNCING, Sync.failed.is_(False))

_BEGINS_WITH = and_(Sync.start == StartKind.DUMP, Dump.table_id == Sync.table_id, Dump.uuid == Sync.start_text)

_UPDATE_EFFECTIVE = (
    update(Sync)
    .where(Sync.table_id == bindparam("of_table"))
    .values(
        state=bindparam("to_state"), problem=bindparam("to_problem"), ignored_columns=bindparam("to_ignored_columns")
    )
)


def _lock_source(connection: Connection, key: SourceKey) -> Row[int, int] | None:
    """Id and generation, locked: whoever changes a source's syncs holds this."""
    return connection.execute(
        select(Source.id, Source.generation)
        .join_from(Source, Tenant)
        .where(Tenant.name == key.tenant, Source.name == key.source)
        .with_for_update(of=Source, key_share=True)
    ).first()


def _agent_is(tenant: str, agent: str) -> ColumnElement[bool]:
    return Agent.id.in_(select(Agent.id).join_from(Agent, Tenant).where(Tenant.name == tenant, Agent.name == agent))


def _health_before(
    connection: Connection, tenant: str, sources: Sequence[str]
) -> tuple[dict[str, int], dict[int, AnyRow]]:
    """Ids of the sources by name, and the last heartbeat's counters by id."""
    rows = connection.execute(
        select(Source.id, Source.name, SourceHealth.at_us, SourceHealth.rows, SourceHealth.read_bytes)
        .join_from(Source, Tenant)
        .outerjoin(SourceHealth, SourceHealth.source_id == Source.id)
        .where(Tenant.name == tenant, Source.name.in_(sources))
    ).all()
    return {row.name: row.id for row in rows}, {row.id: row for row in rows if row.at_us is not None}


def _health_row(source_id: int, health: SourceHealthSeen, before: AnyRow | None, at_us: int) -> dict[str, Any]:
    return {
        "source_id": source_id,
        "at_us": at_us,
        "read_position": clean_text(health.read_position),
        "source_position": clean_text(health.source_position),
        "lag_us": None if health.lag_us is None else clean_int64(health.lag_us),
        "rows": clean_int64(health.rows),
        "transactions": clean_int64(health.transactions),
        "read_bytes": clean_int64(health.read_bytes),
        "sent_bytes": clean_int64(health.sent_bytes),
        "credit_wait_us": clean_int64(health.credit_wait_us),
        "rows_per_second": before and _rate(health.rows - before.rows, at_us - before.at_us),
        "read_bytes_per_second": before and _rate(health.read_bytes - before.read_bytes, at_us - before.at_us),
        "problem": problem_document(health.problem),
    }


def _rate(grown: int, elapsed_us: int) -> float | None:
    """Per second; unknown when the counter began anew with the agent's process."""
    return grown * 1_000_000 / elapsed_us if grown >= 0 and elapsed_us > 0 else None


def _effective_change(row: AnyRow, table: TableEffective) -> dict[str, Any] | None:
    """What to write, or None where the database says the same already."""
    state = _STATES.get(table.state)
    if state is None:  # a newer agent's word: what is known stays
        return None
    to = (state, problem_document(table.problem), list(table.ignored_columns))
    if (row.state, row.problem, row.ignored_columns) == to:
        return None
    return {"of_table": row.table_id, "to_state": to[0], "to_problem": to[1], "to_ignored_columns": to[2]}


def _desired_table(row: AnyRow) -> TableDesired:
    position = position_from(row.position) if row.start == StartKind.RESUME else None
    by_dump = row.start == StartKind.DUMP and row.dump_state == DumpEnd.RUNNING
    return TableDesired(
        database=row.database,
        table=row.name,
        start_position=position,
        start_text=row.start_text if row.start == StartKind.POSITION else "",
        start_oldest=row.start == StartKind.OLDEST or (row.start == StartKind.RESUME and position is None),
        # Its dump has failed: the changes come all the same, and the sync says what is missing.
        start_now=row.start == StartKind.NOW or (row.start == StartKind.DUMP and not by_dump),
        start_dump=row.start_text if by_dump else "",
    )
