"""Tables that stop in a stream, at the transaction before what they can't go through; the others go on."""

from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from agent.sources.postgresql.positions import parse_lsn
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import (
    ORDERS,
    Kind,
    begin,
    create,
    current,
    events,
    looks_often,
    run,
    stopped,
    streaming,
)
from tests.postgres import SourceServer

ITEMS = ("public", "items")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)


def wait_stopped(gateway: GatewayDouble) -> changes_pb2.TableStopped:
    gateway.wait(lambda: stopped(gateway, ORDERS))
    (stop,) = stopped(gateway, ORDERS)
    return stop


def goes_on(gateway: GatewayDouble, postgres: SourceServer) -> None:
    run(postgres, "INSERT INTO items VALUES (77, 'other', '')")
    gateway.wait(lambda: (77,) in current(gateway, ITEMS))


def test_column_when_a_rename_in_a_transaction_reveals_it_then_the_table_stops_before_that_transaction(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    create(postgres, "items")
    rules = {"orders": {"ignored_columns": ["note"]}}
    with streaming(tmp_path, gateway, postgres, filter=rules):
        begin(gateway, ORDERS, ITEMS)
        run(postgres, "INSERT INTO orders VALUES (1, 'shown', 'hidden')")
        gateway.wait(lambda: current(gateway, ORDERS))
        run(
            postgres,
            "BEGIN; INSERT INTO items VALUES (1, 'both', ''); INSERT INTO orders VALUES (2, 'begun', 'hidden');"
            " ALTER TABLE orders RENAME note TO remark; INSERT INTO orders VALUES (3, 'revealed', 'hidden'); COMMIT",
        )
        stop = wait_stopped(gateway)
        assert stop.error.code == "TABLE_IGNORED_RENAMED"
        gateway.wait(lambda: (1,) in current(gateway, ITEMS))
        goes_on(gateway, postgres)
        assert current(gateway, ORDERS) == {(1,): {"id": 1, "name": "shown"}}
        cut = next(end for end in gateway.source(SOURCE).committed if end.stopped)
        assert parse_lsn(stop.position.text) <= parse_lsn(cut.position.text)
    assert not any("hidden" in str(row) for row in gateway.rows(SOURCE, ORDERS))


def test_rows_when_written_anew_and_the_policy_is_to_stop_then_the_table_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=2)
    create(postgres, "items")
    with streaming(tmp_path, gateway, postgres, unlogged_changes="stop"):
        begin(gateway, ORDERS, ITEMS)
        run(postgres, "ALTER TABLE orders ALTER COLUMN name TYPE int USING id")
        stop = wait_stopped(gateway)
        assert stop.error.code == "TABLE_ROWS_UNLOGGED"
        assert not events(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        goes_on(gateway, postgres)


def test_table_when_another_one_takes_its_name_and_the_policy_is_to_stop_then_it_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    create(postgres, "items")
    create(postgres, "others", rows=1)
    run(postgres, "CREATE PUBLICATION menura FOR ALL TABLES")
    with streaming(tmp_path, gateway, postgres, unlogged_changes="stop"):
        begin(gateway, ORDERS, ITEMS)
        run(
            postgres,
            "INSERT INTO orders VALUES (1, 'before', '')",
            "BEGIN; ALTER TABLE orders RENAME TO former; ALTER TABLE others RENAME TO orders;"
            " INSERT INTO orders VALUES (2, 'after', ''); COMMIT",
        )
        assert "another table has its name" in wait_stopped(gateway).error.found
        goes_on(gateway, postgres)
        assert (2,) not in current(gateway, ORDERS)


def test_table_when_it_is_published_no_more_and_may_not_be_then_it_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres)
    create(postgres, "items")
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS, ITEMS)
        run(postgres, "ALTER TABLE orders OWNER TO postgres", "ALTER PUBLICATION menura DROP TABLE orders")
        assert wait_stopped(gateway).error.code == "TABLE_UNPUBLISHED"
        goes_on(gateway, postgres)
