"""Tables that are written anew: with other values, which nothing logs, or with the same."""

from pathlib import Path

import pytest

from agent.sources.postgresql.stream.definition_store import Known, known_of, record_of
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE
from tests.agent.postgresql.streaming import (
    ORDERS,
    Kind,
    begin,
    create,
    events,
    looks_often,
    run,
    stopped,
    streaming,
    wait_event,
)
from tests.agent.postgresql.test_definition_changes import column, table
from tests.postgres import SourceServer

OTHER_VALUES = "ALTER TABLE orders ALTER note TYPE text USING note || ' of then'"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)
    monkeypatch.setattr("agent.sources.postgresql.changes.SLOT_SECONDS", 1.0)


@pytest.mark.parametrize("is_away", [False, True])
def test_column_when_it_gets_its_own_type_with_other_values_then_the_rows_are_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, is_away: bool
) -> None:
    create(postgres, rows=3)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        if not is_away:
            run(postgres, OTHER_VALUES)
            wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED)
    gateway.wait_gone(SOURCE)
    if is_away:
        run(postgres, OTHER_VALUES)
    with streaming(tmp_path, gateway, postgres):
        told = wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        assert "written anew, and a column altered" in told.unlogged_changes
        assert told.reread
        run(postgres, "INSERT INTO orders VALUES (9, 'behind', 'it')")
        gateway.wait(lambda: any(row["id"] == 9 for row in gateway.rows(SOURCE, ORDERS)))
        assert len(events(gateway, ORDERS)) == 1
        assert all(int(str(row["_gsn"])) > told.gsn for row in gateway.rows(SOURCE, ORDERS) if row["id"] == 9)


def test_column_when_its_values_change_and_rows_follow_then_the_rows_are_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """The Relation message of such a row is as ever, and does not hide what has changed."""
    create(postgres, rows=3)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS)
        with postgres.connect("shop", autocommit=False) as connection:
            connection.execute(OTHER_VALUES)
            connection.execute("INSERT INTO orders VALUES (9, 'with', 'it')")
            connection.commit()
        gateway.wait(lambda: any(row["id"] == 9 for row in gateway.rows(SOURCE, ORDERS)))
        assert wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED).reread


def test_table_when_its_policy_is_to_stop_then_it_stops_where_a_column_has_other_values(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=3)
    with streaming(tmp_path, gateway, postgres, unlogged_changes="stop"):
        begin(gateway, ORDERS)
        run(postgres, OTHER_VALUES)
        gateway.wait(lambda: stopped(gateway, ORDERS))
        assert stopped(gateway, ORDERS)[0].error.code == "TABLE_ROWS_UNLOGGED"


def test_table_when_it_is_written_anew_with_the_same_values_then_nothing_is_told(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=3)
    create(postgres, "beside", rows=3)
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS, ("public", "beside"))
        for statement in (
            "VACUUM FULL orders",
            "CLUSTER orders USING orders_pkey",
            "TRUNCATE orders",
            "ALTER TABLE orders ALTER note SET STATISTICS 7",
            "ANALYZE orders",
            "VACUUM FULL pg_attribute",
        ):
            run(postgres, statement)
            for _ in range(2):  # the first look may have begun before a message of the table, which is newer
                told = len(events(gateway, ("public", "beside")))
                run(postgres, OTHER_VALUES.replace("orders", "beside"))
                wait_event(gateway, ("public", "beside"), Kind.ROWS_UNLOGGED, count=told + 1)
        assert [(event.kind, event.unlogged_changes) for event in events(gateway, ORDERS)] == [(Kind.TRUNCATED, "")]


@pytest.mark.parametrize("columns", ["id int PRIMARY KEY, note text", "id int PRIMARY KEY, note int"])
def test_table_when_it_was_unlogged_for_a_while_then_its_rows_are_read_again(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, columns: str
) -> None:
    """The server refuses this where the publication names the table, and not where that is of all tables."""
    run(postgres, f"CREATE TABLE orders ({columns})", "INSERT INTO orders VALUES (1, NULL)")
    create(postgres, "beside", rows=3)
    run(postgres, "CREATE PUBLICATION menura FOR ALL TABLES WITH (publish_via_partition_root = true)")
    with streaming(tmp_path, gateway, postgres):
        begin(gateway, ORDERS, ("public", "beside"))
    gateway.wait_gone(SOURCE)
    run(
        postgres,
        "ALTER TABLE orders SET UNLOGGED",
        "INSERT INTO orders VALUES (2, NULL)",
        "ALTER TABLE orders SET LOGGED",
        "VACUUM FULL beside",
        "CLUSTER beside USING beside_pkey",
    )
    with streaming(tmp_path, gateway, postgres):
        told = wait_event(gateway, ORDERS, Kind.ROWS_UNLOGGED)
        assert "may have been UNLOGGED" in told.unlogged_changes
        assert told.reread
        run(postgres, "INSERT INTO orders VALUES (9, NULL)")
        gateway.wait(lambda: [row["id"] for row in gateway.rows(SOURCE, ORDERS)] == [9])
    assert len(events(gateway, ORDERS)) == 1
    assert not events(gateway, ("public", "beside"))


def test_definition_when_it_was_stored_before_its_toast_table_was_then_that_is_not_known() -> None:
    known = Known(table(column(1, "id"), toast=700), published="16390 16400 by 735")
    record = record_of(known, 3)
    assert known_of(record, ("shop", "t")) == known
    del record["definition"]["toast"]
    former = known_of(record, ("shop", "t")).definition
    assert former is not None
    assert former.toast is None


def test_definition_when_it_was_stored_before_writers_were_then_they_are_not_known() -> None:
    known = Known(table(column(1, "id"), written_by=((1, 700),)))
    record = record_of(known, 3)
    assert known_of(record, ("shop", "t")) == known
    del record["definition"]["written_by"]
    former = known_of(record, ("shop", "t")).definition
    assert former is not None
    assert former.written_by == ()
