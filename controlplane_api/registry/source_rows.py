"""Sources while an entry of the cut log is applied: their rows in the database, locked, changed in memory, stored."""

from dataclasses import dataclass

from menura.landing import LandedCut, LogEntry
from sqlalchemy import Connection, and_, bindparam, select, update

from controlplane_api.documents import Document, ahead_document, insert_into, position_document
from controlplane_api.lookups import among
from controlplane_api.models import CommittedPosition, Lease, Quarantine, Source, Tenant
from controlplane_api.registry import leases
from controlplane_api.tenants import ensure_tenants
from gateway.registry import SourceKey


@dataclass(slots=True)
class SourceRow:
    id: int
    generation: int
    epoch: int = 0
    cut: int = 0
    rows: int = 0
    bytes: int = 0
    transactions: int = 0
    last_commit_timestamp_us: int | None = None
    last: LandedCut | None = None
    stored_generation: int = 0
    is_quarantined: bool = False
    #: the highest that earlier entries of the log show, of cuts and fences
    logged_epoch: int = 0


def lock_sources(connection: Connection, keys: set[SourceKey], entry: LogEntry) -> dict[SourceKey, SourceRow]:
    """The entry's sources, locked in one order; those that the database does not know are created."""
    found = select_sources(connection, keys)
    missing = keys - found.keys()
    if missing:
        ids = ensure_tenants(connection, {key.tenant for key in missing}, entry.committed_at_us)
        flavors = {SourceKey(cut.tenant, cut.source): cut.flavor for cut in entry.cuts}
        connection.execute(
            insert_into(connection, Source).on_conflict_do_nothing(),
            [{"tenant_id": ids[key.tenant], "name": key.source, "flavor": flavors[key]} for key in missing],
        )
        found = select_sources(connection, keys)
    return found


def select_sources(connection: Connection, keys: set[SourceKey]) -> dict[SourceKey, SourceRow]:
    rows = connection.execute(
        select(
            Tenant.name.label("tenant"), Source.name, Source.id, Source.generation,
            CommittedPosition.epoch, CommittedPosition.cut, CommittedPosition.rows, CommittedPosition.bytes,
            CommittedPosition.transactions, CommittedPosition.last_commit_timestamp_us,
            Quarantine.source_id.label("quarantined"), Lease.logged_epoch,
        )
        .join_from(Source, Tenant)
        .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
        .outerjoin(Lease, and_(Lease.tenant == Tenant.name, Lease.source == Source.name))
        .outerjoin(Quarantine, Quarantine.source_id == Source.id)
        .where(among((Tenant.name, Source.name), ((key.tenant, key.source) for key in keys)))
        .order_by(Source.id)
        .with_for_update(of=Source, key_share=True)
    )  # fmt: skip
    return {
        SourceKey(row.tenant, row.name): SourceRow(
            id=row.id,
            generation=row.generation,
            stored_generation=row.generation,
            epoch=row.epoch or 0,
            cut=row.cut or 0,
            rows=row.rows or 0,
            bytes=row.bytes or 0,
            transactions=row.transactions or 0,
            last_commit_timestamp_us=row.last_commit_timestamp_us,
            is_quarantined=row.quarantined is not None,
            logged_epoch=row.logged_epoch or 0,
        )
        for row in rows
    }


def store_sources(connection: Connection, sources: dict[SourceKey, SourceRow], landing: str, entry: LogEntry) -> None:
    moved = {key: source for key, source in sources.items() if source.last is not None}
    if not moved:
        return
    raised = [source for source in moved.values() if source.generation != source.stored_generation]
    if raised:
        connection.execute(
            update(Source).where(Source.id == bindparam("source")).values(generation=bindparam("to")),
            [{"source": source.id, "to": source.generation} for source in raised],
        )
    leases.raise_epoch(connection, {key: source.epoch for key, source in moved.items()})
    statement = insert_into(connection, CommittedPosition)
    values = [_committed(source, source.last, landing, entry) for source in moved.values() if source.last is not None]
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[CommittedPosition.source_id],
            set_={name: statement.excluded[name] for name in values[0] if name != "source_id"},
        ),
        values,
    )


def _committed(source: SourceRow, last: LandedCut, landing: str, entry: LogEntry) -> Document:
    return {
        "source_id": source.id,
        "epoch": source.epoch,
        "cut": last.cut,
        "last_gsn": last.last_gsn,
        "last_transaction_id": last.last_transaction_id,
        "position": position_document(last.position),
        "ahead": ahead_document(last.ahead),
        "rows": source.rows,
        "bytes": source.bytes,
        "transactions": source.transactions,
        "last_commit_timestamp_us": source.last_commit_timestamp_us,
        "committed_at_us": entry.committed_at_us,
        "landing": landing,
        "entry": entry.entry,
    }
