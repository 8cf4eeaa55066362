"""kill -9 of agent and gateway at random moments, while a PostgreSQL's tables are dumped and written to."""

import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.e2e.lake import changelog_counts
from tests.e2e.postgresql_lake import DATABASE, agent, may_publish, wait_until_equal
from tests.postgres import SourceServer, source_server
from tests.stack import Process, Stack, stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill]

KILLS = 6
LONGEST_SECONDS = 3.0
ROWS = 20_000
ORACLE = "oracle"
TABLES = {
    "keyed": "id int PRIMARY KEY, name text, note text",
    "whole": "id int PRIMARY KEY, name text, note text",
    "bag": "a int, b text",
}
_MEETINGS = (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation)


def create(server: SourceServer) -> None:
    server.run(
        *(f"CREATE TABLE {table} ({columns})" for table, columns in TABLES.items()),
        "ALTER TABLE keyed ALTER note SET STORAGE EXTERNAL",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        f"INSERT INTO keyed SELECT n, 'name ' || n, repeat('x', n % 50) FROM generate_series(1, {ROWS}) AS n",
        f"INSERT INTO whole SELECT n, 'name ' || n, NULL FROM generate_series(1, {ROWS // 4}) AS n",
        "INSERT INTO bag SELECT n % 7, 'row ' || n % 5 FROM generate_series(1, 2000) AS n",
        f"SELECT pg_create_logical_replication_slot('{ORACLE}', 'test_decoding')",
        database=DATABASE,
    )
    may_publish(server, *TABLES)


@contextmanager
def under_load(server: SourceServer, seed: int) -> Iterator[None]:
    """Two writers change all tables until the context ends."""
    stop, failures = threading.Event(), []

    def work(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        try:
            with server.connect(DATABASE, autocommit=False) as connection:
                while not stop.wait(0.005):
                    try:
                        for _ in range(dice.randint(1, 4)):
                            connection.execute(statement(dice))
                        connection.rollback() if dice.random() < 0.05 else connection.commit()
                    except _MEETINGS:
                        connection.rollback()
        except Exception as failure:  # noqa: BLE001  (a thread's top: raised below)
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def statement(dice: random.Random) -> str:
    table = dice.choice(list(TABLES))
    if table == "bag":
        one = f"(SELECT ctid FROM bag WHERE a = {dice.randrange(7)} LIMIT {dice.randint(1, 3)})"
        return dice.choice(
            (
                f"INSERT INTO bag VALUES ({dice.randrange(7)}, {dice.choice(['NULL', repr('new')])})",
                f"UPDATE bag SET b = 'changed {dice.randrange(3)}' WHERE ctid = ANY (ARRAY{one})",
                f"DELETE FROM bag WHERE ctid = ANY (ARRAY{one})",
            )
        )
    one, other = dice.randint(1, ROWS + 500), dice.randint(1, ROWS + 500)
    note = f"repeat(md5('{dice.random()}'), {dice.choice((1, 1, 200))})"
    return dice.choice(
        (
            f"INSERT INTO {table} VALUES ({one}, 'new', {note}) ON CONFLICT (id) DO UPDATE SET note = excluded.note",
            f"UPDATE {table} SET name = 'u{other}' WHERE id BETWEEN {one} AND {one + 5}",
            f"UPDATE {table} SET note = {note} WHERE id = {one}",
            f"UPDATE {table} SET id = {other} WHERE id = {one}",
            f"DELETE FROM {table} WHERE id BETWEEN {one} AND {one + 2}",
        )
    )


def count_changes(server: SourceServer) -> dict[str, Counter[str]]:
    """What another plugin of the server decodes, in the changelog's words."""
    changes: dict[str, Counter[str]] = {table: Counter() for table in TABLES}
    words = {"INSERT": "insert", "UPDATE": "update_postimage", "DELETE": "delete"}
    for (text,) in server.run(
        f"SELECT data FROM pg_logical_slot_peek_changes('{ORACLE}', NULL, NULL) WHERE data LIKE 'table %'",
        database=DATABASE,
    ):
        found = re.match(r"table public\.(\w+): (\w+):", str(text))
        assert found is not None
        changes[found[1]][words[found[2]]] += 1
    return changes


def kill_at_random(processes: list[Process], seed: int) -> None:
    moments = random.Random(seed)
    for _ in range(KILLS):
        for process in processes:
            # a random moment is the point here; nothing is expected to have happened by then
            threading.Event().wait(moments.uniform(0, LONGEST_SECONDS))
            process.kill()
            process.start()


def equal(running: Stack, server: SourceServer) -> None:
    wait_until_equal(running, "shop", server, *TABLES)
    logged = count_changes(server)

    def counted(table: str) -> Counter[str]:
        found = changelog_counts(running.lake, running.tenant, "shop", "public", table)
        return Counter({kind: found[kind] for kind in ("insert", "update_postimage", "delete") if found[kind]})

    for table in TABLES:
        wait_for(f"the changelog of {table}", lambda table=table: counted(table) == logged[table])


def test_agent_and_gateway_when_killed_while_dumping_and_streaming_then_nothing_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    with source_server() as server, stack(tmp_path / "stack") as running:
        server.create_replication_user()
        create(server)
        with agent(running, "shop-agent", {"shop": server}) as reader:
            for table in TABLES:
                running.start_sync("shop", "public", table, "dump")
            for table in TABLES:
                wait_for(f"{table} to begin", lambda table=table: running.table("shop", "public", table)["position"])
            with under_load(server, seed=3):
                kill_at_random([reader, running.gateway], seed=4)
            equal(running, server)
            running.wait_until_streaming("shop", "public", *TABLES)
            with under_load(server, seed=5):
                kill_at_random([reader, running.gateway], seed=6)
            equal(running, server)
        kept = "SELECT wal_status FROM pg_replication_slots WHERE slot_name <> 'oracle'"
        assert server.run(kept, database=DATABASE) == [("reserved",)]
