"""A pipe into another MySQL or MariaDB: its tables are the lake's, whatever is killed."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_sink.errors import PluginInvalid
from spark_sink.export import following
from spark_sink.export.following import OnError
from spark_sink.plugins import mysql_tables, running
from spark_sink.plugins.configuration import load
from spark_sink.plugins.mysql_tables import MySQLTables
from tests.servers import Flavor, Server, free_port, server
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.landing import Table, Workload, altered, delete, insert, update
from tests.spark_sink.test_export import ORDERS, Dumps, Lake, held, row
from tests.spark_sink.test_plugins import config, kinds, run, started

__all__ = ["held"]

DATABASE = "piped"


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flavor: Flavor = request.param
    with server(flavor, tmp_path_factory.mktemp("target")) as running_server:
        yield running_server


@pytest.fixture
def options(target: Server, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    target.run(f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}")
    monkeypatch.setenv("TARGET_PASSWORD", target.password)
    return {"host": target.host, "port": str(target.port), "user": target.user, "password": "env:TARGET_PASSWORD",
            "database": DATABASE}  # fmt: skip


def rows(target: Server, table: Table) -> list[str]:
    names = ", ".join(f"`{name}`" for name in table.columns)
    found = target.run(f"SELECT {names} FROM {DATABASE}.{table.name}")
    return sorted(repr([_value(value) for value in each]) for each in found)


def expected(held: Lake, table: Table) -> list[str]:
    """-0.0 equals 0.0, there and here."""
    return sorted(text.replace("-0.0", "0.0") for text in held.rows(table))


def _value(value: Any) -> Any:
    return (
        Decimal(value)
        if isinstance(value, int) and value > 2**62
        else 0.0
        if isinstance(value, float) and value == 0.0
        else value
    )


@pytest.mark.needs_setup
def test_a_pipe_when_its_run_is_killed_anywhere_then_the_tables_there_are_the_lakes(
    held: Lake, target: Server, options: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.run(
        f"CREATE TABLE {DATABASE}.orders (id INT PRIMARY KEY, amount BIGINT UNSIGNED, note TEXT)",
        f"CREATE TABLE {DATABASE}.events (kind TEXT, value DOUBLE)",
    )
    work = Workload(11)
    held.cut((ORDERS, work.orders.follow([insert(**row(1, "a"))])))
    dumps = Dumps(work, held)
    wanted = config(MySQLTables, "pipe", options=options, on_error=OnError.STOP)
    places = [(MySQLTables, "insert", 3), (MySQLTables, "checkpoint", 1), (running.Keeps, "write", 1),
              (MySQLTables, "delete", 1), (pymysql.connections.Connection, "commit", 1)]  # fmt: skip
    killed = 0
    for number in range(8):
        work.cut(held.writer)
        for _ in range(2):
            held.writer.cut(*dumps.step())
        held.follow()
        with monkeypatch.context() as patched:
            kill_at(patched, *places[number % len(places)])
            try:
                run(held, tmp_path, started(held, tmp_path, wanted))
            except Killed:
                killed += 1
        if number % 2:
            run(held, tmp_path, started(held, tmp_path, wanted))
            for table in (Workload.ORDERS, Workload.EVENTS):
                assert rows(target, table) == expected(held, table)
    assert killed > 3


@pytest.mark.needs_setup
def test_a_pipe_when_its_connection_is_lost_then_all_since_its_position_comes_again_once(
    held: Lake, target: Server, options: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FIRST_PAUSE_SECONDS", 0.0)
    target.run(f"CREATE TABLE {DATABASE}.events (kind TEXT, value DOUBLE)")
    for value in (1.5, 1.5, 2.5):
        held.writer.cut((Workload.EVENTS, [insert(kind="x", value=value)]))
    held.follow()
    pipe = started(held, tmp_path, config(MySQLTables, "pipe", options=options))
    plugin, real, seen = pipe.consumer.delivery.plugin, MySQLTables.insert, list[float]()
    assert isinstance(plugin, MySQLTables)

    def lost_once(self: MySQLTables, values: Any, change: Any) -> None:
        seen.append(values["value"])
        if len(seen) == 3:
            target.run(f"KILL {self._connection().thread_id()}")
        real(self, values, change)

    monkeypatch.setattr(MySQLTables, "insert", lost_once)
    assert run(held, tmp_path, pipe) == 0
    assert seen == [1.5, 1.5, 2.5] * 2
    assert rows(target, Workload.EVENTS) == expected(held, Workload.EVENTS)


@pytest.mark.needs_setup
def test_a_pipe_when_a_table_is_missing_there_then_it_is_made_with_the_sources_types_and_follows_its_columns(
    held: Lake, target: Server, options: Mapping[str, str], tmp_path: Path
) -> None:
    types = {"id": "int", "size": "enum('s','it''s %s','\\')", "at": "time(3)"}
    labelled = Table("a`b%", {"id": pa.int32(), "size": pa.string()}, source_types=types)
    more = Table("a`b%", labelled.columns | {"at": pa.int64()}, source_types=types)
    held.cut((labelled, [insert(id=1, size="it's %s")]))
    wanted = config(MySQLTables, "pipe", options=options, on_error=OnError.STOP)
    assert run(held, tmp_path, started(held, tmp_path, wanted)) == 0
    held.cut(altered(more, added={"at": None}, types=types), (more, [insert(id=2, size="\\", at=-1_500_000)]))
    held.cut((more, [update({"id": 1, "size": "it's %s", "at": None}, {"id": 3, "size": "s", "at": 1})]))
    assert run(held, tmp_path, started(held, tmp_path, wanted)) == 0
    found = target.run("SELECT id, size, CAST(at AS CHAR) FROM `a``b%` ORDER BY id", database=DATABASE)
    assert found == [(2, "\\", "-00:00:01.500"), (3, "s", "00:00:00.000")]
    held.cut((more, [delete(id=2, size="\\", at=-1_500_000)]))
    run(held, tmp_path, started(held, tmp_path, wanted))
    assert target.run("SELECT count(*) FROM `a``b%`", database=DATABASE) == [(1,)]


@pytest.mark.needs_setup
@pytest.mark.parametrize("word", ["int) ENGINE=x", "", "varchar(20) COMMENT 'x'", "enum('a'", "int`"])
def test_a_pipe_when_a_type_is_none_that_can_be_used_then_it_stops_and_says_what_to_do(
    held: Lake, target: Server, options: Mapping[str, str], tmp_path: Path, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    if target.flavor == "mysql":
        return  # the refusal is before the server
    types = {"id": "int", "amount": "bigint unsigned", "note": word}
    held.cut((Table("orders", ORDERS.columns, source_types=types), [insert(**row(1))]))
    pipe = started(held, tmp_path, config(MySQLTables, "pipe", options=options, on_error=OnError.STOP))
    assert run(held, tmp_path, pipe) == 4
    assert "of orders.note can't be used here: create the table" in caplog.text
    assert target.run("SHOW TABLES LIKE 'orders'", database=DATABASE) == []


@pytest.mark.needs_setup
def test_a_pipe_when_another_one_has_its_name_then_waits_and_texts_that_differ_are_two_keys(
    held: Lake,
    target: Server,
    options: Mapping[str, str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = Table("named", {"id": pa.string()}, source_types={"id": "varchar(20)"})
    held.cut((named, [insert(id="a"), insert(id="A"), insert(id="a ")]))
    wanted = config(MySQLTables, "pipe", options=options, on_error=OnError.STOP)
    first, second = started(held, tmp_path / "first", wanted), started(held, tmp_path / "second", wanted)
    first.consumer.position()
    with monkeypatch.context() as patched:
        patched.setattr(mysql_tables, "LOCK_SECONDS", 0)
        assert run(held, tmp_path, second) == 4
    assert f"another run writes to {DATABASE} under the name pipe" in caplog.text
    assert run(held, tmp_path, first) == 0
    assert target.run("SELECT count(*) FROM named", database=DATABASE) == [(3,)]


def test_a_pipe_when_its_server_is_away_then_other_plugins_go_on(
    held: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    held.cut((ORDERS, [insert(**row(1))]))
    nowhere = {"host": "127.0.0.1", "port": str(free_port()), "user": "u", "password": "secret", "database": "d"}
    pipe = started(held, tmp_path, config(MySQLTables, "pipe", options=nowhere, on_error=OnError.STOP))
    other = started(held, tmp_path, config(name="other"))
    assert run(held, tmp_path, pipe, other) == 4
    assert "answered with error 2003, or could not be reached" in caplog.text and "secret" not in caplog.text
    assert "checkpoint" in kinds(other)


def test_a_pipe_when_its_options_are_wrong_then_says_which() -> None:
    for options, problem in (
        ({"hots": "x"}, "hots: no option"),
        ({"host": "db.example", "password": "x", "user": "u", "database": "d"}, "give ssl_ca"),
        ({"port": "1"}, "database, host, password, user: missing"),
        (
            {"host": "localhost", "user": "u", "database": "d", "password": "env:NOT_SET"},
            "the password: the environment variable NOT_SET is not set",
        ),
    ):
        with pytest.raises(PluginInvalid, match=problem):
            load(config(MySQLTables, "pipe", options=options))
