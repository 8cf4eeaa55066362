"""Rows that were changed behind the log's back: found, read again by ranges while others write, and proven."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from menura.landing import decode_entry

from tests.e2e.lake import wait_until_equal
from tests.e2e.test_dump import wait_until_dumped
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

DATABASE, TABLE, ROWS = "repairs", "items", 100_000
#: of a verification's leaf
LEAF_ROWS = 16_384
#: keys, of which every second is taken, that others leave alone: in two leaves, far from each other
UNLOGGED = range(40_001, 40_041), range(170_001, 170_041)


def of_table(running: Stack, source: str, what: str) -> str:
    return f"/api/v1/tenants/{running.tenant}/sources/{source}/tables/{DATABASE}/{TABLE}/{what}"


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["mariadb"])
def test_table_when_rows_of_it_changed_unlogged_then_its_ranges_alone_are_read_again_and_it_is_proven_equal(
    flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    origin, source = servers[flavor], f"repair-{flavor}"
    create(origin)
    with running.agent(source, {source: origin}, dump={"workers": 2, "max_chunk_rows": 20_000}):
        running.start_sync(source, DATABASE, TABLE, "dump")
        wait_until_dumped(running, source, 1)
        change_unlogged(origin)
        named = [{"database": DATABASE, "table": TABLE}]
        running.post(f"/api/v1/tenants/{running.tenant}/sources/{source}/verifications", {"tables": named})
        wait_for("rows to be named", lambda: proof(running, source)["state"] == "differs", 600)
        plan = running.post(f"{of_table(running, source, 'repair')}?dry_run=true")
        assert len(plan["ranges"]) == 2 and plan["estimated_rows"] <= 3 * LEAF_ROWS
        with writing(origin):
            repair = running.post(of_table(running, source, "repair"))["repair"]
            wait_for("the repair to be done", lambda: ended(running, source, repair), 600)
        wait_for("the table to be proven", lambda: is_proven(running, source), 600)
    wait_until_equal(running.lake, running.tenant, source, origin, DATABASE, [TABLE])
    read = [chunk for chunk in chunks(running) if chunk.dump == repair]
    assert 0 < sum(chunk.rows for chunk in read) <= 3 * LEAF_ROWS < ROWS
    assert all(chunk.repairs for chunk in read)
    ledger = [(entry["kind"], entry["dump"]) for entry in running.get(of_table(running, source, "ledger"))["entries"]]
    assert ("REPAIR_STARTED", repair) in ledger and ("REPAIRED", repair) in ledger
    assert ledger.index(("REPAIRED", repair)) > 0, "the newest first: a verification follows"
    assert ledger[0][0] == "VERIFIED"


def create(origin: Server) -> None:
    origin.run(f"CREATE DATABASE {DATABASE}")
    origin.run(f"CREATE TABLE {DATABASE}.{TABLE} (id INT PRIMARY KEY, note VARCHAR(40), size INT)")
    with closing(origin.connect(database=DATABASE, autocommit=True)) as connection, connection.cursor() as cursor:
        for begin in range(0, ROWS, 10_000):
            rows = ", ".join(f"({2 * number}, 'first {number}', {number})" for number in range(begin, begin + 10_000))
            cursor.execute(f"INSERT INTO {TABLE} VALUES {rows}")


def change_unlogged(origin: Server) -> None:
    """Rows are added, changed and deleted in both ranges."""
    with closing(origin.connect(database=DATABASE, autocommit=True)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_log_bin = 0")
        for keys in UNLOGGED:
            first = keys.start
            cursor.execute(f"INSERT INTO {TABLE} VALUES ({first}, 'unlogged', 1), ({first + 2}, 'unlogged', 1)")
            cursor.execute(f"UPDATE {TABLE} SET note = 'unlogged' WHERE id BETWEEN {first + 4} AND {first + 10}")
            cursor.execute(f"DELETE FROM {TABLE} WHERE id BETWEEN {first + 12} AND {first + 30}")


@contextmanager
def writing(origin: Server) -> Iterator[None]:
    """Transactions of others, in all of the table, beside the rows that changed unlogged."""
    stopping, counts = threading.Event(), [0]

    def work() -> None:
        chance = random.Random(5)
        with closing(origin.connect(database=DATABASE, autocommit=True)) as connection, connection.cursor() as cursor:
            while not stopping.is_set():
                key = chance.choice([chance.randrange(2 * ROWS), chance.randrange(39_000, 41_000)])
                if any(key in keys for keys in UNLOGGED):
                    continue
                statement = chance.choice(
                    (
                        f"REPLACE INTO {TABLE} VALUES ({key}, 'later', {counts[0]})",
                        f"UPDATE {TABLE} SET size = size + 1 WHERE id = {key}",
                        f"DELETE FROM {TABLE} WHERE id = {key}",
                    )
                )
                cursor.execute(statement)
                counts[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_for("others to write", lambda: counts[0] > 50)
        yield
    finally:
        stopping.set()
        thread.join(60)
        assert not thread.is_alive() and counts[0] > 50


def proof(running: Stack, source: str) -> dict[str, Any]:
    found: dict[str, Any] = running.get(of_table(running, source, "proof"))
    return found


def ended(running: Stack, source: str, repair: str) -> bool:
    listed = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
    (found,) = [each for each in listed if each["dump"] == repair]
    assert found["state"] not in ("failed", "refused", "cancelled", "lost"), found
    return bool(found["state"] == "done")


def is_proven(running: Stack, source: str) -> bool:
    """By the verification that follows the repair, or another one where it could not tell, beside others' writes."""
    return bool(proof(running, source)["state"] == "equal")


def chunks(running: Stack) -> Iterator[Any]:
    for path in sorted((running.landing / "log").rglob("[0-9]*.json")):
        for cut in decode_entry(path.read_bytes()).cuts:
            yield from cut.chunks
