"""Changes of tables whose ignored columns the server leaves out: nothing else is missing, whatever becomes of them."""

from pathlib import Path

import pytest

from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import (
    ORDERS,
    Writers,
    begin,
    create,
    events,
    kinds,
    looks_often,
    run,
    stopped,
    streaming,
)
from tests.postgres import SourceServer

FILTERED = {"filtered_by": "server", "filter": {"public.orders": {"ignored_columns": ["name"]}}}
HAS_LIST = "SELECT prattrs IS NOT NULL FROM pg_publication_rel WHERE prrelid = 'orders'::regclass"

HAS_MORE = (
    "SELECT attnum = ANY (prattrs) FROM pg_publication_rel JOIN pg_attribute ON attrelid = prrelid AND attname = 'more'"
    " WHERE prrelid = 'orders'::regclass"
)


@pytest.fixture(autouse=True)
def _often(postgres: SourceServer, monkeypatch: pytest.MonkeyPatch) -> None:
    if postgres.version < 150000:
        pytest.skip("publications have column lists from version 15 on")
    looks_often(monkeypatch)
    monkeypatch.setattr("agent.sources.postgresql.changes.SLOT_SECONDS", 1.0)


def test_column_when_added_beside_writers_then_all_rows_without_it_come_before_they_are_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres, **FILTERED):
        begin(gateway, ORDERS)
        assert run(postgres, HAS_LIST) == [(True,)]
        with Writers(postgres, "orders", 5) as writers:
            for number in range(3):
                name = f"more{number}"
                run(postgres, f"ALTER TABLE orders ADD COLUMN {name} int DEFAULT 5")
                run(postgres, f"INSERT INTO orders (id, {name}) VALUES ({-number - 1}, 7)")
                gateway.wait(lambda number=number: len(reread(gateway)) > number)
                least = writers.transactions + 30
                gateway.wait(lambda least=least: writers.transactions > least)
        run(postgres, "INSERT INTO orders (id, more0, more1, more2) VALUES (-9, 1, 2, 3)")
        gateway.wait(lambda: rows_with(gateway, more0=1, more1=2, more2=3))
        for number, again in enumerate(reread(gateway)):
            lacking = [row for row in gateway.rows(SOURCE, ORDERS) if f"more{number}" not in row]
            assert max(int(str(row["_gsn"])) for row in lacking) < again
        assert all("name" not in row for row in gateway.rows(SOURCE, ORDERS))
        assert not stopped(gateway, ORDERS)


@pytest.mark.long
@pytest.mark.parametrize("is_lost", [False, True])
def test_column_when_added_while_the_agent_is_away_then_the_rows_are_read_again_behind_those_without_it(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, is_lost: bool
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres, **FILTERED):
        begin(gateway, ORDERS)
    gateway.wait_gone(SOURCE)
    run(postgres, "ALTER TABLE orders ADD COLUMN more int DEFAULT 5", "INSERT INTO orders (id, more) VALUES (1, 7)")
    if is_lost:
        (tmp_path / "state" / f"{SOURCE}.definitions.json").unlink()
    with postgres.connect("shop", autocommit=False) as old:
        old.execute("INSERT INTO orders (id, more) VALUES (2, 7)")
        with streaming(tmp_path, gateway, postgres, **FILTERED):
            gateway.wait(lambda: run(postgres, HAS_MORE) == [(True,)])
            run(postgres, "INSERT INTO orders (id, more) VALUES (3, 7)")
            gateway.wait(lambda: rows_with(gateway, id=3, more=7))
            old.execute("INSERT INTO orders (id, more) VALUES (4, 7)")
            before = len(reread(gateway))
            old.commit()
            gateway.wait(lambda: len(reread(gateway)) > before)
            gateway.wait(lambda: rows_with(gateway, id=4))
            lacking = [row for row in gateway.rows(SOURCE, ORDERS) if row.get("more") != 7]
            assert 1 in {row["id"] for row in lacking}
            assert max(int(str(row["_gsn"])) for row in lacking) < reread(gateway)[-1]
            assert not stopped(gateway, ORDERS)


def reread(gateway: GatewayDouble) -> list[int]:
    """The numbers of the events that have the rows read again."""
    return [event.gsn for event in events(gateway, ORDERS) if event.reread]


def rows_with(gateway: GatewayDouble, **values: int) -> bool:
    return any(values.items() <= row.items() for row in gateway.rows(SOURCE, ORDERS))


def test_identity_when_it_becomes_full_then_rows_can_be_changed_again_and_come_whole(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=2)
    with streaming(tmp_path, gateway, postgres, **FILTERED):
        begin(gateway, ORDERS)
        run(postgres, "ALTER TABLE orders REPLICA IDENTITY FULL")
        gateway.wait(lambda: run(postgres, HAS_LIST) == [(False,)])
        run(postgres, "UPDATE orders SET note = 'other'", "DELETE FROM orders")
        gateway.wait(lambda: len(kinds(gateway, ORDERS)) == 6)
        assert {row["note"] for row in gateway.rows(SOURCE, ORDERS)} == {"note 1", "note 2", "other"}
        assert all("name" not in row for row in gateway.rows(SOURCE, ORDERS))


def test_ignored_column_when_renamed_then_the_table_stops_and_no_value_of_it_has_come(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=1)
    with streaming(tmp_path, gateway, postgres, **FILTERED):
        begin(gateway, ORDERS)
        run(postgres, "ALTER TABLE orders RENAME name TO title", "UPDATE orders SET title = 'kept back'")
        gateway.wait(lambda: stopped(gateway, ORDERS))
        assert "title" in str(stopped(gateway, ORDERS)[0].error)
        assert "kept back" not in str(gateway.rows(SOURCE, ORDERS))


def test_source_when_no_table_is_read_any_more_then_its_lists_bind_nobody(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres, **FILTERED):
        begin(gateway, ORDERS)
        gateway.unsync(SOURCE, ORDERS)
        gateway.wait(lambda: run(postgres, HAS_LIST) == [])
        run(postgres, "ALTER TABLE orders DROP COLUMN note")


def test_lists_when_the_setting_is_taken_out_then_they_go_and_no_row_is_lost(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    with streaming(tmp_path, gateway, postgres, **FILTERED):
        begin(gateway, ORDERS)
        run(postgres, "INSERT INTO orders VALUES (1, 'kept back', 'a')")
        gateway.wait(lambda: rows_with(gateway, id=1))
    assert run(postgres, HAS_LIST) == [(True,)]
    run(postgres, "INSERT INTO orders VALUES (2, 'kept back', 'b')")
    with streaming(tmp_path, gateway, postgres, filter=FILTERED["filter"]):
        gateway.wait(lambda: run(postgres, HAS_LIST) == [(False,)])
        run(postgres, "INSERT INTO orders VALUES (3, 'kept back', 'c')", "ALTER TABLE orders DROP COLUMN note")
        run(postgres, "INSERT INTO orders VALUES (4, 'kept back')")
        gateway.wait(lambda: all(rows_with(gateway, id=number) for number in (2, 3, 4)))
        assert not stopped(gateway, ORDERS)
        assert "kept back" not in str(gateway.rows(SOURCE, ORDERS))
