"""How sources are configured: what is refused, what a plan says, what an apply does, and whose it is."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from menura.source_configuration import digest_of, sha256_of
from sqlalchemy import func, select

from controlplane_api.api.requests import FleetRequest
from controlplane_api.commands.fleet_file import read_fleet
from controlplane_api.database import Database
from controlplane_api.models import AuditEntry, Source, Sync, Tenant
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import StoppedBy
from gateway.registry import ConfigurationDigests, ConfigurationSeen, Problem
from tests.controlplane_api import facts
from tests.controlplane_api.commands import Done, menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY
from tests.remedies import commands
from tests.servers import ROOT
from tests.stack import http_client

SHOP = "/api/v1/tenants/acme/sources/shop/configuration"
AGENT = ("acme", "agent-1")
GOOD = {"kind": "memory", "client": {"password": {"file": "shop"}, "host": "db1"}}


@pytest.fixture
def api(database: Database) -> Iterator[str]:
    with serving(database) as url:
        yield url


@pytest.fixture
def client(api: str) -> Iterator[httpx.Client]:
    with http_client(api) as client:
        yield client


def configure(client: httpx.Client, configuration: object, agent: str = "agent-1", **more: object) -> httpx.Response:
    return client.post(SHOP, json={"agent": agent, "configuration": configuration, **more})


def fleet(tables: list[dict[str, Any]] | None = None, configuration: object = GOOD, **more: object) -> dict[str, Any]:
    shop: dict[str, Any] = {"configuration": configuration} | ({} if tables is None else {"tables": tables})
    return {"agents": {"agent-1": {"sources": {"shop": shop}}}, **more}


def table(name: str, **more: object) -> dict[str, Any]:
    return {"database": "shop", "table": name, **more}


def changes(answer: httpx.Response, of: str = "changes") -> list[tuple[str, str]]:
    assert answer.is_success, answer.text
    named = [(change["action"], change["table"] or change["source"] or change["agent"]) for change in answer.json()[of]]
    return [(action, name) for action, name in named]


@pytest.mark.parametrize(
    ("configuration", "path"),
    [
        ({}, "kind"),
        ({"kind": "../x"}, "kind"),
        ({"kind": "memory", "client": {"password": "hunter2"}}, "client.password"),
        ({"kind": "memory", "client": {"password": 7}}, "client.password"),
        ({"kind": "memory", "client": {"password": ["hunter2"]}}, "client.password"),
        ({"kind": "memory", "client": {"password": {"value": "hunter2"}}}, "client.password"),
        ({"kind": "memory", "client": {"password": {"file": {"a": "hunter2"}}}}, "client.password"),
        ({"kind": "memory", "client": {"password": {"file": "a", "env": "hunter2"}}}, "client.password"),
        ({"kind": "memory", "auth": [{"SASL_Secret": "hunter2"}]}, "auth.0.SASL_Secret"),
        ({"kind": "memory", "api_key": "hunter2"}, "api_key"),
        ({"kind": "memory", "db_pwd": "hunter2"}, "db_pwd"),
        ({"kind": "memory", "pass": "hunter2"}, "pass"),
        ({"kind": "memory", "dsn": "host=db1 password=hunter2"}, "dsn"),
        ({"kind": "memory", "url": "proto://user:hun/ter2@db1/x"}, "url"),
        ({"kind": "memory", "url": "proto://user:hunter2@db1/x"}, "url"),
        ({"kind": "memory", "key": "-----BEGIN RSA PRIVATE KEY-----hunter2"}, "key"),
        ({"kind": "memory", "a": "hunter2\u0000"}, "the configuration"),
        ({"kind": "memory", "a": {"hunter2" * 100: 1}}, "a"),
        ({"kind": "memory", "a": [[[[[[[[["hunter2"]]]]]]]]]}, "a.0.0.0.0.0.0.0.0"),
        ({"kind": "memory", "filter": {f"t{n}": {"x": "hunter2" * 1000} for n in range(200)}}, "the configuration"),
    ],
)
def test_configuration_when_it_has_a_secret_or_is_no_document_then_it_is_refused_and_its_value_is_nowhere(
    client: httpx.Client, registry: SqlRegistry, configuration: object, path: str
) -> None:
    facts.record_shop(registry)
    answer = configure(client, configuration)
    assert (answer.status_code, answer.json()["code"]) == (422, "CONFIGURATION_REFUSED"), answer.text
    assert answer.json()["found"].startswith(f"{path} ") and "hunter2" not in answer.text
    assert client.post("/api/v1/tenants/acme/fleet/apply", json=fleet(configuration=configuration)).status_code == 422
    assert client.get(SHOP).json()["code"] == "SOURCE_NOT_CONFIGURED"


def test_configuration_when_names_of_tables_sound_like_secrets_then_it_is_taken(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    facts.record_shop(registry)
    taken = GOOD | {"filter": {"shop.password_resets": None, "tokens": {"ignored_columns": ["secret"]}}}
    taken["client"] = {"password_env": "MENURA_SHOP", "passphrase": None}
    assert configure(client, taken).json() == {"source": "shop", "changed": True, "generation": 1}
    assert client.get(SHOP).json()["desired"] == taken


def test_configuration_when_its_agent_answers_then_both_are_shown_with_one_state_and_reason(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    def shown() -> tuple[str, str, int, int]:
        view = client.get(SHOP).json()
        return view["state"], view["reason"], view["generation"], view["effective_generation"]

    facts.record_shop(registry)
    nothing = digest_of([])
    assert registry.configuration_digests([AGENT, ("acme", "nobody")]) == {AGENT: ConfigurationDigests(nothing, "")}
    configure(client, GOOD)
    assert shown() == ("pending", "CONFIGURATION_PENDING", 1, 0)
    (sent,) = registry.configurations(AGENT)
    assert json.loads(sent.document) == GOOD and sent.sha256 == sha256_of(sent.document)
    assert registry.configuration_digests([AGENT])[AGENT].desired == digest_of([("shop", sent.sha256)])
    registry.record_configurations(AGENT, [ConfigurationSeen("shop", 1, sent.sha256, None)], "first", facts.T0)
    assert shown() == ("applied", "CONFIGURATION_APPLIED", 1, 1)
    assert registry.configuration_digests([AGENT])[AGENT].reported == "first"
    assert configure(client, dict(reversed(GOOD.items()))).json()["changed"] is False  # the same in another order
    assert configure(client, GOOD | {"dump": {"workers": 3}}).json()["generation"] == 2
    assert shown() == ("pending", "CONFIGURATION_PENDING", 2, 1)
    refused = Problem("CONFIG_INVALID", "dump.workers", terminal=True, at_us=facts.T0)
    registry.record_configurations(AGENT, [ConfigurationSeen("shop", 1, sent.sha256, refused)], "second", facts.T0)
    assert shown() == ("refused", "CONFIG_INVALID", 2, 1)
    source = client.get("/api/v1/tenants/acme/sources/shop").json()
    assert (source["problem"], [one["code"] for one in source["warnings"]]) == (None, ["CONFIG_INVALID"])
    # a source of which nothing runs is not read, whatever its tables said last
    registry.record_configurations(AGENT, [ConfigurationSeen("shop", 0, "", refused)], "third", facts.T0)
    source = client.get("/api/v1/tenants/acme/sources/shop").json()
    assert (source["problem"]["code"], source["stage"], source["warnings"]) == ("CONFIG_INVALID", "source", [])
    registry.record_configurations(AGENT, [ConfigurationSeen("shop", 1, sent.sha256, refused)], "second", facts.T0)
    # what another agent says of it is nobody's
    registry.record_agent(facts.agent_seen("other", ["shop"]))
    registry.record_configurations(("other", "agent-1"), [ConfigurationSeen("shop", 9, "x", None)], "x", facts.T0)
    assert shown() == ("refused", "CONFIG_INVALID", 2, 1)
    client.post("/api/v1/tenants/acme/agents", json={"agent": "agent-2"})
    client.post("/api/v1/tenants/acme/sources/shop/assign", json={"agent": "agent-2"})
    assert shown() == ("unknown", "AGENT_AWAY", 2, 0)
    client.post("/api/v1/tenants/acme/sources/shop/assign", json={"agent": "agent-1"})
    assert shown() == ("pending", "CONFIGURATION_PENDING", 2, 0)
    registry.record_agent_gone(*AGENT, "run-1", facts.T0)
    assert shown() == ("unknown", "AGENT_AWAY", 2, 0)


def test_commands_when_a_source_is_added_changed_and_removed_then_each_says_what_it_needs(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    assert configure(client, GOOD, before="some").json()["code"] == "SOURCE_NOT_CONFIGURED"
    assert configure(client, GOOD, agent="nobody").json()["code"] == "AGENT_UNKNOWN"
    assert configure(client, GOOD, before="none").json()["changed"] is True
    assert configure(client, GOOD, before="none").json()["code"] == "SOURCE_CONFIGURED"
    client.post("/api/v1/tenants/acme/sources/shop/start", json={"tables": [table("orders")]})
    assert client.post(f"{SHOP}/remove", json={}).json()["code"] == "SOURCE_SYNCING"
    assert client.post(f"{SHOP}/remove", json={"stop_tables": True}).json()["changed"] is True
    assert client.get("/api/v1/tenants/acme/sources/shop/tables/shop/orders").json()["state"] == "stopped"
    assert client.get(SHOP).json()["code"] == "SOURCE_NOT_CONFIGURED"
    assert client.post("/api/v1/tenants/other/sources/shop/configuration/remove", json={}).status_code == 404
    assert registry.configurations(AGENT) == ()
    with database.read() as connection:
        actions = connection.execute(select(AuditEntry.action).order_by(AuditEntry.id)).scalars().all()
    assert actions == ["configure source", "start tables", "remove source"]


def test_commands_when_they_are_refused_then_what_the_messages_say_is_taken(
    api: str, client: httpx.Client, registry: SqlRegistry, tmp_path: Path
) -> None:
    facts.record_shop(registry)
    file = tmp_path / "shop.yaml"
    file.write_text("kind: memory")

    def run(*words: str) -> Done:
        named = [{"NAME": "agent-1", "FILE": str(file)}.get(word, word) for word in words]
        return menura(*named, "--api", api, "--tenant", "acme")

    def take_remedy(refused: Done, words: int, *more: str) -> None:
        assert refused.returncode == 25
        ((*command,),) = commands(refused.stderr)[-1:]
        done = run(*command[:words], *more)
        assert done.returncode == 0, done.stderr

    take_remedy(run("sources", "show", "shop"), 7)
    file.write_text("kind: other")
    take_remedy(run("sources", "add", "shop", "--agent", "agent-1", "-f", "FILE"), 5)
    assert client.get(SHOP).json()["generation"] == 2
    client.post("/api/v1/tenants/acme/sources/shop/start", json={"tables": [table("orders")]})
    refused = run("sources", "remove", "shop")
    assert "with --stop-tables." in refused.stderr
    take_remedy(refused, 4)
    assert run("sources", "remove", "shop").returncode == 0
    client.post("/api/v1/tenants/acme/sources/shop/start", json={"tables": [table("orders")]})
    assert configure(client, GOOD).json()["changed"] is True
    assert run("sources", "remove", "shop", "--stop-tables").stdout == "Source shop is configured no more.\n"


def test_fleet_when_it_is_planned_then_nothing_is_changed_and_apply_does_the_same_once(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    wanted = fleet([table("orders"), table("later", start="now", dump={"priority": 3})])
    every = [("create", "agent-1"), ("create", "shop"), ("start", "later"), ("start", "orders")]
    assert changes(client.post("/api/v1/tenants/acme/fleet/plan", json=wanted)) == every
    with database.read() as connection:
        for model in (Tenant, Source, AuditEntry):
            assert connection.execute(select(func.count()).select_from(model)).scalar_one() == 0
    assert changes(client.post("/api/v1/tenants/acme/fleet/apply", json=wanted)) == every
    assert client.get(SHOP).json()["wanted_tables"] == 2
    facts.record_shop(registry)  # a cartography with one of them
    assert client.get(SHOP).json()["wanted_tables"] == 1
    orders = client.get("/api/v1/tenants/acme/sources/shop/tables/shop/orders").json()
    assert (orders["desired"], orders["start"]) == ("syncing", "dump")
    for word in ("plan", "apply"):
        assert changes(client.post(f"/api/v1/tenants/acme/fleet/{word}", json=wanted)) == []
    known = ("orders", "items", "notes", "later")
    facts.record_cartography(
        registry, KEY, "mysql", "9.7.0", facts.UUID, [facts.table_seen(name) for name in known], facts.T0
    )
    assert client.get(SHOP).json()["wanted_tables"] == 0
    assert client.get("/api/v1/tenants/acme/sources/shop/tables/shop/later").json()["start"] == "now"
    assert changes(client.post("/api/v1/tenants/acme/fleet/apply", json=wanted)) == []


def test_fleet_when_it_lacks_what_is_there_then_that_stays_unless_it_is_pruned(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    facts.record_shop(registry)
    first = client.post(
        "/api/v1/tenants/acme/fleet/apply", json=fleet([table("orders"), table("items"), table("later")])
    )
    dumped = [change for change in first.json()["changes"] if change["table"] in ("orders", "items")]
    assert [(one["estimated_rows"], one["estimated_bytes"]) for one in dumped] == [(1_000, 65_536)] * 2
    less = fleet([table("orders")], GOOD | {"filter_policy": "drop"})
    answer = client.post("/api/v1/tenants/acme/fleet/apply", json=less)
    assert changes(answer) == [("change", "shop")]
    assert "resync" in answer.json()["changes"][0]["detail"]
    assert changes(answer, "kept") == [("keep", "items"), ("keep", "later")]
    pruned = client.post("/api/v1/tenants/acme/fleet/apply", json=less | {"prune": True})
    assert (changes(pruned), changes(pruned, "kept")) == ([("stop", "items"), ("stop", "later")], [])
    assert client.get(SHOP).json()["wanted_tables"] == 0
    # one that has stopped goes on where it stopped; without `tables` nothing is said of any
    again = client.post("/api/v1/tenants/acme/fleet/apply", json=fleet([table("orders"), table("items")]))
    assert changes(again) == [("change", "shop"), ("resume", "items")]
    assert changes(client.post("/api/v1/tenants/acme/fleet/apply", json=fleet(prune=True))) == []
    # another agent's sources are not the file's
    registry.record_agent(facts.agent_seen("acme", ["shop"]))
    other = {"agents": {"agent-2": {"sources": {}}}, "prune": True}
    assert changes(client.post("/api/v1/tenants/acme/fleet/apply", json=other)) == [("create", "agent-2")]
    moved = {"agents": {"agent-2": {"sources": {"shop": {"configuration": GOOD}}}}}
    assert changes(client.post("/api/v1/tenants/acme/fleet/apply", json=moved)) == [("move", "shop")]
    assert registry.configurations(AGENT) == ()
    both = moved["agents"] | fleet()["agents"]
    assert client.post("/api/v1/tenants/acme/fleet/apply", json={"agents": both}).status_code == 422
    nothing = {"agents": {"agent-2": {"sources": {}}}, "prune": True}
    gone = client.post("/api/v1/tenants/acme/fleet/apply", json=nothing)
    assert changes(gone) == [("stop", "items"), ("stop", "orders"), ("remove", "shop")]
    with database.read() as connection:
        assert set(connection.execute(select(Sync.desired)).scalars()) == {"stopped"}
        assert set(connection.execute(select(Sync.stopped_by)).scalars()) == {StoppedBy.FLEET_FILE}


def test_source_when_it_goes_to_another_agent_then_the_formers_word_on_its_tables_counts_no_more(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    def told() -> int | None:
        with database.read() as connection:
            return connection.execute(select(Source.told_generation)).scalar_one()

    facts.record_shop(registry)
    registry.record_effective(KEY, 0, [], None, facts.T0)
    registry.record_agent(facts.agent_seen("acme", ["shop"]))  # the same again
    client.post("/api/v1/tenants/acme/sources/shop/assign", json={"agent": "agent-1"})
    assert told() == 0
    other = replace(facts.agent_seen("acme", ["shop"]), agent="agent-2")
    registry.record_agent(other)  # neither has a certificate
    assert told() is None
    client.post("/api/v1/tenants/acme/agents", json={"agent": "agent-3"})
    registry.record_effective(KEY, 0, [], None, facts.T0)
    client.post("/api/v1/tenants/acme/sources/shop/assign", json={"agent": "agent-3"})
    assert told() is None
    registry.record_effective(KEY, 0, [], None, facts.T0)
    assert configure(client, GOOD, "agent-3").is_success and told() == 0
    assert configure(client, GOOD, "agent-2").is_success and told() is None


def test_fleet_when_an_agent_denies_a_table_then_the_rest_is_done_and_the_refusal_is_told(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    early = fleet([table("orders"), table("hidden")])
    client.post("/api/v1/tenants/acme/fleet/apply", json=early)
    facts.record_shop(registry, "orders")
    seen = [facts.table_seen("orders"), facts.table_seen("hidden", denied=True)]
    facts.record_cartography(registry, KEY, "mysql", "9.7.0", facts.UUID, seen, facts.T0)
    view = client.get(SHOP).json()
    assert view["wanted_tables"] == 1
    assert [(one["table"], one["problem"]["code"]) for one in view["refused_tables"]] == [("hidden", "TABLE_DENIED")]
    answer = client.post("/api/v1/tenants/acme/fleet/apply", json=fleet([table("orders"), table("hidden")])).json()
    refused = {change["table"]: change["refused"] and change["refused"]["code"] for change in answer["changes"]}
    assert refused == {"hidden": "TABLE_DENIED"}
    assert client.get("/api/v1/tenants/acme/sources/shop/tables/shop/orders").json()["desired"] == "syncing"


FILE = """\
version: 1
tenant: acme
agents:
  agent-1:
    sources:
      shop:
        kind: memory
        client: {host: db1, password: {file: shop}}
        tables:
          shop.orders: {start: dump, dump: {priority: 2}}
          "`shop`.items":
"""


def test_file_when_it_is_that_of_its_page_then_it_is_right(tmp_path: Path) -> None:
    block = (ROOT / "docs" / "fleet.md").read_text().partition("```yaml\n# fleet.yaml\n")[2].partition("```")[0]
    (tmp_path / "fleet.yaml").write_text(block)
    found = read_fleet(tmp_path / "fleet.yaml")
    (source,) = found.agents["shop-db-1"]["sources"].values()
    assert FleetRequest(agents=found.agents).agents["shop-db-1"].sources.keys() == {"shop"}
    assert [table["table"] for table in source["tables"]] == ["orders", "events", "items"]
    assert source["configuration"]["filter"] == {"sessions": None, "shop.customers": {"ignored_columns": ["email"]}}


def apply(api: str, file: Path, text: str, *arguments: str, word: str = "apply") -> Done:
    file.write_text(text)
    return menura(word, "-f", str(file), "--api", api, *arguments)


def test_file_when_it_is_right_then_plan_and_apply_say_what_changes_and_what_that_costs(
    api: str, registry: SqlRegistry, tmp_path: Path
) -> None:
    facts.record_shop(registry)
    file = tmp_path / "fleet.yaml"
    planned = apply(api, file, FILE, word="plan")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.splitlines() == [
        "+ create source shop: its agent starts it",
        "+ start table shop shop.items: all its rows are dumped beside its stream; about 1,000 rows, 64.0 KiB",
        "+ start table shop shop.orders: all its rows are dumped beside its stream; about 1,000 rows, 64.0 KiB",
        "Tenant acme: would be done: 1 create, 2 start, dumps of about 2,000 rows, 128.0 KiB.",
    ]
    assert "Tenant acme: done: 1 create, 2 start" in apply(api, file, FILE).stdout
    assert apply(api, file, FILE).stdout == "Tenant acme: nothing to change.\n"
    shown = menura("sources", "show", "shop", "--api", api, "--tenant", "acme")
    assert "Agent agent-1: pending, CONFIGURATION_PENDING." in shown.stdout and '"file": "shop"' in shown.stdout
    for wrong in (["add", "shop", "--agent", "agent-1"], ["change", "nosuch"]):
        file.write_text("kind: memory\n")
        done = menura("sources", *wrong, "-f", str(file), "--api", api, "--tenant", "acme")
        assert done.returncode == 25, done.stdout
    changed = menura("sources", "change", "shop", "-f", str(file), "--api", api, "--tenant", "acme")
    assert "Source shop of agent agent-1: generation 2" in changed.stdout
    assert apply(api, file, FILE, "--tenant", "other").returncode == 2


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("version: 1", "version: 2", "line 1: version does not say version: 1"),
        ("tenant: acme", "tenant: [a]", "line 2: tenant is not a plain name"),
        ("agents:", "agent:", "line 3: agent is not a known key"),
        ("  agent-1:", "  Agent 1:", "line 5: agents.Agent 1 is not a plain name"),
        ("    sources:", "    source:", "line 5: agents.agent-1.source is not a known key"),
        ("kind: memory", "kind: 7", "line 7: agents.agent-1.sources.shop.kind is not the name"),
        ("{file: shop}", "hunter2", "line 8: agents.agent-1.sources.shop.client.password holds a secret"),
        ("host: db1", "host: 2026-11-25", "line 8: agents.agent-1.sources.shop.client.host is no text"),
        ("host: db1", "port: 0x10", "line 8: agents.agent-1.sources.shop.client.port is no plain number"),
        ("host: db1", "host: db1, host: db2", "line 8: agents.agent-1.sources.shop.client.host is given twice"),
        (
            "shop.orders: {start: dump",
            "orders: {start: dump",
            "line 10: agents.agent-1.sources.shop.tables.orders is not",
        ),
        (
            "{start: dump,",
            "{start: tomorrow,",
            "line 10: agents.agent-1.sources.shop.tables.shop.orders.start is not one",
        ),
        ("priority: 2", "priority: true", "tables.shop.orders.dump.priority is no whole number"),
        ("`shop`.items", "shop.orders", "line 11: agents.agent-1.sources.shop.tables.shop.orders is given twice"),
        ("`shop`.items", "`shop`.orders", "line 11: agents.agent-1.sources.shop.tables.`shop`.orders is given twice"),
        ("  agent-1:", "  agent-1: {", "it is not YAML"),
        ("client: {host: db1", "client: &a {again: *a, host: db1", "nests too deeply"),
        (FILE, "", "it is empty"),
        (FILE, "\x00", "it is not YAML"),
    ],
)
def test_file_when_something_of_it_is_wrong_then_its_line_is_named_and_nobody_is_asked(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    assert old in FILE
    done = apply("http://127.0.0.1:1", tmp_path / "fleet.yaml", FILE.replace(old, new))
    assert (done.returncode, line in done.stderr, "hunter2" in done.stderr) == (2, True, False), done.stderr
    assert len(done.stderr.splitlines()) == 1
