"""Leases: a source belongs to one gateway at a time, under a fencing epoch that never falls.

Each step is one statement, so that gateways racing for a source are put in order by the database. On
PostgreSQL the time is the database's, whatever the gateways' clocks say; an SQLite file has one machine.
"""

import time

from menura.instants import now_us
from sqlalchemy import BigInteger, ColumnElement, Connection, and_, case, cast, func, or_, select, update

from controlplane_api.documents import insert_into
from controlplane_api.models import Lease
from gateway.registry import LeaseHeld, SourceKey

RELEASED = ""


def acquire(connection: Connection, key: SourceKey, gateway: str, ttl_seconds: float) -> int:
    """The epoch: the holder's own, or one above every earlier holder's. Raises `LeaseHeld`."""
    now = _now_us(connection)
    expires = now + _us(ttl_seconds)
    held = and_(Lease.gateway == gateway, Lease.gateway != RELEASED)
    statement = (
        insert_into(connection, Lease)
        .values(tenant=key.tenant, source=key.source, gateway=gateway, epoch=1, expires_at_us=expires)
        .on_conflict_do_update(
            index_elements=[Lease.tenant, Lease.source],
            set_={
                "gateway": gateway,
                "epoch": case((held, Lease.epoch), else_=Lease.epoch + 1),
                "expires_at_us": expires,
            },
            where=or_(held, Lease.expires_at_us <= now),
        )
        .returning(Lease.epoch)
    )
    epoch = connection.execute(statement).scalar()
    if epoch is None:
        raise _held(connection, key)
    return int(epoch)


def renew(connection: Connection, key: SourceKey, gateway: str, epoch: int, ttl_seconds: float) -> None:
    """Raises `LeaseHeld` when another holder came between; one that merely expired is renewed."""
    renewed = connection.execute(
        update(Lease).where(_owned(key, gateway, epoch)).values(expires_at_us=_now_us(connection) + _us(ttl_seconds))
    )
    if renewed.rowcount == 0:
        raise _held(connection, key)


def release(connection: Connection, key: SourceKey, gateway: str, epoch: int) -> None:
    """Free for others at once; a lease that is no longer ours is left alone."""
    connection.execute(update(Lease).where(_owned(key, gateway, epoch)).values(gateway=RELEASED, expires_at_us=0))


def raise_epoch(connection: Connection, epochs: dict[SourceKey, int]) -> None:
    """No later holder gets an epoch at or below these, which the cut log shows."""
    statement = insert_into(connection, Lease)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[Lease.tenant, Lease.source],
            set_={"epoch": statement.excluded.epoch},
            where=Lease.epoch < statement.excluded.epoch,
        ),
        [
            {"tenant": key.tenant, "source": key.source, "gateway": RELEASED, "epoch": epoch, "expires_at_us": 0}
            for key, epoch in epochs.items()
        ],
    )


def _owned(key: SourceKey, gateway: str, epoch: int) -> ColumnElement[bool]:
    return and_(Lease.tenant == key.tenant, Lease.source == key.source, Lease.gateway == gateway, Lease.epoch == epoch)


def _now_us(connection: Connection) -> ColumnElement[int]:
    if connection.dialect.name == "postgresql":
        return cast(func.extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)
    return cast(now_us(), BigInteger)


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _held(connection: Connection, key: SourceKey) -> LeaseHeld:
    holder = connection.execute(
        select(Lease.gateway, Lease.epoch, Lease.expires_at_us).where(
            Lease.tenant == key.tenant, Lease.source == key.source
        )
    ).first()
    if holder is None or holder.gateway == RELEASED:
        return LeaseHeld(f"the lease on source {key} is not ours any more")
    seconds = holder.expires_at_us / 1_000_000
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    return LeaseHeld(f"gateway {holder.gateway} holds the lease on source {key}, epoch {holder.epoch}, until {until}")
