"""Dumps that something comes between: commits that are held, standbys, restarts, orders, ALTERs, lacking grants."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.v1 import snapshot_pb2

from tests.agent.dumping import dumped, now, poll, wait_dumped, wait_status
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.dumping import Writers, create, gateway, selected, wait_equal
from tests.agent.postgresql.logged import wait_held
from tests.agent.postgresql.sources import SOURCE, entries, login
from tests.agent.postgresql.streaming import run, streaming
from tests.postgres import SourceServer, source_server, standby_of
from tests.remedies import commands

__all__ = ["gateway"]

Status = snapshot_pb2.DumpStatus


def test_dump_when_commits_are_held_at_random_then_no_row_is_lost_or_comes_back(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A commit that waits for a standby is in the log, and no SELECT shows it."""
    table = create(postgres, rows=1500)
    gateway.sync(SOURCE, table, now=True)
    with streaming(tmp_path, gateway, postgres):
        with Writers(postgres, "orders", 5, most_id=6000):
            for number in range(3):
                dump = gateway.dump(SOURCE, f"dump-{number}", table)
                while not dump.is_over:
                    postgres.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
                    try:
                        wait_held(postgres)  # the other writer may wait for a row of the one that is held
                        before = len(gateway.source(SOURCE).ledger.chunks)
                        _wait_a_moment(lambda of=before: len(gateway.source(SOURCE).ledger.chunks) > of)
                    finally:
                        postgres.run("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
                    _wait_a_moment(lambda of=before: len(gateway.source(SOURCE).ledger.chunks) > of + 1)
                wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))


def _wait_a_moment(condition: object) -> None:
    """Whether it comes or not makes no difference to what is to be shown."""
    deadline = time.monotonic() + 1
    while not condition() and time.monotonic() < deadline:  # type: ignore[operator]
        time.sleep(0.01)


def test_dump_from_a_standby_when_others_write_then_it_is_the_table(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=2000)
    with standby_of(postgres) as standby:
        gateway.sync(SOURCE, table, dump="first")
        parts = {"client": entries(login(standby)), "replication": entries(login(postgres))}
        with streaming(tmp_path, gateway, postgres, **parts):
            gateway.wait(lambda: gateway.source(SOURCE).replicates)
            with Writers(postgres, "orders", 6, most_id=8000):
                dump = gateway.dump(SOURCE, "first", table)
                wait_dumped(gateway, dump)
            wait_equal(gateway, postgres, dump, ("id",))


@pytest.mark.parametrize("key", [("id",), ()])
def test_dump_when_changes_come_from_a_standby_too_then_it_is_the_table(
    gateway: GatewayDouble, tmp_path: Path, key: tuple[str, ...]
) -> None:
    """Standbys give changes from version 16 on; they learn from their primary which transactions run."""
    with source_server("18") as primary, standby_of(primary, slot="standby") as standby:
        primary.create_replication_user()
        table = create(primary, f"PRIMARY KEY ({key[0]})" if key else "", rows=2000)
        if not key:
            run(primary, "ALTER TABLE orders REPLICA IDENTITY FULL", "CREATE INDEX ON orders (id)")
        gateway.sync(SOURCE, table, dump="first")
        dump = gateway.dump(SOURCE, "first", table)
        server = entries(login(standby))
        with _telling(primary), streaming(tmp_path, gateway, primary, client=server, replication=server):
            with Writers(primary, "orders", 8, most_id=8000 if key else 50_000_000):
                wait_dumped(gateway, dump)
            wait_equal(gateway, primary, dump, key or ("id", "note"))


@contextmanager
def _telling(primary: SourceServer) -> Iterator[None]:
    """A primary tells it by itself every 15 s."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(0.3):
            primary.run("SELECT pg_log_standby_snapshot()")

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_dump_when_paused_and_resumed_then_it_goes_on_where_it_was(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    slow = snapshot_pb2.DumpLimits(rows_per_second=100)
    with streaming(tmp_path, gateway, postgres):
        dump = gateway.dump(SOURCE, "slow", table, limits=slow)
        ledger = gateway.source(SOURCE).ledger
        gateway.wait(lambda: len(ledger.chunks) > 2)
        assert wait_status(gateway, dump, "own limit is 100 rows").state == Status.READING
        gateway.order(SOURCE, dump, paused=True)
        gateway.wait(lambda: dump.statuses[-1].state == Status.PAUSED)
        gateway.order(SOURCE, dump, paused=False, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        assert dumped(gateway, dump, ("id",)) == selected(postgres, table, ("id",))


def test_dump_when_cancelled_then_nothing_of_it_is_read_on_the_server_any_more(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    slow = snapshot_pb2.DumpLimits(rows_per_second=1)
    with streaming(tmp_path, gateway, postgres):
        dump = gateway.dump(SOURCE, "slow", table, limits=slow)
        gateway.wait(lambda: gateway.source(SOURCE).ledger.received_rows)
        gateway.order(SOURCE, dump, cancelled=True)
        reads = (
            "SELECT pid FROM pg_stat_activity WHERE usename = 'menura' AND state <> 'idle'"
            " AND backend_type = 'client backend'"
        )
        gateway.wait(lambda: not postgres.run(reads))
        again = gateway.dump(SOURCE, "again", table)
        wait_dumped(gateway, again)
        assert dumped(gateway, again, ("id",)) == selected(postgres, table, ("id",))


def test_dump_when_the_table_is_altered_in_its_middle_then_it_goes_on_with_the_new_columns(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    with streaming(tmp_path, gateway, postgres):
        with Writers(postgres, "orders", 11, most_id=9000):
            dump = gateway.dump(SOURCE, "altered", table, limits=snapshot_pb2.DumpLimits(rows_per_second=60))
            ledger = gateway.source(SOURCE).ledger
            gateway.wait(lambda: len(ledger.chunks) > 3)
            run(postgres, "ALTER TABLE orders ADD extra int DEFAULT 5")
            before = len(ledger.chunks)
            gateway.wait(lambda: len(ledger.chunks) > before + 1)
            gateway.order(SOURCE, dump, limits=snapshot_pb2.DumpLimits())
            wait_dumped(gateway, dump)
        expected = selected(postgres, table, ("id",))

        def is_equal() -> bool:
            found = now(gateway, dump, ("id",))
            lacking = {"extra": 5}  # what rows from before hold, as the event says
            return {place: lacking | row for place, row in found.items()} == expected

        poll(is_equal)
        assert is_equal()


def test_dump_when_the_server_is_restarted_in_its_middle_then_it_goes_on(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=3000)
    gateway.sync(SOURCE, table, now=True)
    with streaming(tmp_path, gateway, postgres):
        dump = gateway.dump(SOURCE, "long", table, limits=snapshot_pb2.DumpLimits(rows_per_second=300))
        ledger = gateway.source(SOURCE).ledger
        gateway.wait(lambda: len(ledger.chunks) > 3)
        postgres.stop("immediate")
        postgres.start()
        run(postgres, "DELETE FROM orders WHERE id % 2 = 0", "UPDATE orders SET id = id + 20000 WHERE id % 3 = 0")
        gateway.order(SOURCE, dump, limits=snapshot_pb2.DumpLimits())
        wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))


@pytest.mark.parametrize("is_seen", [True, False])
def test_dump_when_a_transaction_was_open_before_the_stream_then_it_waits_only_where_it_can_not_see_it(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, is_seen: bool
) -> None:
    """Whether it has committed, and is not visible yet, nobody knows who may not see what others' sessions do."""
    table = create(postgres)
    gateway.sync(SOURCE, table, now=True)
    with streaming(tmp_path, gateway, postgres):  # a new slot waits for all transactions
        gateway.wait(lambda: gateway.source(SOURCE).committed)
    postgres.run(f"{'GRANT pg_read_all_stats TO' if is_seen else 'REVOKE pg_read_all_stats FROM'} menura")
    with postgres.connect("shop", autocommit=False) as other:
        other.execute("INSERT INTO orders VALUES (-5, 'late')")
        with streaming(tmp_path, gateway, postgres):
            dump = gateway.dump(SOURCE, "open", table)
            if is_seen:
                wait_dumped(gateway, dump)
                other.commit()
            else:
                wait_status(gateway, dump, "transactions that ran when the stream began are not over")
                other.commit()
                wait_dumped(gateway, dump)
            wait_equal(gateway, postgres, dump, ("id",))


def test_dump_when_the_user_may_not_read_the_table_then_it_fails_with_the_grant(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres)
    run(postgres, "REVOKE SELECT ON orders FROM menura", "CREATE TABLE other (id int)")
    gateway.sync(SOURCE, table, now=True)
    dump = gateway.dump(SOURCE, "blind", table)
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: dump.failed)
    assert dump.failed is not None
    assert dump.failed.code == "SOURCE_GRANT_MISSING"
    assert 'GRANT SELECT ON "public"."orders" TO "menura"' in dump.failed.remedy


def test_dump_when_rows_are_another_primarys_then_the_setting_of_the_message_names_the_servers(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres)
    gateway.sync(SOURCE, table, now=True)
    dump = gateway.dump(SOURCE, "unrelated", table)
    with source_server(is_other=True) as other:
        other.create_replication_user()
        parts = {"client": entries(login(other)), "replication": entries(login(postgres))}
        with streaming(tmp_path, gateway, postgres, **parts):
            gateway.wait(lambda: dump.failed)
    gateway.wait_gone(SOURCE)
    assert dump.failed is not None
    assert dump.failed.code == "DUMP_SERVER_UNRELATED"
    assert (
        "Name the server of sources.shop.replication, or a standby of it, in sources.shop.client too"
        in dump.failed.remedy
    )
    assert commands(dump.failed.remedy) == [["sync", "retry", SOURCE, "--all"]]
    parts["client"] = parts["replication"]
    with streaming(tmp_path, gateway, postgres, **parts):
        dump = gateway.dump(SOURCE, "again", table)
        wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))


def test_dump_when_a_row_can_not_be_read_then_it_fails_there_and_the_setting_of_the_message_leaves_it_out(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    run(postgres, "CREATE TYPE mood AS ENUM ('a', 'b')")
    table, other = create(postgres, rows=400), create(postgres, rows=10, table="items")
    run(
        postgres,
        "ALTER TABLE orders ADD m mood DEFAULT 'a'",
        "UPDATE orders SET m = 'b' WHERE id = 600",
        "DELETE FROM pg_enum WHERE enumlabel = 'b'",  # as damage would
    )
    gateway.sync(SOURCE, table, other, now=True)
    dump = gateway.dump(SOURCE, "damaged", table)
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: dump.failed)
        others = gateway.dump(SOURCE, "others", other)
        wait_dumped(gateway, others)
    gateway.wait_gone(SOURCE)
    assert dump.failed is not None
    assert dump.failed.code == "DUMP_RESULT_INVALID"
    assert "the first row above (597) by (id)" in dump.failed.found
    assert "sources.shop.filter.public.orders.ignored_columns" in dump.failed.remedy
    assert commands(dump.failed.remedy)[0][:3] == ["dump", "start", SOURCE]
    with streaming(tmp_path, gateway, postgres, filter={"public.orders": {"ignored_columns": ["m"]}}):
        dump = gateway.dump(SOURCE, "again", table)
        wait_dumped(gateway, dump)
        assert len(now(gateway, dump, ("id",))) == 400
