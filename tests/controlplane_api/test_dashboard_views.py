"""The dashboard's page of views: how fresh each is beside its tables, and why one stands."""

from collections.abc import Iterator

import httpx
import pytest

from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.lake_facts import HttpSink
from tests.controlplane_api.test_dashboard import HOSTILE, chromium, kind, page
from tests.controlplane_api.test_joined_views import SQL, created, stream, told
from tests.stack import http_client

__all__ = ["chromium", "kind", "page"]


@pytest.fixture
def client(page: Browser) -> Iterator[httpx.Client]:
    with http_client(page.run("return location.origin")) as client:
        yield client


@pytest.fixture
def sink(page: Browser, client: httpx.Client, database: Database, registry: SqlRegistry) -> HttpSink:
    """Of a lake that has the view, which follows its tables; the page is open."""
    facts.record_shop(registry)
    created(client)
    sink = HttpSink(client=client)
    stream(database, registry, sink)
    sink.put(views=(told(),))
    page.open(page.run("return location.origin") + "/views?tenant=acme")
    page.wait_for_text("#views", "paid")
    return sink


def test_views_page_when_there_is_none_then_says_how_to_begin(page: Browser) -> None:
    page.click("#to-views")
    page.wait_for_text("#empty", "There is no view yet")
    page.wait_for_text("#connection", "live")


def test_views_page_when_a_view_is_followed_then_it_stands_beside_its_tables_and_when_it_stops_says_why(
    page: Browser, sink: HttpSink
) -> None:
    page.wait_for_text("#views", "streaming")
    page.wait_for_text("#views", "shop.shop.orders, shop.shop.items")
    page.click("#views a[href*='view=paid']")
    page.wait_for_text("#sql", SQL)
    page.wait_for_text("#plan", "orders")
    page.wait_for_text("#reads", "items")
    page.wait_for_text("#lakes", "shop 1")
    sink.put(views=(told(state="stopped", code="VIEW_REFUSED", message=f"no such type {HOSTILE}"),))
    page.wait_for_text("#reason", "no such type <img")
    page.wait_for_text("#view-state", "failed")
    assert "view=paid" in page.run("return document.querySelector('#search-view').href")
    assert page.run("return window.hacked") is None


@pytest.mark.parametrize("width", [390, 1280])
def test_views_page_when_it_is_narrow_then_nothing_is_wider_than_it(page: Browser, sink: HttpSink, width: int) -> None:
    page.resize(width, 900)
    page.click("#views a[href*='view=paid']")
    page.wait_for_text("#lakes", "shop 1")
    assert page.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    seen = "[...document.querySelectorAll('button,a,select')].filter((each) => each.checkVisibility())"
    unnamed = f"{seen}.filter((each) => !(each.labels?.[0] ?? each).textContent.trim() && !each.ariaLabel)"
    assert page.run(f"return {unnamed}.length") == 0
