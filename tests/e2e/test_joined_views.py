"""A joined view from its command to the lake, whose sink is killed: the lake has its rows, the API how fresh it is."""

from pathlib import Path
from typing import Any

import pytest

from spark_sink.views.maintain import view_table_id
from tests.agent.dumping import agent_inside
from tests.agent.memory import config, create, installed, order
from tests.e2e.lake import rows_in_lake
from tests.memory_source.database import Change, MemoryDatabase, Table
from tests.stack import stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill]

ORDERS, MORE = (("shop", name) for name in ("orders", "more"))
SQL = "SELECT o.id, m.id AS more FROM shop.shop.orders AS o LEFT JOIN shop.shop.more AS m ON m.id = o.id"
VIEWS = "/api/v1/tenants/acme/views"


def in_lake(lake: Path) -> list[tuple[int, int | None]]:
    rows = rows_in_lake(lake, view_table_id("acme", "both"))
    return sorted((row["id"], row["more"]) for row in rows)


def test_view_when_it_is_created_and_its_tables_change_then_the_lake_has_it_and_the_api_how_fresh_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(tmp_path, monkeypatch), stack(tmp_path / "stack") as running:
        database = MemoryDatabase("shop")
        create(database, ORDERS, rows=5)
        create(database, MORE, rows=3)
        with agent_inside(config(tmp_path, f"127.0.0.1:{running.gateway_port}")):
            running.start_sync("shop", *ORDERS, "dump")
            running.start_sync("shop", *MORE, "dump")
            running.wait_until_streaming("shop", "shop", "orders", "more")
            created = running.post(VIEWS, {"name": "both", "sql": SQL})
            assert [each["role"] for each in created["plan"]["inputs"]] == ["driving", "left"]
            rows = {number: number if number in ids(database, MORE) else None for number in ids(database, ORDERS)}
            wait_for("the view's rows", lambda: in_lake(running.lake) == sorted(rows.items()), 600)
            running.sink.kill()
            database.commit(Change(MORE, None, order(99, "new")), Change(ORDERS, None, order(99, "new")))
            running.sink.start()
            rows[99] = 99
            wait_for("its change", lambda: in_lake(running.lake) == sorted(rows.items()), 600)
            wait_for("its state and freshness", lambda: told_fresh(running.get(f"{VIEWS}/both")), 600)
            shown = running.get(f"{VIEWS}/both")
            assert shown["lakes"][0]["cuts"][0]["source"] == "shop"
            assert "both" in running.command("view", "list")


def ids(database: MemoryDatabase, table: Table) -> set[int]:
    return {row["id"] for row in database.tables[table].rows}


def told_fresh(shown: dict[str, Any]) -> bool:
    """A version of dumped rows alone has no freshness: theirs has no time of a commit."""
    return shown["state"] == "streaming" and shown["freshness_us"] is not None
