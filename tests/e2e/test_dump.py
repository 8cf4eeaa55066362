"""Dumps under load: whatever changes, and whatever is killed meanwhile, the lake equals its source at the end."""

import os
import random
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from menura.landing import LandedChunk, decode_entry

from tests.e2e import churn
from tests.e2e.lake import wait_until_equal
from tests.e2e.verified import wait_until_verified
from tests.servers import Flavor, Server, replica_of, server
from tests.stack import Process, Stack, stack, wait_for

pytestmark = pytest.mark.spark

FLAVORS: tuple[Flavor, ...] = ("mysql", "mariadb")
#: one in CI; more, e.g. MENURA_DUMP_SEEDS=20, in a long run
SEEDS = range(1, 1 + int(os.environ.get("MENURA_DUMP_SEEDS", "1")))
#: many chunks of few rows
SMALL_CHUNKS = {"dump": {"workers": 2, "max_chunk_rows": 300}}
#: of an order: a dump of 6,000 rows takes two minutes, so that it is in its middle when a test acts upon it
SLOW = {"limits": {"rows_per_second": 50}}

#: how a dump ends that did not bring its table
UNFINISHED = ("failed", "refused", "cancelled", "lost")


def path_of(running: Stack, source: str) -> str:
    """Of the source's dumps, in the API."""
    return f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps"


def dumps(running: Stack, source: str) -> dict[str, dict[str, Any]]:
    """The newest dump of each table."""
    listed = running.get(path_of(running, source))["dumps"]
    return {dump["table"]: dump for dump in sorted(listed, key=lambda dump: dump["created_at_us"])}


def wait_until_dumped(running: Stack, source: str, count: int, seconds: float = 600) -> dict[str, dict[str, Any]]:
    def probe() -> dict[str, dict[str, Any]] | None:
        found = dumps(running, source)
        assert not [dump for dump in found.values() if dump["state"] in UNFINISHED], found
        return found if len(found) == count and all(dump["state"] == "done" for dump in found.values()) else None

    return wait_for("all dumps to be done", probe, seconds)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("flavor", FLAVORS)
def test_dump_when_rows_and_keys_change_meanwhile_then_the_lake_equals_the_source(
    flavor: Flavor, seed: int, servers: dict[Flavor, Server], running: Stack
) -> None:
    source, origin = f"churn-{flavor}-{seed}", servers[flavor]
    database = source.replace("-", "_")
    churn.create(origin, database, rows=4000, seed=seed)
    with running.agent(source, {source: origin}, **SMALL_CHUNKS), churn.churning(origin, database, 4000, seed):
        for table in churn.TABLES:
            running.start_sync(source, database, table, "dump")
        wait_until_dumped(running, source, len(churn.TABLES))
        wait_until_verified(running, source, database, "numbers")
    with running.agent(source, {source: origin}, **SMALL_CHUNKS):
        wait_until_equal(running.lake, running.tenant, source, origin, database, churn.TABLES)
    views = [running.table(source, database, table) for table in churn.TABLES]
    assert [view["earlier_rows_missing"] for view in views] == [""] * len(views)


@pytest.mark.parametrize("flavor", FLAVORS)
def test_dump_when_its_server_is_a_replica_then_the_lake_equals_the_primary(
    flavor: Flavor, running: Stack, tmp_path: Path
) -> None:
    source = f"follow-{flavor}"
    database = source.replace("-", "_")
    with server(flavor, tmp_path / "primary") as primary, replica_of(primary, tmp_path / "replica") as replica:
        primary.create_replication_user()
        churn.create(primary, database, rows=2000, seed=4)
        reading = {"client": client(replica), "binlog": client(primary)}
        with running.agent(source, {source: primary}, **SMALL_CHUNKS, **reading):
            with churn.churning(primary, database, 2000, 4, writers=1):
                for table in churn.TABLES:
                    running.start_sync(source, database, table, "dump")
                wait_until_dumped(running, source, len(churn.TABLES))
            wait_until_equal(running.lake, running.tenant, source, primary, database, churn.TABLES)


def client(of: Server) -> dict[str, object]:
    return {"host": of.host, "port": of.port, "user": "menura", "password": "menura-secret"}


@pytest.mark.kill
@pytest.mark.parametrize("flavor", FLAVORS if len(SEEDS) > 1 else FLAVORS[:1])
def test_dump_when_each_part_is_killed_under_load_then_goes_on_at_the_chunk(flavor: Flavor, tmp_path: Path) -> None:
    moments = random.Random(flavor)
    with server(flavor, tmp_path / "server") as origin, stack(tmp_path / "stack") as running:
        origin.create_replication_user()
        churn.create(origin, "killed", rows=20_000, seed=5)
        slow = {"dump": {**SMALL_CHUNKS["dump"], "max_rows_per_second": 4000}}
        with (
            running.agent("killed", {"killed": origin}, **slow) as agent,
            churn.churning(origin, "killed", 500, 5, writers=1),
        ):
            for table in churn.TABLES:
                running.start_sync("killed", "killed", table, "dump")
            for process in (agent, running.gateway, running.sink, agent, running.gateway):
                _wait_for_a_chunk(running)
                threading.Event().wait(moments.uniform(0, 1))  # a random moment is the point here
                process.kill()
                process.start()
            done = wait_until_dumped(running, "killed", len(churn.TABLES))
        with running.agent("killed", {"killed": origin}):
            wait_until_equal(running.lake, running.tenant, "killed", origin, "killed", churn.TABLES)
        for table in ("numbers", "names", "codes"):
            _assert_each_range_is_read_once(running, done[table])


def _wait_for_a_chunk(running: Stack) -> None:
    def chunks() -> int:
        return sum(dump["chunks"] for dump in dumps(running, "killed").values())

    before = wait_for("the ledger", lambda: (chunks(),))[0]
    wait_for("a chunk to be committed, or the end", lambda: chunks() > before or _all_done(running))


def _all_done(running: Stack) -> bool:
    return all(dump["state"] == "done" for dump in dumps(running, "killed").values())


def _assert_each_range_is_read_once(running: Stack, dump: dict[str, Any]) -> None:
    """No chunk was committed twice: those of a range follow each other without a gap."""
    by_range: dict[int, list[LandedChunk]] = {}
    for path in sorted((running.landing / "log").rglob("[0-9]*.json")):
        for cut in decode_entry(path.read_bytes()).cuts:
            for chunk in cut.chunks:
                if chunk.dump == dump["dump"]:
                    by_range.setdefault(chunk.range, []).append(chunk)
    assert by_range
    for chunks in by_range.values():
        assert all(later.lower == earlier.upper for earlier, later in pairwise(chunks))
        assert [chunk.last_of_range for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


ALTERATIONS = {
    "altered": ("ALTER TABLE numbers ADD COLUMN extra INT NOT NULL DEFAULT 7, DROP COLUMN note",),
    "truncated": ("TRUNCATE TABLE numbers", "INSERT INTO numbers VALUES (1, 2, 'after')"),
    "swapped": (
        "CREATE TABLE _numbers_gho LIKE numbers",
        "ALTER TABLE _numbers_gho ADD COLUMN colour VARCHAR(9) NOT NULL DEFAULT 'red'",
        "INSERT INTO _numbers_gho (id, amount, note) SELECT id, amount, note FROM numbers",
        "RENAME TABLE numbers TO _numbers_del, _numbers_gho TO numbers",
        "DROP TABLE _numbers_del",
    ),
}


@pytest.mark.parametrize(
    ("flavor", "alteration"),
    [("mariadb", "altered"), ("mysql", "truncated"), ("mysql", "swapped"), ("mariadb", "swapped")],
)
def test_dump_when_its_table_changes_in_the_middle_then_the_lake_equals_the_new_table(
    flavor: Flavor, alteration: str, servers: dict[Flavor, Server], running: Stack
) -> None:
    source, origin = f"{alteration}-{flavor}", servers[flavor]
    database = f"mid_{alteration}_{flavor}"
    churn.create(origin, database, rows=6000, seed=6)
    with running.agent(source, {source: origin}, **SMALL_CHUNKS):
        running.start_sync(source, database, "numbers", "dump", dump=SLOW)
        wait_for("the first chunks", lambda: dumps(running, source)["numbers"]["chunks"] > 1)
        dump = dumps(running, source)["numbers"]
        assert dump["state"] not in ("done", "failed")
        origin.run(*ALTERATIONS[alteration], database=database)
        running.post(f"{path_of(running, source)}/{dump['dump']}/limits")
        wait_until_dumped(running, source, 1)
        wait_until_equal(running.lake, running.tenant, source, origin, database, ["numbers"])


@pytest.mark.parametrize("flavor", FLAVORS[:1])
def test_dump_when_paused_and_resumed_and_one_is_cancelled_then_does_so(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    source, origin = f"command-{flavor}", servers[flavor]
    database = f"command_{flavor}"
    churn.create(origin, database, rows=6000, seed=7)
    path = path_of(running, source)
    with running.agent(source, {source: origin}, **SMALL_CHUNKS):
        for table in ("numbers", "names"):
            running.start_sync(source, database, table, "dump", dump=SLOW)
        wait_for("first chunks of both", lambda: min(each["chunks"] for each in dumps(running, source).values()) > 0)
        running.post(f"{path}/{dumps(running, source)['names']['dump']}/cancel")
        paused = dumps(running, source)["numbers"]["dump"]
        running.post(f"{path}/{paused}/pause")
        wait_for("the pause", lambda: dumps(running, source)["numbers"]["state"] == "paused")
        held = dumps(running, source)["numbers"]
        origin.run("UPDATE numbers SET note = 'while it waits' WHERE id < 0", database=database)
        running.post(f"{path}/{paused}/limits")
        running.post(f"{path}/{paused}/resume")
        wait_for("the end", lambda: dumps(running, source)["numbers"]["state"] == "done")
        assert dumps(running, source)["numbers"]["chunks"] > held["chunks"]
        assert dumps(running, source)["names"]["state"] == "cancelled"
        wait_until_equal(running.lake, running.tenant, source, origin, database, ["numbers"])


def test_full_lake_when_a_table_is_dumped_again_then_rows_that_are_gone_go(
    servers: dict[Flavor, Server], running: Stack
) -> None:
    origin, source, database = servers["mysql"], "again", "again"
    churn.create(origin, database, rows=1000, seed=8)
    agent: Process = running.agent(source, {source: origin})
    with agent:
        for table in churn.TABLES:
            running.start_sync(source, database, table, "dump")
        wait_until_dumped(running, source, len(churn.TABLES))
        wait_until_equal(running.lake, running.tenant, source, origin, database, churn.TABLES)
        for table in churn.TABLES:
            running.post(f"{running.table_path(source, database, table)}/stop")
        # what nobody reads from the log
        for table, column in (("numbers", "id"), ("names", "n"), ("codes", "v"), ("bag", "a")):
            statements = (
                f"DELETE FROM {table} WHERE {column} % 3 = 0",
                f"UPDATE {table} SET {column} = {column} + 90000",
            )
            origin.run(*statements, database=database)
        for table in churn.TABLES:
            running.start_sync(source, database, table, "dump")
        wait_until_equal(running.lake, running.tenant, source, origin, database, churn.TABLES)
        wait_until_dumped(running, source, len(churn.TABLES))
        wait_until_equal(running.lake, running.tenant, source, origin, database, churn.TABLES)
