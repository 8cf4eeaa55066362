"""The dashboard's page of proofs: coverage, what differs, a schedule, and verdicts that come by themselves."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest
from menura.instants import now_us
from sqlalchemy import update

from controlplane_api.database import Database
from controlplane_api.models import Dump
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import Problem
from tests.controlplane_api.browser import Browser
from tests.controlplane_api.facts import KEY
from tests.controlplane_api.test_dashboard import HOSTILE, chromium, kind, page
from tests.controlplane_api.test_repairs import FOCUS
from tests.controlplane_api.test_verification_schedules import DAY_US, Scheduled
from tests.controlplane_api.verdict_facts import verdict
from tests.stack import wait_for

__all__ = ["chromium", "kind", "page"]

HOUR_US = 3_600_000_000
GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-7,001"


@pytest.fixture
def shop(page: Browser, database: Database, registry: SqlRegistry) -> Iterator[Scheduled]:
    """Four tables: one is proven, one was, one differs, one never was verified; the page of proofs is open."""
    scheduled = Scheduled(database, registry, ["orders", "items", "notes", "events"])
    now = now_us()
    told = (
        verdict(1, table="orders", position=GTID, read_at_us=now - 12 * HOUR_US, at_us=now),
        verdict(1, table="items", read_at_us=now - 9 * DAY_US, at_us=now - 9 * DAY_US),
        verdict(1, table="notes", read_at_us=now - DAY_US, at_us=now - DAY_US),
        verdict(2, "differs", "notes", reason=f"rows differ {HOSTILE}", read_at_us=now, at_us=now),
    )
    scheduled.sink.tell(database, at_us=now, verdicts=told)
    origin = page.run("return location.origin")
    page.open(f"{origin}/proof?tenant=acme&source=shop")
    page.wait_for_text("#tables", "events")
    yield scheduled


def test_proof_page_when_tables_are_proven_and_not_then_shows_the_share_and_filters(
    page: Browser, shop: Scheduled
) -> None:
    page.wait_for_text("#tables-words", "25.0 % · 1 of 4")
    page.wait_for_text("#oldest", "A proof counts for 7.0 d. The oldest proof is 9.0 d old.")
    page.wait_for_text("#oldest", "Not proven: 1 differs, 1 unproven, 1 never.")
    assert page.run("return document.querySelector('#tables-share').value") == 0.25
    page.run("const s = document.querySelector('#which'); s.value = 'differs'; s.dispatchEvent(new Event('change'))")
    wait_for("the one that differs", lambda: page.run("return document.querySelectorAll('#tables tr').length") == 1)
    assert "rows differ <img" in page.text("#tables") and page.run("return window.hacked") is None
    page.run("const s = document.querySelector('#which'); s.value = 'unprovable'; s.dispatchEvent(new Event('change'))")
    page.wait_for_text("#none", "No table is so.")
    page.run("const s = document.querySelector('#which'); s.value = ''; s.dispatchEvent(new Event('change'))")
    page.run("const t = document.querySelector('#text'); t.value = 'OP.NOTE'; t.dispatchEvent(new Event('input'))")
    names = "return [...document.querySelectorAll('#tables tr .name a')].map((each) => each.innerText)"
    wait_for("the one of that name", lambda: page.run(names) == ["shop.notes"])


def test_proof_page_when_a_table_is_looked_at_then_says_at_which_position_it_is_equal_and_which_rows_differ(
    page: Browser, shop: Scheduled
) -> None:
    page.click("#tables a[href*='table=orders']")
    page.wait_for_text("#sentence", f"Equal to the source at {GTID}, 12 h ago, 40,000 rows.")
    page.wait_for_text("#facts", "Parts of the table that were compared: 3 equal")
    page.click("#all-proofs")
    page.click("#tables a[href*='table=notes']")
    page.wait_for_text("#sentence", "Differs from the source")
    page.wait_for_text("#sentence", "It was equal 1.0 d ago, at gtid:1-1.")
    page.wait_for_text("#leaves", "above 16384 up to 32768")
    page.wait_for_text("#leaves", "16,383")
    page.wait_for_text("#history", "differs")


def test_proof_page_when_a_verification_is_ordered_then_its_verdict_comes_without_reloading(
    page: Browser, shop: Scheduled
) -> None:
    page.click("#tables a[href*='table=events']")
    page.wait_for_text("#sentence", "It was never verified.")
    page.click("#verify-table")
    page.wait_for_text("#confirm", "About 1,000 rows. They are read beside the stream")
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "shop.events: verified: their verdicts come here by themselves.")
    page.wait_for_text("#facts", "A verification runs")
    assert [each.table for each in shop.registry.dumps(KEY).dumps] == ["events"]
    page.run("window.before = true")
    shop.now = now_us()
    shop.end()
    page.wait_for_text("#sentence", "Equal to the source at gtid:1-1")
    assert page.run("return window.before")
    page.click("#all-proofs")
    page.wait_for_text("#tables-words", "50.0 % · 2 of 4")
    page.click("button[aria-label='Verify shop.items']")
    page.wait_for_text("#outcome", "shop.items: The verification has begun.")
    problem = Problem("VERIFICATION_IMPOSSIBLE", "It is a view.", terminal=True, at_us=now_us())
    shop.registry.record_dump_failed(KEY, shop.registry.dumps(KEY).dumps[0].dump, problem, now_us())
    page.wait_for_text("#tables", "It can't be verified now: its last verification failed: It is a view.")


def test_proof_page_when_tables_are_chosen_then_a_plan_is_shown_first_and_one_command_orders_those_that_can_be(
    page: Browser, shop: Scheduled
) -> None:
    box = "#tables input[aria-label='Choose shop.{}']"
    page.click(box.format("items"))
    page.wait_for_text("#order-verify", "Verify 1 table…")
    page.click("#choose-page")
    page.wait_for_text("#chosen-words", "4 chosen")
    page.click(box.format("notes"))
    page.click("#order-verify")
    page.wait_for_text("#confirm-title", "3 of 3 tables would be read at the source")
    page.click("#confirm-no")
    page.wait_for_text("#outcome", "Nothing was changed.")
    assert not shop.registry.dumps(KEY).dumps, "a plan orders nothing"
    page.click("#choose-page")
    page.click(box.format("orders"))
    page.click(box.format("notes"))
    shop.order("events")
    page.click("#order-verify")
    page.wait_for_text("#confirm-title", "1 of 2 tables would be read at the source")
    page.wait_for_text("#confirm-facts", "shop.events: DUMP_RUNNING")
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "1 of 2 tables: verified")
    assert sorted(each.table for each in shop.registry.dumps(KEY).dumps) == ["events", "items"]
    assert page.text("#chosen-words") == ""


def test_proof_page_when_a_table_differs_then_a_repair_shows_its_ranges_first_and_is_ordered(
    page: Browser, shop: Scheduled
) -> None:
    page.click("#tables a[href*='table=notes']")
    page.click("#repair-table")
    page.wait_for_text("#outcome", "the verification that found it is no longer known")
    assert len(page.complaints()) == 1, "the browser tells of a refusal"
    found = shop.order("notes")
    with shop.database.write() as connection:
        connection.execute(update(Dump).where(Dump.uuid == found).values(focus=asdict(FOCUS), state="done"))
        connection.execute(update(Dump).where(Dump.uuid == found).values(key=["id"]))
    now = now_us()
    told = (verdict(3, "differs", "notes", verification=found, read_at_us=now, at_us=now),)
    shop.sink.tell(shop.database, at_us=now, verdicts=told)
    page.click("#repair-table")
    page.wait_for_text("#confirm-title", "About 230 rows would be read again at the source")
    page.wait_for_text("#confirm-facts", "id above 300 up to 500: about 200 rows")
    page.wait_for_text("#confirm-facts", "id above 950: about 30 rows")
    page.wait_for_text("#confirm-question", "Afterwards these ranges are compared again.")
    assert not shop.running(), "a plan orders nothing"
    page.click("#confirm-yes")
    page.wait_for_text("#outcome", "shop.notes: The repair has begun.")
    assert shop.running() == ["notes"]


def test_proof_page_when_a_schedule_is_made_then_it_is_shown_and_can_be_ended(page: Browser, shop: Scheduled) -> None:
    page.wait_for_text("#schedule", "Nothing is verified by itself.")
    page.click("#schedule-week")
    page.wait_for_text("#outcome", "Each table is verified once a week")
    page.wait_for_text("#schedule", "Each table of *.* has its turn every 7.0 d")
    shop.now = now_us()
    assert shop.tick() == ["events"]
    page.click("#schedule-off")
    page.wait_for_text("#schedule", "Nothing is verified by itself.")


def test_proof_page_when_there_is_no_source_then_says_how_to_begin(page: Browser) -> None:
    page.open(page.run("return location.origin") + "/proof")
    page.wait_for_text("#empty", "There is no source yet")
    page.wait_for_text("#connection", "live")


def test_proof_page_when_its_source_is_unknown_then_says_so_and_shows_nothing_else(
    page: Browser, shop: Scheduled
) -> None:
    page.open(page.run("return location.origin") + "/proof?tenant=acme&source=none")
    page.wait_for_text("#empty", "No agent has announced the source none")
    assert page.run("return !document.querySelector('#tables-section').checkVisibility()")
    page.run("const s = document.querySelector('#source'); s.value = 'shop'; s.dispatchEvent(new Event('change'))")
    page.wait_for_text("#tables", "orders")


def test_tables_page_when_a_table_has_a_proof_then_leads_to_it(page: Browser, shop: Scheduled) -> None:
    page.click("#to-tables")
    page.wait_for_text("#tables", "equal to the source 12 h ago")
    page.wait_for_text("#tables", "proof: differs")
    page.click("#tables a[href*='table=notes']")
    page.wait_for_text("#sentence", "Differs from the source")


@pytest.mark.parametrize("width", [390, 1280])
def test_proof_page_when_it_is_narrow_then_nothing_is_wider_than_it(page: Browser, shop: Scheduled, width: int) -> None:
    page.resize(width, 900)
    page.click("#tables a[href*='table=notes']")
    page.wait_for_text("#leaves", "above 16384")
    assert page.run("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    seen = "[...document.querySelectorAll('button,a,select')].filter((each) => each.checkVisibility())"
    unnamed = f"{seen}.filter((each) => !(each.labels?.[0] ?? each).textContent.trim() && !each.ariaLabel)"
    assert page.run(f"return {unnamed}.length") == 0
