"""What messages say is to be done: commands and statements are run as they stand, and lead back to an equal lake."""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import load
from tests.e2e.lake import wait_until_equal
from tests.remedies import commands, statements
from tests.servers import FLAVORS, ROOT, Flavor, Server, server
from tests.stack import Stack, stack, wait_for

pytestmark = pytest.mark.spark

DATABASE = "shop"
PARTITIONED = "(id INT PRIMARY KEY, w VARCHAR(20)) PARTITION BY HASH (id) PARTITIONS 3"


@pytest.fixture(params=FLAVORS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with server(request.param, tmp_path / "server") as running:
        prepare(running)
        yield running


def prepare(database: Server) -> None:
    database.create_replication_user()
    load.create_tables(database, DATABASE, "t")


def failed(running: Stack, source: str, table: str, code: str) -> str:
    """What the table says when it has stopped and that is durable: until then a new agent may find no reason to."""

    def look() -> dict[str, Any] | None:
        said = running.table(source, DATABASE, table)
        problem: dict[str, Any] | None = said["problem"]
        is_durable = said["stage"] == "lake" or not said["runs"]
        return problem if problem is not None and problem["code"] == code and is_durable else None

    message: str = wait_for(f"{table} to stop with {code}", look)["message"]
    return message


def begun(running: Stack, source: str, database: Server, *tables: str, ignored: tuple[str, ...] = ()) -> None:
    for table in tables:
        running.start_sync(source, DATABASE, table, "dump")
    wait_until_equal(running.lake, running.tenant, source, database, DATABASE, tables, ignored=ignored)
    running.wait_until_streaming(source, DATABASE, *tables)  # the dumps too have ended


def equal_again(running: Stack, source: str, database: Server, table: str, ignored: tuple[str, ...] = ()) -> None:
    wait_until_equal(running.lake, running.tenant, source, database, DATABASE, [table], ignored=ignored)
    wait_for("no problem", lambda: running.table(source, DATABASE, table)["problem"] is None)


def run(running: Stack, message: str) -> list[list[str]]:
    found = commands(message)
    assert found, message
    for command in found:
        running.command(*command)
    return found


def test_table_when_stopped_by_its_policy_then_its_remedy_brings_its_rows(database: Server, running: Stack) -> None:
    source = f"stop-{database.flavor}"
    database.run(
        f"CREATE TABLE {DATABASE}.parts {PARTITIONED}",
        f"INSERT INTO {DATABASE}.parts VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    with running.agent(source, {source: database}, unlogged_changes="stop"):
        begun(running, source, database, "parts")
        database.run(f"ALTER TABLE {DATABASE}.parts TRUNCATE PARTITION p1")
        run(running, failed(running, source, "parts", "TABLE_ROWS_UNLOGGED"))
        equal_again(running, source, database, "parts")


def test_table_when_its_log_was_purged_and_its_policy_is_to_stop_then_its_remedy_brings_its_rows(
    database: Server, running: Stack
) -> None:
    source = f"purged-stop-{database.flavor}"
    agent = running.agent(source, {source: database}, unlogged_changes="stop")
    with agent:
        begun(running, source, database, "t")
    database.run("FLUSH BINARY LOGS")
    load.insert_rows(database, DATABASE, "t", 5)
    database.run(f"DELETE FROM {DATABASE}.t WHERE id < 5", "FLUSH BINARY LOGS")
    last = database.run("SHOW BINARY LOGS")[-1][0]
    purged = lambda: database.run(f"PURGE BINARY LOGS TO '{last}'") or len(database.run("SHOW BINARY LOGS")) == 1  # noqa: E731
    wait_for("the logs to be purged", purged)
    with agent:
        message = failed(running, source, "t", "POSITION_PURGED")
        assert ["sync", "start", source, f"{DATABASE}.t", "--from", "dump"] in commands(message)
        for statement in statements(message):
            database.run(statement)
        run(running, message)
        equal_again(running, source, database, "t")


@pytest.mark.parametrize("flavor", FLAVORS)
def test_table_when_its_definition_can_not_be_known_then_its_remedy_brings_its_rows(
    flavor: Flavor, running: Stack, tmp_path: Path
) -> None:
    source = f"unknown-{flavor}"
    with server(flavor, tmp_path / "server", binlog_row_metadata="MINIMAL") as database:
        prepare(database)
        agent = running.agent(source, {source: database}, unlogged_changes="stop")
        with agent:
            begun(running, source, database, "t")
        shutil.rmtree(running.folder / f"agent-{running.tenant}-{source}.state")
        load.insert_rows(database, DATABASE, "t", 3)
        database.run(f"ALTER TABLE {DATABASE}.t DROP COLUMN note", f"INSERT INTO {DATABASE}.t (amount) VALUES (7)")
        with agent:
            message = failed(running, source, "t", "TABLE_SCHEMA_UNKNOWN")
            (statement,) = statements(message)
            database.run(statement)
            run(running, message)
            equal_again(running, source, database, "t")


def test_table_when_a_statement_was_logged_then_its_remedy_brings_its_rows(database: Server, running: Stack) -> None:
    source = f"statement-{database.flavor}"
    with running.agent(source, {source: database}, unlogged_changes="stop"):
        begun(running, source, database, "t")
        database.run("SET SESSION binlog_format = 'STATEMENT'", f"UPDATE {DATABASE}.t SET note = 'unseen' WHERE id < 9")
        message = failed(running, source, "t", "TABLE_STATEMENT_LOGGED")
        (statement,) = statements(message)
        database.run(statement)
        run(running, message)
        equal_again(running, source, database, "t")


PERIOD = (
    "since BIGINT UNSIGNED GENERATED ALWAYS AS ROW START, till BIGINT UNSIGNED GENERATED ALWAYS AS ROW END,"
    " PERIOD FOR SYSTEM_TIME (since, till)"
)


@pytest.mark.parametrize("release", ["", "11.8"])
@pytest.mark.parametrize("period", ["named", "hidden"])
def test_tables_when_the_versions_of_one_count_transactions_then_its_remedy_brings_all_rows(
    period: str, release: str, running: Stack, tmp_path: Path
) -> None:
    source = f"precise-{period}-{release.replace('.', '')}".rstrip("-")
    with server("mariadb", tmp_path / "server", release=release) as database:
        prepare(database)
        database.run(
            f"CREATE TABLE {DATABASE}.Prices (id INT PRIMARY KEY, v INT, {PERIOD}) WITH SYSTEM VERSIONING",
            f"INSERT INTO {DATABASE}.Prices (id, v) VALUES (1, 10), (2, 20), (3, 30)",
            f"UPDATE {DATABASE}.Prices SET v = 11 WHERE id = 1",
        )
        if period == "hidden":
            drop = "DROP COLUMN since, DROP COLUMN till, DROP PERIOD FOR SYSTEM_TIME"
            keep = "SET SESSION system_versioning_alter_history = 'KEEP'"
            database.run(keep, f"ALTER TABLE {DATABASE}.Prices {drop}")
        with running.agent(source, {source: database}):
            begun(running, source, database, "t", "Prices")
            database.run(f"UPDATE {DATABASE}.Prices SET v = 21 WHERE id = 2")
            messages = {table: failed(running, source, table, "TABLE_STATEMENT_LOGGED") for table in ("t", "Prices")}
            assert all("versioning counts transactions" in message for message in messages.values()), messages
            assert not any("binlog_format = " in message for message in messages.values()), messages
            assert statements(messages["t"]) == statements(messages["Prices"])
            database.run(*statements(messages["t"]))
            for table, message in messages.items():
                run(running, message)
                equal_again(running, source, database, table)
            database.run(f"UPDATE {DATABASE}.Prices SET v = 31 WHERE id = 3", f"DELETE FROM {DATABASE}.t WHERE id = 2")
            for table in messages:
                equal_again(running, source, database, table)


def test_table_when_an_ignored_column_gets_another_name_then_its_remedy_brings_its_rows(
    database: Server, running: Stack
) -> None:
    source = f"renamed-{database.flavor}"
    rule = {"ignored_columns": ["note"]}
    with running.agent(source, {source: database}, filter={f"{DATABASE}.t": rule}):
        begun(running, source, database, "t", ignored=("note",))
        database.run(f"ALTER TABLE {DATABASE}.t CHANGE note remark VARCHAR(200)")
        message = failed(running, source, "t", "TABLE_IGNORED_RENAMED")
    (setting,) = re.findall(r"sources\.\S+\.ignored_columns", message)
    assert setting == f"sources.{source}.filter.{DATABASE}.t.ignored_columns"
    with running.agent(source, {source: database}, filter={f"{DATABASE}.t": {"ignored_columns": ["remark"]}}):
        run(running, message)
        equal_again(running, source, database, "t", ignored=("remark",))


def test_command_when_it_is_refused_then_what_it_says_instead_is_taken(database: Server, running: Stack) -> None:
    source, table = f"refused-{database.flavor}", f"{DATABASE}.t"
    with running.agent(source, {source: database}):
        begun(running, source, database, "t")
        refused = running.post_refused(f"{running.table_path(source, DATABASE, 't')}/start", {"start": "dump"})
        assert refused["code"] == "SYNC_RUNNING"
        assert commands(refused["remedy"]) == [["dump", "start", source, table], ["sync", "stop", source, table]]
        run(running, refused["remedy"])
        refused = running.post_refused(f"{running.table_path(source, DATABASE, 't')}/dump", {})
        assert refused["code"] == "SYNC_NOT_RUNNING"
        load.insert_rows(database, DATABASE, "t", 5)
        run(running, refused["remedy"])
        equal_again(running, source, database, "t")


def dump_failed(running: Stack, source: str, table: str, code: str) -> str:
    """What the newest dump of the table says when it has ended."""

    def look() -> dict[str, Any] | None:
        dumps = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
        newest = next((each for each in dumps if each["table"] == table), None)
        problem: dict[str, Any] | None = newest["problem"] if newest is not None else None
        return problem if problem is not None and problem["code"] == code else None

    message: str = wait_for(f"the dump of {table} to end with {code}", look)["message"]
    return message


def test_dumps_when_they_fail_then_their_remedies_bring_all_rows(database: Server, running: Stack) -> None:
    """An engine without snapshots, and a key that goes."""
    source = f"dumps-{database.flavor}"
    numbers = ",".join(f"({number}, {number})" for number in range(1, 2_001))
    database.run(
        f"CREATE TABLE {DATABASE}.heap (a INT) ENGINE = MyISAM",
        f"INSERT INTO {DATABASE}.heap VALUES (1), (1), (2)",
        f"CREATE TABLE {DATABASE}.rekeyed (id INT PRIMARY KEY, other INT NOT NULL)",
        f"INSERT INTO {DATABASE}.rekeyed VALUES {numbers}",
    )
    with running.agent(source, {source: database}):
        running.start_sync(source, DATABASE, "rekeyed", "dump", dump={"limits": {"rows_per_second": 10}})
        wait_for("rows of the dump", lambda: running.table(source, DATABASE, "rekeyed")["dump"]["rows"])
        database.run(f"ALTER TABLE {DATABASE}.rekeyed DROP PRIMARY KEY, ADD PRIMARY KEY (other, id)")
        running.start_sync(source, DATABASE, "heap", "dump")
        run(running, dump_failed(running, source, "rekeyed", "DUMP_KEY_CHANGED"))
        message = dump_failed(running, source, "heap", "DUMP_SNAPSHOT_IMPOSSIBLE")
        (statement,) = statements(message)
        database.run(statement)
        run(running, message)
        wait_until_equal(running.lake, running.tenant, source, database, DATABASE, ["heap", "rekeyed"])


@pytest.mark.parametrize("flavor", FLAVORS)
def test_table_without_a_primary_key_when_its_rows_come_in_parts_then_its_remedy_brings_its_rows(
    flavor: Flavor, running: Stack, tmp_path: Path
) -> None:
    """The server takes a unique key for the primary one, logs no more of a row than that, and does not name it."""
    source = f"parts-{flavor}"
    settings = {"binlog_row_image": "MINIMAL", "binlog_row_metadata": "MINIMAL"}
    with server(flavor, tmp_path / "server", **settings) as database:
        prepare(database)
        database.run(
            f"CREATE TABLE {DATABASE}.heap (a INT NOT NULL UNIQUE, b VARCHAR(20), c INT)",
            f"INSERT INTO {DATABASE}.heap VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', 3)",
        )
        with running.agent(source, {source: database}):
            begun(running, source, database, "heap")
            database.run(f"UPDATE {DATABASE}.heap SET b = 'changed' WHERE a = 2")
            message = failed(running, source, "heap", "ROWS_PARTIAL")
            (statement,) = statements(message)
            database.run(statement)
            run(running, message)
            equal_again(running, source, database, "heap")
            database.run(f"UPDATE {DATABASE}.heap SET b = 'again' WHERE a = 1")
            equal_again(running, source, database, "heap")


def test_dump_when_the_log_is_kept_too_short_then_its_remedy_brings_its_rows(database: Server, running: Stack) -> None:
    source = f"short-{database.flavor}"
    database.run(
        "SET GLOBAL binlog_expire_logs_seconds = 1",
        f"CREATE TABLE {DATABASE}.heap (a INT)",
        f"INSERT INTO {DATABASE}.heap VALUES {','.join(['(1), (2)'] * 30)}",
        f"ANALYZE TABLE {DATABASE}.heap",
    )
    with running.agent(source, {source: database}, dump={"max_rows_per_second": 10}):
        running.start_sync(source, DATABASE, "heap", "dump")
        message = dump_failed(running, source, "heap", "DUMP_RUNWAY_SHORT")
        (statement,) = statements(message)
        database.run(statement)
        again, forced = commands(message)
        assert forced == [*again, "--force"]
        running.command(*again)
        equal_again(running, source, database, "heap")
        running.wait_until_streaming(source, DATABASE, "heap")  # the dump too has ended
        database.run("SET GLOBAL binlog_expire_logs_seconds = 1")
        running.command(*forced)
        equal_again(running, source, database, "heap")


def test_table_when_it_needs_too_many_re_reads_then_its_remedy_brings_its_rows(
    database: Server, running: Stack
) -> None:
    source = f"limit-{database.flavor}"
    database.run(
        f"CREATE TABLE {DATABASE}.parts {PARTITIONED}",
        f"INSERT INTO {DATABASE}.parts VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    with running.agent(source, {source: database}, dump={"max_rereads_per_hour": 1}):
        begun(running, source, database, "parts")
        database.run(f"ALTER TABLE {DATABASE}.parts TRUNCATE PARTITION p1")
        equal_again(running, source, database, "parts")
        wait_for("the note to be gone", lambda: running.table(source, DATABASE, "parts")["unlogged"] is None)
        database.run(f"ALTER TABLE {DATABASE}.parts TRUNCATE PARTITION p2")
        message = failed(running, source, "parts", "REREAD_LIMIT")
        (setting,) = set(re.findall(r"dump\.max_\w+", message))
    group, name = setting.split(".")
    with running.agent(source, {source: database}, **{group: {name: 9}}):
        run(running, message)
        equal_again(running, source, database, "parts")
        database.run(
            f"INSERT INTO {DATABASE}.parts VALUES (4, 'd'), (6, 'f')",  # 4 goes, and 6 says that all this has landed
            f"ALTER TABLE {DATABASE}.parts TRUNCATE PARTITION p1",
        )
        equal_again(running, source, database, "parts")


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One whose control database may go."""
    with stack(tmp_path_factory.mktemp("forgetful")) as running:
        yield running


@pytest.mark.long
def test_desired_state_when_the_control_database_is_lost_then_its_remedy_goes_on_with_all_tables(
    database: Server, forgetful: Stack
) -> None:
    source, running = f"lost-{database.flavor}", forgetful
    load.create_tables(database, DATABASE, "u")
    with running.agent(source, {source: database}) as agent:
        begun(running, source, database, "t", "u")
        for process in (running.gateway, running.api):
            process.stop()
        for file in running.folder.glob("control.db*"):
            file.unlink()
        for process in (running.gateway, running.api):
            process.start()
        wait_for("the API to answer", lambda: running.api_answers() or None)

        def look() -> dict[str, Any] | None:
            answer = running.client.get(f"/api/v1/tenants/{running.tenant}/sources/{source}")
            problem: dict[str, Any] | None = answer.json()["problem"] if answer.is_success else None
            return problem if problem is not None and problem["code"] == "DESIRED_STATE_LOST" else None

        def stopped(table: str) -> str:
            answer = running.client.get(running.table_path(source, DATABASE, table))
            if not answer.is_success:  # its entry is not applied yet
                return ""
            told = answer.json()
            is_told = told["problem"] is not None and told["problem"]["code"] == "DESIRED_STATE_LOST"
            return str(told["problem"]["message"]) if is_told and told["state"] == "stopped" else ""

        for table in ("t", "u"):
            told = wait_for(f"{table} to say it", lambda table=table: stopped(table))
            assert ["sync", "start", source, f"{DATABASE}.{table}"] in commands(told)
        message = wait_for("the source to say it", look)["message"]
        wait_for("the agent to be told", lambda: "does not say which of 2 tables" in agent.log.read_text())
        load.insert_rows(database, DATABASE, "t", 5)
        assert commands(message)[0] == ["sync", "start", source, "--lost"]
        run(running, message)
        load.insert_rows(database, DATABASE, "u", 5)
        wait_until_equal(running.lake, running.tenant, source, database, DATABASE, ["t", "u"])
        wait_for("no problem", lambda: running.source(source)["problem"] is None)


def texts() -> Iterator[tuple[str, str]]:
    """All texts of the product that name a command: file and text."""
    for package in ("agent", "gateway", "controlplane_api", "spark_sink", "proto/menura"):
        for file in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(file.read_text())
            documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                    yield str(file.relative_to(ROOT)), node.value


def _is_command(word: str) -> bool:
    """No option of menura itself, and no word that stands for one."""
    return not word.isupper() and not word.startswith("-")


def test_commands_when_a_text_names_them_then_they_are_commands(running: Stack) -> None:
    named = {tuple(words[:2]) for _, text in texts() for words in commands(text) if _is_command(words[0])}
    groups = {"sync", "dump", "sources", "agent", "gateway", "api", "sink"}
    assert ("sync", "start") in named
    for words in sorted(named):
        shown = running.command(*words[: 2 if words[0] in groups else 1], "--help")
        assert "Usage" in shown or "usage" in shown, words


def test_settings_when_a_text_names_them_then_the_agent_knows_them() -> None:
    """Those of the examples in messages, by their last word."""
    known = (ROOT / "agent" / "config.py").read_text() + (ROOT / "agent" / "filter.py").read_text()
    for file, text in texts():
        for setting in re.findall(r"\bsources\.\{?[\w.{}]+\}?\.(\w+)", text):
            assert f'"{setting}"' in known or setting == "client", (file, setting)
