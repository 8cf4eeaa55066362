"""A lake that something has changed: a verification is followed by others, by themselves, until the row is named."""

import json
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_sink.lake.validation_records import ValidationRecords
from spark_sink.work import TableId
from tests.e2e.lake import recorded_events
from tests.e2e.test_dump import wait_until_dumped
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

DATABASE = "drill_downs"
#: keys that the lake orders as the server does, that it does not, and none
TABLES = {
    "numbered": "id INT PRIMARY KEY, code VARCHAR(20), note TEXT",
    "coded": "id INT, code VARCHAR(20) PRIMARY KEY, note TEXT",
    "keyless": "id INT, code VARCHAR(20), note TEXT",
}


@pytest.mark.parametrize("flavor", ["mariadb"])
def test_tables_when_a_value_in_the_lake_is_another_then_its_row_is_named_in_the_end(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    origin, source = servers[flavor], f"drill-{flavor}"
    origin.run(f"CREATE DATABASE {DATABASE}")
    rows = ", ".join(f"({number}, '{'aB'[number % 2]}{number}', '')" for number in range(1, 301))
    for table, columns in TABLES.items():
        origin.run(f"CREATE TABLE {DATABASE}.{table} ({columns})")
        origin.run(f"INSERT INTO {DATABASE}.{table} VALUES {rows}")
    with running.agent(source, {source: origin}):
        for table in TABLES:
            running.start_sync(source, DATABASE, table, "dump")
        wait_until_dumped(running, source, len(TABLES))
        for table in TABLES:
            _meddle(running, source, table)
        named = [{"database": DATABASE, "table": table} for table in TABLES]
        running.post(f"/api/v1/tenants/{running.tenant}/sources/{source}/verifications", {"tables": named})
        found = wait_for("rows to be named", lambda: _named(running, source), 300)
    for table, key in (("numbered", '["77"]'), ("coded", '["B77"]')):
        (row,) = found[table]
        assert (row["key"], row["columns"], row["source_rows"], row["lake_rows"]) == (key, ["note"], 1, 1)
    assert sorted((row["key"], row["source_rows"], row["lake_rows"]) for row in found["keyless"]) == [
        ("", 0, 1),
        ("", 1, 0),
    ]


def _meddle(running: Stack, source: str, table: str) -> None:
    def is_dumped() -> bool:
        """The lake has the dump's end, behind which nothing else writes the table."""
        kinds = [
            row["kind"] for row in recorded_events(running.lake) if (row["source"], row["table"]) == (source, table)
        ]
        return "DUMPED" in kinds

    wait_for(f"the dump of {table} in the lake", is_dumped)
    folder = TableId(running.tenant, source, DATABASE, table).folder(str(running.lake))
    changed = DeltaTable(f"{folder}/current").update({"note": "NULL"}, predicate="id = 77")
    assert changed["num_updated_rows"] == 1


def _named(running: Stack, source: str) -> dict[str, list[dict[str, Any]]] | None:
    rows = [row for row in ValidationRecords(str(running.lake)).rows() if row["source"] == source]
    ended = [row for row in rows if row["chunk"] is None and row["verdict"] not in ("due", "unknown")]
    assert all(row["verdict"] == "differs" for row in ended), ended
    found = {row["table"]: json.loads(row["rows"]) for row in ended}
    return found if len(found) == len(TABLES) else None
