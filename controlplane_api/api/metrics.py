"""What the API tells Prometheus of the fleet: agents, sources, dumps, rollouts, proofs, lakes, from the database.

Comes in: the database, at each reading. Goes out: gauges and counters whose labels are names of tenants, agents,
sources and lakes, and states from closed sets; no label names a table. An agent has no port: its figures came with
heartbeats, and are absent once they say nothing about now. At most `MAX_SOURCES` sources and `MAX_AGENTS` agents are
shown, and how many are not. What is not known is absent; a lag is 0 only at the source's end.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from menura.instants import now_us
from menura.metric_families import Families, Figure
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection, Select, and_, case, func, or_, select
from sqlalchemy.orm import aliased

from controlplane_api.api import coverage_queries, lake_queries, queries, source_queries
from controlplane_api.api.coverage_queries import SourceProofs
from controlplane_api.api.pages import ALL
from controlplane_api.api.presence import is_present
from controlplane_api.api.views import LakeView, SourceView
from controlplane_api.database import Database
from controlplane_api.models import (
    Agent,
    AnyRow,
    Dump,
    DumpStatus,
    Rollout,
    RolloutAgent,
    Source,
    SourceHealth,
    Tenant,
)
from controlplane_api.rollout_states import OPEN
from controlplane_api.states import DumpEnd, DumpState, LakeState, Stage, State

MAX_SOURCES = 1_000
MAX_AGENTS = 1_000
_OF_SOURCE = ("tenant", "source")
_OF_AGENT = ("tenant", "agent")
_OF_LAKE = (*_OF_SOURCE, "lake")
FIGURES = (
    Figure("menura_controlplane_connected_agents", "Agents with a live session.", ("tenant",)),
    Figure("menura_controlplane_unshown", "Agents and sources beyond those that are shown here.", ("what",)),
    Figure("menura_controlplane_tables", "Tables by the state of their sync.", (*_OF_SOURCE, "state")),
    Figure("menura_controlplane_dumps", "Dumps that run.", _OF_SOURCE),
    Figure("menura_controlplane_held_up", "1: tables are held up at this stage; else 0.", (*_OF_SOURCE, "stage")),
    Figure("menura_agent_connected", "1: the agent has a live session; else 0.", _OF_AGENT),
    Figure("menura_agent_resident_memory_bytes", "Resident memory of the agent's process.", _OF_AGENT),
    Figure("menura_agent_cpu_seconds_total", "CPU time of the agent's process.", _OF_AGENT),
    Figure(
        "menura_agent_lag_seconds",
        "Behind the end of the source's log; 0 at its end; absent while unknown.",
        _OF_SOURCE,
    ),
    Figure("menura_agent_read_bytes_total", "Bytes of the source's log that the agent has read.", _OF_SOURCE),
    Figure("menura_agent_sent_bytes_total", "Bytes of change batches that it has sent.", _OF_SOURCE),
    Figure("menura_agent_rows_total", "Rows that it has decoded.", _OF_SOURCE),
    Figure("menura_agent_transactions_total", "Transactions that it has read.", _OF_SOURCE),
    Figure("menura_agent_decode_cpu_seconds_total", "CPU time of the thread that reads and decodes.", _OF_SOURCE),
    Figure("menura_agent_credit_wait_seconds_total", "Time that it has waited for the gateway's credit.", _OF_SOURCE),
    Figure("menura_agent_credit_bytes", "Bytes that it may send before it waits for the gateway.", _OF_SOURCE),
    Figure("menura_agent_restarts_total", "Times that reading the source's log has begun anew.", _OF_SOURCE),
    Figure(
        "menura_agent_log_retention_seconds",
        "For how long the server keeps its log from now on; absent while unknown, or without such a limit.",
        _OF_SOURCE,
    ),
    Figure(
        "menura_agent_log_room_bytes",
        "Log that the server may write before it removes what is to be read; absent while unknown, or without such a"
        " limit.",
        _OF_SOURCE,
    ),
    Figure(
        "menura_agent_log_unlimited",
        "1: the server keeps its log until somebody removes it; 0: it has a limit; absent while unknown.",
        _OF_SOURCE,
    ),
    Figure("menura_dump_read_rows", "Rows that the dumps that run have brought.", _OF_SOURCE),
    Figure("menura_dump_estimated_rows", "Rows of their tables, as the server estimates.", _OF_SOURCE),
    Figure("menura_dump_held_back", "Dumps that wait: a throttle, a window, a pause, an error.", _OF_SOURCE),
    Figure("menura_upgrade_agents", "Agents of a rollout that is not over, by their state.", ("tenant", "state")),
    Figure("menura_upgrade_halted", "1: failures have halted a rollout that is not over; else 0.", ("tenant",)),
    Figure("menura_landing_last_commit_timestamp_seconds", "Commit time of the last change that landed.", _OF_SOURCE),
    Figure("menura_landing_rows_total", "Change events landed.", _OF_SOURCE),
    Figure("menura_landing_bytes_total", "Bytes landed.", _OF_SOURCE),
    Figure("menura_lake_failed", "1: the lake's sink has ended with an error; else 0.", ("lake",)),
    Figure("menura_lake_report_age_seconds", "Since the lake's sink has reported last.", ("lake",)),
    Figure("menura_lake_stopped_tables", "Tables that the lake's sink has stopped.", ("lake",)),
    Figure("menura_lake_lag_seconds", "Behind the end of the source's log; absent while unknown.", _OF_LAKE),
    Figure("menura_lake_cuts_behind", "Cuts that have landed and are not in the lake.", _OF_LAKE),
    Figure(
        "menura_verification_tables",
        "Tables that are synced, by what verifications have found.",
        (*_OF_SOURCE, "state"),
    ),
    Figure(
        "menura_verification_oldest_proof_age_seconds",
        "Age of the oldest proof that a table is equal; of tables that have none see menura_verification_tables.",
        _OF_SOURCE,
    ),
    Figure(
        "menura_verification_coverage_tables",
        "Tables that are synced, by whether they are proven within the schedule's period, or a week.",
        (*_OF_SOURCE, "state"),
    ),
    Figure(
        "menura_verification_coverage_rows",
        "Rows of these tables, as the server estimates.",
        (*_OF_SOURCE, "state"),
    ),
)


class FleetCollector(Collector):
    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterator[Metric]:
        found = Families(FIGURES)
        with self._database.read() as connection:
            now = now_us()
            _tell_agents(found, connection, now)
            _tell_sources(found, connection, now)
            _tell_health(found, connection, now)
            _tell_dumps(found, connection)
            _tell_rollouts(found, connection)
            _tell_lakes(found, connection, now)
        yield from found


def _tell_agents(found: Families, connection: Connection, now: int) -> None:
    statement = (
        select(
            Tenant.name.label("tenant"), Agent.name, Agent.connected, Agent.seen_at_us, Agent.resident_memory_bytes,
            Agent.cpu_us,
        )
        .join_from(Tenant, Agent, isouter=True)
        .order_by(Tenant.name, Agent.name)
    )  # fmt: skip
    rows = connection.execute(statement).all()
    connected = dict.fromkeys((row.tenant for row in rows), 0)
    agents = [row for row in rows if row.name is not None]
    for number, row in enumerate(agents):
        is_there = is_present(bool(row.connected), row.seen_at_us, now)
        connected[row.tenant] += is_there
        if number >= MAX_AGENTS:
            continue
        of_agent = (row.tenant, row.name)
        found.add("menura_agent_connected", is_there, *of_agent)
        if is_there:
            found.add("menura_agent_resident_memory_bytes", row.resident_memory_bytes, *of_agent)
            found.add("menura_agent_cpu_seconds_total", _seconds(row.cpu_us), *of_agent)
    for tenant, number in islice(connected.items(), MAX_AGENTS):
        found.add("menura_controlplane_connected_agents", number, tenant)
    found.add("menura_controlplane_unshown", max(0, len(agents) - MAX_AGENTS), "agents")


def _tell_sources(found: Families, connection: Connection, now: int) -> None:
    """As of one moment: what takes long for one tenant hides no figure of the next ones."""
    number, proofs = 0, coverage_queries.of_first_sources(connection, MAX_SOURCES, now)
    for tenant in queries.tenants(connection, limit=ALL).tenants:
        if (room := MAX_SOURCES - number) > 0 and tenant.sources:
            for source in source_queries.sources(connection, tenant.tenant, limit=room, now=now).sources:
                _tell_source(found, tenant.tenant, source)
                of_source = (tenant.tenant, source.source)
                _tell_proofs(found, of_source, proofs.get(of_source) or SourceProofs(), now)
        number += tenant.sources
    found.add("menura_controlplane_unshown", max(0, number - MAX_SOURCES), "sources")


def _tell_source(found: Families, tenant: str, source: SourceView) -> None:
    of_source = (tenant, source.source)
    for state in State:
        found.add("menura_controlplane_tables", source.tables.get(state, 0), *of_source, state)
    for stage in Stage:
        found.add("menura_controlplane_held_up", source.stage is stage, *of_source, stage)
    found.add("menura_controlplane_dumps", source.dumps, *of_source)
    found.add("menura_agent_lag_seconds", _seconds(source.lag_us), *of_source)
    found.add("menura_landing_last_commit_timestamp_seconds", _seconds(source.last_commit_timestamp_us), *of_source)
    found.add("menura_landing_rows_total", source.rows, *of_source)
    found.add("menura_landing_bytes_total", source.bytes, *of_source)
    for lake in source.lakes:
        _tell_lake_of_source(found, of_source, lake)


def _tell_proofs(found: Families, of_source: tuple[str, str], known: SourceProofs, now: int) -> None:
    for proof, number in known.tables.items():
        found.add("menura_verification_tables", number, *of_source, proof)
    age_us = source_queries.age(min(known.proven_at_us, default=None), now)
    found.add("menura_verification_oldest_proof_age_seconds", _seconds(age_us), *of_source)
    for each, number in known.covered.items():
        found.add("menura_verification_coverage_tables", number, *of_source, each)
        found.add("menura_verification_coverage_rows", known.rows[each], *of_source, each)


def _tell_lake_of_source(found: Families, of_source: tuple[str, str], lake: LakeView) -> None:
    found.add("menura_lake_lag_seconds", _seconds(lake.lag_us), *of_source, lake.lake)
    found.add("menura_lake_cuts_behind", lake.cuts_behind, *of_source, lake.lake)


def _tell_health(found: Families, connection: Connection, now: int) -> None:
    """Counters of the agent's process begin anew with it, as Prometheus expects of a counter."""
    statement = (
        select(
            SourceHealth, SourceHealth.at_us.label("health_at_us"), Agent.connected, Agent.connected_at_us,
            Agent.seen_at_us, *_NAMES,
        )
        .join_from(SourceHealth, Source, Source.id == SourceHealth.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .join(Agent, Agent.id == Source.agent_id)
    )  # fmt: skip
    for row in _first(connection, statement):
        if not source_queries.is_current(row, now):
            continue
        of_source = (row.tenant, row.source)
        for column in ("read_bytes", "sent_bytes", "rows", "transactions", "restarts"):
            found.add(f"menura_agent_{column}_total", getattr(row, column), *of_source)
        found.add("menura_agent_decode_cpu_seconds_total", _seconds(row.decode_cpu_us), *of_source)
        found.add("menura_agent_credit_wait_seconds_total", _seconds(row.credit_wait_us), *of_source)
        for column in ("credit_bytes", "log_retention_seconds", "log_room_bytes"):
            found.add(f"menura_agent_{column}", getattr(row, column), *of_source)
        found.add("menura_agent_log_unlimited", row.log_is_unlimited, *of_source)


def _tell_dumps(found: Families, connection: Connection) -> None:
    is_held = case((DumpStatus.state.in_((DumpState.WAITING.name, DumpState.PAUSED.name)), 1), else_=0)
    statement = (
        select(
            *_NAMES, func.sum(Dump.rows).label("rows"), func.sum(Dump.estimated_rows).label("estimated"),
            func.sum(is_held).label("held"),
        )
        .join_from(Dump, Source, Source.id == Dump.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .outerjoin(DumpStatus, DumpStatus.dump_id == Dump.id)
        .where(Dump.state == DumpEnd.RUNNING)
        .group_by(Tenant.name, Source.name)
    )  # fmt: skip
    for row in _first(connection, statement):
        found.add("menura_dump_read_rows", int(row.rows), row.tenant, row.source)
        found.add("menura_dump_estimated_rows", _whole(row.estimated), row.tenant, row.source)
        found.add("menura_dump_held_back", int(row.held), row.tenant, row.source)


def _tell_rollouts(found: Families, connection: Connection) -> None:
    """Of each tenant whether one that is not over has halted, or goes back because the one before has."""
    former, agent = aliased(Rollout), RolloutAgent
    is_halted = case((or_(Rollout.problem.is_not(None), former.problem.is_not(None)), 1), else_=0)
    halted = (
        select(Tenant.name, func.max(is_halted).label("halted"))
        .select_from(Tenant)
        .outerjoin(Rollout, and_(Rollout.tenant_id == Tenant.id, Rollout.state.in_(OPEN)))
        .outerjoin(former, former.id == Rollout.back_of)
        .group_by(Tenant.name)
        .order_by(Tenant.name)
        .limit(MAX_SOURCES)
    )
    for row in connection.execute(halted).all():
        found.add("menura_upgrade_halted", row.halted, row.name)
    counts = (
        select(Tenant.name, agent.state, func.count().label("agents"))
        .select_from(agent)
        .join(Rollout, Rollout.id == agent.rollout_id)
        .join(Tenant, Tenant.id == Rollout.tenant_id)
        .where(Rollout.state.in_(OPEN))
        .group_by(Tenant.name, agent.state)
        .order_by(Tenant.name)
        .limit(MAX_SOURCES)
    )
    for row in connection.execute(counts).all():
        found.add("menura_upgrade_agents", row.agents, row.name, row.state)


def _tell_lakes(found: Families, connection: Connection, now: int) -> None:
    for lake in lake_queries.sinks(connection, now, limit=MAX_SOURCES).lakes:
        found.add("menura_lake_failed", lake.state is LakeState.FAILED, lake.lake)
        found.add("menura_lake_stopped_tables", lake.stopped_tables, lake.lake)
        age_us = source_queries.age(lake.received_at_us, now)
        found.add("menura_lake_report_age_seconds", _seconds(age_us), lake.lake)


_NAMES = (Tenant.name.label("tenant"), Source.name.label("source"))


def _first(connection: Connection, statement: Select[*tuple[Any, ...]]) -> Sequence[AnyRow]:
    """In the order in which sources are shown, and as many at most."""
    return connection.execute(statement.order_by(Tenant.name, Source.name).limit(MAX_SOURCES)).all()


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / 1e6


def _whole(number: object) -> int | None:
    return None if number is None else int(str(number))
