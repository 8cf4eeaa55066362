"""Rows that a server changes without logging them: what the gateway hears, by the policy of the table."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_schema_over_time import MINIMAL
from tests.servers import Flavor, Server, server

T: Table = ("shop", "t")
BESIDE: Table = ("shop", "beside")
TableEvent = changes_pb2.TableEvent

MADE = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "CREATE TABLE shop.t (id INT PRIMARY KEY, n DECIMAL(12,4), w VARCHAR(10)) PARTITION BY HASH (id) PARTITIONS 2",
    "CREATE TABLE shop.beside (id INT PRIMARY KEY)",
    "CREATE TABLE shop.other (id INT PRIMARY KEY, n DECIMAL(12,4), w VARCHAR(10))",
)
#: statements, and of each event that they make: kind, whether all rows went, whether earlier rows may be stale
CAUSES: dict[str, tuple[tuple[str, ...], list[tuple[str, bool, bool]]]] = {
    "a table renamed away, another in its place": (
        ("RENAME TABLE shop.t TO shop.away, shop.other TO shop.t",),
        [("RENAMED", True, False), ("CREATED", False, True)],
    ),
    "a table renamed away and back": (
        ("RENAME TABLE shop.t TO shop.away", "RENAME TABLE shop.away TO shop.t"),
        [("RENAMED", True, False), ("CREATED", False, True)],
    ),
    "a partition truncated": (
        ("ALTER TABLE shop.t TRUNCATE PARTITION p0",),
        [("ALTERED", False, True)],
    ),
    "a partition exchanged": (
        ("INSERT INTO shop.other VALUES (2, 2, 'x')", "ALTER TABLE shop.t EXCHANGE PARTITION p0 WITH TABLE shop.other"),
        [("ALTERED", False, True)],
    ),
    "all partitions truncated": (
        ("ALTER TABLE shop.t TRUNCATE PARTITION ALL",),
        [("ALTERED", True, False)],
    ),
}


@pytest.fixture(params=["mariadb", "mysql"])
def flavor(request: pytest.FixtureRequest) -> Flavor:
    kind: Flavor = request.param
    return kind


@pytest.fixture(params=["MINIMAL", "FULL"])
def database(request: pytest.FixtureRequest, flavor: Flavor, tmp_path: Path) -> Iterator[Server]:
    metadata = MINIMAL[flavor] if request.param == "MINIMAL" else "FULL"
    with server(flavor, tmp_path / "server", binlog_row_metadata=metadata) as running:
        running.create_replication_user()
        yield running


def config(folder: Path, gateway: GatewayDouble, database: Server, **source: object) -> Path:
    return write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})


def run(database: Server, gateway: GatewayDouble, *statements: str) -> None:
    """The statements, and a row beside them, which the agent has read when this returns."""
    read = len(gateway.rows("shop", BESIDE))
    database.run(*statements, f"INSERT INTO shop.beside VALUES ({read + 1})")
    gateway.wait(lambda: len(gateway.rows("shop", BESIDE)) > read)


def make(database: Server, gateway: GatewayDouble) -> None:
    database.run("DROP DATABASE IF EXISTS shop", *MADE)
    gateway.sync("shop", T, BESIDE, now=True)


def test_a_table_when_rows_change_unlogged_streams_on_and_says_since_where(database: Server, tmp_path: Path) -> None:
    for number, cause in enumerate(CAUSES):
        gateway, folder = GatewayDouble(), tmp_path / str(number)
        folder.mkdir()
        try:
            stream_on(database, gateway, folder, cause)
        finally:
            gateway.stop()


def stream_on(database: Server, gateway: GatewayDouble, folder: Path, cause: str) -> None:
    statements, wanted = CAUSES[cause]
    make(database, gateway)
    with running_agent(config(folder, gateway, database, dump={"max_rereads_per_hour": 7}), folder / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        run(database, gateway, "INSERT INTO shop.t VALUES (1, 1, 'a'), (2, 2, 'b')")
        run(database, gateway, *statements)
        run(database, gateway, "REPLACE INTO shop.t VALUES (9, 9, 'i')")
    told = gateway.events("shop", T)
    found = [(TableEvent.Kind.Name(e.kind), e.removes_rows, bool(e.unlogged_changes)) for e in told]
    assert found == wanted, cause
    for event in told:
        assert (event.reread, event.most_rereads_per_hour) == ((True, 7) if event.unlogged_changes else (False, 0))
    assert any(row["id"] == 9 for row in gateway.rows("shop", T)), cause
    assert [cut.stopped for cut in gateway.source("shop").committed if cut.stopped] == [], cause


@pytest.mark.parametrize("by_table", [True, False])
def test_a_table_when_the_policy_is_to_stop_stops_alone_before_the_statement(
    database: Server, gateway: GatewayDouble, tmp_path: Path, by_table: bool
) -> None:
    make(database, gateway)
    policy: dict[str, object] = {"unlogged_changes": "stop"}
    if by_table:
        policy = {"unlogged_changes": "note", "filter": {"shop.t": {"unlogged_changes": "stop"}}}
    with running_agent(config(tmp_path, gateway, database, **policy), tmp_path / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        run(database, gateway, "INSERT INTO shop.t VALUES (1, 1, 'a')")
        run(database, gateway, "ALTER TABLE shop.t TRUNCATE PARTITION p0", "REPLACE INTO shop.t VALUES (9, 9, 'i')")
    stops = [stop for cut in gateway.source("shop").committed for stop in cut.stopped]
    assert [(stop.table.table, stop.error.code) for stop in stops] == [("t", "TABLE_ROWS_UNLOGGED")]
    assert "menura sync start shop shop.t --from dump" in stops[0].error.remedy
    assert [row["id"] for row in gateway.rows("shop", T)] == [1]
    assert gateway.events("shop", T) == []


def test_a_table_when_the_policy_is_to_note_streams_on_and_orders_nothing(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    make(database, gateway)
    with running_agent(config(tmp_path, gateway, database, unlogged_changes="note"), tmp_path / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        run(database, gateway, "ALTER TABLE shop.t TRUNCATE PARTITION p0", "REPLACE INTO shop.t VALUES (9, 9, 'i')")
    (event,) = gateway.events("shop", T)
    assert (bool(event.unlogged_changes), event.reread, event.most_rereads_per_hour) == (True, False, 0)
    assert [row["id"] for row in gateway.rows("shop", T)] == [9]
