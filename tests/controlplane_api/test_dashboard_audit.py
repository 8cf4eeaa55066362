"""The page Audit: searched by text and outcome, in a real browser."""

import pytest

from controlplane_api.database import Database
from controlplane_api.identity import audit
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.test_audit_search import fill
from tests.controlplane_api.test_dashboard import chromium, kind, page

__all__ = ["chromium", "kind", "page"]


def say(page: Browser, field: str, value: str, event: str) -> None:
    page.run(
        f"const f = document.querySelector('#{field}'); f.value = '{value}'; f.dispatchEvent(new Event('{event}'))"
    )


def test_audit_page_when_it_is_searched_then_shows_what_matches_and_at_how_many_entries_it_looked(
    page: Browser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    page.open(page.run("return location.origin") + "/audit?tenant=acme")
    page.wait_for_text("#entries", "AGENT_REVOKED")
    assert page.run("return document.querySelector('#looked-at').hidden")
    say(page, "outcome", "failed", "change")
    page.wait_for_text("#looked-at", "Looked at 4 entries.")
    assert "failed\nINTERNAL" in page.text("#entries")
    assert "AGENT_REVOKED" not in page.text("#entries")
    assert page.run("return document.querySelector('#go-on').hidden")
    say(page, "text", "nobody", "input")
    page.wait_for_text("#none", "No entry that was looked at matches.")

    monkeypatch.setattr(audit, "MOST_LOOKED_AT", 3)
    say(page, "outcome", "", "change")
    say(page, "text", "ADA", "input")
    page.wait_for_text("#looked-at", "Looked at 3 entries. Older ones are not looked at yet.")
    page.wait_for_text("#none", "No entry that was looked at matches.")
    page.click("#go-on")
    page.wait_for_text("#entries", "token a1 (ada)")
    page.wait_for_text("#looked-at", "Looked at 1 entry.")
    page.wait_for_text("#page", "Page 2")

    page.open(page.run("return location.origin") + "/audit?tenant=acme&outcome=refused&text=stream")
    page.wait_for_text("#entries", "open a stream")
    assert page.run("return document.querySelector('#outcome').value") == "refused"
