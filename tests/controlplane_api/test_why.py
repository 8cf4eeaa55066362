"""`menura why`: each stage's part of a table's lag, the largest first, and what is not known is never 0."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest
from menura.instants import now_us
from menura.lake_report import TABLE_BEHIND
from rich.text import Text

from controlplane_api.api.client import ApiClient
from controlplane_api.api.views import SourceView, TableView
from controlplane_api.commands.lag_causes import Why, waiting_part, why
from controlplane_api.commands.why import source_of
from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from controlplane_api.states import Stage
from gateway.registry import TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, file, started
from tests.controlplane_api.lake_facts import Sink, lake_source, stop

NOW = 2_000_000_000_000_000
LAKE = {
    "lake": "main", "url": "/lake", "state": "following", "problem": None, "cut": 7, "cuts_behind": 0,
    "landing_lag_us": 0, "lag_us": 0, "freshness_us": 5, "stopped_tables": 0, "received_at_us": NOW,
}  # fmt: skip
SOURCE = {
    "source": "shop", "agent": "agent-1", "connected": True, "gateway": "gw-1", "flavor": "mysql",
    "server_version": "9.7.0", "address": "db1", "generation": 1, "problem": None, "warnings": [], "stage": None,
    "stage_problem": None, "lakes": [LAKE], "cartography_at_us": NOW, "tables": {}, "dumps": 0, "lag_us": 0,
    "freshness_us": 0, "read_position": "u:1-9", "source_position": "u:1-9", "committed_position": "u:1-9",
    "committed_cut": 7, "last_commit_timestamp_us": NOW - 3_000_000, "committed_at_us": NOW, "rows": 1, "bytes": 1,
    "transactions": 1, "rows_per_second": 5.0, "read_bytes_per_second": 5.0, "told_at_us": NOW, "credit_wait_us": 0,
}  # fmt: skip
IN_LAKE = {
    "lake": "main", "state": "following", "problem": None, "cut": 7, "freshness_us": 5, "retries": False,
    "schema_changes": "",
}  # fmt: skip
TABLE = {
    "database": "shop", "table": "orders", "state": "streaming", "stage": None, "reason": "FOLLOWS",
    "meaning": "", "remedy": "", "desired": "syncing", "runs": True,
    "start": None, "position": "u:1-9", "problem": None, "lake": IN_LAKE, "earlier_rows_missing": "", "unlogged": None,
    "ignored_columns": [], "rows": 1, "bytes": 1, "freshness_us": 5, "last_commit_timestamp_us": NOW,
    "landed_at_us": NOW, "engine": "InnoDB", "estimated_rows": 1, "size_bytes": 1, "denied": False, "gone": False,
    "dump": None, "proof": None,
}  # fmt: skip
DUMP = {
    "dump": "d1", "source": "shop", "database": "shop", "table": "orders", "state": "waiting",
    "reason": "dump.max_threads_running: 51 run", "problem": None, "cause": "", "priority": 0, "limits": {},
    "forced": False, "created_at_us": NOW, "planned_at_us": NOW, "ended_at_us": None, "key": ["id"], "rows": 500,
    "bytes": 5, "chunks": 1, "uncommitted_rows": 0, "ranges": 1, "ranges_done": 0, "estimated_rows": 1_000,
    "estimated_bytes": 5, "expected_rows": 1_000, "percent": 50.0, "rows_per_second": None, "bytes_per_second": None,
    "estimated_end_us": None, "warning": "", "runway_seconds": None, "needed_seconds": None,
}  # fmt: skip
GONE = {"code": "AGENT_AWAY", "message": "Agent gone. Start the agent.", "terminal": False, "at_us": NOW}


def asked(
    source: dict[str, object] | None = None, table: dict[str, object] | None = None, waiting: float | None = None
) -> Why:
    shown = SourceView.model_validate({**SOURCE, **(source or {})})
    return why(shown, TableView.model_validate({**TABLE, **(table or {})}), waiting, NOW)


def table_view(table: str, **changed: object) -> TableView:
    return TableView.model_validate({**TABLE, "table": table, **changed})


def behind(found: Why) -> list[tuple[str, int | None]]:
    return [(cause.stage.value, cause.behind_us) for cause in found.causes]


def test_why_when_all_has_arrived_then_there_is_no_lag():
    found = asked()
    assert (found.behind_us, found.complete) == (0, True)
    assert sorted(behind(found)) == [("gateway", 0), ("lake", 0), ("source", 0)]


def test_why_when_stages_are_behind_then_the_largest_comes_first_and_all_add_up():
    found = asked({"lag_us": 2_000_000, "lakes": [{**LAKE, "landing_lag_us": 9_000_000, "cuts_behind": 4}]})
    assert behind(found) == [("lake", 9_000_000), ("source", 2_000_000), ("gateway", 0)]
    assert "4 cuts that have landed" in found.causes[0].why
    assert (found.behind_us, found.complete) == (11_000_000, True)


@pytest.mark.parametrize(
    ("source", "table", "stage", "words"),
    [
        ({"lag_us": None, "connected": False}, {}, "source", "is not connected"),
        ({"lag_us": None}, {}, "source", "said nothing of its place"),
        ({"lag_us": None}, {}, "gateway", "is not known"),
        ({"committed_position": "u:1-8"}, {}, "gateway", "no longer than 3.0 s"),
        ({"committed_position": "", "last_commit_timestamp_us": None}, {}, "gateway", "Nothing of the source"),
        ({"lakes": []}, {"lake": None}, "lake", "No sink reports"),
        ({"lakes": [{**LAKE, "landing_lag_us": None}]}, {}, "lake", "more than the database knows"),
        ({"lakes": [{**LAKE, "landing_lag_us": None, "state": "unknown"}]}, {}, "lake", "is not known"),
        ({}, {"lake": {**IN_LAKE, "state": "failed", "problem": GONE}}, "lake", "The table has stopped in lake main"),
    ],
)
def test_why_when_a_stage_is_not_known_then_it_is_unknown_and_the_lag_is_open(
    source: dict[str, object], table: dict[str, object], stage: str, words: str
):
    found = asked(source, table)
    assert (found.behind_us, found.complete) == (None, False)
    (cause,) = [each for each in found.causes if each.stage == stage]
    assert cause.behind_us is None and words in cause.why


@pytest.mark.parametrize(
    ("source", "table", "words"),
    [
        ({"stage": "source", "stage_problem": GONE}, {"stage": "source", "problem": GONE}, "Start the agent"),
        ({}, {"stage": "lake", "problem": GONE}, "Start the agent"),
        ({}, {"desired": None, "runs": False, "state": "not_synced"}, "menura sync start shop shop.orders --from dump"),
        ({}, {"desired": "stopped", "runs": False, "state": "stopped"}, "was stopped at u:1-9"),
        ({}, {"runs": False, "denied": True, "state": "denied"}, "The policy of the database's host"),
        ({}, {"runs": False, "state": "failed", "problem": GONE}, "Start the agent"),
        ({}, {"state": "pending", "meaning": "Its agent is silent."}, "Its agent is silent."),
        ({}, {"state": "dumping", "dump": DUMP}, "dump.max_threads_running: 51 run"),
        ({}, {"state": "dumping", "dump": {**DUMP, "state": "paused"}}, "menura dump resume d1"),
        ({}, {"state": "dumping", "dump": {**DUMP, "state": "waiting", "problem": GONE}}, "Start the agent"),
    ],
)
def test_why_when_something_stands_still_then_it_comes_first_once_with_what_mends_it(
    source: dict[str, object], table: dict[str, object], words: str
):
    found = asked({"lag_us": 1_000, **source}, table)
    assert found.causes[0].stands_still and words in found.causes[0].why
    assert [cause.stands_still for cause in found.causes].count(True) == 1
    assert not found.complete


def test_why_when_a_lake_takes_the_table_in_parts_then_that_says_how_and_nothing_stands_still():
    behind = {"code": TABLE_BEHIND, "message": "Wait.", "terminal": False, "at_us": NOW}
    found = asked({}, {"stage": "lake", "problem": behind, "lake": {**IN_LAKE, "state": "behind", "problem": behind}})
    assert not any(cause.stands_still for cause in found.causes)
    assert (found.causes[0].stage, found.causes[0].behind_us) == (Stage.LAKE, None)
    assert "in parts between batches" in found.causes[0].why


def test_why_when_a_dump_reads_then_its_speed_and_end_are_told_and_lag_comes_first():
    dump = {**DUMP, "state": "reading", "reason": "", "rows_per_second": 20, "estimated_end_us": NOW}
    found = asked({"lag_us": 1_000}, {"state": "dumping", "dump": dump})
    assert found.causes[0].behind_us == 1_000
    assert "reading: 50.0 %" in found.causes[1].why and "20 rows/s" in found.causes[1].why


def test_why_when_the_stream_waits_for_the_gateway_then_says_how_much_of_the_time():
    looks = [
        SourceView.model_validate({**SOURCE, "told_at_us": at, "credit_wait_us": waited})
        for at, waited in ((NOW, 0), (NOW + 2_000_000, 1_500_000), (NOW + 2_000_000, 0))
    ]
    assert waiting_part(looks[0], looks[1]) == 0.75
    assert waiting_part(looks[1], looks[2]) is None  # no second heartbeat
    began_again = SourceView.model_validate({**SOURCE, "told_at_us": NOW + 4_000_000, "credit_wait_us": 1})
    assert waiting_part(looks[1], began_again) is None
    cause = next(each for each in asked({"lag_us": 9}, waiting=0.75).causes if each.stage is Stage.SOURCE)
    assert "waited 75% of the last seconds for the gateway" in cause.why


@pytest.fixture
def here(database: Database, registry: SqlRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The agent is 90 s behind, its last heartbeat is an hour ahead; the lake lacks nothing but a stopped table."""
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 2 * 3600)
    facts.record_shop(registry, "orders", "items", "notes")
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [facts.health(lag_us=90_000_000)], facts.fresh_us())
    with serving(database) as url:
        here = {"MENURA_API": url, "MENURA_TENANT": "acme"}
        assert menura("sync", "start", "shop", "shop.orders", "shop.items", **here).returncode == 0
        registry.apply_entry(
            LANDING, entry(1, cut(1, file("orders"), start=[started("orders", 0), started("items", 0)]))
        )
        effective = [TableEffective("shop", name, "STREAMING") for name in ("orders", "items")]
        registry.record_effective(KEY, 1, effective, None, facts.T0)
        Sink().tell(database, 0, entry=1, sources=(lake_source(1, commit_us=now_us()),), stopped=(stop("items"),))
        yield here


def test_command_when_a_table_is_behind_then_shows_its_causes_in_80_columns_whether_or_not_its_source_is_named(
    here: dict[str, str],
):
    terminal = {**here, "COLUMNS": "80", "TTY_COMPATIBLE": "1", "TERM": "xterm", "NO_COLOR": "1"}
    done = menura("why", "shop.orders", "--for", "0", **terminal)
    assert done.returncode == 0, done.stderr
    shown = Text.from_ansi(done.stdout).plain
    assert "Lag: at least 1.5 min" in shown and max(map(len, shown.splitlines())) <= 80
    assert shown.index("Agent agent-1 has") < shown.index("Read and not") < shown.index("Lake main has")
    as_json = json.loads(menura("why", "shop", "shop.orders", "--for", "0", "--json", **here).stdout)
    assert [cause["behind_us"] for cause in as_json["causes"]] == [90_000_000, None, 0]
    assert as_json["complete"] is False


@pytest.mark.parametrize("is_away", [False, True])
def test_command_when_the_logs_end_is_not_known_or_the_agent_is_away_then_no_part_of_the_way_to_it_is_0(
    here: dict[str, str], registry: SqlRegistry, *, is_away: bool
):
    unknown = replace(facts.health(lag_us=None), read_position="", source_position="")
    facts.record_heartbeat(registry, "acme", "agent-1", 1, 1, [unknown], facts.fresh_us() + 1)
    if is_away:
        registry.record_agent_gone("acme", "agent-1", "run-1", facts.fresh_us() + 2)
    shown = menura("why", "shop.orders", "--for", "0", **here).stdout
    assert "Lag: not known." in shown
    assert ("is not connected, so how far it has read is not known" in " ".join(shown.split())) is is_away
    as_json = json.loads(menura("why", "shop.orders", "--for", "0", "--json", **here).stdout)
    stages = {cause["stage"]: cause["behind_us"] for cause in as_json["causes"] if not cause["stands_still"]}
    assert stages == {"source": None, "gateway": None, "lake": 0}
    assert (as_json["behind_us"], as_json["complete"]) == (None, False)


def test_command_when_the_table_has_stopped_in_the_lake_then_that_comes_first_with_its_problem(here: dict[str, str]):
    shown = menura("why", "shop.items", "--for", "0", **here).stdout
    assert shown.index("held up") < shown.index("The file is gone.") < shown.index("Agent agent-1")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("shop.nowhere",), 2, "no source of the tenant has it"),
        (("a", "b.c", "d"), 2, "3 words"),
        (("nowhere",), 2, "no source has a table of this name"),
        (("shop", "shop.nowhere"), 25, "TABLE_UNKNOWN"),
    ],
)
def test_command_when_the_table_is_not_to_be_found_then_refused(
    here: dict[str, str], words: tuple[str, ...], code: int, said: str
):
    done = menura("why", *words, "--for", "0", **here)
    assert done.returncode == code and said in done.stderr


def test_command_when_somebody_has_to_run_something_then_what_it_names_goes_on(here: dict[str, str]):
    def cause(table: str) -> str:
        shown = json.loads(menura("why", f"shop.{table}", "--for", "0", "--json", **here).stdout)
        return "\n".join(each["why"] for each in shown["causes"])

    def run_named(table: str) -> None:
        named = shlex.split(cause(table).partition("Run: menura ")[2].partition("\n")[0])
        assert menura(*named, **here).returncode == 0, named

    run_named("notes")  # for which nobody has asked
    assert "A dump of the table's earlier rows is pending" in cause("notes")
    assert menura("sync", "stop", "shop", "shop.orders", **here).returncode == 0
    assert "Its sync was stopped" in cause("orders")
    run_named("orders")
    assert "Its sync was stopped" not in cause("orders")
    (dump,) = json.loads(menura("dump", "list", "--json", **here).stdout)["dumps"]
    assert menura("dump", "pause", dump["dump"], **here).returncode == 0
    assert "is paused" in cause("notes")
    run_named("notes")
    assert "is pending" in cause("notes")


def test_table_when_its_source_is_looked_for_then_no_list_of_tables_is_read(here: dict[str, str]):
    class WithoutLists(ApiClient):
        def tables(self, source: str, *, text: str = "", state: str = "", synced: bool = False) -> list[TableView]:
            raise AssertionError("of many thousands, whose names may all have this one in them")

    with WithoutLists(here["MENURA_API"], here["MENURA_TENANT"]) as client:
        assert source_of(client, ("shop", "orders")) == "shop"
        assert client.find_table("shop", "shop", "nowhere") is None
