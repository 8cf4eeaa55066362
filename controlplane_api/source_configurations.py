"""Commands: say how a source is configured, and that it is not any more.

Comes in: a tenant's source, its agent, and the configuration as JSON has it. Goes out: one transaction that writes the
source's row and that of its configuration. Gateways compare digests of what is written with what they have sent, twice
a second, so a kill, or a database that was restored from an older copy, leaves nothing to be repaired.
"""

from dataclasses import dataclass
from typing import Literal

from menura.instants import now_us
from menura.source_configuration import MAX_AGENT_BYTES, MAX_SOURCES, sha256_of
from sqlalchemy import Connection, delete, func, insert, select, update

from controlplane_api.configuration_document import Document, DocumentRefused, text_of
from controlplane_api.documents import insert_into
from controlplane_api.errors import (
    ConfigurationRefused,
    ConfigurationTooLarge,
    SourceConfigured,
    SourceNotConfigured,
    SourceSyncing,
)
from controlplane_api.models import AnyRow, Source, SourceConfiguration, Sync, SyncRule, WantedTable
from controlplane_api.states import Desired, StoppedBy
from controlplane_api.syncs import lock_source, stop_tables
from controlplane_api.tenants import lock_tenant

#: what has to be there before: no configuration, one, or either
Before = Literal["none", "some", "any"]


@dataclass(frozen=True, slots=True)
class Configured:
    source_id: int
    #: "": it was so before
    change: Literal["", "created", "changed", "moved"]
    generation: int
    #: the former one; empty where there was none
    former: str = ""


def checked_text(source: str, document: Document) -> str:
    """The text that travels; raises `ConfigurationRefused`, which names the setting and not its value."""
    try:
        return text_of(document)
    except DocumentRefused as refused:
        path = ".".join(map(str, refused.path)) or "the configuration"
        raise ConfigurationRefused(
            "configuring a source",
            f"{path} {refused.found}",
            data="Nothing was changed.",
            remedy=refused.remedy,
            source=source,
        ) from None  # the error's frames have the value


def configure(
    connection: Connection, tenant_id: int, source: str, agent_id: int, text: str, before: Before = "any"
) -> Configured:
    """The source is the agent's from now on, configured so; `text` is of `checked_text`."""
    lock_tenant(connection, tenant_id)
    row = _locked(connection, tenant_id, source)
    _check_before(row, source, before)
    sha256, now = sha256_of(text), now_us()
    if row is not None and (row.sha256, row.agent_id) == (sha256, agent_id):
        return Configured(row.id, "", row.generation)
    if row is None:
        made = insert(Source).values(tenant_id=tenant_id, agent_id=agent_id, name=source).returning(Source.id)
        source_id: int = connection.execute(made).scalar_one()
    else:
        source_id = row.id
        moves = update(Source).where(Source.id == source_id, Source.agent_id.is_distinct_from(agent_id))
        connection.execute(moves.values(agent_id=agent_id, told_generation=None))
    moved = row is not None and row.agent_id != agent_id
    generation = 1 + (row.generation or 0 if row is not None else 0)
    values = {"generation": generation, "sha256": sha256, "document": text, "changed_at_us": now}
    if moved:
        values |= {"effective_generation": 0, "effective_sha256": "", "problem": None, "told_at_us": None}
    connection.execute(
        insert_into(connection, SourceConfiguration)
        .values(source_id=source_id, **values)
        .on_conflict_do_update(index_elements=[SourceConfiguration.source_id], set_=values)
    )
    check_size(connection, agent_id, source)
    is_new = row is None or row.sha256 is None
    change: Literal["created", "changed", "moved"] = "created" if is_new else "moved" if moved else "changed"
    return Configured(source_id, change, generation, "" if row is None else row.document or "")


def remove(
    connection: Connection,
    tenant_id: int,
    source: str,
    *,
    stops_tables: bool,
    by: StoppedBy = StoppedBy.CONFIGURATION,
) -> int:
    """The source is configured no more, and its agent stops it; returns its id. Its tables keep where they stopped."""
    row = _locked(connection, tenant_id, source)
    _check_before(row, source, "some")
    assert row is not None
    syncing = (Sync.source_id == row.id, Sync.desired == Desired.SYNCING)
    running = connection.execute(select(func.count()).select_from(Sync).where(*syncing)).scalar_one()
    if running and not stops_tables:
        raise SourceSyncing(
            "removing a source",
            f"{running} of its tables are synced",
            data="Nothing was changed.",
            remedy=f"Stop them: menura sync stop {source} --all; or remove the source with --stop-tables.",
            source=source,
        )
    stop_tables(connection, row.id, None, by)
    for of_source in (WantedTable, SyncRule, SourceConfiguration):
        connection.execute(delete(of_source).where(of_source.source_id == row.id))
    return int(row.id)


def _locked(connection: Connection, tenant_id: int, source: str) -> AnyRow | None:
    """The source with its configuration, if it has one; whoever changes either waits."""
    this = (Source.tenant_id == tenant_id, Source.name == source)
    source_id = connection.execute(select(Source.id).where(*this)).scalar()
    if source_id is None:
        return None
    lock_source(connection, source_id)
    return connection.execute(
        select(
            Source.id, Source.agent_id,
            SourceConfiguration.generation, SourceConfiguration.sha256, SourceConfiguration.document,
        )
        .outerjoin(SourceConfiguration, SourceConfiguration.source_id == Source.id)
        .where(Source.id == source_id)
    ).one()  # fmt: skip


def _check_before(row: AnyRow | None, source: str, before: Before) -> None:
    is_configured = row is not None and row.sha256 is not None
    if before == "none" and is_configured:
        raise SourceConfigured(
            "adding a source",
            "it is configured already",
            data="Nothing was changed.",
            remedy=f"To change it: menura sources change {source} -f FILE.",
            source=source,
        )
    if before == "some" and not is_configured:
        raise not_configured(source)


def not_configured(source: str) -> SourceNotConfigured:
    return SourceNotConfigured(
        "looking for a source's configuration",
        "the control plane has none of it: if the source is there, its agent's own file configures it",
        data="Nothing was changed.",
        remedy=f"To configure it here: menura sources add {source} --agent NAME -f FILE.",
        source=source,
    )


def check_size(connection: Connection, agent_id: int, source: str) -> None:
    """Of all configurations of an agent, which it gets in one message. Raises `ConfigurationTooLarge`."""
    count, signs = connection.execute(
        select(func.count(), func.sum(func.length(SourceConfiguration.document)))
        .select_from(SourceConfiguration)
        .join(Source, Source.id == SourceConfiguration.source_id)
        .where(Source.agent_id == agent_id)
    ).one()
    if count > MAX_SOURCES or (signs or 0) > MAX_AGENT_BYTES // 4:  # a sign has up to four bytes
        raise ConfigurationTooLarge(
            "configuring a source",
            f"its agent would have {count} sources with {signs} signs of configuration; at most {MAX_SOURCES} and"
            f" {MAX_AGENT_BYTES // 4}",
            data="Nothing was changed.",
            remedy="Give some sources to another agent, or let filters list fewer tables.",
            source=source,
        )
