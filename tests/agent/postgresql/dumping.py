"""Dumps in tests of a PostgreSQL source: agents inside the process with small chunks, and writers meanwhile."""

import random
from collections.abc import Iterator

import psycopg
import pytest

from agent.sources.postgresql.snapshot import ranges
from tests.agent.dump_ledger import Dump
from tests.agent.dumping import now, poll, small_chunks
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.postgresql import streaming
from tests.agent.postgresql.streaming import run
from tests.postgres import SourceServer


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayDouble]:
    small_chunks(monkeypatch)
    monkeypatch.setattr(ranges, "LEAST_ROWS", 600)
    monkeypatch.setattr(ranges, "LEAST_BYTES", 1 << 14)
    double = GatewayDouble()
    yield double
    double.stop()


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


class Writers(streaming.Writers):
    """As fast as they can, with small values, and rows that move to the other end of the key."""

    pause_seconds = 0

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
