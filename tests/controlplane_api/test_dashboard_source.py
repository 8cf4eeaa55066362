"""The page of one source: what it shows of now and of late, what is wrong with it, and one that is not there yet."""

from dataclasses import replace

import pytest

from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import Problem, SourceKey
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, file, started
from tests.controlplane_api.test_dashboard import ask_again, chromium, held, kind, page
from tests.stack import wait_for

__all__ = ["chromium", "held", "kind", "page"]

SHOP = "/source?tenant=acme&source=shop"
ASKED = "return performance.getEntriesByType('resource').filter((each) => each.name.includes(arguments[0])).length"


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories grow faster."""
    monkeypatch.setattr("controlplane_api.api.histories.STEP_SECONDS", 0.5)
    monkeypatch.setattr("controlplane_api.api.histories.FINE_OF_COARSE", 10_000)  # points of a day come no faster


def go_to(page: Browser, address: str) -> None:
    page.open(page.run("return location.origin") + address)


def test_source_page_when_it_is_opened_again_then_its_history_does_not_begin_anew(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=1_500_000)], facts.fresh_us())
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 1_234), start=[started("orders", 0)])))
    go_to(page, SHOP)
    page.wait_for_text("#history-words", "a restart of it begins anew")
    wait_for("two points", lambda: page.run("return !document.querySelector('#plots').hidden"))
    since = page.text("#history-words")
    go_to(page, SHOP)
    page.wait_for_text("#lag-plot", "1.5 s")
    assert page.text("#history-words") == since
    page.wait_for_text("#rate-plot", "Landed")
    page.run(
        "const span = document.querySelector('#span'); span.value = 'day'; span.dispatchEvent(new Event('change'))"
    )
    page.wait_for_text("#history-words", "The first points come within 10 min")


def test_source_page_when_its_log_is_kept_for_a_while_then_says_until_when_and_else_that_it_is_not_known(
    page: Browser, registry: SqlRegistry
) -> None:
    def told(**more: object) -> None:
        health = replace(facts.health(lag_us=3_600_000_000), **more)  # type: ignore[arg-type]
        facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [health], facts.fresh_us())

    facts.record_shop(registry)
    go_to(page, SHOP)
    page.wait_for_text("#log", "Not known: no agent has said anything")
    told()
    page.wait_for_text("#log", "Not known: the agent could not tell it")
    told(log_is_unlimited=True)
    page.wait_for_text("#log", "Unlimited: the server keeps its log until somebody removes it")
    told(log_is_unlimited=False)
    page.wait_for_text("#log", "Not known: the server keeps its log within a limit of size")
    told(log_retention_seconds=3 * 86_400)
    page.wait_for_text("#log", "The server keeps its log for 3.0 d. What is needed now is purged in about 3.0 d")
    told(log_retention_seconds=3_600)
    page.wait_for_text("#log", "may be purged already: start the agent")
    told(log_room_bytes=64 << 20)
    page.wait_for_text("#log", "once 64.0 MiB more have been written to its log.")


def test_source_page_when_something_is_wrong_then_each_problem_is_told_once_with_its_remedy(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    go_to(page, SHOP)
    page.wait_for_text("#source-card", "3 not synced")
    assert page.run("return document.querySelector('#errors-section').hidden")
    problem = Problem(
        "SOURCE_DOWN", "Connecting: refused. Nothing is lost. Start the server.", terminal=False, at_us=T0
    )
    warning = Problem("SLOT_RETENTION_SHORT", "The slot may be lost soon. Read on.", terminal=False, at_us=T0)
    registry.record_effective(KEY, 0, [], problem, T0, warnings=[warning])
    page.wait_for_text("#errors", "SOURCE_DOWN")
    for words in ("Start the server.", "Warning: SLOT_RETENTION_SHORT", "Read on."):
        page.wait_for_text("#errors", words)
    assert page.text("#errors").count("Start the server.") == 1
    page.click("#source-card .states a")
    page.wait_for_text("#tables-title", "Tables of shop")
    assert page.run("return document.querySelector('#state').value") == "not_synced"


@pytest.mark.parametrize("path", ["source", "tables", "proof", "table"])
def test_page_when_its_source_is_not_there_yet_then_asks_nothing_of_it_and_shows_it_once_it_is(
    page: Browser, registry: SqlRegistry, held: list[str], path: str
) -> None:
    """The fixture sees that the console has no failed request."""
    facts.record_shop(registry, key=SourceKey("acme", "factory"))
    go_to(page, f"/{path}?tenant=acme&source=shop&database=shop&table=orders")
    page.wait_for_text("#empty", "No agent has announced the source shop")
    ask_again(page)
    wait_for("another look", lambda: page.run(ASKED, "/sources?limit") > 1)
    assert page.run(ASKED, "/sources/shop") == 0
    held.append("/sources?limit")  # a look between its agent and its tables would ask for a table that is not there
    facts.record_shop(registry)
    held.clear()
    wait_for("the source", lambda: page.run("return document.querySelector('#empty').hidden"))
