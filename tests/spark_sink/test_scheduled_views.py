"""Views that are recomputed on a schedule: when, beside what, and what becomes of those that can't be."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from menura.views.definition import ViewDefinition

from spark_sink.errors import ViewNotComputed
from spark_sink.ingest.divided_views import run_views
from spark_sink.ingest.recomputations import Recomputations
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings
from spark_sink.ingest.views import Views
from spark_sink.lake.records import Records
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.table_folders import told_folders
from spark_sink.lake.tail import AT_ONCE
from spark_sink.views import maintain, query_process, recompute, scratch, view_table
from spark_sink.views.engine import Engine, engine
from spark_sink.views.maintain import ViewWork
from spark_sink.views.query_process import Bounds, computed
from tests.servers import ROOT
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.scheduled_views import HOUR_US, SHAPES, Clock, clock_of, of, scheduled
from tests.spark_sink.view_model import Text, World, in_lake, one_by_one, values
from tests.stack import wait_for

QUICK = of("SELECT o.id, o.qty FROM {orders} o")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_of(monkeypatch)


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path, 7, stores=False)
    found.land(40)
    found.apply()
    return found


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> "list[subprocess.Popen[bytes]]":
    """That are started."""
    found: list[subprocess.Popen[bytes]] = []

    class Seen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            found.append(self)

    monkeypatch.setattr(subprocess, "Popen", Seen)
    return found


def turned(world: World) -> dict[str, tuple[str, str]]:
    """Let all that is due be done; gives how the views stand."""
    world.sink.stop(0, finish=True)
    return {state.name: (state.state, state.code) for state in world.sink.states()}


def text_of(query: str, every: str = "1 HOUR") -> Text:
    text = of(query)
    return lambda named, by="": f"SCHEDULE EVERY {every} AS {text(named)}"


def expected(world: World, name: str) -> list[tuple[object, ...]]:
    """By the engine's own reading of the query."""
    of_world = World(world.folder / "other", 0)
    of_world.rows, of_world.views = world.rows, {name: of(SHAPES[name])}
    return of_world.expected()[name]


def bounded(world: World, bounds: Bounds, *names: str) -> None:
    """Give the world a sink whose queries have these bounds: all of them, or those of these views."""
    settings = ViewSettings(str(world.lake), AT_ONCE, KEEP_HOURS, bounds=bounds)

    def run(works: list[ViewWork]) -> list[ViewOutcome]:
        with told_folders(settings.lake, {}):
            return [each for work in works for each in run_views(settings_of(work), one_by_one, [work])]

    def settings_of(work: ViewWork) -> ViewSettings:
        return settings if not names or work.definition.name in names else replace(settings, bounds=Bounds())

    world.sink = Views(str(world.lake), Records(str(world.lake)), run, threading.Lock())  # type: ignore[arg-type]
    world.sink.want([ViewDefinition("acme", name, text(in_lake)) for name, text in world.views.items()])


def test_a_view_when_its_time_has_not_come_then_it_stays_and_after_a_restart_too(world: World, clock: Clock) -> None:
    world.want(many_to_many=scheduled("many_to_many"), quick=QUICK)
    assert set(turned(world).values()) == {("following", "")}
    (first,) = [state for state in world.sink.states() if state.name == "many_to_many"]
    assert first.message == "It is recomputed every 1 hour, last at 2027-01-15 08:00:00 UTC"
    assert first.applied_at_us == clock.now
    before = world.held("many_to_many")
    for restarts in (False, True):
        clock.now += HOUR_US // 3
        world.step(60)
        if restarts:
            world.sink = world.new_sink()
        turned(world)
        held = {state.name: state for state in world.sink.states()}
        assert (held["many_to_many"].cuts, held["many_to_many"].applied_at_us) == (first.cuts, first.applied_at_us)
        assert held["quick"].cuts != first.cuts
        assert world.held("many_to_many") == before != expected(world, "many_to_many")
    clock.now += HOUR_US // 3
    turned(world)
    (now,) = [state for state in world.sink.states() if state.name == "many_to_many"]
    assert (now.applied_at_us, now.version) == (clock.now, first.version + 1)
    assert world.held("many_to_many") == expected(world, "many_to_many") == world.replayed("many_to_many")


def test_a_view_when_a_release_means_something_else_by_its_text_then_it_is_recomputed_before_its_time(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.want(whole=scheduled("whole"))
    turned(world)
    began = clock.now
    clock.now += HOUR_US // 3
    for more in (0, 1):
        monkeypatch.setattr(maintain, "MEANING", maintain.MEANING + more)
        world.sink = world.new_sink()
        turned(world)
        (state,) = world.sink.states()
        assert state.applied_at_us == (clock.now if more else began)


def test_a_view_when_no_input_has_changed_then_nothing_is_computed_and_it_has_the_later_cuts(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.want(whole=scheduled("whole"))
    turned(world)
    (before,) = world.sink.states()
    monkeypatch.setattr(recompute, "computed", None)
    clock.now += HOUR_US
    world.writer.cut(source="shop")
    world.writer.cut(source="crm")
    world.apply()
    assert turned(world) == {"whole": ("following", "")}
    (after,) = world.sink.states()
    assert (after.applied_at_us, after.changes) == (clock.now, 0)
    assert all(now.cut > then.cut for now, then in zip(after.cuts, before.cuts, strict=True))
    clock.now += HOUR_US
    world.land(60)
    world.apply()
    assert turned(world) == {"whole": ("stopped", "VIEW_UNEXPECTED")}  # it was to be computed


def test_views_when_they_read_one_that_is_recomputed_then_they_follow_its_changes_at_its_cuts(
    world: World, clock: Clock
) -> None:
    on_it = of("SELECT d.note, count(*) AS n FROM {distinct} d GROUP BY d.note".replace("{distinct}", "distinct_notes"))
    beside = "SELECT o.id, r.place FROM {orders} o JOIN {ranked} r ON r.id = o.id"
    ranked = "SCHEDULE EVERY 2 HOURS KEY (id) AS SELECT o.id, rank() OVER (ORDER BY o.qty) AS place FROM {} o"
    world.want(
        distinct_notes=scheduled("distinct"),
        on_it=on_it,
        ranked=lambda named, by="": ranked.format(named("orders")),
        beside=lambda named, by="": beside.format(orders=named("orders"), ranked="ranked"),
    )
    for _ in range(4):
        assert set(turned(world).values()) == {("following", "")}
        cuts = {state.name: state.cuts for state in world.sink.states()}
        assert cuts["on_it"] == cuts["distinct_notes"]
        assert cuts["beside"] == cuts["ranked"]
        assert {row[0] for row in world.held("beside")} == {row[0] for row in world.held("ranked")}
        assert sum(int(str(row[1])) for row in world.held("on_it")) == len(world.held("distinct_notes"))
        clock.now += HOUR_US
        world.step(40)


@pytest.mark.parametrize(
    ("name", "call"),
    [("append", 1), ("merge_tail", 1), ("compact_when_due", 1), ("rewrite_with", 1)],
)
def test_a_view_when_it_is_killed_as_it_is_recomputed_then_the_next_time_it_has_all_rows_once(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str, call: int
) -> None:
    if name == "rewrite_with":
        monkeypatch.setattr("spark_sink.views.current_rewrite.MOST_MERGED_ROWS", 0)
    world.want(first_of_each=scheduled("first_of_each"))
    turned(world)
    world.land(60, empties=False)
    world.apply()
    clock.now += HOUR_US
    works: list[ViewWork] = []
    world.sink = world.new_sink()
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Recomputations, "begin", lambda _self, work: works.append(work))
        world.sink.turn()
        kill_at(patched, view_table, name, call)
        with told_folders(str(world.lake), {}):
            recompute.recompute(str(world.lake), works[0])
    world.sink = world.new_sink()
    clock.now += HOUR_US
    assert turned(world) == {"first_of_each": ("following", "")}
    assert world.held("first_of_each") == expected(world, "first_of_each") == world.replayed("first_of_each")


SLOW = "SELECT count(*) AS n FROM " + ", ".join(f"{{orders}} o{n}" for n in range(12))
#: and what is said of each
HOSTILE = {
    # too many rows, values that double with each name of WITH
    "large": ("SELECT a.id, b.id AS b, c.id AS c FROM {orders} a, {orders} b, {orders} c, {orders} d", "rows"),
    "wide": (
        "WITH "
        + ", ".join(
            f"w{n} AS (SELECT "
            + " || ".join(["o.note"] * 20)
            + f" AS note FROM {'{orders}' if n == 0 else f'w{n - 1}'} o)"
            for n in range(6)
        )
        + " SELECT length(o.note) AS n FROM w5 o",
        "memory",
    ),
    "beyond": ("SELECT o.id, o.id * 9223372036854775807 AS x FROM {orders} o", "beyond its type"),
    "several": ("SELECT o.id, (SELECT p.id FROM {people} p) AS x FROM {orders} o", "several rows"),
    "equal": ("SELECT o.qty FROM {orders} o UNION ALL SELECT o.qty FROM {orders} o", "have several rows"),
    "typed": ("SELECT o.id FROM {orders} o WHERE o.note > 3", "stand together"),
    "endless": (
        "WITH RECURSIVE r AS (SELECT o.id FROM {orders} o UNION ALL SELECT r.id FROM r) SELECT r.id FROM r",
        "WITH",
    ),
    "others": ("SELECT o.id FROM read_csv('/etc/passwd') o", "by their names alone"),
}


def test_queries_when_they_need_too_much_then_their_views_alone_stop_with_the_reason_until_their_next_time(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.land(400, empties=False)
    world.apply()
    world.views = {name: text_of(query) for name, (query, _) in HOSTILE.items()}
    world.views |= {"quick": QUICK, "unions": scheduled("unions")}
    bounded(world, Bounds(memory_bytes=64 << 20, scratch_bytes=64 << 20, seconds=3000, rows=50_000))
    stands = turned(world)
    assert (stands.pop("quick"), stands.pop("unions")) == (("following", ""), ("following", ""))
    messages = {state.name: state.message for state in world.sink.states()}
    for name, (_, reason) in HOSTILE.items():
        assert stands[name][0] == "stopped"
        assert reason in messages[name], messages[name]
    assert world.held("unions") == expected(world, "unions")
    begun: list[str] = []
    monkeypatch.setattr(Recomputations, "begin", lambda _self, work: begun.append(work.definition.name))
    world.sink.turn()
    assert begun == []


def test_a_query_when_it_takes_too_long_then_its_view_alone_stops_and_says_so(world: World, clock: Clock) -> None:
    world.land(400, empties=False)
    world.apply()
    world.views = {"slow": text_of(SLOW), "quick": QUICK}
    bounded(world, Bounds(seconds=2), "slow")
    assert turned(world) == {"slow": ("stopped", "VIEW_NOT_COMPUTED"), "quick": ("following", "")}
    assert "it takes longer than 2 s" in {state.name: state.message for state in world.sink.states()}["slow"]


def test_a_query_when_its_process_is_killed_then_its_view_says_so_and_goes_on_at_its_next_try(
    world: World, clock: Clock, processes: "list[subprocess.Popen[bytes]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    real = query_process._rows

    def rows(of: object, bounds: Bounds) -> pa.RecordBatchReader:
        os.kill(processes[-1].pid, 9)
        return real(of, bounds)  # type: ignore[arg-type]

    world.want(whole=scheduled("whole"))
    with monkeypatch.context() as patched:
        patched.setattr(query_process, "_rows", rows)
        assert turned(world) == {"whole": ("stopped", "VIEW_NOT_COMPUTED")}
        assert "its process ended (SIGKILL)" in world.sink.states()[0].message
    clock.now += HOUR_US
    world.sink = world.new_sink()
    assert turned(world) == {"whole": ("following", "")}
    assert world.held("whole") == expected(world, "whole")


def test_a_recomputation_when_it_compares_rows_then_its_engine_has_no_more_room_than_its_query(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = recompute.engine

    def noted(*, scratch_bytes: int) -> AbstractContextManager[Engine]:
        seen.append(scratch_bytes)
        return real(scratch_bytes=scratch_bytes)

    monkeypatch.setattr(recompute, "engine", noted)
    world.views = {"unions": scheduled("unions")}
    bounded(world, Bounds(scratch_bytes=123 << 20))
    assert turned(world) == {"unions": ("following", "")}
    assert seen == [123 << 20]


def numbers(rows: int) -> pa.RecordBatchReader:
    return pa.table({"a": pa.array(range(rows), pa.int64())}).to_reader(max_chunksize=1000)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM glob('/*')",
        "SELECT getenv('HOME') AS x",
        "SELECT 1 AS x); COPY t0 TO '/tmp/menura-never'; SELECT (1",
        "SELECT 1 AS x; ATTACH '/tmp/menura-never'",
        "SELECT 1 AS x; SET memory_limit = '1TB'",
        "SELECT 1 AS x; INSTALL httpfs; LOAD httpfs",
        "SELECT * FROM given",
        "SELECT * FROM connection",
    ],
)
def test_a_process_when_its_text_is_any_sql_then_it_reaches_no_file_no_setting_and_no_secret(
    sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second wall: no view's text becomes one of these."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "menura-secret")
    with pytest.raises(ViewNotComputed), computed(sql, {"t0": numbers(3)}) as rows:
        rows.read_all()
    assert not Path("/tmp/menura-never").exists()


def test_a_process_when_it_computes_then_it_has_no_environment_and_leaves_no_folder_and_no_file_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "menura-secret")
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    with computed("SELECT sum(t0.a) AS a, count(*) AS n FROM t0, t1", {"t0": numbers(2500), "t1": numbers(2)}) as rows:
        (own,) = tmp_path.iterdir()
        process = next(each for each in Path("/proc").glob("[0-9]*") if _cwd(each) == own)
        held = (process / "environ").read_bytes()
        files = [str(each.readlink()) for each in (process / "fd").iterdir()]
        limits = (process / "limits").read_text()
        assert values(rows.read_all().to_pylist()[0]) == (6247500, 5000)
    assert b"menura-secret" not in held
    assert {each.split(":")[0] for each in files} <= {"pipe", "/dev/null", "/dev/urandom", str(own)}, files
    assert all("unlimited" not in line for line in limits.splitlines() if line.startswith(("Max cpu", "Max address")))
    assert list(tmp_path.iterdir()) == []


def test_a_process_when_it_is_killed_as_it_gives_rows_then_those_are_not_taken_for_all(
    processes: "list[subprocess.Popen[bytes]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    real = query_process._counted

    def killing(rows: pa.RecordBatchReader, count: int) -> Iterator[pa.RecordBatch]:
        for batch in real(rows, count):
            yield batch
            given.append(batch.num_rows)
            processes[-1].kill()
            processes[-1].wait()

    monkeypatch.setattr(query_process, "_counted", killing)
    tables = {"t0": numbers(100_000), "t1": numbers(30)}
    with (
        pytest.raises(ViewNotComputed, match="SIGKILL"),
        computed("SELECT t0.a, t0.a + t1.a AS b FROM t0, t1", tables) as rows,
        engine() as sql,
    ):
        sql.put("given", rows)
        sql.keep("found", "SELECT * FROM given")
    assert 0 < sum(given) < 3_000_000


def test_a_process_when_its_engine_prints_then_that_is_not_taken_for_its_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As DuckDB prints how far it is, of a query that takes seconds."""
    noisy = query_process._source().replace("    _limit(task)\n", "    _limit(task)\n    os.write(1, b'100% |||')\n")
    assert "100%" in noisy
    monkeypatch.setattr(query_process, "_source", lambda: noisy)
    with computed("SELECT count(*) AS n FROM t0", {"t0": numbers(3)}) as rows:
        assert rows.read_all().to_pylist() == [{"n": 3}]


def test_a_process_when_whoever_started_it_is_killed_then_it_ends_and_its_folder_goes(tmp_path: Path) -> None:
    code = (
        "import pyarrow as pa; from spark_sink.views.query_process import computed\n"
        "rows = pa.table({'a': list(range(1000))})\n"
        "tables = {f't{n}': rows.to_reader() for n in range(8)}\n"
        "with computed('SELECT count(*) AS n FROM ' + ', '.join(tables), tables) as found: found.read_all()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment) as started:
        wait_for("process", lambda: any(_cwd(each) in tmp_path.iterdir() for each in Path("/proc").glob("[0-9]*")))
        started.kill()
    wait_for("folder that is gone", lambda: list(tmp_path.iterdir()) == [])
    assert not any(tmp_path in each.parents for each in map(_cwd, Path("/proc").glob("[0-9]*")) if each is not None)


def _cwd(process: Path) -> Path | None:
    try:
        return (process / "cwd").resolve(strict=True)
    except OSError:
        return None


def test_turns_when_several_are_due_then_tenants_have_theirs_one_after_the_other() -> None:
    done: list[tuple[str, str]] = []

    def run(works: list[ViewWork]) -> list[ViewOutcome]:
        return [ViewOutcome(work.definition.tenant, work.definition.name, None, "SOME") for work in works]

    turns = Recomputations(run, lambda: None)  # type: ignore[arg-type]
    due = {("a", "x"), ("a", "y"), ("a", "z"), ("b", "x")}
    for _ in range(6):
        name = turns.in_turn(due)[0]
        turns.begin(ViewWork(ViewDefinition(*name, "SCHEDULE EVERY 1 HOUR AS SELECT"), (), (), 0))
        assert turns.running == name
        assert turns.wait()
        assert turns.take() is not None
        assert turns.running is None
        done.append(name)
    assert done == [("a", "x"), ("b", "x"), ("a", "y"), ("b", "x"), ("a", "z"), ("b", "x")]


def test_views_when_one_is_being_recomputed_then_others_are_followed_and_a_new_text_of_it_waits(
    world: World, clock: Clock
) -> None:
    goes_on = threading.Event()
    real, settings = run_views, ViewSettings(str(world.lake), AT_ONCE, KEEP_HOURS)

    def run(works: list[ViewWork]) -> list[ViewOutcome]:
        if works[0].definition.name == "slow":
            assert goes_on.wait(600)
        with told_folders(settings.lake, {}):
            return real(settings, one_by_one, works)

    sink = Views(str(world.lake), Records(str(world.lake)), run, threading.Lock())  # type: ignore[arg-type]
    slow = ViewDefinition("acme", "slow", scheduled("whole")(in_lake))
    quick = ViewDefinition("acme", "quick", QUICK(in_lake))
    sink.want([slow, quick])
    versions = set()
    for _ in range(3):
        sink.turn()
        states = {state.name: state for state in sink.states()}
        assert (states["slow"].state, states["quick"].state) == ("building", "following")
        versions.add(states["quick"].version)
        world.land(40)
        world.apply()
    assert len(versions) == 3
    sink.want([replace(slow, sql=QUICK(in_lake)), quick])
    sink.turn()
    assert {state.name: state.state for state in sink.states()}["slow"] == "building"
    goes_on.set()
    sink.stop(0, finish=True)
    assert {state.name: state.state for state in sink.states()} == {"slow": "following", "quick": "following"}
    assert world.held("slow") == world.held("quick")


QUERIES = {
    "id": of("SELECT o.id, o.note FROM {orders} o"),
    "note": of("SELECT max(o.id) AS id, o.note FROM {orders} o GROUP BY o.note"),
}


def keyed(key: str) -> Text:
    return lambda named, by="": f"SCHEDULE EVERY 1 HOUR KEY ({key}) AS {QUERIES[key](named)}"


@pytest.mark.parametrize(("first", "then"), [("id", "note"), ("note", "id")])
def test_view_when_its_text_names_another_key_with_the_same_columns_then_it_is_computed_anew(
    world: World, clock: Clock, first: str, then: str
) -> None:
    """Its rows were told apart by the former key: some were lost for good, and its state said that all was well."""
    for key in (first, then):
        world.want(v=keyed(key))
        assert turned(world) == {"v": ("following", "")}
    for _ in range(3):
        world.land(20)
        world.apply()
        clock.now += HOUR_US
        assert turned(world) == {"v": ("following", "")}
    of_world = World(world.folder / "other", 0)
    of_world.rows, of_world.views = world.rows, {"v": QUERIES[then]}
    assert world.held("v") == of_world.expected()["v"] == world.replayed("v")


def test_view_when_the_clock_was_ahead_as_it_was_computed_then_it_is_computed_again_once_it_is_back(
    world: World, clock: Clock
) -> None:
    clock.now += 80_000 * HOUR_US
    world.want(v=text_of("SELECT o.id, o.qty FROM {orders} o"))
    assert turned(world) == {"v": ("following", "")}
    clock.now -= 80_000 * HOUR_US
    world.land(20)
    world.apply()
    assert turned(world) == {"v": ("following", "")}
    assert world.held("v") == sorted(((row["id"], row["qty"]) for row in world.rows["orders"].values()), key=repr)
