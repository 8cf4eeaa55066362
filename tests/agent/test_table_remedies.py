"""What messages about one table say is to be done: run word for word, after which its landing equals its source.

The gateway is a double, which does what a command asks of the control plane.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from menura.errors import one_line
from menura.v1 import error_pb2

from tests.agent.dump_ledger import Dump
from tests.agent.dumping import wait_dumped, wait_equal, wait_status
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_replication import ORDERS, change, prepare, stops
from tests.agent.test_schema_over_time import MINIMAL
from tests.remedies import commands, statements
from tests.servers import FLAVORS, Flavor, Server, server

KEY = ("id",)


class Operator:
    """Does what messages say, at the agent's file, its server, and in place of the control plane."""

    def __init__(self, folder: Path, gateway: GatewayDouble, database: Server, **source: Any) -> None:
        self.gateway, self.database = gateway, database
        self.log = folder / "log"
        self.path = write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})

    def stopped(self, table: Table, code: str) -> str:
        """What is said of a table that has stopped."""
        self.gateway.wait(lambda: stops(self.gateway, table))
        return _told(stops(self.gateway, table)[-1].error, code)

    def failed(self, dump: Dump, code: str) -> str:
        """What is said of a dump that has ended."""
        self.gateway.wait(lambda: dump.failed or dump.dumped_cut)
        assert dump.failed is not None
        return _told(dump.failed, code)

    def sets(self, setting: str, value: object) -> None:
        """Of its source."""
        config = yaml.safe_load(self.path.read_text())
        config["sources"]["shop"][setting] = value
        self.path.write_text(yaml.safe_dump(config))

    def ignores(self, message: str, column: str) -> None:
        """Adds a column to the setting that the message names."""
        (setting,) = re.findall(r"\bsources\.shop\.filter\.[\w.]+\.ignored_columns", message)
        table = setting.removeprefix("sources.shop.filter.").removesuffix(".ignored_columns")
        self.sets("filter", {table: {"ignored_columns": [column]}})

    def waits(self, dump: Dump, word: str) -> str:
        """What is said of a dump that waits."""
        return wait_status(self.gateway, dump, word).reason

    def runs(self, message: str, expected: str) -> Dump:
        """The one command that the message names: it brings the table's rows."""
        (words,) = commands(message)
        assert " ".join(["menura", *words]) == expected
        group, verb, source, name = words[:4]
        if (verb, name) == ("retry", "--all"):
            (failed,) = [dump for dump in self.gateway.source(source).ledger.dumps.values() if dump.failed]
            name = ".".join(failed.table)
            group = "dump"
        database, _, table = name.partition(".")
        number = f"dump-{len(self.gateway.source(source).ledger.dumps)}"
        if group == "sync":
            assert verb == "resync" or (verb, words[4:]) == ("start", ["--from", "dump"])
            self.gateway.sync(source, (database, table), dump=number)
        return self.gateway.dump(source, number, (database, table))

    def leads_back(self, message: str, command: str, insert: str = "", select: str = "") -> None:
        """The command of the message brings the table's rows, and what is written afterwards comes too.

        `insert` stands for `change`, and `select` for all columns.
        """
        dump = self.runs(message, command)
        wait_dumped(self.gateway, dump)
        if insert:
            self.database.run(insert)
        else:
            change(self.database, rounds=1)
        wait_equal(self.gateway, self.database, dump, KEY, select)


def _told(error: error_pb2.Error, code: str) -> str:
    message = one_line(error)
    assert error.code == code, message
    return message


@pytest.mark.parametrize("flavor", FLAVORS)
def test_table_when_the_log_contradicts_its_definition_then_the_remedy_brings_its_rows(
    flavor: Flavor, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A definition that came and went unlogged while nobody read."""
    with server(flavor, tmp_path / "server", binlog_row_metadata=MINIMAL[flavor]) as database:
        prepare(database)
        operator = Operator(tmp_path, gateway, database)
        gateway.sync("shop", ORDERS, oldest=True)
        with running_agent(operator.path, operator.log):
            change(database, rounds=1)
            gateway.wait(lambda: gateway.rows("shop", ORDERS))
        database.run("SET sql_log_bin = 0", "ALTER TABLE shop.orders ADD a INT")
        database.run("INSERT INTO shop.orders (note, a) VALUES ('between', 1)")
        database.run("SET sql_log_bin = 0", "ALTER TABLE shop.orders ADD b INT")
        with running_agent(operator.path, operator.log):
            message = operator.stopped(ORDERS, "TABLE_SCHEMA_MISMATCH")
            (statement,) = statements(message)
            database.run(statement)
            operator.leads_back(
                message,
                "menura sync start shop shop.orders --from dump",
                "INSERT INTO shop.orders (note, a, b) VALUES ('after', 2, 3)",
            )


@pytest.mark.parametrize("flavor", FLAVORS)
def test_table_when_the_collation_of_a_column_is_its_owners_then_the_remedy_brings_its_other_columns(
    flavor: Flavor, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server(flavor, tmp_path / "server") as database:
        ((installed,),) = database.run("SELECT @@character_sets_dir")
        own = tmp_path / "charsets"
        shutil.copytree(str(installed), own)
        index = own / "Index.xml"
        rules = "<rules><reset>a</reset><i>b</i></rules>"
        charset = f'<charset name="utf8mb4"><collation name="utf8mb4_own_ci" id="1029">{rules}</collation></charset>'
        index.write_text(index.read_text().replace("</charsets>", f"{charset}</charsets>"))
        database.stop()
        database.settings = {"character_sets_dir": str(own)}
        database.start()
        prepare(database)
        database.run("ALTER TABLE shop.orders ADD owned VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_own_ci")
        operator = Operator(tmp_path, gateway, database)
        gateway.sync("shop", ORDERS, oldest=True)
        with running_agent(operator.path, operator.log):
            change(database, rounds=1)
            message = operator.stopped(ORDERS, "TABLE_COLUMN_UNSUPPORTED")
        gateway.wait_gone("shop")
        operator.ignores(message, "owned")
        with running_agent(operator.path, operator.log):
            operator.leads_back(
                message,
                "menura sync start shop shop.orders --from dump",
                select="SELECT id, note, secret FROM shop.orders",
            )


@pytest.mark.parametrize("flavor", FLAVORS)
def test_dump_when_nobody_can_tell_a_columns_labels_then_the_remedy_brings_its_other_columns(
    flavor: Flavor, gateway: GatewayDouble, tmp_path: Path
) -> None:
    with server(flavor, tmp_path / "server") as database:
        prepare(database)
        database.run("ALTER TABLE shop.orders ADD kind ENUM(x'E4', 'b') CHARACTER SET binary")
        change(database, rounds=1)
        operator = Operator(tmp_path, gateway, database)
        gateway.sync("shop", ORDERS, now=True)
        dump = gateway.dump("shop", "first", ORDERS)
        with running_agent(operator.path, operator.log):
            message = operator.failed(dump, "TABLE_COLUMN_UNSUPPORTED")
        gateway.wait_gone("shop")
        operator.ignores(message, "kind")
        with running_agent(operator.path, operator.log):
            operator.leads_back(
                message, "menura dump start shop shop.orders", select="SELECT id, note, secret FROM shop.orders"
            )


def streaming(operator: Operator, table: Table) -> None:
    """Its first change is there."""
    name = ".".join(table)
    operator.gateway.wait(lambda: operator.gateway.source("shop").committed)
    operator.database.run(f"INSERT INTO {name} (note) VALUES ('first')")
    operator.gateway.wait(lambda: operator.gateway.rows("shop", table))


def test_table_when_a_row_lacks_its_values_then_the_remedy_brings_its_rows(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    operator = Operator(tmp_path, gateway, database)
    gateway.sync("shop", ORDERS, now=True)
    with running_agent(operator.path, operator.log):
        gateway.wait(lambda: gateway.source("shop").committed)
        database.run(
            "ALTER TABLE shop.orders MODIFY id INT NOT NULL DEFAULT 0",
            "SET SESSION binlog_row_image = 'MINIMAL'",
            "INSERT INTO shop.orders () VALUES ()",
        )
        message = operator.stopped(ORDERS, "TABLE_ROW_UNREADABLE")
        operator.leads_back(
            message,
            "menura sync start shop shop.orders --from dump",
            "INSERT INTO shop.orders (id, note) VALUES (1, 'after')",
        )


def test_table_when_rows_come_through_a_merge_table_then_the_remedy_brings_its_rows(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    columns = "(id INT PRIMARY KEY, note VARCHAR(20)) ENGINE="
    shard: Table = ("shop", "shard")
    database.run(
        f"CREATE TABLE shop.shard {columns}MyISAM",
        f"CREATE TABLE shop.united {columns}MRG_MyISAM UNION=(shop.shard) INSERT_METHOD=LAST",
    )
    operator = Operator(tmp_path, gateway, database)
    gateway.sync("shop", shard, oldest=True)
    with running_agent(operator.path, operator.log):
        gateway.wait(lambda: gateway.source("shop").committed)
        database.run("INSERT INTO shop.united VALUES (1, 'a')")
        message = operator.stopped(shard, "TABLE_ROWS_UNCERTAIN")
        assert "the table out of MERGE tables" in message
        database.run("DROP TABLE shop.united")
        operator.leads_back(
            message, "menura sync start shop shop.shard --from dump", "INSERT INTO shop.shard VALUES (2, 'b')"
        )


def test_table_when_it_is_not_known_what_a_rollback_undid_then_the_remedy_brings_its_rows(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    """A function that the transaction calls sets a savepoint of the same name."""
    with server("mariadb", tmp_path / "server", log_bin_trust_function_creators="1") as database:
        prepare(database)
        database.run(
            "CREATE TABLE shop.notes (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(20)) ENGINE = MyISAM",
            "CREATE FUNCTION shop.f() RETURNS INT BEGIN INSERT INTO shop.orders (note) VALUES ('e'); SAVEPOINT a;"
            " INSERT INTO shop.orders (note) VALUES ('f'); INSERT INTO shop.notes (note) VALUES ('f'); ROLLBACK TO a;"
            " RETURN 1; END",
        )
        operator = Operator(tmp_path, gateway, database)
        gateway.sync("shop", ORDERS, oldest=True)
        with running_agent(operator.path, operator.log):
            database.run(
                "BEGIN",
                "INSERT INTO shop.items (note) VALUES ('first')",
                "SAVEPOINT a",
                "INSERT INTO shop.orders (note) VALUES ('gone')",
                "SELECT shop.f()",
                "INSERT INTO shop.notes (note) VALUES ('kept')",
                "ROLLBACK TO a",
                "COMMIT",
            )
            message = operator.stopped(ORDERS, "TABLE_ROWS_UNCERTAIN")
            operator.leads_back(message, "menura sync start shop shop.orders --from dump")


def test_table_when_a_foreign_key_changes_it_and_its_policy_is_to_stop_then_the_remedy_brings_its_rows(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Its parent is not synced."""
    lines: Table = ("shop", "lines")
    with server("mariadb", tmp_path / "server") as database:
        prepare(database)
        database.run(
            "CREATE TABLE shop.`lines` (id INT PRIMARY KEY, parent INT,"
            " FOREIGN KEY (parent) REFERENCES shop.orders (id) ON DELETE CASCADE)",
            "INSERT INTO shop.orders (note) VALUES ('a'), ('b'), ('c')",
        )
        operator = Operator(tmp_path, gateway, database, unlogged_changes="stop")
        gateway.sync("shop", lines, oldest=True)
        with running_agent(operator.path, operator.log):
            database.run("INSERT INTO shop.`lines` VALUES (1, 1), (2, 2), (3, 3)")
            gateway.wait(lambda: gateway.rows("shop", lines))
            database.run("DELETE FROM shop.orders WHERE id = 1")
            message = operator.stopped(lines, "TABLE_ROWS_UNCERTAIN")
        (setting,) = re.findall(r"sources\.shop\.(\w+) to reread", message)
        gateway.wait_gone("shop")
        operator.sets(setting, "reread")
        with running_agent(operator.path, operator.log):
            operator.leads_back(
                message,
                "menura sync start shop shop.lines --from dump",
                "INSERT INTO shop.`lines` VALUES (4, 3)",
                select="SELECT * FROM shop.`lines`",
            )
            database.run("DELETE FROM shop.orders WHERE id = 2")
            gateway.wait(lambda: [event for event in gateway.events("shop", lines) if event.reread])


def test_dump_when_its_table_has_gone_then_the_remedy_brings_its_rows_once_it_is_there_again(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    operator = Operator(tmp_path, gateway, database)
    change(database, rounds=1)
    gateway.sync("shop", ORDERS, now=True)
    with running_agent(operator.path, operator.log):
        streaming(operator, ORDERS)
        database.run("RENAME TABLE shop.orders TO shop.away")
        message = operator.failed(gateway.dump("shop", "first", ORDERS), "DUMP_TABLE_GONE")
        database.run("RENAME TABLE shop.away TO shop.orders")
        operator.leads_back(message, "menura dump start shop shop.orders")


@pytest.mark.long
def test_dump_when_its_table_has_no_key_and_streams_on_then_the_remedy_brings_its_rows(
    database: Server, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control plane that planned it has not let the table begin anew."""
    heap: Table = ("shop", "heap")
    database.run("CREATE TABLE shop.heap (id INT, note VARCHAR(20))", "INSERT INTO shop.heap VALUES (1, 'a'), (2, 'b')")
    operator = Operator(tmp_path, gateway, database)
    gateway.sync("shop", heap, now=True)
    with running_agent(operator.path, operator.log):
        streaming(operator, heap)
        with monkeypatch.context() as patched:
            patched.setattr(gateway, "_planned", lambda source, dump: gateway._push_dumps(source))
            message = operator.failed(gateway.dump("shop", "first", heap), "DUMP_SNAPSHOT_IMPOSSIBLE")
        operator.leads_back(message, "menura sync resync shop shop.heap", "INSERT INTO shop.heap VALUES (3, 'c')")


def test_dump_when_the_lag_is_not_shown_then_the_grant_of_the_message_lets_it_go_on(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    change(database, rounds=1)
    database.run(
        "CREATE USER 'few'@'%' IDENTIFIED BY 'few-secret'",
        "GRANT SELECT ON shop.* TO 'few'@'%'",
        *(["GRANT BINLOG MONITOR ON *.* TO 'few'@'%'"] if database.flavor == "mariadb" else []),
    )
    few = client(database, user="few", password="few-secret")
    operator = Operator(
        tmp_path, gateway, database, client=few, binlog=client(database), dump={"max_replica_lag_seconds": 5}
    )
    gateway.sync("shop", ORDERS, now=True)
    dump = gateway.dump("shop", "first", ORDERS)
    with running_agent(operator.path, operator.log):
        message = operator.waits(dump, "max_replica_lag_seconds")
        (statement,) = statements(message)
        database.run(statement)
        wait_dumped(gateway, dump)
        change(database, rounds=1)
        wait_equal(gateway, database, dump, KEY)


def test_dump_when_its_server_can_not_be_told_from_the_logs_then_the_remedy_brings_its_rows(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    """Two servers with one server_id."""
    with server("mariadb", tmp_path / "server") as database, server("mariadb", tmp_path / "other") as other:
        for each in (database, other):
            prepare(each)
            change(each, rounds=1)
        operator = Operator(tmp_path, gateway, database, client=client(other), binlog=client(database))
        gateway.sync("shop", ORDERS, now=True)
        dump = gateway.dump("shop", "first", ORDERS)
        with running_agent(operator.path, operator.log):
            message = operator.failed(dump, "DUMP_SERVER_UNRELATED")
        assert "the server of sources.shop.binlog, and restart the agent" in message
        gateway.wait_gone("shop")
        operator.sets("client", client(database))
        with running_agent(operator.path, operator.log):
            operator.leads_back(message, "menura sync retry shop --all")


def test_dump_when_transactions_keep_its_table_busy_then_the_remedy_lets_it_go_on(
    gateway: GatewayDouble, tmp_path: Path
) -> None:
    without = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}
    with server("mysql", tmp_path / "server", **without) as database:
        prepare(database)
        database.run("GRANT LOCK TABLES ON `shop`.* TO 'menura'@'%'")
        change(database, rounds=1)
        operator = Operator(tmp_path, gateway, database)
        gateway.sync("shop", ORDERS, now=True)
        database.prepare_xa("'open'", "INSERT INTO shop.orders (note) VALUES ('open')")
        dump = gateway.dump("shop", "first", ORDERS)
        with running_agent(operator.path, operator.log):
            assert "end transactions that stay open, XA ones too" in operator.waits(dump, "kept it busy")
            database.run("XA COMMIT 'open'")
            wait_dumped(gateway, dump)
            wait_equal(gateway, database, dump, KEY)


@pytest.mark.parametrize("chosen", ["corrected", "ignored"])
def test_dump_when_the_server_can_not_show_a_row_then_either_remedy_brings_its_rows(
    gateway: GatewayDouble, tmp_path: Path, chosen: str
) -> None:
    with server("mysql", tmp_path / "server") as database:
        prepare(database)
        parsed = "ALTER TABLE shop.orders ADD parsed JSON AS (CAST(note AS JSON)) VIRTUAL, WITHOUT VALIDATION"
        database.run("INSERT INTO shop.orders (note) VALUES ('{}'), ('no JSON'), ('{}')", parsed)
        operator = Operator(tmp_path, gateway, database)
        gateway.sync("shop", ORDERS, now=True)
        dump = gateway.dump("shop", "first", ORDERS)
        with running_agent(operator.path, operator.log):
            message = operator.failed(dump, "DUMP_RESULT_INVALID")
        assert "the first row above (1) by (id)" in message
        gateway.wait_gone("shop")
        if chosen == "ignored":
            operator.ignores(message, "parsed")
        else:
            correction = "UPDATE shop.orders SET note = '{}' WHERE id = 2"
            database.run("ALTER TABLE shop.orders DROP COLUMN parsed", correction, parsed)
        with running_agent(operator.path, operator.log):
            columns = "id, note, secret" if chosen == "ignored" else "*"
            operator.leads_back(
                message,
                "menura dump start shop shop.orders",
                "INSERT INTO shop.orders (note) VALUES ('{}')",
                select=f"SELECT {columns} FROM shop.orders",
            )


def test_source_when_its_committed_position_is_none_then_the_remedy_brings_its_tables(
    database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    operator = Operator(tmp_path, gateway, database)
    gateway.sync("shop", ORDERS, oldest=True)
    record = gateway.source("shop")
    with running_agent(operator.path, operator.log):
        change(database, rounds=1)
        gateway.wait(lambda: gateway.rows("shop", ORDERS))
    gateway.wait_gone("shop")
    record.committed[-1].position.text = "none"
    with running_agent(operator.path, operator.log):
        gateway.wait(lambda: record.effective[-1].error.code == "POSITION_INVALID")
        message = one_line(record.effective[-1].error)
        assert commands(message) == [["sync", "resync", "shop", "--all"]]
        gateway.sync("shop", ORDERS, dump="anew")
        dump = gateway.dump("shop", "anew", ORDERS)
        wait_dumped(gateway, dump)
        change(database, rounds=1)
        wait_equal(gateway, database, dump, KEY)
