"""Standbys that become primaries: under an agent that reads them, or in place of the server that it has read."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.change_batch import ChangeType

from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import (
    ORDERS,
    begin,
    create,
    current,
    events,
    kinds,
    looks_often,
    run,
    started,
    streaming,
)
from tests.postgres import NEWEST, SourceServer, source_server, standby_of
from tests.stack import wait_for


@contextmanager
def pair(**settings: str) -> Iterator[tuple[SourceServer, SourceServer]]:
    """A primary with the published table `orders`, and a standby that has it."""
    with source_server(NEWEST) as primary:
        primary.create_replication_user()
        create(primary)
        run(primary, "CREATE PUBLICATION menura FOR TABLE orders", "ALTER PUBLICATION menura OWNER TO menura")
        with standby_of(primary, slot="standby", **settings) as standby:
            primary.wait_for_replay(standby)
            yield primary, standby


def insert(server: SourceServer, gateway: GatewayDouble, number: int) -> None:
    run(server, f"INSERT INTO orders VALUES ({number}, '', '')")
    gateway.wait(lambda: (number,) in current(gateway, ORDERS))


def timeline(gateway: GatewayDouble) -> int:
    """Of the last committed position."""
    return int(json.loads(gateway.source(SOURCE).committed[-1].position.token)["timeline"])


def check_whole(gateway: GatewayDouble, rows: int) -> None:
    assert kinds(gateway, ORDERS) == [ChangeType.insert] * rows
    assert not events(gateway, ORDERS)
    assert not any(state.other_server.identity for state in gateway.source(SOURCE).effective)


def begin_at_standby(gateway: GatewayDouble, primary: SourceServer) -> None:
    """A slot there is made once the primary has told which transactions run."""
    gateway.sync(SOURCE, ORDERS, now=True)
    wait_for("the start", lambda: primary.run("SELECT pg_log_standby_snapshot()") and started(gateway))


@pytest.mark.parametrize("is_seen", [True, False], ids=["seen", "unseen"])
def test_standby_when_it_is_promoted_under_the_agent_then_its_tables_go_on_without_a_gap(
    gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """The stream does not end. Where the agent ends before it has seen the new timeline, the log itself is asked."""
    looks_often(monkeypatch, 0.3 if is_seen else 3600.0)
    with pair() as (primary, standby):
        with streaming(tmp_path, gateway, standby):
            begin_at_standby(gateway, primary)
            insert(primary, gateway, 1)
            standby.promote()
            insert(standby, gateway, 2)
            if is_seen:
                gateway.wait(lambda: timeline(gateway) == 2)
            else:
                assert timeline(gateway) == 1
        gateway.wait_gone(SOURCE)
        run(standby, "INSERT INTO orders VALUES (3, '', '')")
        with streaming(tmp_path, gateway, standby):
            insert(standby, gateway, 4)
            assert timeline(gateway) == 2
        check_whole(gateway, 4)


def test_slot_when_a_standby_has_a_copy_of_it_then_the_tables_go_on_there_without_a_gap(
    gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the agent comes back once more: its positions there are of the new timeline."""
    looks_often(monkeypatch)
    follows = {"sync_replication_slots": "on"}
    with pair(**follows) as (primary, standby):
        primary.run("ALTER SYSTEM SET synchronized_standby_slots = 'standby'", "SELECT pg_reload_conf()")
        with streaming(tmp_path, gateway, primary):
            begin(gateway, ORDERS)
            insert(primary, gateway, 1)
            kept = "SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots"
            wait_for(
                "the standby to have the slot",
                lambda: primary.run("SELECT pg_log_standby_snapshot()") and standby.run(kept) == [(True,)],
            )
            insert(primary, gateway, 2)
        gateway.wait_gone(SOURCE)
        run(primary, "INSERT INTO orders VALUES (3, '', '')")
        primary.wait_for_replay(standby)
        primary.stop("immediate")
        standby.promote()
        for number in (4, 5):
            with streaming(tmp_path, gateway, standby):
                insert(standby, gateway, number)
                assert timeline(gateway) == 2
            gateway.wait_gone(SOURCE)
        check_whole(gateway, 5)
