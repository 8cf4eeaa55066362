"""What sinks report, and what tables are then said to be: on their way, held up in a stage, or not known."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from menura.instants import now_us
from menura.lake_report import TABLE_BEHIND, LakePolicy, LakeReply, encode_report
from sqlalchemy import delete

from controlplane_api import lakes
from controlplane_api.api import lake_queries
from controlplane_api.database import Database
from controlplane_api.errors import RequestInvalid
from controlplane_api.models import Lake, LakeSource, LakeStop
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import Problem, TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, dump_event, entry, file, started, stopped
from tests.controlplane_api.lake_facts import PROBLEM, HttpSink, Sink, lake_source, stop, table_of
from tests.controlplane_api.test_api import SHOP, path_of, post, problem
from tests.stack import http_client

HOUR_US = 3_600_000_000


@pytest.fixture
def client(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    # A report stays new however long the test takes; `SILENT` below is older than that.
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 2 * 3600)
    with serving(database) as url, http_client(url) as client:
        yield client


def silent_us() -> int:
    return now_us() - 3 * HOUR_US


@pytest.fixture
def shop(client: httpx.Client, registry: SqlRegistry) -> SqlRegistry:
    """Three tables, two of which stream; the last cut, of two, is in entry 2."""
    facts.record_shop(registry)
    for table in ("orders", "items"):
        post(client, path_of("shop", table, "/start"))
    registry.apply_entry(
        LANDING, entry(1, cut(1, file("orders"), start=[started("orders", 0), started("items", 0)], generation=2))
    )
    registry.apply_entry(LANDING, entry(2, cut(2, file("items"), generation=2)))
    stream(registry)
    return registry


def stream(registry: SqlRegistry, lag_us: int | None = 0) -> None:
    """The agent is there and says that both tables stream."""
    tables = [TableEffective("shop", name, "STREAMING") for name in ("orders", "items")]
    registry.record_effective(KEY, registry.desired(KEY).generation, tables, None, T0)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=lag_us)], facts.fresh_us())


def table(client: httpx.Client, name: str = "orders") -> dict[str, Any]:
    return dict(client.get(path_of("shop", name)).json())


def lake(client: httpx.Client) -> dict[str, Any]:
    (found,) = client.get(SHOP).json()["lakes"]
    return dict(found)


def states(client: httpx.Client) -> dict[str, int]:
    """As the source counts them; pages and filters have to say the same."""
    source = client.get(SHOP).json()
    listed = client.get(f"{SHOP}/tables").json()["tables"]
    counted = {state: sum(each["state"] == state for each in listed) for state in {each["state"] for each in listed}}
    assert source["tables"] == counted
    for state, number in counted.items():
        assert client.get(f"{SHOP}/tables", params={"state": state}).json()["total"] == number
    return counted


def test_table_when_no_sink_reports_then_the_lake_is_not_known_and_the_stream_counts(
    client: httpx.Client, shop: SqlRegistry
):
    assert states(client) == {"streaming": 2, "not_synced": 1}
    assert client.get(SHOP).json()["lakes"] == []
    assert (table(client)["lake"], table(client)["stage"]) == (None, None)


def test_source_when_the_lake_has_all_that_landed_then_its_lag_is_the_sources_and_0_only_at_the_end(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    Sink().tell(database, 0, entry=2, sources=(lake_source(2, commit_us=T0 + 2_000_000),))
    shown = lake(client)
    assert (shown["state"], shown["cut"], shown["cuts_behind"]) == ("following", 2, 0)
    assert (shown["landing_lag_us"], shown["lag_us"]) == (0, 0)
    assert shown["freshness_us"] > HOUR_US
    stream(shop, lag_us=1500)
    assert lake(client)["lag_us"] == 1500
    stream(shop, lag_us=None)
    assert (lake(client)["landing_lag_us"], lake(client)["lag_us"]) == (0, None)
    assert states(client) == {"streaming": 2, "not_synced": 1}
    assert table(client)["lake"]["cut"] == 2


def test_source_when_its_sink_knows_the_logs_entry_alone_then_a_quiet_source_has_a_cut(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    Sink().tell(database, 0, entry=2)
    assert (lake(client)["cut"], lake(client)["lag_us"]) == (2, 0)
    assert lake(client)["freshness_us"] is not None
    Sink("other", landing="/elsewhere").tell(database, 0, entry=99)  # of a log that has nothing of this source
    assert [each["lake"] for each in client.get(SHOP).json()["lakes"]] == ["main"]


def test_source_when_the_lake_is_behind_then_its_lag_is_since_the_first_missing_entry_and_never_0(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink = Sink()
    sink.tell(database, 0, entry=1, waiting_since_us=now_us() - 5_000_000, sources=(lake_source(1),))
    shown = lake(client)
    assert (shown["cut"], shown["cuts_behind"]) == (1, 1)
    assert shown["landing_lag_us"] >= 5_000_000
    assert shown["lag_us"] >= 5_000_000
    assert states(client) == {"streaming": 2, "not_synced": 1}
    sink.tell(database, entry=1, waiting_since_us=now_us() - 61_000_000)
    assert states(client) == {"catching_up": 2, "not_synced": 1}
    assert table(client)["stage"] == "lake"
    sink.tell(database, entry=1, waiting_since_us=now_us() + HOUR_US)  # clocks that differ
    assert lake(client)["lag_us"] == 1


def test_source_when_a_report_has_a_cut_that_the_database_does_not_know_then_lag_is_unknown(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink = Sink()
    sink.tell(database, 0, entry=9, sources=(lake_source(8, entry=9),))
    shown = lake(client)
    assert (shown["cut"], shown["cuts_behind"], shown["landing_lag_us"], shown["lag_us"]) == (8, None, None, None)
    assert shown["state"] == "following"


def test_tables_when_the_sink_says_nothing_then_they_wait_and_lag_and_freshness_are_unknown(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink = Sink()
    sink.tell(database, 0, silent_us(), entry=2, sources=(lake_source(2),))
    shown = lake(client)
    assert (shown["state"], shown["lag_us"], shown["freshness_us"]) == ("unknown", None, None)
    assert states(client) == {"waiting": 2, "not_synced": 1}
    orders = table(client)
    assert (orders["stage"], orders["problem"]["code"], orders["lake"]["state"]) == ("lake", "LAKE_SILENT", "unknown")
    assert "menura lakes --forget main" in orders["problem"]["message"]
    sink.tell(database, at_us=now_us() + 3 * HOUR_US, entry=2)  # this machine's clock has gone back since
    assert states(client) == {"waiting": 2, "not_synced": 1}
    sink.tell(database, entry=2)
    assert states(client) == {"streaming": 2, "not_synced": 1}
    with database.write() as connection:
        lakes.expect_lake(connection, "second", "/data/second", LANDING)  # started, and not heard of yet
    assert states(client) == {"waiting": 2, "not_synced": 1}
    assert post(client, "/api/v1/lakes/second/forget") == {"lake": "second"}
    assert states(client) == {"streaming": 2, "not_synced": 1}
    problem(client.post("/api/v1/lakes/second/forget", json={}), 404, "LAKE_UNKNOWN")


def test_table_when_a_sink_has_stopped_it_then_it_has_failed_in_the_lake_with_the_sinks_words(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink = Sink()
    sink.tell(database, 0, entry=2, sources=(lake_source(2),), stopped=(stop("orders", 2), stop("notes", 2)))
    assert states(client) == {"failed": 1, "streaming": 1, "not_synced": 1}  # notes is not synced
    orders = table(client)
    assert (orders["state"], orders["stage"]) == ("failed", "lake")
    assert orders["problem"] == {
        "code": "DATA_FILE_UNREADABLE", "message": "The file is gone.", "terminal": True, "at_us": T0 + 2,
    }  # fmt: skip
    assert (orders["lake"]["state"], orders["lake"]["cut"], orders["runs"]) == ("failed", 1, True)
    assert orders["lake"]["freshness_us"] > HOUR_US
    assert lake(client)["stopped_tables"] == 2
    assert table(client, "items")["lake"]["state"] == "following"
    assert client.get("/api/v1/lakes").json()["lakes"][0]["stopped_tables"] == 2
    sink.tell(database, entry=2, resumed=(table_of("orders"),))
    assert states(client) == {"streaming": 2, "not_synced": 1}


def test_table_when_it_is_behind_in_a_lake_then_it_catches_up_there_and_has_not_stopped(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink = Sink()
    behind = stop("orders", 2, TABLE_BEHIND, terminal=False, message="Wait: it catches up.")
    sink.tell(database, 0, entry=2, sources=(lake_source(2),), stopped=(behind,))
    assert states(client) == {"catching_up": 1, "streaming": 1, "not_synced": 1}
    orders = table(client)
    assert (orders["stage"], orders["problem"]["code"], orders["lake"]["state"]) == ("lake", TABLE_BEHIND, "behind")
    assert (orders["lake"]["cut"], lake(client)["stopped_tables"]) == (1, 0)
    assert client.get("/api/v1/lakes").json()["lakes"][0]["stopped_tables"] == 0
    shop.record_agent_gone("acme", "agent-1", "run-1", T0)
    assert (table(client)["state"], table(client)["problem"]["code"]) == ("waiting", "AGENT_AWAY")
    sink.tell(database, entry=2, stopped=(stop("orders", 3),))
    assert table(client)["state"] == "failed"


def test_tables_when_their_sink_has_ended_then_they_have_failed_until_it_is_back(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink = Sink()
    sink.tell(database, 0, entry=2)
    sink.tell(database, entry=2, problem=PROBLEM)
    assert states(client) == {"failed": 2, "not_synced": 1}
    assert table(client)["problem"]["code"] == "LOG_ENTRY_UNREADABLE"
    Sink(run="f" * 32).tell(database, 0, entry=2)
    assert states(client) == {"streaming": 2, "not_synced": 1}


@pytest.mark.parametrize(
    ("code", "terminal", "stage"),
    [
        ("SOURCE_REBUILT", True, "source"),
        ("SOURCE_CONNECTION_LOST", False, "source"),
        ("LANDING_FAILED", False, "gateway"),
        ("GATEWAY_REFUSED", True, "gateway"),
    ],
)
def test_tables_when_their_source_or_the_landing_is_in_error_then_each_says_so(
    client: httpx.Client, shop: SqlRegistry, database: Database, code: str, terminal: bool, stage: str
):
    Sink().tell(database, 0, entry=2, stopped=(stop("orders"),))
    shop.record_source_problem(KEY, Problem(code, "It can't be read.", terminal, T0), T0)
    assert states(client) == {"failed": 1, "waiting": 1, "not_synced": 1}
    items = table(client, "items")
    assert (items["state"], items["stage"], items["problem"]["code"]) == ("waiting", stage, code)
    source = client.get(SHOP).json()
    assert (source["stage"], source["stage_problem"]["code"], source["problem"]["code"]) == (stage, code, code)
    assert (table(client)["state"], table(client)["stage"]) == ("failed", "lake")  # the worst one
    shop.record_agent_gone("acme", "agent-1", "run-1", T0)
    left = table(client, "items")["problem"]["code"]
    assert left == (code if terminal else "AGENT_AWAY")  # what waits for somebody does so without its agent too


def test_tables_when_the_agent_is_away_then_they_wait_and_say_so(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    post(client, path_of("shop", "notes", "/start"))  # pending: nobody has told the agent
    shop.record_agent_gone("acme", "agent-1", "run-1", T0)
    assert states(client) == {"waiting": 3}
    notes = table(client, "notes")
    assert (notes["stage"], notes["problem"]["code"]) == ("source", "AGENT_AWAY")
    assert "its agent agent-1 is not connected and was last heard of 2023-11-14" in notes["problem"]["message"]
    post(client, path_of("shop", "notes", "/stop"))
    assert table(client, "notes")["state"] == "stopped"


def test_reports_when_one_is_missing_late_or_of_another_process_then_everything_is_sent_anew(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    assert HttpSink(number=7, client=client).put() == LakeReply(resend=True)  # of a lake that is not known
    assert client.get("/api/v1/lakes").json()["lakes"] == []
    sink = HttpSink(client=client)
    assert not sink.put(base=0, entry=1, stopped=(stop("orders"),)).resend
    assert not sink.put(entry=2).resend
    late = Sink(number=1).report(1, entry=1, resumed=(table_of("orders"),))
    assert client.put("/api/v1/lakes/main", content=encode_report(late), headers=JSON).json()["resend"] is True
    assert table(client)["state"] == "failed"
    sink.number += 1  # one was lost
    assert sink.put(entry=3).resend
    assert HttpSink(run="a" * 32, number=sink.number, client=client).put(entry=3).resend
    with database.write() as connection:  # the database is put back to before the lake
        for model in (LakeStop, LakeSource, Lake):
            connection.execute(delete(model))
    assert sink.put(entry=3).resend
    assert not sink.put(base=0, entry=3).resend


JSON = {"content-type": "application/json"}


def test_reports_when_everything_comes_anew_in_pages_then_stops_stay_until_the_last_page_lacks_them(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    first = Sink()
    first.tell(database, 0, entry=2, more=True, stopped=(stop("orders"),))
    assert table(client, "items")["problem"]["code"] == "LAKE_UNTOLD"  # it may be among those that come
    first.tell(database, entry=2, stopped=(stop("items"),))
    assert states(client) == {"failed": 2, "not_synced": 1}
    second = Sink(run="b" * 32)
    second.tell(database, 0, entry=2, more=True)
    assert states(client) == {"failed": 2, "not_synced": 1}
    second.tell(database, entry=2, stopped=(stop("items"),))
    assert states(client) == {"failed": 1, "streaming": 1, "not_synced": 1}


def test_report_when_the_lake_is_another_under_its_name_then_its_old_cuts_are_forgotten(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    Sink().tell(database, 0, entry=2, sources=(lake_source(2),))
    Sink(run="c" * 32).tell(database, 0, entry=1)
    shown = lake(client)
    assert (shown["cut"], shown["cuts_behind"]) == (None, None)
    assert shown["lag_us"] != 0


def test_report_when_there_are_too_many_lakes_or_stops_then_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lakes, "MAX_LAKES", 2)
    monkeypatch.setattr(lakes, "MAX_STOPS", 2)
    sink = Sink()
    sink.tell(database, 0, stopped=(stop("a"), stop("b")))
    Sink("second").tell(database, 0)
    with pytest.raises(RequestInvalid, match="menura lakes --forget"):
        Sink("third").tell(database, 0)
    with pytest.raises(RequestInvalid, match="more than 2 stopped tables"):
        sink.tell(database, stopped=(stop("c"),))


def test_report_when_it_is_none_or_of_another_lake_then_a_problem_says_so_and_nothing_is_stored(client: httpx.Client):
    for body in (b"{}", b"[]", b"{", json.dumps({"format": 1}).encode()):
        problem(client.put("/api/v1/lakes/main", content=body, headers=JSON), 422, "REQUEST_INVALID")
    report = encode_report(Sink("other").report(0))
    problem(client.put("/api/v1/lakes/main", content=report, headers=JSON), 422, "REQUEST_INVALID")
    problem(client.put("/api/v1/lakes/MAIN", content=report, headers=JSON), 422, "REQUEST_INVALID")
    problem(client.put("/api/v1/lakes/other", content=report), 403, "CROSS_SITE_REFUSED")
    assert client.get("/api/v1/lakes").json()["lakes"] == []


@pytest.mark.long
def test_ten_thousand_tables_when_many_have_stopped_then_counts_and_pages_say_so(
    client: httpx.Client, registry: SqlRegistry, database: Database
):
    names = [f"t{number:05}" for number in range(10_000)]
    facts.record_shop(registry, *names)
    post(client, f"{SHOP}/start", {"tables": "all"})
    registry.record_effective(KEY, 1, [TableEffective("shop", name, "STREAMING") for name in names], None, T0)
    sink = Sink()
    for begin in range(0, 5_000, 1_000):
        stops = tuple(stop(name) for name in names[begin : begin + 1_000])
        sink.tell(database, 0 if begin == 0 else None, entry=2, more=begin < 4_000, stopped=stops)
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started(name, 0) for name in names])))
    registry.apply_entry(LANDING, entry(2, cut(2)))
    assert client.get(SHOP).json()["tables"] == {"failed": 5_000, "streaming": 5_000}
    page = client.get(f"{SHOP}/tables", params={"state": "failed", "limit": 1_000}).json()
    assert (page["total"], {each["stage"] for each in page["tables"]}) == (5_000, {"lake"})


def test_retry_when_a_sink_has_stopped_the_table_then_the_sink_is_asked_until_it_has_tried(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink = HttpSink(client=client)
    sink.put(base=0, entry=2, stopped=(stop("orders"),))
    outcomes = post(client, f"{SHOP}/retry", {"tables": "all"})["tables"]
    assert [(each["table"], each["changed"]) for each in outcomes] == [("orders", True)]
    assert "with its next report" in outcomes[0]["notice"]
    assert table(client)["lake"]["retries"] is True
    assert sink.put(entry=2).retry == (table_of("orders"),)
    assert sink.put(entry=2).retry == (table_of("orders"),)  # it may not have heard the first reply
    assert sink.put(entry=2, stopped=(stop("orders", at_us=T0 + 99),)).retry == ()  # tried, in vain
    assert table(client)["lake"]["retries"] is False
    assert post(client, path_of("shop", "orders", "/retry"))["changed"] is True
    assert post(client, path_of("shop", "items", "/retry"))["notice"] == "Nothing of it has stopped."
    problem(client.post(path_of("shop", "notes", "/retry"), json={}), 409, "SYNC_NOT_RUNNING")
    problem(client.post(path_of("shop", "nowhere", "/retry"), json={}), 404, "TABLE_UNKNOWN")


def test_retry_when_the_sync_failed_then_it_goes_on_where_it_stopped(client: httpx.Client, shop: SqlRegistry):
    shop.apply_entry(LANDING, entry(3, cut(3, stop=[stopped("orders", 3)], generation=2)))
    assert (table(client)["state"], table(client)["stage"], table(client)["runs"]) == ("failed", "source", False)
    outcomes = post(client, f"{SHOP}/retry", {"tables": "all"})["tables"]
    assert [(each["table"], each["changed"]) for each in outcomes] == [("orders", True)]
    resumed = {each.table: each.start_position for each in shop.desired(KEY).tables}
    assert resumed == {"items": None, "orders": facts.at(3)}


def resync(client: httpx.Client, name: str) -> str:
    """UUID of the dump that the table begins anew with."""
    (outcome,) = post(client, f"{SHOP}/resync", {"tables": [{"database": "shop", "table": name}]})["tables"]
    assert outcome["refused"] is None
    assert outcome["changed"]
    return str(outcome["dump"])


def test_resync_when_tables_stream_failed_stopped_wait_or_never_ran_then_each_begins_anew_with_a_dump(
    client: httpx.Client, shop: SqlRegistry
):
    shop.apply_entry(LANDING, entry(3, cut(3, stop=[stopped("items", 3)], generation=2)))
    made = {name: resync(client, name) for name in ("orders", "items", "notes")}  # streams, failed, never ran
    assert {each.table: each.start_dump for each in shop.desired(KEY).tables} == made
    assert {each.dump for each in shop.dumps(KEY).dumps} == set(made.values())
    again = {name: resync(client, name) for name in ("orders", "items", "notes")}  # all wait for their dumps
    assert {each.table: each.start_dump for each in shop.desired(KEY).tables} == again
    assert {each.dump for each in shop.dumps(KEY).dumps} == set(again.values())
    ended = client.get(f"{SHOP}/dumps/{made['orders']}").json()
    assert (ended["state"], ended["problem"]["code"]) == ("cancelled", "DUMP_BEGUN_ANEW")
    post(client, path_of("shop", "orders", "/stop"))
    last = resync(client, "orders")
    assert {each.table: each.start_dump for each in shop.desired(KEY).tables}["orders"] == last
    generation = shop.desired(KEY).generation
    begun = [dump_event("orders", 40, "DUMP_STARTED", last)]
    shop.apply_entry(LANDING, entry(4, cut(4, start=[started("orders", 4)], events=begun, generation=generation)))
    assert "is not done" in table(client)["earlier_rows_missing"]
    done = [dump_event("orders", 60, "DUMPED", last, before=40)]
    shop.apply_entry(LANDING, entry(5, cut(5, events=done, generation=generation)))
    assert (table(client)["earlier_rows_missing"], table(client)["dump"]) == ("", None)


def test_resync_when_a_table_is_unknown_denied_or_gone_then_refused_and_others_begin(
    client: httpx.Client, shop: SqlRegistry
):
    tables = [facts.table_seen("orders"), facts.table_seen("items", denied=True)]
    facts.record_cartography(shop, KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    named = [{"database": "shop", "table": name} for name in ("orders", "items", "notes", "nowhere")]
    outcomes = post(client, f"{SHOP}/resync", {"tables": named})["tables"]
    codes = [each["refused"] and each["refused"]["code"] for each in outcomes]
    assert codes == [None, "TABLE_DENIED", "TABLE_UNKNOWN", "TABLE_UNKNOWN"]
    assert [each["table"] for each in post(client, f"{SHOP}/resync", {"tables": "all"})["tables"]] == ["orders"]
    problem(client.post(path_of("shop", "items", "/resync"), json={}), 409, "TABLE_DENIED")
    options = {"dump": {"priority": 5, "limits": {"workers": 2}}}
    assert post(client, path_of("shop", "orders", "/resync"), options)["dump"]["priority"] == 5


def test_sinks_when_asked_for_while_the_clock_is_before_their_last_report_then_they_are_not_known(database: Database):
    Sink().tell(database, 0, now_us() + HOUR_US)
    with database.read() as connection:
        assert [str(each.state) for each in lake_queries.sinks(connection, now_us(), limit=1).lakes] == ["unknown"]


def test_policies_when_a_sink_tells_them_then_tables_say_them_until_it_takes_them_back(
    client: httpx.Client, shop: SqlRegistry, database: Database
):
    sink, said = HttpSink(client=client), "ignore: columns of the source that are not followed: c"
    told = LakePolicy("acme", "shop", "shop", "orders", said)
    sink.put(base=0, entry=2, policies=(told, LakePolicy("acme", "shop", "shop", "items", said)))
    sink.put(entry=2)
    assert table(client)["lake"]["schema_changes"] == said
    page = client.get(f"{SHOP}/tables").json()["tables"]
    assert {each["table"] for each in page if each["lake"] and each["lake"]["schema_changes"]} == {"orders", "items"}
    sink.put(entry=2, policies=(replace(told, said=""),))
    assert table(client)["lake"]["schema_changes"] == ""
    sink.put(entry=2, policies=(replace(told, said="other"),) * 2)
    assert table(client)["lake"]["schema_changes"] == "other"
    sink.put(base=0, entry=2)  # another process of the sink, which tells all anew
    assert table(client)["lake"]["schema_changes"] == ""
    sink.put(entry=2, policies=(told,))
    with database.write() as connection:
        lakes.forget_lake(connection, sink.lake)
