"""Commands about dumps over an agent and a gateway: what they promise, checked in the cut log."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from menura.landing import LandedChunk, decode_entry, entry_path

from tests.agent.dumping import agent_inside
from tests.agent.memory import ORDERS, config, create, database, order
from tests.memory_source.database import Change, MemoryDatabase
from tests.servers import Flavor, Server, server
from tests.stack import Process, Stack, stack, wait_for

__all__ = ["database"]

SHOP = "/api/v1/tenants/acme/sources/shop"
ROWS = 20_000


def fill(source: Server) -> None:
    """shop.heap, without a key, of `ROWS` rows."""
    source.create_replication_user()
    source.run(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.heap (id INT, note VARCHAR(20))",
        "CREATE TABLE shop.ten (n INT)",
        "INSERT INTO shop.ten VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9)",
        "INSERT INTO shop.heap SELECT a.n + 10 * b.n + 100 * c.n + 1000 * d.n + 10000 * e.n, 'old'"
        " FROM shop.ten a, shop.ten b, shop.ten c, shop.ten d, shop.ten e WHERE e.n < 2",
    )


def landed_chunks(running: Stack, dump: str) -> list[LandedChunk]:
    found: list[LandedChunk] = []
    number = 1
    while (path := running.landing / entry_path(number)).exists():
        cuts = decode_entry(path.read_bytes()).cuts
        found += [chunk for cut in cuts for chunk in cut.chunks if chunk.dump == dump]
        number += 1
    return found


def dump_of(running: Stack, dump: str) -> dict[str, Any]:
    view: dict[str, Any] = running.get(f"{SHOP}/dumps/{dump}")
    return view


@dataclass(frozen=True)
class Running:
    source: Server
    stack: Stack
    agent: Process


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, flavor = tmp_path_factory.mktemp("shop"), cast(Flavor, request.param)
    with server(flavor, folder / flavor) as source, stack(folder / "stack", sink=False) as running:
        fill(source)
        with running.agent("agent-1", {"shop": source}, dump={"max_chunk_rows": 1_000}) as agent:
            yield Running(source, running, agent)


def test_commands_when_a_table_is_dumped_then_it_is_held_goes_on_and_lacks_nothing(
    database: MemoryDatabase, tmp_path: Path
) -> None:
    create(database, rows=ROWS)
    with (
        stack(tmp_path / "stack", sink=False) as running,
        agent_inside(config(tmp_path, f"127.0.0.1:{running.gateway_port}", dump={"max_chunk_rows": 1_000})),
    ):
        steer(running, lambda: database.commit(Change(ORDERS, order(3, "first"), order(3, "new"))))


def steer(running: Stack, change: Callable[[], None]) -> None:
    orders = running.wait_for_table("shop", "shop", "orders")
    slow = {"limits": {"rows_per_second": 300}}  # a minute
    dump = running.post(f"{orders}/start", {"start": "dump", "dump": slow})["dump"]["dump"]
    wait_for("its first chunk", lambda: dump_of(running, dump)["chunks"])
    assert running.get(orders)["earlier_rows_missing"] == "the dump that brings them is not done"
    running.post(f"{SHOP}/dumps/{dump}/pause")
    held = dump_of(running, dump)
    assert (held["state"], held["key"]) == ("paused", ["id"])
    assert held["rows"] < ROWS
    change()  # its stream goes on meanwhile
    wait_for("the change", lambda: running.get(orders)["rows"] > dump_of(running, dump)["rows"])
    running.post(f"{SHOP}/dumps/{dump}/limits", {})
    running.post(f"{SHOP}/dumps/{dump}/resume")
    wait_for("its end", lambda: dump_of(running, dump)["state"] == "done")
    table, done = running.get(orders), dump_of(running, dump)
    assert (table["earlier_rows_missing"], table["dump"]) == ("", None)
    assert (done["percent"], done["ranges_done"], done["rows"]) == (100, done["ranges"], ROWS)
    assert sum(chunk.rows for chunk in landed_chunks(running, dump)) == ROWS
    kinds = [event["kind"] for event in running.get(f"{orders}/events")["events"]]
    assert kinds == ["DUMPED", "DUMP_STARTED"]


def test_dump_when_the_log_is_gone_before_a_table_without_a_key_is_read_then_it_is_refused_unless_forced(shop: Running):
    running = shop.stack
    heap = running.wait_for_table("shop", "shop", "heap")
    running.post(f"{heap}/start", {"start": "now"})
    wait_for("the stream", lambda: running.get(heap)["earlier_rows_missing"])
    slow = {"tables": [{"database": "shop", "table": "heap"}], "limits": {"rows_per_second": ROWS // 2}}
    ((kept,),) = shop.source.run("ANALYZE TABLE shop.heap", "SELECT @@GLOBAL.binlog_expire_logs_seconds")
    try:
        shop.source.run("SET GLOBAL binlog_expire_logs_seconds = 1")
        (told,) = running.post(f"{SHOP}/dumps", slow)["tables"]
        assert "begins anew" in told["notice"]
        wait_for("its refusal", lambda: dump_of(running, told["dump"])["state"] == "refused")
        refused = dump_of(running, told["dump"])
        (told,) = running.post(f"{SHOP}/dumps", slow | {"force": True})["tables"]
        wait_for("its end", lambda: dump_of(running, told["dump"])["state"] == "done")
    finally:
        shop.source.run(f"SET GLOBAL binlog_expire_logs_seconds = {kept}")
    assert "for about 2 s, and the server keeps it for about 1 s: changes would be lost" in refused["reason"]
    assert (refused["runway_seconds"], refused["needed_seconds"], refused["rows"]) == (1, 2, 0)
    assert "binlog_expire_logs_seconds is 1" in dump_of(running, told["dump"])["warning"]
    assert running.get(heap)["earlier_rows_missing"] == "", shop.agent.tail()
    (whole,) = landed_chunks(running, told["dump"])
    assert (whole.rows, whole.lower, whole.upper, whole.last_of_range) == (ROWS, "", "", True)
    assert dump_of(running, told["dump"])["rows"] == ROWS
