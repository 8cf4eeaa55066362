from collections.abc import Iterator

import pytest
from menura.instants import now_us

from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import DumpPlanned, DumpSeen, KeyRange, Problem, SourceKey, TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser, browser
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, chunk, cut, entry, file, started, stopped
from tests.controlplane_api.lake_facts import Sink, lake_source, stop, table_of
from tests.stack import wait_for

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def kind() -> str:
    return "sqlite"


@pytest.fixture
def page(chromium: Browser, database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    # A sink's report of `facts.fresh_us` stays new, however long the test takes.
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 2 * 3600)
    with serving(database) as url:
        chromium.resize(1280, 1000)
        chromium.open(url)
        yield chromium
        assert chromium.complaints() == []
        chromium.open("about:blank")


def button(word: str, table: str) -> str:
    return f"button[aria-label='{word} shop.{table}']"


def test_dashboard_when_there_is_no_agent_then_says_how_to_begin(page: Browser):
    page.wait_for_text("#empty", "No agent has called yet")
    assert page.run("return document.querySelector('#tables-section').hidden")


def test_dashboard_when_an_agent_calls_then_shows_it_by_itself(page: Browser, registry: SqlRegistry):
    page.wait_for_text("#empty", "No agent")
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=1_500_000)], facts.fresh_us())
    page.wait_for_text("#sources", "connected")
    page.wait_for_text("#sources", "1.5 s")
    page.wait_for_text("#tables", "shop.orders")


def test_dashboard_when_a_copy_of_an_agent_was_refused_then_says_so(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    problem = Problem("DUPLICATE_AGENT", "another process is it", terminal=True, at_us=now_us())
    registry.record_refusal(("acme", "agent-1"), "agent agent-1 from here", problem)
    page.wait_for_text("#overview", "agent-1: DUPLICATE_AGENT")


def test_dashboard_when_start_and_stop_are_clicked_then_desired_state_follows(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    page.wait_for_text("#tables", "orders")
    page.click(button("Start", "orders"))
    page.wait_for_text("#outcome", "shop.orders: Started.")
    page.wait_for_text("#tables", "pending")
    assert [table.table for table in registry.desired(KEY).tables] == ["orders"]
    registry.record_effective(KEY, 1, [TableEffective("shop", "orders", "STREAMING")], None, T0)
    page.wait_for_text("#tables", "streaming")
    page.click(button("Stop", "orders"))
    page.wait_for_text("#tables", "stopped")
    assert registry.desired(KEY).tables == ()
    page.run("document.querySelector('#begin').value = 'now'")
    page.click(button("Start", "items"))
    page.wait_for_text("#outcome", "will be missing")
    assert registry.desired(KEY).tables[0].start_now


def test_dashboard_when_a_table_failed_then_says_why(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 1234), start=[started("orders", 0, "purged")])))
    registry.apply_entry(LANDING, entry(2, cut(2, stop=[stopped("orders", 2)])))
    page.wait_for_text("#tables", "An event that can't be read.")
    page.wait_for_text("#tables", "Earlier rows are missing: purged")
    page.wait_for_text("#tables", "1,234")
    page.wait_for_text("#overview", "Failures\n1")


def test_dashboard_when_a_sink_stops_a_table_then_every_stage_is_shown_and_it_can_be_retried_and_begun_anew(
    page: Browser, registry: SqlRegistry, database: Database
):
    facts.record_shop(registry)
    for name in ("orders", "items"):
        page.wait_for_text("#tables", name)
        page.click(button("Start", name))
        page.wait_for_text("#outcome", f"shop.{name}: Started.")
    beginning = [started("orders", 0), started("items", 0)]
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), start=beginning, generation=2)))
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], facts.fresh_us())
    tables = [TableEffective("shop", name, "STREAMING") for name in ("orders", "items")]
    registry.record_effective(KEY, 2, tables, None, T0)
    page.wait_for_text("#sources", "2 streaming")
    sink = Sink()
    sink.tell(database, 0, entry=1, sources=(lake_source(1),), stopped=(stop("orders"),))
    page.wait_for_text("#sources", "Lake\ncut 1\n1 stopped · freshness")
    page.wait_for_text("#sources", "1 failed")
    for words in ("failed\nin stage lake", "The file is gone.", "cut 1"):
        page.wait_for_text("#tables", words)
    page.click(button("Retry", "orders"))
    page.wait_for_text("#outcome", "shop.orders: It is tried again.")
    page.wait_for_text("#tables", "Its sink was asked to try it again.")
    assert [each.table for each in sink.tell(database, entry=1).retry] == ["orders"]
    page.click(button("Resync", "orders"))
    page.wait_for_text("#confirm", "also in a lake that has stopped it")
    page.click("#confirm-no")
    assert registry.dumps(KEY).dumps == ()
    page.click(button("Resync", "orders"))
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "shop.orders: It begins anew.")
    assert [each.table for each in registry.dumps(KEY).dumps] == ["orders"]
    sink.tell(database, entry=1, resumed=(table_of("orders"),))
    page.wait_for_text("#sources", "1 pending")
    registry.record_agent_gone("acme", "agent-1", "run-1", T0)
    page.wait_for_text("#sources", "2 waiting")
    page.wait_for_text("#tables", "waiting\nin stage source")
    page.wait_for_text("#tables", "AGENT_AWAY: see the source.")
    page.wait_for_text("#sources", "its agent agent-1 is not connected")


def test_dashboard_when_a_table_is_dumped_then_shows_progress_and_pauses_it(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health()], facts.fresh_us())
    page.wait_for_text("#tables", "orders")
    page.run("document.querySelector('#begin').value = 'dump'")
    page.click(button("Start", "orders"))
    page.wait_for_text("#outcome", "come by a dump")
    page.wait_for_text("#sources", "Dumps\n1")
    (dump,) = registry.dumps(KEY).dumps
    ranges = (KeyRange(0, "", '["5"]'), KeyRange(1, '["5"]', ""))
    registry.record_dump_plan(KEY, dump.dump, DumpPlanned(("id",), ranges, 900, 1, 1, None, "<b>slow</b>"), T0)
    registry.record_dump_status(KEY, [DumpSeen(dump.dump, "WAITING", "90 threads run", 50, 1, 0)], facts.fresh_us())
    read = chunk("orders", dump.dump, 1, "", '["5"]', last=True, rows=600)
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 600), start=[started("orders", 0)], chunks=[read])))
    shown = "about 50.0 % of about 1,200 rows · 600 rows, 29.3 KiB in 1 chunk"
    for words in ("dump waiting", shown, "90 threads run", "<b>slow</b>", "the dump that brings them"):
        page.wait_for_text("#tables", words)
    assert page.run("return document.querySelector('progress').position") == 0.5
    page.click("button[aria-label='Pause the dump of shop.orders']")
    page.wait_for_text("#tables", "dump paused")
    assert registry.dumps(KEY).dumps[0].paused
    page.click("button[aria-label='Resume the dump of shop.orders']")
    wait_for("the dump to go on", lambda: not registry.dumps(KEY).dumps[0].paused)
    registry.record_dump_failed(KEY, dump.dump, Problem("DUMP_ACCESS_DENIED", "Not granted.", True, T0), T0)
    page.wait_for_text(
        "#tables", "Earlier rows are missing: the dump that should have brought them failed: Not granted."
    )
    page.click("button[aria-label='Dump the earlier rows of shop.orders']")
    page.wait_for_text("#outcome", "shop.orders: Dump pending.")
    assert len(registry.dumps(KEY).dumps) == 1


def test_dashboard_when_a_dump_is_cancelled_or_forced_then_asks_before(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    page.wait_for_text("#tables", "orders")
    page.click(button("Start", "orders"))
    page.wait_for_text("#outcome", "Started")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 600), start=[started("orders", 0, "purged")])))
    force = "button[aria-label='Force a dump of shop.orders']"
    wait_for("the way to force it", lambda: page.run("return !!document.querySelector(arguments[0])", force))
    page.click(force)
    page.wait_for_text("#confirm", "It runs even if the server may purge its log")
    page.click("#confirm-no")
    assert registry.dumps(KEY).dumps == ()
    page.click(force)
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "shop.orders: Dump pending.")
    (dump,) = registry.dumps(KEY).dumps
    short = DumpPlanned(("id",), (KeyRange(0, "", ""),), 0, 0, 1, 9, "")
    registry.record_dump_plan(KEY, dump.dump, short, T0)  # not refused: it is forced
    page.wait_for_text("#tables", "at least 0 rows, nothing tells how many there are")
    cancel = "button[aria-label='Cancel the dump of shop.orders']"
    page.click(cancel)
    page.wait_for_text("#confirm", "What it brought stays in the lake")
    page.click("#confirm-no")
    assert len(registry.dumps(KEY).dumps) == 1
    page.click(cancel)
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "shop.orders: Dump cancelled.")
    assert registry.dumps(KEY).dumps == ()


def test_dashboard_when_a_command_is_refused_then_shows_all_that_the_error_says(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    page.wait_for_text("#tables", "orders")
    page.click(button("Start", "orders"))
    page.wait_for_text("#outcome", "Started")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 600), start=[started("orders", 0, "purged")])))
    again = "button[aria-label='Dump the earlier rows of shop.orders']"
    wait_for("the button", lambda: page.run("return !!document.querySelector(arguments[0])", again))
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, [facts.table_seen("orders", denied=True)], T0)
    page.click(again)
    for words in ("TABLE_DENIED", "policy", "Nothing was changed."):
        page.wait_for_text("#outcome", words)
    assert "refused" in page.run("return document.querySelector('#outcome').className")
    assert ["409 (Conflict)" in each for each in page.complaints()] == [True]  # the browser's own


def test_dashboard_when_a_name_is_hostile_then_it_is_text_and_can_be_started(page: Browser, registry: SqlRegistry):
    registry.record_agent(facts.agent_seen())
    tables = [facts.table_seen(HOSTILE, database=".."), facts.table_seen("a/b", database="%2F")]
    facts.record_cartography(registry, KEY, HOSTILE, HOSTILE, HOSTILE, tables, T0)
    page.wait_for_text("#tables", HOSTILE)
    page.wait_for_text("#sources", HOSTILE)
    for number in range(2):
        page.click("#tables button.start")
        wait_for("the start", lambda number=number: len(registry.desired(KEY).tables) == number + 1)
        page.wait_for_text("#outcome", "Started.")
        left = "return document.querySelectorAll('#tables button.start').length"
        wait_for("its button to be another", lambda number=number, left=left: page.run(left) == 1 - number)
    named = [(table.database, table.table) for table in registry.desired(KEY).tables]
    assert sorted(named) == [("%2F", "a/b"), ("..", HOSTILE)]
    assert page.run("return [window.hacked ?? null, document.querySelectorAll('main img, main script').length]") == [
        None,
        0,
    ]


def test_dashboard_when_there_are_500_tables_then_pages_and_filters(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry, *(f"table_{number:03}" for number in range(500)))
    page.wait_for_text("#tables-total", "500 tables")
    page.wait_for_text("#page", "Page 1 of 5")
    page.click("#next")
    page.wait_for_text("#tables", "table_100")
    page.wait_for_text("#page", "Page 2 of 5")
    page.run(
        "const text = document.querySelector('#text'); text.value = '499'; text.dispatchEvent(new InputEvent('input'))"
    )
    page.wait_for_text("#tables-total", "1 table")
    page.wait_for_text("#tables", "table_499")


def test_dashboard_when_another_tenant_is_chosen_then_shows_only_its_sources(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry, "orders")
    facts.record_shop(registry, "plans", key=SourceKey("globex", "factory"))
    page.wait_for_text("#sources", "shop")
    wait_for("both tenants", lambda: page.run("return document.querySelector('#tenant').options.length") == 2)
    page.run(
        "const list = document.querySelector('#tenant'); list.value = 'globex'; list.dispatchEvent(new Event('change'))"
    )
    page.wait_for_text("#tables", "plans")
    assert "orders" not in page.text("main")
    assert "shop" not in page.text("#sources")


def test_dashboard_when_on_a_phone_then_nothing_is_wider_than_the_screen(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry, "orders", "x" * 64, "a_rather_long_name" * 3)
    page.resize(400, 800)
    page.wait_for_text("#tables", "orders")
    assert page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.click(button("Start", "orders"))
    page.wait_for_text("#tables", "pending")


def test_dashboard_when_read_by_a_screen_reader_then_controls_have_names(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    page.wait_for_text("#tables", "orders")
    nameless = """
        return [...document.querySelectorAll('button, input, select')].filter((each) => each.checkVisibility()
            && !(each.ariaLabel || each.innerText?.trim() && each.tagName === 'BUTTON' || each.labels?.length))
            .map((each) => each.outerHTML)
    """
    assert page.run(nameless) == []
    assert page.run("return document.documentElement.lang") == "en"
