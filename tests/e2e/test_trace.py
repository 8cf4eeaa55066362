"""A row of MariaDB that was dumped, changed, read again and deleted: each of these is found at every stage."""

import json
from typing import Any

import pytest

from spark_sink.errors import TableNotInLake
from spark_sink.trace import trace
from spark_sink.work import TableId
from tests.e2e.test_dump import wait_until_dumped
from tests.e2e.verified import wait_until_verified
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

DATABASE, TABLE = "traced", "orders"


def traced(running: Stack, source: str, key: str) -> dict[str, Any]:
    table = f"{running.tenant}/{source}/{DATABASE}/{TABLE}"
    where = ["--lake", str(running.lake), "--landing", str(running.landing), "--format", "json"]
    found: dict[str, Any] = json.loads(running.command("trace", table, key, *where))
    return found


def kinds(running: Stack, source: str) -> list[str]:
    try:
        found = trace(str(running.lake), TableId(running.tenant, source, DATABASE, TABLE), ["7"])
    except TableNotInLake:
        return []
    return [change.kind for change in found.changes]


def test_a_row_of_mariadb_when_it_is_traced_then_each_change_has_its_position_file_and_versions(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    origin, source = servers["mariadb"], "traced-mariadb"
    origin.run(f"CREATE DATABASE {DATABASE}")
    origin.run(f"CREATE TABLE {DATABASE}.{TABLE} (id INT PRIMARY KEY, note VARCHAR(40))")
    origin.run(f"INSERT INTO {DATABASE}.{TABLE} VALUES (7, 'first'), (8, 'other')")
    of_rows = f"/api/v1/tenants/{running.tenant}/sources/{source}"
    named = {"tables": [{"database": DATABASE, "table": TABLE}]}
    with running.agent(source, {source: origin}):
        running.start_sync(source, DATABASE, TABLE, "dump")
        wait_until_dumped(running, source, 1)
        wait_for("the lake to have the row", lambda: kinds(running, source) == ["snapshot"])
        for note, count in (("second", 2), ("third", 3)):
            origin.run(f"UPDATE {DATABASE}.{TABLE} SET note = '{note}' WHERE id = 7")
            wait_for("the update", lambda want=count: len(kinds(running, source)) == want)
        running.post(f"{of_rows}/dumps", named)
        wait_for("the row to be read again", lambda: len(kinds(running, source)) == 4)
        origin.run(f"DELETE FROM {DATABASE}.{TABLE} WHERE id = 7")
        wait_for("the deletion", lambda: len(kinds(running, source)) == 5)
        wait_until_verified(running, source, DATABASE, TABLE)
        wait_for("its proof", lambda: traced(running, source, "7")["equal"], 600)
    found = traced(running, source, "7")
    assert [change["kind"] for change in found["changes"]] == ["snapshot", "update", "update", "snapshot", "delete"]
    assert found["rows"] == 0 and not found["waiting"] and found["newest"]["verdict"] == "equal"
    for change in found["changes"]:
        assert change["position"].startswith("0-"), "a GTID"
        assert change["changelog"]["is_first"] and change["current"]["is_first"]
        assert [is_there for _, is_there in change["landed"]["files"]] == [True]
        times = [change["committed_us"] // 1_000_000, change["landed"]["committed_at_us"] // 1_000_000]
        times.append(change["current"]["at_us"] // 1_000_000)
        assert times == sorted(times)
    cuts = [change["landed"]["cut"] for change in found["changes"]]
    assert cuts == sorted(set(cuts))
    assert found["equal"]["gsn"] >= found["changes"][-1]["gsn"]
    assert traced(running, source, "8")["rows"] == 1
