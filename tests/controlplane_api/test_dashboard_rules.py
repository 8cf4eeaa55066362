"""Standing rules on the dashboard: shown, made after a look at what they start, and removed."""

from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.facts import KEY, T0, UUID, table_seen
from tests.controlplane_api.test_dashboard import HOSTILE, choose, chromium, held, kind, page
from tests.stack import wait_for

__all__ = ["chromium", "held", "kind", "page"]


def desired(registry: SqlRegistry) -> list[str]:
    return [each.table for each in registry.desired(KEY).tables]


def test_rules_when_one_is_planned_made_and_removed_then_only_what_was_said_yes_to_is_done(
    page: Browser, registry: SqlRegistry
) -> None:
    facts.record_shop(registry, "orders", "items")
    page.open(page.run("return location.origin") + "/source?tenant=acme&source=shop")
    page.wait_for_text("#source-title", "shop")
    page.run("document.querySelector('#rule-database').value = 'shop'")
    page.click("#rule button")
    page.wait_for_text("#confirm", "Now it starts 2: shop.items, shop.orders.")
    page.click("#confirm-no")
    page.wait_for_text("#rule-outcome", "Nothing was changed.")
    assert desired(registry) == []
    page.click("#rule button")
    page.wait_for_text("#confirm", "come later are started")
    page.click("#confirm-yes")
    page.wait_for_text("#rule-outcome", "shop.*: The rule is made; it has started 2 tables.")
    page.wait_for_text("#rules", "shop.*")
    page.wait_for_text("#rules", "from a dump of all rows")
    seen = [table_seen(name) for name in ("orders", "items", "later")]
    facts.record_cartography(registry, KEY, "kind", "1", UUID, seen, T0)
    assert desired(registry) == ["items", "later", "orders"]
    page.click("button[aria-label='Remove the rule shop.*']")
    page.wait_for_text("#confirm", "Those that it has started go on.")
    page.click("#confirm-yes")
    page.wait_for_text("#rule-outcome", "shop.*: Removed.")
    wait_for("the rule to be gone", lambda: page.text("#rules") == "")
    facts.record_cartography(registry, KEY, "kind", "1", UUID, [*seen, table_seen("last")], T0)
    assert "last" not in desired(registry)


def test_rule_when_its_pattern_is_hostile_then_it_is_text(page: Browser, registry: SqlRegistry) -> None:
    facts.record_shop(registry)
    page.open(page.run("return location.origin") + "/source?tenant=acme&source=shop")
    page.wait_for_text("#source-title", "shop")
    page.run("document.querySelector('#rule-table').value = arguments[0]", HOSTILE)
    page.click("#rule button")
    page.wait_for_text("#confirm", "Now it starts no table.")
    page.click("#confirm-yes")
    page.wait_for_text("#rules", HOSTILE)
    assert page.run("return window.hacked") is None


def test_rules_when_another_source_is_chosen_then_those_of_the_former_one_are_gone_before_it_answers(
    page: Browser, registry: SqlRegistry, held: list[str]
) -> None:
    registry.record_agent(facts.agent_seen(sources=["factory", "shop"]))
    page.open(page.run("return location.origin") + "/source?tenant=acme")
    page.wait_for_text("#source-title", "factory")
    held.append("/sources/shop")
    choose(page, "source", "shop")
    assert not page.run("return document.querySelector('#source-section').checkVisibility()")
    held.clear()
    page.wait_for_text("#source-title", "shop")
    page.click("#rule button")
    page.wait_for_text("#confirm-where", "Tenant acme, source shop")
    page.click("#confirm-no")
