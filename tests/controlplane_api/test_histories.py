"""How sources were of late: points by stage, their bounds, and the API's answer."""

import sys
from dataclasses import replace

import pytest

from controlplane_api.api import histories
from controlplane_api.api.histories import COARSE_POINTS, FINE_OF_COARSE, FINE_POINTS, Histories, Points, Seen
from controlplane_api.api.history_queries import look
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, file
from tests.controlplane_api.lake_facts import Sink, lake_source
from tests.stack import http_client, wait_for

S = 1_000_000
START = 1_700_000_000 * S
CALM = Seen(
    "acme", "shop", lag_us=0, rows_per_second=5.0, has_landed=True, cut=1, committed_at_us=START, rows=100, lake_cut=1,
    lake_lag_us=0,
)  # fmt: skip


def of_shop(kept: Histories, *, coarse: bool = False) -> Points:
    points = kept.of("acme", "shop", coarse=coarse)
    assert points is not None
    return points


def after(*seen: Seen) -> list[list[float | None]]:
    """The columns after looks at these, ten seconds apart."""
    kept = Histories(START)
    for number, each in enumerate(seen):
        kept.take(START + number * 10 * S, [each])
    return of_shop(kept).columns


def test_history_when_a_source_is_looked_at_then_lag_and_speed_of_each_stage_are_told() -> None:
    columns = after(
        CALM,
        replace(CALM, lag_us=3 * S, rows=150, cut=2, lake_lag_us=4 * S),
        replace(CALM, rows=150, cut=2, lake_cut=2),
    )
    assert columns == [[0, 3, 0], [0, 3, 0], [0, 4, 0], [5, 5, 5], [None, 5, 0], [None, 0, 5]]


def test_history_when_something_is_not_known_then_it_is_a_gap_and_no_zero() -> None:
    away = replace(CALM, lag_us=None, rows_per_second=None, lake_cut=None, lake_lag_us=None)
    columns = after(CALM, away, CALM)
    assert [column[1] for column in columns] == [None, None, None, None, 0, None]
    assert columns[5] == [None, None, None], "what the lake had between is not known"


def test_landed_lag_when_what_was_read_has_not_landed_then_counts_from_the_last_cut_or_the_last_time_that_all_had() -> (
    None
):
    behind = replace(CALM, lag_us=S, has_landed=False)
    assert after(CALM, behind, behind)[1] == [0, 11, 21]
    assert after(replace(behind, committed_at_us=0))[1] == [None]
    late = replace(behind, committed_at_us=START + 15 * S)
    assert after(CALM, behind, late)[1] == [0, 11, 6]


def test_history_when_a_landing_begins_anew_then_no_rate_is_negative() -> None:
    assert after(replace(CALM, cut=9, rows=900, lake_cut=9), CALM, CALM)[4:] == [[None, None, 0], [None, None, 0]]


def test_history_when_days_pass_then_it_keeps_an_hour_and_a_day_and_no_more() -> None:
    kept = Histories(START)
    for number in range(FINE_OF_COARSE * COARSE_POINTS + 2 * FINE_OF_COARSE):
        kept.take(START + number * 10 * S, [replace(CALM, lag_us=number * S)])
    fine, coarse = of_shop(kept), of_shop(kept, coarse=True)
    assert (len(fine.at_us), {len(column) for column in fine.columns}) == (FINE_POINTS, {FINE_POINTS})
    assert (len(coarse.at_us), {len(column) for column in coarse.columns}) == (COARSE_POINTS, {COARSE_POINTS})
    assert fine.at_us[-1] - fine.at_us[0] == (FINE_POINTS - 1) * 10 * S
    assert coarse.at_us[1] - coarse.at_us[0] == 300 * S
    assert coarse.columns[0][-1] == number, "the largest lag of the five minutes"
    assert bytes_of(kept) < 20_000


@pytest.mark.parametrize(("lake_cut", "most_bytes"), [(None, 1_000), (1, 10_000)])
def test_history_when_a_source_lands_cuts_that_no_lake_has_then_few_of_them_are_kept(
    lake_cut: int | None, most_bytes: int
) -> None:
    kept = Histories(START)
    for number in range(FINE_POINTS):
        committed = START + number * 10 * S
        kept.take(committed, [replace(CALM, cut=1_000 + number, rows=1_000 * number + 500, lake_cut=lake_cut)])
    past = kept._pasts["acme", "shop"]
    assert bytes_of(kept) - sys.getsizeof(past.fine) - sys.getsizeof(past.coarse) < most_bytes


def bytes_of(kept: Histories) -> int:
    past = kept._pasts["acme", "shop"]
    cuts = sum(sys.getsizeof(pair) + sum(map(sys.getsizeof, pair)) for pair in past._cuts)
    return sum(map(sys.getsizeof, (past.fine, past.coarse, past._cuts))) + cuts


def test_history_when_a_source_comes_later_or_goes_then_points_have_their_own_times_and_nothing_stays() -> None:
    kept = Histories(START)
    other = replace(CALM, source="factory")
    kept.take(START, [other])
    kept.take(START + S, [other, CALM])
    assert of_shop(kept).at_us == [START + S]
    kept.take(START + 2 * S, [CALM])
    assert kept.of("acme", "factory", coarse=False) is None
    assert kept.of("globex", "shop", coarse=False) is None


def test_look_when_a_source_lands_and_a_lake_follows_then_sees_each_stage(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 2 * 3600)  # the sink's clock stands ahead
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=5)], facts.fresh_us())
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 70))))
    with database.read() as connection:
        (alone,) = look(connection)
    assert (alone.tenant, alone.source, alone.lag_us, alone.cut, alone.rows) == ("acme", "shop", 5, 1, 70)
    assert (alone.has_landed, alone.lake_cut, alone.lake_lag_us) == (False, None, None)
    Sink().tell(database, 0, entry=1, sources=(lake_source(1),))
    with database.read() as connection:
        (followed,) = look(connection)
    assert (followed.lake_cut, followed.lake_lag_us) == (1, 5)


def test_history_when_it_is_asked_for_then_the_api_tells_what_it_has_seen(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "STEP_SECONDS", 0.1)
    facts.record_shop(registry)
    with serving(database) as url, http_client(url) as client:
        path = f"/api/v1/tenants/{KEY.tenant}/sources/{KEY.source}/history"
        assert client.get(path.replace("shop", "none")).status_code == 404
        told = wait_for("two points", lambda: (got := client.get(path).json())["at_us"][1:] and got)
        assert told["is_kept"] and told["since_us"] < told["at_us"][0] < told["at_us"][1]
        assert {len(told[name]) for name in told if name.endswith(("_lag_seconds", "per_second"))} == {
            len(told["at_us"])
        }
        day = client.get(path, params={"span": "day"}).json()
        assert (day["step_seconds"], day["is_kept"]) == (300, True)
        assert client.get(path, params={"span": "year"}).status_code == 422
