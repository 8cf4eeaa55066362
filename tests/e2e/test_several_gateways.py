"""Two gateways over one PostgreSQL and one landing: an agent that writes on moves between them, killed and drained."""

import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from controlplane_api.database import Database, open_database
from controlplane_api.models import Lease, Source, SourceTable
from controlplane_api.states import StartKind
from controlplane_api.syncs import Start, start_tables
from tests.agent.dumping import agent_inside
from tests.agent.memory import ORDERS, config, create, installed, order
from tests.e2e.balancer import Balancer
from tests.gateway.harness import read_log
from tests.memory_source.database import Change, MemoryDatabase
from tests.postgres import postgresql
from tests.servers import free_port
from tests.stack import Process, wait_for

pytestmark = pytest.mark.kill

#: of each gateway, by kill -9 and by SIGTERM in turn
MOVES = 4


def test_agent_when_its_gateways_are_killed_and_drained_then_the_landing_holds_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "menura.session")
    landing, ports = tmp_path / "landing", (free_port(), free_port())
    with postgresql() as server, installed(tmp_path, monkeypatch):
        url = server.fresh_database()
        gateways = [gateway(tmp_path, url, landing, f"gw-{port}", port) for port in ports]
        source = MemoryDatabase("shop")
        create(source, ORDERS)
        with (
            closing(open_database(url)) as database,
            gateways[0],
            gateways[1],
            Balancer(*ports) as balancer,
            agent_inside(config(tmp_path, balancer.address)),
        ):
            wait_for("the cartography", lambda: started(database))
            with inserting(source) as inserted:
                for move in range(MOVES):
                    owner = wait_for("an owner", lambda: owner_of(database))
                    leaving = next(each for each in gateways if owner in each.arguments)
                    landed = len(read_log(landing))
                    wait_for("more to land", lambda before=landed: len(read_log(landing)) > before + 2)
                    leaving.kill() if move % 2 else leaving.stop()
                    landed = len(read_log(landing))
                    wait_for("the other gateway to land", lambda before=landed: len(read_log(landing)) > before + 2)
                    assert owner_of(database) != owner
                    leaving.start()
            wait_for("all rows", lambda: len(landed_ids(landing)) >= inserted[-1], 300)
    assert sorted(landed_ids(landing)) == list(range(1, inserted[-1] + 1))
    cuts = [(cut.cut, cut.epoch) for entry in read_log(landing) for cut in entry.cuts]
    assert [number for number, _ in cuts] == list(range(1, len(cuts) + 1))
    assert [epoch for _, epoch in cuts] == sorted(epoch for _, epoch in cuts)
    assert len([fence for entry in read_log(landing) for fence in entry.fences]) >= MOVES
    told = [record for record in caplog.records if record.name == "menura.session"]
    assert not [record for record in told if record.levelno > logging.WARNING]
    # None of the ways in which gateways may be at odds; on a starved machine a stream may come before its session.
    words = " ".join(str(vars(record).get("fields", "")) for record in told)
    assert not [code for code in ("LEASE_LOST", "SOURCE_HELD", "DUPLICATE_AGENT", "OUT_OF_SEQUENCE") if code in words]


def gateway(folder: Path, database: str, landing: Path, name: str, port: int) -> Process:
    arguments = ["gateway", "run", "--database", database, "--landing", str(landing), "--name", name]
    return Process([*arguments, "--listen", f"127.0.0.1:{port}", "--cut-interval-ms", "50"], folder / f"{name}.log")


def started(database: Database) -> bool:
    """Start the table as soon as it is known."""
    with database.write() as connection:
        if connection.execute(select(SourceTable.id)).first() is None:
            return False
        (outcome,) = start_tables(
            connection, connection.execute(select(Source.id)).scalar_one(), None, Start(StartKind.OLDEST)
        )
        return outcome.changed


def owner_of(database: Database) -> str | None:
    with database.read() as connection:
        owner: str | None = connection.execute(select(Lease.gateway).where(Lease.released.is_(False))).scalar()
        return owner


@contextmanager
def inserting(source: MemoryDatabase) -> Iterator[list[int]]:
    """While inside, a thread inserts rows 1, 2, 3, ...; the numbers so far."""
    stopping, inserted = threading.Event(), [0]

    def insert() -> None:
        while not stopping.wait(0.005):
            source.commit(Change(ORDERS, None, order(inserted[-1] + 1, "row")))
            inserted.append(inserted[-1] + 1)

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        yield inserted
    finally:
        stopping.set()
        thread.join()


def landed_ids(landing: Path) -> list[int]:
    files = [file for entry in read_log(landing) for cut in entry.cuts for file in cut.files]
    return [number for file in files for number in pq.read_table(landing / file.path).column("id").to_pylist()]
