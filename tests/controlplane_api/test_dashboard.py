import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from menura.instants import now_us
from starlette.types import Receive, Scope, Send

from controlplane_api.api.gate import Gate
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import DumpPlanned, DumpSeen, KeyRange, Problem, SourceKey, TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser, browser
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, chunk, cut, entry, file, started, stopped
from tests.controlplane_api.lake_facts import Sink, lake_source, stop, table_of
from tests.stack import http_client, wait_for

FACTORY = SourceKey("acme", "factory")
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


@pytest.fixture
def tables(page: Browser) -> Browser:
    """At the page of tables."""
    page.open(page.run("return location.origin") + "/tables")
    return page


@pytest.fixture
def held(page: Browser, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Parts of addresses: what has one of them is answered once it is gone from here."""
    parts: list[str] = []
    answer = Gate.__call__

    async def wait(gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        address = f"{scope.get('path')}?{scope.get('query_string', b'').decode()}"
        while any(part in address for part in parts):
            await asyncio.sleep(0.01)
        await answer(gate, scope, receive, send)

    monkeypatch.setattr(Gate, "__call__", wait)
    yield parts
    parts.clear()


@pytest.fixture
def two_sources(page: Browser, registry: SqlRegistry) -> Browser:
    """At the tables of shop; it and factory have the same one, which is started."""
    origin = page.run("return location.origin")
    registry.record_agent(facts.agent_seen(sources=["shop", "factory"]))
    with http_client(origin) as client:
        for key in (KEY, FACTORY):
            facts.record_cartography(registry, key, "mysql", "9.7.0", facts.UUID, [facts.table_seen("orders")], T0)
            body = {"tables": [{"database": "shop", "table": "orders"}], "start": "now"}
            client.post(f"/api/v1/tenants/acme/sources/{key.source}/start", json=body).raise_for_status()
    page.open(f"{origin}/tables?tenant=acme&source=shop")
    page.wait_for_text("#tables", "Stop")
    return page


def choose(page: Browser, what: str, name: str) -> None:
    page.run(
        "const list = document.getElementById(arguments[0]); list.value = arguments[1]; "
        "list.dispatchEvent(new Event('change'))",
        what,
        name,
    )


def ask_again(page: Browser) -> None:
    """Let the page ask again at once."""
    page.run("document.dispatchEvent(new Event('visibilitychange'))")


def usable(page: Browser) -> list[str]:
    """Names of what can be pressed in the page's main part."""
    return page.run("""
        return [...document.querySelectorAll('main button, main input, main select, main a')]
            .filter((each) => each.checkVisibility()).map((each) => each.ariaLabel || each.textContent || each.id)
    """)


def button(word: str, table: str) -> str:
    return f"button[aria-label='{word} shop.{table}']"


def order(page: Browser, word: str, table: str, done: str) -> None:
    """Of a row: its plan is looked at and agreed to."""
    page.click(button(word, table))
    page.wait_for_text("#confirm-title", f"shop.{table} would be")
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", f"shop.{table}: {done}.")


def test_dashboard_when_there_is_no_agent_then_says_how_to_begin(page: Browser):
    page.wait_for_text("#empty", "No agent has called yet")
    assert page.run("return document.querySelector('#sources-section').hidden")


def test_dashboard_when_an_agent_calls_then_shows_it_by_itself(page: Browser, registry: SqlRegistry):
    page.wait_for_text("#empty", "No agent")
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=1_500_000)], facts.fresh_us())
    page.wait_for_text("#sources", "connected")
    page.wait_for_text("#sources", "1.5 s")
    page.click("#sources a.source-name")
    page.wait_for_text("#source-title", "shop")
    page.click("#its-tables")
    page.wait_for_text("#tables", "shop.orders")
    page.click("#tables a[href*='table=orders']")
    page.wait_for_text("#table-title", "shop.orders")
    page.wait_for_text("#reason", "NEVER_STARTED No sync of the table was ever asked for. Start it: menura sync start")


def test_dashboard_when_a_copy_of_an_agent_was_refused_then_says_so(page: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    problem = Problem("DUPLICATE_AGENT", "another process is it", terminal=True, at_us=now_us())
    registry.record_refusal(("acme", "agent-1"), "agent agent-1 from here", problem)
    page.wait_for_text("#overview", "agent-1: DUPLICATE_AGENT")


def test_tables_page_when_start_and_stop_are_clicked_then_desired_state_follows(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    tables.wait_for_text("#tables", "orders")
    tables.click(button("Start", "orders"))
    tables.wait_for_text("#confirm-title", "shop.orders would be started")
    tables.click("#confirm-no")
    tables.wait_for_text("#outcome", "Nothing was changed.")
    assert registry.desired(KEY).tables == ()
    order(tables, "Start", "orders", "started")
    tables.wait_for_text("#tables", "pending")
    assert [table.table for table in registry.desired(KEY).tables] == ["orders"]
    registry.record_effective(KEY, 1, [TableEffective("shop", "orders", "STREAMING")], None, T0)
    tables.wait_for_text("#tables", "streaming")
    order(tables, "Stop", "orders", "stopped")
    tables.wait_for_text("#tables", "stopped")
    tables.wait_for_text("#tables", "Somebody has stopped it by a command.")
    assert registry.desired(KEY).tables == ()
    tables.run("document.querySelector('#begin').value = 'now'")
    tables.click(button("Start", "items"))
    tables.wait_for_text("#confirm-facts", "will be missing")
    tables.click("#confirm-yes")
    tables.wait_for_text("#outcome", "will be missing")
    assert registry.desired(KEY).tables[0].start_now


def test_tables_page_when_a_table_failed_then_says_why(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 1234), start=[started("orders", 0, "purged")])))
    registry.apply_entry(LANDING, entry(2, cut(2, stop=[stopped("orders", 2)])))
    tables.wait_for_text("#tables", "An event that can't be read.")
    tables.wait_for_text("#tables", "Earlier rows are missing: purged")
    tables.wait_for_text("#tables", "1,234")
    tables.wait_for_text("#source-card", "1 failed")


def test_tables_page_when_rows_land_then_says_how_fast(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry, "orders")
    speed = "return document.querySelector('#tables [data-label=\\'Rows/s\\']')?.innerText"
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 1_000), start=[started("orders", 0)])))
    tables.wait_for_text("#tables", "orders")
    order(tables, "Start", "orders", "started")
    wait_for("a speed of 0", lambda: tables.run(speed) == "0")
    numbers = count(2)

    def has_speed() -> bool:
        number = next(numbers)
        registry.apply_entry(LANDING, entry(number, cut(number, file("orders", 100_000))))
        return tables.run(speed) != "0"

    wait_for("a speed", has_speed, every=0.5)


def test_tables_page_when_a_sink_stops_a_table_then_every_stage_is_shown_and_it_can_be_retried_and_begun_anew(
    tables: Browser, registry: SqlRegistry, database: Database
):
    facts.record_shop(registry)
    for name in ("orders", "items"):
        tables.wait_for_text("#tables", name)
        order(tables, "Start", name, "started")
    beginning = [started("orders", 0), started("items", 0)]
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders"), start=beginning, generation=2)))
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], facts.fresh_us())
    seen = [TableEffective("shop", name, "STREAMING") for name in ("orders", "items")]
    registry.record_effective(KEY, 2, seen, None, T0)
    tables.wait_for_text("#source-card", "2 streaming")
    sink = Sink()
    sink.tell(database, 0, entry=1, sources=(lake_source(1),), stopped=(stop("orders"),))
    tables.wait_for_text("#source-card", "Lake\ncut 1\n1 stopped · freshness")
    tables.wait_for_text("#source-card", "1 failed")
    for words in ("failed\nin stage lake", "The file is gone.", "cut 1"):
        tables.wait_for_text("#tables", words)
    order(tables, "Retry", "orders", "asked to try again")
    tables.wait_for_text("#tables", "Its sink was asked to try it again.")
    assert [each.table for each in sink.tell(database, entry=1).retry] == ["orders"]
    tables.click(button("Resync", "orders"))
    tables.wait_for_text("#confirm", "also in a lake that has stopped it")
    tables.click("#confirm-no")
    assert registry.dumps(KEY).dumps == ()
    tables.click(button("Resync", "orders"))
    tables.wait_for_text("#confirm-title", "shop.orders would begin anew")
    tables.click("#confirm-yes")
    tables.wait_for_text("#outcome", "shop.orders: begun anew.")
    assert [each.table for each in registry.dumps(KEY).dumps] == ["orders"]
    sink.tell(database, entry=1, resumed=(table_of("orders"),))
    tables.wait_for_text("#source-card", "1 pending")
    registry.record_agent_gone("acme", "agent-1", "run-1", T0)
    tables.wait_for_text("#source-card", "2 waiting")
    tables.wait_for_text("#tables", "waiting\nin stage source")
    tables.wait_for_text("#tables", "AGENT_AWAY: see the source.")
    tables.wait_for_text("#source-card", "its agent agent-1 is not connected")


def test_tables_page_when_a_table_is_dumped_then_shows_progress_and_pauses_it(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health()], facts.fresh_us())
    tables.wait_for_text("#tables", "orders")
    tables.run("document.querySelector('#begin').value = 'dump'")
    tables.click(button("Start", "orders"))
    tables.click("#confirm-yes")
    tables.wait_for_text("#outcome", "come by a dump")
    tables.wait_for_text("#source-card", "Dumps\n1")
    (dump,) = registry.dumps(KEY).dumps
    ranges = (KeyRange(0, "", '["5"]'), KeyRange(1, '["5"]', ""))
    registry.record_dump_plan(KEY, dump.dump, DumpPlanned(("id",), ranges, 900, 1, 1, None, "<b>slow</b>"), T0)
    registry.record_dump_status(KEY, [DumpSeen(dump.dump, "WAITING", "90 threads run", 50, 1, 0)], facts.fresh_us())
    read = chunk("orders", dump.dump, 1, "", '["5"]', last=True, rows=600)
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 600), start=[started("orders", 0)], chunks=[read])))
    shown = "about 50.0 % of about 1,200 rows · 600 rows, 29.3 KiB in 1 chunk"
    for words in ("dump waiting", shown, "90 threads run", "<b>slow</b>", "the dump that brings them"):
        tables.wait_for_text("#tables", words)
    assert tables.run("return document.querySelector('progress').position") == 0.5
    tables.click("button[aria-label='Pause the dump of shop.orders']")
    tables.wait_for_text("#tables", "dump paused")
    assert registry.dumps(KEY).dumps[0].paused
    tables.click("button[aria-label='Resume the dump of shop.orders']")
    wait_for("the dump to go on", lambda: not registry.dumps(KEY).dumps[0].paused)
    registry.record_dump_failed(KEY, dump.dump, Problem("DUMP_ACCESS_DENIED", "Not granted.", True, T0), T0)
    tables.wait_for_text(
        "#tables", "Earlier rows are missing: the dump that should have brought them failed: Not granted."
    )
    tables.click("button[aria-label='Dump the earlier rows of shop.orders']")
    tables.wait_for_text("#outcome", "shop.orders: Dump pending.")
    assert len(registry.dumps(KEY).dumps) == 1


def test_tables_page_when_a_dump_is_cancelled_or_forced_then_asks_before(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    tables.wait_for_text("#tables", "orders")
    order(tables, "Start", "orders", "started")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 600), start=[started("orders", 0, "purged")])))
    force = "button[aria-label='Force a dump of shop.orders']"
    wait_for("the way to force it", lambda: tables.run("return !!document.querySelector(arguments[0])", force))
    tables.click(force)
    tables.wait_for_text("#confirm", "It runs even if the server may purge its log")
    tables.click("#confirm-no")
    assert registry.dumps(KEY).dumps == ()
    tables.click(force)
    tables.click("#confirm-yes")
    tables.wait_for_text("#outcome", "shop.orders: Dump pending.")
    (dump,) = registry.dumps(KEY).dumps
    short = DumpPlanned(("id",), (KeyRange(0, "", ""),), 0, 0, 1, 9, "")
    registry.record_dump_plan(KEY, dump.dump, short, T0)  # not refused: it is forced
    tables.wait_for_text("#tables", "at least 0 rows, nothing tells how many there are")
    cancel = "button[aria-label='Cancel the dump of shop.orders']"
    tables.click(cancel)
    tables.wait_for_text("#confirm", "What it brought stays in the lake")
    tables.click("#confirm-no")
    assert len(registry.dumps(KEY).dumps) == 1
    tables.click(cancel)
    tables.click("#confirm-yes")
    tables.wait_for_text("#outcome", "shop.orders: Dump cancelled.")
    assert registry.dumps(KEY).dumps == ()


def test_tables_page_when_a_command_is_refused_then_shows_all_that_the_error_says(
    tables: Browser, registry: SqlRegistry
):
    facts.record_shop(registry)
    tables.wait_for_text("#tables", "orders")
    order(tables, "Start", "orders", "started")
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 600), start=[started("orders", 0, "purged")])))
    again = "button[aria-label='Dump the earlier rows of shop.orders']"
    wait_for("the button", lambda: tables.run("return !!document.querySelector(arguments[0])", again))
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, [facts.table_seen("orders", denied=True)], T0)
    tables.click(again)
    for words in ("TABLE_DENIED", "policy", "Nothing was changed."):
        tables.wait_for_text("#outcome", words)
    assert "refused" in tables.run("return document.querySelector('#outcome').className")
    assert ["409 (Conflict)" in each for each in tables.complaints()] == [True]  # the browser's own


def test_tables_page_when_a_name_is_hostile_then_it_is_text_and_can_be_started(tables: Browser, registry: SqlRegistry):
    registry.record_agent(facts.agent_seen())
    seen = [facts.table_seen(HOSTILE, database=".."), facts.table_seen("a/b", database="%2F")]
    facts.record_cartography(registry, KEY, HOSTILE, HOSTILE, HOSTILE, seen, T0)
    tables.wait_for_text("#tables", HOSTILE)
    tables.wait_for_text("#source-card", HOSTILE)
    for number in range(2):
        tables.click("#tables button.start")
        tables.wait_for_text("#confirm-title", "would be started")
        tables.click("#confirm-yes")
        wait_for("the start", lambda number=number: len(registry.desired(KEY).tables) == number + 1)
        tables.wait_for_text("#outcome", "started.")
        left = "return document.querySelectorAll('#tables button.start').length"
        wait_for("its button to be another", lambda number=number, left=left: tables.run(left) == 1 - number)
    named = [(table.database, table.table) for table in registry.desired(KEY).tables]
    assert sorted(named) == [("%2F", "a/b"), ("..", HOSTILE)]
    assert tables.run("return [window.hacked ?? null, document.querySelectorAll('main img, main script').length]") == [
        None,
        0,
    ]


def test_tables_page_when_there_are_500_tables_then_pages_and_filters(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry, *(f"table_{number:03}" for number in range(500)))
    tables.wait_for_text("#tables-total", "500 tables")
    tables.wait_for_text("#page", "Page 1 of 5")
    tables.click("#next")
    tables.wait_for_text("#tables", "table_100")
    tables.wait_for_text("#page", "Page 2 of 5")
    tables.run(
        "const text = document.querySelector('#text'); text.value = '499'; text.dispatchEvent(new InputEvent('input'))"
    )
    tables.wait_for_text("#tables-total", "1 table")
    tables.wait_for_text("#tables", "table_499")


def test_tables_page_when_another_source_does_not_answer_yet_then_no_row_of_the_former_one_takes_orders(
    two_sources: Browser, registry: SqlRegistry, held: list[str]
):
    page = two_sources
    held.append("/sources/factory")
    choose(page, "source", "factory")
    assert usable(page) == []
    page.run("window.patience = AbortSignal.timeout; AbortSignal.timeout = () => AbortSignal.abort()")
    ask_again(page)
    page.wait_for_text("#connection", "no answer")
    assert usable(page) == []
    page.run("AbortSignal.timeout = window.patience")
    held.clear()
    page.wait_for_text("#tables-title", "Tables of factory")
    page.wait_for_text("#connection", "live")
    order(page, "Stop", "orders", "stopped")
    assert [len(registry.desired(key).tables) for key in (KEY, FACTORY)] == [1, 0]


def test_tables_page_when_another_source_is_chosen_meanwhile_then_choice_and_plan_are_of_the_former_one(
    two_sources: Browser, registry: SqlRegistry, held: list[str]
):
    page = two_sources
    held.append("limit=1000&cursor=")
    page.click("#choose-all")
    choose(page, "source", "factory")
    page.wait_for_text("#tables-title", "Tables of factory")
    held.clear()
    page.wait_for_text("#outcome", "Tenant acme, source shop: Another source was chosen meanwhile.")
    assert page.text("#chosen-words") == ""
    page.click("#choose-page")
    held.append("dry_run")
    page.click("#order-stop")
    choose(page, "source", "shop")
    page.wait_for_text("#tables-title", "Tables of shop")
    held.clear()
    page.wait_for_text("#confirm-where", "Tenant acme, source factory")
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "Tenant acme, source factory: shop.orders: stopped.")
    assert [len(registry.desired(key).tables) for key in (KEY, FACTORY)] == [1, 0]


def test_choice_of_sources_when_somebody_comes_to_it_then_has_those_of_now_which_no_look_before_asked_for(
    two_sources: Browser, registry: SqlRegistry
):
    page = two_sources
    page.run("const now = performance.now(); performance.now = () => now")  # what it knows of sources stays new
    asked = "return performance.getEntriesByType('resource').filter((each) => each.name.includes(arguments[0])).length"
    for number in (2, 3):
        ask_again(page)
        wait_for("another look", lambda number=number: page.run(asked, "/tables?text") >= number)
    assert page.run(asked, "/sources?limit=1000") == 1
    registry.record_agent(facts.agent_seen(sources=["shop", "factory", "later"]))
    page.run("document.querySelector('#source').focus()")
    wait_for("the new one", lambda: page.run("return document.querySelector('#source').options.length") == 3)


def test_dashboard_when_another_tenant_is_chosen_then_shows_only_its_sources(
    page: Browser, registry: SqlRegistry, held: list[str]
):
    facts.record_shop(registry, "orders")
    facts.record_shop(registry, "plans", key=SourceKey("globex", "factory"))
    page.wait_for_text("#sources", "shop")
    wait_for("both tenants", lambda: page.run("return document.querySelector('#tenant').options.length") == 2)
    held.append("/tenants/globex/fleet")
    choose(page, "tenant", "globex")
    assert usable(page) == []
    held.clear()
    page.wait_for_text("#sources", "factory")
    assert "shop" not in page.text("main")


def test_tables_page_when_on_a_phone_then_nothing_is_wider_than_the_screen(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry, "orders", "x" * 64, "a_rather_long_name" * 3)
    tables.resize(400, 800)
    tables.wait_for_text("#tables", "orders")
    assert tables.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    order(tables, "Start", "orders", "started")
    tables.wait_for_text("#tables", "pending")


def test_tables_page_when_read_by_a_screen_reader_then_controls_have_names(tables: Browser, registry: SqlRegistry):
    facts.record_shop(registry)
    tables.wait_for_text("#tables", "orders")
    nameless = """
        return [...document.querySelectorAll('button, input, select')].filter((each) => each.checkVisibility()
            && !(each.ariaLabel || each.innerText?.trim() && each.tagName === 'BUTTON' || each.labels?.length))
            .map((each) => each.outerHTML)
    """
    assert tables.run(nameless) == []
    assert tables.run("return document.documentElement.lang") == "en"
