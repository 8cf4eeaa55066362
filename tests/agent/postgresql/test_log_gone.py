"""A slot, a publication or a server that is not what it was: a gap that is told, or a refusal; never a silent start."""

import shutil
import subprocess
from pathlib import Path

import pytest
from menura.change_batch import ChangeType
from menura.v1 import changes_pb2, config_pb2

from agent.sources.postgresql.positions import parse_lsn
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import (
    ORDERS,
    Kind,
    begin,
    committed_lsn,
    confirmed_lsn,
    create,
    current,
    events,
    kinds,
    looks_often,
    run,
    started,
    stopped,
    streaming,
    wait_event,
)
from tests.postgres import SourceServer, give_away, source_server, standby_of
from tests.stack import wait_for

ACTIVE = "SELECT active_pid FROM pg_replication_slots WHERE active"
DROP_SLOT = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_type = 'logical'"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)
    monkeypatch.setattr("agent.capture.plugin.TERMINAL_FIRST_SECONDS", 0.5)
    monkeypatch.setattr("agent.capture.plugin.TERMINAL_MOST_SECONDS", 1.0)


def read(gateway: GatewayDouble, postgres: SourceServer, folder: Path) -> None:
    """The table `orders` with a row, read to the end by an agent that is not running any more."""
    create(postgres)
    with streaming(folder, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, "INSERT INTO orders VALUES (1, 'read', '')")
        gateway.wait(lambda: current(gateway, ORDERS))
    gateway.wait_gone(SOURCE)
    wait_for("the slot to be free", lambda: not run(postgres, ACTIVE))


def gone_on(gateway: GatewayDouble, postgres: SourceServer, row: int) -> changes_pb2.TableEvent:
    """The gap, and a row of behind it."""
    gap = wait_event(gateway, ORDERS, Kind.LOG_GAP)
    run(postgres, f"INSERT INTO orders VALUES ({row}, 'behind', '')")
    gateway.wait(lambda: (row,) in current(gateway, ORDERS))
    assert gap.reread
    return gap


def error(gateway: GatewayDouble) -> config_pb2.EffectiveState:
    return gateway.source(SOURCE).effective[-1]


def test_slot_when_it_was_dropped_then_the_tables_go_on_behind_a_gap(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    read(gateway, postgres, tmp_path)
    run(postgres, DROP_SLOT, "INSERT INTO orders VALUES (2, 'missed', '')")
    with streaming(tmp_path, gateway, postgres):
        gap = gone_on(gateway, postgres, 3)
    assert "has no replication slot" in gap.unlogged_changes
    assert parse_lsn(gap.gap_from) < parse_lsn(gap.gap_to)
    assert (2,) not in current(gateway, ORDERS)


def test_slot_when_it_was_dropped_and_the_policy_is_to_stop_then_the_table_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    read(gateway, postgres, tmp_path)
    run(postgres, DROP_SLOT)
    with streaming(tmp_path, gateway, postgres, unlogged_changes="stop"):
        gateway.wait(lambda: stopped(gateway, ORDERS))
    (stop,) = stopped(gateway, ORDERS)
    assert stop.error.code == "SLOT_MISSING"
    assert not events(gateway, ORDERS, Kind.LOG_GAP)


def test_slot_when_somebody_advanced_it_then_the_tables_go_on_behind_a_gap(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    read(gateway, postgres, tmp_path)
    run(
        postgres,
        "INSERT INTO orders VALUES (2, 'missed', '')",
        "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_flush_lsn()) FROM pg_replication_slots",
    )
    with streaming(tmp_path, gateway, postgres):
        gap = gone_on(gateway, postgres, 3)
    assert "is at" in gap.unlogged_changes


def test_gateway_when_it_was_restored_from_an_older_copy_then_the_tables_go_on_behind_a_gap(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    read(gateway, postgres, tmp_path)
    record = gateway.source(SOURCE)
    kept = len(record.committed)
    with streaming(tmp_path, gateway, postgres):
        run(postgres, "INSERT INTO orders VALUES (2, 'forgotten', '')")
        gateway.wait(lambda: (2,) in current(gateway, ORDERS))
        wait_for("the slot to follow", lambda: confirmed_lsn(postgres) >= committed_lsn(gateway))
    gateway.wait_gone(SOURCE)
    with gateway.changed:
        del record.committed[kept:]
        record.batches = [batch for batch in record.batches if batch.cut <= record.committed[-1].cut]
    with streaming(tmp_path, gateway, postgres):
        gone_on(gateway, postgres, 3)


def test_slot_when_the_server_has_removed_its_wal_then_a_new_one_is_made_behind_a_gap(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with source_server(max_slot_wal_keep_size="1MB", max_wal_size="32MB", min_wal_size="32MB") as postgres:
        postgres.create_replication_user()
        read(gateway, postgres, tmp_path)

        def is_lost() -> object:
            postgres.run(
                "SELECT pg_switch_wal() FROM (SELECT pg_logical_emit_message(false, '', '')) AS one", "CHECKPOINT"
            )
            return run(postgres, "SELECT wal_status = 'lost' FROM pg_replication_slots")[0][0]

        wait_for("the slot to be lost", is_lost)
        with streaming(tmp_path, gateway, postgres):
            gap = gone_on(gateway, postgres, 3)
        assert "has lost changes" in gap.unlogged_changes
        assert run(postgres, "SELECT wal_status FROM pg_replication_slots") != [("lost",)]


def test_publication_when_it_was_dropped_then_the_rows_are_to_be_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A server of before 18 can't decode what was changed meanwhile; a later one leaves it out without an error."""
    read(gateway, postgres, tmp_path)
    run(postgres, "DROP PUBLICATION menura", "INSERT INTO orders VALUES (2, 'missed', '')")
    with streaming(tmp_path, gateway, postgres):
        told = wait_event(gateway, ORDERS, Kind.LOG_GAP, Kind.ROWS_UNLOGGED)
        assert "publi" in told.unlogged_changes
        assert told.reread
        run(postgres, "INSERT INTO orders VALUES (3, 'behind', '')")
        gateway.wait(lambda: (3,) in current(gateway, ORDERS))


def test_table_when_it_was_not_published_for_a_while_then_its_rows_are_to_be_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    read(gateway, postgres, tmp_path)
    run(
        postgres,
        "ALTER PUBLICATION menura DROP TABLE orders",
        "INSERT INTO orders VALUES (2, 'missed', '')",
        "ALTER PUBLICATION menura ADD TABLE orders",
    )
    with streaming(tmp_path, gateway, postgres):
        told = wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        assert "publication was altered" in told.unlogged_changes
        run(postgres, "ALTER PUBLICATION menura DROP TABLE orders")
        wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED, count=2)
        run(postgres, "INSERT INTO orders VALUES (3, 'published again', '')")
        gateway.wait(lambda: (3,) in current(gateway, ORDERS))


def test_publication_when_it_left_out_updates_for_a_while_then_its_tables_are_to_be_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """It looks as before. An alteration of its tables alone is none of it."""
    read(gateway, postgres, tmp_path)
    run(
        postgres,
        "ALTER PUBLICATION menura SET (publish = 'insert')",
        "UPDATE orders SET name = 'left out'",
        "ALTER PUBLICATION menura SET (publish = 'insert, update, delete, truncate')",
    )
    with streaming(tmp_path, gateway, postgres):
        told = wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        assert "publication was altered" in told.unlogged_changes
        assert told.reread
        create(postgres, "items", rows=1)
        gateway.sync(SOURCE, ("public", "items"), now=True)
        gateway.wait(lambda: "items" in [start.table.table for start in started(gateway)])
        run(postgres, "ALTER TABLE items ALTER note TYPE text USING note || '!'")
        wait_event(gateway, ("public", "items"), Kind.ROWS_UNLOGGED)  # a look that is later
        assert len(events(gateway, ORDERS)) == 1


def test_table_when_a_transaction_changed_it_before_it_was_published_then_it_begins_behind_that(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.sources.postgresql.beginning.SETTLE_SECONDS", 0.2)
    create(postgres, "items")
    with streaming(tmp_path, gateway, postgres), postgres.connect("shop", autocommit=False) as early:
        begin(gateway, ("public", "items"))
        create(postgres)
        early.execute("INSERT INTO orders VALUES (1, 'before it was published', '')")
        gateway.sync(SOURCE, ORDERS, now=True)
        published = "SELECT 1 FROM pg_publication_tables WHERE tablename = 'orders'"
        wait_for("the table to be published", lambda: run(postgres, published))
        run(postgres, "INSERT INTO orders VALUES (2, 'while it waits', '')", "INSERT INTO items VALUES (7, '', '')")
        gateway.wait(lambda: kinds(gateway, ("public", "items")))
        begun = [start for cut in gateway.source(SOURCE).committed for start in cut.started]
        assert [start.table.table for start in begun] == ["items"]
        early.commit()
        gateway.wait(
            lambda: "orders" in [s.table.table for cut in gateway.source(SOURCE).committed for s in cut.started]
        )
        run(postgres, "INSERT INTO orders VALUES (3, 'behind', '')")
        gateway.wait(lambda: current(gateway, ORDERS).keys() == {(3,)})


def test_server_when_it_is_another_one_then_nothing_is_made_there_before_it_is_accepted(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    read(gateway, postgres, tmp_path)
    with source_server(is_other=True) as other:
        other.create_replication_user()
        create(other, rows=3)
        with streaming(tmp_path, gateway, other):
            gateway.wait(lambda: gateway.source(SOURCE).effective and error(gateway).other_server.identity)
            assert error(gateway).error.code == "SOURCE_REBUILT"
            assert run(other, "SELECT slot_name FROM pg_replication_slots") == []
            assert run(other, "SELECT pubname FROM pg_publication") == []
            gateway.accept(SOURCE, error(gateway).other_server.identity)
            gone_on(gateway, other, 9)


def test_database_when_it_was_made_anew_then_nothing_is_read_before_it_is_accepted(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    read(gateway, postgres, tmp_path)
    postgres.renew_database()
    create(postgres, rows=3)
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: gateway.source(SOURCE).effective and error(gateway).other_server.identity)
        assert "another one under its name" in error(gateway).error.found
        gateway.accept(SOURCE, error(gateway).other_server.identity)
        gone_on(gateway, postgres, 9)


def snapshot_of(server: SourceServer) -> Path:
    """A copy of its data, taken while it is stopped for a moment."""
    server.stop()
    copy = server.folder / "snapshot"
    shutil.copytree(server.folder / "data", copy)
    server.start()
    return copy


def put_back(server: SourceServer, copy: Path, mode: str) -> None:
    """The server stops, and comes back with the data of the copy."""
    server.stop(mode)
    subprocess.run(["cp", "-a", "--remove-destination", f"{copy}/.", server.folder / "fresh"], check=True)
    (server.folder / "data").rename(server.folder / "gone")
    (server.folder / "fresh").rename(server.folder / "data")
    give_away(server.folder)
    server.start()


@pytest.mark.parametrize("release", ["", "14", "17", "18"])
@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize("follows", ["rows", "others"])
def test_server_when_it_was_put_back_and_has_passed_the_position_then_nothing_is_read_before_it_is_accepted(
    gateway: GatewayDouble, tmp_path: Path, release: str, mode: str, follows: str
) -> None:
    """Its log was written anew behind the copy, by the same statements; or the agent had read no row behind it."""
    with source_server(release) as server:
        server.create_replication_user()
        run(server, "CREATE TABLE unpublished (id int)")
        read(gateway, server, tmp_path)
        copy = snapshot_of(server)
        with streaming(tmp_path, gateway, server):
            before = committed_lsn(gateway)
            if follows == "rows":
                run(server, "INSERT INTO orders VALUES (2, 'first', '')")
                gateway.wait(lambda: (2,) in current(gateway, ORDERS))
            else:
                run(server, "INSERT INTO unpublished SELECT generate_series(1, 10000)")
                gateway.wait(lambda: committed_lsn(gateway) > before + 500_000)
        gateway.wait_gone(SOURCE)
        wait_for("the slot to be free", lambda: not run(server, ACTIVE))
        put_back(server, copy, mode)
        run(server, "INSERT INTO orders VALUES (2, 'other', '')")
        run(server, "INSERT INTO unpublished SELECT generate_series(1, 20000)")
        with streaming(tmp_path, gateway, server):
            gateway.wait(lambda: gateway.source(SOURCE).effective and error(gateway).other_server.identity)
            assert error(gateway).error.code == "SOURCE_DIVERGED"
            gateway.accept(SOURCE, error(gateway).other_server.identity)
            gone_on(gateway, server, 3)


@pytest.mark.parametrize("release", ["", "14", "17", "18"])
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_server_when_it_was_started_again_with_its_own_log_then_the_tables_go_on_without_a_gap(
    gateway: GatewayDouble, tmp_path: Path, release: str, mode: str
) -> None:
    """Also where the slot is behind what was committed, as after a crash."""
    with source_server(release) as server:
        server.create_replication_user()
        read(gateway, server, tmp_path)
        for row in (2, 3):
            server.stop(mode)
            server.start()
            run(server, "CREATE TABLE IF NOT EXISTS unpublished (id int)", "INSERT INTO unpublished VALUES (1)")
            run(server, f"INSERT INTO orders VALUES ({row}, 'goes on', '')")
            with streaming(tmp_path, gateway, server):
                gateway.wait(lambda row=row: (row,) in current(gateway, ORDERS))
                assert not error(gateway).other_server.identity
            gateway.wait_gone(SOURCE)
        assert not events(gateway, ORDERS, Kind.LOG_GAP)
        assert kinds(gateway, ORDERS) == [ChangeType.insert] * 3


@pytest.mark.parametrize("lacks", [False, True], ids=["whole", "lacking"])
def test_standby_when_it_takes_over_then_it_goes_on_unless_it_lacks_what_was_read(
    gateway: GatewayDouble, tmp_path: Path, lacks: bool
) -> None:
    with source_server() as primary, standby_of(primary, max_replication_slots="20") as standby:
        primary.create_replication_user()
        create(primary)
        with streaming(tmp_path, gateway, primary):
            begin(gateway, ORDERS)
            run(primary, "INSERT INTO orders VALUES (1, 'read', '')")
            gateway.wait(lambda: current(gateway, ORDERS))
            primary.wait_for_replay(standby)
            if lacks:
                standby.run("ALTER SYSTEM SET primary_conninfo = ''")
                standby.reload()
                wait_for("the standby to be alone", lambda: not standby.run("SELECT pid FROM pg_stat_wal_receiver"))
                run(primary, "INSERT INTO orders VALUES (2, 'never there', '')")
                gateway.wait(lambda: (2,) in current(gateway, ORDERS))
        gateway.wait_gone(SOURCE)
        primary.stop()
        standby.promote()
        with streaming(tmp_path, gateway, standby):
            if lacks:
                gateway.wait(lambda: gateway.source(SOURCE).effective and error(gateway).other_server.identity)
                assert error(gateway).error.code == "SOURCE_DIVERGED"
                assert "ends at" in error(gateway).error.found
                gateway.accept(SOURCE, error(gateway).other_server.identity)
            gap = gone_on(gateway, standby, 3)
            assert lacks or "has no replication slot" in gap.unlogged_changes
