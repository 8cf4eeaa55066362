"""What agents say of themselves and of their sources: who they are, how they are, what became of each sync.

Comes in: reports, within the caller's transaction. Goes out: rows, written in bulk and only where they differ from what
is stored, since a source may have tens of thousands of tables and says all of them each time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from menura.bounds import clean_int64, clean_text
from sqlalchemy import ColumnElement, Connection, bindparam, case, or_, select, update

from controlplane_api import rereads
from controlplane_api.documents import insert_into, problem_document
from controlplane_api.identity import audit
from controlplane_api.lookups import among
from controlplane_api.models import Agent, AnyRow, Source, SourceHealth, SourceTable, Sync, Tenant
from controlplane_api.states import Desired, StartKind, State
from controlplane_api.tenants import ensure_tenants
from gateway.registry import AgentName, AgentSeen, HeartbeatSeen, OtherServerSeen, Problem, TableEffective, Withheld
from gateway.registry import SourceHealth as SourceHealthSeen

#: syncs that the agent is told of
ASKED_OF_AGENT = (Sync.desired == Desired.SYNCING, Sync.failed.is_(False))

#: what the agent's states are called here
_STATES = {
    "PENDING": State.PENDING,
    "CATCHING_UP": State.CATCHING_UP,
    "STREAMING": State.STREAMING,
    "DENIED": State.DENIED,
    "FAILED": State.FAILED,
    "DUMPING": State.DUMPING,
    "WAITING": State.WAITING,
}


def record_agent(connection: Connection, agent: AgentSeen) -> None:
    """A new session of an agent, and the sources that it holds."""
    seen = {
        "session": clean_text(agent.session),
        "version": clean_text(agent.version),
        "hostname": clean_text(agent.hostname),
        "connected": True,
        "connected_at_us": agent.at_us,
        "seen_at_us": agent.at_us,
        "certificate_expires_at_us": agent.certificate_expires_at_us,
    }
    if agent.is_identified:
        connection.execute(update(Agent).where(_agent_is(agent.tenant, agent.agent)).values(**seen))
        _record_own_sources(connection, agent)
        return
    tenant_id = ensure_tenants(connection, {agent.tenant}, agent.at_us)[agent.tenant]
    agent_id = connection.execute(
        insert_into(connection, Agent)
        .values(tenant_id=tenant_id, name=agent.agent, **seen)
        .on_conflict_do_update(index_elements=[Agent.tenant_id, Agent.name], set_=seen)
        .returning(Agent.id)
    ).scalar_one()
    if agent.sources:
        statement = insert_into(connection, Source)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=[Source.tenant_id, Source.name],
                set_={name: statement.excluded[name] for name in ("agent_id", *_SAID)}
                | {"told_generation": case((Source.agent_id == statement.excluded.agent_id, Source.told_generation))},
                where=or_(Source.agent_id.is_(None), Source.agent_id.not_in(_ENROLLED)),
            ),
            [{"tenant_id": tenant_id, "agent_id": agent_id, "name": source} | said for source, said in _said(agent)],
        )


#: agents that come with certificates: nobody takes a source from them by naming it
_ENROLLED = select(Agent.id).where(Agent.enrolled_at_us.is_not(None))
#: what an agent says of a source
_SAID = ("flavor", "server_version", "address", "policy_sha256")


def _said(agent: AgentSeen) -> list[tuple[str, dict[str, str]]]:
    return [
        (source.source, {name: clean_text(getattr(source, name)) for name in _SAID})
        for source in sorted(agent.sources, key=lambda source: source.source)
    ]


def _record_own_sources(connection: Connection, agent: AgentSeen) -> None:
    for source, said in _said(agent):
        own = Source.agent_id.in_(select(Agent.id).where(_agent_is(agent.tenant, agent.agent)))
        connection.execute(update(Source).where(Source.name == source, own).values(**said))


def record_refusal(connection: Connection, name: AgentName, actor: str, problem: Problem) -> None:
    """In the audit log, and at the agent whose name it was."""
    audit.record(connection, name[0], actor, "connect", refused=problem.code, found=problem.message)
    connection.execute(update(Agent).where(_agent_is(*name)).values(problem=problem_document(problem)))


def record_gone(connection: Connection, tenant: str, agent: str, session: str, at_us: int) -> None:
    """A session has ended; one that a newer session has replaced says nothing any more."""
    connection.execute(
        update(Agent)
        .where(_agent_is(tenant, agent), Agent.session == session)
        .values(connected=False, seen_at_us=at_us)
    )


def record_heartbeats(connection: Connection, beats: Sequence[HeartbeatSeen]) -> None:
    agents = _agent_ids(connection, beats)
    told = [(agents[beat.tenant, beat.agent], beat) for beat in beats if (beat.tenant, beat.agent) in agents]
    told.sort(key=lambda each: each[0])  # in one order, for gateways side by side
    if told:
        connection.execute(_UPDATE_AGENT, [_agent_row(agent_id, beat) for agent_id, beat in told])
    before = _health_before(connection, [(beat.tenant, health.source) for _, beat in told for health in beat.sources])
    rows = {
        found.id: _health_row(found, health, beat)
        for _, beat in told
        for health in beat.sources
        if (found := before.get((beat.tenant, health.source)))
    }
    if rows:
        statement = insert_into(connection, SourceHealth)
        changed = {column: statement.excluded[column] for column in next(iter(rows.values())) if column != "source_id"}
        connection.execute(
            statement.on_conflict_do_update(index_elements=[SourceHealth.source_id], set_=changed),
            [rows[source_id] for source_id in sorted(rows)],
        )


def record_effective(
    connection: Connection,
    source_id: int,
    generation: int,
    tables: Sequence[TableEffective],
    problem: Problem | None,
    at_us: int,
    other_server: OtherServerSeen | None = None,
    warnings: Sequence[Problem] = (),
) -> None:
    """What the agent does about the desired tables. The source's row is locked.

    A table of which columns were ignored, or stayed on the host, and do not any more, lacks their values in the rows
    that it has: that is noted, and a re-read ordered, with the report, so that no kill between the two loses it.
    """
    offered = None if other_server is None else asdict(other_server)
    told = [problem_document(warning) for warning in warnings]
    connection.execute(
        update(Source)
        .where(Source.id == source_id)
        .values(told_generation=generation, problem=problem_document(problem), other_server=offered, warnings=told)
    )
    stored = {
        (row.database, row.name): row
        for row in connection.execute(
            select(
                SourceTable.database, SourceTable.name, Sync.table_id, Sync.state, Sync.problem,
                Sync.ignored_columns, Sync.withheld, Sync.start,
            )
            .join_from(Sync, SourceTable)
            .where(Sync.source_id == source_id, *ASKED_OF_AGENT)
        )
    }  # fmt: skip
    changed = [
        change
        for table in tables
        if (row := stored.get((table.database, table.table))) and (change := _effective_change(row, table))
    ]
    if changed:
        connection.execute(_UPDATE_EFFECTIVE, changed)
    named = [(stored.get((table.database, table.table)), table) for table in tables]
    widened = {
        row.table_id: widening
        for row, table in named
        if row and row.start != StartKind.DUMP and (widening := _widening(row, table)) is not None
    }
    rereads.note_widened(connection, source_id, widened, at_us)


def _widening(row: AnyRow, table: TableEffective) -> rereads.Widened | None:
    if not _tells_columns(table):
        return None
    told = {column.casefold() for column in table.ignored_columns}
    columns = {column.casefold() for column in row.ignored_columns} - told
    is_freed = _is_freed(row.withheld, table.withheld)
    return rereads.Widened(columns, is_freed, table.most_rereads_per_hour) if columns or is_freed else None


def _is_freed(before: Mapping[str, Any] | None, now: Withheld | None) -> bool:
    """Whether a column that stayed on the host comes now, or may: an agent that has lost its memory can't tell."""
    if before is None or now is None:
        return False
    if before["memory"] in ("", now.memory):
        return bool(before["freed"] != now.freed)
    return bool(before["columns"])


def _tells_columns(table: TableEffective) -> bool:
    """Not a denied table; and before its log is read an agent does not know all that it ignores."""
    return _STATES.get(table.state) in (State.STREAMING, State.CATCHING_UP)


_UPDATE_EFFECTIVE = (
    update(Sync)
    .where(Sync.table_id == bindparam("of_table"))
    .values(
        state=bindparam("to_state"),
        problem=bindparam("to_problem"),
        ignored_columns=bindparam("to_ignored_columns"),
        withheld=bindparam("to_withheld"),
    )
)


def _agent_is(tenant: str, agent: str) -> ColumnElement[bool]:
    return Agent.id.in_(select(Agent.id).join_from(Agent, Tenant).where(Tenant.name == tenant, Agent.name == agent))


_UPDATE_AGENT = (
    update(Agent)
    .where(Agent.id == bindparam("of_agent"))
    .values(
        connected=True,
        seen_at_us=bindparam("to_seen_at_us"),
        resident_memory_bytes=bindparam("to_memory_bytes"),
        cpu_us=bindparam("to_cpu_us"),
    )
)


def _agent_row(agent_id: int, beat: HeartbeatSeen) -> dict[str, Any]:
    return {
        "of_agent": agent_id,
        "to_seen_at_us": beat.at_us,
        "to_memory_bytes": clean_int64(beat.resident_memory_bytes),
        "to_cpu_us": clean_int64(beat.cpu_us),
    }


def _agent_ids(connection: Connection, beats: Sequence[HeartbeatSeen]) -> dict[tuple[str, str], int]:
    names = [(beat.tenant, beat.agent) for beat in beats]
    rows = connection.execute(
        select(Agent.id, Tenant.name.label("tenant"), Agent.name.label("agent"))
        .join_from(Agent, Tenant)
        .where(among((Tenant.name, Agent.name), names))
    )
    return {(row.tenant, row.agent): row.id for row in rows}


def _health_before(connection: Connection, sources: Sequence[tuple[str, str]]) -> dict[tuple[str, str], AnyRow]:
    """By tenant and name: ids of the sources, and the last heartbeat's counters where there was one."""
    rows = connection.execute(
        select(
            Source.id, Tenant.name.label("tenant"), Source.name, SourceHealth.at_us, SourceHealth.rows,
            SourceHealth.read_bytes,
        )
        .join_from(Source, Tenant)
        .outerjoin(SourceHealth, SourceHealth.source_id == Source.id)
        .where(among((Tenant.name, Source.name), sources))
    )  # fmt: skip
    return {(row.tenant, row.name): row for row in rows}


def _health_row(found: AnyRow, health: SourceHealthSeen, beat: HeartbeatSeen) -> dict[str, Any]:
    before, at_us = None if found.at_us is None else found, beat.at_us
    return {
        "source_id": found.id,
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
        "decode_cpu_us": health.decode_cpu_us,
        "restarts": health.restarts,
        "credit_bytes": health.credit_bytes,
        "log_retention_seconds": health.log_retention_seconds,
        "log_room_bytes": health.log_room_bytes,
        "log_is_unlimited": health.log_is_unlimited,
        "heartbeat_ms": beat.interval_ms,
    }


def _rate(grown: int, elapsed_us: int) -> float | None:
    """Per second; unknown when the counter began anew with the agent's process."""
    return grown * 1_000_000 / elapsed_us if grown >= 0 and elapsed_us > 0 else None


def _effective_change(row: AnyRow, table: TableEffective) -> dict[str, Any] | None:
    """What to write, or None where the database says the same already."""
    state = _STATES.get(table.state)
    if state is None:  # a newer agent's word: what is known stays
        return None
    ignored = list(table.ignored_columns) if _tells_columns(table) or not row.ignored_columns else row.ignored_columns
    is_first = row.withheld is None or not row.withheld["memory"]
    said = table.withheld if _tells_columns(table) or is_first else None
    to = (state, problem_document(table.problem), ignored, row.withheld if said is None else asdict(said))
    if (row.state, row.problem, row.ignored_columns, row.withheld) == to:
        return None
    names = ("to_state", "to_problem", "to_ignored_columns", "to_withheld")
    return {"of_table": row.table_id, **dict(zip(names, to, strict=True))}
