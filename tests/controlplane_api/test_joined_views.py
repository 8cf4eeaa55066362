"""Joined views: what is refused and where, versions, what sinks get and say, how a view stands beside its tables."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from menura.lake_report import views_digest
from menura.views.definition import ViewCut, ViewDefinition, ViewState, decode_views

from controlplane_api import joined_views
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey, TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.commands import Done, menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.dump_facts import begin
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, started
from tests.controlplane_api.lake_facts import HttpSink, lake_source, stop
from tests.controlplane_api.test_api import problem
from tests.stack import http_client

ACME = "/api/v1/tenants/acme"
SQL = "SELECT o.id, o.note, i.note AS item\nFROM shop.shop.orders AS o\nJOIN shop.shop.items AS i ON i.id = o.id"
OTHER = "SELECT o.id, n.note\nFROM shop.shop.orders AS o\nLEFT JOIN shop.shop.notes AS n ON n.id = o.id"
ON_VIEW = "SELECT p.id, p.item FROM paid AS p WHERE p.item IS NOT NULL"
COMMITTED_US = T0 + 5_000_000


@pytest.fixture
def api(database: Database) -> Iterator[str]:
    with serving(database) as url:
        yield url


@pytest.fixture
def client(api: str) -> Iterator[httpx.Client]:
    with http_client(api) as client:
        yield client


@pytest.fixture
def shop(database: Database, registry: SqlRegistry) -> None:
    facts.record_shop(registry)
    globex = SourceKey("globex", "shop")
    facts.record_shop(registry, "secret", key=globex)


def create(client: httpx.Client, name: str = "paid", sql: str = SQL, tenant: str = ACME, **more: Any) -> httpx.Response:
    return client.post(f"{tenant}/views", json={"name": name, "sql": sql}, **more)


def created(client: httpx.Client, name: str = "paid", sql: str = SQL) -> httpx.Response:
    answer = create(client, name, sql)
    assert answer.status_code == 200, answer.text
    return answer


def told(sql: str = SQL, state: str = "following", **changed: Any) -> ViewState:
    facts_of: dict[str, Any] = {
        "tenant": "acme", "name": "paid", "digest": ViewDefinition("acme", "paid", sql).digest, "state": state,
        "code": "", "message": "", "cuts": (ViewCut("shop", 1, COMMITTED_US),), "version": 3, "rows": 40,
        "changes": 55, "applied_at_us": T0 + 6_000_000, **changed,
    }  # fmt: skip
    return ViewState(**facts_of)


def test_view_when_it_is_created_changed_and_dropped_then_each_is_a_version_with_a_tag_and_stands_in_the_audit_log(
    client: httpx.Client, shop: None
) -> None:
    planned = create(client, params={"dry_run": True})
    assert planned.json()["plan"]["inputs"][0]["name"] == "shop.shop.orders"
    assert client.get(f"{ACME}/views").json()["views"] == []
    first = created(client)
    assert (first.json()["version"], first.json()["sql"], first.json()["state"]) == (1, SQL, "stopped")
    assert [each["table"] for each in first.json()["tables"]] == ["orders", "items"]
    problem(create(client), 409, "VIEW_EXISTS")
    shown = client.get(f"{ACME}/views/paid")
    assert shown.headers["etag"] == first.headers["etag"]
    tagged = {"if-match": first.headers["etag"], "idempotency-key": "k1"}
    second = client.put(f"{ACME}/views/paid", json={"sql": OTHER}, headers=tagged)
    assert (second.json()["version"], second.json()["sql"]) == (2, OTHER)
    again = client.put(f"{ACME}/views/paid", json={"sql": OTHER}, headers=tagged)
    assert again.headers["idempotency-replayed"] == "true"
    late = {"if-match": tagged["if-match"]}
    problem(client.put(f"{ACME}/views/paid", json={"sql": SQL}, headers=late), 412, "PRECONDITION_FAILED")
    same = client.put(f"{ACME}/views/paid", json={"sql": OTHER})
    assert same.json()["version"] == 2
    plan = client.get(f"{ACME}/views/paid/plan").json()
    assert [each["role"] for each in plan["inputs"]] == ["driving", "left"] and plan["lines"]
    assert plan["inputs"][0]["estimated_rows"] == 1_000
    assert client.request("DELETE", f"{ACME}/views/paid", json={}).json() == {"view": "paid"}
    problem(client.get(f"{ACME}/views/paid"), 404, "VIEW_UNKNOWN")
    entries = client.get(f"{ACME}/audit").json()["entries"]
    assert [(each["action"], each["found"]) for each in entries[:3]] == [
        ("drop view", "paid"), ("change view", "paid"), ("create view", "paid"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT o.id FROM shop.shop.nothing AS o", 1),
        ("SELECT o.id,\n  o.nothing\nFROM shop.shop.orders AS o", 2),
        ("SELECT id FROM shop.shop.orders AS o JOIN shop.shop.items AS i ON i.note = o.note", 1),
        ("SELECT FROM WHERE", 1),
        ("SELECT s.id FROM shop.shop.secret AS s", 1),
        ("SELECT o.id FROM nowhere AS o", 1),
        ("DROP TABLE shop.shop.orders", None),
        ("SELECT o.id FROM shop.shop.orders AS o -- \u202e", 1),
        ("SELECT o.id\n\x1b[2J FROM shop.shop.orders AS o", 2),
        ("SELECT '\x00' FROM shop.shop.orders AS o", 1),
        ("SELECT " + "(" * 3_000 + "o.id" + ")" * 3_000 + " FROM shop.shop.orders AS o", None),
        ("SELECT o.id FROM shop.shop.orders AS o WHERE " + " AND ".join(["o.id = 1"] * 1_200), None),
        ("'" * 1_001, None),
    ],
)
def test_view_when_its_text_can_not_be_planned_then_it_is_refused_with_its_place_and_nothing_is_stored(
    client: httpx.Client, shop: None, sql: str, line: int | None
) -> None:
    """Of another tenant's table as of none; control characters, nesting and lists that are too long."""
    refused = problem(create(client, sql=sql), 422, "VIEW_REFUSED")
    (complaint,) = refused["errors"]
    assert complaint["pointer"] == "#/sql"
    assert line is None or (complaint["line"], complaint["column"] > 0) == (line, True), refused
    assert "\x1b" not in json.dumps(refused) and len(refused["found"]) < 2_000
    assert client.post(f"{ACME}/view-plans", json={"sql": sql}).json()["code"] == "VIEW_REFUSED"
    assert client.get(f"{ACME}/views").json()["views"] == []


@pytest.mark.parametrize("body", [{"name": "paid", "sql": "x" * 200_000}, {"name": "A-b", "sql": SQL}, {"name": "a"}])
def test_view_when_its_request_is_no_document_then_it_is_refused(
    client: httpx.Client, shop: None, body: dict[str, str]
) -> None:
    problem(client.post(f"{ACME}/views", json=body), 422, "REQUEST_INVALID")


def test_views_of_another_tenant_when_asked_for_then_there_are_none_and_its_tables_are_not_there(
    client: httpx.Client, shop: None
) -> None:
    created(client)
    other = "/api/v1/tenants/globex"
    assert client.get(f"{other}/views").json()["views"] == []
    for answer in (
        client.get(f"{other}/views/paid"),
        client.get(f"{other}/views/paid/plan"),
        client.put(f"{other}/views/paid", json={"sql": SQL}),
        client.request("DELETE", f"{other}/views/paid", json={}),
    ):
        problem(answer, 404, "VIEW_UNKNOWN")
    problem(create(client, sql=SQL, tenant=other), 422, "VIEW_REFUSED")
    problem(create(client, "mine", ON_VIEW, tenant=other), 422, "VIEW_REFUSED")


def test_views_when_they_read_each_other_then_circles_and_drops_are_refused(client: httpx.Client, shop: None) -> None:
    created(client)
    created(client, "items_paid", ON_VIEW)
    problem(client.request("DELETE", f"{ACME}/views/paid", json={}), 409, "VIEW_IN_USE")
    circle = problem(
        client.put(f"{ACME}/views/paid", json={"sql": "SELECT v.id, v.item FROM items_paid AS v"}), 422, "VIEW_REFUSED"
    )
    assert "circle" in circle["found"]
    problem(client.put(f"{ACME}/views/paid", json={"sql": OTHER}), 409, "VIEW_IN_USE")  # it has no column item
    assert client.get(f"{ACME}/views/items_paid").json()["views"] == ["paid"]
    assert client.get(f"{ACME}/views/items_paid").json()["tables"] == []


def test_views_when_there_are_too_many_then_the_next_is_refused_and_pages_have_all(
    client: httpx.Client, shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joined_views, "MAX_OF_TENANT", 3)
    for name in ("c", "a", "b"):
        created(client, name)
    problem(create(client, "d"), 409, "VIEWS_TOO_MANY")
    page = client.get(f"{ACME}/views?limit=2").json()
    last = client.get(f"{ACME}/views?limit=2&cursor={page['next_cursor']}").json()
    assert [each["view"] for each in (*page["views"], *last["views"])] == ["a", "b", "c"]
    monkeypatch.setattr(joined_views, "MAX_SQL_CHARS_OF_TENANT", 3 * len(SQL))
    problem(client.put(f"{ACME}/views/a", json={"sql": f"{SQL} -- longer"}), 409, "VIEWS_TOO_MANY")


def test_sink_when_views_are_desired_then_its_reply_has_their_digest_and_it_gets_all_of_them(
    client: httpx.Client, shop: None
) -> None:
    sink = HttpSink(client=client)
    none = sink.put()
    assert none.views == views_digest([])
    created(client)
    reply = sink.put()
    document = client.get("/api/v1/lakes/main/views").content.decode()
    (view,) = decode_views(document)
    assert view == ViewDefinition("acme", "paid", SQL)
    assert reply.views == views_digest([("acme", "paid", view.digest)]) != none.views
    client.request("DELETE", f"{ACME}/views/paid", json={})
    assert sink.put().views == none.views


def stream(database: Database, registry: SqlRegistry, sink: HttpSink, **report: Any) -> None:
    """Both tables stream, and the lake has them."""
    begin(database, "orders", "items")
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0), started("items", 0)])))
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=0)], facts.fresh_us())
    tables = [TableEffective("shop", name, "STREAMING") for name in ("orders", "items")]
    registry.record_effective(KEY, registry.desired(KEY).generation, tables, None, T0)
    sink.put(base=0, entry=1, sources=(lake_source(1),), **report)


def shown(client: httpx.Client) -> dict[str, Any]:
    (view,) = client.get(f"{ACME}/views").json()["views"]
    found: dict[str, Any] = view
    return found


def test_view_when_sinks_tell_of_it_then_its_state_is_the_worst_of_its_own_and_its_tables(
    database: Database,
    registry: SqlRegistry,
    api: str,
    client: httpx.Client,
    shop: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 2 * 3600)
    sink = HttpSink(client=client)
    created(client)
    stream(database, registry, sink)
    assert (shown(client)["state"], shown(client)["lakes"][0]["state"]) == ("pending", "")
    sink.put(views=(told(state="building"),))
    assert shown(client)["state"] == "catching_up"
    sink.put(views=(told(),))
    view = shown(client)
    assert (view["state"], view["stage"], view["problem"], view["rows"]) == ("streaming", None, None, 40)
    assert view["lakes"][0]["cuts"] == [{"source": "shop", "cut": 1, "committed_us": COMMITTED_US}]
    assert view["freshness_us"] > 0 and view["tables"][0]["freshness_us"] is not None
    whole = "Its last version was computed from all rows of its tables: more than 1000000 rows look up what changed"
    sink.put(views=(told(message=whole),))
    view = shown(client)
    assert (view["state"], view["problem"], view["lakes"][0]["message"]) == ("streaming", None, whole)
    assert f"main: {whole}." in " ".join(run(api, "view", "show", "paid").stdout.split())
    sink.put()  # nothing is said: as before
    assert shown(client)["state"] == "streaming"
    sink.put(views=(told("SELECT other"),))
    assert shown(client)["state"] == "pending", "of another text"
    sink.put(views=(told(state="stopped", code="VIEW_REFUSED", message="line 2, column 1: a type"),))
    view = shown(client)
    assert (view["state"], view["stage"], view["problem"]["code"]) == ("failed", "lake", "VIEW_REFUSED")
    sink.put(views=(told(),), stopped=(stop("items"),))
    view = shown(client)
    assert (view["state"], view["stage"]) == ("failed", "lake")
    assert view["problem"]["code"] == "DATA_FILE_UNREADABLE"
    client.post(f"{ACME}/sources/shop/tables/shop/items/stop", json={})
    assert shown(client)["state"] in ("failed", "stopped")
    sink.put(base=0, entry=1, sources=(lake_source(1),))
    assert shown(client)["lakes"][0]["state"] == "", "the sink began anew and has no views"
    client.post("/api/v1/lakes/main/forget", json={})
    assert shown(client)["lakes"] == []


def test_report_when_what_it_says_of_views_is_nonsense_then_it_is_refused(client: httpx.Client, shop: None) -> None:
    for wrong in ({"tenant": "../x"}, {"name": "A"}, {"state": "fine"}, {"rows": -2}, {"message": "x" * 1_001}):
        sink = HttpSink(client=client)
        with pytest.raises(AssertionError, match="REQUEST_INVALID"):
            sink.put(views=(told(**wrong),))
    sink = HttpSink(client=client)
    cuts = tuple(ViewCut("shop", number, 0) for number in range(65))
    with pytest.raises(AssertionError, match="REQUEST_INVALID"):
        sink.put(views=(told(cuts=cuts),))


def fleet_file(folder: Path, views: str) -> str:
    file = folder / "fleet.yaml"
    file.write_text(f"version: 1\ntenant: acme\nagents: {{}}\n{views}")
    return str(file)


def run(api: str, *words: str) -> Done:
    return menura(*words, MENURA_API=api, MENURA_TENANT="acme", COLUMNS="80", NO_COLOR="1")


def test_commands_when_views_are_made_shown_explained_and_dropped_then_they_say_so_in_80_columns(
    api: str, shop: None, tmp_path: Path
) -> None:
    assert "There is no view." in run(api, "view", "list").stdout
    file = tmp_path / "paid.sql"
    file.write_text(SQL)
    planned = run(api, "view", "create", "paid", "-f", str(file), "--dry-run")
    assert "shop.shop.items" in planned.stdout and "Nothing was changed." in planned.stdout
    assert "View paid is desired, version 1." in run(api, "view", "create", "paid", "-f", str(file)).stdout
    assert "VIEW_EXISTS" in run(api, "view", "create", "paid", "--sql", OTHER).stderr
    replaced = run(api, "view", "create", "paid", "--sql", OTHER, "--replace")
    assert "View paid is desired, version 2." in replaced.stdout, replaced.stderr
    listed = run(api, "view", "list")
    assert "paid" in listed.stdout and "stopped" in listed.stdout
    show = run(api, "view", "show", "paid").stdout
    assert "version 2" in show and "    LEFT JOIN shop.shop.notes" in show and "\x1b" not in show
    assert "driving" in run(api, "view", "explain", "paid").stdout
    explained = run(api, "view", "explain", "--sql", SQL).stdout
    assert "driving" in explained and "more than 1,000,000 rows look up" in " ".join(explained.split())
    assert json.loads(run(api, "view", "show", "paid", "--json").stdout)["sql"] == OTHER
    refused = run(api, "view", "explain", "--sql", "SELECT x FROM shop.shop.orders AS o")
    assert refused.returncode == 25 and "line 1, column 8" in refused.stderr, refused.stderr
    assert "just added or renamed at its source, repeat this in half a minute" in " ".join(refused.stderr.split())
    assert "takes either --sql or -f" in run(api, "view", "create", "paid").stderr
    assert "View paid is dropped." in run(api, "view", "drop", "paid").stdout
    assert "VIEW_UNKNOWN" in run(api, "view", "drop", "paid").stderr


def test_fleet_when_its_file_has_views_then_plan_shows_and_apply_makes_them_in_their_order(
    api: str, client: httpx.Client, shop: None, tmp_path: Path
) -> None:
    both = f"views:\n  a_first:\n    sql: {json.dumps(ON_VIEW)}\n  paid:\n    sql: {json.dumps(SQL)}\n"
    file = fleet_file(tmp_path, both)
    planned = run(api, "plan", "-f", file)
    assert "+ create view paid" in planned.stdout and "2 create" in planned.stdout, planned.stdout + planned.stderr
    assert client.get(f"{ACME}/views").json()["views"] == []
    assert run(api, "apply", "-f", file).returncode == 0
    assert [each["view"] for each in client.get(f"{ACME}/views").json()["views"]] == ["a_first", "paid"]
    assert "nothing to change" in run(api, "plan", "-f", file).stdout
    one = fleet_file(tmp_path, f"views:\n  paid:\n    sql: {json.dumps(SQL + ' WHERE o.id > 5')}\n")
    kept = run(api, "apply", "-f", one)
    assert "~ change view paid" in kept.stdout and "keep view a_first" in kept.stdout
    pruned = run(api, "apply", "-f", fleet_file(tmp_path, "views: {}\n"), "--prune")
    assert pruned.stdout.count("- remove view") == 2, pruned.stdout + pruned.stderr
    wrong = fleet_file(tmp_path, "views:\n  paid:\n    sql: SELECT o.x FROM shop.shop.orders AS o\n")
    refused = run(api, "apply", "-f", wrong)
    assert refused.returncode == 25 and "VIEW_REFUSED" in refused.stderr and "column" in refused.stdout
    assert client.get(f"{ACME}/views").json()["views"] == []
    assert "line 5" in run(api, "plan", "-f", fleet_file(tmp_path, "views:\n  Paid: {sql: x}\n")).stderr


UNIQUE = "SELECT DISTINCT o.note FROM shop.shop.orders AS o"


def test_view_when_it_is_recomputed_on_a_schedule_then_its_text_has_that_and_its_plan_says_when_why_and_what_is_read(
    client: httpx.Client, shop: None
) -> None:
    refused = problem(create(client, "notes", UNIQUE), 422, "VIEW_REFUSED")
    assert "DISTINCT" in refused["found"] and "--every 1h" in refused["remedy"]
    body = {"name": "notes", "sql": UNIQUE, "every": "10m", "key": ["note"]}
    made = client.post(f"{ACME}/views", json=body).json()
    assert made["sql"] == f"SCHEDULE EVERY 10 MINUTES KEY (note) AS {UNIQUE}"
    plan = client.get(f"{ACME}/views/notes/plan").json()
    assert (plan["every_seconds"], plan["key"], plan["inputs"][0]["role"]) == (600, ["note"], "read")
    said = " ".join(plan["lines"])
    assert "recomputed every 10 minutes" in said and "a view has no DISTINCT" in said
    assert "about 1,000 rows, about " in said and "bytes" in said
    same = client.put(f"{ACME}/views/notes", json={"sql": made["sql"]}).json()
    assert same["version"] == 1
    other = client.put(f"{ACME}/views/notes", json={"sql": UNIQUE, "every": "2h"}).json()
    assert (other["version"], other["plan"]["every_seconds"]) == (2, 7200)
    followed = client.post(f"{ACME}/view-plans", json={"sql": SQL, "every": "1d"}).json()
    assert "It could be followed: leave the schedule out." in followed["lines"]
    assert client.post(f"{ACME}/view-plans", json={"sql": SQL}).json()["every_seconds"] is None


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"every": "59s"}, "REQUEST_INVALID"),
        ({"every": "0m"}, "REQUEST_INVALID"),
        ({"every": "32d"}, "VIEW_REFUSED"),
        ({"every": "10m) AS SELECT"}, "REQUEST_INVALID"),
        ({"key": ["note"]}, "REQUEST_INVALID"),
        ({"every": "10m", "key": ["note) AS SELECT"]}, "REQUEST_INVALID"),
        ({"every": "10m", "key": ["nothing"]}, "VIEW_REFUSED"),
        ({"every": "10m", "sql": f"SCHEDULE EVERY 1 HOUR AS {UNIQUE}"}, "VIEW_REFUSED"),
        ({"every": "10m", "sql": "SELECT DISTINCT s.id FROM shop.shop.secret AS s"}, "VIEW_REFUSED"),
        ({"every": "10m", "sql": "SELECT DISTINCT s.id FROM globex.shop.secret AS s"}, "VIEW_REFUSED"),
        ({"every": "10m", "sql": "SELECT reflect('java.lang.System', 'exit', 1) AS x FROM shop.shop.orders AS o"},
         "VIEW_REFUSED"),
    ],
)  # fmt: skip
def test_view_when_its_schedule_its_key_or_its_query_is_none_then_it_is_refused_and_nothing_is_stored(
    client: httpx.Client, shop: None, more: dict[str, Any], code: str
) -> None:
    problem(client.post(f"{ACME}/views", json={"name": "notes", "sql": UNIQUE, **more}), 422, code)
    assert client.get(f"{ACME}/views").json()["views"] == []


def test_views_when_one_is_recomputed_then_a_view_reads_it_alone_or_beside_tables(
    client: httpx.Client, shop: None
) -> None:
    created(client)
    body = {"name": "placed", "every": "1h", "key": ["id"]}
    query = "SELECT p.id, rank() OVER (ORDER BY p.item) AS place FROM paid AS p"
    assert client.post(f"{ACME}/views", json={**body, "sql": query}).json()["views"] == ["paid"]
    beside = "SELECT o.id, p.place FROM shop.shop.orders AS o LEFT JOIN placed AS p ON p.id = o.id"
    created(client, "beside", beside)
    for sql in (
        "SELECT p.id, q.place FROM paid AS p JOIN placed AS q ON q.id = p.id",
        "SELECT p.id, b.place FROM paid AS p JOIN beside AS b ON b.id = p.id",
    ):
        refused = problem(create(client, "both", sql), 422, "VIEW_REFUSED")
        assert "last recomputation's cuts" in refused["found"]


def test_commands_and_files_when_a_view_is_recomputed_then_they_take_the_interval_and_show_it(
    api: str, client: httpx.Client, shop: None, tmp_path: Path
) -> None:
    made = run(api, "view", "create", "notes", "--sql", UNIQUE, "--every", "10m", "--key", "note")
    assert "recomputed every 10 minutes" in " ".join(made.stdout.split()), made.stderr
    assert "SCHEDULE EVERY 10 MINUTES" in run(api, "view", "show", "notes").stdout
    explained = run(api, "view", "explain", "--sql", UNIQUE, "--every", "1d").stdout
    assert "recomputed every 1 day" in " ".join(explained.split())
    refused = run(api, "view", "explain", "--sql", UNIQUE).stderr
    assert "recomputed on a schedule: --every 1h" in " ".join(refused.split())
    assert "REQUEST_INVALID" in run(api, "view", "explain", "--sql", UNIQUE, "--every", "often").stderr
    notes = f"views:\n  notes:\n    sql: {UNIQUE}\n    every: 10m\n    key: [note]\n"
    assert "nothing to change" in run(api, "plan", "-f", fleet_file(tmp_path, notes)).stdout
    changed = run(api, "apply", "-f", fleet_file(tmp_path, notes.replace("10m", "2h")))
    assert "~ change view notes" in changed.stdout, changed.stderr
    assert client.get(f"{ACME}/views/notes").json()["plan"]["every_seconds"] == 7200
    assert "line 7" in run(api, "plan", "-f", fleet_file(tmp_path, notes.replace("10m", "often"))).stderr
    without = notes.replace("    every: 10m\n", "")
    assert "line 7" in run(api, "plan", "-f", fleet_file(tmp_path, without)).stderr
