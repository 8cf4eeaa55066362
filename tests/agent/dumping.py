"""Dumps in tests: agents inside the test's process with small chunks, and writers that change a table meanwhile."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pymysql
import pytest
from menura.v1 import snapshot_pb2

from agent.config import load
from agent.pipeline import Agent
from agent.snapshot import chunk_size
from agent.sources.mysql.snapshot import ranges
from tests.agent.dump_ledger import Dump, merged
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, write_config
from tests.servers import FLAVORS, Server, server

END_SECONDS = 300
#: a dump of 2,000 rows takes a minute: it is in its middle whenever a test acts upon it, which then lifts the limit
SLOW = snapshot_pb2.DumpLimits(rows_per_second=30)
#: the server may find a deadlock or a duplicate, which is then no change
_REFUSED = (pymysql.err.IntegrityError, pymysql.err.OperationalError)
COLUMNS = "id INT NOT NULL, name VARCHAR(50) NOT NULL, note VARCHAR(50)"


def small_chunks(monkeypatch: pytest.MonkeyPatch, rows: int = 100, range_rows: int = 600) -> None:
    """Of agents inside the process."""
    monkeypatch.setattr(chunk_size, "LEAST_ROWS", rows)
    monkeypatch.setattr(chunk_size, "MOST_ROWS", rows)
    monkeypatch.setattr(ranges, "LEAST_ROWS", range_rows)


@contextmanager
def agent_inside(config: Path) -> Iterator[Agent]:
    """An agent in threads of this process."""
    agent = Agent(load(config))
    stopping = threading.Event()
    thread = threading.Thread(target=agent.run, args=(stopping,))
    thread.start()
    try:
        yield agent
    finally:
        stopping.set()
        thread.join(END_SECONDS)
        assert not thread.is_alive(), "the agent does not end"


@pytest.fixture(scope="module", params=FLAVORS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(request.param, tmp_path_factory.mktemp("server"), innodb_flush_log_at_trx_commit="0") as found:
        found.create_replication_user()
        yield found


@pytest.fixture
def database(running: Server) -> Server:
    """Empty, and so is its log."""
    running.roll_back_prepared()
    forget = "RESET BINARY LOGS AND GTIDS" if running.flavor == "mysql" else "RESET MASTER"
    running.run("DROP DATABASE IF EXISTS shop", forget, "CREATE DATABASE shop CHARACTER SET utf8mb4")
    return running


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayDouble]:
    small_chunks(monkeypatch)
    double = GatewayDouble()
    yield double
    double.stop()


def config(folder: Path, gateway: GatewayDouble, database: Server, **source: object) -> Path:
    return write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})


class Writers:
    """Changes rows of a table (id INT, name VARCHAR, note) at random: inserts, updates, deletes, keys, re-inserts."""

    def __init__(self, database: Server, table: str, seed: int, most_id: int, threads: int = 2) -> None:
        self._database = database
        self._table = table
        self._most_id = most_id
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self.transactions = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(random.Random(seed * 100 + number),))
            for number in range(threads)
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(END_SECONDS)
        assert not self._failures, self._failures

    def _guarded(self, chance: random.Random) -> None:
        try:
            self._write(chance)
        except BaseException as failed:
            self._failures.append(failed)
            raise

    def _write(self, chance: random.Random) -> None:
        with closing(self._database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 2")
            while not self._stopping.is_set():
                try:
                    for _ in range(chance.randint(1, 4)):
                        cursor.execute(self._statement(chance))
                    if chance.random() < 0.1:
                        connection.rollback()
                    else:
                        connection.commit()
                    self.transactions += 1
                except _REFUSED:
                    connection.rollback()

    def _statement(self, chance: random.Random) -> str:
        one, other = chance.randint(1, self._most_id), chance.randint(1, self._most_id)
        note = f"'{chance.randint(0, 10**9)}'"
        return chance.choice(
            (
                f"INSERT INTO {self._table} (id, name, note) VALUES ({one}, 'Näme {one % 7}', {note})",
                f"INSERT IGNORE INTO {self._table} (id, name, note) VALUES ({one}, 'a', {note}), ({other}, 'b', '')",
                f"UPDATE {self._table} SET note = {note} WHERE id = {one}",
                f"UPDATE {self._table} SET note = {note} WHERE id BETWEEN {one} AND {one + 5}",
                f"DELETE FROM {self._table} WHERE id = {one}",
                f"UPDATE {self._table} SET id = {other} WHERE id = {one}",
                f"REPLACE INTO {self._table} (id, name, note) VALUES ({one}, 'c', {note})",
            )
        )


def fill(database: Server, table: str, rows: int) -> None:
    """Keys 3, 6, 9, ..."""
    values = ",".join(f"({number * 3}, 'Name {number % 50}', 'first')" for number in range(1, rows + 1))
    database.run(f"INSERT INTO {table} (id, name, note) VALUES {values}")


def create(database: Server, key: str = "PRIMARY KEY (id)", rows: int = 1000, table: str = "orders") -> Table:
    database.run(f"CREATE TABLE shop.{table} ({', '.join(filter(None, (COLUMNS, key)))})")
    fill(database, f"shop.{table}", rows)
    return ("shop", table)


def wait_status(gateway: GatewayDouble, dump: Dump, reason: str) -> snapshot_pb2.DumpStatus:
    """The newest status that names what the dump waits for, as soon as there is one: another may follow it at once."""

    def told() -> list[snapshot_pb2.DumpStatus]:
        return [status for status in dump.statuses if reason in status.reason]

    try:
        gateway.wait(lambda: dump.failed or told())
    except AssertionError as late:
        raise AssertionError(f"it does not wait: {_told(dump)}") from late
    assert not dump.failed, dump.failed
    return told()[-1]


def wait_dumped(gateway: GatewayDouble, dump: Dump, seconds: float = 600.0) -> None:
    try:
        gateway.wait(lambda: dump.dumped_cut or dump.failed, seconds)
    except AssertionError as late:
        raise AssertionError(f"the dump does not end: {_told(dump)}, left {dump.remaining}") from late
    assert not dump.failed, dump.failed


def _told(dump: Dump) -> list[tuple[int, str]]:
    return [(status.state, status.reason) for status in dump.statuses[-3:]]


def dumped(gateway: GatewayDouble, dump: Dump, key: tuple[str, ...]) -> dict[tuple[object, ...], dict[str, object]]:
    """The table as the lake has it with the cut that ended the dump."""
    return lake_at(gateway, dump, key, dump.dumped_cut)


def now(gateway: GatewayDouble, dump: Dump, key: tuple[str, ...]) -> dict[tuple[object, ...], dict[str, object]]:
    """The table as the lake has it with the newest cut."""
    return lake_at(gateway, dump, key, gateway.source("shop").committed[-1].cut)


def lake_at(
    gateway: GatewayDouble, dump: Dump, key: tuple[str, ...], cut: int
) -> dict[tuple[object, ...], dict[str, object]]:
    record = gateway.source("shop")
    cuts = [end for end in record.committed if end.cut <= cut]
    changes = [row for row in gateway.rows("shop", dump.table) if int(str(row["_gsn"])) <= cuts[-1].last_gsn]
    chunks = [chunk for chunk in record.ledger.chunks if chunk.dump == dump.dump and chunk.cut <= cut]
    assert dump.dumped is not None
    stale = dump.dumped.removes_rows_before_gsn or dump.dumped.gsn
    for event in (event for end in cuts for event in end.events):
        if event.removes_rows and (event.table.database, event.table.table) == dump.table:
            stale = max(stale, event.gsn)
    return merged(changes, chunks, key, stale_before=stale)


def selected(
    database: Server, table: Table, key: tuple[str, ...], statement: str = ""
) -> dict[tuple[object, ...], dict[str, object]]:
    with closing(database.connect(cursorclass=pymysql.cursors.DictCursor)) as connection, connection.cursor() as cursor:
        cursor.execute(statement or f"SELECT * FROM {table[0]}.{table[1]}")
        found = [dict(map(_in_utc, row.items()), _unrepresentable=None) for row in cursor.fetchall()]
    return {tuple(row[name] for name in key): row for row in found}


def _in_utc(item: tuple[str, object]) -> tuple[str, object]:
    """A TIMESTAMP as the lake has it; the server's time zone is UTC."""
    name, value = item
    return name, value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def wait_equal(gateway: GatewayDouble, database: Server, dump: Dump, key: tuple[str, ...], statement: str = "") -> None:
    """Nobody writes any more: the lake becomes the table, or what `statement` selects of it."""
    expected = selected(database, dump.table, key, statement)
    poll(lambda: now(gateway, dump, key) == expected)
    assert now(gateway, dump, key) == expected


def wait_rows(gateway: GatewayDouble, database: Server, dump: Dump, key: tuple[str, ...]) -> None:
    """The same for a table whose columns have changed: those that a row was sent with are equal."""
    expected = selected(database, dump.table, key)

    def is_equal() -> bool:
        found = now(gateway, dump, key)
        if found.keys() != expected.keys():
            return False
        return all(row.items() <= expected[place].items() for place, row in found.items())

    poll(is_equal)
    assert is_equal()


def poll(condition: Callable[[], bool], seconds: float = 300.0, every: float = 0.2) -> None:
    """For what reads the whole lake each time: not at each message, and not while the gateway waits for it."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(every)
