"""Views whose turns are on a machine with another clock than the driver's: the driver's decides when a turn is due."""

import threading
from pathlib import Path

import pytest
from menura.views.definition import ViewDefinition

from spark_sink.ingest.divided_views import run_views
from spark_sink.ingest.view_task import ViewOutcome, ViewSettings
from spark_sink.ingest.views import Views
from spark_sink.lake.records import Records
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.views.maintain import ViewWork
from tests.spark_sink.scheduled_views import HOUR_US, Clock, clock_of
from tests.spark_sink.test_scheduled_views import text_of, turned
from tests.spark_sink.view_model import World, in_lake, one_by_one

MINUTE_US = HOUR_US // 60
WAITS = Waiting(3600, -1, part_of_table=1e9)


class Apart:
    """A sink whose turns are on a machine whose clock is `ahead_us` ahead of the driver's; `turns`: when they were."""

    def __init__(self, folder: Path, clock: Clock, ahead_us: int, waiting: Waiting, view: str) -> None:
        self.world = World(folder, 5, stores=False)
        self.world.land(40)
        self.world.apply()
        self.clock = clock
        self.turns: list[int] = []
        settings = ViewSettings(str(self.world.lake), waiting, KEEP_HOURS)

        def run(works: list[ViewWork]) -> list[ViewOutcome]:
            self.turns.append(clock.now)
            clock.now += ahead_us
            try:
                return run_views(settings, one_by_one, works)
            finally:
                clock.now -= ahead_us

        lake = str(self.world.lake)
        self.world.sink = Views(lake, Records(lake), run, threading.Lock())  # type: ignore[arg-type]
        self.world.sink.want([ViewDefinition("acme", "v", view)])

    def looks(self, minutes: int) -> list[int]:
        """The minutes of turns, of a driver that looks each minute whether the view waits for one."""
        began, first = self.clock.now, len(self.turns)
        for _ in range(minutes):
            self.clock.now += MINUTE_US
            if self.world.sink._waits():
                turned(self.world)
        return [(at - began) // MINUTE_US for at in self.turns[first:]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return clock_of(monkeypatch)


@pytest.mark.parametrize("minutes", [-90, -30, 30])
def test_a_scheduled_view_when_its_turns_have_another_clock_then_it_is_computed_each_hour_once(
    tmp_path: Path, clock: Clock, minutes: int
) -> None:
    text = text_of("SELECT o.id, o.qty FROM {orders} o")(in_lake)
    apart = Apart(tmp_path, clock, minutes * MINUTE_US, AT_ONCE, text)
    began = clock.now
    assert turned(apart.world) == {"v": ("following", "")}
    assert apart.looks(185) == [60, 120, 180]
    (state,) = apart.world.sink.states()
    assert state.applied_at_us == began + 180 * MINUTE_US
    assert state.version == 4


@pytest.mark.parametrize("minutes", [-90, -30, 30])
def test_a_followed_view_when_its_turns_have_another_clock_then_what_waits_is_merged_once_it_is_due(
    tmp_path: Path, clock: Clock, minutes: int
) -> None:
    apart = Apart(tmp_path, clock, minutes * MINUTE_US, WAITS, f"SELECT o.id, o.qty FROM {in_lake('orders')} o")
    assert turned(apart.world) == {"v": ("following", "")}
    apart.world.land(20)
    apart.world.apply()
    assert turned(apart.world) == {"v": ("following", "")}
    assert apart.looks(130) == [60]
