"""Landing, lake and checkpoint in an object store, which goes away meanwhile, under kill -9 of gateway and sink."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from spark_sink.work import TableId
from tests.agent.dumping import agent_inside
from tests.agent.memory import COLUMNS, Writers, config, create, installed
from tests.memory_source.database import Column, MemoryDatabase
from tests.object_store import CREDENTIAL, IDENTITY, S3Proxy
from tests.stack import stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]

KEYED, UNKEYED = ("shop", "keyed"), ("shop", "un keyed")
NAMES = [column.name for column in COLUMNS]


def in_lake(proxy: S3Proxy, table: tuple[str, str], part: str = "current") -> list[dict[str, object]]:
    folder = TableId("acme", "shop", *table).folder(f"{proxy.url}/lake")
    options = {
        "aws_endpoint": proxy.endpoint,
        "aws_region": "us-east-1",
        "allow_http": "true",
        "aws_access_key_id": IDENTITY,
        "aws_secret_access_key": CREDENTIAL,
    }
    try:
        rows = DeltaTable(f"{folder}/{part}", storage_options=options).to_pyarrow_table()
    except TableNotFoundError:
        return []
    found: list[dict[str, object]] = rows.to_pylist()
    return found


def test_store_when_it_goes_away_and_gateway_and_sink_are_killed_then_the_lake_in_it_is_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = S3Proxy(tmp_path / "store")
    try:
        with (
            installed(tmp_path, monkeypatch),
            stack(tmp_path / "stack", store=proxy.url, storage=proxy.options()) as running,
        ):
            database = MemoryDatabase("shop")
            create(database, KEYED, rows=500)
            create(database, UNKEYED, rows=50, columns=tuple(Column(each.name, each.arrow_format) for each in COLUMNS))
            agent = config(tmp_path, f"127.0.0.1:{running.gateway_port}")

            def equal(table: tuple[str, str]) -> bool:
                rows = sorted(repr([row.get(name) for name in NAMES]) for row in in_lake(proxy, table))
                return rows == sorted(repr([row[name] for name in NAMES]) for row in database.tables[table].rows)

            with agent_inside(agent):
                with Writers(database, KEYED, 1, 2000), Writers(database, UNKEYED, 2, 2000):
                    for table in (KEYED, UNKEYED):
                        running.start_sync("shop", *table, "dump")
                    wait_for("rows in the lake", lambda: in_lake(proxy, KEYED) and in_lake(proxy, UNKEYED), 600)
                    running.gateway.kill()
                    running.gateway.start()
                    running.sink.kill()
                    starts = running.sink.log.read_text().count("sink started")
                    running.sink.start()
                    wait_for("the sink", lambda: running.sink.log.read_text().count("sink started") > starts, 600)
                    proxy.stop()
                    wait_for("the lake's problem", lambda: store_away(running.source("shop")["lakes"]), 600)
                    proxy.start()
                for table in (KEYED, UNKEYED):
                    wait_for(f"{table[1]} to be equal", lambda of=table: equal(of), 600)
                running.wait_until_streaming("shop", "shop", *(table[1] for table in (KEYED, UNKEYED)))
            numbers = [row["_gsn"] for row in in_lake(proxy, KEYED, "changelog") if row["_change_type"] != "snapshot"]
            assert len(set(numbers)) == len(numbers)
            assert not running.landing.exists() and not running.lake.exists()
    finally:
        proxy.close()


def store_away(lakes: list[dict[str, object]]) -> bool:
    problems = [lake["problem"] for lake in lakes]
    return any(isinstance(problem, dict) and problem["code"] == "STORE_AWAY" for problem in problems)
