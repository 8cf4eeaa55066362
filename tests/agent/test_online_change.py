"""Online schema changes: the statements that gh-ost and pt-online-schema-change issue, while rows are written.

The swap is one change of the table; what happens to its copy is not data, and the table's rows stay.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pymysql
import pytest
from menura.v1 import changes_pb2
from pymysql.constants import ER

from agent.sources.mysql.ddl.online_change import bases, is_ghost, is_swap
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_schema_over_time import MINIMAL, events, kinds
from tests.servers import Flavor, Server, server
from tests.stack import wait_for

T: Table = ("shop", "t")
U: Table = ("shop", "u")
LONG = "t" * 62
TableEvent = changes_pb2.TableEvent


def test_names_when_they_are_of_a_tool_then_say_whose_copy_they_are() -> None:
    assert is_ghost("t", "_t_gho")
    assert is_ghost("t", "___t_new")
    assert is_ghost("_t", "__t_new")
    assert is_ghost(LONG, f"_{'t' * 59}_gho")
    assert is_ghost(LONG, f"_{LONG}_new"[:64])
    assert not is_ghost("t", "t_new")
    assert not is_ghost("t", "_other_gho")
    assert "t" in bases("__t_new")
    assert "t" in bases("A1B2C3__t_old")
    assert is_swap("t", "_t_20260102030405_del", "_t_gho")
    assert is_swap("t", "_t_rev_del", "_t_del")
    assert is_swap("t", "A1B2C3____t_old", "_t_new")
    assert is_swap("t", "__t_old", "_t_new")
    assert not is_swap("t", "_t_old", "_t_gho")
    assert not is_swap("t", "_t_old", "_t_old")


class Writer:
    """Rows come, change and go all the time, but while it is paused."""

    def __init__(self, database: Server) -> None:
        self._database = database
        self._ended = threading.Event()
        self.paused = threading.Lock()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _write(self) -> None:
        number = 1000
        with self._database.connect(database="shop") as connection, connection.cursor() as cursor:
            while not self._ended.wait(0.002):
                number += 1
                for statement in (
                    f"INSERT INTO t (id, qty) VALUES ({number}, {number})",
                    f"UPDATE t SET qty = qty + 1 WHERE id = {number - 3}",
                    f"DELETE FROM t WHERE id = {number - 9} AND id % 2",
                ):
                    with self.paused, suppress(pymysql.err.OperationalError):  # a deadlock with the tool's copying
                        cursor.execute(statement)


def gh_ost(database: Server, writer: Writer, old: str = "_t_del", *, in_two_steps: bool = False) -> None:
    """As go/logic/applier.go does it, its copying and catching up by a trigger's REPLACE instead of the log."""
    run = database.run
    run(
        "create /* gh-ost */ table `shop`.`_t_ghc` (id bigint unsigned auto_increment, last_update timestamp not null"
        " DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, hint varchar(64) charset ascii not null, value"
        " varchar(4096) charset ascii not null, primary key(id), unique key hint_uidx(hint)) auto_increment=256",
        "insert /* gh-ost */ into `shop`.`_t_ghc` (id, hint, value) values (NULLIF(2, 0), 'state', 'Migrated')"
        " on duplicate key update last_update=NOW(), value=VALUES(value)",
        "create /* gh-ost */ table `shop`.`_t_gho` like `shop`.`t`",
        "alter /* gh-ost */ table `shop`.`_t_gho` add added int not null default 5, change note remark varchar(50)",
        "alter /* gh-ost */ table `shop`.`_t_gho` AUTO_INCREMENT=5000",
    )
    copy(database, "_t_gho")
    if in_two_steps:
        with writer.paused, database.connect(database="shop") as connection, connection.cursor() as cursor:
            run(*(f"DROP TRIGGER shop.pt_osc_shop_t_{event}" for event in ("del", "upd", "ins")))  # gh-ost has none
            cursor.execute("lock /* gh-ost */ tables `shop`.`t` write")
            cursor.execute("alter /* gh-ost */ table `shop`.`t` rename `_t_del`")
            run("alter /* gh-ost */ table `shop`.`_t_gho` rename `t`", database="shop")
            cursor.execute("unlock /* gh-ost */ tables")
        run("drop /* gh-ost */ table if exists `shop`.`_t_ghc`", "drop /* gh-ost */ table if exists `shop`.`_t_del`")
        return
    run(f"create /* gh-ost */ table `shop`.`{old}` (id int auto_increment primary key) comment='ghost-cut-over-sentry'")
    locker, renamer = database.connect(database="shop"), database.connect(database="shop")
    renaming = threading.Thread(
        target=lambda: renamer.cursor().execute(
            f"rename /* gh-ost */ table `shop`.`t` to `shop`.`{old}`, `shop`.`_t_gho` to `shop`.`t`"
        )
    )
    with locker.cursor() as cursor:
        cursor.execute(f"lock /* gh-ost */ tables `shop`.`t` write, `shop`.`{old}` write")
        renaming.start()
        cursor.execute(f"drop /* gh-ost */ table if exists `shop`.`{old}`")
        cursor.execute("unlock /* gh-ost */ tables")
    renaming.join()
    locker.close()
    renamer.close()
    run("drop /* gh-ost */ table if exists `shop`.`_t_ghc`", f"drop /* gh-ost */ table if exists `shop`.`{old}`")


def copy(database: Server, ghost: str) -> None:
    """Both tools' way to keep the copy equal, with pt-online-schema-change's triggers."""
    begin = "FOR EACH ROW BEGIN DECLARE CONTINUE HANDLER FOR 1146 begin end;"
    new = f"`shop`.`{ghost}`"
    replace = f"REPLACE INTO {new} (`id`, `qty`, `remark`) VALUES (NEW.`id`, NEW.`qty`, NEW.`note`);"
    same = f"{new}.`id` <=> OLD.`id`"
    database.run(
        f"CREATE TRIGGER pt_osc_shop_t_del AFTER DELETE ON `shop`.`t` {begin}"
        f" DELETE IGNORE FROM {new} WHERE {same}; END",
        f"CREATE TRIGGER pt_osc_shop_t_upd AFTER UPDATE ON `shop`.`t` {begin} DELETE IGNORE FROM {new}"
        f" WHERE !(OLD.`id` <=> NEW.`id`) AND {same}; {replace} END",
        f"CREATE TRIGGER pt_osc_shop_t_ins AFTER INSERT ON `shop`.`t` {begin} {replace} END",
        database="shop",
    )
    wait_for("a copy without a deadlock", lambda: copied(database, ghost), every=0.01)
    database.run(f"ANALYZE TABLE {new} /* pt-online-schema-change */", database="shop")


def copied(database: Server, ghost: str) -> bool:
    """Both tools try again where the server took their copying for a deadlock's victim."""
    try:
        database.run(
            f"INSERT LOW_PRIORITY IGNORE INTO `shop`.`{ghost}` (`id`, `qty`, `remark`)"
            " SELECT `id`, `qty`, `note` FROM `shop`.`t` LOCK IN SHARE MODE /*pt-online-schema-change 1 copy table*/"
        )
    except pymysql.err.OperationalError as met:
        if met.args[0] != ER.LOCK_DEADLOCK:
            raise
        return False
    return True


def percona(database: Server, writer: Writer) -> None:
    """As bin/pt-online-schema-change does it."""
    (_, made), *_ = database.run("SHOW CREATE TABLE shop.t")
    database.run(
        str(made).replace("CREATE TABLE `t` (", "CREATE TABLE `shop`.`_t_new` (", 1),
        "ALTER TABLE `shop`.`_t_new` ADD COLUMN added INT NOT NULL DEFAULT 5, CHANGE note remark VARCHAR(50)",
    )
    copy(database, "_t_new")
    database.run(
        "RENAME TABLE `shop`.`t` TO `shop`.`_t_old`, `shop`.`_t_new` TO `shop`.`t`",
        "SET foreign_key_checks=0",
        "DROP TABLE IF EXISTS `shop`.`_t_old`",
        "DROP TRIGGER IF EXISTS `shop`.`pt_osc_shop_t_del`",
        "DROP TRIGGER IF EXISTS `shop`.`pt_osc_shop_t_upd`",
        "DROP TRIGGER IF EXISTS `shop`.`pt_osc_shop_t_ins`",
    )


def lake(gateway: GatewayDouble) -> dict[object, dict[str, object]]:
    """The table as its rows and events leave it, by id."""
    state: dict[object, dict[str, object]] = {}
    happened: list[tuple[int, object]] = [(event.gsn, event) for event in events(gateway)]
    happened += [(int(str(row["_gsn"])), row) for row in gateway.rows("shop", T)]
    for _, what in sorted(happened, key=lambda entry: entry[0]):
        if isinstance(what, changes_pb2.TableEvent):
            state = {} if what.removes_rows else {key: _with_columns(row, what) for key, row in state.items()}
            continue
        assert isinstance(what, dict)
        values = {name: value for name, value in what.items() if not name.startswith("_")}
        if what["_change_type"] in (1, 3):
            assert state.pop(values["id"]) == values
        else:
            assert values["id"] not in state
            state[values["id"]] = values
    return state


def _with_columns(row: dict[str, object], event: changes_pb2.TableEvent) -> dict[str, object]:
    after: dict[str, object] = {}
    for column in event.columns:
        if column.HasField("text"):
            after[column.name] = int(column.text)
        else:
            after[column.name] = None if column.is_null else row[column.renamed_from or column.name]
    return after if event.columns else row


def selected(database: Server) -> dict[object, dict[str, object]]:
    with database.connect(database="shop") as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute("SELECT * FROM t")
        return {row["id"]: row for row in cursor.fetchall()}


TOOLS: dict[str, Callable[[Server, Writer], None]] = {
    "gh-ost": gh_ost,
    "gh-ost timestamp": lambda database, writer: gh_ost(database, writer, "_t_20260102030405_del"),
    "gh-ost two steps": lambda database, writer: gh_ost(database, writer, in_two_steps=True),
    "pt-online-schema-change": percona,
}


@pytest.mark.parametrize(("flavor", "metadata"), [("mariadb", "MINIMAL"), ("mysql", "MINIMAL"), ("mysql", "FULL")])
def test_swap_when_a_tool_changes_a_table_under_writes_then_it_is_one_change_and_no_row_is_lost(
    flavor: Flavor, metadata: str, tmp_path: Path
) -> None:
    row_metadata = MINIMAL[flavor] if metadata == "MINIMAL" else "FULL"
    settings = {"binlog_row_metadata": row_metadata}
    if flavor == "mysql":
        settings["log_bin_trust_function_creators"] = "1"
    with server(flavor, tmp_path / "server", **settings) as database:
        database.create_replication_user()
        for number, (name, tool) in enumerate(TOOLS.items()):
            gateway = GatewayDouble()
            try:
                swap(database, gateway, tmp_path / str(number), name, tool)
            finally:
                gateway.stop()


def swap(
    database: Server, gateway: GatewayDouble, folder: Path, name: str, tool: Callable[[Server, Writer], None]
) -> None:
    folder.mkdir()
    database.run("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop CHARACTER SET utf8mb4")
    database.run("CREATE TABLE shop.t (id INT PRIMARY KEY AUTO_INCREMENT, qty INT, note VARCHAR(40))")
    gateway.sync("shop", T, now=True)
    config = write_config(folder, gateway.address, {"shop": {"client": client(database)}})
    with running_agent(config, folder / "log"):
        gateway.wait(lambda: gateway.source("shop").committed)
        database.run("INSERT INTO shop.t (qty, note) VALUES (1, 'a'), (2, NULL), (3, 'c')")
        with Writer(database) as writer:
            tool(database, writer)
        database.run("INSERT INTO shop.t (id, qty, remark) VALUES (7, 7, 'after')")
        gateway.wait(lambda: any(row["id"] == 7 for row in gateway.rows("shop", T)))
    assert [cut.stopped for cut in gateway.source("shop").committed if cut.stopped] == [], name
    assert kinds(gateway) == (["RENAMED", "SWAPPED"] if "two" in name else ["SWAPPED"]), name
    assert [event.unlogged_changes for event in gateway.events("shop", T)] == [""] * len(gateway.events("shop", T)), (
        name
    )
    assert lake(gateway) == selected(database), name


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_swap_when_the_copy_has_converted_values_then_says_that_earlier_rows_may_be_stale(
    flavor: Flavor, tmp_path: Path
) -> None:
    gateway = GatewayDouble()
    try:
        with server(flavor, tmp_path / "server") as database:
            database.create_replication_user()
            database.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, price DECIMAL(12,4), n INT)")
            gateway.sync("shop", T, now=True)
            config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
            with running_agent(config, tmp_path / "log"):
                gateway.wait(lambda: gateway.source("shop").committed)
                database.run(
                    "INSERT INTO t VALUES (1, 1.2345, 1)",
                    "CREATE TABLE _t_new LIKE t",
                    "ALTER TABLE _t_new MODIFY price DECIMAL(12,2), MODIFY n BIGINT",
                    "SET sql_mode = ''",
                    "INSERT INTO _t_new SELECT * FROM t",
                    "RENAME TABLE t TO _t_old, _t_new TO t",
                    database="shop",
                )
                gateway.wait(lambda: gateway.events("shop", T))
            (event,) = gateway.events("shop", T)
            assert (TableEvent.Kind.Name(event.kind), event.reread) == ("SWAPPED", True)
            assert event.unlogged_changes.startswith("column price: ")
            assert "column n" not in event.unlogged_changes
    finally:
        gateway.stop()


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_swap_when_two_synced_tables_change_places_then_both_say_that_their_rows_came_unlogged(
    flavor: Flavor, tmp_path: Path
) -> None:
    gateway = GatewayDouble()
    try:
        with server(flavor, tmp_path / "server") as database:
            database.create_replication_user()
            database.run(
                "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)", "CREATE TABLE shop.u LIKE shop.t"
            )
            gateway.sync("shop", T, U, now=True)
            config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
            with running_agent(config, tmp_path / "log"):
                gateway.wait(lambda: gateway.source("shop").committed)
                database.run("RENAME TABLE shop.t TO shop.x, shop.u TO shop.t, shop.x TO shop.u")
                gateway.wait(lambda: len(gateway.events("shop")) == 4)
            told = [(event.table.table, event.removes_rows, event.reread) for event in gateway.events("shop")]
            assert told == [("t", True, False), ("t", False, True), ("u", True, False), ("u", False, True)]
            assert [cut.stopped for cut in gateway.source("shop").committed if cut.stopped] == []
    finally:
        gateway.stop()
