"""Pages that show what changes as it changes, without asking: in Chromium, over the API and its streams."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from controlplane_api.api import live
from controlplane_api.api.app import Access
from controlplane_api.api.gate import Gate
from controlplane_api.api.live import Live
from controlplane_api.database import Database
from controlplane_api.identity import api_tokens
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import LANDING, cut, entry
from tests.controlplane_api.test_api import SHOP
from tests.controlplane_api.test_dashboard import chromium, kind, page
from tests.stack import http_client, wait_for

__all__ = ["chromium", "kind", "page"]

OF_SHOP = "tenant=acme&source=shop"


@dataclass
class Seen:
    """Requests of pages, streams that are open, and what is to become of streams."""

    requests: list[str] = field(default_factory=list)
    streams: int = 0
    #: "": nothing; "cut": they end; "kept back": a proxy lets nothing through
    fate: str = ""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.2)
    found = Seen()
    answer, texts = Gate.__call__, Live.texts

    async def count(gate: Gate, scope: Scope, receive: Receive, send: Send) -> None:
        is_pages = b"sec-fetch-site" in dict(scope.get("headers", ()))
        if is_pages and scope["path"].startswith("/api/v1/") and not scope["path"].endswith("/live"):
            found.requests.append(f"{scope['path']}?{scope['query_string'].decode()}")
        await answer(gate, scope, receive, send)

    async def pass_on(self: Live, *arguments: Any) -> AsyncGenerator[str, None]:
        found.streams += 1
        try:
            async with aclosing(texts(self, *arguments)) as passing:
                async for text in passing:
                    if found.fate == "cut":
                        return
                    if not found.fate:
                        yield text
        finally:
            found.streams -= 1

    monkeypatch.setattr(Gate, "__call__", count)
    monkeypatch.setattr(Live, "texts", pass_on)
    return found


def wait_until_live(page: Browser) -> None:
    wait_for("a live page", lambda: page.text("#connection") == "live", every=0.05)


def heartbeat(registry: SqlRegistry, lag_us: int) -> None:
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=lag_us)], facts.fresh_us())


def order(page: Browser, path: str, body: dict[str, Any]) -> None:
    """Somebody else's."""
    with http_client(page.run("return location.origin")) as client:
        client.post(path, json=body).raise_for_status()


def land(registry: SqlRegistry) -> None:
    registry.apply_entry(LANDING, entry(1, cut(1)))


ORDERS = {"tables": [{"database": "shop", "table": "orders"}]}
TOKEN = {"name": "nightly", "role": "viewer", "ttl_seconds": 600}
Change = Callable[[Browser, SqlRegistry], None]
#: address, what changes at the server, and where which words appear
CHANGES: dict[str, tuple[str, Change, str, str]] = {
    "sources": ("/?tenant=acme", lambda _, registry: heartbeat(registry, 1_500_000), "#sources", "1.5 s"),
    "source": (f"/source?{OF_SHOP}", lambda _, registry: land(registry), "#log", "cut 1,"),
    "tables": (
        f"/tables?{OF_SHOP}",
        lambda page, _: order(page, f"{SHOP}/start", ORDERS | {"start": "now"}),
        "#tables",
        "pending",
    ),
    "table": (
        f"/table?{OF_SHOP}&database=shop&table=orders",
        lambda page, _: order(page, f"{SHOP}/start", ORDERS | {"start": "now"}),
        "#table-state",
        "pending",
    ),
    "dumps": (
        "/dumps?tenant=acme",
        lambda page, _: order(page, f"{SHOP}/start", ORDERS | {"start": "dump"}),
        "#dumps",
        "shop.orders",
    ),
    "proof": (
        f"/proof?{OF_SHOP}",
        lambda page, _: order(page, f"{SHOP}/start", ORDERS | {"start": "now"}),
        "#tables",
        "shop.orders",
    ),
    "fleet": (
        "/fleet?tenant=acme",
        lambda _, registry: registry.record_agent(facts.agent_seen(sources=("shop", "another"))),
        "#agents",
        "another",
    ),
    "audit": (
        "/audit?tenant=acme",
        lambda page, _: order(page, "/api/v1/tenants/acme/api-tokens", TOKEN),
        "#entries",
        "create api token",
    ),
    "settings": (
        "/settings?tenant=acme",
        lambda page, _: order(page, "/api/v1/tenants/acme/api-tokens", TOKEN),
        "#api-tokens",
        "nightly",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_page_when_something_changes_at_the_server_then_shows_it_and_asks_for_nothing(
    seen: Seen, page: Browser, registry: SqlRegistry, name: str
) -> None:
    facts.record_shop(registry, "orders")
    address, change, where, words = CHANGES[name]
    page.open(page.run("return location.origin") + address)
    wait_until_live(page)
    assert words not in page.text(where)
    page.run("window.isTheSame = true")
    wait_for("a page at rest", lambda: at_rest(page, seen))
    before = len(seen.requests)
    change(page, registry)
    page.wait_for_text(where, words)
    assert seen.requests[before:] == []
    assert page.run("return window.isTheSame") and page.text("#connection") == "live"


def at_rest(page: Browser, seen: Seen) -> bool:
    """It is drawn again, and again after that, and nothing was asked meanwhile."""
    before = len(seen.requests)
    page.run("window.ticks = 0; setInterval(() => { window.ticks += 1; }, 1000)")
    wait_for("ticks", lambda: page.run("return window.ticks") >= 2)
    return len(seen.requests) == before and seen.streams == 1


def test_page_when_time_passes_then_ages_grow_on_it_and_nothing_is_asked(
    seen: Seen, page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    land(registry)
    page.open(page.run("return location.origin") + f"/source?{OF_SHOP}")
    page.wait_for_text("#source-card", "freshness")
    wait_until_live(page)
    wait_for("a page at rest", lambda: at_rest(page, seen))
    before = len(seen.requests)
    first = page.text("#source-card")
    page.run("const now = performance.now.bind(performance); performance.now = () => now() + 7 * 86_400_000")
    wait_for("a greater age", lambda: page.text("#source-card") != first)
    assert len(seen.requests) == before


def test_page_when_nobody_looks_at_it_then_it_holds_no_stream_and_asks_for_nothing(
    seen: Seen, page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, "orders")
    page.open(page.run("return location.origin") + f"/tables?{OF_SHOP}")
    wait_until_live(page)
    wait_for("one stream", lambda: seen.streams == 1)
    page.run("Object.defineProperty(document, 'hidden', { get: () => true, configurable: true })")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    wait_for("its end", lambda: seen.streams == 0)
    before = len(seen.requests)
    order(page, f"{SHOP}/start", ORDERS | {"start": "now"})
    page.run("window.ticks = 0; setInterval(() => { window.ticks += 1; }, 1000)")
    wait_for("ticks", lambda: page.run("return window.ticks") >= 3)
    assert len(seen.requests) == before and "pending" not in page.text("#tables")
    page.run("delete document.hidden")
    page.run("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_text("#tables", "pending")
    wait_for("another stream", lambda: seen.streams == 1)


@pytest.mark.parametrize("fate", ["cut", "kept back"])
def test_page_when_its_stream_does_not_come_through_then_says_so_and_asks_until_it_does(
    seen: Seen, page: Browser, registry: SqlRegistry, fate: str
) -> None:
    facts.record_shop(registry, "orders")
    page.open(page.run("return location.origin") + f"/tables?{OF_SHOP}")
    page.run("const later = setTimeout; window.setTimeout = (act, ms) => later(act, ms >= 30_000 ? 1000 : ms)")
    wait_until_live(page)
    seen.fate = fate
    page.wait_for_text("#connection", "not live")
    assert page.run("return document.querySelector('#connection').title").startswith("The stream of changes")
    order(page, f"{SHOP}/start", ORDERS | {"start": "now"})
    page.wait_for_text("#tables", "pending")
    assert page.text("#connection") == "not live"
    seen.fate = ""
    wait_until_live(page)


def test_page_when_its_session_ends_then_leads_to_the_login(
    seen: Seen, chromium: Browser, database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.1)
    facts.record_shop(registry)
    viewer = made(database, Role.VIEWER)
    with serving(database, access=Access()) as url:
        chromium.open(f"{url}/login")
        chromium.run("document.querySelector('#token').value = arguments[0]", viewer.token)
        chromium.click("#login button")
        wait_until_live(chromium)
        with database.write() as connection:
            api_tokens.revoke(connection, "acme", viewer.id, facts.T0)
        wait_for("the login", lambda: "/login" in chromium.run("return location.pathname"), every=0.05)
        chromium.open("about:blank")
    chromium.complaints()  # that it was refused


def test_pages_when_more_windows_are_open_than_a_browser_has_connections_then_all_are_shown_and_some_are_not_live(
    seen: Seen, page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, "orders")
    address = page.run("return location.origin") + f"/tables?{OF_SHOP}"
    page.open("about:blank")
    with page.windows(7) as windows:
        for window in windows:
            page.to_window(window)
            page.open(address)
        said = [said_of(page, window) for window in windows]
        assert (said.count("live"), said.count("not live")) == (4, 3)
        assert seen.streams == 4
        for window in (window for window, words in zip(windows, said, strict=True) if words == "live"):
            page.to_window(window)
            page.open("about:blank")
        page.to_window(windows[said.index("not live")])  # as many slots are free now as windows wait, and more
        wait_until_live(page)


def said_of(page: Browser, window: str) -> str:
    page.to_window(window)
    page.wait_for_text("#tables", "orders")
    return str(wait_for("what it says", lambda: page.text("#connection"), every=0.05))


def test_link_when_its_card_has_greater_ages_while_it_is_pressed_then_the_click_counts(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    land(registry)
    page.wait_for_text("#sources", "freshness")
    with page.pressed("#sources a.source-name"):
        page.run("const now = performance.now.bind(performance); performance.now = () => now() + 7 * 86_400_000")
        page.run("window.seconds = 0; setInterval(() => { window.seconds += 1; }, 1000)")
        wait_for("a drawing or two", lambda: page.run("return window.seconds") > 1, every=0.05)
    wait_for("the source's page", lambda: page.run("return location.pathname") == "/source")
