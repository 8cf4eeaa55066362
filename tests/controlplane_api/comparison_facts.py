"""Gaps of the log whose tables are compared in place of a dump: steps in the control plane's database, for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from menura.landed_digest import LandedFocus, LandedRange
from menura.landing import KeyNumbers, LandedEvent, LandedRepair
from sqlalchemy import event, select, update

from controlplane_api.comparisons import LEAST_ROWS
from controlplane_api.database import Database
from controlplane_api.models import Dump, SourceTable
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import DumpPlanned, GatewayRun, KeyRange
from tests.controlplane_api.dump_facts import Log, row_of
from tests.controlplane_api.facts import KEY, T0, chunk, dump_event, unlogged
from tests.controlplane_api.lake_facts import Sink, lake_source
from tests.controlplane_api.reread_facts import WHOLE_KEY, ordered, streaming
from tests.controlplane_api.verdict_facts import verdict

UNPROVEN = LandedFocus(
    (LandedRange("", "", (300,), (500,), 900),), 0, (), ("integer",), T0, "of-this-lake", since_gsn=20, tells_anew=True
)  # fmt: skip
GATEWAY = GatewayRun("gw-1", "run")
PLANNED = DumpPlanned(("id",), (KeyRange(0, '["300"]', '["500"]'),), 0, 0, None, None, "")


@pytest.fixture
def registry(database: Database) -> SqlRegistry:
    return SqlRegistry(database, compares_behind_gaps=True)


@pytest.fixture
def log(registry: SqlRegistry, database: Database) -> Log:
    return large_table(registry, database)


def large_table(registry: SqlRegistry, database: Database) -> Log:
    """A log in which shop.orders streams, which is large, and which one lake has wholly."""
    made = streaming(registry, database)
    put(database, SourceTable, estimated_rows=LEAST_ROWS)
    tell(database)
    return made


def tell(database: Database, *verdicts: Any, lake: str = "main", at_us: int = T0, **more: Any) -> None:
    sources = [lake_source(1)]
    Sink(lake=lake, run=uuid4().hex).tell(database, base=0, at_us=at_us, sources=sources, verdicts=verdicts, **more)


def gap(gsn: int, table: str = "orders") -> LandedEvent:
    return replace(unlogged(table, gsn, "purged"), kind="LOG_GAP", gap_from="1", gap_to="9")


@contextmanager
def counted(database: Database) -> Iterator[list[str]]:
    """Statements that go to the database meanwhile."""
    seen: list[str] = []
    note = lambda *called: seen.append(called[2])  # noqa: E731
    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def newest(registry: SqlRegistry, database: Database) -> dict[str, Any]:
    """The one that runs, as the database has it."""
    (uuid,) = ordered(registry)
    return row_of(database, uuid)


def causes(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.execute(select(Dump.cause).order_by(Dump.id)).scalars())


def verified(log: Log, database: Database, gsn: int, *, tells: Any = None, at_us: int = T0) -> str:
    """What runs is read, from this number to its end; `tells`: changes to its verdict, if there is one."""
    row = newest(log.registry, database)
    uuid = row["uuid"]
    log.registry.record_dump_plan(KEY, uuid, PLANNED if row["focus"] else WHOLE_KEY, T0)
    log.cut(dump_event("orders", gsn, "VERIFICATION_STARTED", uuid))
    bounds = ('["300"]', '["500"]') if row["focus"] else ("", "")
    log.cut(chunk("orders", uuid, 1, *bounds, last=True, rows=0))
    log.cut(dump_event("orders", gsn + 1, "VERIFIED", uuid))
    if tells is not None:
        said = {"verification": uuid, "since_gsn": gsn if not tells else 0, **tells}
        tell(database, verdict(gsn, **said), at_us=at_us)
    return str(uuid)


def repaired(log: Log, database: Database, gsn: int) -> str:
    row = newest(log.registry, database)
    uuid = row["uuid"]
    assert row["cause"] == "repair"
    log.registry.record_dump_plan(KEY, uuid, PLANNED, T0)
    log.cut(dump_event("orders", gsn, "REPAIR_STARTED", uuid))
    log.cut(chunk("orders", uuid, 1, '["300"]', '["500"]', last=True))
    gone = LandedRepair(gsn, ("id",), (KeyNumbers((300,), (500,)),))
    log.cut(replace(dump_event("orders", gsn + 1, "REPAIRED", uuid), repaired=gone))
    return str(uuid)


DIFFERS = {"kind": "unknown", "unproven": UNPROVEN, "source_rows": 60_000}


def put(database: Database, model: Any, **values: Any) -> None:
    with database.write() as connection:
        connection.execute(update(model).values(values))
