"""The dashboard's page of searches over a real lake, its indexes and the search service, in a real browser.

Pictures of it, light, dark and narrow, are in build/dashboard afterwards.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from controlplane_api.api import search_service
from controlplane_api.api.app import Access
from controlplane_api.api.search_service import SearchService
from controlplane_api.database import Database
from controlplane_api.errors import SearchAway
from controlplane_api.identity.callers import Role
from controlplane_api.registry.sql_registry import SqlRegistry
from spark_sink.search import lag, service
from tests.axe import barriers
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.callers import made
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_dashboard import HOSTILE, ask_again, choose, chromium, kind, usable
from tests.controlplane_api.test_dashboard_pages import LOOKS, PICTURES
from tests.spark_sink.landing import delete, insert
from tests.spark_sink.search_shop import LAST_ID, ORDERS, Shop, answering, joined, order
from tests.stack import wait_for

__all__ = ["chromium", "kind"]

OF_VIEW = "/search?tenant=acme&view=orders_of_customers"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(lag, "WAIT_SECONDS", 300)
    monkeypatch.setattr(lag, "FRESH_SECONDS", 0)
    monkeypatch.setattr(search_service, "ANSWER_SECONDS", 300)
    shop = Shop(tmp_path)
    shop.fill()
    shop.cut((ORDERS, [insert(**order(41, note=f"red {HOSTILE} " + "and so on " * 40))]))
    shop.index()
    return shop


@contextmanager
def dashboard(chromium: Browser, database: Database, url: str | None, *, anonymous: bool = True) -> Iterator[str]:
    """Its origin; the service is at `url`."""
    access = Access(anonymous=anonymous, search=None if url is None else SearchService(url))
    with serving(database, access=access) as origin:
        chromium.emulate(*LOOKS["light"])
        yield origin
        said = [each for each in chromium.complaints() if "the server responded with a status of" not in each]
        assert said == []
        assert chromium.run("return window.hacked") is None
        chromium.open("about:blank")


@pytest.fixture
def page(chromium: Browser, database: Database, registry: SqlRegistry, shop: Shop) -> Iterator[Browser]:
    facts.record_shop(registry)
    with (
        answering(service.SearchService(shop.indexes, timeout_seconds=300)) as url,
        dashboard(chromium, database, url) as origin,
    ):
        chromium.open(origin + OF_VIEW)
        chromium.wait_for_text("#count", "41 rows")
        yield chromium


def type_into(page: Browser, words: str) -> None:
    """Letter by letter, as a person does, but without a pause."""
    page.run(
        "const field = document.querySelector('#text');"
        "for (let last = 0; last <= arguments[0].length; last++) {"
        "  field.value = arguments[0].slice(0, last); field.dispatchEvent(new Event('input'));"
        "}",
        words,
    )


def fragment(page: Browser) -> dict[str, list[str]]:
    return parse_qs(page.run("return location.hash.slice(1)"))


def rows(fits: Callable[[Any], bool]) -> str:
    """How many of the view's, as the page says it; order 41's note is HOSTILE."""
    found = sum(map(fits, joined(41)))
    return f"{found} rows" if found != 1 else "1 row"


def has(each: Any, *words: str) -> bool:
    """In its texts; the letters of accents stay."""
    note = "red img src and so on" if each["id"] == 41 else each["note"]
    said = " ".join(str(part) for part in (note, each["customer"], each["city"], each["status"])).lower()
    return all(re.search(rf"\b{word}", said) for word in words)


def pressed(column_and_value: str) -> str:
    return f"#counts [data-filter='{column_and_value}']"


def ids(page: Browser) -> list[str]:
    return page.run("return [...document.querySelectorAll('#rows .opener')].map((each) => each.textContent)")


def test_page_when_somebody_types_then_rows_are_found_marked_counted_and_filtered_and_the_address_has_it(
    page: Browser,
) -> None:
    type_into(page, "krakow lam*")
    page.wait_for_text("#count", rows(lambda each: has(each, "kraków", "lam")))
    marks = "return [...document.querySelectorAll('#rows mark')].map((each) => each.textContent)"
    assert set(page.run(marks)) == {"lamps", "Kraków"}
    page.wait_for_text("#rows", "city: Kraków")  # of a column that the list does not show
    page.wait_for_text("#as-of", "as of the lake's newest cut, 2")
    assert fragment(page) == {"text": ["krakow lam*"]}
    assert "krakow" not in page.run("return location.search"), "no server is sent the words"
    type_into(page, "")
    page.wait_for_text("#counts", "Grace Hopper")
    page.click(pressed("customer=Grace Hopper"))
    page.wait_for_text("#count", "8 rows")
    page.wait_for_text("#filters", "customer=Grace Hopper")
    wait_for(
        "the value to be seen as chosen",
        lambda: (
            page.run("return document.querySelector('#counts [aria-pressed=true]')?.dataset.filter")
            == "customer=Grace Hopper"
        ),
        every=0.05,
    )
    page.click("#adding > summary")
    page.run("document.querySelector('#column').value = 'total'")
    page.run("document.querySelector('#column').dispatchEvent(new Event('change'))")
    page.run("document.querySelector('#operator').value = '>='")
    page.run("document.querySelector('#value').value = '40.00'")
    page.click("#add button")
    page.wait_for_text("#filters", "total>=40.00")
    dear = rows(lambda each: each["total"] >= 40)
    of_grace = rows(lambda each: each["total"] >= 40 and has(each, "grace"))
    page.wait_for_text("#count", of_grace)
    assert fragment(page) == {"filter": ["customer=Grace Hopper", "total>=40.00"]}
    shared = page.run("return location.href")
    found = ids(page)
    page.click("button[aria-label='Remove the filter customer=Grace Hopper']")
    page.wait_for_text("#count", dear)
    page.open("about:blank")
    page.open(shared)
    page.wait_for_text("#count", of_grace)
    wait_for("the same rows", lambda: ids(page) == found, every=0.05)
    page.click(pressed("customer=Grace Hopper"))  # pressed again it goes
    page.wait_for_text("#count", dear)


def test_row_when_it_is_opened_then_all_of_it_is_there_joined_and_the_focus_comes_back(page: Browser) -> None:
    type_into(page, "zolkiewska")
    page.wait_for_text("#count", "8 rows")
    page.click("button[aria-label='Open row 3']")
    page.wait_for_text("#row-title", "orders_of_customers: 3")
    words = page.text("#values")
    for value in ("Zofia Żółkiewska", "Kraków", "Poland", "Two red lamps", "returned", "9.11"):
        assert value in words
    assert page.run("return document.querySelector('#values mark').textContent") == "Żółkiewska"
    assert page.run("return document.activeElement.id") == "row-close"
    assert pictures(page, "search-row") == {}
    page.click("#row-close")
    wait_for("the focus", lambda: page.run("return document.activeElement.ariaLabel") == "Open row 3", every=0.05)
    page.click("button[aria-label='Open row 3']")
    page.click("button[aria-label='Only these: rows with this status']")
    page.wait_for_text("#filters", "status=returned")
    assert page.run("return document.querySelector('#row').open") is False
    page.wait_for_text("#count", rows(lambda each: has(each, "żółkiewska", "returned")))
    page.open(page.run("return location.origin") + f"{OF_VIEW}#filter=id%3D{LAST_ID}")
    page.wait_for_text("#rows", str(LAST_ID))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Searches of these texts are answered once they are gone from here."""
    texts: set[str] = set()
    real = SearchService.ask

    async def ask(
        service: SearchService, answer: object, tenant: str, path: str, question: dict[str, object], *before: object
    ) -> object:
        while question.get("text") in texts:
            await asyncio.sleep(0.01)
        return await real(service, answer, tenant, path, question, *before)  # type: ignore[arg-type]

    monkeypatch.setattr(SearchService, "ask", ask)
    yield texts
    texts.clear()


def test_answers_when_an_older_one_comes_late_then_the_last_one_is_shown(page: Browser, held: set[str]) -> None:
    held.add("red")
    type_into(page, "red")
    wait_for("the first question", lambda: fragment(page).get("text") == ["red"], every=0.05)
    for words in ("green", "grete"):
        type_into(page, words)
        wait_for("the next one", lambda words=words: fragment(page).get("text") == [words], every=0.05)
    page.run("""
        window.shown = [];
        new MutationObserver(() => window.shown.push(document.querySelector('#count').textContent))
            .observe(document.querySelector('#count'), {childList: true, characterData: true, subtree: true});
    """)
    held.clear()
    page.wait_for_text("#count", "8 rows")
    page.wait_for_text("#counts", "Grete Hermann")
    assert page.run("return window.shown") == ["8 rows"], "neither the first answer nor the one between was shown"


def test_page_when_the_lake_goes_on_then_it_says_how_far_it_is_behind_and_shows_the_rows_that_come(
    page: Browser, shop: Shop
) -> None:
    shop.cut((ORDERS, [delete(**order(1)), delete(**order(2))]))
    ask_again(page)
    page.wait_for_text("#as-of", "behind the lake, which is at 3")
    assert page.text("#as-of").startswith("as of cut 2, ")
    shop.index()
    ask_again(page)
    page.wait_for_text("#count", "39 rows")
    page.wait_for_text("#as-of", "as of the lake's newest cut, 3")


def test_search_when_it_is_refused_then_the_words_say_what_to_change_and_the_last_rows_stay(page: Browser) -> None:
    type_into(page, '"red')
    page.wait_for_text("#refused", "a quotation mark without its other one. Put a second one behind the phrase.")
    assert page.run("return document.querySelector('#text').getAttribute('aria-invalid')") == "true"
    page.wait_for_text("#notices", "These are the rows of the search before")
    assert len(ids(page)) == 20
    assert barriers(page) == []
    type_into(page, '"red lamps"')
    page.wait_for_text("#count", rows(lambda each: has(each, "red lamps")))
    assert page.text("#refused") == ""
    type_into(page, "nothing of this")
    page.wait_for_text("#count", "No rows")
    assert pictures(page, "search-none") == {}
    page.click("#clear")
    page.wait_for_text("#count", "41 rows")
    assert page.run("return document.activeElement.id") == "text"
    page.click("#more")
    wait_for("all rows", lambda: len(ids(page)) == 41, every=0.05)
    page.open(page.run("return location.origin") + f"{OF_VIEW}#filter=total%3Dmuch")
    page.wait_for_text("#refused", "what it is compared with is no decimal")
    page.click("button[aria-label='Remove the filter total=much']")
    page.wait_for_text("#count", "41 rows")


def test_page_when_it_is_looked_at_then_nothing_bars_anybody_and_nothing_is_wider_than_the_screen(
    page: Browser,
) -> None:
    type_into(page, "red")
    page.wait_for_text("#count", rows(lambda each: has(each, "red\\b")))
    page.click(pressed("status=paid"))
    page.wait_for_text("#filters", "status=paid")
    page.wait_for_text("#counts", "paid")
    assert pictures(page, "search") == {}
    page.emulate(*LOOKS["narrow"])
    page.open(page.run("return location.href.replace('#', '&#')"))  # loaded anew: on a phone counts are closed
    page.wait_for_text("#filters", "status=paid")
    page.wait_for_text("#rows", "red")
    assert page.run("return document.querySelector('#facets').open") is False
    page.picture(PICTURES / "search-narrow.png")
    assert barriers(page) == []


def test_page_when_a_table_is_chosen_then_its_rows_are_searched_and_other_pages_lead_to_it(page: Browser) -> None:
    assert page.run("return [...document.querySelectorAll('#index optgroup')].map((each) => each.label)") == [
        "Views",
        "Tables of shop",
    ]
    choose(page, "index", '["shop","shop","orders"]')
    page.wait_for_text("#head", "customer_id")
    place = parse_qs(urlsplit(page.run("return location.href")).query)
    assert place == {"tenant": ["acme"], "source": ["shop"], "database": ["shop"], "table": ["orders"]}
    page.run("document.querySelector('#counting').open = true")
    page.click("#countable input[aria-label='customer_id']")
    page.wait_for_text("#counts", "customer_id")
    assert fragment(page)["facet"] == ["status", "note", "gift", "customer_id"]
    origin = page.run("return location.origin")
    page.open(f"{origin}/table?tenant=acme&source=shop&database=shop&table=orders")
    page.click("#search-table")
    page.wait_for_text("#head", "customer_id")
    page.open(f"{origin}/search?tenant=acme&source=shop&database=shop&table=none")
    page.wait_for_text("#empty", "shop.none has no search index")
    page.wait_for_text("#empty", "menura search index acme/shop/shop/none --lake LAKE --folder FOLDER --follow")
    assert len(usable(page)) == 1, "the choice alone"
    choose(page, "index", '["orders_of_customers"]')
    page.wait_for_text("#count", "41 rows")


def test_page_when_there_is_nothing_to_search_then_it_says_what_to_run(
    chromium: Browser, database: Database, registry: SqlRegistry, tmp_path: Path
) -> None:
    facts.record_shop(registry)
    with dashboard(chromium, database, None) as origin:
        chromium.open(f"{origin}/search?tenant=acme")
        chromium.wait_for_text("#empty", "No search service is configured")
        chromium.wait_for_text("#empty", "menura search serve --folder FOLDER")
        assert pictures(chromium, "search-missing") == {}
    with answering(service.SearchService(tmp_path)) as url, dashboard(chromium, database, url) as origin:
        chromium.open(f"{origin}/search?tenant=acme")
        chromium.wait_for_text("#empty", "Nothing of this tenant is indexed yet")
        assert barriers(chromium) == []


def test_page_when_the_service_goes_away_then_it_says_so_until_it_is_back(
    page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SearchService.ask

    async def ask(*_: object) -> None:
        raise SearchAway("asking the search service", "it can't be reached", remedy="Check that it runs")

    monkeypatch.setattr(SearchService, "ask", ask)
    ask_again(page)
    page.wait_for_text("#notices", "it can't be reached. Check that it runs. It is asked again by itself.")
    assert len(ids(page)) == 20, "what was shown last stays"
    monkeypatch.setattr(SearchService, "ask", real)
    ask_again(page)
    wait_for("the notice to go", lambda: page.text("#notices") == "", every=0.05)


def test_page_when_its_first_question_alone_has_no_answer_then_it_is_asked_again(
    page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failed = SearchService.ask, []

    async def ask(service: SearchService, answer: Any, tenant: str, path: str, *more: Any) -> Any:
        if path == "/v1/search" and not failed:
            failed.append(path)
            raise SearchAway("asking the search service", "it can't be reached", remedy="Check that it runs")
        return await real(service, answer, tenant, path, *more)

    monkeypatch.setattr(SearchService, "ask", ask)
    page.open(page.run("return location.origin") + OF_VIEW)
    page.wait_for_text("#count", "41 rows")
    assert failed


def test_page_when_its_reader_may_not_read_rows_then_it_says_which_role_does(
    chromium: Browser, database: Database, registry: SqlRegistry, shop: Shop
) -> None:
    facts.record_shop(registry)
    with (
        answering(service.SearchService(shop.indexes, timeout_seconds=300)) as url,
        dashboard(chromium, database, url, anonymous=False) as origin,
    ):
        for role, words in ((Role.VIEWER, "Your role does not read rows"), (Role.READER, "41 rows")):
            chromium.open(f"{origin}/login")
            chromium.run("document.querySelector('#token').value = arguments[0]", made(database, role).token)
            chromium.click("#login button")
            chromium.wait_for_text("#actor", f"{role}-of-tests")
            chromium.open(origin + OF_VIEW)
            chromium.wait_for_text("main", words)
            chromium.wait_for_text("#connection", "live")
            chromium.click("#logout")
            chromium.wait_for_text("main", "Token of the API")


def pictures(page: Browser, name: str) -> dict[str, list[str]]:
    found = {}
    for look, (width, scheme) in LOOKS.items():
        page.emulate(width, scheme)
        page.picture(PICTURES / f"{name}-{look}.png")
        wide = page.run("const {scrollWidth: is, clientWidth: may} = document.documentElement; return is - may")
        found[f"{name} {look}"] = barriers(page) + ([f"{wide} px too wide"] if wide > 0 else [])
    page.emulate(*LOOKS["light"])
    return {name: each for name, each in found.items() if each}
