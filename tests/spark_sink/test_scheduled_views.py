"""Views that are computed at intervals: equal to Spark SQL's own answer, beside views that are followed."""

import threading
from pathlib import Path
from threading import Event as Stop

import pytest
from menura.views.definition import ViewDefinition, encode_views
from pyspark.sql import SparkSession

from spark_sink.cli import run
from spark_sink.ingest.computations import Computations
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings, spark_compute
from spark_sink.ingest.views import Views
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.tail import AT_ONCE
from spark_sink.views import view_table
from spark_sink.views.maintain import ViewVersion, ViewWork
from spark_sink.views.scheduled_rows import compute
from tests.spark_sink.killing import Killed, kill_at
from tests.spark_sink.test_views_spark import plain, settings_of, spark_rows
from tests.spark_sink.view_model import Named, World, in_lake

EVERY = "SCHEDULE EVERY 1 HOUR AS "


def ranked(named: Named) -> str:
    """A window, a join that is on no key, and a function that no view which is followed may call."""
    return (
        f"SELECT o.id, upper(p.name) AS name, row_number() OVER (PARTITION BY o.person ORDER BY o.id) AS place,"
        f" count(*) OVER (PARTITION BY o.person) / 2 AS half FROM {named('orders')} o"
        f" JOIN {named('people')} p ON p.id >= o.person AND p.id <= o.person + 1 WHERE p.name IS NOT NULL"
        f" OR o.id IN (SELECT max(q.id) FROM {named('orders')} q)"
    )


def few(named: Named) -> str:
    return (
        "SELECT p.country, CAST(avg(o.qty) AS DECIMAL(20,6)) AS mean, count(DISTINCT o.note) AS notes"
        f" FROM {named('people')} p"
        f" LEFT JOIN {named('orders')} o ON o.person = p.id GROUP BY p.country HAVING count(*) > 1"
    )


def test_views_when_they_are_computed_by_a_sink_then_they_equal_spark_sql_and_others_follow_them(
    session: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path, 9)
    texts = {"ranked": ranked, "few": few}
    definitions = tmp_path / "views.json"
    wanted = [ViewDefinition("acme", name, EVERY + text(in_lake)) for name, text in texts.items()]
    on_it = "SELECT f.country, count(*) AS n, sum(f.notes) AS notes FROM few f GROUP BY f.country"
    wrong = {
        "no_column": "SELECT o.nothing FROM shop.app.orders o",
        "no_type": "SELECT array(o.id) AS x FROM shop.app.orders o",
        "equal_rows": "SELECT o.id > 0 AS x FROM shop.app.orders o",
        "beyond": "SELECT o.id, CAST(o.id + 127 AS TINYINT) AS x FROM shop.app.orders o",
    }
    wanted += [ViewDefinition("acme", name, EVERY + text) for name, text in wrong.items()]
    definitions.write_text(encode_views([*wanted, ViewDefinition("acme", "on_it", on_it)]))
    found = set()
    for _ in range(2):
        world.land(60)
        world.followed += 2
        status = SinkStatus()
        run(session, settings_of(world, definitions), Stop(), status)
        states = {state.name: state for state in status.now().views}
        codes = {name: state.code for name, state in states.items() if state.code}
        assert codes == {
            "no_column": "VIEW_REFUSED",
            "no_type": "VIEW_REFUSED",
            "equal_rows": "VIEW_ROWS_EQUAL",
            "beyond": "VIEW_NOT_COMPUTED",
        }, [state.message for state in states.values()]
        assert "nothing" in states["no_column"].message and "--replace" in states["no_column"].message
        assert [cut.source for cut in states["ranked"].cuts] == ["crm", "shop"]
        for name, text in texts.items():
            rows = spark_rows(session, world, text(plain))
            assert world.held(name) == rows == world.replayed(name), name
            found.add((name, len(rows) > 1))
    assert found >= {(name, True) for name in texts}
    assert world.held("on_it")


def test_a_view_when_it_is_killed_as_it_is_computed_then_the_next_time_it_has_all_rows_once(
    session: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path, 6)
    settings = ViewSettings(str(world.lake), AT_ONCE, KEEP_HOURS)
    definition = ViewDefinition("acme", "ranked", EVERY + ranked(in_lake))
    given: list[ViewWork] = []

    def keep(work: ViewWork) -> ViewOutcome:
        given.append(work)
        return ViewOutcome("acme", "ranked", None, "SOME", "not computed")

    for module, name in ((view_table, "append"), (view_table, "merge_tail"), (view_table, "compact_when_due")):
        world.land(40)
        world.apply()
        sink = Views(*world.sink_arguments(), compute=keep)
        sink.want([definition])
        sink.stop(0, finish=True)
        with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
            kill_at(patched, module, name, 1)
            compute(session, str(world.lake), given[-1])
        sink = Views(*world.sink_arguments(), compute=spark_compute(session, settings))
        sink.want([definition])
        sink.stop(0, finish=True)
        assert [state.state for state in sink.states()] == ["following"], sink.states()
        assert world.held("ranked") == spark_rows(session, world, ranked(plain)) == world.replayed("ranked")


def test_a_view_when_it_takes_long_then_others_are_followed_and_its_outcome_is_taken_once_it_is_there(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, 7)
    goes_on = threading.Event()

    def slow(work: ViewWork) -> ViewOutcome:
        assert goes_on.wait(60)
        return ViewOutcome("acme", "slow", ViewVersion(1, True, 0, 0, 0, rows=0))

    sink = Views(*world.sink_arguments(), compute=slow)
    plain_view = ViewDefinition("acme", "quick", "SELECT o.id, o.qty FROM shop.app.orders o")
    sink.want([plain_view, ViewDefinition("acme", "slow", f"{EVERY}SELECT o.id FROM shop.app.orders o")])
    versions = set()
    for _ in range(3):
        world.land(30)
        world.apply()
        sink.turn()
        states = {state.name: state for state in sink.states()}
        assert (states["slow"].state, states["quick"].state) == ("building", "following")
        versions.add(states["quick"].version)
    assert len(versions) == 3
    goes_on.set()
    sink.stop(0, finish=True)
    assert {state.state for state in sink.states()} == {"following"}


def test_a_view_when_its_interval_is_over_then_it_is_due_and_one_is_computed_at_a_time() -> None:
    now, begun, most = [0.0], [], [0]
    turns = threading.Semaphore(0)

    def computed(work: ViewWork) -> ViewOutcome:
        begun.append(work.definition.name)
        most[0] = max(most[0], len(begun))
        assert turns.acquire(timeout=60)
        begun.remove(work.definition.name)
        return ViewOutcome("acme", work.definition.name, None, "SOME", "failed")

    computations = Computations(computed, lambda: None, lambda: now[0])
    works = [ViewWork(ViewDefinition("acme", name, "SCHEDULE EVERY 1 MINUTE SELECT x FROM t"), (), ()) for name in "ab"]
    assert all(computations.is_due(work.definition) for work in works)
    for work in works:
        computations.begin(work)
    assert computations.is_running(("acme", "a")) and not computations.is_due(works[0].definition)
    turns.release(2)
    computations.wait()
    assert computations.is_running(("acme", "a")) and computations.waits()
    assert sorted(work.definition.name for work, _ in computations.take()) == ["a", "b"]
    assert most == [1] and not computations.waits() and not computations.is_running(("acme", "a"))
    now[0] = 60.0
    assert computations.waits() and computations.is_due(works[0].definition)
    changed = ViewDefinition("acme", "a", "SCHEDULE EVERY 2 HOURS SELECT x FROM t")
    assert computations.is_due(changed)
    computations.keep({("acme", "b")})
    assert computations.waits()
    computations.keep(set())
    assert not computations.waits()
