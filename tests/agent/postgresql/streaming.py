"""A PostgreSQL source that streams to a gateway which the test reads: agents inside the process, writers, the lake."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from menura.change_batch import ChangeType
from menura.v1 import changes_pb2

from agent.sources.postgresql.positions import parse_lsn
from agent.sources.postgresql.server import watch
from tests.agent.dumping import END_SECONDS, agent_inside
from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.postgresql.sources import SOURCE, source
from tests.agent.running import write_config
from tests.postgres import SourceServer

Kind = changes_pb2.TableEvent
Row = dict[str, object]
ORDERS = ("public", "orders")
COLUMNS = "id int PRIMARY KEY, name text, note text"


def looks_often(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.3) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", seconds)
    monkeypatch.setattr(watch, "POLL_SECONDS", seconds)


@contextmanager
def streaming(folder: Path, gateway: GatewayDouble, server: SourceServer, **others: object) -> Iterator[None]:
    """An agent with the source `shop`."""
    with agent_inside(write_config(folder, gateway.address, {SOURCE: source(server, **others)})):
        yield


def run(server: SourceServer, *statements: str) -> list[tuple[object, ...]]:
    return server.run(*statements, database="shop")


def create(server: SourceServer, table: str = "orders", columns: str = COLUMNS, rows: int = 0) -> Table:
    """A table that the agent may publish, with rows."""
    run(
        server,
        "GRANT CREATE ON DATABASE shop TO menura",
        f"CREATE TABLE {table} ({columns})",
        f"ALTER TABLE {table} OWNER TO menura",
        f"ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL",
        f"INSERT INTO {table} SELECT n, 'first', 'note ' || n FROM generate_series(1, {rows}) AS n",
    )
    return ("public", table)


def begin(gateway: GatewayDouble, *tables: Table, **start: object) -> None:
    """Their syncs, and wait until their start cut is committed."""
    before = len(started(gateway))
    gateway.sync(SOURCE, *tables, **(start or {"now": True}))
    gateway.wait(lambda: len(started(gateway)) >= before + len(tables))


def started(gateway: GatewayDouble) -> list[changes_pb2.TableStarted]:
    return [start for cut in gateway.source(SOURCE).committed for start in cut.started]


def stopped(gateway: GatewayDouble, table: Table) -> list[changes_pb2.TableStopped]:
    cuts = gateway.source(SOURCE).committed
    return [stop for cut in cuts for stop in cut.stopped if (stop.table.database, stop.table.table) == table]


def kinds(gateway: GatewayDouble, table: Table) -> list[int]:
    return [int(str(row["_change_type"])) for row in gateway.rows(SOURCE, table)]


def events(gateway: GatewayDouble, table: Table, *kind: int) -> list[changes_pb2.TableEvent]:
    return [event for event in gateway.events(SOURCE, table) if not kind or event.kind in kind]


def wait_event(gateway: GatewayDouble, table: Table, *kind: int, count: int = 1) -> changes_pb2.TableEvent:
    gateway.wait(lambda: len(events(gateway, table, *kind)) >= count)
    return events(gateway, table, *kind)[count - 1]


def absent(row: Row, columns: Sequence[str]) -> set[str]:
    bits = row.get("_absent")
    if bits is None:
        return set()
    assert isinstance(bits, bytes)
    return {name for at, name in enumerate(columns) if bits[at // 8] >> at % 8 & 1}


def current(gateway: GatewayDouble, table: Table, key: Sequence[str] = ("id",)) -> dict[tuple[object, ...], Row]:
    """What the changes leave, as the lake takes them: a value that a change lacks is the one of before."""
    found: dict[tuple[object, ...], Row] = {}
    moving: Row = {}
    removed = max((event.gsn for event in gateway.events(SOURCE, table) if event.removes_rows), default=0)
    for row in gateway.rows(SOURCE, table):
        if int(str(row["_gsn"])) <= removed:
            continue
        own = [name for name in row if not name.startswith("_")]
        place = tuple(row[name] for name in key)
        kind = row["_change_type"]
        if kind in (ChangeType.update_preimage, ChangeType.delete):
            gone = found.pop(place, {})
            moving = gone if kind == ChangeType.update_preimage else {}
            continue
        before = moving if kind == ChangeType.update_postimage and moving else found.get(place, {})
        lacking = absent(row, own)
        found[place] = {name: before.get(name) if name in lacking else row[name] for name in own}
        moving = {}
    return found


def selected(server: SourceServer, table: Table, key: Sequence[str] = ("id",)) -> dict[tuple[object, ...], Row]:
    with server.connect("shop", row_factory=psycopg.rows.dict_row) as connection:
        rows = connection.execute(f'SELECT * FROM "{table[0]}"."{table[1]}"').fetchall()
    return {tuple(row[name] for name in key): dict(row) for row in rows}


def confirmed_lsn(server: SourceServer) -> int:
    ((text,),) = run(server, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots")
    return parse_lsn(str(text))


def committed_lsn(gateway: GatewayDouble) -> int:
    return parse_lsn(gateway.source(SOURCE).committed[-1].position.text)


class Writers:
    """Changes rows of a table (id, name, note) at random, two at a time: keys, large values, rows that come again."""

    pause_seconds = 0.002

    def __init__(self, server: SourceServer, table: str, seed: int, most_id: int = 300, threads: int = 2) -> None:
        self._server, self._table, self._most_id = server, table, most_id
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
                while not self._stopping.wait(self.pause_seconds):
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
            self.transactions += 1
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            connection.rollback()

    def _statement(self, chance: random.Random) -> str:
        one, other = chance.randint(1, self._most_id), chance.randint(1, self._most_id)
        note = f"repeat(md5('{chance.random()}'), {chance.choice((1, 1, 300))})"
        insert = f"INSERT INTO {self._table} (id, name, note) VALUES ({one}, 'n{other}', {note})"
        return chance.choice(
            (
                f"{insert} ON CONFLICT (id) DO UPDATE SET note = excluded.note",
                f"{insert} ON CONFLICT DO NOTHING",
                f"UPDATE {self._table} SET name = 'u{other}' WHERE id BETWEEN {one} AND {one + 3}",
                f"UPDATE {self._table} SET id = {other} WHERE id = {one}",
                f"DELETE FROM {self._table} WHERE id BETWEEN {one} AND {one + 2}",
            )
        )
