"""At which gateway each agent is: one row an agent, taken by compare-and-set under an epoch that never falls.

Comes in: what gateways ask, each in a transaction of its own. Goes out: the row of an agent. Taking it is one
statement, so that gateways that race for an agent are put in order by the database. A gateway's agents are free with
its lease (`leases`), without a write.
"""

from sqlalchemy import ColumnElement, Connection, and_, or_, select, tuple_, update

from controlplane_api.documents import insert_into
from controlplane_api.models import AgentPresence, Gateway
from controlplane_api.registry import leases
from gateway.registry import AgentName, GatewayRun, PresentElsewhere


def take(connection: Connection, name: AgentName, gateway: GatewayRun, session: str) -> int | PresentElsewhere:
    """Its epoch, or who has it."""
    is_dead = tuple_(AgentPresence.gateway, AgentPresence.run).not_in(leases.living(connection))
    free = or_(AgentPresence.released, _is_at(gateway), AgentPresence.session == session, is_dead)
    values = {"gateway": gateway.name, "run": gateway.run, "session": session, "released": False}
    epoch: int | None = connection.execute(
        insert_into(connection, AgentPresence)
        .values(tenant=name[0], agent=name[1], epoch=1, **values)
        .on_conflict_do_update(
            index_elements=[AgentPresence.tenant, AgentPresence.agent],
            set_={**values, "epoch": AgentPresence.epoch + 1},
            where=free,
        )
        .returning(AgentPresence.epoch)
    ).scalar()
    return _holder(connection, name) if epoch is None else epoch


def release(connection: Connection, name: AgentName, gateway: GatewayRun, epoch: int) -> bool:
    """False where another one has it, or a newer session here."""
    this = and_(_is(name), _is_at(gateway), AgentPresence.epoch == epoch, AgentPresence.released.is_(False))
    return connection.execute(update(AgentPresence).where(this).values(released=True)).rowcount == 1


def of_gateway(connection: Connection, gateway: GatewayRun) -> dict[AgentName, int]:
    here = select(AgentPresence.tenant, AgentPresence.agent, AgentPresence.epoch).where(
        _is_at(gateway), AgentPresence.released.is_(False)
    )
    return {(row.tenant, row.agent): row.epoch for row in connection.execute(here)}


def _is(name: AgentName) -> ColumnElement[bool]:
    return and_(AgentPresence.tenant == name[0], AgentPresence.agent == name[1])


def _is_at(gateway: GatewayRun) -> ColumnElement[bool]:
    return and_(AgentPresence.gateway == gateway.name, AgentPresence.run == gateway.run)


def _holder(connection: Connection, name: AgentName) -> PresentElsewhere:
    at = and_(Gateway.name == AgentPresence.gateway, Gateway.run == AgentPresence.run)
    row = connection.execute(
        select(AgentPresence.gateway, AgentPresence.run, Gateway.expires_at_us)
        .join_from(AgentPresence, Gateway, at)
        .where(_is(name))
    ).first()
    # It may have been freed between the two statements; the next attempt takes it.
    return PresentElsewhere("", "", 0) if row is None else PresentElsewhere(*row)
