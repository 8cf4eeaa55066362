"""The reason of a table's state, as REST and the commands tell it on real databases."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import event as sql_event
from sqlalchemy import update

from controlplane_api.api.table_reasons import TableReason
from controlplane_api.api.views import Audit, TableView
from controlplane_api.database import Database
from controlplane_api.models import Agent, Rollout, RolloutAgent, Source
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import DumpSeen, OtherServerSeen, Problem, TableEffective
from tests.controlplane_api import facts, upgrade_facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, T0, cut, entry, started, stopped
from tests.controlplane_api.lake_facts import Sink, lake_source, stop
from tests.controlplane_api.test_api import SHOP, path_of, post
from tests.remedies import commands
from tests.stack import http_client

DUMP = {"start": "dump"}


@pytest.fixture
def here(database: Database, registry: SqlRegistry) -> Iterator[str]:
    facts.record_shop(registry, "orders", "items", "notes")
    with serving(database) as url:
        yield url


@pytest.fixture
def client(here: str) -> Iterator[httpx.Client]:
    with http_client(here) as client:
        yield client


def reason(client: httpx.Client, name: str = "orders") -> tuple[str, str]:
    """State and reason, which lists and the table alone tell alike."""
    one = client.get(path_of("shop", name)).json()
    (listed,) = [each for each in client.get(f"{SHOP}/tables").json()["tables"] if each["table"] == name]
    told = ("state", "reason", "meaning", "remedy")
    assert [one[field] for field in told] == [listed[field] for field in told]
    return one["state"], one["reason"]


def effective(registry: SqlRegistry, state: str, problem: Problem | None = None, *names: str, **told: Any) -> None:
    tables = [TableEffective("shop", name, state, problem) for name in names or ("orders",)]
    registry.record_effective(KEY, registry.desired(KEY).generation, tables, problem, T0, **told)


def test_reason_when_a_table_is_started_and_stopped_then_follows_what_is_known(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    assert reason(client) == ("not_synced", "NEVER_STARTED")
    effective(registry, "STREAMING", None, "none of them")
    post(client, path_of("shop", "orders", "/start"))
    assert reason(client) == ("pending", "AGENT_HAS_NOT_ANSWERED")
    effective(registry, "PENDING")
    assert reason(client) == ("pending", "STREAM_BEGINS")
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)])))
    effective(registry, "STREAMING")
    assert reason(client) == ("streaming", "FOLLOWS")
    post(client, path_of("shop", "orders", "/stop"))
    assert reason(client) == ("stopped", "STOPPED_BY_USER")
    post(client, path_of("shop", "orders", "/start"))
    registry.apply_entry(LANDING, entry(2, cut(2, stop=[stopped("orders", 2)], generation=3)))
    assert reason(client) == ("failed", "STOPPED_BY_AGENT")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("POSITION_PURGED", "STOPPED_AT_GAP"),
        ("SLOT_MISSING", "STOPPED_AT_GAP"),
        ("TABLE_DENIED", "STOPPED_BY_FILTER"),
        ("TABLE_COLUMN_UNSUPPORTED", "STOPPED_AT_COLUMN_TYPE"),
    ],
)
def test_reason_when_the_agent_stops_a_table_then_is_why_and_its_remedy_brings_it_on(
    client: httpx.Client, registry: SqlRegistry, here: str, code: str, told: str
) -> None:
    effective(registry, "STREAMING", None, "none of them")
    post(client, path_of("shop", "orders", "/start"))
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)], generation=9)))
    stop_there = replace(stopped("orders", 2), code=code, message="The log begins later.")
    registry.apply_entry(LANDING, entry(2, cut(2, stop=[stop_there], generation=9)))
    assert reason(client) == ("failed", told)
    ways = {"MENURA_API": here, "MENURA_TENANT": "acme", "COLUMNS": "240"}
    shown = menura("table", "show", "shop", "shop.orders", **ways)
    assert told in shown.stdout and "menura sync resync shop shop.orders" in " ".join(shown.stdout.split())
    remedy = client.get(path_of("shop", "orders")).json()["remedy"]
    done = menura(*commands(remedy)[-1], **ways)
    assert done.returncode == 0, done.stderr
    assert reason(client) == ("pending", "AGENT_HAS_NOT_ANSWERED")


def test_reason_when_a_database_of_before_is_upgraded_then_is_unknown(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    post(client, path_of("shop", "orders", "/start"))
    assert reason(client) == ("pending", "UNKNOWN")  # which generation the agent knew is not told before it speaks
    post(client, path_of("shop", "orders", "/stop"))
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE sync SET stopped_by = ''")
    assert reason(client) == ("stopped", "UNKNOWN")


def test_reason_when_the_agent_is_away_then_says_what_is_known_of_it(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    effective(registry, "STREAMING")
    post(client, path_of("shop", "orders", "/start"))
    registry.record_agent_gone("acme", "agent-1", "run-1", T0)
    assert reason(client) == ("waiting", "AGENT_AWAY")
    upgrade_facts.add_release(database, "acme", upgrade_facts.NEW)
    with database.write() as connection:
        rollout = upgrade_rollout(connection)
        agent = connection.execute(update(Agent).values(version="0.1.0").returning(Agent.id)).scalar_one()
        row = {"rollout_id": rollout, "agent_id": agent, "group_number": 0, "version": "0.2.0", "state": "installing"}
        connection.execute(RolloutAgent.__table__.insert().values(row))  # type: ignore[attr-defined]
    assert reason(client) == ("waiting", "AGENT_UPGRADING")
    with database.write() as connection:
        connection.execute(update(Agent).values(revoked_at_us=T0))
    assert reason(client) == ("waiting", "AGENT_REVOKED")
    with database.write() as connection:
        connection.execute(update(Source).values(agent_id=None))
    assert reason(client) == ("waiting", "SOURCE_WITHOUT_AGENT")


def upgrade_rollout(connection: Any) -> int:
    row = {
        "tenant_id": upgrade_facts.tenant_id(connection, "acme"), "version": "0.2.0", "state": "running",
        "groups": ["all"], "wait_us": 0, "at_once": 1, "most_failures": 0, "return_us": 1, "looked_at_us": 1,
        "created_by": "test", "created_at_us": 1,
    }  # fmt: skip
    return int(connection.execute(Rollout.__table__.insert().values(row).returning(Rollout.id)).scalar_one())  # type: ignore[attr-defined]


def test_reason_when_the_source_can_not_be_read_then_says_whether_another_server_is_there(
    client: httpx.Client, registry: SqlRegistry
) -> None:
    post(client, path_of("shop", "orders", "/start"))
    problem = Problem("SOURCE_DIVERGED", "the lake has more", terminal=True, at_us=T0)
    effective(registry, "WAITING", problem)
    assert reason(client) == ("waiting", "SOURCE_UNREADABLE")
    effective(registry, "WAITING", problem, other_server=OtherServerSeen("0f", "b", "a", "1", "1", "2", "1", "1", 1))
    assert reason(client) == ("waiting", "OTHER_SERVER")


@pytest.mark.parametrize(
    ("state", "held", "told"),
    [
        ("PLANNING", "", "DUMP_PLANNING"),
        ("READING", "", "DUMP_READING"),
        ("READING", "RATE", "DUMP_THROTTLED"),
        ("WAITING", "TURN", "DUMP_WAITS_FOR_TURN"),
        ("WAITING", "WINDOW", "DUMP_OUTSIDE_WINDOWS"),
        ("WAITING", "SERVER_BUSY", "DUMP_SERVER_BUSY"),
        ("WAITING", "", "UNKNOWN"),
        ("WAITING", "OF_A_LATER_VERSION", "UNKNOWN"),
        ("ENDING", "", "DUMP_ENDING"),
    ],
)
def test_reason_when_a_dump_runs_then_is_what_the_agent_says_holds_it(
    client: httpx.Client, registry: SqlRegistry, state: str, held: str, told: str
) -> None:
    post(client, path_of("shop", "orders", "/start"), DUMP)
    effective(registry, "DUMPING")
    assert reason(client) == ("dumping", "DUMP_NOT_TAKEN")
    (dump,) = registry.dumps(KEY).dumps
    registry.record_dump_status(KEY, [DumpSeen(dump.dump, state, "", 0, 0, 0, held)], facts.fresh_us())
    assert reason(client) == ("dumping", told)
    post(client, f"{SHOP}/dumps/{dump.dump}/pause")
    assert reason(client) == ("dumping", "DUMP_PAUSED")


def test_reason_when_a_sink_stops_the_table_then_is_the_sinks(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    post(client, path_of("shop", "orders", "/start"))
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)])))
    effective(registry, "STREAMING")
    Sink().tell(database, 0, entry=1, sources=(lake_source(1),), stopped=(stop("orders", 1),))
    assert reason(client) == ("failed", "STOPPED_BY_SINK")


def test_tables_when_many_are_listed_then_statements_are_as_many_as_for_one(
    client: httpx.Client, registry: SqlRegistry, database: Database
) -> None:
    names = [f"t{number}" for number in range(60)]
    facts.record_cartography(
        registry, KEY, "mysql", "9.7.0", facts.UUID, [facts.table_seen(name) for name in names], T0
    )
    post(client, f"{SHOP}/start", {"tables": "all", **DUMP})
    seen: list[str] = []
    sql_event.listen(database.engine, "before_cursor_execute", lambda *called: seen.append(called[2]))

    def statements(limit: int) -> int:
        seen.clear()
        assert len(client.get(f"{SHOP}/tables", params={"limit": limit}).json()["tables"]) == limit
        return len(seen)

    assert statements(1) == statements(60)


def test_commands_when_tables_are_held_up_then_say_the_code_and_what_it_means(
    client: httpx.Client, registry: SqlRegistry, here: str
) -> None:
    effective(registry, "STREAMING", None, "none of them")
    post(client, path_of("shop", "orders", "/start"))
    ways = {"MENURA_API": here, "MENURA_TENANT": "acme", "COLUMNS": "240"}
    for command in (["tables", "shop"], ["status"], ["why", "shop", "shop.orders", "--for", "0"]):
        done = menura(*command, **ways)
        assert done.returncode == 0, done.stderr
        assert "AGENT_HAS_NOT_ANSWERED" in done.stdout, done.stdout
        assert "has said nothing of the table since" in " ".join(done.stdout.split())
    assert "AGENT_HAS_NOT_ANSWERED" in menura("table", "show", "shop", "shop.orders", **ways).stdout


def test_openapi_when_it_is_read_then_has_all_codes(client: httpx.Client) -> None:
    schemas = client.get("/api/v1/openapi.json").json()["components"]["schemas"]
    assert set(schemas["TableReason"]["enum"]) == set(TableReason)
    reason = schemas["TableView"]["properties"]["reason"]
    assert reason == {"$ref": "#/components/schemas/TableReason", "default": "UNKNOWN"}


def test_remedies_when_they_name_commands_then_these_bring_the_table_on(
    client: httpx.Client, registry: SqlRegistry, here: str
) -> None:
    effective(registry, "STREAMING", None, "none of them")

    def run(code: str, *further: str) -> str:
        """What the remedy of this reason names; the reason that the table has then."""
        table = client.get(path_of("shop", "orders")).json()
        assert table["reason"] == code
        command = commands(table["remedy"])[-1]
        done = menura(*command, *further, MENURA_API=here, MENURA_TENANT="acme")
        assert done.returncode == 0, (command, done.stderr)
        return reason(client)[1]

    assert run("NEVER_STARTED") == "AGENT_HAS_NOT_ANSWERED"
    effective(registry, "DUMPING")
    (dump,) = registry.dumps(KEY).dumps
    post(client, f"{SHOP}/dumps/{dump.dump}/pause")
    assert run("DUMP_PAUSED") == "DUMP_NOT_TAKEN"
    for held, code in (("TURN", "DUMP_WAITS_FOR_TURN"), ("RATE", "DUMP_THROTTLED"), ("ERROR", "DUMP_FAILED_FOR_NOW")):
        registry.record_dump_status(KEY, [DumpSeen(dump.dump, "WAITING", "", 0, 0, 0, held)], facts.fresh_us())
        assert run(code) == code
    post(client, path_of("shop", "orders", "/stop"))
    assert run("STOPPED_BY_USER") == "AGENT_HAS_NOT_ANSWERED"
    registry.apply_entry(LANDING, entry(1, cut(1, start=[started("orders", 0)], generation=9)))
    registry.apply_entry(LANDING, entry(2, cut(2, stop=[stopped("orders", 2)], generation=9)))
    assert run("STOPPED_BY_AGENT") == "AGENT_HAS_NOT_ANSWERED"


def test_answer_when_the_api_is_of_another_version_then_it_is_read(client: httpx.Client) -> None:
    told = client.get(path_of("shop", "orders")).json()
    assert TableView.model_validate(told | {"reason": "OF_A_LATER_VERSION"}).reason is TableReason.UNKNOWN
    assert TableView.model_validate(told).reason is TableReason.NEVER_STARTED
    earlier = {name: value for name, value in told.items() if name not in ("reason", "meaning", "remedy")}
    read = TableView.model_validate(earlier)
    assert (read.reason, read.meaning, read.remedy) == (TableReason.UNKNOWN, "", "")
    entry = {"at_us": 1, "actor": "a", "action": "b", "refused": "", "found": "c"}
    page = Audit.model_validate({"entries": [entry, entry | {"refused": "ROLE_MISSING"}]})
    assert ([each.outcome for each in page.entries], page.looked_at) == (["done", "refused"], 0)
