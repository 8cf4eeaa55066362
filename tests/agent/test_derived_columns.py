"""Columns that are computed from ignored ones: they are ignored with them, wherever rows and definitions go."""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from tests.agent.dumping import agent_inside, wait_dumped
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import agent, client, running_agent, write_config
from tests.servers import Flavor, Server, server

T: Table = ("shop", "t")
#: of the ignored column, or computed from it: backwards in upper case
CANARY, SHOWN = "kanarienvogel", "sichtbar"
WORDS = (CANARY, CANARY[::-1], CANARY.upper(), CANARY.upper()[::-1])
OFF = {"mariadb": "NO_LOG", "mysql": "MINIMAL"}
TABLE = (
    "CREATE TABLE shop.t (id INT PRIMARY KEY, secret VARCHAR(40), shown VARCHAR(40),"
    " up VARCHAR(40) AS (UPPER(secret)) STORED, back VARCHAR(90) GENERATED ALWAYS AS (REVERSE(`up`)) VIRTUAL,"
    " size INT AS (CHAR_LENGTH(shown)), stamped VARCHAR(60) DEFAULT (CONCAT('d-', secret)),"
    " started VARCHAR(60) DEFAULT (CONCAT('s-', shown)))"
)
RULES = {"t": {"ignored_columns": ["secret"]}}


@pytest.fixture(params=[("mariadb", "FULL"), ("mariadb", "OFF"), ("mysql", "FULL"), ("mysql", "OFF")])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    flavor: Flavor = request.param[0]
    metadata = "FULL" if request.param[1] == "FULL" else OFF[flavor]
    with server(flavor, tmp_path / "server", binlog_row_metadata=metadata) as found:
        found.create_replication_user()
        found.run("CREATE DATABASE shop CHARACTER SET utf8mb4", TABLE)
        yield found


def insert(database: Server, number: int) -> None:
    database.run(f"INSERT INTO shop.t (id, secret, shown) VALUES ({number}, '{CANARY}', '{SHOWN}')")


def settings(folder: Path, gateway: GatewayDouble, database: Server) -> Path:
    return write_config(folder, gateway.address, {"shop": {"client": client(database), "filter": RULES}})


def wait_row(gateway: GatewayDouble, number: int) -> dict[str, object]:
    """The row that the stream brought, without the columns of ours."""

    def found() -> list[dict[str, object]]:
        return [row for row in gateway.rows("shop", T) if row["id"] == number]

    gateway.wait(lambda: found() or stops(gateway))
    assert not stops(gateway), stops(gateway)
    return {name: value for name, value in found()[-1].items() if not name.startswith("_")}


def events(gateway: GatewayDouble) -> list[changes_pb2.TableEvent]:
    return [event for cut in gateway.source("shop").committed for event in cut.events]


def stops(gateway: GatewayDouble) -> list[changes_pb2.TableStopped]:
    return [stop for cut in gateway.source("shop").committed for stop in cut.stopped]


def check_nothing_left(gateway: GatewayDouble, log: Path) -> None:
    """Of the canary: in no batch, no chunk, no message and no line of the log."""
    record = gateway.source("shop")
    rows = [batch.rows.to_pylist() for batch in record.batches] + [chunk.rows for chunk in record.ledger.chunks]
    sent = b"".join(gateway.messages) + repr(rows).encode() + log.read_bytes()
    assert SHOWN in repr(rows)
    for word in WORDS:
        assert word.encode() not in sent


def test_generated_column_when_it_reads_an_ignored_one_then_no_row_event_or_statement_of_it_leaves(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", T, oldest=True)
    insert(database, 1)
    with running_agent(settings(tmp_path, gateway, database), tmp_path / "log"):
        assert wait_row(gateway, 1) == {"id": 1, "shown": SHOWN, "size": len(SHOWN), "started": f"s-{SHOWN}"}
        database.run("ALTER TABLE shop.t ADD late VARCHAR(90) AS (REVERSE(LOWER(`back`))) VIRTUAL, ADD plain INT")
        insert(database, 2)
        assert sorted(wait_row(gateway, 2)) == ["id", "plain", "shown", "size", "started"]
        database.run("ALTER TABLE shop.t DROP COLUMN late")
        database.run("ALTER TABLE shop.t MODIFY size INT AS (CHAR_LENGTH(secret))")
        insert(database, 3)
        assert sorted(wait_row(gateway, 3)) == ["id", "plain", "shown", "started"]
        database.run("ALTER TABLE shop.t CHANGE size size INT AS (CHAR_LENGTH(shown)), ADD more INT AS (id + 1)")
        insert(database, 4)
        assert sorted(wait_row(gateway, 4)) == ["id", "more", "plain", "shown", "size", "started"]
    made, *altered = events(gateway)
    assert [column.name for column in made.columns] == ["id", "shown", "size", "started"]
    assert [[column.name for column in event.columns] for event in altered] == [
        ["id", "shown", "size", "started", "plain"],
        ["id", "shown", "size", "started", "plain"],
        ["id", "shown", "started", "plain"],
        ["id", "shown", "size", "started", "plain", "more"],
    ]
    assert [column.is_unknown for column in altered[-1].columns] == [False, False, True, False, False, True]
    hidden = "(not shown: it speaks of what the filter keeps back)"
    assert [event.statement for event in (made, *altered)] == [hidden] * 5
    check_nothing_left(gateway, tmp_path / "log")


@pytest.mark.parametrize(
    "made_plain",
    [
        "ALTER TABLE shop.t DROP COLUMN back, MODIFY up VARCHAR(40)",
        "ALTER TABLE shop.t ALTER stamped DROP DEFAULT",
        "ALTER TABLE shop.t MODIFY stamped VARCHAR(60) DEFAULT 'x'",
    ],
)
def test_derived_column_when_an_alter_makes_a_plain_one_of_it_then_its_table_stops_before_its_rows(
    made_plain: str, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    gateway.sync("shop", T, oldest=True)
    insert(database, 1)
    with running_agent(settings(tmp_path, gateway, database), tmp_path / "log"):
        wait_row(gateway, 1)
        database.run(made_plain, "UPDATE shop.t SET shown = 'other'")
        gateway.wait(lambda: stops(gateway))
    assert [stop.error.code for stop in stops(gateway)] == ["TABLE_IGNORED_RENAMED"]
    check_nothing_left(gateway, tmp_path / "log")


def test_generated_column_when_what_it_reads_gets_another_name_then_stays_ignored(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    if database.flavor == "mysql":  # it refuses to rename a column that another one reads
        database.run("ALTER TABLE shop.t DROP COLUMN back")
    database.run("ALTER TABLE shop.t ADD `odd ``name` VARCHAR(40) AS (LOWER(secret)) VIRTUAL")
    gateway.sync("shop", T, oldest=True)
    insert(database, 1)
    with running_agent(settings(tmp_path, gateway, database), tmp_path / "log"):
        wait_row(gateway, 1)
        database.run("ALTER TABLE shop.t RENAME COLUMN up TO higher, RENAME COLUMN `odd ``name` TO even")
        insert(database, 2)
        assert sorted(wait_row(gateway, 2)) == ["id", "shown", "size", "started"]
    assert not stops(gateway)
    check_nothing_left(gateway, tmp_path / "log")


def test_generated_column_when_the_table_is_dumped_then_no_chunk_has_it(
    database: Server, gateway: GatewayDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 20):
        insert(database, number)
    gateway.sync("shop", T, dump="first")
    dump = gateway.dump("shop", "first", T)
    with agent_inside(settings(tmp_path, gateway, database)):
        wait_dumped(gateway, dump)
    rows = [row for chunk in gateway.source("shop").ledger.chunks for row in chunk.rows]
    assert len(rows) == 19
    names = {name for row in rows for name in row if not name.startswith("_")}
    assert names == {"id", "shown", "size", "started"}
    (tmp_path / "log").write_text(caplog.text)
    check_nothing_left(gateway, tmp_path / "log")


def test_definition_when_an_earlier_version_kept_it_without_expressions_then_the_server_is_asked_anew(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    config = settings(tmp_path, gateway, database)
    gateway.sync("shop", T, oldest=True)
    insert(database, 1)
    with running_agent(config, tmp_path / "log"):
        wait_row(gateway, 1)
    forget_expressions(tmp_path / "state" / "shop.history.sqlite")
    insert(database, 2)
    with running_agent(config, tmp_path / "log"):
        assert sorted(wait_row(gateway, 2)) == ["id", "shown", "size", "started"]
    check_nothing_left(gateway, tmp_path / "log")


def forget_expressions(history: Path) -> None:
    """As the format was before."""
    with sqlite3.connect(history) as connection:
        kept = connection.execute("SELECT number, definition FROM versions WHERE state = 'known' AND name = 't'")
        for number, text in kept.fetchall():
            facts = json.loads(text)
            assert any(column.pop("reads", None) for column in facts["columns"])
            connection.execute("UPDATE versions SET definition = ? WHERE number = ?", (json.dumps(facts), number))
    connection.close()


@pytest.mark.parametrize("policy", ["reread", "stop"])
def test_definition_when_it_can_not_be_known_then_no_row_of_it_is_sent(
    database: Server, gateway: GatewayDouble, tmp_path: Path, policy: str
) -> None:
    source = {"client": client(database), "filter": RULES, "unlogged_changes": policy}
    config = write_config(tmp_path, gateway.address, {"shop": source})
    gateway.sync("shop", T, oldest=True)
    insert(database, 1)
    with running_agent(config, tmp_path / "log"):
        wait_row(gateway, 1)
    shutil.rmtree(tmp_path / "state")
    insert(database, 2)
    database.run("ALTER TABLE shop.t DROP COLUMN size")
    insert(database, 3)
    with running_agent(config, tmp_path / "log"):
        if policy == "stop":
            gateway.wait(lambda: stops(gateway))
            (stop,) = stops(gateway)
            assert stop.error.code == "TABLE_SCHEMA_UNKNOWN"
            assert "ALTER TABLE of transaction" in stop.error.found
        else:
            wait_row(gateway, 3)
            assert any("ALTER TABLE of transaction" in event.unlogged_changes for event in events(gateway))
    assert [row["id"] for row in gateway.rows("shop", T)] == ([1] if policy == "stop" else [1, 3])
    check_nothing_left(gateway, tmp_path / "log")


def test_primary_key_when_a_derived_column_is_in_it_then_a_clear_error_says_so(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server("mysql", tmp_path / "server") as database:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (secret VARCHAR(40), hash CHAR(64) AS (SHA2(secret, 256)) STORED NOT NULL)",
        )
        config = settings(tmp_path, gateway, database)
        assert agent("check", config).returncode == 0
        gateway.sync("shop", T, oldest=True)
        with running_agent(config, tmp_path / "log"):
            gateway.wait(lambda: gateway.source("shop").committed)
            database.run(
                "ALTER TABLE shop.t ADD PRIMARY KEY (hash)", f"INSERT INTO shop.t (secret) VALUES ('{CANARY}')"
            )
            gateway.wait(lambda: stops(gateway))
        (stop,) = stops(gateway)
        assert stop.error.code == "FILTER_COLUMN_IS_KEY"
        assert "'hash'" in stop.error.found and "computed from an ignored column" in stop.error.found
        shown = agent("check", config)
        assert shown.returncode == 15
        assert "FILTER_COLUMN_IS_KEY" in shown.stdout and "'hash'" in shown.stdout
