"""People log in with a real OpenID Connect provider, as their browsers do: redirects, cookies, its forms."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import select

from controlplane_api.api.app import Access
from controlplane_api.api.routers.login import CALLBACK
from controlplane_api.database import Database
from controlplane_api.errors import LoginUnusable
from controlplane_api.identity import oidc
from controlplane_api.identity.oidc import Attempt, Provider
from controlplane_api.identity.oidc_settings import read_oidc_settings
from controlplane_api.models import Base
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.browser import browser
from tests.controlplane_api.conftest import serving
from tests.oidc_provider import SECRET, oidc_provider
from tests.servers import free_port
from tests.stack import wait_for

FLEET = "/api/v1/tenants/acme/fleet"
GRANTS = """
grants:
  - {group: cdc-admins, role: admin}
  - {group: shop-team, role: operator, tenant: acme}
"""


@dataclass(frozen=True)
class Place:
    api: str
    issuer: str


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture(scope="module")
def issuer(ports: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("provider") / "log"
    with oidc_provider(log, ports[0], f"http://127.0.0.1:{ports[1]}{CALLBACK}") as found:
        yield found


@contextmanager
def api_of(database: Database, issuer: str, port: int, folder: Path) -> Iterator[Place]:
    (folder / "secret").write_text(SECRET)
    file = folder / "oidc.yaml"
    file.write_text(
        f"issuer: {issuer}\nname: Acme\nclient_id: menura\nclient_secret_file: secret\n"
        f"scopes: [openid, profile, groups]\nname_claim: email\n{GRANTS}"
    )
    access = Access(public_url=f"http://127.0.0.1:{port}", provider=Provider(read_oidc_settings(file)))
    with serving(database, port, access) as url:
        yield Place(url, issuer)


@pytest.fixture
def place(database: Database, issuer: str, ports: tuple[int, int], tmp_path: Path) -> Iterator[Place]:
    with api_of(database, issuer, ports[1], tmp_path) as found:
        yield found


def person() -> httpx.Client:
    """A browser's cookies and redirects, without its pages."""
    return httpx.Client(timeout=300, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


def to_callback(client: httpx.Client, place: Place, login: str) -> str:
    """Log in at the provider; the address that it sends the browser back to."""
    answer = client.get(f"{place.api}/api/v1/login/provider")
    for _ in range(20):
        if answer.is_redirect:
            target = str(httpx.URL(str(answer.url)).join(answer.headers["location"]))
            if target.startswith(f"{place.api}{CALLBACK}"):
                return target
            answer = client.get(target)
            continue
        assert answer.status_code == 200, answer.text
        action = re.search(r'action="([^"]+)"', answer.text)
        prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
        assert action is not None and prompt is not None, answer.text
        form = {"prompt": prompt[1], "login": login, "password": "any"}
        answer = client.post(str(httpx.URL(str(answer.url)).join(action[1])), data=form)
    raise AssertionError("the provider sends the browser round and round")


def log_in(client: httpx.Client, place: Place, login: str) -> httpx.Response:
    return client.get(to_callback(client, place, login))


def why(answer: httpx.Response) -> str:
    """With which the login page is shown."""
    assert answer.status_code == 303
    return parse_qs(urlsplit(answer.headers["location"]).query)["refused"][0]


def test_person_when_known_to_the_provider_then_has_the_roles_of_the_groups(place: Place):
    with person() as ada, person() as grace, person() as mallory:
        answer = log_in(ada, place, "ada")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert all(
            "HttpOnly" in cookie and "SameSite=lax" in cookie for cookie in answer.headers.get_list("set-cookie")
        )
        session = ada.get(f"{place.api}/api/v1/session").json()
        assert session["actor"] == "person ada@acme.example (ada)"
        assert session["grants"] == [{"role": "operator", "tenant": "acme"}]
        assert ada.get(f"{place.api}{FLEET}").status_code == 200
        assert ada.get(f"{place.api}/api/v1/tenants/globex/fleet").status_code == 404
        assert ada.get(f"{place.api}/api/v1/tenants/acme/audit").status_code == 403
        assert log_in(grace, place, "grace").headers["location"] == "/"
        entries = grace.get(f"{place.api}/api/v1/tenants/acme/audit").json()["entries"]
        seen = [(entry["actor"], entry["action"], entry["refused"]) for entry in entries]
        assert seen == [(session["actor"], "get audit", "ROLE_MISSING"), (session["actor"], "log in", "")]
        assert "none of this person's groups has a role" in why(log_in(mallory, place, "mallory"))
        assert mallory.get(f"{place.api}/api/v1/session").status_code == 401
        headers = {"x-menura-page-token": session["page_token"]}
        assert ada.post(f"{place.api}/api/v1/session/end", json={}, headers=headers).is_success
        assert ada.get(f"{place.api}{FLEET}").status_code == 401


def test_code_when_it_is_used_twice_or_by_another_browser_then_nobody_comes_in(place: Place):
    with person() as ada, person() as eve:
        attempt = re.compile(r"menura-login=([^;]+)")
        back = to_callback(ada, place, "ada")
        cookie = attempt.search(ada.build_request("GET", place.api).headers["cookie"])
        assert cookie is not None
        assert "not begun by this browser" in why(eve.get(back))
        eve.get(f"{place.api}/api/v1/login/provider")
        assert "not begun by this browser" in why(eve.get(back))  # eve's own state is another
        assert "another provider" in why(ada.get(re.sub(r"iss=[^&]+", "iss=https://evil.example", back)))
        again = {"cookie": f"menura-login={cookie[1]}"}
        assert ada.get(back, headers=again).headers["location"] == "/"
        with person() as thief:  # who has the cookie too
            assert "seen it before" in why(thief.get(back, headers=again))


def test_attempt_when_its_nonce_or_verifier_is_another_then_the_token_is_refused(place: Place):
    with person() as ada:
        for changed, words in (("nonce", "not for us"), ("verifier", "the code")):
            back = to_callback(ada, place, "ada")
            attempt = Attempt.parse(ada.cookies["menura-login"])
            assert attempt is not None
            parts = {name: getattr(attempt, name) for name in ("state", "nonce", "verifier")} | {changed: "x" * 64}
            forged = Attempt(**parts).reveal()
            assert words in why(person().get(back, headers={"cookie": f"menura-login={forged}"}))


def test_keys_when_the_provider_has_others_then_they_are_asked_for_and_not_too_often(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(oidc, "KEYS_SECONDS", 0.0)
    port, provider_port = free_port(), free_port()
    callback, log = f"http://127.0.0.1:{port}{CALLBACK}", tmp_path / "log"
    with api_of(database, f"http://127.0.0.1:{provider_port}", port, tmp_path) as place:
        for _ in range(2):
            with oidc_provider(log, provider_port, callback), person() as ada:
                assert log_in(ada, place, "ada").headers["location"] == "/"
        monkeypatch.setattr(oidc, "KEYS_SECONDS", 3600.0)
        with oidc_provider(log, provider_port, callback), person() as ada:
            assert "not for us" in why(log_in(ada, place, "ada"))
        with person() as ada:  # it is away; what it said of itself is known for a while
            assert ada.get(f"{place.api}/api/v1/login/provider").status_code == 303
            assert ada.get(f"{place.api}{FLEET}").status_code == 401


def test_secrets_of_a_login_when_it_is_carried_out_then_they_stand_nowhere(
    place: Place, database: Database, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore"):  # also those of the test's own client
        logging.getLogger(name).setLevel(logging.WARNING)
    with person() as ada:
        back = to_callback(ada, place, "ada")
        code = parse_qs(urlsplit(back).query)["code"][0]
        attempt = Attempt.parse(ada.cookies["menura-login"])
        assert attempt is not None
        first, second = ada.get(back), ada.get(back)
        session = ada.cookies["menura-session"]
        said = [first.text, second.text, second.headers["location"], caplog.text, repr(attempt)]
        said.append(ada.get(f"{place.api}/api/v1/session").text)
    with database.read() as connection:
        said += [repr(connection.execute(select(table)).all()) for table in Base.metadata.sorted_tables]
    for secret in (SECRET, code, session, attempt.state, attempt.nonce, attempt.verifier):
        assert [words for words in said if secret in words] == []


def test_dashboard_when_nobody_is_logged_in_then_leads_to_the_provider_and_back(
    place: Place, registry: SqlRegistry, tmp_path: Path
):
    with browser(tmp_path) as chromium:
        chromium.open(place.api)
        chromium.wait_for_text("#provider", "Log in with Acme")
        chromium.click("#provider-link")
        chromium.click("input[name=login]")
        chromium.run("document.querySelector('input[name=login]').value = 'ada'")
        chromium.run("document.querySelector('input[name=password]').value = 'any'")
        chromium.click("button[type=submit]")
        asked = "return !!document.querySelector('input[name=login]')"
        wait_for("the page of consent", lambda: not chromium.run(asked))
        chromium.click("button[type=submit]")
        chromium.wait_for_text("#actor", "person ada@acme.example (ada)")
        chromium.wait_for_text("#failure", "There is no tenant yet that you may see.")
        facts.record_shop(registry)
        chromium.wait_for_text("#sources", "shop")
        assert chromium.text("#failure") == ""
        chromium.click("#logout")
        chromium.wait_for_text("#provider", "Log in with Acme")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "can't be read"),
        ("issuer: https://id.example\nclient_id: x\n", "lacks grants"),
        (f"issuer: http://id.example\nclient_id: x\n{GRANTS}", "no https"),
        (f"issuer: https://id.example\nclient_id: x\nsecret: y\n{GRANTS}", "secret"),
        (f"issuer: https://id.example\nclient_id: x\nclient_secret_file: nowhere\n{GRANTS}", "client_secret_file"),
        ("issuer: https://id.example\nclient_id: x\ngrants: [{group: a, role: king}]\n", "role of viewer"),
        ("issuer: https://id.example\nclient_id: x\ngrants: [{group: a, role: sink, tenant: acme}]\n", "grants"),
    ],
)
def test_settings_when_they_are_wrong_then_say_what(tmp_path: Path, text: str, words: str):
    file = tmp_path / "oidc.yaml"
    file.write_text(text)
    with pytest.raises(LoginUnusable, match=words):
        read_oidc_settings(file)


def test_groups_when_a_claim_is_no_list_of_texts_then_they_give_nothing(tmp_path: Path):
    file = tmp_path / "oidc.yaml"
    file.write_text(f"issuer: https://id.example\nclient_id: x\n{GRANTS}")
    settings = read_oidc_settings(file)
    for said in (None, 7, {"cdc-admins": 1}, [["cdc-admins"]], ["other"], True):
        assert settings.grants_of({"groups": said}) == ()
    assert settings.grants_of({"groups": "cdc-admins"}) == (settings.grants[0][1],)
    assert len(settings.grants_of({"groups": ["cdc-admins", "shop-team", "cdc-admins"]})) == 2
