"""`menura sink run` as a process: killed, stopped, and refused."""

import itertools
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from spark_sink.errors import TableNotInLake
from spark_sink.reading import changelog
from spark_sink.running import RESTARTS_SECONDS, Restarts
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
    return not any(map(lives, processes))


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has ended between these two looks
        return False


def finish(folder: Path) -> None:
    """A sink that ends when all that has landed is in the lake."""
    finished = subprocess.run(
        [sys.executable, "-m", "menura.cli", *sink(folder, "--available-now").arguments],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]


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
                wait_for("the sink's JVM and workers to go", lambda family=family: gone(family) or None)
    finally:
        if process.is_running():
            process.stop()
    finish(tmp_path)
    lake = tmp_path / "lake"
    assert lake_rows(lake, Workload.ORDERS) == workload.orders.expected()
    assert lake_rows(lake, Workload.EVENTS) == workload.events.expected()
    logged = [changelog(str(lake), table_id(table)) for table in (Workload.ORDERS, Workload.EVENTS)]
    assert sum(table.num_rows for table in logged) == workload.changes


def test_a_sink_killed_while_spark_wrote_its_first_offset_when_it_starts_then_it_goes_on(tmp_path: Path) -> None:
    workload, writer = Workload(17), Writer(tmp_path / "landing")
    workload.cut(writer)
    for folder in ("offsets", "commits"):  # Spark writes beside the file that it then renames to its place
        unfinished = tmp_path / "lake/_menura/checkpoint" / folder / ".0.6f1c4d0e-9a43-4f0e-8d57-2b6b8f6f2b11.tmp"
        unfinished.parent.mkdir(parents=True)
        unfinished.write_text("v1\n{")
    finish(tmp_path)
    assert lake_rows(tmp_path / "lake", Workload.ORDERS) == workload.orders.expected()


@pytest.mark.long
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
        assert process.running.wait(300) == 0
        wait_for("the sink's JVM and workers to go", lambda: gone(family) or None)
    finally:
        process.stop()
    line = next(line for line in process.log.read_text().splitlines() if "batch applied" in line)
    fields = ("entries=", "cuts=", "tables=", "rows=", "seconds=", "freshness_seconds=")
    assert all(field in line for field in fields)


@pytest.mark.long
def test_a_running_sink_when_a_python_process_of_its_query_is_killed_then_the_query_begins_again(
    tmp_path: Path,
) -> None:
    workload, writer = Workload(14), Writer(tmp_path / "landing")
    process = sink(tmp_path).start()
    try:
        wait_until_started(process, 1)
        workload.cut(writer)
        wait_for("a batch", lambda: "batch applied" in process.log.read_text() or None)
        assert process.running is not None
        for each in psutil.Process(process.running.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # a worker may have ended
                if "pyspark.sql.streaming.python_streaming_source_runner" in each.cmdline():
                    each.kill()
        wait_for("the query to begin again", lambda: "query begins again" in process.log.read_text() or None)
        wait_until_started(process, 2)
        workload.cut(writer)

        def has_rows() -> bool:
            with suppress(TableNotInLake):
                return lake_rows(tmp_path / "lake", Workload.ORDERS) == workload.orders.expected()
            return False

        wait_for("the rows", has_rows)
        assert process.is_running()
    finally:
        process.stop()


def test_restarts_when_no_batch_comes_between_then_pauses_grow_and_end_after_ten_minutes() -> None:
    now, restarts, pauses = 1000.0, Restarts(), []
    while not (restarts := restarts.after_failure(now, batches=7)).is_over(now):
        pauses.append(restarts.pause_seconds)
        now += restarts.pause_seconds + 10  # Spark's wait for a Python process
    assert pauses[:6] == [2, 4, 8, 16, 30, 30]
    assert sum(pauses) + 10 * len(pauses) > RESTARTS_SECONDS
    after_a_batch = restarts.after_failure(now, batches=8)
    assert (after_a_batch.failures, after_a_batch.is_over(now)) == (1, False)


def test_restarts_when_a_quiet_source_gave_no_batch_for_an_hour_then_the_next_failure_is_a_first_one() -> None:
    restarts = Restarts().after_failure(1000.0, batches=7).after_failure(1020.0, batches=7)
    later = restarts.after_failure(4600.0, batches=7)
    assert (later.failures, later.is_over(4600.0), later.pause_seconds) == (1, False, 2)


def test_a_running_sink_when_sparks_jvm_is_killed_then_it_ends_with_one_line(tmp_path: Path) -> None:
    process = sink(tmp_path).start()
    try:
        wait_until_started(process, 1)
        assert process.running is not None
        (jvm,) = [each for each in psutil.Process(process.running.pid).children() if "java" in each.name()]
        jvm.kill()
        assert process.running.wait(300) == 4
    finally:
        process.stop()
    # a thread of PySpark's that talked to the JVM just then may print its own error, before or after the line
    (said,) = [line for line in process.log.read_text().splitlines() if line.startswith("menura sink:")]
    assert said.startswith("menura sink: QUERY_FAILED")
    assert "its JVM has ended" in said


@pytest.mark.parametrize(
    ("options", "environment", "code", "words"),
    [
        (["--trigger-seconds", "-1"], {}, 2, ("SINK_SETTING_INVALID", "--trigger-seconds")),
        (["--lake", "/tmp/a%20b"], {}, 2, ("SINK_SETTING_INVALID", "--lake")),
        ([], {"MENURA_JARS": "/nowhere"}, 2, ("JARS_MISSING", "python -m spark_sink.jars")),
        ([], {"JAVA_HOME": "/nowhere"}, 2, ("JAVA_MISSING", "JAVA_HOME")),
        ([], {"SPARK_LOCAL_DIRS": "/proc/nowhere"}, 2, ("SINK_SETTING_INVALID", "SPARK_LOCAL_DIRS", "/proc/nowhere")),
    ],
    ids=["trigger", "lake", "jars", "java", "scratch"],
)
def test_a_setting_that_cannot_work_when_started_then_one_line_names_it_and_the_fix(
    tmp_path: Path, options: list[str], environment: dict[str, str], code: int, words: tuple[str, ...]
) -> None:
    process = sink(tmp_path, *options)
    process.environment.update(environment)
    process.start()
    assert process.running is not None
    assert process.running.wait(300) == code
    (line,) = process.log.read_text().strip().splitlines()
    assert all(word in line for word in itertools.chain(words, ("menura sink:",)))
