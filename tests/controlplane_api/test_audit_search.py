"""The audit log is searched by text and outcome, a bounded number of entries at a time."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, event, insert, text

from controlplane_api import rules, syncs
from controlplane_api.database import Database
from controlplane_api.errors import DatabaseUnavailable
from controlplane_api.identity import audit
from controlplane_api.models import AuditEntry
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import AuditOutcome
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_api import SHOP, path_of
from tests.stack import http_client, wait_for

AUDIT = "/api/v1/tenants/acme/audit"


@pytest.fixture
def here(database: Database, registry: SqlRegistry) -> Iterator[str]:
    facts.record_shop(registry)
    with serving(database) as url:
        yield url


@pytest.fixture
def client(here: str) -> Iterator[httpx.Client]:
    with http_client(here) as client:
        yield client


def found(
    connection: Connection, text: str = "", outcome: AuditOutcome | None = None, tenant: str = "acme"
) -> list[str]:
    return [row.found for row in audit.search(connection, tenant, 100, text=text, outcome=outcome).rows]


def fill(database: Database) -> None:
    with database.write() as connection:
        audit.record(connection, "acme", "token a1 (ada)", "start table", found="sources/shop/tables/shop/orders/start")
        audit.record(connection, "acme", "agent db-1", "open a stream", refused="AGENT_REVOKED", found="of shop")
        audit.record(
            connection, "acme", "token b2 (bo)", "stop tables", refused="INTERNAL", failed=True, found="100%_x"
        )
        audit.record(connection, "other", "token a1 (ada)", "start table", found="another tenant's")
        audit.record(connection, "acme", "token b2 (bo)", "start table", found="sources/shop/tables/shop/Bücher/start")


def test_search_when_a_text_is_given_then_it_is_looked_for_in_who_what_code_and_detail(database: Database) -> None:
    fill(database)
    books, orders = (f"sources/shop/tables/shop/{name}/start" for name in ("Bücher", "orders"))
    with database.read() as connection:
        assert found(connection) == [books, "100%_x", "of shop", orders]
        assert found(connection, "ADA") == [orders]
        assert found(connection, "start TABLE") == [books, orders]
        assert found(connection, "agent_rev") == ["of shop"]
        assert found(connection, "Bücher") == [books]
        assert found(connection, "%_") == ["100%_x"]  # as it stands, no pattern
        assert found(connection, "nobody") == found(connection, "ada", tenant="nobody") == []
        assert found(connection, "ada", tenant="other") == ["another tenant's"]


def test_search_when_an_outcome_is_given_then_each_entry_has_one_of_three(database: Database) -> None:
    fill(database)
    with database.read() as connection:
        rows = audit.search(connection, "acme", 100).rows
        assert [audit.outcome_of(row) for row in rows] == ["done", "failed", "refused", "done"]
        for outcome in AuditOutcome:
            same = [row.found for row in rows if audit.outcome_of(row) is outcome]
            assert found(connection, outcome=outcome) == same
        assert found(connection, "bo", AuditOutcome.FAILED) == ["100%_x"]
        assert found(connection, "ada", AuditOutcome.FAILED) == []


@pytest.mark.parametrize("entries", [0, 1, 9, 10, 11, 20, 35])
def test_search_when_there_is_more_than_one_look_then_goes_on_until_all_was_looked_at(
    entries: int, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_LOOKED_AT", 10)
    with database.write() as connection:
        for number in range(entries):
            audit.record(connection, "acme", "a", "rare" if number % 17 == 0 else "often", found=str(number))
            audit.record(connection, "other", "a", "rare", found="no")
    for limit in (1, 3, 10, 50):
        rows: list[str] = []
        looks, before = [], None
        with database.read() as connection:
            while True:
                page = audit.search(connection, "acme", limit, text="rare", before=before)
                rows += [row.found for row in page.rows]
                looks.append(page.looked_at)
                assert page.looked_at <= 10 and len(page.rows) <= limit
                before = page.before
                if before is None:
                    break
        assert rows == [str(number) for number in reversed(range(0, entries, 17))]
        assert sum(looks) == entries


def test_audit_when_asked_with_parameters_then_pages_say_how_many_entries_were_looked_at(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setattr(audit, "MOST_LOOKED_AT", 3)

    def asked(**query: Any) -> dict[str, Any]:
        answer = client.get(AUDIT, params=query)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    first = asked(text="ada")
    assert (first["entries"], first["looked_at"]) == ([], 3)
    rest = asked(text="ada", cursor=first["next_cursor"])
    assert [(entry["actor"], entry["outcome"]) for entry in rest["entries"]] == [("token a1 (ada)", "done")]
    assert (rest["looked_at"], rest["next_cursor"]) == (1, None)
    assert [entry["refused"] for entry in asked(outcome="failed")["entries"]] == ["INTERNAL"]
    for wrong in ({"outcome": "lost"}, {"text": "x" * 513}, {"text": "\x00"}, {"cursor": "WyJhIl0="}):
        assert client.get(AUDIT, params=wrong).status_code == 422, wrong
    assert client.get("/api/v1/audit", params={"text": "ada", "outcome": "done"}).json()["entries"] == []


def test_command_when_it_searches_then_goes_on_until_it_has_enough_and_says_how_many_it_looked_at(
    here: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database)
    monkeypatch.setattr(audit, "MOST_LOOKED_AT", 2)
    where = {"MENURA_API": here, "MENURA_TENANT": "acme", "COLUMNS": "200"}
    shown = menura("audit", "--text", "ada", **where)
    assert shown.returncode == 0, shown.stderr
    assert "sources/shop/tables/shop/orders/start" in shown.stdout and "4 entries were looked at." in shown.stdout
    failed = json.loads(menura("audit", "--outcome", "failed", "-o", "json", **where).stdout)
    assert [entry["outcome"] for entry in failed["entries"]] == ["failed"]
    assert (failed["looked_at"], failed["next_cursor"]) == (4, None)
    newest = menura("audit", "--limit", "3", **where)
    assert "looked at" not in newest.stdout and "AGENT_REVOKED" in newest.stdout
    assert menura("audit", "--outcome", "lost", **where).returncode == 2


def test_command_when_a_defect_ends_it_then_the_audit_log_says_that_it_has_failed(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise DatabaseUnavailable("asking the database", "it does not answer")

    def defective(*_: object) -> None:
        raise KeyError("what nobody thought of")

    def entries() -> list[tuple[str, str, str]]:
        page = client.get(AUDIT, params={"outcome": "failed"}).json()
        return [(entry["action"], entry["refused"], entry["found"]) for entry in page["entries"]]

    start = path_of("shop", "orders", "/start")
    assert client.post(start.replace("orders", "nowhere"), json={}).status_code == 404
    monkeypatch.setattr(syncs, "start_tables", defective)
    assert client.post(start, params={"dry_run": True}, json={}).status_code == 500
    assert client.post(start, json={}).status_code == 500
    wait_for("the failure in the log", lambda: entries() or None)
    assert entries() == [("start table", "INTERNAL", "sources/shop/tables/shop/orders/start")]
    monkeypatch.setattr(syncs, "start_tables", away)
    assert client.post(start, json={}).status_code == 503
    wait_for("the other failure in the log", lambda: len(entries()) == 2 or None)
    assert entries()[0] == ("start table", "DATABASE_UNAVAILABLE", "sources/shop/tables/shop/orders/start")
    monkeypatch.setattr(rules, "listed", defective)
    assert client.get(f"{SHOP}/rules").status_code == 500  # nobody has ordered anything
    assert len(entries()) == 2


def test_command_when_very_many_fail_then_refusals_have_no_part_in_it_and_those_left_out_are_counted(
    database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def defective(*_: object) -> None:
        raise KeyError("what nobody thought of")

    rates = {"REFUSALS_BURST": 0, "FAILURES_BURST": 2, "FAILURES_PER_SECOND": 1e-9, "LEFT_OUT_LINES_PER_SECOND": 1e-9}
    for name, value in rates.items():
        monkeypatch.setattr(f"controlplane_api.api.gate.{name}", value)
    facts.record_shop(registry)
    monkeypatch.setattr(syncs, "start_tables", defective)

    def failed() -> list[str]:
        with database.read() as connection:
            return found(connection, outcome=AuditOutcome.FAILED)

    def is_told() -> bool:
        return any("the audit log lacks 1 commands that have failed" in each.getMessage() for each in caplog.records)

    with serving(database) as url, http_client(url) as client:
        for _ in range(4):
            assert client.post(path_of("shop", "orders", "/start"), json={}).status_code == 500
        wait_for("the line about those that were left out", is_told)
        wait_for("the failures in the log", lambda: len(failed()) == 2)


def test_search_when_entries_come_in_between_its_statements_then_pages_repeat_none(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_LOOKED_AT", 10)
    enter(database, "rare", 30)
    is_entering = False

    def enter_others(*asked: Any) -> None:
        nonlocal is_entering
        if not is_entering and "FROM audit" in asked[2] and asked[2].startswith("SELECT"):
            is_entering = True
            enter(database, "often", 5)
            is_entering = False

    event.listen(database.engine, "after_cursor_execute", enter_others)
    pages = [client.get(AUDIT, params={"text": "rare", "limit": 10}).json()]
    while pages[-1]["next_cursor"] is not None:
        query = {"text": "rare", "limit": 10, "cursor": pages[-1]["next_cursor"]}
        pages.append(client.get(AUDIT, params=query).json())
    event.remove(database.engine, "after_cursor_execute", enter_others)
    assert [entry["found"] for page in pages for entry in page["entries"]] == [str(n) for n in reversed(range(30))]
    assert [page["looked_at"] for page in pages] == [10] * 3


def enter(database: Database, action: str, entries: int) -> None:
    with database.write() as connection:
        for number in range(entries):
            audit.record(connection, "acme", "a", action, found=str(number))


@pytest.mark.parametrize("before", [None, 9_000])
def test_search_when_all_of_a_tenants_entries_are_older_than_others_then_walks_its_own_alone(
    before: int | None, database: Database
) -> None:
    values = {"at_us": 1, "actor": "a", "action": "b", "refused": "", "found": "c"}
    tenants = ["acme"] * 10_000 + ["aa", "other"] * 20_000
    with database.write() as connection:
        rows = [{**values, "tenant": tenant, "number": number} for number, tenant in enumerate(tenants, 1)]
        connection.execute(insert(AuditEntry), rows)
        if not database.file:
            connection.execute(text("ANALYZE audit"))
    with database.read() as connection:
        page = audit.search(connection, "acme", 100, text="nothing of it", before=before)
        assert (page.rows, page.looked_at) == ([], audit.MOST_LOOKED_AT)
        explain = "EXPLAIN QUERY PLAN" if database.file else "EXPLAIN"
        for limit in (1, audit.MOST_LOOKED_AT):
            asked = audit.newest_first("acme", before).limit(limit)
            words = asked.compile(connection, compile_kwargs={"literal_binds": True})
            plan = str(connection.execute(text(f"{explain} {words}")).all())
            assert "ix_audit_tenant_id" in plan and "pk_audit" not in plan, plan
            assert "Sort" not in plan and "TEMP B-TREE" not in plan, plan
