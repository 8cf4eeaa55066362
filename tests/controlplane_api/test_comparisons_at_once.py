"""Steps of a comparison that two transactions would order at the same time, on a database that lets both write."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from controlplane_api import rereads
from controlplane_api.comparisons import VERDICT_SECONDS
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api.comparison_facts import (
    DIFFERS,
    GATEWAY,
    causes,
    gap,
    large_table,
    newest,
    registry,
    tell,
    verified,
)
from tests.controlplane_api.dump_facts import Log, row_of
from tests.controlplane_api.facts import KEY, T0, chunk, dump_event, unlogged
from tests.controlplane_api.lake_facts import table_of
from tests.controlplane_api.reread_facts import WHOLE_KEY, note
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import wait_for

WAITING = text("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")

__all__ = ["registry"]


@pytest.fixture(params=[pytest.param("postgresql", marks=pytest.mark.needs_setup)])
def kind(request: pytest.FixtureRequest) -> str:
    """SQLite has one writer."""
    return str(request.param)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: the gateway gives up waiting for a lock after a second, and has its turn later."""
    for module in ("sql_registry", "cut_log"):
        monkeypatch.setattr(f"controlplane_api.registry.{module}.bound_lock_waits", lambda *_: None)


@pytest.fixture
def log(registry: SqlRegistry, database: Database) -> Log:
    made = large_table(registry, database)
    registry.begin_gateway(GATEWAY, 3_600)
    registry.assign_source(KEY, GATEWAY, "run-1")
    return made


def both(database: Database, first: Callable[[], object], second: Callable[[], object]) -> None:
    """The second begins while the first one is in its transaction: both wait for the source's row, in this order."""

    def waiting(count: int) -> bool:
        with database.read() as connection:
            return len(connection.execute(WAITING).all()) == count

    with ThreadPoolExecutor(2) as pool:
        with database.write() as connection:
            rereads.lock_sources(connection, [table_of("orders")])
            told = pool.submit(first)
            wait_for("the first to wait for the source", lambda: waiting(1))
            also = pool.submit(second)
            wait_for("the second to wait too", lambda: waiting(2))
        told.result()
        also.result()


@pytest.mark.parametrize("verdict_first", [True, False])
def test_verdict_when_it_comes_with_the_gateways_clock_then_one_of_them_orders_what_follows(
    verdict_first: bool, log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    late_us = row_of(database, uuid)["ended_at_us"] + VERDICT_SECONDS * 1_000_000
    tells = lambda: tell(database, verdict(20, verification=uuid, **DIFFERS))  # noqa: E731
    clock = lambda: registry.order_verifications(GATEWAY, late_us)  # noqa: E731
    both(database, *((tells, clock) if verdict_first else (clock, tells)))
    assert causes(database) == ["verification", "repair" if verdict_first else "reread"]


@pytest.mark.parametrize("verdict_first", [True, False])
def test_equal_verdict_when_it_comes_with_another_cause_then_the_cause_is_never_lost(
    verdict_first: bool, log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = verified(log, database, 20)
    tells = lambda: tell(database, verdict(20, verification=uuid, since_gsn=20))  # noqa: E731
    cause = lambda: log.cut(unlogged("orders", 30))  # noqa: E731
    both(database, *((tells, cause) if verdict_first else (cause, tells)))
    assert newest(registry, database)["cause"] == "reread"
    assert [each["gsn"] for each in note(database)["causes"]] == ([30] if verdict_first else [11, 30])
    assert causes(database) == ["verification", "reread"]


def test_verdict_when_it_comes_with_the_end_of_its_verification_then_one_repair_is_ordered(
    log: Log, registry: SqlRegistry, database: Database
) -> None:
    log.cut(gap(11))
    uuid = newest(registry, database)["uuid"]
    registry.record_dump_plan(KEY, uuid, WHOLE_KEY, T0)
    log.cut(dump_event("orders", 20, "VERIFICATION_STARTED", uuid))
    log.cut(chunk("orders", uuid, 1, "", "", last=True, rows=0))
    ends = lambda: log.cut(dump_event("orders", 21, "VERIFIED", uuid))  # noqa: E731
    tells = lambda: tell(database, verdict(20, verification=uuid, **DIFFERS))  # noqa: E731
    both(database, ends, tells)
    assert causes(database) == ["verification", "repair"]
