"""Tables whose keys are no integers, in lakes that something has changed: named, read again by ranges, and proven."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

import pytest
from deltalake import DeltaTable
from menura.landing import decode_entry

from spark_sink.work import TableId
from tests.e2e.lake import recorded_events
from tests.e2e.postgresql_lake import agent, may_publish
from tests.e2e.test_dump import wait_until_dumped
from tests.postgres import source_server
from tests.servers import Flavor, Server
from tests.stack import Process, Stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]

DATABASE = "key_ranges"
ROWS = 40_000
#: of a verification's leaf
LEAF_ROWS = 16_384
MYSQL = {
    "dates": ("d DATE, s VARCHAR(20), PRIMARY KEY (d, s)", "DATE '2000-01-01' + INTERVAL n DIV 4 DAY, concat('s', n)"),
    "moments": ("t DATETIME(6) PRIMARY KEY", "TIMESTAMP '2024-01-01 00:00:00' + INTERVAL n * 300 MICROSECOND"),
    "prices": ("p DECIMAL(20,4) PRIMARY KEY", "n / 10000 - 2"),
    "binaries": ("b VARBINARY(20) PRIMARY KEY", "unhex(left(sha2(n, 256), 40))"),
}
POSTGRESQL = {
    "dates": ("d date, s text, PRIMARY KEY (d, s)", "date '2000-01-01' + n / 4, 's' || n"),
    "instants": ("t timestamptz PRIMARY KEY", "timestamptz '2024-01-01 00:00:00Z' + n * interval '300 microseconds'"),
    "prices": ("p numeric(20,4) PRIMARY KEY", "n / 10000.0 - 2"),
    "uuids": ("u uuid PRIMARY KEY", "md5(n::text)::uuid"),
    "texts": ('s text COLLATE "C" PRIMARY KEY', "md5(n::text)"),
}


@dataclass(frozen=True)
class Origin:
    """Tables of a source, with rows of numbers `n` from 1 on."""

    database: str
    tables: tuple[str, ...]
    agent: Callable[[Stack, str], AbstractContextManager[Process]]


@pytest.fixture(params=["mariadb", "mysql", "postgresql"])
def origin(request: pytest.FixtureRequest) -> Iterator[Origin]:
    if request.param != "postgresql":
        servers: dict[Flavor, Server] = request.getfixturevalue("servers")
        server = servers[request.param]
        server.run(f"CREATE DATABASE {DATABASE}")
        with closing(server.connect(database=DATABASE)) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE numbers (n INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO numbers VALUES {', '.join(f'({n})' for n in range(200))}")
            for table, (columns, key) in MYSQL.items():
                numbers = "SELECT a.n * 200 + b.n + 1 AS n FROM numbers AS a CROSS JOIN numbers AS b"
                cursor.execute(f"CREATE TABLE {table} (n INT, note VARCHAR(9), {columns})")
                cursor.execute(f"INSERT INTO {table} SELECT n, 'same', {key} FROM ({numbers}) AS made")
        yield Origin(DATABASE, tuple(MYSQL), lambda running, source: running.agent(source, {source: server}))
        return
    with source_server("") as shop:
        shop.create_replication_user()
        shop.renew_database()
        for table, (columns, key) in POSTGRESQL.items():
            shop.run(
                f"CREATE TABLE {table} (n int, note text, {columns})",
                f"INSERT INTO {table} SELECT n, 'same', {key} FROM generate_series(1, {ROWS}) AS n",
                f"ANALYZE {table}",
                database="shop",
            )
        may_publish(shop, *POSTGRESQL)
        yield Origin("public", tuple(POSTGRESQL), lambda running, source: agent(running, source, {source: shop}))


def test_tables_when_rows_of_the_lake_are_others_then_ranges_of_their_keys_are_read_again_and_they_are_equal(
    origin: Origin, running: Stack, request: pytest.FixtureRequest
) -> None:
    source = f"ranges-{request.node.callspec.id}"
    with origin.agent(running, source):
        for table in origin.tables:
            running.start_sync(source, origin.database, table, "dump")
        wait_until_dumped(running, source, len(origin.tables))
        for table in origin.tables:
            meddle(running, source, origin.database, table)
        named = [{"database": origin.database, "table": table} for table in origin.tables]
        running.post(f"/api/v1/tenants/{running.tenant}/sources/{source}/verifications", {"tables": named})
        repairs = {}
        for table in origin.tables:
            where = f"/api/v1/tenants/{running.tenant}/sources/{source}/tables/{origin.database}/{table}"
            wait_for(f"rows of {table} to be named", lambda at=where: state(running, at) == "differs", 600)
            planned = running.post(f"{where}/repair?dry_run=true")
            assert planned["ranges"] and planned["estimated_rows"] < ROWS, planned
            assert planned["verifies"] == "ranges" and all(each["above"] or each["up_to"] for each in planned["ranges"])
            repairs[running.post(f"{where}/repair")["repair"]] = table
        for table in origin.tables:
            where = f"/api/v1/tenants/{running.tenant}/sources/{source}/tables/{origin.database}/{table}"
            wait_for(f"{table} to be proven", lambda at=where: state(running, at) == "equal", 600)
            lake = DeltaTable(current(running, source, origin.database, table)).to_pyarrow_table(columns=["n", "note"])
            assert sorted(lake["n"].to_pylist()) == list(range(1, ROWS + 1)), table
            assert set(lake["note"].to_pylist()) == {"same"}, table
    read = dict.fromkeys(repairs, 0)
    for path in sorted((running.landing / "log").rglob("[0-9]*.json")):
        for cut in decode_entry(path.read_bytes()).cuts:
            for chunk in cut.chunks:
                if chunk.dump in read:
                    read[chunk.dump] += chunk.rows
    assert all(0 < rows <= LEAF_ROWS + 4 for rows in read.values()), read


def current(running: Stack, source: str, database: str, table: str) -> str:
    return f"{TableId(running.tenant, source, database, table).folder(str(running.lake))}/current"


def meddle(running: Stack, source: str, database: str, table: str) -> None:
    """One row is another, one is missing, in the same leaf."""

    def is_dumped() -> bool:
        """The lake has the dump's end, behind which nothing else writes the table."""
        of_table = [row for row in recorded_events(running.lake) if (row["source"], row["table"]) == (source, table)]
        return "DUMPED" in [row["kind"] for row in of_table]

    wait_for(f"the dump of {table} in the lake", is_dumped)
    lake = DeltaTable(current(running, source, database, table))
    key = next(name for name in lake.schema().to_arrow().names if name in ("d", "t", "p", "b", "u", "s"))
    found: list[dict[str, Any]] = lake.to_pyarrow_table(columns=["n", key]).sort_by(key).to_pylist()
    changed, dropped = found[2000]["n"], found[2001]["n"]
    assert lake.update({"note": "'other'"}, predicate=f"n = {changed}")["num_updated_rows"] == 1
    lake.delete(f"n = {dropped}")


def state(running: Stack, where: str) -> str:
    found: dict[str, Any] = running.get(f"{where}/proof")
    assert found["state"] in ("never", "differs", "equal", "unknown"), json.dumps(found)
    return str(found["state"])
