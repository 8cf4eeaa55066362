"""Dumps from real servers to the gateway's ledger, while others write."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from menura.v1 import config_pb2, snapshot_pb2

from tests.agent.dump_ledger import Dump, merged
from tests.agent.dumping import SLOW, dumped, now, poll, wait_dumped
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.dumping import Writers, create, fill, gateway, selected, wait_equal
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import run, streaming
from tests.agent.test_replication import last_state
from tests.postgres import SourceServer

__all__ = ["gateway"]

#: one in CI; more, e.g. MENURA_DUMP_SEEDS=40, in a long run
SEEDS = range(1, 1 + int(os.environ.get("MENURA_DUMP_SEEDS", "1")))


@pytest.mark.parametrize("key", [("id",), ("name", "id")])
@pytest.mark.parametrize("seed", SEEDS)
def test_dump_under_load_when_it_ends_then_chunks_and_changes_are_the_table(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, key: tuple[str, ...], seed: int
) -> None:
    table = create(postgres, f"PRIMARY KEY ({', '.join(key)})", rows=0)
    gateway.sync(SOURCE, table, now=True)
    record = gateway.source(SOURCE)
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: record.committed)
        fill(postgres, "orders", 2000)  # so the changes alone are the table too
        for number in range(2):
            with Writers(postgres, "orders", 10 * seed + number, most_id=8000):
                dump = gateway.dump(SOURCE, f"dump-{number}", table)
                wait_dumped(gateway, dump)
            last_gsn = next(cut.last_gsn for cut in record.committed if cut.cut == dump.dumped_cut)
            changes = [row for row in gateway.rows(SOURCE, table) if int(str(row["_gsn"])) <= last_gsn]
            assert dumped(gateway, dump, key) == merged(changes, [], key)
            chunks = [chunk for chunk in record.ledger.chunks if chunk.dump == dump.dump]
            assert len(chunks) > 10
            assert len({chunk.end.range for chunk in chunks}) > 1
            assert {name for chunk in chunks for name in chunk.schema_ids} == {
                batch.schema_id for batch in record.batches
            }
            wait_equal(gateway, postgres, dump, key)
    assert not record.ledger.ignored


def test_dump_when_a_sync_begins_with_it_then_the_table_is_whole_and_its_state_says_so(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres)
    gateway.sync(SOURCE, table, dump="first")
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: gateway.source(SOURCE).replicates)
        with Writers(postgres, "orders", 1, most_id=4000):
            dump = gateway.dump(SOURCE, "first", table, limits=SLOW)
            gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == config_pb2.TableState.DUMPING)
            gateway.order(SOURCE, dump, limits=snapshot_pb2.DumpLimits())
            wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))
        gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == config_pb2.TableState.STREAMING)
    started = [start for cut in gateway.source(SOURCE).committed for start in cut.started]
    assert [start.earlier_rows_missing for start in started] == [""]


@pytest.mark.parametrize("rows", [0, 1, 2, 700])
def test_dump_when_nobody_writes_then_its_chunks_do_not_wait_for_a_change(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, rows: int
) -> None:
    table = create(postgres, rows=rows)
    gateway.sync(SOURCE, table, dump="quiet")
    dump = gateway.dump(SOURCE, "quiet", table)
    with streaming(tmp_path, gateway, postgres):
        wait_dumped(gateway, dump)
    assert dumped(gateway, dump, ("id",)) == selected(postgres, table, ("id",))


def test_dump_when_a_table_has_no_key_then_it_begins_with_its_snapshot(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    other = create(postgres, table="items")
    gateway.sync(SOURCE, other, now=True)
    with streaming(tmp_path, gateway, postgres), Writers(postgres, "items", 2, most_id=4000):
        gateway.wait(lambda: gateway.source(SOURCE).committed)
        table = create(postgres, key="")
        run(postgres, "ALTER TABLE orders REPLICA IDENTITY FULL", "CREATE INDEX ON orders (id)")
        gateway.sync(SOURCE, table, dump="whole")
        dump = gateway.dump(SOURCE, "whole", table)
        with Writers(postgres, "orders", 3, most_id=50_000_000):  # ids are not drawn twice
            wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id", "note"))
        chunks = [chunk for chunk in gateway.source(SOURCE).ledger.chunks if chunk.dump == "whole"]
        assert len(chunks) == 1
        assert dump.dumped is not None
        assert dump.dumped.removes_rows
        assert chunks[0].gsn == dump.dumped.gsn + 1


def test_dump_when_only_tables_without_keys_begin_then_the_slot_is_there_before_their_snapshots(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    tables = [create(postgres, key="", table=f"t{number}", rows=300) for number in range(3)]
    run(postgres, *(f"ALTER TABLE {table[1]} REPLICA IDENTITY FULL" for table in tables))
    with streaming(tmp_path, gateway, postgres), ExitStack() as writing:
        for number, table in enumerate(tables):
            writing.enter_context(Writers(postgres, table[1], 20 + number, most_id=50_000_000, threads=1))
            gateway.sync(SOURCE, table, dump=table[1])
        dumps = [gateway.dump(SOURCE, table[1], table) for table in tables]
        for dump in dumps:
            wait_dumped(gateway, dump)
        writing.close()
        for dump in dumps:
            wait_equal(gateway, postgres, dump, ("id", "note"))


ODD_KEYS = {
    "bigint": "id::bigint - 1500",
    "numeric": "id / 3.0",
    "uuid": "md5(id::text)::uuid",
    "text": "'é' || id",
    "timestamptz": "'2020-01-01'::timestamptz + id * interval '1 hour'",
    "citext": "('K' || id)::citext",
    "mood": "CASE WHEN id % 2 = 0 THEN 'even' ELSE 'odd' END::mood",
}


def test_dump_when_keys_are_of_other_types_then_it_and_the_stream_send_the_same(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    run(postgres, "CREATE EXTENSION citext", "CREATE TYPE mood AS ENUM ('odd', 'even')")
    tables = [create(postgres, table=f"by_{type_}", rows=1000) for type_ in ODD_KEYS]
    for (_, table), (type_, value) in zip(tables, ODD_KEYS.items(), strict=True):
        run(
            postgres,
            f"ALTER TABLE {table} ADD k {type_}",
            f"UPDATE {table} SET k = {value}",
            f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey, ADD PRIMARY KEY (k, id)",
        )
    gateway.sync(SOURCE, *tables, now=True)
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: gateway.source(SOURCE).committed)
        dumps = [gateway.dump(SOURCE, table[1], table) for table in tables]
        for dump in dumps:
            run(postgres, f"UPDATE {dump.table[1]} SET id = id + 1, note = 'new' WHERE id % 7 = 0")
            wait_dumped(gateway, dump)
            run(postgres, f"UPDATE {dump.table[1]} SET id = id + 2 WHERE id % 5 = 0")
            assert dump.plan is not None
            assert tuple(dump.plan.key) == ("k", "id")
        for dump in dumps:
            expected = sorted(run(postgres, f"SELECT id, name, note FROM {dump.table[1]}"))
            poll(lambda of=dump, rows=expected: _by_id(gateway, of) == rows)
            assert _by_id(gateway, dump) == expected


def _by_id(gateway: GatewayDouble, dump: Dump) -> list[tuple[object, ...]]:
    return sorted((row["id"], row["name"], row["note"]) for row in now(gateway, dump, ("k", "id")).values())


def test_dump_when_a_partitioned_table_is_written_to_then_rows_that_change_their_partition_are_there_once(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    run(
        postgres,
        "CREATE PUBLICATION menura FOR ALL TABLES WITH (publish_via_partition_root = true)",
        "CREATE TABLE orders (id int PRIMARY KEY, name text, note text) PARTITION BY RANGE (id)",
        *(
            f"CREATE TABLE orders_{n} PARTITION OF orders FOR VALUES FROM ({n * 1000}) TO ({n * 1000 + 1000})"
            for n in range(8)
        ),
        "CREATE TABLE orders_rest PARTITION OF orders DEFAULT",
        "INSERT INTO orders SELECT n * 3, 'Name', 'first' FROM generate_series(1, 2000) AS n",
    )
    table = ("public", "orders")
    gateway.sync(SOURCE, table, now=True)
    with streaming(tmp_path, gateway, postgres):
        with Writers(postgres, "orders", 9, most_id=8000):
            dump = gateway.dump(SOURCE, "parts", table)
            wait_dumped(gateway, dump)
        wait_equal(gateway, postgres, dump, ("id",))


@pytest.mark.parametrize("seed", SEEDS)
def test_dump_when_tables_join_under_load_then_each_is_its_table(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, seed: int
) -> None:
    tables = [create(postgres, rows=2000), *(create(postgres, rows=30, table=f"small_{n}") for n in range(3))]
    gateway.sync(SOURCE, tables[0], now=True)
    ledger = gateway.source(SOURCE).ledger
    with streaming(tmp_path, gateway, postgres):
        with ExitStack() as writing:
            for number, table in enumerate(tables):
                writing.enter_context(Writers(postgres, table[1], 7 * seed + number, 8000, threads=1))
            limits = snapshot_pb2.DumpLimits(rows_per_second=1000)
            dumps = [gateway.dump(SOURCE, "large", tables[0], limits=limits)]
            for table in tables[1:]:
                gateway.wait(lambda: sum(chunk.dump == "large" for chunk in ledger.chunks) > 4 * len(dumps))
                gateway.sync(SOURCE, table, dump=table[1])
                dumps.append(gateway.dump(SOURCE, table[1], table))
                wait_dumped(gateway, dumps[-1])
            wait_dumped(gateway, dumps[0])
        for dump in dumps:
            wait_equal(gateway, postgres, dump, ("id",))
    assert not ledger.ignored


def test_repair_of_ranges_when_it_is_ordered_then_their_rows_alone_are_read(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    table = create(postgres, rows=2000)
    gateway.sync(SOURCE, table, now=True)
    parts = snapshot_pb2.FocusRange(above=["500"], up_to=["700"]), snapshot_pb2.FocusRange(above=["1800"])
    with streaming(tmp_path, gateway, postgres):
        for dump, verifies in (("repair", False), ("proof", True)):
            focus = snapshot_pb2.Focus(ranges=parts, kinds=["integer"])
            wait_dumped(gateway, gateway.dump(SOURCE, dump, table, focus=focus, verifies=verifies))
    ledger = gateway.source(SOURCE).ledger
    keys = sorted(int(str(key)) for (key,) in selected(postgres, table, ("id",)))
    expected = [key for key in keys if 500 < key <= 700 or key > 1800]
    assert expected and sorted(int(str(row["id"])) for chunk in ledger.chunks for row in chunk.rows) == expected
    assert ledger.received_rows == len(expected)
    proof = ledger.chunks[-1].end
    assert proof.row_count == len(expected) and proof.source_bytes < 100 * len(expected), "no other row was read"
