"""`menura sink run` as a process: killed, stopped, and refused."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from spark_sink.reading import changelog
from tests.spark_sink.landing import Workload, Writer, lake_rows, table_id
from tests.stack import Process, wait_for

pytestmark = pytest.mark.spark

#: in CI, where tests of the whole platform kill it too; more, e.g. MENURA_SINK_KILLS=10, in a long run
KILLS = int(os.environ.get("MENURA_SINK_KILLS", "4"))


def sink(folder: Path, *options: str) -> Process:
    addresses = ["--landing", str(folder / "landing"), "--lake", str(folder / "lake")]
    return Process(["sink", "run", *addresses, "--master", "local[2]", *options], folder / "sink.log")


def wait_until_started(process: Process, times: int) -> None:
    wait_for("the sink to start", lambda: process.log.read_text().count("sink started") >= times or None)


@contextmanager
def writing(workload: Workload, writer: Writer) -> Iterator[None]:
    """A thread that appends to the log meanwhile."""
    ending = threading.Event()

    def write() -> None:
        while not ending.wait(0.1):
            workload.cut(writer)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def gone(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


@pytest.mark.kill
def test_a_sink_killed_again_and_again_while_the_log_grows_when_it_ends_then_nothing_is_lost_or_twice(
    tmp_path: Path,
) -> None:
    workload, writer = Workload(11), Writer(tmp_path / "landing")
    moments = random.Random(12)
    process = sink(tmp_path)
    try:
        with writing(workload, writer):
            for times in range(1, KILLS + 1):
                process.start()
                assert process.running is not None
                wait_until_started(process, times)
                time.sleep(moments.uniform(0, 4))
                family = psutil.Process(process.running.pid).children(recursive=True)
                process.kill()
                wait_for("the sink's JVM and workers to go", lambda family=family: gone(family) or None, 90)
    finally:
        if process.is_running():
            process.stop()
    finished = subprocess.run(
        [sys.executable, "-m", "menura.cli", *sink(tmp_path, "--available-now").arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    lake = tmp_path / "lake"
    assert lake_rows(lake, Workload.ORDERS) == workload.orders.expected()
    assert lake_rows(lake, Workload.EVENTS) == workload.events.expected()
    logged = [changelog(str(lake), table_id(table)) for table in (Workload.ORDERS, Workload.EVENTS)]
    assert sum(table.num_rows for table in logged) == workload.changes


def test_a_running_sink_when_asked_to_stop_then_it_ends_soon_and_leaves_no_process(tmp_path: Path) -> None:
    workload, writer = Workload(13), Writer(tmp_path / "landing")
    process = sink(tmp_path).start()
    try:
        wait_until_started(process, 1)
        workload.cut(writer)
        wait_for("a batch", lambda: "batch applied" in process.log.read_text() or None)
        assert process.running is not None
        family = psutil.Process(process.running.pid).children(recursive=True)
        process.running.terminate()
        assert process.running.wait(90) == 0
        wait_for("the sink's JVM and workers to go", lambda: gone(family) or None, 90)
    finally:
        process.stop()
    line = next(line for line in process.log.read_text().splitlines() if "batch applied" in line)
    fields = ("entries=", "cuts=", "tables=", "rows=", "seconds=", "freshness_seconds=")
    assert all(field in line for field in fields)


@pytest.mark.parametrize(
    ("options", "environment", "code", "words"),
    [
        (["--trigger-seconds", "-1"], {}, 2, ("SINK_SETTING_INVALID", "--trigger-seconds")),
        (["--lake", "/tmp/a%20b"], {}, 2, ("SINK_SETTING_INVALID", "--lake")),
        ([], {"MENURA_JARS": "/nowhere"}, 2, ("JARS_MISSING", "python -m spark_sink.jars")),
        ([], {"JAVA_HOME": "/nowhere"}, 2, ("JAVA_MISSING", "JAVA_HOME")),
    ],
    ids=["trigger", "lake", "jars", "java"],
)
def test_a_setting_that_cannot_work_when_started_then_one_line_names_it_and_the_fix(
    tmp_path: Path, options: list[str], environment: dict[str, str], code: int, words: tuple[str, ...]
) -> None:
    process = sink(tmp_path, *options)
    process.environment.update(environment)
    process.start()
    assert process.running is not None
    assert process.running.wait(90) == code
    (line,) = process.log.read_text().strip().splitlines()
    assert all(word in line for word in itertools.chain(words, ("menura sink:",)))
