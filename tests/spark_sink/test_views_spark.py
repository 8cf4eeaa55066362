"""Views of a running sink, against Spark SQL over the tables' current states."""

from functools import partial
from pathlib import Path
from threading import Event as Stop

import pytest
from menura.views.definition import ViewDefinition, encode_views
from pyspark.sql import SparkSession

from spark_sink.ingest import views as ingest_views
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.reading_at import lake_at
from spark_sink.running import run
from spark_sink.views.maintain import view_table_id
from spark_sink.views.store_folders import StoreSettings
from tests.spark_sink.landing import table_id
from tests.spark_sink.view_model import SOURCES, TABLES, Named, World, in_lake, texts, values


def settings_of(world: World, definitions: Path) -> SinkSettings:
    return SinkSettings(
        str(world.writer.folder),
        str(world.lake),
        str(world.folder / "checkpoint"),
        available_now=True,
        views=str(definitions),
        view_stores=str(world.folder / "of-the-sink"),
    )


def spark_rows(session: SparkSession, world: World, text: str) -> list[tuple[object, ...]]:
    found = lake_at(str(world.lake), groups=[("acme", source) for source in ("shop", "crm")])
    found.create_views(session, {table_id(TABLES[name], source=source): name for name, source in SOURCES.items()})
    return sorted((values(row.asDict()) for row in session.sql(text).collect()), key=repr)


def plain(name: str) -> str:
    return name


def averages(named: Named) -> str:
    """Of thirds, whose last digit is rounded."""
    return (
        f"SELECT o.note, avg(o.total) AS mean, avg(o.total * o.qty) AS worth FROM {named('orders')} o GROUP BY o.note"
    )


def test_views_of_a_sink_when_it_has_done_its_log_then_they_equal_spark_sql(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_views, "StoreSettings", partial(StoreSettings, least_rows=0))
    world = World(tmp_path, 11)
    world.views = {**texts(12, 8), "averages": averages}
    definitions = tmp_path / "views.json"
    wanted = [ViewDefinition("acme", name, text(in_lake)) for name, text in world.views.items()]
    definitions.write_text(
        encode_views([*wanted, ViewDefinition("acme", "wrong", "SELECT upper(o.note) AS u FROM shop.app.orders o")])
    )
    for _ in range(2):
        world.land(40)
        world.followed += 2
        status = SinkStatus()
        run(session, settings_of(world, definitions), Stop(), status)
        states = {state.name: state for state in status.now().views}
        assert states.pop("wrong").code == "VIEW_REFUSED"
        assert {state.state for state in states.values()} == {"following"}
        for name, text in world.views.items():
            assert world.held(name) == spark_rows(session, world, text(plain)), text(in_lake)
    found = lake_at(str(world.lake), [view_table_id("acme", name) for name in world.views])
    assert [each.note for each in found.tables] == [""] * len(world.views)
    assert list((tmp_path / "of-the-sink").glob("*/*/*/manifest"))
    definitions.write_text(encode_views([]))
    world.land(40)
    run(session, settings_of(world, definitions), Stop(), SinkStatus())
    assert list((tmp_path / "of-the-sink").glob("*/*")) == []
