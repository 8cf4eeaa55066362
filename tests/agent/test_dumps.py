"""Dumps from real servers to the gateway's ledger, while others write."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from menura.v1 import config_pb2, snapshot_pb2

from controlplane_api.api.dump_progress import Progress, RangePart, covered, expected_rows
from tests.agent.dump_ledger import merged
from tests.agent.dumping import (
    COLUMNS,
    SLOW,
    Writers,
    agent_inside,
    config,
    create,
    database,
    dumped,
    fill,
    gateway,
    running,
    selected,
    wait_dumped,
    wait_equal,
)
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import client, write_config
from tests.agent.test_replication import last_state
from tests.servers import Server

__all__ = ["database", "gateway", "running"]

#: one in CI; more, e.g. MENURA_DUMP_SEEDS=40, in a long run
SEEDS = range(1, 1 + int(os.environ.get("MENURA_DUMP_SEEDS", "1")))
Status = snapshot_pb2.DumpStatus


@pytest.mark.parametrize("key", [("id",), ("name", "id")])
def test_dump_under_load_when_it_ends_then_chunks_and_changes_are_the_table(
    database: Server, gateway: GatewayDouble, tmp_path: Path, key: tuple[str, ...]
) -> None:
    table = create(database, f"PRIMARY KEY ({', '.join(key)})", rows=2000)
    gateway.sync("shop", table, oldest=True)
    record = gateway.source("shop")
    with agent_inside(config(tmp_path, gateway, database)):
        for seed in range(2):
            with Writers(database, "shop.orders", seed, most_id=8000):
                dump = gateway.dump("shop", f"dump-{seed}", table)
                wait_dumped(gateway, dump)
            last_gsn = next(cut.last_gsn for cut in record.committed if cut.cut == dump.dumped_cut)
            changes = [row for row in gateway.rows("shop", table) if int(str(row["_gsn"])) <= last_gsn]
            assert dumped(gateway, dump, key) == merged(changes, [], key)
            chunks = [chunk for chunk in record.ledger.chunks if chunk.dump == dump.dump]
            assert len(chunks) > 10
            assert len({chunk.end.range for chunk in chunks}) > 1
            assert {name for chunk in chunks for name in chunk.schema_ids} == {
                batch.schema_id for batch in record.batches
            }
            wait_equal(gateway, database, dump, key)
    assert not record.ledger.ignored


def test_dump_when_a_sync_begins_with_it_then_the_table_is_whole_and_its_state_says_so(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database)
    gateway.sync("shop", table, dump="first")
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: gateway.source("shop").replicates)
        with Writers(database, "shop.orders", 1, most_id=4000):
            dump = gateway.dump("shop", "first", table, limits=SLOW)
            gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == config_pb2.TableState.DUMPING)
            gateway.order("shop", dump, limits=snapshot_pb2.DumpLimits())
            wait_dumped(gateway, dump)
        wait_equal(gateway, database, dump, ("id",))
        gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == config_pb2.TableState.STREAMING)
    started = [start for cut in gateway.source("shop").committed for start in cut.started]
    assert [start.earlier_rows_missing for start in started] == [""]


def test_dump_when_statistics_are_stale_then_its_keys_tell_how_far_it_is(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    options = "STATS_PERSISTENT=1 STATS_AUTO_RECALC=0"
    database.run(f"CREATE TABLE shop.orders ({COLUMNS}, PRIMARY KEY (id)) {options}", "ANALYZE TABLE shop.orders")
    fill(database, "shop.orders", 2000)
    renamed = ("RENAME TABLE shop.orders TO shop.away", "RENAME TABLE shop.away TO shop.orders")
    database.run("UPDATE mysql.innodb_table_stats SET n_rows = 3 WHERE table_name = 'orders'", *renamed)  # is read anew
    gateway.sync("shop", ("shop", "orders"), dump="stale")
    dump = gateway.dump("shop", "stale", ("shop", "orders"))
    with agent_inside(config(tmp_path, gateway, database)):
        wait_dumped(gateway, dump)
    assert dump.plan is not None and len(dump.plan.ranges) == 1 and dump.plan.estimated_rows < 100
    ends = dump.plan.least_key, dump.plan.greatest_key
    assert ends == (3, 6000)
    rows = 0
    for chunk in gateway.source("shop").ledger.chunks[:-1]:
        rows += chunk.end.row_count
        part = RangePart(rows, covered("", "", chunk.end.upper, *ends))
        assert expected_rows(Progress(rows, dump.plan.estimated_rows, [part])) == pytest.approx(2000, rel=0.05)
    assert rows > 1500


@pytest.mark.parametrize("rows", [0, 700])
def test_dump_when_nobody_writes_then_its_chunks_do_not_wait_for_a_change(
    database: Server, gateway: GatewayDouble, tmp_path: Path, rows: int
) -> None:
    table = create(database, rows=rows) if rows else ("shop", "empty")
    if not rows:
        database.run(f"CREATE TABLE shop.empty ({COLUMNS}, PRIMARY KEY (id))")
    gateway.sync("shop", table, dump="quiet")
    dump = gateway.dump("shop", "quiet", table)
    with agent_inside(config(tmp_path, gateway, database)):
        wait_dumped(gateway, dump)
    assert dumped(gateway, dump, ("id",)) == selected(database, table, ("id",))


ODD_TABLES = {
    "labels": "(id INT PRIMARY KEY, note TEXT, e ENUM('a', '😀', '?', '日') CHARACTER SET utf8mb4,"
    " s SET('a', '😀', '?') CHARACTER SET utf8mb4)",
    "parts": "(id INT PRIMARY KEY, note TEXT) PARTITION BY HASH (id) PARTITIONS 4",
    "words": "(id INT PRIMARY KEY, note TEXT, FULLTEXT (note))",
}

#: with columns that neither SELECT * nor information_schema shows
ODD_TABLES_OF = {
    "mysql": {
        "expressions": "(id INT PRIMARY KEY, note VARCHAR(50), KEY ((UPPER(note))), UNIQUE KEY ((id + 1)))",
        "keyed_by_server": "(id INT, note TEXT)",
    },
    "mariadb": {"hashed": "(id INT PRIMARY KEY, note TEXT, DB_ROW_HASH_1 BIGINT UNSIGNED DEFAULT 7, UNIQUE (note))"},
}


def test_dump_when_definitions_do_not_show_all_then_it_and_the_stream_send_the_same(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    mysql = database.flavor == "mysql"
    numbers = ", ".join(f"({number}, 'note {number}')" for number in range(400))
    for name, columns in (ODD_TABLES | ODD_TABLES_OF[database.flavor]).items():
        database.run(
            *(["SET SESSION sql_generate_invisible_primary_key = ON"] if mysql else []),
            f"CREATE TABLE shop.{name} {columns}",
            f"INSERT INTO shop.{name} (id, note) VALUES {numbers}",
        )
        gateway.sync("shop", ("shop", name), now=True)
    database.run("UPDATE shop.labels SET e = id % 4 + 1, s = id % 8")
    with agent_inside(config(tmp_path, gateway, database)):
        gateway.wait(lambda: gateway.source("shop").committed)
        dumps = [gateway.dump("shop", name, ("shop", name)) for name in ODD_TABLES | ODD_TABLES_OF[database.flavor]]
        for dump in dumps:
            wait_dumped(gateway, dump)
            assert dump.plan is not None and dump.plan.key
            database.run(f"UPDATE {'.'.join(dump.table)} SET note = CONCAT('new ', note) WHERE id % 3 = 0")
        database.run("UPDATE shop.labels SET e = e % 4 + 1, s = s ^ 7 WHERE id % 5 = 0")
        if mysql:
            database.run("ALTER TABLE shop.keyed_by_server ALTER COLUMN my_row_id SET VISIBLE")
        for dump in dumps:
            wait_equal(gateway, database, dump, tuple(dump.plan.key) if dump.plan is not None else ())


def test_dump_when_a_table_has_no_key_then_it_begins_with_its_snapshot(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database, key="KEY (id)")
    other = create(database, table="items")
    gateway.sync("shop", other, now=True)
    with agent_inside(config(tmp_path, gateway, database)), Writers(database, "shop.items", 2, most_id=4000):
        gateway.wait(lambda: gateway.source("shop").committed)
        gateway.sync("shop", table, dump="whole")
        dump = gateway.dump("shop", "whole", table)
        with Writers(database, "shop.orders", 3, most_id=50_000_000):  # ids are not drawn twice
            wait_dumped(gateway, dump)
        wait_equal(gateway, database, dump, ("id", "note"))
        (chunk,) = gateway.source("shop").ledger.chunks
        assert dump.dumped is not None and dump.dumped.removes_rows and chunk.gsn == dump.dumped.gsn + 1


def test_dump_when_cancelled_then_nothing_of_it_is_read_on_the_server_any_more(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database, rows=3000)
    gateway.sync("shop", table, now=True)
    slow = snapshot_pb2.DumpLimits(rows_per_second=1)
    with agent_inside(config(tmp_path, gateway, database)):
        dump = gateway.dump("shop", "slow", table, limits=slow)
        gateway.wait(lambda: gateway.source("shop").ledger.received_rows)
        gateway.order("shop", dump, cancelled=True)
        reads = (
            "SELECT id FROM information_schema.processlist WHERE info LIKE 'SELECT%FORCE INDEX%' AND user = 'menura'"
        )
        gateway.wait(lambda: not database.run(reads))
        gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == config_pb2.TableState.STREAMING)
        again = gateway.dump("shop", "again", table)
        wait_dumped(gateway, again)
        assert dumped(gateway, again, ("id",)) == selected(database, table, ("id",))


@pytest.mark.parametrize("seed", SEEDS)
def test_dump_when_tables_join_under_load_then_nothing_is_read_twice_and_each_is_its_table(
    database: Server, gateway: GatewayDouble, tmp_path: Path, seed: int
) -> None:
    tables = [create(database, rows=2000), *(create(database, rows=30, table=f"small_{n}") for n in range(3))]
    gateway.sync("shop", tables[0], now=True)
    ledger = gateway.source("shop").ledger
    with agent_inside(config(tmp_path, gateway, database)):
        with ExitStack() as writing:
            for number, table in enumerate(tables):
                writing.enter_context(Writers(database, ".".join(table), 7 * seed + number, 8000, threads=1))
            limits = snapshot_pb2.DumpLimits(rows_per_second=1000)
            dumps = [gateway.dump("shop", "large", tables[0], limits=limits)]
            for table in tables[1:]:
                gateway.wait(lambda: sum(chunk.dump == "large" for chunk in ledger.chunks) > 4 * len(dumps))
                gateway.sync("shop", table, dump=table[1])
                dumps.append(gateway.dump("shop", table[1], table))
                wait_dumped(gateway, dumps[-1])
            wait_dumped(gateway, dumps[0])
        for dump in dumps:
            wait_equal(gateway, database, dump, ("id",))
    assert ledger.received_rows == sum(chunk.end.row_count for chunk in ledger.chunks)
    assert not ledger.dropped
    assert not ledger.ignored


@pytest.mark.parametrize("granted", ["(id) ON shop.orders", "ON shop.items"])
def test_dump_when_the_user_may_not_read_the_table_then_it_fails_with_the_grant(
    database: Server, gateway: GatewayDouble, tmp_path: Path, granted: str
) -> None:
    table = create(database)
    create(database, table="items", rows=1)
    database.run(
        "DROP USER IF EXISTS 'blind'@'127.0.0.%'",
        "CREATE USER 'blind'@'127.0.0.%' IDENTIFIED BY 'blind'",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'blind'@'127.0.0.%'",
        f"GRANT SELECT {granted} TO 'blind'@'127.0.0.%'",
    )
    gateway.sync("shop", table, now=True)
    dump = gateway.dump("shop", "blind", table)
    login = {"user": "blind", "password": "blind"}
    source = {"client": client(database, **login), "binlog": client(database)}
    with agent_inside(write_config(tmp_path, gateway.address, {"shop": source})):
        gateway.wait(lambda: dump.failed)
    assert dump.failed is not None and dump.failed.code == "SOURCE_GRANT_MISSING"
    assert dump.failed.remedy.endswith("GRANT SELECT ON `shop`.`orders` TO 'blind'@'127.0.0.%'")
    assert "the user lacks SELECT on `shop`.`orders`" in dump.failed.found


@pytest.mark.parametrize("running", ["mariadb"], indirect=True)
def test_dump_when_the_table_keeps_its_former_rows_then_they_come_too(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database)
    database.run("ALTER TABLE shop.orders ADD SYSTEM VERSIONING", "UPDATE shop.orders SET note = 'x' WHERE id % 7 = 0")
    gateway.sync("shop", table, dump="versioned")
    dump = gateway.dump("shop", "versioned", table)
    with agent_inside(config(tmp_path, gateway, database)):
        with Writers(database, "shop.orders", 8, most_id=4000):
            wait_dumped(gateway, dump)
        wait_equal(
            gateway,
            database,
            dump,
            ("id", "row_end"),
            "SELECT *, row_start, row_end FROM shop.orders FOR SYSTEM_TIME ALL",
        )
    assert dump.plan is not None and not dump.plan.key


def test_repair_of_ranges_when_others_write_then_they_alone_are_read_and_are_what_the_table_has(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(database, "PRIMARY KEY (id)", rows=2000)
    gateway.sync("shop", table, now=True)
    parts = snapshot_pb2.FocusRange(above=["500"], up_to=["700"]), snapshot_pb2.FocusRange(above=["7000"])
    focus = snapshot_pb2.Focus(ranges=parts, kinds=["integer"])
    with agent_inside(config(tmp_path, gateway, database)):
        with Writers(database, "shop.orders", 3, most_id=8000):
            repair = gateway.dump("shop", "repair", table, focus=focus)
            wait_dumped(gateway, repair)
        chunks = list(gateway.source("shop").ledger.chunks)
        wait_dumped(gateway, gateway.dump("shop", "proof", table, focus=focus, verifies=True))

        def inside(rows: dict[tuple[object, ...], dict[str, object]]) -> dict[tuple[object, ...], dict[str, object]]:
            return {key: row for key, row in rows.items() if 500 < int(str(key[0])) <= 700 or int(str(key[0])) > 7000}

        expected = inside(selected(database, table, ("id",)))
        gateway.wait(
            lambda: inside(merged(gateway.rows("shop", table), chunks, ("id",), repair.started_gsn)) == expected
        )
    read = {int(str(row["id"])) for chunk in chunks for row in chunk.rows}
    assert expected and all(500 < key <= 700 or key > 7000 for key in read)
    proof = gateway.source("shop").ledger.chunks[-1].end
    assert proof.row_count == len(expected) and proof.source_bytes < 100 * len(expected), "no other row was read"
