"""What messages about tables of a PostgreSQL source say is to be done: run word for word, then the table is equal.

The gateway is a double, which does what a command asks of the control plane.
"""

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from menura.errors import one_line
from menura.v1 import error_pb2

from agent.sources.postgresql.native.decoder import TablePlan
from tests.agent.dump_ledger import Dump
from tests.agent.dumping import lake_at, poll, wait_dumped
from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE, entries, login
from tests.agent.postgresql.streaming import (
    ORDERS,
    begin,
    create,
    current,
    looks_often,
    run,
    stopped,
    streaming,
)
from tests.postgres import SourceServer, source_server
from tests.remedies import commands

START = "menura sync start shop public.orders --from dump"
#: the compiled decoder takes values up to 240 MiB
TOO_LARGE_BYTES = (240 << 20) + 1


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    looks_often(monkeypatch)
    monkeypatch.setattr("agent.capture.plugin.TERMINAL_FIRST_SECONDS", 0.5)
    monkeypatch.setattr("agent.capture.plugin.TERMINAL_MOST_SECONDS", 1.0)


class Operator:
    """Does what messages say, at the agent's file, its server, and in place of the control plane."""

    def __init__(self, folder: Path, gateway: GatewayDouble, server: SourceServer, **source: Any) -> None:
        self.folder, self.gateway, self.server, self.facts = folder, gateway, server, source

    def agent(self) -> AbstractContextManager[None]:
        return streaming(self.folder, self.gateway, self.server, **self.facts)

    def stopped(self, code: str) -> str:
        """What is said of the table that has stopped."""
        self.gateway.wait(lambda: stopped(self.gateway, ORDERS))
        return told(stopped(self.gateway, ORDERS)[-1].error, code)

    def refused(self, code: str) -> str:
        """What is said of the source that can't be read."""
        record = self.gateway.source(SOURCE)
        self.gateway.wait(lambda: record.effective and record.effective[-1].error.code == code)
        return told(record.effective[-1].error, code)

    def ignores(self, message: str, *columns: str) -> None:
        """The setting that the message names has these columns; the agent is not running."""
        (setting,) = re.findall(r"\bsources\.shop\.filter\.([\w.]+)\.ignored_columns", message)
        self.facts["filter"] = {setting: {"ignored_columns": list(columns)}}

    def leads_back(self, message: str, command: str, select: str = "*", changes: str = "") -> None:
        """The one command of the message brings the table's rows, and what is written afterwards comes too."""
        (words,) = commands(message)
        assert " ".join(["menura", *words]) == command
        group, verb, source, name, *more = words
        if group == "sync" and verb != "retry":
            assert verb == "resync" or (verb, more) == ("start", ["--from", "dump"])
            assert name in ("--all", "public.orders")
            self.gateway.sync(source, ORDERS, dump="anew")
        dump = self.gateway.dump(source, "anew", ORDERS)
        wait_dumped(self.gateway, dump)
        run(self.server, changes or "INSERT INTO orders (id, name, note) VALUES (77, 'behind', '')")
        self.wait_equal(dump, select)

    def wait_equal(self, dump: Dump, select: str = "*") -> None:
        with self.server.connect("shop") as connection, connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            rows = cursor.execute(f"SELECT {select} FROM orders".encode()).fetchall()
        expected = {(row["id"],): dict(row, _unrepresentable=None) for row in rows}

        def lake() -> dict[tuple[object, ...], dict[str, object]]:
            return lake_at(self.gateway, dump, ("id",), self.gateway.source(SOURCE).committed[-1].cut)

        poll(lambda: lake() == expected)
        assert lake() == expected


def told(error: error_pb2.Error, code: str) -> str:
    message = one_line(error)
    assert error.code == code, message
    return message


def read(operator: Operator) -> None:
    """The table has a row that was streamed."""
    begin(operator.gateway, ORDERS)
    run(operator.server, "INSERT INTO orders (id, name, note) VALUES (1000, 'read', 'a')")
    operator.gateway.wait(lambda: current(operator.gateway, ORDERS))


def test_table_when_its_policy_is_to_stop_then_the_remedy_brings_its_rows(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    run(postgres, "CREATE TYPE mood AS ENUM ('sad', 'ok')")
    create(postgres, columns="id int PRIMARY KEY, name text, note text, mood mood DEFAULT 'ok'", rows=5)
    operator = Operator(tmp_path, gateway, postgres, unlogged_changes="stop")
    with operator.agent():
        read(operator)
        run(postgres, "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
        message = operator.stopped("TABLE_ROWS_UNLOGGED")
        operator.leads_back(message, START)


def test_table_when_an_ignored_column_gets_another_name_then_the_remedy_brings_its_other_columns(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=5)
    operator = Operator(tmp_path, gateway, postgres, filter={"public.orders": {"ignored_columns": ["note"]}})
    with operator.agent():
        read(operator)
        run(postgres, "ALTER TABLE orders RENAME note TO remark")
        message = operator.stopped("TABLE_IGNORED_RENAMED")
    assert "does not ignore now: remark." in message
    gateway.wait_gone(SOURCE)
    operator.ignores(message, "remark")
    with operator.agent():
        operator.leads_back(message, START, "id, name", "INSERT INTO orders VALUES (77, 'behind', 'hidden')")
    assert not [row for row in gateway.rows(SOURCE, ORDERS) if row.keys() & {"note", "remark"}]


def test_table_when_a_row_is_too_large_then_the_remedy_brings_its_rows(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=5)
    operator = Operator(tmp_path, gateway, postgres)
    with operator.agent():
        read(operator)
        run(postgres, f"INSERT INTO orders VALUES (2000, repeat('x', {TOO_LARGE_BYTES}), '')")
        message = operator.stopped("TABLE_ROW_UNREADABLE")
        run(postgres, "UPDATE orders SET name = 'short' WHERE id = 2000")
        operator.leads_back(message, START)


def test_table_when_it_has_too_many_columns_then_the_remedy_brings_its_rows(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it takes more of them than a server lets a table have."""

    def made(database: str, table: str, schema_id: str, columns: list[Any]) -> object:
        if len(columns) > 3:
            raise ValueError(f"{len(columns)} columns, a table has at most 3")
        return TablePlan(database, table, schema_id, columns)

    monkeypatch.setattr("agent.sources.postgresql.stream.router.TablePlan", made)
    create(postgres, rows=5)
    operator = Operator(tmp_path, gateway, postgres)
    with operator.agent():
        read(operator)
        run(postgres, "ALTER TABLE orders ADD fourth int", "INSERT INTO orders VALUES (2000, 'b', '', 4)")
        message = operator.stopped("TABLE_COLUMN_UNSUPPORTED")
        assert "4 columns, a table has at most 3" in message
        assert "Change the table; then run" in message
        run(postgres, "ALTER TABLE orders DROP fourth")
        operator.leads_back(message, START)


def test_source_when_its_committed_position_is_none_then_the_remedy_brings_its_tables(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=5)
    operator = Operator(tmp_path, gateway, postgres)
    with operator.agent():
        read(operator)
    gateway.wait_gone(SOURCE)
    gateway.source(SOURCE).committed[-1].position.text = "none"
    with operator.agent():
        operator.leads_back(operator.refused("POSITION_INVALID"), "menura sync resync shop --all")


def test_server_when_it_is_another_one_then_the_setting_of_the_message_names_the_right_one(
    postgres: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    create(postgres, rows=5)
    operator = Operator(tmp_path, gateway, postgres)
    with operator.agent():
        read(operator)
    gateway.wait_gone(SOURCE)
    with source_server(is_other=True) as other:
        other.create_replication_user()
        create(other, rows=3)
        operator.facts["client"] = entries(login(other))
        with operator.agent():
            message = operator.refused("SOURCE_REBUILT")
            assert commands(message) == [["sources", "accept", "shop"]]
        gateway.wait_gone(SOURCE)
    assert "name the right one in sources.shop of the agent's configuration and restart the agent" in message
    operator.facts["client"] = entries(login(postgres))
    with operator.agent():
        _is_equal_after_a_dump(operator)


def _is_equal_after_a_dump(operator: Operator) -> None:
    """As the control plane orders it behind a gap, or somebody at any time."""
    run(operator.server, "INSERT INTO orders VALUES (78, 'behind', '')")
    operator.gateway.wait(lambda: (78,) in current(operator.gateway, ORDERS))
    dump = operator.gateway.dump(SOURCE, "again", ORDERS)
    wait_dumped(operator.gateway, dump)
    operator.wait_equal(dump)
