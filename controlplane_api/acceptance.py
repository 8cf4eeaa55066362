"""The command to follow another server: one whose log does not go on where the source's was read.

Comes in: the identity of the server that the operator was shown. Goes out: one transaction that notes the acceptance
and lets the source's generation grow, so that the agent hears of it. The agent goes on with that server alone, and only
from the position that was shown. A kill leaves all of it or nothing; repeated, it changes nothing more.
"""

from typing import Any

from sqlalchemy import Connection, func, select, update

from controlplane_api.errors import OtherServerChanged, OtherServerMissing
from controlplane_api.models import Source, Sync
from controlplane_api.states import Desired
from controlplane_api.syncs import lock_source


def offered(connection: Connection, source_id: int, source: str) -> dict[str, Any]:
    """`gateway.registry.OtherServerSeen` as stored; raises `OtherServerMissing`."""
    found = connection.execute(select(Source.other_server).where(Source.id == source_id)).scalar_one()
    if found is None:
        raise OtherServerMissing(
            "looking for another server of a source",
            "the source waits for no acceptance",
            data="Nothing was changed.",
            remedy="See what it does: menura sources. An agent that was just started says within half a minute which"
            " server it has found.",
            source=source,
        )
    return dict(found)


def tables_to_read_again(connection: Connection, source_id: int) -> int:
    """How many tables go on behind the gap, and are dumped."""
    return connection.execute(
        select(func.count())
        .select_from(Sync)
        .where(
            Sync.source_id == source_id, Sync.desired == Desired.SYNCING, Sync.failed.is_(False), Sync.start.is_(None)
        )
    ).scalar_one()


def accept(connection: Connection, source_id: int, source: str, identity: str) -> bool:
    """Whether it was not accepted before; raises `OtherServerMissing`, `OtherServerChanged`."""
    generation = lock_source(connection, source_id) + 1
    if offered(connection, source_id, source)["identity"] != identity:
        raise OtherServerChanged(
            "accepting another server of a source",
            "the server that is there now is not the one that was shown, or the lake has gone on since",
            data="Nothing was changed.",
            remedy=f"Look again: menura sources accept {source}",
            source=source,
        )
    accepted = connection.execute(select(Source.accepted_server).where(Source.id == source_id)).scalar_one()
    if accepted == identity:
        return False
    connection.execute(
        update(Source).where(Source.id == source_id).values(accepted_server=identity, generation=generation)
    )
    return True
