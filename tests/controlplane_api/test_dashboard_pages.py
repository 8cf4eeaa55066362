"""Each page of the dashboard, filled: what bars somebody from using it, how wide it is, and how it looks.

Pictures of all pages, light, dark and narrow, are in build/dashboard afterwards.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from menura.instants import now_us

from controlplane_api.api.app import Access
from controlplane_api.api.dashboard import UPLOT, served_files
from controlplane_api.database import Database
from controlplane_api.identity.authority import SqlAuthority
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import ConfigurationSeen, DumpPlanned, DumpSeen, KeyRange, Problem, SourceKey, TableEffective
from tests.axe import barriers
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, chunk, cut, entry, event, file, started, stopped
from tests.controlplane_api.lake_facts import HttpSink, lake_source
from tests.controlplane_api.test_dashboard import ask_again, choose, chromium, held, kind, page, usable
from tests.controlplane_api.test_joined_views import created, told
from tests.controlplane_api.test_verification_schedules import Scheduled
from tests.controlplane_api.upgrade_facts import halted_rollout
from tests.controlplane_api.verdict_facts import verdict
from tests.servers import ServerMissing
from tests.stack import http_client, wait_for

__all__ = ["chromium", "held", "kind", "page"]

PICTURES = Path(__file__).parents[2] / "build/dashboard"
LOOKS = {"light": (1280, "light"), "dark": (1280, "dark"), "small": (1024, "light"), "narrow": (390, "light")}
#: what a table's frame cuts off
CUT_OFF = """
    return [...document.querySelectorAll('.frame :is(a, button, input, td)')].filter((each) => each.checkVisibility())
        .filter((each) => each.getBoundingClientRect().right > each.closest('.frame').getBoundingClientRect().right + 1)
        .map((each) => `${each.ariaLabel || each.textContent} is cut off`)
"""
SHOP = "tenant=acme&source=shop"
#: address and what it shows once it is filled
PAGES = {
    "sources": (f"/?{SHOP}", "#sources a"),
    "source": (f"/source?{SHOP}", "#rate-plot .u-legend"),
    "tables": (f"/tables?{SHOP}", "#tables tr"),
    "table": (f"/table?{SHOP}&database=shop&table=notes", "#leaves tr"),
    "views": ("/views?tenant=acme&view=paid", "#reads tr"),
    "proof": (f"/proof?{SHOP}", "#tables tr"),
    "dumps": ("/dumps?tenant=acme", "#dumps tr"),
    "fleet": ("/fleet?tenant=acme", "#agents tr"),
    "upgrades": ("/upgrades?tenant=acme", "#agents tr"),
    "audit": ("/audit?tenant=acme", "#entries tr"),
    "settings": ("/settings?tenant=acme", "#tenants tr"),
}


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories grow faster."""
    monkeypatch.setattr("controlplane_api.api.histories.STEP_SECONDS", 0.5)


@pytest.fixture
def origin(page: Browser, database: Database, registry: SqlRegistry) -> Iterator[str]:
    """Of a dashboard that has something on each page."""
    shop = Scheduled(database, registry, ["orders", "items", "notes", "events", "stock"])
    streaming = [TableEffective("shop", name, "STREAMING") for name in ("orders", "items")]
    registry.record_effective(KEY, 1, streaming, None, T0)
    registry.apply_entry(LANDING, entry(2, cut(2, file("orders", 1_234), events=[event("notes", 3)])))
    registry.apply_entry(LANDING, entry(3, cut(3, stop=[stopped("stock", 3)])))
    facts.record_heartbeat(registry, "acme", "agent-1", 48 << 20, 1, [facts.health(lag_us=1_500_000)], facts.fresh_us())
    dump = shop.order("items")
    ranges = (KeyRange(0, "", '["5"]'), KeyRange(1, '["5"]', ""))
    registry.record_dump_plan(KEY, dump, DumpPlanned(("id",), ranges, 900, 1, 1, None, "its replica is slow"), T0)
    registry.record_dump_status(KEY, [DumpSeen(dump, "READING", "", 50, 1, 0)], facts.fresh_us())
    read = chunk("items", dump, 1, "", '["5"]', last=True, rows=600)
    registry.apply_entry(LANDING, entry(4, cut(4, chunks=[read])))
    halted_rollout(database, registry)
    now = now_us()
    origin = page.run("return location.origin")
    with http_client(origin) as client:
        created(client)
        verdicts = (
            verdict(1, table="orders", read_at_us=now - 720_000_000, at_us=now),
            verdict(2, "differs", "notes", reason="rows differ", leaves_equal=90, read_at_us=now, at_us=now),
        )
        client.post("/api/v1/tenants/acme/api-tokens", json={"name": "reports", "role": "viewer"}).raise_for_status()
        HttpSink(client=client).put(sources=(lake_source(4),), verdicts=verdicts, views=(told(),))
    yield origin


def need_plots() -> None:
    if ("/uplot.js", UPLOT["uplot.js"], "text/javascript") in served_files():
        raise ServerMissing("no uPlot: run .ci/setup uplot")


def test_pages_when_filled_then_nothing_bars_anybody_and_nothing_is_wider_than_the_screen(
    page: Browser, origin: str
) -> None:
    need_plots()
    found = {}
    for name, (address, filled) in PAGES.items():
        page.emulate(*LOOKS["light"])
        page.open(origin + address)
        wait_for(f"the page {name}", lambda filled=filled: page.text(filled), every=0.05)
        for look, (width, scheme) in LOOKS.items():
            page.emulate(width, scheme)
            page.picture(PICTURES / f"{name}-{look}.png")
            wide = page.run("const {scrollWidth: is, clientWidth: may} = document.documentElement; return is - may")
            cut_off = page.run(CUT_OFF)
            found[f"{name} {look}"] = barriers(page) + cut_off + ([f"{wide} px too wide"] if wide > 0 else [])
    assert {name: each for name, each in found.items() if each} == {}


def test_plots_when_their_axes_are_drawn_then_their_marks_are_evenly_apart(
    page: Browser, registry: SqlRegistry
) -> None:
    need_plots()
    page.emulate(*LOOKS["light"])
    facts.record_shop(registry)
    health = [facts.health(lag_us=90_000_000, rows=0)]
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, health, facts.fresh_us())
    page.open(page.run("return location.origin") + f"/source?{SHOP}")
    wait_for("the plots", lambda: page.text("#rate-plot .u-legend"), every=0.05)
    page.run("""
        const draw = CanvasRenderingContext2D.prototype.fillText;
        window.drawn = [];
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
          window.drawn.push([this.canvas.closest('#lag-plot, #rate-plot').id, text]);
          return draw.call(this, text, ...at);
        };
    """)
    ask_again(page)
    drawn = wait_for("the axes of both", lambda: _axes(page.run("return window.drawn")))
    assert [len({round(after - mark, 6) for mark, after in pairwise(marks)}) for marks in drawn] == [1, 1], drawn


def _axes(drawn: list[tuple[str, str]]) -> list[list[float]] | None:
    """Marks of the axes of lag, in seconds, and of rows; None: not all are drawn yet."""
    seconds = {"ms": 0.001, "s": 1.0, "min": 60.0}
    lags = [re.fullmatch(r"([\d.]+) (ms|s|min)", text) for plot, text in drawn if plot == "lag-plot"]
    rates = [text for plot, text in drawn if plot == "rate-plot" and re.fullmatch(r"[\d,.]+", text)]
    axes = [
        list(dict.fromkeys(float(lag[1]) * seconds[lag[2]] for lag in lags if lag is not None)),
        list(dict.fromkeys(float(rate.replace(",", "")) for rate in rates)),
    ]
    return axes if all(len(marks) > 2 for marks in axes) else None


def test_fleet_page_when_another_tenant_is_chosen_then_its_own_agent_is_revoked_though_both_look_alike(
    page: Browser, registry: SqlRegistry, held: list[str]
) -> None:
    for tenant in ("acme", "globex"):
        facts.record_shop(registry, key=SourceKey(tenant, "shop"))
    origin = page.run("return location.origin")
    page.open(f"{origin}/fleet?tenant=acme")
    page.wait_for_text("#agents", "db1.example")
    held.append("/tenants/globex")
    choose(page, "tenant", "globex")
    assert usable(page) == []
    held.clear()
    page.click("#agents button")
    page.wait_for_text("#confirm-where", "Tenant globex")
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "agent-1: Revoked.")
    with http_client(origin) as client:
        agents = [client.get(f"/api/v1/tenants/{tenant}/agents").json()["agents"] for tenant in ("acme", "globex")]
    assert [agent["revoked_at_us"] is not None for (agent,) in agents] == [False, True]


def test_fleet_page_when_agents_are_looked_for_then_finds_them_by_name_host_and_state_and_counts_all(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    for number in range(105):
        name = f"edge-{number:03}"
        registry.record_agent(
            replace(facts.agent_seen(), agent=name, session=name, hostname=f"h{number}.example", sources=())
        )
    origin = page.run("return location.origin")
    page.open(f"{origin}/fleet?tenant=acme")
    page.wait_for_text("#agents-total", "of 106 connected")
    assert page.text("#page") == "Page 1"
    page.run("const t = document.querySelector('#text'); t.value = 'H104.EX'; t.dispatchEvent(new Event('input'))")
    rows = "return [...document.querySelectorAll('#agents tr b')].map((each) => each.textContent)"
    wait_for("the one of that host", lambda: page.run(rows) == ["edge-104"])
    page.run("const t = document.querySelector('#text'); t.value = ''; t.dispatchEvent(new Event('input'))")
    with http_client(origin) as client:
        client.post("/api/v1/tenants/acme/agents/edge-007/revoke", json={}).raise_for_status()
        states = {
            state: len(client.get(f"/api/v1/tenants/acme/agents?state={state}&limit=1000").json()["agents"])
            for state in ("connected", "not_connected", "revoked")
        }
        every = client.get("/api/v1/tenants/acme/agents?limit=1000").json()
        assert client.get("/api/v1/tenants/acme/agents?state=gone").status_code == 422
    assert (states["revoked"], sum(states.values()), every["total"]) == (1, 106, 106)
    seen = [agent["connected"] and agent["revoked_at_us"] is None for agent in every["agents"]]
    assert states["connected"] == every["connected"] == sum(seen)
    choose(page, "which", "revoked")
    wait_for("the one that is revoked", lambda: page.run(rows) == ["edge-007"])
    page.run("const t = document.querySelector('#text'); t.value = 'agent'; t.dispatchEvent(new Event('input'))")
    page.wait_for_text("#none", "No agent is so.")


def test_page_when_there_is_none_of_its_address_then_a_browser_is_led_back_and_a_program_gets_a_problem(
    page: Browser,
) -> None:
    origin = page.run("return location.origin")
    page.emulate(*LOOKS["light"])
    page.open(f"{origin}/sorces/shop")
    assert "There is no such page" in page.text("main")
    (told,) = page.complaints()
    assert "404" in told
    page.picture(PICTURES / "missing-light.png")
    assert barriers(page) == []
    page.click("#to-fleet")
    page.wait_for_text("#agents-title", "Agents")
    with http_client(origin) as client:
        assert client.get("/sorces/shop").json()["code"] == "PATH_UNKNOWN"
        browsers = {"accept": "text/html,*/*"}
        assert client.get("/api/v1/sorces", headers=browsers).json()["code"] == "PATH_UNKNOWN"
        assert client.get("/sorces/shop", headers=browsers).status_code == 404


def test_fleet_page_when_a_configuration_is_not_met_then_what_is_asked_stands_beside_what_runs(
    page: Browser, registry: SqlRegistry
) -> None:
    seen = facts.agent_seen(sources=["shop", "crm"])
    registry.record_agent(seen)
    origin = page.run("return location.origin")
    with http_client(origin) as client:
        for source in ("shop", "crm"):
            body = {"agent": "agent-1", "configuration": {"kind": "memory"}}
            client.post(f"/api/v1/tenants/acme/sources/{source}/configuration", json=body).raise_for_status()
    until = now_us() + 10 * 86_400_000_000
    registry.record_agent(replace(seen, is_identified=True, certificate_expires_at_us=until))
    facts.record_heartbeat(registry, "acme", "agent-1", 48 << 20, 1, [], facts.fresh_us())
    sent = {each.source: each.sha256 for each in registry.configurations(("acme", "agent-1"))}
    refused = Problem("CONFIG_INVALID", "dump.workers is no number. Correct it.", terminal=True, at_us=T0)
    told = [ConfigurationSeen("crm", 1, sent["crm"], None), ConfigurationSeen("shop", 0, "", refused)]
    registry.record_configurations(("acme", "agent-1"), told, "told", T0)
    page.open(f"{origin}/fleet?tenant=acme")
    page.wait_for_text("#agents", "crm: generation 1 runs, as asked")
    page.wait_for_text("#agents", "shop: generation 1 is asked since")
    page.wait_for_text("#agents", "none runs. dump.workers is no number. Correct it.")
    page.wait_for_text("#agents", "good for")
    cells = "return [...document.querySelectorAll('#agents .configuration > *')].map((each) => each.className)"
    assert page.run(cells) == ["problem", "muted"], "what is not met comes first"


def test_fleet_page_when_an_agent_is_added_then_its_line_is_shown_with_how_long_it_is_good(
    page: Browser, database: Database, registry: SqlRegistry, tmp_path: Path
) -> None:
    facts.record_shop(registry)
    page.emulate(*LOOKS["light"])
    page.open(page.run("return location.origin") + "/fleet")
    page.wait_for_text("#agents", "db1.example")
    page.click("#add-agent")
    page.run("document.querySelector('#gateway').value = 'gw.example:7070'")
    page.click("#make-token button")
    page.wait_for_text("#token-outcome", "CA_MISSING")
    assert len(page.complaints()) == 1, "the browser tells of a refusal"
    SqlAuthority(database, tmp_path / "ca", timedelta(hours=1))
    page.click("#make-token button")
    page.wait_for_text("#line", "menura agent enrol --config agent.yaml --gateway gw.example:7070 --token menura1.")
    page.wait_for_text("#countdown", "Good for 00:5")
    page.picture(PICTURES / "fleet-drawer-light.png")
    assert barriers(page) == []
    page.click("#enrolment-end")
    wait_for("the line to be gone", lambda: page.run("return document.querySelector('#line').textContent") == "")


def test_table_page_when_an_order_is_planned_then_it_is_done_after_a_yes_and_the_ledger_says_who(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    page.open(page.run("return location.origin") + f"/table?{SHOP}&database=shop&table=orders")
    page.wait_for_text("#columns", "varchar(200)")
    page.wait_for_text("#ledger", "The table was never synced")
    assert page.run("return document.querySelector('#begin').value") == "dump", "as its remedy says"
    page.run("document.querySelector('#begin').value = 'now'")
    page.click("#start-table")
    page.wait_for_text("#confirm-title", "shop.orders would be started")
    page.wait_for_text("#confirm", "It starts from now.")
    page.wait_for_text("#confirm-facts", "will be missing")
    page.click("#confirm-no")
    page.wait_for_text("#outcome", "Nothing was changed.")
    assert registry.desired(KEY).tables == ()
    page.click("#start-table")
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "shop.orders: started.")
    assert [each.table for each in registry.desired(KEY).tables] == ["orders"]
    page.wait_for_text("#ledger", "by anonymous")
    page.click("#check-ledger")
    page.wait_for_text("#ledger-outcome", "All 1 entries are as they were written.")
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)], events=[event("orders", 1)])))
    page.wait_for_text("#events", "TRUNCATED")


def test_table_page_when_its_filter_is_changed_then_what_would_leave_is_shown_before_it_is_saved(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    origin = page.run("return location.origin")
    page.open(f"{origin}/table?{SHOP}&database=shop&table=orders")
    page.wait_for_text("#columns", "varchar(200)")
    assert page.run("return document.querySelector('#filter-section').hidden"), "it is not configured here"
    kept = {"kind": "memory", "filter": {"other": None}}
    with http_client(origin) as client:
        body = {"agent": "agent-1", "configuration": kept}
        client.post("/api/v1/tenants/acme/sources/shop/configuration", json=body).raise_for_status()

    def saved(click: str, words: str) -> dict[str, object]:
        page.click("#edit-filter")
        page.wait_for_text("#filter-preview", "would leave the host")
        page.click(click)
        page.wait_for_text("#filter-preview", words)
        page.click("#table-filter button[type=submit]")
        page.wait_for_text("#confirm-question", words)
        page.click("#confirm-yes")
        page.wait_for_text("#filter-outcome", "Saved as generation")
        wait_for("the editor to close", lambda: page.run("return document.querySelector('#table-filter').hidden"))
        (configured,) = registry.configurations(("acme", "agent-1"))
        found: dict[str, object] = json.loads(configured.document)["filter"]
        return found

    without_note = saved(
        "#filter-columns input[value=note]", "1 of 2 columns would leave the host: id. These stay: note."
    )
    assert without_note == {"other": None, "shop.orders": {"ignored_columns": ["note"]}}
    assert saved("#filter-leaves", "No row of the table would leave") == {"other": None, "shop.orders": None}
    assert saved("#filter-leaves", "2 of 2 columns would leave the host: id, note.") == {"other": None}
    page.click("#edit-filter")
    page.wait_for_text("#filter-preview", "2 of 2 columns")
    with http_client(origin) as client:
        body = {"agent": "agent-1", "configuration": kept | {"dump": {"workers": 2}}}
        client.post("/api/v1/tenants/acme/sources/shop/configuration", json=body).raise_for_status()
    page.picture(PICTURES / "table-filter-light.png")
    assert barriers(page) == []
    page.click("#filter-columns input[value=note]")
    page.click("#table-filter button[type=submit]")
    page.click("#confirm-yes")
    page.wait_for_text("#filter-outcome", "Somebody has changed the configuration meanwhile.")
    page.click("#filter-end")
    kept["filter"] = {"other": None, "shop.orders": {"ignored_columns": ["Card_Number"]}}
    with http_client(origin) as client:  # the host's policy keeps the column out of what is told of the table
        body = {"agent": "agent-1", "configuration": kept}
        client.post("/api/v1/tenants/acme/sources/shop/configuration", json=body).raise_for_status()
    both = "1 of 2 columns would leave the host: id. These stay: note, Card_Number."
    ignored = {"ignored_columns": ["note", "Card_Number"]}
    assert saved("#filter-columns input[value=note]", both) == {"other": None, "shop.orders": ignored}


def test_tables_page_when_all_that_match_are_chosen_then_one_plan_is_shown_and_one_order_does_them(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, *(f"table_{number:03}" for number in range(250)), "other")
    page.open(page.run("return location.origin") + f"/tables?{SHOP}")
    page.wait_for_text("#tables-total", "251 tables")
    page.run(
        "const text = document.querySelector('#text'); text.value = 'table_'; text.dispatchEvent(new Event('input'))"
    )
    page.wait_for_text("#tables-total", "250 tables")
    page.click("#choose-all")
    page.wait_for_text("#chosen-words", "250 chosen")
    page.click("#tables input[aria-label='Choose shop.table_007']")
    page.click("#order-start")
    page.wait_for_text("#confirm-title", "249 of 249 tables would be started")
    page.wait_for_text("#confirm", "They start from the last stop")
    assert registry.desired(KEY).tables == ()
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "249 of 249 tables: started.")
    assert len(registry.desired(KEY).tables) == 249
    assert page.text("#chosen-words") == "", "the order was the last of the choice"


def test_settings_page_when_a_token_is_made_then_its_secret_is_shown_once_and_it_can_be_revoked(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    page.open(page.run("return location.origin") + "/settings")
    page.wait_for_text("#no-api-token", "There is no token")
    roles = page.run("return [...document.querySelectorAll('#token-role option')].map((each) => each.value)")
    assert [role for role in roles if role not in page.text("#api-section > .muted")] == []
    page.run("document.querySelector('#token-name').value = 'nightly'")
    page.run("document.querySelector('#token-role').value = 'operator'")
    page.click("#make-token button")
    page.wait_for_text("#outcome", "nightly: made, good until")
    assert page.text("#secret")
    page.wait_for_text("#api-tokens", "operator, by anonymous")
    page.click("#forget")
    assert page.run("return document.querySelector('#secret').textContent") == ""
    page.click("#api-tokens button")
    page.wait_for_text("#confirm", "sessions that it has opened end")
    page.click("#confirm-yes")
    page.wait_for_text("#api-tokens", "revoked")


def test_settings_page_when_its_reader_is_no_admin_then_shows_the_roles_and_no_tokens(
    chromium: Browser, database: Database, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    with serving(database, access=Access()) as url:
        chromium.open(f"{url}/login")
        chromium.run("document.querySelector('#token').value = arguments[0]", made(database, Role.VIEWER).token)
        chromium.click("#login button")
        chromium.wait_for_text("#actor", "viewer-of-tests")
        chromium.click("#to-settings")
        chromium.wait_for_text("#grants", "viewer of the tenant acme")
        chromium.wait_for_text("#no-admin", "Who administers the tenant sees its tokens")
        chromium.wait_for_text("#connection", "live")
        assert usable(chromium) == []
        assert chromium.complaints() == []
        chromium.click("#logout")
        chromium.wait_for_text("main", "Token of the API")
        chromium.open("about:blank")
        chromium.complaints()  # a question on its way may come after the session's end
