"""Reports of sinks beside commands and cuts: each holds its sources, in one order, before it writes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from menura.lake_report import LakeTable
from sqlalchemy import Connection, text

from controlplane_api import lakes, rereads
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.lake_facts import Sink, stop, table_of
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import wait_for

OF_CRM = LakeTable("acme", "crm", "shop", "orders")
WAITING = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs_setup)])
def kind(request: pytest.FixtureRequest) -> str:
    """SQLite has one writer."""
    return str(request.param)


def ask_retry(connection: Connection) -> None:
    lakes.ask_retry(connection, [table_of("orders")])


def lock_next_source(connection: Connection) -> None:
    rereads.lock_sources(connection, [OF_CRM])


@pytest.mark.parametrize("go_on", [ask_retry, lock_next_source])
def test_report_when_a_source_of_its_verdicts_is_held_then_holds_nothing_that_the_holder_wants(
    go_on: Callable[[Connection], None], database: Database, registry: SqlRegistry
) -> None:
    for name in ("shop", "crm"):  # names and ids are in other orders
        facts.record_shop(registry, "orders", key=SourceKey("acme", name))
    sink = Sink()
    sink.tell(database, 0, stopped=(stop("orders"),))
    verdicts = (verdict(1, "unknown", source="crm"), verdict(1, "unknown"))

    def is_waiting() -> bool:
        with database.read() as connection:
            return connection.execute(WAITING).first() is not None

    with ThreadPoolExecutor(1) as pool:
        with database.write() as connection:
            rereads.lock_sources(connection, [table_of("orders")])
            told = pool.submit(sink.tell, database, stopped=(stop("orders"),), verdicts=verdicts)
            wait_for("the report to wait for the source", is_waiting)
            go_on(connection)
        assert not told.result().resend
