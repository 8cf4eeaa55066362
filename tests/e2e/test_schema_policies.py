"""Tables with each policy for changes of the schema, from a server's statements to what the API says of the lake."""

from typing import Any

import pytest

from spark_sink.work import TableId
from tests.e2e.lake import rows_in_lake, wait_until_equal
from tests.e2e.verified import verdicts
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

DATABASE = "policies"
ALTER = "ALTER TABLE {} ADD c INT DEFAULT 5, DROP COLUMN note"
#: of the tables that differ from their source then, the rows; and what is said of each
LENIENT = {(1, "a", 10, 5), (2, "b", 20, 5), (3, None, 30, 6)}
IGNORE = {(1, "a", 10, None), (2, "b", 20, None), (3, None, 30, None)}
DEPARTURES = {
    "evolve": "",
    "try_evolve": "try_evolve",
    "lenient": "lenient: columns stay with former values: note",
    "ignore": "ignore: columns of the source that are not followed: c; columns stay with former values: note",
}


@pytest.mark.parametrize("flavor", ["mysql"])
def test_tables_when_their_policies_differ_then_each_lake_table_does_what_its_own_says(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    origin, source = servers[flavor], f"policies-{flavor}"
    tables = [*DEPARTURES, "exception"]
    origin.run(f"CREATE DATABASE {DATABASE}")
    origin.run(
        *(f"CREATE TABLE `{name}` (id INT PRIMARY KEY, note VARCHAR(20), n INT)" for name in tables), database=DATABASE
    )
    with running.agent(source, {source: origin}):
        for name in tables:
            running.start_sync(source, DATABASE, name, "dump" if name == "lenient" else "now")
        wait_for("the tables to stream", lambda: running.source(source)["tables"].get("streaming") == len(tables))
        for name in tables:
            origin.run(
                f"INSERT INTO `{name}` VALUES (1, 'a', 10), (2, 'b', 20)",
                ALTER.format(f"`{name}`"),
                f"INSERT INTO `{name}` (id, n, c) VALUES (3, 30, 6)",
                database=DATABASE,
            )
        wait_until_equal(running.lake, running.tenant, source, origin, DATABASE, ["evolve", "try_evolve"])
        wait_for("the lenient rows", lambda: _rows(running, source, "lenient") == LENIENT)
        wait_for("the ignoring rows", lambda: _rows(running, source, "ignore") == IGNORE)
        wait_for("what is said", lambda: {name: _said(running, source, name) for name in DEPARTURES} == DEPARTURES)
        assert DEPARTURES["ignore"] in running.command("tables", source)
        verdict, reason, _ = verdicts(running, source, DATABASE, "lenient")["lenient"]
        assert verdict == "unknown" and DEPARTURES["lenient"] in reason

        problem = wait_for("the table to stop", lambda: _stop(running, source, "exception"))
        assert problem["code"] == "SCHEMA_CHANGED" and "DROP COLUMN note" in problem["message"]
        assert "menura sync retry" in problem["message"]
        running.command("sync", "resync", source, f"{DATABASE}.exception")
        wait_until_equal(running.lake, running.tenant, source, origin, DATABASE, ["exception"])
        running.wait_until_streaming(source, DATABASE, *tables)
        for name in tables:
            running.post(f"{running.table_path(source, DATABASE, name)}/stop")


def _rows(running: Stack, source: str, name: str) -> set[tuple[object, ...]]:
    table = TableId(running.tenant, source, DATABASE, name)
    rows = rows_in_lake(running.lake, table)
    return {(row["id"], row["note"], row["n"], row.get("c")) for row in rows}


def _stop(running: Stack, source: str, name: str) -> dict[str, Any] | None:
    """Why the lake has stopped the table; a lake that is silent for a while is no such reason."""
    view = running.table(source, DATABASE, name)
    problem: dict[str, Any] | None = view["problem"]
    return problem if view["state"] == "failed" else None


def _said(running: Stack, source: str, name: str) -> str:
    return str(running.table(source, DATABASE, name)["lake"]["schema_changes"])
