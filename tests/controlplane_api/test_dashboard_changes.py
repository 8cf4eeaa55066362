"""Recent changes on a table's page, over a real lake and the search service, in a real browser.

Pictures of them, light, dark and narrow, are in build/dashboard afterwards.
"""

from collections.abc import Iterator

import pytest

from controlplane_api.database import Database
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from spark_sink.search import service
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.callers import made
from tests.controlplane_api.test_dashboard import HOSTILE, chromium, kind
from tests.controlplane_api.test_dashboard_search import dashboard, pictures, shop
from tests.spark_sink.landing import delete, insert, truncate, update
from tests.spark_sink.search_shop import ORDERS, Shop, answering, order
from tests.stack import wait_for

__all__ = ["chromium", "kind", "shop"]

OF_TABLE = "/table?tenant=acme&source=shop&database=shop&table=orders"


@pytest.fixture
def url(registry: SqlRegistry, shop: Shop) -> Iterator[str]:
    facts.record_shop(registry)
    with answering(service.SearchService(shop.indexes, str(shop.lake.folder), timeout_seconds=300)) as url:
        yield url


def shown(page: Browser) -> list[list[str]]:
    """Change, key and values of each row."""
    cells = "[...row.children].slice(1).map((cell) => cell.innerText.trim())"
    found: list[list[str]] = page.run(f"return [...document.querySelectorAll('#changes tr')].map((row) => {cells})")
    return found


def test_changes_when_somebody_asks_for_them_then_they_come_as_they_are_committed_and_values_are_text(
    chromium: Browser, database: Database, shop: Shop, url: str
) -> None:
    with dashboard(chromium, database, url) as origin:
        chromium.open(origin + OF_TABLE)
        chromium.wait_for_text("#changes-section", "Show values")
        assert shown(chromium) == [], "no value is shown before somebody asks"
        chromium.click("#toggle-changes")
        chromium.wait_for_text("#changes", HOSTILE)
        assert shown(chromium)[0][:2] == ["inserted", "id=41"]
        assert chromium.run("return document.querySelectorAll('#changes img').length") == 0
        shop.cut(
            (ORDERS, [update(order(3), order(3, status="late", note=None)), delete(**order(5)), insert(**order(42))])
        )
        wait_for("the newest to come without reloading", lambda: shown(chromium)[0][1] == "id=42", every=0.05)
        came, went, changed = shown(chromium)[:3]
        assert (came[0], went[:2], changed[:2]) == ("inserted", ["deleted", "id=5"], ["updated", "id=3"])
        assert changed[2].splitlines() == [f"status {order(3)['status']} → late", f"note {order(3)['note']} → NULL"]
        assert f"total {order(5)['total']}" in went[2]
        chromium.wait_for_text("#changes-as-of", "up to cut 3")
        assert pictures(chromium, "table-changes") == {}
        shop.cut(truncate(ORDERS))
        wait_for("all to be gone", lambda: shown(chromium)[0] == ["all rows removed", "", ""], every=0.05)
        chromium.click("#toggle-changes")
        assert shown(chromium) == []
        assert chromium.text("#toggle-changes") == "Show values"


def test_changes_when_a_role_does_not_read_rows_then_it_is_said_whose_they_are(
    chromium: Browser, database: Database, url: str
) -> None:
    with dashboard(chromium, database, url, anonymous=False) as origin:
        for role, words in ((Role.VIEWER, "reader"), (Role.READER, HOSTILE)):
            chromium.open(f"{origin}/login")
            chromium.run("document.querySelector('#token').value = arguments[0]", made(database, role).token)
            chromium.click("#login button")
            chromium.wait_for_text("#actor", f"{role}-of-tests")
            chromium.open(origin + OF_TABLE)
            chromium.wait_for_text("#changes-section", "Show values")
            chromium.click("#toggle-changes")
            chromium.wait_for_text("#changes-section", words)
            chromium.wait_for_text("#connection", "live")
            assert bool(shown(chromium)) == (role is Role.READER)
            chromium.click("#logout")
            chromium.wait_for_text("main", "Token of the API")


def test_changes_when_the_api_has_no_search_service_then_it_is_said_how_there_is_one(
    chromium: Browser, database: Database, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    with dashboard(chromium, database, None) as origin:
        chromium.open(origin + OF_TABLE)
        chromium.wait_for_text("#changes-section", "Show values")
        chromium.click("#toggle-changes")
        chromium.wait_for_text("#changes-outcome", "menura search serve")
        assert chromium.text("#toggle-changes") == "Show values"
