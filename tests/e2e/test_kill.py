"""kill -9 of each process, ten times at random moments under load: nothing lost, nothing twice."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.demo.kinds import DATABASE
from tests.demo.shop import TABLES, Shop
from tests.e2e.lake import wait_for_changelog, wait_until_equal
from tests.oracle import count_changes
from tests.servers import Flavor, Server, server
from tests.stack import Process, Stack, stack

pytestmark = [pytest.mark.spark, pytest.mark.kill]

KILLS = 10
#: longest time between two kills: the sink needs its first seconds to start
LONGEST_SECONDS = {"agent": 2.0, "gateway": 2.0, "sink": 12.0}


@contextmanager
def under_load(source: Server, seed: int) -> Iterator[None]:
    """The shop does business on two connections until the context ends."""
    stop, failures = threading.Event(), []

    def work(number: int) -> None:
        shop = Shop(source.connect(database=DATABASE), seed=seed + number)
        try:
            while not stop.wait(0.005):
                shop.do_business()
        except Exception as failure:  # noqa: BLE001  (a thread's top: raised below)
            failures.append(failure)
        finally:
            shop.connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_each_process_when_killed_ten_times_under_load_then_nothing_is_lost_or_doubled(
    flavor: Flavor, tmp_path: Path
) -> None:
    moments = random.Random(flavor)
    with server(flavor, tmp_path / "server") as source, stack(tmp_path / "stack") as running:
        source.create_replication_user()
        source.run(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        Shop(source.connect(database=DATABASE)).create(customers=500, orders=300)
        with running.agent("shop-agent", {"shop": source}) as agent:
            for table in TABLES:
                running.start_sync("shop", DATABASE, table, "oldest")
            with under_load(source, seed=7):
                for name, process in victims(flavor, running, agent):
                    for _ in range(KILLS):
                        # a random moment is the point here; nothing is expected to have happened by then
                        threading.Event().wait(moments.uniform(0, LONGEST_SECONDS[name]))
                        process.kill()
                        process.start()
            wait_until_equal(running.lake, running.tenant, "shop", source, DATABASE, TABLES)
            oracle = count_changes(source, DATABASE)
            for table in TABLES:
                wait_for_changelog(running.lake, running.tenant, "shop", DATABASE, table, oracle[table])


def victims(flavor: Flavor, running: Stack, agent: Process) -> list[tuple[str, Process]]:
    """All three on MySQL; on MariaDB the two whose work depends on the server's kind."""
    both = [("agent", agent), ("gateway", running.gateway)]
    return [*both, ("sink", running.sink)] if flavor == "mysql" else both
