"""Three people reach their aim in a real Chromium, each from the login on, against a running system with real data.

A data engineer finds a table among 20,000, has it synced and proven. A DBA adds an agent. An operator follows errors to
their remedies, which are done word for word. No page is loaded again once its person waits at it.
Pictures of each station are in build/dashboard afterwards.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from controlplane_api.api.routers.login import CALLBACK
from tests.controlplane_api.browser import Browser, browser
from tests.controlplane_api.test_dashboard import choose
from tests.controlplane_api.test_dashboard_pages import PICTURES
from tests.e2e import load
from tests.oidc_provider import SECRET, oidc_provider
from tests.remedies import commands, statements
from tests.servers import Server, free_port, server, two_free_ports
from tests.stack import Process, Stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.long]

SCHEMAS, TABLES_OF_EACH = 40, 500
OIDC = """
issuer: {issuer}
name: Acme
client_id: menura
client_secret_file: secret
scopes: [openid, profile, groups]
name_claim: email
grants:
  - {{group: cdc-admins, role: admin}}
  - {{group: shop-team, role: operator, tenant: acme}}
  - {{group: shop-team, role: reader, tenant: acme}}
  - {{group: night-watch, role: operator, tenant: acme}}
"""


@dataclass(frozen=True)
class System:
    stack: Stack
    #: with 20,000 tables, the source shop
    shop: Server
    #: a small one, the source billing
    billing: Server

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.stack.api_port}"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    port = two_free_ports()  # an agent enrols at the port after the gateway's
    stack = Stack(folder / "stack", with_ca=True, gateway_port=port, enrol_port=port + 1)
    with ExitStack() as ends:
        ends.callback(stack.client.close)
        shop = ends.enter_context(server("mariadb", folder / "shop", plugin_load_add="ha_blackhole"))
        billing = ends.enter_context(server("mariadb", folder / "billing"))
        fill(shop)
        load.create_tables(billing, "billing", "invoices")
        load.create_tables(billing, "crm", "customers")
        callback = f"http://127.0.0.1:{stack.api_port}{CALLBACK}"
        issuer = ends.enter_context(oidc_provider(folder / "provider.log", free_port(), callback))
        for process in (stack.gateway, api_with_login(stack, issuer, searched := free_port()), stack.sink):
            ends.enter_context(process)
        wait_for("the API to answer", lambda: stack.api_answers() or None)
        ends.enter_context(searching(stack, searched))
        for name, source, database in (("shop-db", "shop", shop), ("billing-db", "billing", billing)):
            database.create_replication_user()
            agent = stack.agent(name, {source: database}, unlogged_changes="stop")
            stack.enrol(agent)
            ends.enter_context(agent)
        yield System(stack, shop, billing)


def fill(shop: Server) -> None:
    """The table orders, which is looked for, and 20,000 others.

    Making each by a statement takes the server ten minutes of disk. A table of the engine BLACKHOLE is its definition's
    file alone, so each is a link to that of one which the server has made.
    """
    load.create_tables(shop, "shop", "orders")
    for schema in range(SCHEMAS):
        shop.run(f"CREATE DATABASE store_{schema:02}")
    columns = "id INT PRIMARY KEY, label VARCHAR(40)"
    shop.run(f"CREATE TABLE store_00.stock_000 ({columns}) ENGINE = BLACKHOLE", "FLUSH TABLES")
    assert shop.folder is not None
    data = shop.folder / "data"
    for number in range(1, SCHEMAS * TABLES_OF_EACH):
        schema, table = divmod(number, TABLES_OF_EACH)
        os.link(data / "store_00/stock_000.frm", data / f"store_{schema:02}/stock_{table:03}.frm")


def api_with_login(stack: Stack, issuer: str, searched: int) -> Process:
    """The API, where people log in with the provider, and which asks the service of searches."""
    (stack.folder / "secret").write_text(SECRET)
    (settings := stack.folder / "oidc.yaml").write_text(OIDC.format(issuer=issuer))
    known_as = ("--public-url", f"http://127.0.0.1:{stack.api_port}", "--oidc", str(settings))
    stack.api.arguments.extend((*known_as, "--search", f"http://127.0.0.1:{searched}"))
    return stack.api


@contextmanager
def searching(stack: Stack, port: int) -> Iterator[None]:
    (indexes := stack.folder / "indexes").mkdir()
    where = ("--folder", str(indexes), "--lake", str(stack.lake), "--listen", f"127.0.0.1:{port}")
    with Process(["search", "serve", *where, "--timeout-seconds", "300"], stack.folder / "search.log") as process:
        wait_for("the service of searches", lambda: "searches on" in process.log.read_text())
        yield


@dataclass
class Person:
    """Somebody at a browser, logged in; his stations are seen in pictures."""

    page: Browser
    walk: str
    stations: int = 0

    def sees(self, css: str, *words: str) -> None:
        for each in words:
            self.page.wait_for_text(css, each)

    def picture(self, what: str) -> None:
        self.stations += 1
        self.page.picture(PICTURES / f"walk-{self.walk}-{self.stations}-{what}.png")

    def agrees(self, *words: str) -> None:
        """To the plan that is shown, which has these words."""
        self.sees("#confirm", *words)
        self.page.click("#confirm-yes")

    def stays(self) -> None:
        """At this page, from now on: `has_stayed` says so."""
        self.page.run("window.stayed = true")

    def has_stayed(self) -> bool:
        return bool(self.page.run("return window.stayed === true"))


@contextmanager
def logged_in(system: System, folder: Path, login: str, walk: str) -> Iterator[Person]:
    """From the dashboard's address by the provider's forms to the first page."""
    with browser(folder) as page:
        person = Person(page, walk)
        page.resize(1280, 1000)
        page.open(system.dashboard)
        person.sees("#provider", "Log in with Acme")
        person.picture("login")
        page.click("#provider-link")
        page.type("input[name=login]", login)
        page.type("input[name=password]", "any")
        page.click("button[type=submit]")
        asked = "return !!document.querySelector('input[name=login]')"
        wait_for("the page of consent", lambda: not page.run(asked))
        page.click("button[type=submit]")
        person.sees("#actor", f"person {login}@acme.example")
        page.complaints()  # of the provider's pages
        yield person
        assert [each for each in page.complaints() if "the server responded with a status of" not in each] == []


def test_data_engineer_when_a_table_is_found_among_20_000_then_its_rows_arrive_and_are_proven(
    system: System, tmp_path: Path
) -> None:
    with logged_in(system, tmp_path, "ada", "engineer") as ada:
        page = ada.page
        page.click("#sources a.source-name[href*='source=shop']")
        ada.sees("#its-tables", "20,001 tables")
        page.click("#its-tables")
        ada.sees("#tables-total", "20,001 tables")
        page.type("#text", "orders")
        wait_for("the one of that name", lambda: page.text("#tables-total") == "1 table")
        ada.picture("found")
        choose(page, "begin", "dump")
        page.click("button[aria-label='Start shop.orders']")
        ada.sees("#confirm", "shop.orders would be started", "a dump of all rows")
        ada.picture("plan")
        ada.agrees()
        ada.sees("#outcome", "shop.orders: started.")
        page.click("#tables a[href*='table=orders']")
        ada.sees("#table-title", "shop.orders")
        ada.stays()
        ada.sees("#table-state", "streaming")
        ada.sees("#stages", "20 changes", "behind its log", str(system.stack.lake))
        page.click("#toggle-changes")
        ada.sees("#changes", "read by a dump", "row 19")
        for number in range(3):
            system.shop.run(f"INSERT INTO shop.orders (amount, note) VALUES ({number}.50, 'came {number}')")
            ada.sees("#changes tr", "inserted", f"came {number}")
            ada.sees("#stages", f"{21 + number} changes")
        ada.picture("rows")
        ada.sees("#sentence", "It was never verified")
        page.click("#verify-table")
        ada.agrees("no row of them is sent")
        ada.sees("#proof-state", "equal")
        ada.sees("#sentence", "Equal to the source", "23 rows")
        assert page.run("return document.querySelector('#proof-state .pill').className") == "pill proven"
        ada.picture("proven")
        assert ada.has_stayed()


def test_dba_when_an_agent_is_added_by_the_pages_line_then_it_connects_and_its_tables_are_there(
    system: System, tmp_path: Path
) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "agent.yaml").write_text(yaml.safe_dump(crm_agent(system, host)))
    with logged_in(system, tmp_path, "grace", "dba") as grace:
        page = grace.page
        page.click(".parts a[href*='/fleet']")
        grace.sees("#agents", "shop-db")
        grace.stays()
        page.click("#add-agent")
        page.type("#agent-name", "crm-db")
        page.type("#gateway", f"127.0.0.1:{system.stack.gateway_port}")
        page.click("#make-token button")
        grace.sees("#made", "menura agent enrol", "Good for 00:5", "menura agent run --config agent.yaml")
        grace.picture("line")
        on_host(host, page.text("#line"))
        grace.sees("#token-state", "It has enrolled the agent crm-db.")
        page.click("#enrolment-end")
        with Process(["agent", "run", "--config", str(host / "agent.yaml")], host / "agent.log"):
            its_row = "#agents tr:has(button[aria-label='Revoke crm-db'])"
            grace.sees(f"{its_row} .pill.connected", "connected")
            grace.sees(its_row, "Sources: crm", "good for")
            assert grace.has_stayed()
            grace.picture("connected")
            page.click(".parts a[href='/?tenant=acme']")
            page.click("#sources a.source-name[href*='source=crm']")
            page.click("#its-tables")
            grace.sees("#tables", "crm.customers")
            grace.picture("tables")


def crm_agent(system: System, host: Path) -> dict[str, object]:
    """What the DBA has written: of his server one table may leave."""
    client = {"host": system.billing.host, "port": system.billing.port, "user": "menura", "password": "menura-secret"}
    source = {"kind": "mysql", "client": client, "filter_policy": "drop", "filter": {"crm.customers": None}}
    identity = str(host / "state/identity.pem")
    gateway = {"address": f"127.0.0.1:{system.stack.gateway_port}", "identity": identity}
    return {"agent": "crm-db", "state_folder": str(host / "state"), "gateway": gateway, "sources": {"crm": source}}


def on_host(folder: Path, line: str) -> None:
    """Run as it stands, where the installed `menura` is found."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        shlex.split(line), cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_operator_when_something_breaks_at_night_then_the_errors_lead_to_remedies_that_mend_it(
    system: System, tmp_path: Path
) -> None:
    system.stack.start_sync("billing", "billing", "invoices", "dump")
    system.stack.wait_until_streaming("billing", "billing", "invoices")
    with logged_in(system, tmp_path, "alan", "operator") as alan:
        a_table_fails(system, alan)
        a_grant_is_taken(system, alan)


def failures(page: Browser) -> str:
    """How many the first page tells."""
    script = """
        const facts = [...document.querySelectorAll('#overview div')];
        return facts.find((each) => each.firstChild.textContent === 'Failures')?.lastChild.textContent ?? '';
    """
    return str(page.run(script))


def a_table_fails(system: System, alan: Person) -> None:
    page = alan.page
    wait_for("no failure", lambda: failures(page) == "0")
    unseen = "UPDATE billing.invoices SET note = 'unseen' WHERE id < 9"
    system.billing.run("SET SESSION binlog_format = 'STATEMENT'", unseen)
    wait_for("the failure", lambda: failures(page) == "1")
    alan.picture("failure")
    page.click("#sources a.source-name[href*='source=billing']")
    page.click("#source-card a[href*='state=failed']")
    alan.sees("#tables", "billing.invoices")
    page.click("#tables a[href*='table=invoices']")
    alan.sees("#table-state", "failed")
    alan.stays()
    alan.sees("#notes", "logged as a statement")
    alan.picture("table-error")
    told = page.text("#notes")
    (statement,), (command,) = statements(told), commands(told)
    system.billing.run(statement)
    system.stack.command(*command)
    alan.sees("#table-state", "streaming")
    wait_for("nothing to be said of it", lambda: page.text("#notes") == "")
    alan.picture("table-mended")
    assert alan.has_stayed()


def a_grant_is_taken(system: System, alan: Person) -> None:
    page = alan.page
    page.click(".parts a[href^='/?']")
    page.click("#sources a.source-name[href*='source=billing']")
    alan.sees("#source-card .pill.connected", "connected")
    alan.stays()
    system.billing.run("REVOKE REPLICATION SLAVE ON *.* FROM 'menura'@'%'")
    for session, *_ in system.billing.run("SELECT id FROM information_schema.processlist WHERE user = 'menura'"):
        system.billing.run(f"KILL {session}")
    alan.sees("#errors", "SOURCE_GRANT_MISSING")
    alan.picture("source-error")
    for statement in statements(page.text("#errors")):
        system.billing.run(statement)
    wait_for("no error", lambda: page.run("return document.querySelector('#errors-section').hidden"))
    alan.sees("#source-card .pill.connected", "connected")
    alan.sees("#source-card", "1 streaming")
    alan.picture("source-mended")
    assert alan.has_stayed()
