"""Views that are recomputed on a schedule hold what Spark SQL says of their queries."""

from collections.abc import Iterator
from pathlib import Path
from threading import Event as Stop

import pytest
from menura.views.definition import ViewDefinition, encode_views
from pyspark.sql import SparkSession

from spark_sink.ingest.status import SinkStatus
from spark_sink.running import run
from tests.spark_sink.scheduled_views import HOUR_US, TEXTS, clock_of, scheduled
from tests.spark_sink.test_views_spark import plain, settings_of, spark_rows
from tests.spark_sink.view_model import World, in_lake

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROUNDS = 3
PARTITIONS = "spark.sql.shuffle.partitions"


@pytest.fixture
def one_partition(session: SparkSession) -> Iterator[None]:
    before = session.conf.get(PARTITIONS)
    session.conf.set(PARTITIONS, "1")
    yield
    session.conf.set(PARTITIONS, before)


def test_scheduled_views_when_their_tables_change_then_each_recomputation_equals_spark_sql(
    session: SparkSession, one_partition: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = clock_of(monkeypatch)
    world = World(tmp_path, 5)
    world.want(**{name: scheduled(name) for name in TEXTS})
    held: set[str] = set()
    for _ in range(ROUNDS):
        world.land(40)
        world.apply()
        world.sink.stop(0, finish=True)
        assert [state for state in world.sink.states() if state.state != "following"] == []
        for name, text in TEXTS.items():
            rows = spark_rows(session, world, text(plain))
            assert world.held(name) == rows == world.replayed(name), text(plain)
            held |= {name} if len(rows) > 1 or name == "whole" else set()
        clock.now += HOUR_US
    assert held == set(TEXTS)


def test_a_sink_when_a_view_has_a_schedule_then_its_tasks_recompute_it_and_views_on_it_follow(
    session: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path, 9)
    definitions = tmp_path / "views.json"
    texts = {
        "many_to_many": scheduled("many_to_many")(in_lake),
        "on_it": "SELECT m.person, count(*) AS n FROM many_to_many m GROUP BY m.person",
        "slow": "SCHEDULE EVERY 1 DAY AS SELECT count(*) AS n FROM shop.app.orders o WHERE o.id IN (SELECT upper('x'))",
    }
    definitions.write_text(encode_views([ViewDefinition("acme", name, text) for name, text in texts.items()]))
    world.land(60)
    status = SinkStatus()
    run(session, settings_of(world, definitions), Stop(), status)
    states = {state.name: (state.state, state.code) for state in status.now().views}
    assert states == {
        "many_to_many": ("following", ""),
        "on_it": ("following", ""),
        "slow": ("stopped", "VIEW_REFUSED"),
    }
    assert world.held("many_to_many") == spark_rows(session, world, TEXTS["many_to_many"](plain))
    assert sum(int(str(row[1])) for row in world.held("on_it")) == len(world.held("many_to_many")) > 0
