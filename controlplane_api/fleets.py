"""Applies a fleet: agents, the sources that are configured for them, the tables that shall be synced.

Comes in: what a file says, whole, within the caller's transaction. Goes out: rows, and what changed in which order with
what it costs. A plan is an application that is rolled back, so it can't say anything else than what `apply` does. What
is so already is no change; what the file does not have stays, unless it is to be pruned: sources that are configured
for agents that the file names, and tables of its sources. Agents themselves are never removed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from menura.errors import MenuraError
from menura.instants import now_us
from menura.naming import TableName
from sqlalchemy import Connection, insert, or_, select

from controlplane_api import source_configurations, wanted_tables
from controlplane_api.identity import agents
from controlplane_api.models import Agent, AnyRow, Source, SourceConfiguration, SourceTable, Sync
from controlplane_api.states import Action, Desired, StartKind, StoppedBy
from controlplane_api.syncs import Outcome, by_name, stop_tables
from controlplane_api.tenants import ensure_tenants, lock_tenant
from controlplane_api.wanted_tables import Wanted

#: of which a change needs no new connection
_FILTERS = frozenset({"filter", "filter_policy"})


@dataclass(frozen=True, slots=True)
class FleetTable:
    name: TableName
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class FleetSource:
    source: str
    agent: str
    #: of `source_configurations.checked_text`
    text: str
    #: None: the file says nothing of its tables
    tables: tuple[FleetTable, ...] | None


@dataclass(frozen=True, slots=True)
class Fleet:
    agents: tuple[str, ...]
    sources: tuple[FleetSource, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Of a view, or of an agent, a source or a table: the last of them that is named."""

    action: Action
    agent: str
    source: str = ""
    table: TableName | None = None
    #: what it costs or means
    detail: str = ""
    #: of the server's statistics, of a table that is dumped; None: not known
    rows: int | None = None
    bytes: int | None = None
    refused: MenuraError | None = None
    view: str = ""


def apply(connection: Connection, tenant: str, fleet: Fleet, *, prune: bool) -> list[Change]:
    """What was done, in order, with what is kept although the file lacks it; raises a `RequestError`, and all is as
    before."""
    tenant_id = ensure_tenants(connection, {tenant}, now_us())[tenant]
    lock_tenant(connection, tenant_id)
    changes = [change for agent in fleet.agents for change in _agent(connection, tenant_id, agent)]
    ids = {name: agents.agent_row(connection, tenant, name).id for name in fleet.agents}
    _lock_sources(connection, tenant_id, fleet, ids)
    changes += _removals(connection, tenant_id, fleet, ids, prune=prune)
    for source in sorted(fleet.sources, key=lambda one: one.source):
        done = source_configurations.configure(connection, tenant_id, source.source, ids[source.agent], source.text)
        if done.change:
            changes.append(_configured(source, done))
        if source.tables is not None:
            changes += _tables(connection, source, source.tables, done.source_id, prune=prune)
    return changes


def _lock_sources(connection: Connection, tenant_id: int, fleet: Fleet, ids: dict[str, int]) -> None:
    """All at once, in the order in which the cut log locks them: neither waits for the other for ever."""
    named = [source.source for source in fleet.sources]
    of_fleet = or_(Source.agent_id.in_(ids.values()), Source.name.in_(named))
    mine = select(Source.id).where(Source.tenant_id == tenant_id, of_fleet)
    connection.execute(mine.order_by(Source.id).with_for_update(key_share=True)).all()


def _agent(connection: Connection, tenant_id: int, name: str) -> list[Change]:
    if connection.execute(select(Agent.id).where(Agent.tenant_id == tenant_id, Agent.name == name)).first():
        return []
    connection.execute(insert(Agent).values(tenant_id=tenant_id, name=name, **agents.UNSEEN))
    enrol = f"it waits for its agent: on another host enrol it by a token of menura token create --agent {name}"
    return [Change(Action.CREATE, name, detail=enrol)]


def _removals(
    connection: Connection, tenant_id: int, fleet: Fleet, ids: dict[str, int], *, prune: bool
) -> list[Change]:
    named = {source.source for source in fleet.sources}
    rows = connection.execute(
        select(Source.id, Source.name, Agent.name.label("agent"))
        .join_from(SourceConfiguration, Source, Source.id == SourceConfiguration.source_id)
        .join(Agent, Agent.id == Source.agent_id)
        .where(Source.tenant_id == tenant_id, Agent.id.in_(ids.values()))
        .order_by(Source.name)
    ).all()
    changes = []
    for row in rows:
        if row.name in named:
            continue
        if not prune:
            changes.append(Change(Action.KEEP, row.agent, row.name, detail="not in the file; --prune removes it"))
            continue
        running = _syncing(connection, row.id)
        changes += [Change(Action.STOP, row.agent, row.name, name, _STOPS) for name in running]
        by = StoppedBy.FLEET_FILE
        source_configurations.remove(connection, tenant_id, row.name, stops_tables=True, by=by)
        detail = "its agent stops it; what the lake has stays"
        changes.append(Change(Action.REMOVE, row.agent, row.name, detail=detail))
    return changes


def _configured(source: FleetSource, done: source_configurations.Configured) -> Change:
    if done.change == "created":
        return Change(Action.CREATE, source.agent, source.source, detail="its agent starts it")
    if done.change == "moved":
        detail = "its former agent stops it, and this one goes on where that was"
        return Change(Action.MOVE, source.agent, source.source, detail=detail)
    former, now = json.loads(done.former), json.loads(source.text)
    keys = sorted(key for key in former.keys() | now.keys() if former.get(key) != now.get(key))
    detail = f"{', '.join(keys)}; its streams begin again where they are"
    if _FILTERS & set(keys):
        detail += "; what the filter lets through anew comes with later changes: resync its tables for earlier rows"
    return Change(Action.CHANGE, source.agent, source.source, detail=detail)


_LATER = "as soon as the source shows it"
_STOPS = "it keeps its position, and what the lake has stays"


def _tables(
    connection: Connection, source: FleetSource, tables: Sequence[FleetTable], source_id: int, *, prune: bool
) -> list[Change]:
    listed = {table.name: table.wanted for table in tables}
    known = _known(connection, source_id, list(listed))
    waiting = wanted_tables.wanted_of(connection, source_id)
    absent = {name: wanted for name, wanted in listed.items() if name not in known}
    anew = {name: wanted for name, wanted in absent.items() if waiting.get(name) != wanted}
    wanted_tables.want(connection, source_id, anew)
    begun = {
        name: (wanted, known[name].desired)
        for name, wanted in listed.items()
        if name in known and known[name].desired != Desired.SYNCING
    }
    outcomes = wanted_tables.begin(connection, source_id, begun)
    wanted_tables.forget(connection, source_id, [name for name in waiting if name in known])
    changes = [
        Change(Action.START, source.agent, source.source, name, f"{_LATER}; {_words(wanted.start)}")
        for name, wanted in anew.items()
    ]
    changes += [_begun(source, outcome, *begun[outcome.database, outcome.table], known) for outcome in outcomes]
    return sorted(changes, key=lambda change: change.table or ("", "")) + _unlisted(
        connection, source, source_id, listed, [name for name in waiting if name not in known], prune=prune
    )


def _begun(
    source: FleetSource, outcome: Outcome, wanted: Wanted, former: str | None, known: dict[TableName, AnyRow]
) -> Change:
    name = outcome.database, outcome.table
    if former is not None:
        return Change(Action.RESUME, source.agent, source.source, name, "where it stopped", refused=outcome.refused)
    change = Change(Action.START, source.agent, source.source, name, _words(wanted.start), refused=outcome.refused)
    if wanted.start is not StartKind.DUMP:
        return change
    return replace(change, rows=known[name].estimated_rows, bytes=known[name].size_bytes)


def _words(start: StartKind) -> str:
    return {
        StartKind.DUMP: "all its rows are dumped beside its stream",
        StartKind.OLDEST: "from the oldest change that the source's log has; older rows are missing",
        StartKind.NOW: "from now on; rows of before are missing",
    }[start]


def _unlisted(
    connection: Connection,
    source: FleetSource,
    source_id: int,
    listed: Iterable[TableName],
    waiting: list[TableName],
    *,
    prune: bool,
) -> list[Change]:
    over = set(_syncing(connection, source_id)).difference(listed)
    unwanted = set(waiting).difference(listed)
    if prune:
        stop_tables(connection, source_id, sorted(over), StoppedBy.FLEET_FILE)
        wanted_tables.forget(connection, source_id, sorted(unwanted))
    action, detail = (Action.STOP, _STOPS) if prune else (Action.KEEP, "not in the file; --prune stops it")
    return [Change(action, source.agent, source.source, name, detail) for name in sorted(over | unwanted)]


def _known(connection: Connection, source_id: int, names: list[TableName]) -> dict[TableName, AnyRow]:
    """Those of the tables that the cartography has."""
    statement = (
        select(
            SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.estimated_rows, SourceTable.size_bytes,
            Sync.desired,
        )
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(SourceTable.source_id == source_id, SourceTable.gone.is_(False))
    )  # fmt: skip
    return by_name(connection, statement, names)


def _syncing(connection: Connection, source_id: int) -> list[TableName]:
    rows = connection.execute(
        select(SourceTable.database, SourceTable.name)
        .join(Sync, Sync.table_id == SourceTable.id)
        .where(Sync.source_id == source_id, Sync.desired == Desired.SYNCING)
        .order_by(SourceTable.database, SourceTable.name)
    )
    return [(row.database, row.name) for row in rows]
