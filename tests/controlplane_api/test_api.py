import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from menura.instants import now_us
from menura.naming import url_segment

from controlplane_api.api.app import check_listen, parse_listen
from controlplane_api.database import Database
from controlplane_api.errors import ListenRefused
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import HeartbeatSeen, Problem, SourceKey, TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, file, started, stopped
from tests.stack import http_client

SHOP = "/api/v1/tenants/acme/sources/shop"
HOSTILE = [
    "a/b", "../../etc/passwd", "%2F", "x%00y", "a b", "a?b#c", "ä☃", "<img src=x onerror=alert(1)>",
    "'; DROP TABLE sync; --", '"', "\\", "a+b", "a%b_c", ".", "..", "...", "~.", "~~..", "~x", "`", "\u202e", "a\tb",
]  # fmt: skip


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


def path_of(database: str, table: str, word: str = "") -> str:
    return f"{SHOP}/tables/{url_segment(database)}/{url_segment(table)}{word}"


def post(client: httpx.Client, path: str, body: Any = None) -> Any:
    answer = client.post(path, json=body or {})
    assert answer.is_success, answer.text
    return answer.json()


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    body = answer.json()
    assert body["code"] == code
    assert body["status"] == status
    return body


def test_fleet_when_empty_then_says_so(client: httpx.Client):
    fleet = client.get("/api/v1/tenants/default/fleet").json()
    assert (fleet["agents"], fleet["sources"]) == ([], [])
    assert client.get("/api/v1/fleet").json() == {"tenants": [], "next_cursor": None}
    problem(client.get("/api/v1/tenants/default/sources/shop"), 404, "SOURCE_UNKNOWN")


def test_status_when_table_streams_then_has_lag_positions_rows_and_freshness(
    client: httpx.Client, registry: SqlRegistry
):
    facts.record_shop(registry)
    post(client, path_of("shop", "orders", "/start"))
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 7), start=[started("orders", 0, "rows before 0")])))
    registry.record_effective(KEY, 1, [TableEffective("shop", "orders", "STREAMING", None, ("note",))], None, T0)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=1500)], facts.fresh_us())
    before = now_us()
    source = client.get(SHOP).json()
    after = now_us()
    assert source["connected"] is True
    assert (source["lag_us"], source["rows"], source["committed_cut"]) == (1500, 7, 1)
    assert source["tables"] == {"streaming": 1, "not_synced": 2}
    assert source["committed_position"] == f"{facts.UUID}:1-1"
    assert source["source_position"] == f"{facts.UUID}:1-77"
    assert before <= source["freshness_us"] + source["last_commit_timestamp_us"] <= after
    table = client.get(path_of("shop", "orders")).json()
    assert (table["state"], table["rows"], table["position"]) == ("streaming", 7, f"{facts.UUID}:1-1")
    assert table["earlier_rows_missing"] == "rows before 0"
    assert table["ignored_columns"] == ["note"]
    assert [column["name"] for column in table["columns"]] == ["id", "note"]
    assert table["keys"] == [{"name": "PRIMARY", "unique": True, "columns": ["id"]}]


def test_lag_when_agent_is_gone_then_unknown(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
):
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], facts.fresh_us())
    assert client.get(SHOP).json()["lag_us"] == 0
    registry.record_agent_gone("acme", "agent-1", "run-1", T0)
    assert client.get(SHOP).json()["lag_us"] is None
    assert client.get("/api/v1/tenants/acme/agents").json()["agents"][0]["connected"] is False
    facts.record_heartbeat(
        registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], T0
    )  # long ago: its gateway died
    assert client.get(SHOP).json()["lag_us"] is None
    monkeypatch.setattr("controlplane_api.api.source_queries.HEALTH_SECONDS", 3)
    seconds_ago = now_us() - 4_000_000  # the agent counts as connected, its figures are old
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], seconds_ago)
    source = client.get(SHOP).json()
    assert (source["connected"], source["lag_us"], source["rows_per_second"]) == (True, None, None)
    for interval_ms, lag_us in ((5_000, 0), (1_000, None)):  # with many agents each is heard less often
        beat = HeartbeatSeen("acme", "agent-1", 1, 1, [facts.health(lag_us=0)], now_us() - 6_000_000, interval_ms)
        registry.record_heartbeats([beat])
        assert client.get(SHOP).json()["lag_us"] == lag_us


def test_agent_when_the_clock_has_gone_back_behind_its_last_word_then_it_counts_as_gone_until_it_says_more(
    client: httpx.Client, registry: SqlRegistry
):
    hours_later = now_us() + 4 * 3_600_000_000
    facts.record_shop(registry)
    registry.record_agent(replace(facts.agent_seen("acme", [KEY.source]), at_us=hours_later))
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], hours_later)
    source = client.get(SHOP).json()
    assert (source["connected"], source["lag_us"]) == (False, None)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], now_us())
    source = client.get(SHOP).json()
    assert (source["connected"], source["lag_us"]) == (True, 0)


def test_start_and_stop_when_posted_then_desired_state_follows(client: httpx.Client, registry: SqlRegistry):
    facts.record_shop(registry)
    answer = post(client, path_of("shop", "orders", "/start"), {"start": "now"})
    assert (answer["changed"], answer["state"], answer["start"]) == (True, "pending", "now")
    assert "will be missing" in answer["notice"]
    assert registry.desired(KEY).tables[0].start_now
    assert post(client, path_of("shop", "orders", "/start"))["changed"] is False
    refused = client.post(path_of("shop", "orders", "/start"), json={"start": "oldest"})
    assert "runs already" in problem(refused, 409, "SYNC_RUNNING")["found"]
    assert post(client, path_of("shop", "orders", "/stop"))["state"] == "stopped"
    position = f"{facts.UUID}:1-5,\n{facts.UUID[::-1]}:1"
    answer = post(client, path_of("shop", "orders", "/start"), {"start": {"position": position}})
    assert answer["notice"]
    assert registry.desired(KEY).tables[0].start_text == position


@pytest.mark.parametrize("begin", ["resume", "oldest", "now", "dump", {"position": f"{facts.UUID}:1-5"}], ids=str)
def test_start_when_the_sync_was_stopped_a_moment_before_then_is_taken_whatever_the_agent_has_said(
    client: httpx.Client, registry: SqlRegistry, begin: object
):
    """No agent has heard of the stop."""
    facts.record_shop(registry)
    post(client, path_of("shop", "orders", "/start"), {"start": "dump"})
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 7), start=[started("orders", 0, "rows before 0")])))
    for number in (2, 3):
        assert post(client, path_of("shop", "orders", "/stop"))["changed"] is True
        registry.apply_entry(LANDING, entry(number, cut(number, file("orders", 1))))
        answer = post(client, path_of("shop", "orders", "/start"), {"start": begin})
        assert (answer["changed"], answer["state"]) == (True, "pending")


@pytest.mark.parametrize("position", ["", " \n", "\x00", "\u202e0-1-7", "x" * 70_000])
def test_start_when_position_is_no_text_then_refused(client: httpx.Client, registry: SqlRegistry, position: str):
    facts.record_shop(registry)
    answer = client.post(path_of("shop", "orders", "/start"), json={"start": {"position": position}})
    assert "as the server writes it" in problem(answer, 422, "REQUEST_INVALID")["remedy"]
    assert registry.generations([KEY]) == {KEY: 0}


def test_events_of_a_table_when_asked_for_then_the_last_one_comes_first(client: httpx.Client, registry: SqlRegistry):
    facts.record_shop(registry)
    events = [facts.event("orders", 3, "ALTERED"), facts.event("orders", 5), facts.event("items", 6)]
    registry.apply_entry(LANDING, entry(1, cut(1, events=events)))
    found = client.get(path_of("shop", "orders", "/events")).json()["events"]
    assert [(each["gsn"], each["kind"], each["removes_rows"]) for each in found] == [
        (5, "TRUNCATED", True),
        (3, "ALTERED", False),
    ]
    assert found[1]["statement"] == "ALTERED orders" and found[1]["new_name"] == []
    assert client.get(path_of("shop", "notes", "/events")).json() == {"events": []}
    assert client.get(path_of("shop", "nowhere", "/events")).json()["code"] == "TABLE_UNKNOWN"


def test_bulk_start_when_some_tables_cannot_then_each_has_its_outcome(client: httpx.Client, registry: SqlRegistry):
    registry.record_agent(facts.agent_seen())
    tables = [facts.table_seen("orders"), facts.table_seen("items"), facts.table_seen("secrets", denied=True)]
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    named = [{"database": "shop", "table": name} for name in ("orders", "secrets", "nowhere", "orders")]
    outcomes = post(client, f"{SHOP}/start", {"tables": named, "start": "oldest"})
    assert outcomes["generation"] == 1
    codes = [each["refused"] and each["refused"]["code"] for each in outcomes["tables"]]
    assert codes == [None, "TABLE_DENIED", "TABLE_UNKNOWN"]
    outcomes = post(client, f"{SHOP}/start", {"tables": "all"})
    assert [(each["table"], each["changed"]) for each in outcomes["tables"]] == [("items", True), ("orders", False)]
    outcomes = post(client, f"{SHOP}/stop", {"tables": "all"})
    assert [each["table"] for each in outcomes["tables"]] == ["items", "orders"]
    assert registry.desired(KEY).tables == ()


def test_failed_table_when_asked_for_then_says_why_and_starts_again_where_it_stopped(
    client: httpx.Client, registry: SqlRegistry
):
    facts.record_shop(registry)
    post(client, path_of("shop", "orders", "/start"))
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)])))
    registry.apply_entry(LANDING, entry(2, cut(2, stop=[stopped("orders", 2)])))
    table = client.get(path_of("shop", "orders")).json()
    assert (table["state"], table["problem"]["code"]) == ("failed", "EVENT_UNKNOWN")
    assert table["position"] == f"{facts.UUID}:1-2"
    assert client.get(f"{SHOP}/tables", params={"state": "failed"}).json()["total"] == 1
    assert post(client, path_of("shop", "orders", "/start"))["problem"] is None
    assert registry.desired(KEY).tables[0].start_position == facts.at(2)


def test_tables_when_filtered_and_paged_then_every_match_comes_once(client: httpx.Client, registry: SqlRegistry):
    facts.record_shop(registry, *(f"table_{number:03}" for number in range(250)), "Orders", "100%_off")
    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        page = client.get(f"{SHOP}/tables", params={"text": "TABLE_", "cursor": cursor, "limit": 100}).json()
        assert page["total"] == 250
        seen += [table["table"] for table in page["tables"]]
        cursor = page["next_cursor"]
    assert seen == sorted(set(seen))
    assert len(seen) == 250
    for text, total in (("0%_", 1), ("shop.orders", 1), ("", 252), ("nothing", 0)):
        assert client.get(f"{SHOP}/tables", params={"text": text}).json()["total"] == total
    post(client, path_of("shop", "Orders", "/start"))
    assert client.get(f"{SHOP}/tables", params={"synced": True}).json()["total"] == 1
    assert client.get(f"{SHOP}/tables", params={"state": ["pending", "not_synced"]}).json()["total"] == 252
    problem(client.get(f"{SHOP}/tables", params={"cursor": "nonsense"}), 422, "REQUEST_INVALID")
    problem(client.get(f"{SHOP}/tables", params={"limit": 100_000}), 422, "REQUEST_INVALID")


@pytest.mark.parametrize("name", HOSTILE)
def test_path_when_names_are_hostile_then_means_that_table(client: httpx.Client, registry: SqlRegistry, name: str):
    registry.record_agent(facts.agent_seen())
    tables = [facts.table_seen(name, database=name), facts.table_seen("innocent")]
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, tables, T0)
    table = client.get(path_of(name, name)).json()
    assert (table["database"], table["table"]) == (name, name)
    assert post(client, path_of(name, name, "/start"), {"start": "oldest"})["changed"]
    assert [(each.database, each.table) for each in registry.desired(KEY).tables] == [(name, name)]
    assert post(client, f"{SHOP}/stop", {"tables": [{"database": name, "table": name}]})["tables"][0]["changed"]
    assert client.get(f"{SHOP}/tables", params={"text": name}).json()["tables"][0]["table"] == name


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/tenants/ACME/fleet", 422, "REQUEST_INVALID"),
        ("/api/v1/tenants/%2e%2e/fleet", 422, "REQUEST_INVALID"),
        ("/api/v1/tenants/acme%2Ffleet", 404, "PATH_UNKNOWN"),
        (f"{SHOP}/tables/%FF/x", 422, "REQUEST_INVALID"),
        (f"{SHOP}/tables/x/y%00", 422, "REQUEST_INVALID"),
        (f"{SHOP}/tables/x", 404, "PATH_UNKNOWN"),
        (f"{SHOP}/tables/shop/nowhere", 404, "TABLE_UNKNOWN"),
        (f"{SHOP}/start", 405, "METHOD_UNKNOWN"),
        ("/nowhere", 404, "PATH_UNKNOWN"),
    ],
)
def test_path_when_it_names_nothing_then_problem(
    client: httpx.Client, registry: SqlRegistry, path: str, status: int, code: str
):
    facts.record_shop(registry)
    problem(client.get(path), status, code)


def test_tenants_when_they_have_a_source_of_one_name_then_cannot_see_each_other(
    client: httpx.Client, registry: SqlRegistry
):
    other = SourceKey("globex", "shop")
    facts.record_shop(registry, "orders")
    facts.record_shop(registry, "plans", key=other)
    post(client, path_of("shop", "orders", "/start"))
    theirs = "/api/v1/tenants/globex/sources/shop"
    assert [table["table"] for table in client.get(f"{theirs}/tables").json()["tables"]] == ["plans"]
    problem(client.get(f"{theirs}/tables/shop/orders"), 404, "TABLE_UNKNOWN")
    problem(client.post(f"{theirs}/tables/shop/orders/stop", json={}), 404, "TABLE_UNKNOWN")
    assert post(client, f"{theirs}/stop", {"tables": "all"})["tables"] == []
    assert [agent["agent"] for agent in client.get("/api/v1/tenants/globex/agents").json()["agents"]] == ["agent-1"]
    assert len(client.get("/api/v1/tenants/globex/sources").json()["sources"]) == 1
    problem(client.get("/api/v1/tenants/initech/sources/shop"), 404, "SOURCE_UNKNOWN")
    assert len(registry.desired(KEY).tables) == 1
    assert registry.desired(other).tables == ()


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "origin": "http://evil.example"},
        {"content-type": "application/json", "origin": "null"},
        {"content-type": "application/json", "origin": "http://127.0.0.1:9999"},
        {"content-type": "application/json", "sec-fetch-site": "cross-site"},
        {"content-type": "application/json", "host": "evil.example"},
        {"content-type": "application/json", "host": "127.0.0.1.evil.example:7080"},
    ],
)
def test_post_when_it_may_come_from_another_site_then_refused(
    client: httpx.Client, registry: SqlRegistry, headers: dict[str, str]
):
    facts.record_shop(registry)
    answer = client.post(path_of("shop", "orders", "/start"), content=b"{}", headers=headers)
    problem(answer, 403, "CROSS_SITE_REFUSED")
    assert registry.desired(KEY).tables == ()


def test_post_when_from_our_own_page_then_taken(client: httpx.Client, registry: SqlRegistry):
    facts.record_shop(registry)
    headers = {"origin": str(client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert client.post(path_of("shop", "orders", "/start"), json={}, headers=headers).is_success


@pytest.mark.parametrize(
    "body",
    [
        '{"start": "later"}',
        '{"start": {"position": 5}}',
        '{"start": {"position": "x", "y": 1}}',
        '{"begin": "now"}',
        "[]",
        "{",
    ],
)
def test_post_when_body_is_bad_then_problem_says_where(client: httpx.Client, registry: SqlRegistry, body: str):
    facts.record_shop(registry)
    headers = {"content-type": "application/json"}
    answer = client.post(path_of("shop", "orders", "/start"), content=body, headers=headers)
    assert "body" in problem(answer, 422, "REQUEST_INVALID")["found"]


def test_post_when_body_is_huge_then_refused_unread(client: httpx.Client):
    with closing(HTTPConnection(client.base_url.host, client.base_url.port, timeout=300)) as connection:
        connection.putrequest("POST", f"{SHOP}/start")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["code"]) == (422, "REQUEST_INVALID")


def test_source_problem_when_reported_then_shown_and_cleared(client: httpx.Client, registry: SqlRegistry):
    facts.record_shop(registry)
    refused = Problem("SOURCE_ACCESS_DENIED", "The server refuses the user.", terminal=True, at_us=T0)
    registry.record_source_problem(KEY, refused, T0)
    assert client.get(SHOP).json()["problem"]["code"] == "SOURCE_ACCESS_DENIED"
    registry.record_source_problem(KEY, None, T0)
    assert client.get(SHOP).json()["problem"] is None


def test_healthz_when_database_breaks_then_503(client: httpx.Client, database: Database):
    assert client.get("/healthz").json() == {"status": "ok"}
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE tenant RENAME TO gone")
    problem(client.get("/healthz"), 503, "DATABASE_UNAVAILABLE")


def test_livez_when_the_database_breaks_then_the_api_lives_and_is_not_ready(client: httpx.Client, database: Database):
    assert client.get("/livez").json() == client.get("/readyz").json() == {"status": "ok"}
    with database.write() as connection:
        connection.exec_driver_sql("ALTER TABLE tenant RENAME TO gone")
    assert client.get("/livez").json() == {"status": "ok"}
    problem(client.get("/readyz"), 503, "DATABASE_UNAVAILABLE")


def test_metrics_when_lag_is_unknown_then_absent(client: httpx.Client, registry: SqlRegistry):
    facts.record_shop(registry)
    text = client.get("/metrics").text
    assert 'menura_controlplane_tables{source="shop",state="not_synced",tenant="acme"} 3.0\n' in text
    assert 'menura_controlplane_dumps{source="shop",tenant="acme"} 0.0\n' in text
    assert "menura_agent_lag_seconds{" not in text
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=2_500_000)], facts.fresh_us())
    text = client.get("/metrics").text
    assert 'menura_agent_lag_seconds{source="shop",tenant="acme"} 2.5\n' in text
    assert 'menura_controlplane_connected_agents{tenant="acme"} 1.0\n' in text
    assert 'menura_landing_rows_total{source="shop",tenant="acme"} 0.0\n' in text


def test_dashboard_when_served_then_policy_allows_only_our_own_files(client: httpx.Client):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "'unsafe" not in page.headers["content-security-policy"]
    for path in ("/dashboard.css", "/sources.js", "/tables", "/mark.svg", "/api/v1/openapi.json"):
        assert client.get(path).is_success


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:7080", "192.0.2.1:7080", "[::]:7080", "example.com:80", "7080", ":7080", "x:y"]
)
def test_listen_when_not_loopback_then_refused_without_tls(listen: str):
    with pytest.raises(ListenRefused, match="LISTEN_REFUSED"):
        check_listen(listen, has_tls=False, anonymous=False)


def test_listen_when_not_loopback_then_needs_tls_and_never_lets_nobody_in():
    check_listen("0.0.0.0:7080", has_tls=True, anonymous=False)
    with pytest.raises(ListenRefused, match="--anonymous"):
        check_listen("0.0.0.0:7080", has_tls=True, anonymous=True)
    check_listen("127.0.0.1:7080", has_tls=False, anonymous=True)


def test_listen_when_loopback_then_host_and_port():
    assert parse_listen("127.0.0.1:7080") == ("127.0.0.1", 7080)
    assert parse_listen("[::1]:0") == ("::1", 0)
    assert parse_listen("localhost:1") == ("localhost", 1)


def test_source_when_it_has_warnings_then_they_are_shown_and_its_tables_stream(
    client: httpx.Client, registry: SqlRegistry
):
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [], facts.fresh_us())
    post(client, path_of("shop", "orders", "/start"), {"start": "oldest"})
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)])))
    streaming = [TableEffective("shop", "orders", "STREAMING")]
    warning = Problem("FILTER_TABLE_UNKNOWN", "Checking the filter: no such table.", True, T0)
    registry.record_effective(KEY, 1, streaming, None, T0, warnings=(warning,))
    shown = client.get(SHOP).json()
    assert (shown["problem"], shown["stage"]) == (None, None)
    assert [each["code"] for each in shown["warnings"]] == ["FILTER_TABLE_UNKNOWN"]
    assert client.get(path_of("shop", "orders")).json()["state"] == "streaming"
    registry.record_effective(KEY, 1, streaming, None, T0)
    assert client.get(SHOP).json()["warnings"] == []
