"""A large table whose source's log was lost: it is compared with its source, what differs is read again while others
write, and nothing else of it travels."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.postgresql_lake import DATABASE
from tests.e2e.test_log_gone import purge
from tests.e2e.test_repairs import chunks
from tests.live_source import LiveSource, MysqlSource, PostgresqlSource, mysql_source, postgresql_source
from tests.stack import Process, Stack, stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]

NAMESPACE, TABLE, ROWS, CHUNK_ROWS = "gaps", "items", 100_000, 20_000
#: keys of which rows came, changed and went while nobody read the log; every second one is taken before
CHANGED = range(80_001, 80_081)
#: keys that others write: of two leaves (16,384 rows) at most, so that on any machine most of the table is proven
#: by the first verification
WRITTEN = range(80_000, 100_000)
_SLOTS = "SELECT slot_name FROM pg_replication_slots"
_DIGITS = f"(SELECT 0 AS d{''.join(f' UNION ALL SELECT {digit}' for digit in range(1, 10))})"
_NUMBERS = ", ".join(f"{_DIGITS} AS d{place}" for place in range(5))
_NUMBER = "(d0.d + 10 * d1.d + 100 * d2.d + 1000 * d3.d + 10000 * d4.d)"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Stack]:
    with stack(tmp_path / "stack", gateway_options=["--compare-behind-gaps"]) as started:
        yield started


@contextmanager
def live(kind: str, folder: Path) -> Iterator[LiveSource]:
    if kind == "postgresql":
        with postgresql_source() as found:
            yield found
    else:
        with mysql_source("mysql" if kind == "mysql" else "mariadb", folder, NAMESPACE) as started:
            yield started


def create(origin: LiveSource) -> None:
    """With statistics, by which the table is large."""
    origin.run(
        f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, note VARCHAR(40), size INT)",
        f"INSERT INTO {TABLE} SELECT 2 * {_NUMBER}, CONCAT('first ', {_NUMBER}), {_NUMBER} FROM {_NUMBERS}",
        f"ANALYZE {'TABLE ' if isinstance(origin, MysqlSource) else ''}{TABLE}",
    )


def agent_of(origin: LiveSource, running: Stack, source: str) -> Process:
    return origin.agent(running, source, source, dump={"workers": 2, "max_chunk_rows": CHUNK_ROWS})


def begin(origin: LiveSource, running: Stack, source: str) -> None:
    running.start_sync(source, origin.namespace, TABLE, "dump")
    wait_for("the dump", lambda: [each["state"] for each in dumps(running, source)] == ["done"], 600)
    # by its word on the source the control plane knows that there is one lake
    wait_for("the lake's word", lambda: any(each["cut"] for each in running.source(source)["lakes"]), 600)
    wait_for("an estimate", lambda: (running.table(source, origin.namespace, TABLE)["estimated_rows"] or 0) > ROWS / 2)


def lose_log(origin: LiveSource) -> None:
    """Behind changes that nobody has read."""
    first = CHANGED.start
    origin.run(
        f"INSERT INTO {TABLE} VALUES ({first}, 'in the gap', 1), ({first + 2}, 'in the gap', 1)",
        f"UPDATE {TABLE} SET note = 'in the gap' WHERE id BETWEEN {first + 4} AND {first + 10}",
        f"DELETE FROM {TABLE} WHERE id BETWEEN {first + 12} AND {first + 60}",
    )
    if isinstance(origin, MysqlSource):
        purge(origin.server)
    else:
        drop_slot(origin)
    origin.run(f"UPDATE {TABLE} SET size = -1 WHERE id = 2")


def drop_slot(origin: LiveSource) -> None:
    assert isinstance(origin, PostgresqlSource)
    server = origin.server
    wait_for("the slot to be free", lambda: server.run(f"{_SLOTS} WHERE NOT active", database=DATABASE))
    server.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots", database=DATABASE)


@contextmanager
def writing(origin: LiveSource) -> Iterator[None]:
    """Transactions of others, beside the rows that changed in the gap."""
    stopping, counts = threading.Event(), [0]

    def work() -> None:
        chance = random.Random(11)
        with closing(origin.connect()) as connection, connection.cursor() as cursor:
            while not stopping.wait(0.02):
                key = chance.choice(WRITTEN)
                for statement in statements(key, counts[0]) if key not in CHANGED else ():
                    cursor.execute(statement)
                counts[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_for("others to write", lambda: counts[0] > 10)
        yield
    finally:
        stopping.set()
        thread.join(60)
        assert not thread.is_alive()


def statements(key: int, number: int) -> list[str]:
    insert = f"INSERT INTO {TABLE} VALUES ({key}, 'later', {number})"
    update = f"UPDATE {TABLE} SET size = size + 1 WHERE id = {key ^ 64}"
    return [f"DELETE FROM {TABLE} WHERE id = {key}", insert, update]


def dumps(running: Stack, source: str) -> list[dict[str, Any]]:
    """The oldest first."""
    listed: list[dict[str, Any]] = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
    return sorted(listed, key=lambda each: each["created_at_us"])


def is_repaired(running: Stack, source: str) -> bool:
    """Or, which is not expected, a dump brings the table."""
    return any(
        each["cause"] == "reread" or (each["cause"], each["state"]) == ("repair", "done")
        for each in dumps(running, source)
    )


def note(running: Stack, source: str, origin: LiveSource) -> Any:
    return running.table(source, origin.namespace, TABLE)["unlogged"]


def kinds(running: Stack, source: str, origin: LiveSource) -> list[str]:
    events = running.get(f"{running.table_path(source, origin.namespace, TABLE)}/events")["events"]
    return [event["kind"] for event in events]


def has_gap(running: Stack, source: str, origin: LiveSource) -> bool:
    return "LOG_GAP" in kinds(running, source, origin)


def equal(origin: LiveSource, running: Stack, source: str) -> None:
    wait_for("the lake to be equal", lambda: origin.compare(running, source, TABLE).equal, 600, every=3)


@pytest.mark.parametrize("kind", ["mariadb", "mysql", "postgresql"])
def test_large_table_when_its_log_is_lost_then_its_differing_ranges_alone_are_read_again_and_it_is_proven(
    kind: str, running: Stack, tmp_path: Path
) -> None:
    source = f"compared-{kind}"
    with live(kind, tmp_path / "server") as origin:
        create(origin)
        with agent_of(origin, running, source):
            begin(origin, running, source)
        lose_log(origin)
        with agent_of(origin, running, source):
            wait_for("the gap", lambda: has_gap(running, source, origin))  # what is written before may be in it
            with writing(origin):
                wait_for("the repair to be done", lambda: is_repaired(running, source), 900)
            wait_for("nothing to be stale any more", lambda: note(running, source, origin) is None, 900)
            made = dumps(running, source)
            equal(origin, running, source)
        assert [each["cause"] for each in made[:4]] == ["", "verification", "repair", "verification"], made
        assert {each["cause"] for each in made[1:]} == {"verification", "repair"}, "no dump"
        repair = made[2]["dump"]
        read = [chunk for chunk in chunks(running) if chunk.dump == repair]
        assert all(chunk.repairs for chunk in read)
        assert 0 < sum(chunk.rows for chunk in read) <= ROWS / 2
        verified = [chunk for chunk in chunks(running) if chunk.dump == made[1]["dump"]]
        assert sum(chunk.rows for chunk in verified) > 0.9 * ROWS and all(chunk.digest for chunk in verified)
        assert "DUMP_STARTED" not in kinds(running, source, origin)[: kinds(running, source, origin).index("LOG_GAP")]
        proof = running.get(f"{running.table_path(source, origin.namespace, TABLE)}/proof")
        assert proof["state"] == "equal"
