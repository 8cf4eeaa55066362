"""A source in memory for tests of the agent: its kind is as good as installed, and writers change its tables."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from menura.v1 import changes_pb2

from agent.capture import cuts
from agent.snapshot import coordinator, worker
from agent.source_kind import GROUP, find_kind
from tests.agent.dump_ledger import Dump
from tests.agent.dumping import lake_at, small_chunks
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import write_config
from tests.memory_source.database import DATABASES, Change, Column, Definition, MemoryDatabase, Row, Table

ORDERS = ("shop", "orders")
COLUMNS = (
    Column("id", "l", key=1),
    Column("name", "u"),
    Column("paid", "i"),
    Column("gift", "b"),
)
#: of a column
TRUTHS = (True, False, None)


@contextmanager
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    metadata = folder / "menura_memory-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: menura-memory\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{GROUP}]\nmemory = tests.memory_source\n")
    monkeypatch.syspath_prepend(folder)
    find_kind.cache_clear()
    yield
    find_kind.cache_clear()
    DATABASES.clear()


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryDatabase]:
    with installed(tmp_path, monkeypatch):
        yield MemoryDatabase("shop")


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[GatewayDouble]:
    small_chunks(monkeypatch)
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(worker, "MISSING_SECONDS", 1.0)
    monkeypatch.setattr(coordinator, "GATHER_SECONDS", 0.02)
    monkeypatch.setattr(cuts, "LONGEST_WAIT_SECONDS", 0.05)
    double = GatewayDouble()
    yield double
    double.stop()


def config(folder: Path, address: str, **entries: object) -> Path:
    return write_config(folder, address, {"shop": {"kind": "memory", "database": "shop", **entries}})


def create(
    database: MemoryDatabase, table: Table = ORDERS, rows: int = 0, columns: tuple[Column, ...] = COLUMNS
) -> None:
    database.commit(Definition(table, changes_pb2.TableEvent.CREATED, columns))
    if rows:
        database.commit(*(Change(table, None, order(3 * number, "first")) for number in range(1, rows + 1)))


def order(number: int, name: str, paid: int | None = None) -> Row:
    return {"id": number, "name": name, "paid": paid, "gift": TRUTHS[(number + (paid or 0)) % 5 % 3]}


class Writers:
    """Transactions of one to four inserts, updates, deletes and changes of keys, as fast as one thread writes them."""

    def __init__(self, database: MemoryDatabase, table: Table, seed: int, most_id: int) -> None:
        self._database, self._table, self._most_id = database, table, most_id
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._guarded)
        self._failures: list[BaseException] = []
        self.transactions = 0

    def __enter__(self) -> "Writers":
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert not self._failures, self._failures

    def _guarded(self) -> None:
        try:
            self._write()
        except BaseException as failed:
            self._failures.append(failed)
            raise

    def _write(self) -> None:
        while not self._stopping.wait(0.002):
            with self._database.changed:
                rows = {row["id"]: row for row in self._database.tables[self._table].rows}
                self._database.commit(*self._changes(rows))
            self.transactions += 1

    def _changes(self, rows: dict[object, Row]) -> list[Change]:
        made = []
        for _ in range(self._chance.randint(1, 4)):
            number, other = (self._chance.randint(1, self._most_id) for _ in range(2))
            before = rows.pop(number, None)
            kind = self._chance.choice(("write", "write", "delete", "move"))
            to = other if kind == "move" and other not in rows else number
            after = (
                None
                if kind == "delete" and before
                else order(to, f"n{self._chance.random()}", self._chance.randint(0, 9))
            )
            if after is not None:
                rows[to] = after
            made.append(Change(self._table, before, after))
        return made


def selected(database: MemoryDatabase, table: Table, key: tuple[str, ...] = ("id",)) -> dict[tuple[object, ...], Row]:
    found = database.copy(table)
    assert found is not None
    return {tuple(row[name] for name in key): row | {"_unrepresentable": None} for row in found[0].rows}


def lake(gateway: GatewayDouble, dump: Dump, key: tuple[str, ...] = ("id",)) -> dict[tuple[object, ...], Row]:
    return lake_at(gateway, dump, key, gateway.source("shop").committed[-1].cut)
