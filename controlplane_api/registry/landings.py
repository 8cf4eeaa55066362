"""The landing that the database follows: one, whatever its address, since its log is the order of all cuts.

Comes in: a gateway's landing, by its address and by the word in its `landing.json`. Goes out: the database's name for
it, or which landing it follows in place of that. A database of a former version may follow several, each of a gateway
of its own; it goes on with those.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update

from controlplane_api.lookups import among
from controlplane_api.models import BlockedSource, CommittedPosition, Landing, Lease, Quarantine, Source, Tenant
from gateway.registry import Followed, LandingOther, Logged, SourceKey


def claim(connection: Connection, url: str, identity: str) -> str:
    """The database's name for the landing; '' as identity: whether one without may be it, and nothing is kept.

    Raises `LandingOther`. SQLite serialises this by its write lock.
    """
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("LOCK TABLE landing IN SHARE ROW EXCLUSIVE MODE")
    rows = connection.execute(select(Landing.url, Landing.identity).order_by(Landing.url)).all()
    for row in rows:
        if identity and row.identity == identity:
            name: str = row.url
            return name
    for row in rows:
        if row.url == url and row.identity is None:
            if identity:
                connection.execute(update(Landing).where(Landing.url == url).values(identity=identity))
            return url
    if rows:
        known = ", ".join(f"{row.url} (landing {row.identity or 'without identity'})" for row in rows)
        raise LandingOther(f"the database follows the log of {known}")
    if identity:
        connection.execute(insert(Landing).values(url=url, identity=identity, applied_entry=0))
    return url


def followed(connection: Connection, landing: str, keys: Sequence[SourceKey]) -> Followed:
    """In one statement for the entry and one for the sources: entries that come between only add to the latter."""
    applied = connection.execute(select(Landing.applied_entry).where(Landing.url == landing)).scalar() or 0
    sources: dict[SourceKey, Logged] = {}
    rows = connection.execute(
        select(
            Lease.tenant, Lease.source, Lease.logged_epoch, CommittedPosition.cut, CommittedPosition.last_gsn,
            Quarantine.source_id.label("quarantined"), BlockedSource.entry.label("blocked"),
        )
        .outerjoin(Tenant, Tenant.name == Lease.tenant)
        .outerjoin(Source, (Source.tenant_id == Tenant.id) & (Source.name == Lease.source))
        .outerjoin(CommittedPosition, CommittedPosition.source_id == Source.id)
        .outerjoin(Quarantine, Quarantine.source_id == Source.id)
        .outerjoin(BlockedSource, (BlockedSource.tenant == Lease.tenant) & (BlockedSource.source == Lease.source))
        .where(among((Lease.tenant, Lease.source), ((key.tenant, key.source) for key in keys)))
    )  # fmt: skip
    for row in rows:
        sources[SourceKey(row.tenant, row.source)] = Logged(
            row.logged_epoch,
            row.cut or 0,
            row.last_gsn or 0,
            is_held_back=row.quarantined is not None or row.blocked is not None,
        )
    return Followed(applied, sources)
