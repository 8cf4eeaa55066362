"""Who asks the API: tokens, sessions of browsers, their end, how often they may be wrong, and what is kept of them."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from menura.instants import now_us
from sqlalchemy import select, update

from controlplane_api.api import attempts, authentication
from controlplane_api.api.app import Access
from controlplane_api.api.proxies import trusted_networks
from controlplane_api.database import Database
from controlplane_api.errors import AttemptsTooMany, ListenRefused
from controlplane_api.identity import api_tokens, audit, sessions
from controlplane_api.identity.admin_token import ensure_admin_token
from controlplane_api.identity.api_tokens import ApiToken
from controlplane_api.identity.callers import ANONYMOUS, Caller, Grant, Role
from controlplane_api.identity.sessions import SessionOf
from controlplane_api.models import ApiToken as ApiTokenRow
from controlplane_api.models import AuditEntry, Base
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.callers import made
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.test_audit import many_above
from tests.stack import http_client

FLEET = "/api/v1/tenants/acme/fleet"
STOP = "/api/v1/tenants/acme/sources/shop/stop"


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    with serving(database, access=Access()) as found:
        yield found


@pytest.fixture
def no_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of attempts, before the API is made."""
    monkeypatch.setattr(attempts, "PER_SECOND_OF_ADDRESS", 0)


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with http_client(url) as client:
        yield client


def code(answer: httpx.Response) -> str:
    found: str = answer.json()["code"]
    return found


def logged_in(client: httpx.Client, **shown: str) -> dict[str, str]:
    """The headers of a browser that has logged in, but for what its page sends."""
    answer = client.post("/api/v1/session", json=shown)
    assert answer.status_code == 200, answer.text
    client.cookies.clear()
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    return {"cookie": cookie.split(";")[0]}


def test_token_when_it_is_revoked_or_its_time_is_over_then_the_next_request_is_refused(
    client: httpx.Client, database: Database
):
    admin, viewer = made(database, Role.ADMIN), made(database, Role.VIEWER)
    refused = client.get(FLEET)
    assert (refused.status_code, code(refused)) == (401, "CALLER_MISSING")
    assert refused.headers["www-authenticate"] == "Bearer"
    for _ in range(2):  # the second time its secret is known to be good
        assert client.get(FLEET, headers=viewer.headers).status_code == 200
    assert client.post(f"/api/v1/tenants/acme/api-tokens/{viewer.id}/revoke", json={}, headers=admin.headers).is_success
    assert code(client.get(FLEET, headers=viewer.headers)) == "CALLER_UNKNOWN"
    with database.write() as connection:
        connection.execute(update(ApiTokenRow).values(expires_at_us=now_us() - 1))
    assert code(client.get(FLEET, headers=admin.headers)) == "CALLER_UNKNOWN"
    for wrong in ("Basic YTpi", "Bearer", f"Bearer {admin.token[:-1]}", f"Bearer {admin.token}x"):
        assert code(client.get(FLEET, headers={"authorization": wrong})) == "CALLER_UNKNOWN"


def test_body_when_nobody_is_known_or_its_length_is_none_then_it_is_not_read(client: httpx.Client, database: Database):
    assert code(client.post("/api/v1/session", json={"token": "x" * 5_000})) == "REQUEST_INVALID"
    assert "4096 bytes" in client.post("/api/v1/session", json={"token": "x" * 5_000}).json()["found"]
    assert code(client.post(STOP, json={"tables": ["x" * 100_000]})) == "CALLER_MISSING"
    headers = {**made(database, Role.ADMIN).headers, "content-type": "application/json"}

    def chunks() -> Iterator[bytes]:
        yield b"{}"

    answer = client.post(STOP, headers=headers, content=chunks())
    assert "Transfer-Encoding" in answer.json()["found"]


def test_secrets_when_they_are_wrong_again_and_again_then_that_address_waits_and_known_callers_do_not(
    no_refill: None, client: httpx.Client, database: Database
):
    known, other = made(database, Role.VIEWER), made(database, Role.VIEWER)
    assert client.get(FLEET, headers=known.headers).status_code == 200
    codes = []
    for number in range(attempts.BURST_OF_ADDRESS + 1):
        wrong = ApiToken(f"{number:016x}", "w" * 43).reveal()
        codes.append(code(client.get(FLEET, headers={"authorization": f"Bearer {wrong}"})))
    assert codes == ["CALLER_UNKNOWN"] * attempts.BURST_OF_ADDRESS + ["ATTEMPTS_TOO_MANY"]
    assert client.get(FLEET, headers=known.headers).status_code == 200
    assert client.get(FLEET, headers=other.headers).status_code == 429  # nobody has seen its secret yet
    assert client.post("/api/v1/session", json={"link": "w" * 43}).status_code == 429


def test_token_when_many_requests_come_with_it_at_once_or_others_guess_at_it_then_its_holder_is_never_refused(
    no_refill: None, monkeypatch: pytest.MonkeyPatch, url: str, database: Database
):
    monkeypatch.setattr(attempts, "PER_SECOND_OF_TOKEN", 0)
    known = made(database, Role.VIEWER)

    async def ask(client: httpx.AsyncClient) -> int:
        return (await client.get(FLEET, headers=known.headers)).status_code

    async def scenario() -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=300) as client:
            together = await asyncio.gather(*(ask(client) for _ in range(3 * attempts.BURST_OF_ADDRESS)))
            wrong = ApiToken(known.id, "w" * 43).reveal()
            guessed = [
                (await client.get(FLEET, headers={"authorization": f"Bearer {wrong}"})).status_code
                for _ in range(attempts.BURST_OF_TOKEN + 1)
            ]
            assert guessed == [401] * attempts.BURST_OF_TOKEN + [429]
            return [*together, await ask(client)]

    assert set(asyncio.run(scenario())) == {200}


def test_session_of_a_person_when_it_asks_for_a_link_then_refused_since_it_would_never_end(
    client: httpx.Client, database: Database
):
    person = Caller("person", (Grant(Role.ADMIN, "acme"),))
    with database.write() as connection:
        opened = sessions.open_session(connection, SessionOf(person, None), now_us())
    browser = {"cookie": f"{authentication.COOKIE}={opened.secret}"}
    page_token = client.get("/api/v1/session", headers=browser).json()["page_token"]
    answer = client.post("/api/v1/login-links", json={}, headers={**browser, "x-menura-page-token": page_token})
    assert (answer.status_code, code(answer)) == (403, "LOGIN_REFUSED")


def test_attempts_when_many_names_come_then_they_are_bounded_and_good_ones_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(attempts, "MAX_ADDRESSES", 10)
    monkeypatch.setattr(attempts, "MAX_TOKENS", 10)
    kept = attempts.Attempts()
    for number in range(1_000):
        kept.pay(f"192.0.2.{number}", f"{number:016x}")
    assert len(kept._addresses.of) == len(kept._tokens.of) == 10
    for _ in range(1_000):
        kept.pay("198.51.100.1", "good").give_back()
    with pytest.raises(AttemptsTooMany):
        for number in range(1_000):  # of one network, as one host has it
            kept.pay(f"2001:db8::{number:x}")
    with pytest.raises(AttemptsTooMany):
        for number in range(attempts.BURST_OF_TOKEN + 1):
            kept.pay(f"203.0.113.{number}", "one-token")


def test_session_when_a_browser_logs_in_by_a_link_then_it_is_good_once_and_ends_with_its_token(
    client: httpx.Client, database: Database, registry: SqlRegistry
):
    facts.record_shop(registry)
    operator = made(database, Role.OPERATOR)
    path = client.post("/api/v1/login-links", json={}, headers=operator.headers).json()["path"]
    link = path.removeprefix("/login#")
    browser = logged_in(client, link=link)
    spent = client.post("/api/v1/session", json={"link": link})
    assert (code(spent), spent.headers["www-authenticate"]) == ("CALLER_UNKNOWN", "Bearer")
    session = client.get("/api/v1/session", headers=browser).json()
    assert session["actor"] == f"token {operator.id} (operator-of-tests)"
    assert session["grants"] == [{"role": "operator", "tenant": "acme"}]
    page = {**browser, "x-menura-page-token": session["page_token"]}
    for headers in (browser, {**browser, "x-menura-page-token": "0" * 64}):
        assert code(client.post(STOP, json={"tables": "all"}, headers=headers)) == "CROSS_SITE_REFUSED"
    foreign = {**page, "origin": "https://evil.example"}
    assert code(client.post(STOP, json={"tables": "all"}, headers=foreign)) == "CROSS_SITE_REFUSED"
    assert client.post(STOP, json={"tables": "all"}, headers=page).status_code == 202
    assert code(client.get("/metrics", headers=browser)) == "ROLE_MISSING"
    other = logged_in(client, token=operator.token)
    assert client.get(FLEET, headers=other).status_code == 200
    assert client.post("/api/v1/session/end", json={}, headers=page).status_code == 200
    assert code(client.get(FLEET, headers=browser)) == "CALLER_UNKNOWN"
    with database.write() as connection:
        api_tokens.revoke(connection, "acme", operator.id, now_us())
    assert code(client.get(FLEET, headers=other)) == "CALLER_UNKNOWN"
    with database.read() as connection:
        done = [row.action for row in audit.search(connection, "acme", 100).rows if not row.refused]
    assert done == ["log out", "log in", "stop tables", "log in", "make a login link"]


def test_sessions_when_their_time_is_over_or_one_caller_opens_many_then_they_go(database: Database):
    now = now_us()
    whose = SessionOf(ANONYMOUS, None)
    with database.write() as connection:
        first = sessions.open_session(connection, whose, now)
        link = sessions.create_link(connection, whose, now)
        assert sessions.session_of(connection, link.secret, now) is None
        assert sessions.spend_link(connection, first.secret, now) is None
        assert sessions.session_of(connection, first.secret, now) == whose
        assert sessions.session_of(connection, first.secret, now + sessions.SESSION_SECONDS * 1_000_000) is None
        assert sessions.spend_link(connection, link.secret, now + sessions.LINK_SECONDS * 1_000_000) is None
        for _ in range(sessions.MAX_OF_ACTOR):
            sessions.open_session(connection, whose, now)
        assert sessions.session_of(connection, first.secret, now) is None


def test_command_when_it_is_carried_out_then_the_audit_log_says_who_and_what_is_not_carried_out_says_why(
    client: httpx.Client, database: Database, registry: SqlRegistry
):
    facts.record_shop(registry)
    admin, operator, viewer = (made(database, role) for role in (Role.ADMIN, Role.OPERATOR, Role.VIEWER))
    start = "/api/v1/tenants/acme/sources/shop/tables/shop/orders/start"
    assert client.post(start, json={}, headers=operator.headers).is_success
    assert client.post(start.replace("orders", "nowhere"), json={}, headers=operator.headers).status_code == 404
    assert client.post(start, json={}, headers=viewer.headers).status_code == 403
    body = {"name": "nightly", "role": "viewer"}
    token = client.post("/api/v1/tenants/acme/api-tokens", json=body, headers=admin.headers).json()["id"]
    wrong = ApiToken(admin.id, "w" * 43).reveal()
    assert client.get(FLEET, headers={"authorization": f"Bearer {wrong}"}).status_code == 401
    entries = client.get("/api/v1/tenants/acme/audit", headers=admin.headers).json()["entries"][::-1]
    assert [(entry["actor"], entry["action"], entry["refused"], entry["found"]) for entry in entries] == [
        (f"token {operator.id} (operator-of-tests)", "start table", "", "sources/shop/tables/shop/orders/start"),
        (
            f"token {viewer.id} (viewer-of-tests)",
            "start table",
            "ROLE_MISSING",
            "sources/shop/tables/shop/orders/start",
        ),
        (f"token {admin.id} (admin-of-tests)", "create api token", "", f"{token} (nightly), viewer of acme"),
        (f"token {admin.id} from 127.0.0.1", "ask", "CALLER_UNKNOWN", "another secret"),
    ]


def test_command_when_a_stranger_wants_it_then_the_fleets_log_says_so_and_the_tenants_nothing(
    client: httpx.Client, database: Database, registry: SqlRegistry
):
    facts.record_shop(registry)
    stranger, admin = made(database, Role.ADMIN, "globex"), made(database, Role.ADMIN, None)
    path = "/api/v1/tenants/acme/agents/agent-1/revoke"
    for _ in range(attempts.BURST_OF_ADDRESS + 1):  # what he reads does not hide what he commands
        assert client.get(FLEET, headers=stranger.headers).status_code == 404
    assert client.post(path, json={}, headers=stranger.headers).status_code == 404
    assert client.post("/api/v1/api-tokens", json={}, headers=stranger.headers).status_code == 403
    actor = f"token {stranger.id} (admin-of-tests)"
    assert refusals_of(client, "/api/v1/audit", admin.headers) == [
        (actor, "revoke agent", "TENANT_UNKNOWN", "tenants/acme/agents/agent-1/revoke"),
        (actor, "create fleet api token", "ROLE_MISSING", "api-tokens"),
    ]
    assert refusals_of(client, "/api/v1/tenants/acme/audit", admin.headers) == []


def refusals_of(client: httpx.Client, path: str, headers: dict[str, str]) -> list[tuple[str, str, str, str]]:
    entries = client.get(path, headers=headers).json()["entries"][::-1]
    return [(each["actor"], each["action"], each["refused"], each["found"]) for each in entries if each["refused"]]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_address_when_a_proxy_tells_it_then_it_counts_if_the_proxy_is_trusted(no_refill: None, database: Database):
    admin = made(database, Role.ADMIN)

    def ask(client: httpx.Client, forwarded: str, token: str = admin.id) -> int:
        wrong = ApiToken(token, "w" * 43).reveal()
        headers = {"authorization": f"Bearer {wrong}"} | ({"x-forwarded-for": forwarded} if forwarded else {})
        return client.get(FLEET, headers=headers).status_code

    told = {
        "198.51.100.7": "198.51.100.7",
        "203.0.113.9, 198.51.100.7:4711": "198.51.100.7",
        "203.0.113.9, 2001:db8::7, 127.0.0.9": "2001:db8::7",
        "203.0.113.9, nonsense": "unknown",
        "": "127.0.0.1",
    }
    with serving(database, access=Access(), trusted_proxies=["127.0.0.0/8"]) as url, http_client(url) as client:
        for forwarded in told:
            assert ask(client, forwarded) == 401
        guesses = [ask(client, "198.51.100.8", f"{number:016x}") for number in range(attempts.BURST_OF_ADDRESS + 1)]
        assert guesses == [401] * attempts.BURST_OF_ADDRESS + [429]
        assert ask(client, "203.0.113.9, 198.51.100.8", "0" * 16) == 429
        assert ask(client, "198.51.100.9", "0" * 16) == 401
    for proxies in ([], ["192.0.2.0/24"]):
        with serving(database, access=Access(), trusted_proxies=proxies) as url, http_client(url) as client:
            assert ask(client, "198.51.100.7") == 401
    with database.read() as connection:
        found = [row.actor for row in audit.search(connection, "acme", 100).rows][::-1]
    assert found == [f"token {admin.id} from {address}" for address in (*told.values(), "127.0.0.1", "127.0.0.1")]


@pytest.mark.parametrize(("text", "found"), [("10.0.0.1/8", "host bits"), ("proxy", "proxy"), ("::/0", "anybody")])
def test_proxies_when_they_are_no_networks_of_their_own_then_refused(text: str, found: str):
    with pytest.raises(ListenRefused, match=found):
        trusted_networks(f"192.0.2.7, {text}")


def test_command_when_it_is_planned_or_comes_again_with_its_key_then_the_audit_log_has_it_once_for_each_caller(
    client: httpx.Client, database: Database, registry: SqlRegistry
):
    facts.record_shop(registry)
    of_shop = "/api/v1/tenants/acme/sources/shop"
    rule = {"tables": {"database": "*", "future": True}}
    first, second = made(database, Role.OPERATOR), made(database, Role.OPERATOR)
    admin = made(database, Role.ADMIN)
    for caller in (first, second):
        keyed = {**caller.headers, "idempotency-key": "k-1"}
        asked = [client.post(f"{of_shop}/start", json=rule, headers=keyed) for _ in range(2)]
        assert [answer.headers.get("idempotency-replayed") for answer in asked] == [None, "true"]
        assert client.post(
            f"{of_shop}/stop", params={"dry_run": True}, json={"tables": "all"}, headers=keyed
        ).is_success
    made_rule = client.get(f"{of_shop}/rules", headers=first.headers).json()["rules"][0]["rule"]
    assert client.post(f"{of_shop}/rules/{made_rule}/remove", json={}, headers=second.headers).is_success
    keyed = {**admin.headers, "idempotency-key": "k-1"}
    fleet = {"agents": {"agent-1": {"sources": {"crm": {"configuration": {"kind": "mysql", "host": "localhost"}}}}}}
    for path, query in (("plan", {}), ("apply", {"dry_run": True}), ("apply", {}), ("apply", {})):
        applied = client.post(f"/api/v1/tenants/acme/fleet/{path}", params=query, json=fleet, headers=keyed)
        assert applied.json()["applied"] is (path == "apply" and not query), applied.text
    path = "/api/v1/tenants/acme/api-tokens"
    planned = client.post(path, params={"dry_run": True}, json={"name": "x", "role": "viewer"}, headers=admin.headers)
    assert planned.json()["token"] == ""
    body = {"name": "x", "role": "viewer"}
    refused = client.post(path, json=body, headers=keyed)
    assert code(refused) == "REQUEST_INVALID" and "no Idempotency-Key" in refused.json()["found"]
    created = client.post(path, json=body, headers=admin.headers).json()["id"]
    keyed["idempotency-key"] = "k-2"
    for _ in range(2):
        revoked = client.post(f"{path}/{created}/revoke", json={}, headers=keyed).json()
        assert (revoked["id"], revoked["revoked_at_us"] is None) == (created, False)
    entries, cursor = [], ""
    while cursor is not None:
        query = {"limit": 2, "cursor": cursor}
        page = client.get("/api/v1/tenants/acme/audit", params=query, headers=admin.headers).json()
        entries += page["entries"]
        cursor = page["next_cursor"]
    assert [(entry["actor"].split()[1], entry["action"], entry["found"]) for entry in entries[::-1]] == [
        (first.id, "start tables", "sources/shop/start"),
        (second.id, "start tables", "sources/shop/start"),
        (second.id, "remove rule", f"sources/shop/rules/{made_rule}/remove"),
        (admin.id, "create source by a fleet", "crm of agent agent-1"),
        (admin.id, "create api token", f"{created} (x), viewer of acme"),
        (admin.id, "revoke api token", created),
    ]
    shown = client.get(path, params={"limit": 2}, headers=admin.headers).json()
    rest = client.get(path, params={"cursor": shown["next_cursor"]}, headers=admin.headers).json()
    assert [each["id"] for each in shown["api_tokens"] + rest["api_tokens"]] == [created, admin.id, second.id, first.id]
    assert (len(shown["api_tokens"]), rest["next_cursor"]) == (2, None)


def test_audit_when_a_tenant_does_more_than_is_kept_then_only_its_oldest_go(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(audit, "LOOK_EVERY", 1)
    with database.write() as connection:
        audit.record(connection, "acme", "a", "ask", refused="ROLE_MISSING")
        for number in range(5):
            audit.record(connection, "acme", "a", "start table", found=str(number))
        many_above(connection, audit.MAX_DONE + 2)
        audit.record(connection, "acme", "a", "start table", found="5")
    with database.read() as connection:
        kept = [(row.refused, row.found) for row in audit.search(connection, "acme", 10).rows]
    assert kept == [("", "5"), ("", ""), ("", "4"), ("", "3"), ("ROLE_MISSING", "")]


def test_secrets_when_they_are_shown_rightly_and_wrongly_then_they_stand_nowhere(
    client: httpx.Client, database: Database, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore").setLevel(logging.WARNING)  # of the test's own client
    logging.getLogger("httpx").setLevel(logging.WARNING)
    admin = made(database, Role.ADMIN, None)
    wrong = ApiToken(admin.id, "W" * 43)
    body = {"name": "nightly", "role": "viewer"}
    created = client.post("/api/v1/tenants/acme/api-tokens", json=body, headers=admin.headers).json()["token"]
    link = client.post("/api/v1/login-links", json={}, headers=admin.headers).json()["path"].removeprefix("/login#")
    browser = logged_in(client, link=link)
    page_token = client.get("/api/v1/session", headers=browser).json()["page_token"]
    said = [client.get(FLEET, headers={"authorization": f"Bearer {wrong.reveal()}"}).text]
    for shown in ({"token": wrong.reveal()}, {"link": link}, {"token": created, "link": link}, {"token": [created]}):
        said.append(client.post("/api/v1/session", json=shown).text)
    for path in (
        "/api/v1/api-tokens",
        "/api/v1/tenants/acme/api-tokens",
        "/api/v1/audit",
        "/api/v1/tenants/acme/audit",
        "/metrics",
    ):
        said.append(client.get(path, headers=admin.headers).text)
    said += [caplog.text, repr(wrong), repr(authentication.Known(SessionOf(ANONYMOUS, None), link))]
    with database.read() as connection:
        for table in Base.metadata.sorted_tables:
            said.append(repr(connection.execute(select(table)).all()))
    session = browser["cookie"].partition("=")[2]
    for secret in (admin.token, created, wrong.reveal(), link, session):
        canary = secret.rpartition(".")[2]
        assert [words for words in said if canary in words] == []
    assert [words for words in said if page_token in words] == []


def test_commands_when_they_have_a_token_file_then_they_are_who_it_says(
    url: str, client: httpx.Client, database: Database, tmp_path: Path
):
    file = tmp_path / "api.token"
    ensure_admin_token(database, file)
    assert file.stat().st_mode & 0o777 == 0o600
    known = file.read_text()
    ensure_admin_token(database, file)
    assert file.read_text() == known
    where = {"MENURA_API": url, "MENURA_TENANT": "acme"}
    nobody = menura("agents", **where)
    assert (nobody.returncode, "CALLER_MISSING" in nobody.stderr) == (25, True)
    assert "--token-file or MENURA_API_TOKEN_FILE" in nobody.stderr
    token = menura(
        "api-token", "create", "nightly", "--role", "viewer", "--token-file", str(file), **where
    ).stdout.split()[0]
    viewer = tmp_path / "viewer.token"
    viewer.write_text(token)
    where["MENURA_API_TOKEN_FILE"] = str(viewer)
    assert menura("agents", **where).returncode == 0
    assert "ROLE_MISSING" in menura("token", "list", **where).stderr
    assert "ROLE_MISSING" in menura("lakes", **where).stderr
    where["MENURA_API_TOKEN_FILE"] = str(file)
    listed = json.loads(menura("api-token", "list", "--json", **where).stdout)["api_tokens"]
    assert [(each["name"], each["role"], each["created_by"]) for each in listed] == [
        ("nightly", "viewer", f"token {known.split('.')[1]} (admin-token-file)")
    ]
    shown = menura("api-token", "revoke", listed[0]["id"], **where)
    assert "revoked" in shown.stdout
    assert "CALLER_UNKNOWN" in menura("agents", "--token-file", str(viewer), **where).stderr
    for role in ("sink", "fleet-viewer", "admin"):
        assert menura("api-token", "create", f"of-{role}", "--role", role, "--fleet", **where).returncode == 0
    assert "admin-token-file" in menura("api-token", "list", "--fleet", **where).stdout
    assert "create api token" in menura("audit", "--fleet", **where).stdout
    elsewhere = menura("agents", "--api", "http://192.0.2.1:7080", **where)
    assert (elsewhere.returncode, "in clear" in elsewhere.stderr) == (24, True)
    link = menura("login", **where).stdout.strip()
    assert "make a login link" in menura("audit", "--fleet", **where).stdout
    assert link.startswith(f"{url}/login#")
    assert logged_in(client, link=link.rpartition("#")[2])
    viewer.write_text("two words")
    assert "has no token" in menura("agents", "--token-file", str(viewer), **where).stderr
    file.write_text(known.replace(".", "", 1))  # what is not good is made anew
    ensure_admin_token(database, file)
    assert ApiToken.parse(file.read_text().strip()) is not None


def test_api_when_it_was_asked_to_let_everybody_in_then_the_audit_log_says_that_nobody_was_known(
    database: Database, registry: SqlRegistry
):
    facts.record_shop(registry)
    with serving(database, access=Access(anonymous=True)) as found, http_client(found) as client:
        assert client.post(STOP, json={"tables": "all"}).is_success
        assert client.get(FLEET, headers={"authorization": "Bearer x"}).status_code == 401
    with database.read() as connection:
        assert connection.execute(select(AuditEntry.actor)).scalars().all() == ["anonymous"]
