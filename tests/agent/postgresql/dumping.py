"""Dumps in tests of a PostgreSQL source: agents inside the process with small chunks, and writers meanwhile."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from agent.sources.postgresql.snapshot import ranges
from tests.agent.dump_ledger import Dump
from tests.agent.dumping import agent_inside, now, poll, small_chunks
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.postgresql.sources import SOURCE, source
from tests.agent.running import write_config
from tests.postgres import SourceServer

END_SECONDS = 300


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayDouble]:
    small_chunks(monkeypatch)
    monkeypatch.setattr(ranges, "LEAST_ROWS", 600)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1 << 14)
    double = GatewayDouble()
    yield double
    double.stop()


@contextmanager
def running(folder: Path, gateway: GatewayDouble, server: SourceServer, **others: object) -> Iterator[None]:
    with agent_inside(write_config(folder, gateway.address, {SOURCE: source(server, **others)})):
        yield


def run(server: SourceServer, *statements: str) -> list[tuple[object, ...]]:
    return server.run(*statements, database="shop")


def create(
    server: SourceServer, key: str = "PRIMARY KEY (id)", rows: int = 1000, table: str = "orders", id_: str = "int"
) -> Table:
    run(
        server,
        "DO $$ BEGIN CREATE PUBLICATION menura FOR ALL TABLES WITH (publish_via_partition_root = true);"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$",
        f"CREATE TABLE {table} ({', '.join(filter(None, (f'id {id_} NOT NULL, name text NOT NULL, note text', key)))})",
    )
    fill(server, table, rows)
    return ("public", table)


def fill(server: SourceServer, table: str, rows: int) -> None:
    """Ids 3, 6, 9, ..."""
    run(
        server,
        f"INSERT INTO {table} SELECT n * 3, 'Name ' || n % 50, 'first' FROM generate_series(1, {rows}) AS n",
        f"ANALYZE {table}",
    )


class Writers:
    """Changes rows of a table (id, name, note) at random: inserts, updates, deletes, keys, re-inserts."""

    def __init__(self, server: SourceServer, table: str, seed: int, most_id: int, threads: int = 2) -> None:
        self._server, self._table, self._most_id = server, table, most_id
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(random.Random(seed * 100 + number),))
            for number in range(threads)
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(END_SECONDS)
        assert not self._failures, self._failures

    def _guarded(self, chance: random.Random) -> None:
        try:
            with self._server.connect("shop", autocommit=False) as connection:
                connection.execute("SET deadlock_timeout = '50ms'")
                connection.commit()
                while not self._stopping.is_set():
                    self._transaction(connection, chance)
        except BaseException as failed:
            self._failures.append(failed)
            raise

    def _transaction(self, connection: psycopg.Connection, chance: random.Random) -> None:
        try:
            for _ in range(chance.randint(1, 4)):
                if chance.random() < 0.3:
                    connection.execute("SAVEPOINT s")
                connection.execute(self._statement(chance))
            connection.rollback() if chance.random() < 0.1 else connection.commit()
        except (psycopg.errors.TransactionRollback, psycopg.errors.UniqueViolation):
            connection.rollback()

    def _statement(self, chance: random.Random) -> str:
        one, other = chance.randint(1, self._most_id), chance.randint(1, self._most_id)
        note = f"'{chance.randint(0, 10**9)}'"
        insert = f"INSERT INTO {self._table} (id, name, note) VALUES ({one}, 'Näme {one % 7}', {note})"
        return chance.choice(
            (
                f"{insert}, ({other}, 'b', '') ON CONFLICT DO NOTHING",
                f"UPDATE {self._table} SET note = {note} WHERE id = {one}",
                f"UPDATE {self._table} SET note = {note} WHERE id BETWEEN {one} AND {one + 5}",
                f"DELETE FROM {self._table} WHERE id = {one}",
                f"UPDATE {self._table} SET id = {other} WHERE id = {one}",
                f"UPDATE {self._table} SET id = {other}, name = 'moved' WHERE id = {one}",
                f"UPDATE {self._table} SET id = {self._most_id + 1} - id WHERE id BETWEEN {one} AND {one + 2}",
            )
        )


def selected(server: SourceServer, table: Table, key: tuple[str, ...]) -> dict[tuple[object, ...], dict[str, object]]:
    with server.connect("shop", row_factory=psycopg.rows.dict_row) as connection:
        found = connection.execute(f'SELECT * FROM "{table[0]}"."{table[1]}"').fetchall()
    return {tuple(row[name] for name in key): dict(row, _unrepresentable=None) for row in found}


def wait_equal(gateway: GatewayDouble, server: SourceServer, dump: Dump, key: tuple[str, ...]) -> None:
    """Nobody writes any more: the lake becomes the table."""
    expected = selected(server, dump.table, key)
    poll(lambda: now(gateway, dump, key) == expected)
    assert now(gateway, dump, key) == expected
