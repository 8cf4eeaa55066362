"""Tables that are read again: their notes and dumps in the database, for tests."""

from typing import Any

from sqlalchemy import select

from controlplane_api.database import Database
from controlplane_api.models import SourceTable, Sync
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import DumpPlanned, KeyRange
from tests.controlplane_api import facts
from tests.controlplane_api.dump_facts import Log, begin, dump
from tests.controlplane_api.facts import KEY, T0, dump_event, started

WHOLE_KEY = DumpPlanned(("id",), (KeyRange(0, "", ""),), 10, 500, None, None, "")


def streaming(registry: SqlRegistry, database: Database) -> Log:
    """A log in which shop.orders streams."""
    facts.record_shop(registry)
    begin(database, "orders")
    made = Log(registry)
    made.cut(start=[started("orders", 1)])
    return made


def sync_of(database: Database, table: str = "orders") -> dict[str, Any]:
    with database.read() as connection:
        statement = select(Sync).join(SourceTable).where(SourceTable.name == table)
        return dict(connection.execute(statement).mappings().one())


def note(database: Database) -> dict[str, Any] | None:
    return sync_of(database)["unlogged"]


def ordered(registry: SqlRegistry) -> list[str]:
    return [order.dump for order in registry.dumps(KEY).dumps]


def dumped(log: Log, uuid: str, gsn: int) -> None:
    """The dump is planned, begins at `gsn` and is done with the number after."""
    log.registry.record_dump_plan(KEY, uuid, WHOLE_KEY, T0)
    log.cut(dump_event("orders", gsn, "DUMP_STARTED", uuid))
    log.cut(facts.chunk("orders", uuid, 1, "", "", last=True), dump_event("orders", gsn + 1, "DUMPED", uuid, gsn))


def running_dump(log: Log, database: Database) -> str:
    """A user's dump of the table, which has begun with number 20."""
    uuid = dump(database, "orders")
    log.registry.record_dump_plan(KEY, uuid, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 20, "DUMP_STARTED", uuid))
    return uuid


def done(log: Log, uuid: str, gsn: int) -> None:
    """The dump that `running_dump` has begun is done with this number."""
    log.cut(facts.chunk("orders", uuid, 1, "", "", last=True), dump_event("orders", gsn, "DUMPED", uuid, 20))
