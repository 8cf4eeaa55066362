"""Divided turns of views on a Spark cluster whose two workers share nothing but an object store; all are killed."""

import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from menura.stores.options import parse, use

from spark_sink.lake.delta_table import open_table
from spark_sink.views.maintain import view_table_id
from tests.e2e.test_cluster import cluster_process, kill, land
from tests.object_store import S3Proxy
from tests.spark_sink.test_divided_views_spark import (
    by_name,
    check_once,
    files_of,
    joined,
    sink_command,
    start,
    until_held,
)
from tests.spark_sink.view_model import World, texts
from tests.stack import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]


def test_views_on_two_workers_when_a_task_the_driver_and_a_worker_are_killed_then_each_change_is_there_once(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "world", 9)
    world.views = {**texts(9, 3), "joined": joined, "by_name": by_name}
    landed: set[str] = set()
    with ExitStack() as ends:
        proxy = S3Proxy(tmp_path / "store")
        ends.callback(proxy.close)
        use(parse(proxy.options(), {}))
        ends.callback(use, parse(()))
        lake = f"{proxy.url}/lake"
        world.land(60)
        land(world.writer, f"{proxy.url}/landing", landed)
        place = ("--host", "127.0.0.1", "--webui-port", "0")
        _, log = ends.enter_context(cluster_process(tmp_path, "master", "master.Master", *place, "--port", "0"))
        found = wait_for("the master", lambda: re.search(r"Starting Spark master at (spark://\S+)", log.read_text()))
        workers = []
        for name in ("work-1", "work-2"):
            size = ("--cores", "2", "--memory", "700m", "--work-dir", str(tmp_path / name))
            started = cluster_process(tmp_path, f"{name}er", "worker.Worker", *place, *size, found[1])
            workers.append(ends.enter_context(started))
        wait_for("the workers", lambda: all("Successfully registered" in each.read_text() for _, each in workers))
        conf = ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m", "spark.executor.cores=2")
        addresses = ("--landing", f"{proxy.url}/landing", "--lake", lake, "--checkpoint", f"{proxy.url}/checkpoint")
        options = [*(f"--conf={word}" for word in conf), *(f"--storage-option={word}" for word in proxy.options())]
        command = sink_command(world, found[1], tmp_path / "views.json", *addresses, *options)
        marks, sink_log = (tmp_path / "killed", tmp_path / "held"), tmp_path / "sink.log"

        process = start([*command, "--kill-once", str(marks[0]), "--hold", str(marks[1])], sink_log)
        ends.callback(kill, process)
        until_held(process, marks[1], sink_log)
        assert marks[0].exists()
        executors = [list((tmp_path / f"work-{number}").glob("app-*/*/stderr")) for number in (1, 2)]
        assert all(executors)
        kill(process)
        left = {name: files_of(lake, name) for name in world.views}
        ((waiting, files),) = [(name, names) for name, names in left.items() if names]
        assert version(lake, waiting) == 0
        assert len(files) >= 4

        kill(workers[0][0])
        process = start(command, sink_log)
        ends.callback(kill, process)
        assert process.wait(900) == 0, sink_log.read_text()[-3000:]
        check_once(lake, world)
        assert files.isdisjoint(files_of(lake, waiting))
        assert files_of(lake, "joined")  # it was divided into what the other worker has
        assert list(world.lake.iterdir()) == []

        world.land(20)
        land(world.writer, f"{proxy.url}/landing", landed)
        process = start(command, sink_log)
        ends.callback(kill, process)
        assert process.wait(900) == 0, sink_log.read_text()[-3000:]
        check_once(lake, world)
        assert version(lake, "joined") == 2


def version(lake: str, name: str) -> int:
    """The view's; 0 before the first."""
    table = view_table_id("acme", name)
    opened = open_table(f"{table.folder(lake)}/changelog")
    return opened.transaction_version(table.application) or 0 if opened is not None else 0
