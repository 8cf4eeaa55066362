"""Changes of a real server's tables, as they come to a gateway."""

from pathlib import Path

import pytest
from menura.change_batch import ChangeType
from menura.roles import Role

from agent.sources.postgresql.native.decoder import TablePlan
from agent.sources.postgresql.positions import parse_lsn
from agent.sources.postgresql.stream.stops import Stops
from tests.agent.dumping import poll, wait_dumped
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import (
    COLUMNS,
    ORDERS,
    Kind,
    Writers,
    absent,
    begin,
    committed_lsn,
    confirmed_lsn,
    create,
    current,
    events,
    kinds,
    looks_often,
    run,
    selected,
    streaming,
    wait_event,
)
from tests.postgres import SourceServer

INSERT, BEFORE, AFTER, DELETE = (
    ChangeType.insert,
    ChangeType.update_preimage,
    ChangeType.update_postimage,
    ChangeType.delete,
)

ACTIVE = "SELECT active_pid FROM pg_replication_slots WHERE active"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)
    monkeypatch.setattr("agent.sources.postgresql.changes.SLOT_SECONDS", 1.0)


def test_rows_when_changed_in_every_way_then_each_change_has_what_the_server_logged(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(
            postgres,
            "INSERT INTO orders VALUES (1, 'a', 'x'), (2, 'b', repeat(md5('x'), 10000))",
            "UPDATE orders SET name = 'c' WHERE id = 1",
            "UPDATE orders SET name = 'd' WHERE id = 2",
            "UPDATE orders SET id = 5 WHERE id = 2",
            "DELETE FROM orders WHERE id = 1",
        )
        gateway.wait(lambda: len(kinds(gateway, ORDERS)) == 7)
        rows, names = gateway.rows(SOURCE, ORDERS), ["id", "name", "note"]
        assert kinds(gateway, ORDERS) == [INSERT, INSERT, AFTER, AFTER, BEFORE, AFTER, DELETE]
        assert [absent(row, names) for row in rows] == [
            set(), set(), set(), {"note"}, {"name", "note"}, {"note"}, {"name", "note"}
        ]  # fmt: skip
        run(postgres, "ALTER TABLE orders REPLICA IDENTITY FULL")
        run(postgres, "UPDATE orders SET name = 'e'", "DELETE FROM orders")
        gateway.wait(lambda: len(kinds(gateway, ORDERS)) == 10)
        before, after, gone = gateway.rows(SOURCE, ORDERS)[7:]
        assert kinds(gateway, ORDERS)[7:] == [BEFORE, AFTER, DELETE]
        assert len(str(before["note"])) == len(str(after["note"])) == len(str(gone["note"])) == 320_000
        assert current(gateway, ORDERS) == {}


@pytest.mark.parametrize("seed", range(2))
def test_stream_when_it_breaks_and_cuts_are_lost_then_the_same_changes_have_the_same_numbers(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, seed: int
) -> None:
    create(postgres)
    create(postgres, "items")
    items = ("public", "items")
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
    with Writers(postgres, "orders", seed) as writers:
        for _ in range(2):
            with streaming(tmp_path, gateway, postgres):
                least = writers.transactions + 30
                gateway.wait(lambda least=least: writers.transactions > least)
                gateway.drop(SOURCE, Role.CHANGES)
                gateway.wait(lambda: gateway.source(SOURCE).committed)
                gateway.lose_cuts(SOURCE)
                least = writers.transactions + 30
                gateway.wait(lambda least=least: writers.transactions > least)
            gateway.wait_gone(SOURCE)
            gateway.lose_cuts(SOURCE, loses=False)
    with streaming(tmp_path, gateway, postgres), Writers(postgres, "orders", seed) as writers:
        begin(gateway, items)
        with Writers(postgres, "items", seed + 7):
            gateway.drop(SOURCE, Role.CHANGES)
            least = writers.transactions + 30
            gateway.wait(lambda: writers.transactions > least)
    with streaming(tmp_path, gateway, postgres):
        for table in (ORDERS, items):
            poll(lambda table=table: current(gateway, table) == selected(postgres, table))
            assert current(gateway, table) == selected(postgres, table)
        numbers = [row["_gsn"] for table in (ORDERS, items) for row in gateway.rows(SOURCE, table)]
        assert len(numbers) == len(set(numbers))


def test_slot_when_cuts_are_committed_then_it_follows_and_never_passes_them(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        with Writers(postgres, "orders", 3) as writers:
            for _ in range(20):
                least = writers.transactions + 5
                gateway.wait(lambda least=least: writers.transactions > least)
                confirmed = confirmed_lsn(postgres)
                assert confirmed <= committed_lsn(gateway)
        gateway.lose_cuts(SOURCE)
        committed = committed_lsn(gateway)
        run(postgres, "INSERT INTO orders VALUES (1001, 'lost', '')")
        gateway.wait(lambda: gateway.source(SOURCE).status.rows)
        assert confirmed_lsn(postgres) <= committed
    gateway.wait_gone(SOURCE)
    gateway.lose_cuts(SOURCE, loses=False)
    with streaming(tmp_path, gateway, postgres):
        gateway.wait(lambda: (1001,) in current(gateway, ORDERS))


@pytest.mark.parametrize("named", [False, True])
def test_slot_when_no_table_is_synced_any_more_then_only_one_that_the_configuration_names_stays(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, *, named: bool
) -> None:
    create(postgres)
    run(postgres, "CREATE PUBLICATION menura FOR TABLE orders", "ALTER PUBLICATION menura OWNER TO menura")
    if named:
        run(postgres, "SELECT pg_create_logical_replication_slot('owned', 'pgoutput')")
    run(postgres, "INSERT INTO orders VALUES (1, 'before any sync', '')")
    with streaming(tmp_path, gateway, postgres, **({"slot": "owned"} if named else {})):
        begin(gateway, ORDERS, oldest=True)
        gateway.wait(lambda: run(postgres, ACTIVE))
        gateway.unsync(SOURCE, ORDERS)
        gateway.wait(lambda: not run(postgres, ACTIVE))
        run(postgres, "INSERT INTO orders VALUES (2, 'between syncs', '')")
        if not named:
            gateway.wait(lambda: not run(postgres, "SELECT slot_name FROM pg_replication_slots"))
            return
        begin(gateway, ORDERS, oldest=True)
        gateway.wait(lambda: {(1,), (2,)} <= current(gateway, ORDERS).keys())


def test_slot_when_only_another_database_changes_then_it_follows(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.capture.cuts.POSITION_CUT_SECONDS", 0.5)
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        before = confirmed_lsn(postgres)
        postgres.run("CREATE TABLE IF NOT EXISTS elsewhere (n int)", "INSERT INTO elsewhere VALUES (1)")
        gateway.wait(lambda: confirmed_lsn(postgres) > before)
        gateway.wait(lambda: gateway.source(SOURCE).status.HasField("lag_us"))
        gateway.wait(lambda: gateway.source(SOURCE).status.lag_us == 0)


def test_stream_when_the_gateway_gives_no_credit_for_long_then_the_server_keeps_it(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.sources.postgresql.server.wire.WAL_SENDER_TIMEOUT_SECONDS", 8.0)
    monkeypatch.setattr("agent.sources.postgresql.server.wire.STATUS_SECONDS", 0.5)
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        gateway.wait(lambda: run(postgres, ACTIVE))
        former = run(postgres, ACTIVE)
        gateway.grants_credit = False
        gateway.drop(SOURCE, Role.CHANGES)
        gateway.wait(lambda: gateway.source(SOURCE).replicates >= 2)
        gateway.wait(lambda: run(postgres, ACTIVE) not in ([], former))
        gateway.wait(lambda: gateway.source(SOURCE).committed[-1].cut > 1)
        ((pid,),) = run(postgres, ACTIVE)
        run(postgres, "INSERT INTO orders SELECT n, repeat('x', 1000), '' FROM generate_series(1, 20000) AS n")
        ((at,),) = run(postgres, "SELECT clock_timestamp()")
        late = f"SELECT clock_timestamp() > '{at}'::timestamptz + '17 s', active_pid FROM pg_replication_slots"
        gateway.wait(lambda: run(postgres, late)[0][0])
        assert run(postgres, late)[0][1] == pid
        gateway.grants_credit = True
        gateway.grant(SOURCE, 1 << 30)
        gateway.wait(lambda: len(kinds(gateway, ORDERS)) == 20_000)


def test_definition_when_altered_between_rows_then_each_row_comes_with_its_own(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(
            postgres,
            "INSERT INTO orders VALUES (1, 'a', 'b')",
            "ALTER TABLE orders ADD COLUMN paid int DEFAULT 5",
            "INSERT INTO orders VALUES (2, 'a', 'b', 6)",
            "ALTER TABLE orders RENAME note TO remark",
            "INSERT INTO orders VALUES (3, 'a', 'b', 6)",
            "ALTER TABLE orders DROP COLUMN name",
            "INSERT INTO orders VALUES (4, 'b', 6)",
            "BEGIN; INSERT INTO orders VALUES (5, 'b', 6); ALTER TABLE orders ADD COLUMN more text;"
            " INSERT INTO orders VALUES (6, 'b', 6, 'm'); COMMIT",
        )
        gateway.wait(lambda: len(kinds(gateway, ORDERS)) == 6)
        own = [[name for name in row if not name.startswith("_")] for row in gateway.rows(SOURCE, ORDERS)]
        assert own == [
            ["id", "name", "note"],
            ["id", "name", "note", "paid"],
            ["id", "name", "remark", "paid"],
            ["id", "remark", "paid"],
            ["id", "remark", "paid"],
            ["id", "remark", "paid", "more"],
        ]
        told = events(gateway, ORDERS)
        assert [event.kind for event in told] == [Kind.ALTERED] * 4
        assert not any(event.unlogged_changes for event in told)
        paid, remark, dropped, more = told
        assert [(one.name, one.text) for one in paid.columns if one.HasField("text")] == [("paid", "5")]
        assert [(one.name, one.renamed_from) for one in remark.columns if one.renamed_from] == [("remark", "note")]
        assert [one.name for one in dropped.columns] == ["id", "remark", "paid"]
        assert [one.name for one in more.columns if one.is_null] == ["more"]


def test_definition_when_it_is_told_again_without_a_change_then_its_plan_stays(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[TablePlan] = []
    planned = Stops.planned

    def note(stops: Stops, table: Table, plan: TablePlan) -> None:
        made.append(plan)
        planned(stops, table, plan)

    monkeypatch.setattr(Stops, "planned", note)
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        for number in range(20):
            run(postgres, f"INSERT INTO orders VALUES ({number}, '', '')", "COMMENT ON COLUMN orders.name IS 'x'")
            run(postgres, f"ALTER TABLE orders ALTER name SET STATISTICS {number}")
        gateway.wait(lambda: len(kinds(gateway, ORDERS)) == 20)
        assert len(made) == 1
        assert events(gateway, ORDERS) == []


def test_definition_when_altered_without_rows_then_a_look_finds_it(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=3)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, "ALTER TABLE orders ADD COLUMN paid numeric(10,2) DEFAULT 1.50 NOT NULL")
        added = wait_event(gateway, ORDERS, Kind.ALTERED)
        assert [(one.name, one.text) for one in added.columns if one.HasField("text")] == [("paid", "1.50")]
        assert not added.unlogged_changes
        run(postgres, "ALTER TABLE orders ALTER COLUMN id TYPE bigint")
        widened = wait_event(gateway, ORDERS, Kind.ALTERED, count=2)
        assert "written anew" in widened.unlogged_changes
        assert widened.reread
        run(postgres, "ALTER TABLE orders ADD COLUMN at timestamptz DEFAULT clock_timestamp()")
        volatile = wait_event(gateway, ORDERS, Kind.ALTERED, count=3)
        assert volatile.reread
        assert [one.name for one in volatile.columns if one.is_unknown] == ["at"]
        run(postgres, "VACUUM FULL orders", "ALTER TABLE orders DROP COLUMN note, ADD COLUMN note text")
        again = wait_event(gateway, ORDERS, Kind.ALTERED, count=4)
        assert "dropped and added again: note" in again.unlogged_changes
        run(postgres, "INSERT INTO orders (id) VALUES (9)")
        gateway.wait(lambda: kinds(gateway, ORDERS) == [INSERT])
        assert len(events(gateway, ORDERS)) == 4


def test_generated_columns_when_rows_change_then_they_are_left_out_until_they_are_ordinary_ones(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, columns=f"{COLUMNS}, twice int GENERATED ALWAYS AS (id * 2) STORED")
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, "INSERT INTO orders (id, name) VALUES (1, 'a')", "ALTER TABLE orders REPLICA IDENTITY FULL")
        run(postgres, "UPDATE orders SET name = 'b'", "ALTER TABLE orders RENAME name TO title")
        run(postgres, "INSERT INTO orders (id, title) VALUES (2, 'c')")
        gateway.wait(lambda: len(kinds(gateway, ORDERS)) == 4)
        assert [row.get("name", row.get("title")) for row in gateway.rows(SOURCE, ORDERS)] == ["a", "a", "b", "c"]
        assert all("twice" not in row for row in gateway.rows(SOURCE, ORDERS))
        assert [event.reread for event in events(gateway, ORDERS)] == [False]
        run(postgres, "ALTER TABLE orders ALTER twice DROP EXPRESSION", "INSERT INTO orders VALUES (3, 'd', '', 7)")
        gateway.wait(lambda: any(event.reread for event in events(gateway, ORDERS)))
        run(postgres, "INSERT INTO orders VALUES (4, 'e', '', 9)")
        gateway.wait(lambda: [row for row in gateway.rows(SOURCE, ORDERS) if row.get("twice") == 9])


@pytest.mark.long
def test_enum_when_a_label_is_renamed_then_the_rows_are_to_be_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    run(postgres, "CREATE TYPE mood AS ENUM ('sad', 'ok')")
    create(postgres, columns="id int PRIMARY KEY, name text, note text, mood mood DEFAULT 'ok'", rows=0)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(
            postgres,
            "ALTER TYPE mood ADD VALUE 'glad'",
            "INSERT INTO orders VALUES (1, '', '', 'glad')",
            "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        )
        told = wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        assert "'ok' was renamed to 'fine'" in told.unlogged_changes
        assert gateway.rows(SOURCE, ORDERS)[0]["mood"] == "glad"


def test_table_when_truncated_dropped_renamed_and_made_again_then_each_is_told(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    create(postgres, "items")
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, "INSERT INTO orders VALUES (1, '', '')", "TRUNCATE orders, items")
        assert wait_event(gateway, ORDERS, Kind.TRUNCATED).removes_rows
        assert current(gateway, ORDERS) == {}
        run(postgres, "ALTER TABLE orders RENAME TO former")
        renamed = wait_event(gateway, ORDERS, Kind.RENAMED)
        assert renamed.removes_rows
        assert (renamed.new_name.database, renamed.new_name.table) == ("public", "former")
        create(postgres, rows=2)
        created = wait_event(gateway, ORDERS, Kind.CREATED)
        assert created.removes_rows
        assert created.reread
        assert [one.name for one in created.columns] == ["id", "name", "note"]
        run(postgres, "INSERT INTO orders VALUES (3, 'new', '')", "INSERT INTO former VALUES (4, 'old', '')")
        gateway.wait(lambda: current(gateway, ORDERS))
        run(postgres, "DROP TABLE orders")
        assert wait_event(gateway, ORDERS, Kind.DROPPED).removes_rows
        assert current(gateway, ORDERS) == {}


def test_text_when_the_database_has_no_encoding_then_bytes_that_are_no_text_are_told_as_such(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    postgres.run(
        "DROP DATABASE shop WITH (FORCE)",
        "CREATE DATABASE shop ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    create(postgres)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(postgres, r"INSERT INTO orders VALUES (1, E'gr\xfcn', E'gr\xc3\xbcn'), (2, 'plain', E'\xff')")
        gateway.wait(lambda: len(current(gateway, ORDERS)) == 2)
        rows = {row["id"]: row for row in gateway.rows(SOURCE, ORDERS)}
    assert (rows[1]["name"], rows[1]["note"]) == (None, "gr\u00fcn")
    assert rows[1]["_unrepresentable"] == '{"name":"0x6772FC6E"}'
    assert (rows[2]["name"], rows[2]["note"]) == ("plain", None)
    assert rows[2]["_unrepresentable"] == '{"note":"0xFF"}'


def test_partitions_when_made_attached_emptied_and_dropped_then_rows_are_read_again_where_none_is_logged(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, columns="id int PRIMARY KEY, name text, note text) PARTITION BY RANGE (id")
    run(postgres, "CREATE TABLE orders_0 PARTITION OF orders FOR VALUES FROM (0) TO (100)")
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        run(
            postgres,
            "INSERT INTO orders VALUES (1, 'a', '')",
            "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (100) TO (200)",
            "INSERT INTO orders VALUES (101, 'b', '')",
            "UPDATE orders SET id = 102 WHERE id = 1",
        )
        gateway.wait(lambda: current(gateway, ORDERS) == selected(postgres, ORDERS))
        run(
            postgres,
            "BEGIN; CREATE TABLE orders_2 (LIKE orders INCLUDING ALL); INSERT INTO orders_2 VALUES (201, 'full', '');"
            " ALTER TABLE orders ATTACH PARTITION orders_2 FOR VALUES FROM (200) TO (300); COMMIT",
        )
        attached = wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        assert "attached" in attached.unlogged_changes
        assert len(events(gateway, ORDERS)) == 1
        run(postgres, "TRUNCATE orders_2")
        assert "emptied" in wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED, count=2).unlogged_changes
        run(postgres, "DROP TABLE orders_2")
        assert "dropped" in wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED, count=3).unlogged_changes
        run(postgres, "ALTER TABLE orders ADD COLUMN paid int DEFAULT 7", "INSERT INTO orders (id) VALUES (5)")
        added = wait_event(gateway, ORDERS, Kind.ALTERED)
        assert [(one.name, one.text) for one in added.columns if one.HasField("text")] == [("paid", "7")]
        run(postgres, "TRUNCATE orders")
        wait_event(gateway, ORDERS, Kind.TRUNCATED)
        run(postgres, "INSERT INTO orders (id, paid) VALUES (6, 8)")
        gateway.wait(lambda: current(gateway, ORDERS) == selected(postgres, ORDERS))
        assert len(events(gateway, ORDERS, Kind.ROWS_UNLOGGED)) == 3


def test_slot_when_a_whole_table_is_read_and_not_landed_yet_then_it_stays_where_that_begins(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    bag = create(postgres, "bag", "id int, name text, note text", rows=10)
    run(postgres, "ALTER TABLE bag REPLICA IDENTITY FULL")
    gateway.lands_chunks = False
    with streaming(tmp_path, gateway, postgres), Writers(postgres, "orders", 1) as writers:
        begin(gateway, ORDERS)
        gateway.sync(SOURCE, bag, dump="d")
        dump = gateway.dump(SOURCE, "d", bag)
        gateway.wait(lambda: [chunk for chunk in gateway.source(SOURCE).ledger.pending.values() if chunk.end])
        (chunk,) = gateway.source(SOURCE).ledger.pending.values()
        assert chunk.end is not None
        shown = parse_lsn(chunk.end.position)
        for _ in range(3):
            least = writers.transactions + 20
            gateway.wait(lambda least=least: writers.transactions > least)
            run(postgres, "UPDATE bag SET name = 'behind' WHERE id = 3")
        gateway.wait(lambda: committed_lsn(gateway) > shown)
        assert confirmed_lsn(postgres) <= shown
        gateway.drop(SOURCE, Role.CHANGES)
        least = writers.transactions + 20
        gateway.wait(lambda: writers.transactions > least)
        assert confirmed_lsn(postgres) <= shown
        gateway.lands_chunks = True
        gateway.drop(SOURCE, Role.CATALOG)
        wait_dumped(gateway, dump)
        gateway.wait(lambda: confirmed_lsn(postgres) > shown)
