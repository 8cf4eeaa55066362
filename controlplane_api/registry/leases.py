"""Leases of gateways, and which gateway owns a source, under a fencing epoch that never falls.

Comes in: what gateways ask, each in a transaction of its own. Goes out: a row for each gateway with the end of its
lease, a row for each source with its owner and epochs. Each change is one statement, so that gateways racing for a
source are put in order by the database. On PostgreSQL the time is the database's, whatever the gateways' clocks say; an
SQLite file has one machine. What the cut log shows of epochs comes with its entries (`raise_epoch`).
"""

import time

from menura.instants import now_us
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    cast,
    delete,
    func,
    or_,
    select,
    tuple_,
    update,
)

from controlplane_api.documents import insert_into
from controlplane_api.models import Gateway, Lease, gateway_lives
from gateway.registry import Assignment, GatewayReplaced, GatewayRun, SourceKey, SourceOwned

#: a gateway's row goes so long after its lease
KEPT_US = 24 * 3_600 * 1_000_000


def begin(connection: Connection, gateway: GatewayRun, ttl_seconds: float) -> None:
    """A process has started: whatever had its name has to end."""
    now = _now_us(connection)
    values = {"run": gateway.run, "expires_at_us": now + _us(ttl_seconds), "lease_us": _us(ttl_seconds)}
    connection.execute(
        insert_into(connection, Gateway)
        .values(name=gateway.name, **values)
        .on_conflict_do_update(index_elements=[Gateway.name], set_=values)
    )
    connection.execute(delete(Gateway).where(Gateway.expires_at_us < now - KEPT_US))


def renew(connection: Connection, gateway: GatewayRun, ttl_seconds: float) -> dict[SourceKey, int]:
    """What it owns, with epochs. Raises `GatewayReplaced`."""
    values = {"expires_at_us": _now_us(connection) + _us(ttl_seconds), "lease_us": _us(ttl_seconds)}
    renewed = connection.execute(update(Gateway).where(_is(gateway)).values(values))
    if renewed.rowcount == 0:
        raise GatewayReplaced(gateway.name)
    owned = select(Lease.tenant, Lease.source, Lease.epoch).where(is_owned_by(gateway))
    return {SourceKey(row.tenant, row.source): row.epoch for row in connection.execute(owned)}


def end(connection: Connection, gateway: GatewayRun) -> None:
    connection.execute(update(Lease).where(_owner_is(gateway)).values(released=True))
    connection.execute(delete(Gateway).where(_is(gateway)))


def assign(connection: Connection, key: SourceKey, gateway: GatewayRun, session: str) -> Assignment:
    """One epoch above every earlier one. Raises `SourceOwned`.

    The owner is another one from epoch `taken_epoch` on. As long as the log shows nothing of it, a fence is missing.
    """
    own = _owner_is(gateway)
    same_agent = and_(Lease.session == session, Lease.session != "")
    is_dead = tuple_(Lease.gateway, Lease.run).not_in(living(connection))
    free = or_(own, Lease.released, Lease.gateway == gateway.name, same_agent, is_dead)
    values = {"gateway": gateway.name, "run": gateway.run, "session": session, "released": False}
    row = connection.execute(
        insert_into(connection, Lease)
        .values(tenant=key.tenant, source=key.source, epoch=1, taken_epoch=0, logged_epoch=0, **values)
        .on_conflict_do_update(
            index_elements=[Lease.tenant, Lease.source],
            set_={
                **values,
                "epoch": Lease.epoch + 1,
                "taken_epoch": case((own, Lease.taken_epoch), else_=Lease.epoch + 1),
            },
            where=free,
        )
        .returning(Lease.epoch, Lease.taken_epoch, Lease.logged_epoch)
    ).first()
    if row is None:
        raise _owned(connection, key)
    return Assignment(row.epoch, needs_fence=row.logged_epoch < row.taken_epoch)


def release(connection: Connection, key: SourceKey, gateway: GatewayRun, epoch: int) -> None:
    """Free for others at once; one that is no longer ours is left alone."""
    this = and_(Lease.tenant == key.tenant, Lease.source == key.source, _owner_is(gateway), Lease.epoch == epoch)
    connection.execute(update(Lease).where(this).values(released=True))


def raise_epoch(connection: Connection, epochs: dict[SourceKey, int]) -> None:
    """The cut log shows these: no later owner gets an epoch at or below them."""
    if not epochs:
        return
    statement = insert_into(connection, Lease)
    shown = statement.excluded.logged_epoch
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[Lease.tenant, Lease.source],
            set_={"epoch": case((Lease.epoch < shown, shown), else_=Lease.epoch), "logged_epoch": shown},
            where=Lease.logged_epoch < shown,
        ),
        [
            {
                "tenant": key.tenant,
                "source": key.source,
                "gateway": "",
                "run": "",
                "session": "",
                "released": True,
                "epoch": epoch,
                "taken_epoch": 0,
                "logged_epoch": epoch,
            }
            for key, epoch in sorted(epochs.items(), key=lambda each: str(each[0]))
        ],
    )


def is_owned_by(gateway: GatewayRun) -> ColumnElement[bool]:
    """Whether a row of `Lease` is of a source that this process owns."""
    return and_(_owner_is(gateway), Lease.released.is_(False))


def living(connection: Connection) -> Select[str, str]:
    """Name and run of the gateways that live.

    In ON CONFLICT it is compared with IN: where it named the row that is there, SQLAlchemy would read all rows instead.
    """
    return select(Gateway.name, Gateway.run).where(gateway_lives(_now_us(connection)))


def _is(gateway: GatewayRun) -> ColumnElement[bool]:
    return and_(Gateway.name == gateway.name, Gateway.run == gateway.run)


def _owner_is(gateway: GatewayRun) -> ColumnElement[bool]:
    return and_(Lease.gateway == gateway.name, Lease.run == gateway.run)


def _now_us(connection: Connection) -> ColumnElement[int]:
    if connection.dialect.name == "postgresql":
        return cast(func.extract("epoch", func.clock_timestamp()) * 1_000_000, BigInteger)
    return cast(now_us(), BigInteger)


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _owned(connection: Connection, key: SourceKey) -> SourceOwned:
    owner = connection.execute(
        select(Lease.gateway, Lease.epoch, Gateway.expires_at_us)
        .join_from(Lease, Gateway, and_(Gateway.name == Lease.gateway, Gateway.run == Lease.run))
        .where(Lease.tenant == key.tenant, Lease.source == key.source)
    ).first()
    if owner is None:
        return SourceOwned(f"source {key} has just changed its owner")
    until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(owner.expires_at_us / 1_000_000))
    return SourceOwned(f"gateway {owner.gateway} owns source {key}, epoch {owner.epoch}, and lives until {until}")
