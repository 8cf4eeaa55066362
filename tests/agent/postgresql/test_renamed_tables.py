"""Tables that the filter keeps back, under new names: what it says of their former ones goes on."""

from contextlib import closing
from pathlib import Path

import pytest
from menura.v1 import changes_pb2, config_pb2

from agent.filter import Filter
from agent.sources.postgresql.first_names import FirstNames
from agent.sources.postgresql.identifiers import IDENTIFIERS
from agent.sources.postgresql.server.connection import connect
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.postgresql.sources import SOURCE, config_of
from tests.agent.postgresql.streaming import (
    ORDERS,
    Kind,
    begin,
    create,
    looks_often,
    run,
    stopped,
    streaming,
    wait_event,
)
from tests.agent.test_replication import last_state
from tests.postgres import SourceServer

OTHER: Table = ("public", "other")
FRESH: Table = ("public", "fresh")
CANARY = "kanarienvogel"
DENIED = config_pb2.TableState.DENIED
HIDDEN = {"filter": {"public.hidden": None}}
SWAP = (
    "BEGIN; ALTER TABLE orders RENAME TO tmp; ALTER TABLE hidden RENAME TO orders; ALTER TABLE tmp RENAME TO hidden;"
    " COMMIT"
)
MOVE = "CREATE SCHEMA aside; ALTER TABLE orders SET SCHEMA aside; ALTER TABLE closed.orders SET SCHEMA public"


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)
    monkeypatch.setattr("agent.sources.postgresql.changes.SLOT_SECONDS", 1.0)


def make(server: SourceServer) -> None:
    """Tables orders, other and hidden; the last has the canary."""
    for table in ("orders", "other", "hidden"):
        create(server, table)
        insert(server, table, 1, CANARY if table == "hidden" else table)


def insert(server: SourceServer, table: str, number: int, note: str) -> None:
    run(server, f"INSERT INTO {table} VALUES ({number}, '', '{note}')")


def wait_note(gateway: GatewayDouble, table: Table, note: str) -> None:
    gateway.wait(lambda: any(row["note"] == note for row in gateway.rows(SOURCE, table)))


def wait_stopped(gateway: GatewayDouble, table: Table) -> changes_pb2.TableStopped:
    gateway.wait(lambda: stopped(gateway, table))
    (stop,) = stopped(gateway, table)
    assert stop.error.code == "TABLE_DENIED", stop
    return stop


def wait_denied(gateway: GatewayDouble, table: Table) -> None:
    gateway.wait(lambda: (state := last_state(gateway, table)) and state.state == DENIED)


def check_nothing_left(gateway: GatewayDouble) -> None:
    record = gateway.source(SOURCE)
    rows = [batch.rows.to_pylist() for batch in record.batches] + [chunk.rows for chunk in record.ledger.chunks]
    assert CANARY not in repr(rows)
    assert CANARY.encode() not in b"".join(gateway.messages)


#: it has rows of denied tables too
ALL_TABLES = "CREATE PUBLICATION menura FOR ALL TABLES WITH (publish_via_partition_root = true)"


@pytest.mark.parametrize("is_of_all", [False, True], ids=["named", "all"])
@pytest.mark.parametrize("rows_follow", [True, False])
def test_denied_table_when_it_takes_a_synced_ones_name_then_that_stops_and_stays_denied(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, rows_follow: bool, is_of_all: bool
) -> None:
    make(postgres)
    if is_of_all:
        run(postgres, ALL_TABLES)
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        begin(gateway, ORDERS, OTHER)
        insert(postgres, "orders", 2, "before")
        wait_note(gateway, ORDERS, "before")
        run(postgres, SWAP)
        if rows_follow:
            insert(postgres, "orders", 2, CANARY)
        stop = wait_stopped(gateway, ORDERS)
        assert "was renamed from public.hidden" in stop.error.found
        assert "sources.shop.filter.public.orders.renamed_from: [public.hidden]" in stop.error.remedy
    insert(postgres, "orders", 3, CANARY)
    gateway.sync(SOURCE, ORDERS, now=True)
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        insert(postgres, "orders", 4, CANARY)
        insert(postgres, "other", 2, "later")
        wait_note(gateway, OTHER, "later")
        wait_denied(gateway, ORDERS)
    check_nothing_left(gateway)


def test_denied_table_when_it_takes_a_name_among_changes_then_rows_of_before_alone_come(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """One transaction has rows of both under the one name; those of the denied table are not published."""
    make(postgres)
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        begin(gateway, ORDERS, OTHER)
        insert(postgres, "orders", 2, "before")
        wait_note(gateway, ORDERS, "before")
        run(
            postgres,
            f"BEGIN; INSERT INTO orders VALUES (3, '', 'within'); {SWAP[7:-8]};"
            f" INSERT INTO orders VALUES (9, '', '{CANARY}'); COMMIT",
        )
        wait_stopped(gateway, ORDERS)
        insert(postgres, "other", 2, "later")
        wait_note(gateway, OTHER, "later")
    assert [row["note"] for row in gateway.rows(SOURCE, ORDERS)] == ["before", "within"]
    check_nothing_left(gateway)


def test_denied_table_when_all_tables_are_published_and_it_takes_a_name_among_changes_then_none_of_its_rows_comes(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    make(postgres)
    run(postgres, ALL_TABLES)
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        begin(gateway, ORDERS, OTHER)
        insert(postgres, "orders", 2, "before")
        insert(postgres, "hidden", 2, CANARY)
        wait_note(gateway, ORDERS, "before")
        run(
            postgres,
            f"BEGIN; INSERT INTO orders VALUES (3, '', 'within'); {SWAP[7:-8]};"
            f" INSERT INTO orders VALUES (9, '', '{CANARY}'); COMMIT",
        )
        wait_stopped(gateway, ORDERS)
        insert(postgres, "orders", 10, CANARY)
        insert(postgres, "other", 2, "later")
        wait_note(gateway, OTHER, "later")
    assert gateway.rows(SOURCE, ORDERS)[0]["note"] == "before"
    check_nothing_left(gateway)


def test_denied_table_when_it_comes_from_another_schema_then_that_name_stops(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    make(postgres)
    run(postgres, "CREATE SCHEMA closed", "ALTER TABLE hidden SET SCHEMA closed")
    run(postgres, "ALTER TABLE closed.hidden RENAME TO orders", "GRANT USAGE ON SCHEMA closed TO menura")
    with streaming(tmp_path, gateway, postgres, filter={"closed.orders": None}):
        begin(gateway, ORDERS, OTHER)
        run(postgres, *MOVE.split("; "))
        insert(postgres, "orders", 2, CANARY)
        assert "was renamed from closed.orders" in wait_stopped(gateway, ORDERS).error.found
    check_nothing_left(gateway)


@pytest.mark.parametrize("is_away", [False, True])
def test_denied_table_when_it_has_another_name_then_stays_denied_until_the_filter_names_the_former(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, is_away: bool
) -> None:
    make(postgres)
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        begin(gateway, OTHER)
        if not is_away:
            run(postgres, "ALTER TABLE hidden RENAME TO fresh")
            insert(postgres, "other", 2, "behind")
            wait_note(gateway, OTHER, "behind")
    if is_away:
        run(postgres, "ALTER TABLE hidden RENAME TO fresh")
    gateway.sync(SOURCE, FRESH, now=True)
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        insert(postgres, "fresh", 2, CANARY)
        insert(postgres, "other", 3, "later")
        wait_note(gateway, OTHER, "later")
        wait_denied(gateway, FRESH)
    check_nothing_left(gateway)
    gateway.sync(SOURCE, FRESH, now=True)
    named = {"public.hidden": None, "public.fresh": {"renamed_from": ["hidden"]}}
    with streaming(tmp_path, gateway, postgres, filter=named):
        gateway.wait(lambda: (state := last_state(gateway, FRESH)) and state.state != DENIED)
        numbers = iter(range(10, 10_000))
        gateway.wait(
            lambda: insert(postgres, "fresh", next(numbers), "let") or gateway.rows(SOURCE, FRESH)  # type: ignore[func-returns-value]
        )


def test_ignored_columns_when_their_table_takes_another_name_then_they_stay_ignored(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    make(postgres)
    with streaming(tmp_path, gateway, postgres, filter={"public.hidden": {"ignored_columns": ["note"]}}):
        begin(gateway, ORDERS, OTHER)
        run(postgres, SWAP)
        insert(postgres, "orders", 2, CANARY)
        made = wait_event(gateway, ORDERS, Kind.CREATED)
        assert [one.name for one in made.columns] == ["id", "name"]
        numbers = iter(range(10, 10_000))  # what comes before the table is published is left to a dump
        gateway.wait(
            lambda: insert(postgres, "orders", next(numbers), CANARY) or gateway.rows(SOURCE, ORDERS)  # type: ignore[func-returns-value]
        )
    check_nothing_left(gateway)


def test_synced_table_when_it_takes_a_name_that_is_denied_then_it_is_told_and_no_row_of_it_comes(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    make(postgres)
    run(postgres, "DROP TABLE hidden")
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        begin(gateway, ORDERS, OTHER)
        run(postgres, "ALTER TABLE orders RENAME TO hidden")
        insert(postgres, "hidden", 2, CANARY)
        told = wait_event(gateway, ORDERS, Kind.RENAMED)
        assert not told.HasField("new_name")
        insert(postgres, "other", 2, "later")
        wait_note(gateway, OTHER, "later")
    check_nothing_left(gateway)


def test_table_when_it_is_swapped_back_then_it_goes_on_once_it_is_synced_anew(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    make(postgres)
    with streaming(tmp_path, gateway, postgres, **HIDDEN):
        begin(gateway, ORDERS, OTHER)
        run(postgres, SWAP)
        wait_stopped(gateway, ORDERS)
        run(postgres, SWAP)
        gateway.sync(SOURCE, ORDERS, now=True)
        numbers = iter(range(10, 10_000))
        gateway.wait(
            lambda: insert(postgres, "orders", next(numbers), "again") or gateway.rows(SOURCE, ORDERS)  # type: ignore[func-returns-value]
        )
    check_nothing_left(gateway)


def test_names_when_the_agent_starts_again_then_they_are_the_first_ones_until_the_table_is_gone(
    postgres: SourceServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(postgres)
    filter_ = Filter(rules={"public.hidden": None}, identifiers=IDENTIFIERS)

    def begun(database: int = 5) -> FirstNames:
        names = FirstNames(tmp_path, SOURCE, filter_)
        names.begin(connection, "7", database)
        return names

    with closing(connect(config_of(postgres).replication, SOURCE)) as connection:
        names = begun()
        run(postgres, "ALTER TABLE hidden RENAME TO fresh")
        assert filter_.verdict(*FRESH).allowed  # the stream is not there yet
        ((oid,),) = run(postgres, "SELECT 'fresh'::regclass::oid::bigint")
        names.came(int(str(oid)), FRESH)
        assert not filter_.verdict(*FRESH).allowed
        names = begun()
        assert not filter_.verdict(*FRESH).allowed
        run(postgres, "DROP TABLE fresh")
        shown, gone = names.seen(connection)
        names.came(int(str(oid)), FRESH)  # a row of before, which the stream meets behind the look
        assert not filter_.verdict(*FRESH).allowed
        names.passed(shown, gone)
        create(postgres, "fresh")
        names = begun()
        assert filter_.verdict(*FRESH).allowed
        run(postgres, "ALTER TABLE fresh RENAME TO hidden", "ALTER TABLE hidden RENAME TO late")
        names = begun()
        assert filter_.origins.of(("public", "late")) == [FRESH]
        begun(database=6)
        assert filter_.origins.of(("public", "late")) == []
        path = tmp_path / f"{SOURCE}.names.json"
        path.write_text(path.read_text().replace('"format":1', '"format":7'))
        begun(database=6)
        assert "names count as they are" in caplog.text
