"""The page of upgrades: reasons of agents, and a rollout that is steered by buttons, in a real browser."""

from menura.instants import now_us

from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.test_dashboard import chromium, held, kind, page
from tests.controlplane_api.upgrade_facts import NEW, connect, generations, halted_rollout, seen
from tests.stack import wait_for

__all__ = ["chromium", "held", "kind", "page"]


def press(page: Browser, word: str) -> None:
    page.click(f"#commands button[aria-label='{word} the rollout']")
    page.click("#confirm-yes")


def test_upgrades_page_when_a_rollout_has_halted_then_it_says_why_and_is_steered_from_there(
    page: Browser, database: Database, registry: SqlRegistry
) -> None:
    origin = page.run("return location.origin")
    connect(registry, "globex", "db-1")
    page.open(f"{origin}/upgrades?tenant=globex")
    page.wait_for_text("#no-rollout", "There was no rollout yet")
    rollout = halted_rollout(database, registry)
    page.open(f"{origin}/fleet?tenant=acme")
    page.wait_for_text("#agents", "db-1")
    page.click("#to-upgrades")
    page.wait_for_text("#rollout-state", "halted")
    assert "db-1 (REFUSED)" in page.text("#problem")
    page.wait_for_text("#agents", "UPGRADES_OFF: installing: the host has no key of the packages")
    assert "false" not in page.text("#agents") + page.text("#groups") + page.text("#packages")
    assert "VERSION_NOT_SAID" in page.text("#agents") and "NOT_OFFERED" in page.text("#agents")
    assert "0.2.0" in page.text("#packages") and "whole" in page.text("#packages")
    press(page, "Resume")
    page.wait_for_text("#rollout-state", "running")
    registry.move_rollouts(2**50)
    wait_for("the offer", lambda: "OFFERED" in page.text("#agents").replace("NOT_OFFERED", ""))
    offered = generations(database, rollout)["db-1"]
    registry.record_version(("acme", "db-1"), seen(NEW, generation=offered), now_us())
    page.run(
        "const which = document.getElementById('which'); which.value = ''; which.dispatchEvent(new Event('change'))"
    )
    page.wait_for_text("#agents", "RUNS_VERSION")
    press(page, "Pause")
    page.wait_for_text("#rollout-state", "paused")
    press(page, "Cancel")
    page.wait_for_text("#rollout-state", "cancelling")
    assert page.text("#commands") == ""
    assert page.complaints() == []
