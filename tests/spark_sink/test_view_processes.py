"""Turns of views on a schedule in a process beside Spark: its outcome, its folder, and kills of it and of its sink."""

import fcntl
import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from menura.views.definition import ViewDefinition, encode_views

from spark_sink.ingest import view_process, view_standings
from spark_sink.ingest.recomputations import Recomputations
from spark_sink.ingest.view_process import ViewProcesses
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings
from spark_sink.ingest.views import Views
from spark_sink.lake.records import Records
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.tail import AT_ONCE
from spark_sink.reading import current_state
from spark_sink.views.maintain import ViewWork
from tests.servers import ROOT
from tests.spark_sink.landing import table_id, truncate
from tests.spark_sink.scheduled_views import of, scheduled
from tests.spark_sink.test_scheduled_views import expected, text_of, turned
from tests.spark_sink.view_model import ORDERS, World, in_lake
from tests.stack import Process, wait_for

#: takes as long as it may, of a table that has two rows or more: of some 10**13 rows at least
SLOW = (
    "WITH w AS (SELECT o0.id FROM " + ", ".join(f"{{orders}} o{n}" for n in range(4)) + ")"
    " SELECT count(*) AS n FROM " + ", ".join(f"w w{n}" for n in range(11))
)


@pytest.fixture
def processes(tmp_path: Path) -> ViewProcesses:
    settings = ViewSettings(str(tmp_path / "world" / "lake"), AT_ONCE, KEEP_HOURS)
    return ViewProcesses(settings, tmp_path / "turns" / "own")


@pytest.fixture
def world(tmp_path: Path, processes: ViewProcesses) -> World:
    found = World(tmp_path / "world", 7, stores=False)
    found.land(40)
    found.apply()
    began_beside(found, processes)
    return found


def began_beside(world: World, processes: ViewProcesses) -> None:
    """Give the world a sink that has just begun, and does turns of its views on a schedule by these."""
    lake = str(world.lake)

    def none(_works: object) -> list[ViewOutcome]:
        raise AssertionError("a turn is Spark's")

    world.sink = Views(lake, Records(lake), none, nullcontext(), beside=processes)
    world.sink.want([ViewDefinition("acme", name, text(in_lake)) for name, text in world.views.items()])


def want(world: World, **queries: str) -> None:
    world.want(**{name: text_of(query) for name, query in queries.items()})


def inside(folder: Path) -> list[int]:
    """Processes that work within a folder, those in the outer ones first."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            here = (each / "cwd").readlink()
        except OSError:
            continue
        if folder in [here, *here.parents]:
            found.append((len(here.parts), int(each.name)))
    return [number for _, number in sorted(found)]


def both(folder: Path) -> list[int] | None:
    """The turn's process and that of its query."""
    found = inside(folder)
    return found if len(found) == 2 else None


def test_a_view_when_its_turn_is_a_process_then_it_has_its_rows_and_nothing_of_the_process_stays(
    world: World, tmp_path: Path
) -> None:
    world.want(whole=scheduled("whole"), unions=scheduled("unions"))
    assert set(turned(world).values()) == {("following", "")}
    for name in ("whole", "unions"):
        assert world.held(name) == expected(world, name) == world.replayed(name)
    assert [each.name for each in (tmp_path / "turns" / "own").iterdir()] == ["lock"]
    assert inside(tmp_path) == []


def test_a_view_when_it_is_refused_in_its_process_then_its_state_says_why(world: World) -> None:
    want(world, typed="SELECT o.id FROM {orders} o WHERE o.note > 3")
    assert turned(world) == {"typed": ("stopped", "VIEW_REFUSED")}
    assert "stand together" in world.sink.states()[0].message


def test_a_turn_when_its_process_is_killed_then_the_view_says_so_and_is_tried_again(
    world: World, processes: ViewProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_standings, "FIRST_PAUSE_SECONDS", 0.0)
    want(world, slow=SLOW)
    world.sink.turn()
    turn, _ = wait_for("query", lambda: both(tmp_path))
    os.kill(turn, 9)
    world.writer.cut(truncate(ORDERS), source="shop")  # of no rows it is quick
    world.rows["orders"].clear()
    world.apply()
    wait_for("outcome", lambda: world.sink._recomputations.has_outcome or None)
    began: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Recomputations, "begin", lambda _self, work: began.append(work.definition.name))
        world.sink.turn()
    (state,) = world.sink.states()
    assert (state.state, state.code) == ("stopped", "VIEW_TASK_LOST")
    assert "its process ended (SIGKILL)" in state.message
    assert began == ["slow"]
    wait_for("end of its query", lambda: inside(tmp_path) == [] or None)
    assert turned(world) == {"slow": ("following", "")}
    assert world.held("slow") == [(0,)]
    assert [each.name for each in (tmp_path / "turns" / "own").iterdir()] == ["lock"]


def test_a_turn_when_it_does_not_end_then_it_is_killed_and_the_view_says_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_process, "MOST_SECONDS", 1.0)
    want(world, slow=SLOW)
    assert turned(world) == {"slow": ("stopped", "VIEW_TASK_LOST")}
    assert "it takes longer than 1.0 s" in world.sink.states()[0].message
    wait_for("end of both", lambda: inside(tmp_path) == [] or None)


def test_a_turn_when_its_sink_stops_then_its_processes_end(world: World, tmp_path: Path) -> None:
    want(world, slow=SLOW)
    world.sink.turn()
    wait_for("query", lambda: both(tmp_path))
    world.sink.stop(0, finish=False)
    wait_for("end of both", lambda: inside(tmp_path) == [] or None)


def work_of(world: World, monkeypatch: pytest.MonkeyPatch) -> ViewWork:
    """What its one view's turn is given."""
    works: list[ViewWork] = []
    with monkeypatch.context() as patched:
        patched.setattr(Recomputations, "begin", lambda _self, work: works.append(work))
        world.sink.turn()
    return works[0]


def test_a_turn_when_its_sink_is_killed_then_its_processes_end_and_the_next_sink_removes_its_folder_alone(
    world: World, processes: ViewProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want(world, slow=SLOW)
    given = tmp_path / "given"
    given.write_bytes(pickle.dumps((processes._settings, processes._folder, [work_of(world, monkeypatch)])))
    other = tmp_path / "turns" / "other" / "work" / "file"
    other.parent.mkdir(parents=True)
    other.touch()
    code = (
        "import pathlib, pickle, sys; from spark_sink.ingest.view_process import ViewProcesses\n"
        "settings, folder, works = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "ViewProcesses(settings, folder)(works)\n"
    )
    folder = tmp_path / "turns" / "own" / "work"
    with subprocess.Popen([sys.executable, "-c", code, str(given)], cwd=ROOT) as sink:
        wait_for("query", lambda: both(folder))
        sink.kill()
    wait_for("end of both", lambda: inside(folder) == [] or None)
    assert folder.exists()
    processes.clear()
    assert not folder.exists()
    assert other.exists()
    world.writer.cut(truncate(ORDERS), source="shop")
    world.rows["orders"].clear()
    world.apply()
    assert turned(world) == {"slow": ("following", "")}


def test_a_turn_when_a_process_of_the_sink_before_has_not_ended_then_it_waits_and_leaves_its_folder(
    world: World, processes: ViewProcesses, tmp_path: Path
) -> None:
    held = tmp_path / "turns" / "own" / "work" / "of-the-former"
    held.parent.mkdir(parents=True, mode=0o700)
    held.touch()
    for folder in (tmp_path / "turns", tmp_path / "turns" / "own"):
        folder.chmod(0o700)
    world.want(whole=scheduled("whole"))
    with (tmp_path / "turns" / "own" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes.clear()
        assert turned(world) == {"whole": ("stopped", "VIEW_TASK_LOST")}
        assert "before this one has not ended" in world.sink.states()[0].message
        assert held.exists()
    began_beside(world, processes)
    assert turned(world) == {"whole": ("following", "")}
    assert not held.exists()


def test_a_turn_when_its_folder_is_somebody_elses_then_it_is_not_used_and_nothing_of_it_goes(
    world: World, processes: ViewProcesses, tmp_path: Path
) -> None:
    target = tmp_path / "target" / "work"
    target.mkdir(parents=True)
    (tmp_path / "turns").mkdir(mode=0o700)
    (tmp_path / "turns" / "own").symlink_to(tmp_path / "target")
    world.want(whole=scheduled("whole"))
    processes.clear()
    assert turned(world) == {"whole": ("stopped", "VIEW_STORAGE_FAILED")}
    assert target.exists()


@pytest.mark.spark
@pytest.mark.long
def test_a_sink_when_it_has_one_core_and_a_query_takes_minutes_then_batches_go_on_and_a_kill_leaves_no_process(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "world", 7, stores=False)
    world.land(40)
    definitions = tmp_path / "views.json"
    text = of(SLOW)(in_lake)
    definitions.write_text(encode_views([ViewDefinition("acme", "slow", f"SCHEDULE EVERY 1 DAY AS {text}")]))
    folders = [*("--landing", str(world.writer.folder)), *("--lake", str(world.lake))]
    command = ["sink", "run", *folders, "--master", "local[1]", "--views", str(definitions), "--view-stores", ""]
    temporary = tmp_path / "temporary"
    left = temporary / "menura-view-scratch-of-a-killed-sink"
    left.mkdir(parents=True)
    with Process(command, tmp_path / "sink.log", environment={"TMPDIR": str(temporary)}) as sink:
        turns = temporary / f"menura-view-turns-{os.geteuid()}"
        held = wait_for("query", lambda: both(turns))
        assert not left.exists()
        world.land(40, empties=False)
        wait_for("batch beside the query", lambda: rows_of(world) == len(world.rows["orders"]) or None)
        assert both(turns) == held
        sink.kill()
    wait_for("end of both", lambda: inside(turns) == [] or None)


def rows_of(world: World) -> int:
    found: int = current_state(str(world.lake), table_id(ORDERS, source="shop")).num_rows
    return found
