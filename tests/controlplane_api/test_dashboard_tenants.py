"""The Settings page's list of tenants: who sees it, by pages and by name, and that it is live."""

from collections.abc import Iterator

import pytest

from controlplane_api.api.app import Access
from controlplane_api.database import Database
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey
from tests.axe import barriers
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_dashboard import chromium, held, kind, page
from tests.stack import http_client, wait_for

__all__ = ["chromium", "held", "kind", "page"]

NAMES = "return [...document.querySelectorAll('#tenants tr b')].map((each) => each.textContent)"
TYPE = "const t = document.querySelector('#text'); t.value = arguments[0]; t.dispatchEvent(new Event('input'))"


@pytest.fixture
def origin(page: Browser, registry: SqlRegistry) -> Iterator[str]:
    facts.record_shop(registry, "orders", "items")
    facts.record_shop(registry, "orders", key=SourceKey("globex", "shop"))
    yield page.run("return location.origin")


def test_settings_page_when_its_reader_sees_the_fleet_then_lists_tenants_and_follows_them_without_reloading(
    page: Browser, registry: SqlRegistry, origin: str
) -> None:
    page.open(f"{origin}/settings?tenant=acme")
    page.wait_for_text("#tenants", "globex")
    row = "return [...document.querySelectorAll('#tenants tr:first-child td')].map((each) => each.textContent)"
    assert page.run(row)[:4] == ["acme", "1", "1", "0"]
    assert page.run("return document.querySelector('#tenants a').getAttribute('href')") == "/?tenant=acme"
    page.run("window.isTheSame = true")
    with http_client(origin) as client:
        client.post("/api/v1/tenants/acme/sources/shop/tables/shop/orders/start", json={}).raise_for_status()
        wait_for("its table", lambda: page.run(row)[:4] == ["acme", "1", "1", "1"], every=0.05)
        facts.record_shop(registry, key=SourceKey("initech", "shop"))
        page.wait_for_text("#tenants", "initech")
    assert page.run("return window.isTheSame") and not page.run("return document.querySelector('.pages').offsetHeight")
    assert barriers(page) == []


def test_settings_page_when_there_are_many_tenants_then_has_pages_of_them_and_finds_some_by_name(
    page: Browser, database: Database, origin: str
) -> None:
    for number in range(60):
        made(database, Role.VIEWER, f"t{number:02}")
    page.open(f"{origin}/settings?tenant=acme")
    page.wait_for_text("#tenants", "t47")
    assert page.text("#page") == "Page 1" and len(page.run(NAMES)) == 50
    page.click("#next")
    page.wait_for_text("#page", "Page 2")
    wait_for("the last ones", lambda: page.run(NAMES) == [f"t{number}" for number in range(48, 60)], every=0.05)
    page.run(TYPE, "BEX")
    wait_for("the one of that name", lambda: page.run(NAMES) == ["globex"], every=0.05)
    page.run(TYPE, "nobody")
    page.wait_for_text("#no-tenant", "No tenant has this in its name.")


def test_settings_page_when_there_is_no_tenant_then_says_how_one_begins(page: Browser) -> None:
    page.open(page.run("return location.origin") + "/settings")
    page.wait_for_text("#no-tenant", "There is no tenant yet.")
    page.wait_for_text("#tenants-section", "menura token create --tenant NAME")


@pytest.mark.parametrize(("role", "tenant", "sees"), [
    (Role.VIEWER, None, True), (Role.ADMIN, "acme", False), (Role.VIEWER, "acme", False),
])  # fmt: skip
def test_settings_page_when_its_reader_is_a_tenants_then_lists_no_tenant(
    chromium: Browser, database: Database, registry: SqlRegistry, role: Role, tenant: str | None, *, sees: bool
) -> None:
    facts.record_shop(registry)
    facts.record_shop(registry, key=SourceKey("globex", "shop"))
    with serving(database, access=Access()) as url:
        chromium.open(f"{url}/login")
        chromium.run("document.querySelector('#token').value = arguments[0]", made(database, role, tenant).token)
        chromium.click("#login button")
        chromium.wait_for_text("#actor", f"{role}-of-tests")
        chromium.click("#to-settings")
        chromium.wait_for_text("#grants", "of the whole fleet" if tenant is None else "of the tenant acme")
        assert chromium.run("return document.querySelector('#tenants-section').hidden") is not sees
        assert ("globex" in chromium.run("return document.querySelector('main').textContent")) is sees
        assert chromium.complaints() == []
        chromium.click("#logout")
        chromium.wait_for_text("main", "Token of the API")
        chromium.open("about:blank")
        chromium.complaints()  # a question on its way may come after the session's end
