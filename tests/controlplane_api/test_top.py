"""`menura top`, `menura status SOURCE` and `menura tenants`: what is busy, one source alone, whose there are."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.commands.options import moment
from controlplane_api.commands.top import RESTS, Look, Looks, compared, follow
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.dump_facts import begin
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, file, started
from tests.controlplane_api.test_why import table_view
from tests.servers import free_port


@pytest.fixture
def here(database: Database, registry: SqlRegistry) -> Iterator[dict[str, str]]:
    """Sources shop, whose table orders has rows, and crm."""
    facts.record_shop(registry, "orders", "items")
    registry.record_agent(facts.agent_seen(sources=("shop", "crm")))
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=90_000_000)], facts.fresh_us())
    with serving(database) as url:
        here = {"MENURA_API": url, "MENURA_TENANT": "acme"}
        assert menura("sync", "start", "shop", "shop.orders", "shop.items", **here).returncode == 0
        assert registry.desired(KEY).tables
        registry.apply_entry(
            LANDING, entry(1, cut(1, file("orders"), start=[started("orders", 0), started("items", 0)]))
        )
        yield here


def test_top_when_tables_have_moved_between_two_looks_then_the_busiest_comes_first_with_its_speed():
    before = Look(0, [], [("shop", table_view("quiet", rows=9)), ("shop", table_view("busy", rows=10, bytes=0))])
    now = Look(
        2_000_000,
        [],
        [("shop", table_view(name, rows=rows, bytes=800)) for name, rows in (("quiet", 9), ("busy", 410), ("new", 5))],
    )
    found = compared(before, now, 2)
    assert [(each.table, each.rows_per_second) for each in found.tables] == [("busy", 200.0), ("quiet", 0.0)]
    assert (found.tables[0].bytes_per_second, found.total) == (400.0, 3)
    (new,) = [each for each in compared(before, now, 3).tables if each.table == "new"]
    assert new.rows_per_second is None


def test_top_when_asked_once_then_prints_sources_and_tables_in_80_columns(here: dict[str, str]):
    terminal = {**here, "COLUMNS": "80", "TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1"}
    done = menura("top", "--once", "--interval", "0.1", "--tables", "1", **terminal)
    assert done.returncode == 0, done.stderr
    shown = Text.from_ansi(done.stdout).plain
    assert max(map(len, shown.splitlines())) <= 80
    assert "crm" in shown and "1.5 min" in shown and "and 1 more tables; --tables N shows more" in shown
    as_json = json.loads(menura("top", "shop", "--interval", "0.1", "--json", **here).stdout)
    assert [source["source"] for source in as_json["sources"]] == ["shop"]
    assert {table["rows_per_second"] for table in as_json["tables"]} == {0.0}


def test_top_when_a_request_fails_then_goes_on_with_the_last_values_and_says_so_until_the_api_answers(
    database: Database, registry: SqlRegistry
):
    facts.record_shop(registry, "orders")
    begin(database, "orders")
    shown = StringIO()
    screens: list[str] = []
    with ExitStack() as served:
        port = free_port()
        url = served.enter_context(serving(database, port))

        def pause(_seconds: float) -> None:
            screens.append(shown.getvalue())
            shown.truncate(shown.seek(0))
            if len(screens) == 1:
                served.close()
            elif len(screens) == 2:
                served.enter_context(serving(database, port))
            else:
                raise KeyboardInterrupt

        console = Console(file=shown, force_terminal=True, width=200, height=60)
        with (
            ApiClient(url, "acme") as client,
            pytest.raises(KeyboardInterrupt),
            Live(console=console, auto_refresh=False) as live,
        ):
            follow(Looks(client, ""), live, 2.0, 5, pause)
    assert all("shop.orders" in screen for screen in screens)
    assert ["API_UNREACHABLE" in screen for screen in screens] == [False, True, False]
    assert "Old, of 20" in screens[1]


def test_top_when_a_look_at_all_tables_takes_long_then_sources_are_looked_at_alone_for_many_times_as_long(
    database: Database, registry: SqlRegistry
):
    facts.record_shop(registry, "orders")
    begin(database, "orders")
    took = 10
    due = took + RESTS * took
    times = iter([0, took, took + 2, due - 1, due, due, due + 1])
    with serving(database) as url, ApiClient(url, "acme") as client:
        looks = Looks(client, "shop", lambda: next(times))
        first = looks.now
        for _ in range(2):
            sources = looks.now.sources
            looks.again()
            assert looks.now.tables is first.tables and looks.now.sources is not sources
            assert "a look at all of them takes 10.0 s" in looks.notes()[0].plain
        looks.again()
    assert looks.before.tables is first.tables and looks.now.tables is not first.tables and not looks.notes()


def test_status_when_a_source_is_named_then_shows_it_alone(here: dict[str, str]):
    both, one = menura("status", **here).stdout, menura("status", "shop", **here).stdout
    assert "crm" in both and "crm" not in one and "shop.orders" in one
    as_json = json.loads(menura("status", "shop", "--json", **here).stdout)
    assert [source["source"] for source in as_json["sources"]] == ["shop"]
    nowhere = menura("status", "nowhere", **here)
    assert nowhere.returncode == 25 and "SOURCE_UNKNOWN" in nowhere.stderr


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({}, "not known"),
        ({"log_is_unlimited": True}, "unlimited"),
        ({"log_retention_seconds": 3 * 86_400, "log_is_unlimited": False}, "3.0 d"),
        ({"log_room_bytes": 64 << 20, "log_is_unlimited": False}, "64.0 MiB more"),
    ],
)
def test_status_when_its_server_keeps_its_log_without_a_limit_then_says_so_and_not_that_it_is_unknown(
    database: Database, registry: SqlRegistry, told: dict[str, Any], shown: str
):
    facts.record_shop(registry)
    health = replace(facts.health(), **told)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [health], facts.fresh_us())
    with serving(database) as url:
        here = {"MENURA_API": url, "MENURA_TENANT": "acme"}
        assert f"keeps its log: {shown}." in menura("status", "shop", **here).stdout
        (source,) = json.loads(menura("status", "shop", "--json", **here).stdout)["sources"]
    assert source["log_is_unlimited"] is told.get("log_is_unlimited")


def test_tenants_when_a_tenant_has_sources_then_counts_them_and_other_words_do_the_same(here: dict[str, str]):
    shown = menura("tenants", **here).stdout
    assert shown == menura("tenant", **here).stdout
    (line,) = [line for line in shown.splitlines() if "acme" in line]
    as_json = json.loads(menura("tenants", "--output", "json", **here).stdout)
    (told,) = [each for each in as_json["tenants"] if each["tenant"] == "acme"]
    assert (told["agents"], told["sources"], as_json["next_cursor"]) == (1, 2, None)
    assert line.split() == ["acme", "1", "2", str(told["synced_tables"]), *moment(told["created_at_us"]).split()]
    sources = json.loads(menura("source", "--json", **here).stdout)["sources"]
    assert [source["source"] for source in sources] == ["crm", "shop"]
