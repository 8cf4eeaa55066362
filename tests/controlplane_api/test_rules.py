"""Tables by a pattern, now and when they come; and how far an operation's tables are."""

from collections.abc import Iterator

import httpx
import pytest

from controlplane_api import operations, rules
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import Problem, SourceKey, TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, dump_event, entry, started, stopped, table_seen
from tests.controlplane_api.test_api import SHOP, path_of, post, problem
from tests.stack import http_client


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    with serving(database) as url, http_client(url) as client:
        yield client


def see(registry: SqlRegistry, *names: str, denied: tuple[str, ...] = ()) -> None:
    """A cartography with these tables, DATABASE.TABLE each."""
    split = [name.split(".") for name in names]
    tables = [table_seen(table, database, denied=table in denied) for database, table in split]
    facts.record_cartography(registry, KEY, "kind", "1", facts.UUID, tables, T0)


def desired(registry: SqlRegistry) -> list[str]:
    return [f"{each.database}.{each.table}" for each in registry.desired(KEY).tables]


def test_start_when_by_a_pattern_then_the_tables_that_match_are_started_and_stopped_so(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    registry.record_agent(facts.agent_seen())
    see(registry, "shop.orders", "shop.order_lines", "shop.Orders", "shop2.orders", "shop.secret", denied=("secret",))
    post(client, f"{SHOP}/start", {"tables": {"database": "shop", "table": "order*"}, "start": "now"})
    assert desired(registry) == ["shop.order_lines", "shop.orders"]
    post(client, f"{SHOP}/start", {"tables": {"database": "shop"}, "start": "now"})
    assert desired(registry) == ["shop.Orders", "shop.order_lines", "shop.orders"]
    stops = post(client, f"{SHOP}/stop", {"tables": {"table": "order?"}})
    assert [each["table"] for each in stops["tables"]] == ["orders"]
    assert desired(registry) == ["shop.Orders", "shop.order_lines"]
    assert post(client, f"{SHOP}/resync", {"tables": {"table": "none"}})["tables"] == []
    wrong = client.post(f"{SHOP}/stop", json={"tables": {"table": "*", "future": True}})
    assert "#/tables/future" in [each["pointer"] for each in problem(wrong, 422, "REQUEST_INVALID")["errors"]]


def test_start_when_an_agent_takes_no_more_tables_of_the_source_then_the_rest_is_refused_by_name(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("controlplane_api.syncs.MAX_SYNCED_TABLES", 2)
    registry.record_agent(facts.agent_seen())
    see(registry, "shop.a", "shop.b", "shop.c")
    outcomes = post(client, f"{SHOP}/start", {"tables": "all", "start": "now"})["tables"]
    codes = [(each["table"], each["changed"], each["refused"] and each["refused"]["code"]) for each in outcomes]
    assert codes == [("a", True, None), ("b", True, None), ("c", False, "TABLES_TOO_MANY")]
    problem(client.post(path_of("shop", "c", "/start"), json={}), 409, "TABLES_TOO_MANY")
    assert [each["changed"] for each in post(client, f"{SHOP}/start", {"tables": "all"})["tables"]] == [False] * 3
    post(client, path_of("shop", "a", "/stop"))
    assert post(client, path_of("shop", "c", "/start"))["changed"]
    post(client, f"{SHOP}/start", {"tables": {"database": "shop", "future": True}, "start": "now"})
    see(registry, "shop.a", "shop.b", "shop.c", "shop.d")
    assert desired(registry) == ["shop.b", "shop.c"]
    assert "tables of a rule not started: source=acme/shop tables=1: TABLES_TOO_MANY" in caplog.text


def test_rule_when_tables_come_later_then_they_are_started_unless_stopped_or_denied(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    registry.record_agent(facts.agent_seen())
    see(registry, "shop.orders", "other.orders")
    whole = {"database": "shop", "future": True}
    post(client, f"{SHOP}/start", {"tables": whole})
    post(client, f"{SHOP}/start", {"tables": whole})
    (rule,) = client.get(f"{SHOP}/rules").json()["rules"]
    assert (rule["database"], rule["table"], rule["start"]) == ("shop", "*", "dump")
    post(client, path_of("shop", "orders", "/stop"))
    see(registry, "shop.orders", "shop.items", "shop.secret", "other.orders", denied=("secret",))
    assert desired(registry) == ["shop.items"]
    assert registry.desired(KEY).tables[0].start_dump
    # it gets another name, and the policy lets the secret through
    see(registry, "shop.orders", "shop.goods", "shop.secret", "other.orders")
    assert desired(registry) == ["shop.goods", "shop.items", "shop.secret"]
    see(registry, "shop.orders", "shop.goods", "shop.secret", "other.orders")
    assert len(client.get(f"{SHOP}/dumps").json()["dumps"]) == 3
    assert post(client, f"{SHOP}/rules/{rule['rule']}/remove")["rules"] == []
    see(registry, "shop.new")
    assert "shop.new" not in desired(registry)
    problem(client.post(f"{SHOP}/rules/{rule['rule']}/remove", json={}), 404, "RULE_UNKNOWN")
    position = client.post(f"{SHOP}/start", json={"tables": whole, "start": {"position": "x"}})
    problem(position, 422, "REQUEST_INVALID")


def test_rules_when_they_are_many_or_another_tenants_then_refused(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.record_shop(registry)
    other = SourceKey("globex", "shop")
    facts.record_shop(registry, "plans", key=other)
    monkeypatch.setattr(rules, "MAX_RULES", 1)
    post(client, f"{SHOP}/start", {"tables": {"table": "a", "future": True}})
    more = client.post(f"{SHOP}/start", json={"tables": {"table": "b", "future": True}})
    problem(more, 409, "RULES_TOO_MANY")
    (rule,) = client.get(f"{SHOP}/rules").json()["rules"]
    tag = client.get(SHOP).headers["etag"]
    post(client, f"{SHOP}/start", {"tables": {"table": "a", "future": True}})
    assert client.get(f"{SHOP}/rules").json()["rules"] == [rule]  # the same one, in its place
    assert client.get(SHOP).headers["etag"] == tag
    monkeypatch.setattr(rules, "MAX_RULES", 2)
    post(client, f"{SHOP}/start", {"tables": {"table": "b", "future": True}})
    assert client.get(SHOP).headers["etag"] != tag
    theirs = "/api/v1/tenants/globex/sources/shop"
    assert client.get(f"{theirs}/rules").json()["rules"] == []
    problem(client.post(f"{theirs}/rules/{rule['rule']}/remove", json={}), 404, "RULE_UNKNOWN")


def test_operation_when_its_tables_go_on_then_its_resource_says_how_far_each_is(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, "a", "b", "c", "d", "e")
    named = [{"database": "shop", "table": name} for name in ("a", "b", "c", "none")]
    answer = client.post(f"{SHOP}/start", json={"tables": named, "start": "now"})
    assert answer.status_code == 202
    path = answer.headers["location"]

    def progress(at: str = path) -> dict[str, str]:
        return {each["table"]: each["progress"] for each in client.get(at).json()["of_tables"]}

    assert progress() == {"a": "waiting", "b": "waiting", "c": "waiting", "none": "refused"}
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("a", 0), started("b", 0)], stop=[stopped("b", 1)])))
    registry.record_effective(
        KEY, registry.generations([KEY])[KEY], [TableEffective("shop", "a", "STREAMING")], None, T0
    )
    post(client, path_of("shop", "c", "/stop"))
    assert progress() == {"a": "done", "b": "failed", "c": "superseded", "none": "refused"}
    shown = client.get(path, params={"limit": 2}).json()
    assert (shown["kind"], shown["done"]) == ("start", True)
    assert shown["tables"] == {"done": 1, "failed": 1, "superseded": 1, "refused": 1}
    following = client.get(path, params={"limit": 2, "cursor": shown["next_cursor"]}).json()
    assert [each["table"] for each in following["of_tables"]] == ["c", "none"] and following["next_cursor"] is None
    dumped = client.post(f"{SHOP}/resync", json={"tables": named[:1]}).headers["location"]
    assert progress(dumped) == {"a": "waiting"}
    uuid = client.get(dumped).json()["of_tables"][0]["dump"]
    begun = cut(2, start=[started("a", 2)], events=[dump_event("a", 21, "DUMP_STARTED", uuid)], generation=3)
    registry.apply_entry(LANDING, entry(2, begun))
    registry.record_effective(KEY, registry.generations([KEY])[KEY], [TableEffective("shop", "a", "DUMPING")], None, T0)
    assert progress(dumped) == {"a": "running"}
    failed = Problem("DUMP_FAILED", "It failed.", terminal=True, at_us=T0)
    registry.record_dump_failed(KEY, uuid, failed, T0)
    assert progress(dumped) == {"a": "failed"}
    problem(client.get(f"{SHOP}/operations/none"), 404, "OPERATION_UNKNOWN")
    problem(client.get(path.replace("acme", "globex")), 404, "SOURCE_UNKNOWN")


def test_operations_when_they_are_many_then_the_newest_are_kept(
    client: httpx.Client, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.record_shop(registry)
    monkeypatch.setattr(operations, "KEPT", 3)
    for _ in range(5):
        post(client, f"{SHOP}/start", {"tables": "all"})
    found = client.get(f"{SHOP}/operations", params={"limit": 2}).json()
    rest = client.get(f"{SHOP}/operations", params={"limit": 2, "cursor": found["next_cursor"]}).json()
    assert (len(found["operations"]), len(rest["operations"]), rest["next_cursor"]) == (2, 1, None)
    monkeypatch.setattr(operations, "KEPT_TABLES", 3)
    post(client, f"{SHOP}/stop", {"tables": "all"})
    assert [each["kind"] for each in client.get(f"{SHOP}/operations").json()["operations"]] == ["stop"]


@pytest.mark.parametrize("start", ["dump", "oldest", "now", "resume", {"position": "x"}])
def test_start_when_the_agent_says_that_the_table_is_gone_then_refused_unless_it_is_of_a_future_pattern(
    client: httpx.Client, registry: SqlRegistry, start: str | dict[str, str]
) -> None:
    registry.record_agent(facts.agent_seen())
    see(registry, "shop.orders", "shop.items")
    see(registry, "shop.items")
    one = {"start": start}
    alone = problem(client.post(path_of("shop", "orders", "/start"), json=one), 404, "TABLE_UNKNOWN")
    assert alone["found"] == "the table is no longer on the server, as its agent says"
    assert "If it was created again" in alone["remedy"] and "--future" in alone["remedy"]
    named = [{"database": "shop", "table": name} for name in ("orders", "items")]
    outcomes = post(client, f"{SHOP}/start", {"tables": named, **one})["tables"]
    told = [(each["table"], each["changed"], each["refused"] and each["refused"]["found"]) for each in outcomes]
    assert told == [("orders", False, alone["found"]), ("items", True, None)]
    assert desired(registry) == ["shop.items"]
    if isinstance(start, dict):
        return
    post(client, f"{SHOP}/start", {"tables": {"database": "shop", "future": True}, **one})
    assert desired(registry) == ["shop.items"]
    see(registry, "shop.items", "shop.orders")  # it is there again
    assert desired(registry) == ["shop.items", "shop.orders"]


def test_start_when_a_table_is_gone_and_has_stopped_before_then_its_log_is_read_to_its_end(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    registry.record_agent(facts.agent_seen())
    see(registry, "shop.orders", "shop.items")
    post(client, path_of("shop", "orders", "/start"), {"start": "now"})
    registry.apply_entry(facts.LANDING, facts.entry(1, facts.cut(1, start=[facts.started("orders", 0)])))
    post(client, path_of("shop", "orders", "/stop"))
    see(registry, "shop.items")
    for start in ("dump", "oldest", "now"):
        problem(client.post(path_of("shop", "orders", "/start"), json={"start": start}), 404, "TABLE_UNKNOWN")
    assert post(client, path_of("shop", "orders", "/start"), {"start": "resume"})["changed"]
    assert not post(client, path_of("shop", "orders", "/start"), {"start": "resume"})["changed"]  # it runs
    assert desired(registry) == ["shop.orders"]
