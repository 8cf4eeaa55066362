"""Divided turns of views as Spark's tasks: their worker is killed, their driver is; each change is there once."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from menura.change_batch import CHANGE_TYPE, GSN
from menura.views.definition import ViewDefinition, encode_views
from pyspark.sql import SparkSession

from spark_sink.ingest import divided_views
from spark_sink.ingest.divided_views import run_views, spark_run
from spark_sink.ingest.view_task import ViewSettings
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.tail import AT_ONCE
from spark_sink.landed.storage import open_storage
from spark_sink.reading import changelog
from spark_sink.views.division import Dividing
from spark_sink.views.maintain import view_table_id
from tests.needs import needs_setup
from tests.servers import ROOT
from tests.spark_sink.divided_sink import killing
from tests.spark_sink.view_model import Named, World, held_rows, in_lake, texts
from tests.stack import wait_for

pytestmark = [pytest.mark.spark]


def joined(named: Named) -> str:
    return f"SELECT o.id, o.qty, p.name FROM {named('orders')} o LEFT JOIN {named('people')} p ON p.id = o.person"


def by_name(named: Named) -> str:
    return f"SELECT v.name, count(*) AS n, sum(v.qty) AS qty FROM {named('joined')} v GROUP BY v.name"


class SparkWorld(World):
    """Whose views are Spark's tasks."""

    session: SparkSession

    def tasks(self, task: Any, values: Any) -> Any:
        return self.session.sparkContext.parallelize(list(values), len(values)).mapPartitions(task).collect()


def files_of(lake: str, name: str) -> set[str]:
    """Of divisions, in a view's two folders."""
    folder = view_table_id("acme", name).folder(lake)
    return {found.path.rpartition("/")[2] for found in open_storage(folder).list("") if "/divided-" in found.path}


def test_a_view_when_a_worker_is_killed_at_a_range_then_it_alone_stops_and_is_whole_at_its_next_turn(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SparkWorld(tmp_path, 5, dividing=Dividing(3, least_rows=0, least_gain=0), stores=False)
    world.session = session
    world.want(joined=joined, by_name=by_name)
    mark = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(divided_views, "_range_task", partial(killing, divided_views._range_task, str(mark)))
        world.step(40)
    states = {state.name: (state.state, state.code) for state in world.sink.states()}
    assert states == {"joined": ("stopped", "VIEW_TASK_LOST"), "by_name": ("waiting", "VIEW_INPUTS_NOT_READY")}
    assert mark.exists()
    left = files_of(str(world.lake), "joined")
    assert left
    world.sink = world.new_sink()
    world.sink.turn()
    world.check()
    assert left.isdisjoint(files_of(str(world.lake), "joined"))


def test_views_when_the_worker_of_their_one_job_is_killed_then_each_has_its_version_in_the_same_round(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = SparkWorld(tmp_path, 5, stores=False)
    world.session = session
    world.want(joined=joined, people=lambda named: f"SELECT p.id, p.name FROM {named('people')} p")
    mark = tmp_path / "killed"
    monkeypatch.setattr(divided_views, "view_task", partial(killing, divided_views.view_task, str(mark)))
    world.step(40)
    assert mark.exists()
    world.check()


def test_a_turn_when_one_core_is_left_to_batches_then_it_is_divided_into_the_others(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def noted(settings: ViewSettings, *_: object) -> list[object]:
        asked.append(settings.dividing.parts)
        return []

    monkeypatch.setattr(divided_views, "run_views", noted)
    settings = ViewSettings(str(tmp_path), AT_ONCE, KEEP_HOURS)
    for leaves_core in (True, False):
        assert spark_run(session, settings, leaves_core=leaves_core)([]) == []
    cores = session.sparkContext.defaultParallelism
    assert asked == [cores - 1, cores]
    assert run_views(replace(settings, dividing=Dividing(0)), lambda _task, _values: [], []) == []


def sink_command(world: World, master: str, definitions: Path, *more: str) -> list[str]:
    wanted = [ViewDefinition("acme", name, text(in_lake)) for name, text in world.views.items()]
    definitions.write_text(encode_views(wanted))
    return [
        sys.executable,
        "-m",
        "tests.spark_sink.divided_sink",
        "--master",
        master,
        "--views",
        str(definitions),
        *more,
    ]


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    needs_setup("a process that may start Spark")
    with log.open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True)


def kill(process: subprocess.Popen[bytes]) -> None:
    """-9, with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until_held(process: subprocess.Popen[bytes], mark: Path, log: Path) -> None:
    def is_held() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        return mark.exists()

    wait_for("all ranges to be computed", is_held, 600)


def check_once(lake: str, world: World) -> None:
    for name, rows in world.expected().items():
        assert held_rows(lake, name) == rows, name
        rows_logged = changelog(lake, view_table_id("acme", name)).select([GSN, CHANGE_TYPE]).to_pylist()
        numbers = Counter((row[GSN], row[CHANGE_TYPE]) for row in rows_logged)  # both sides of an update have one
        assert set(numbers.values()) <= {1}, name


@pytest.mark.kill
def test_a_sink_when_it_is_killed_before_the_commit_of_a_divided_turn_then_each_change_is_there_once(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 9)
    world.views = {**texts(9, 3), "joined": joined, "by_name": by_name}
    world.land(60)
    lake, mark, log = str(world.lake), tmp_path / "held", tmp_path / "sink.log"
    addresses = ("--landing", str(world.writer.folder), "--lake", lake, "--checkpoint", f"{lake}/_menura/checkpoint")
    command = sink_command(world, "local[3]", tmp_path / "views.json", *addresses)
    process = start([*command, "--hold", str(mark)], log)
    try:
        until_held(process, mark, log)
    finally:
        kill(process)
    left = {name: files_of(lake, name) for name in world.views if view_folder_exists(lake, name)}
    assert any(left.values())
    process = start(command, log)
    try:
        assert process.wait(600) == 0, log.read_text()[-3000:]
    finally:
        kill(process)
    check_once(lake, world)
    for name, names in left.items():
        assert names.isdisjoint(files_of(lake, name)), name
    assert files_of(lake, "joined")  # it was divided again


def view_folder_exists(lake: str, name: str) -> bool:
    return Path(view_table_id("acme", name).folder(lake)).exists()
