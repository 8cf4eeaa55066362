"""Alerts and dashboard: rules with unit tests, and every query over what a running system tells a real Prometheus."""

import importlib
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from menura.cli import GROUP

from tests.deployment.prometheus_server import prometheus, promtool, values
from tests.e2e import load
from tests.metrics_page import PORTS
from tests.servers import ROOT, Server, free_port, server
from tests.stack import Process, Stack, wait_for

FOLDER = ROOT / "deployment/prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
#: PostgreSQL alone has it, with max_slot_wal_keep_size
ELSEWHERE = {"menura_agent_log_room_bytes"}

#: parts of what is shown, for whoever asks further; no other figure tells what an operator has to see
DETAILS = {
    "menura_controlplane_connected_agents",
    "menura_dump_batches_total",
    "menura_dump_chunks_total",
    "menura_dump_discarded_chunks_total",
    "menura_dump_received_bytes_total",
    "menura_dump_rows_total",
    "menura_dump_unknown_chunks_total",
    "menura_landing_batches_total",
    "menura_landing_bytes_total",
    "menura_landing_cuts_total",
    "menura_landing_fenced_batches_total",
    "menura_landing_files_total",
    "menura_landing_resent_rows_total",
    "menura_landing_rows_total",
    "menura_log_conflicts_total",
    "menura_log_last_entry_timestamp_seconds",
    "menura_retention_bytes_total",
    "menura_retention_entries_total",
    "menura_retention_files_total",
    "menura_session_errors_total",
    "menura_session_streams_total",
    "menura_sink_batches_total",
    "menura_sink_source_tables_stopped",
    "menura_sink_tables_stopped",
    "menura_upgrade_agents",
    "menura_upgrade_refused_requests_total",
    "menura_upgrade_sent_bytes_total",
    "menura_upgrade_turns_total",
    "menura_verification_oldest_proof_age_seconds",
}


def panel_queries() -> list[tuple[str, str]]:
    """With the title of their panel, for all tenants and sources."""
    return [
        (panel["title"], re.sub(r"\$(tenant|source)", ".*", target["expr"]))
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bmenura_[a-z_]+", expression))


def test_rules_when_promtool_reads_them_then_they_are_rules_and_fire_when_they_shall() -> None:
    checked = promtool("check", "rules", str(FOLDER / "alerts.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", str(FOLDER / "alerts_test.yaml"))
    assert tested.returncode == 0, tested.stdout + tested.stderr
    cases = yaml.safe_load((FOLDER / "alerts_test.yaml").read_text())["tests"]
    assert {case["name"] for case in cases} == {rule["alert"] for rule in RULES}


def test_rules_and_panels_when_they_name_a_figure_then_the_code_has_it() -> None:
    known = {figure.name for figures in PORTS.values() for figure in figures}
    used = [rule["expr"] for rule in RULES] + [query for _, query in panel_queries()]
    assert set().union(*map(names_in, used)) <= known


def test_figures_when_the_code_has_one_then_a_rule_or_a_panel_shows_it_or_it_is_a_known_detail() -> None:
    known = {figure.name for figures in PORTS.values() for figure in figures}
    shown = set().union(*map(names_in, [*(rule["expr"] for rule in RULES), *(query for _, query in panel_queries())]))
    assert known - shown == DETAILS


def test_rules_when_somebody_is_woken_then_the_runbook_names_commands_that_are_there() -> None:
    known: dict[tuple[str, ...], list[str]] = {}
    for point in entry_points(group=GROUP):
        known |= getattr(importlib.import_module(point.module), "completions", dict)()
    for rule in RULES:
        commands = re.findall(r"menura ([a-z][a-z-]*)(?: ([a-z]+)\b)?([^;,:]*)", rule["annotations"]["runbook"])
        assert commands, rule["alert"]
        for word, second, rest in commands:
            place = (word, second) if (word, second) in known else (word,)
            assert {*re.findall(r"--[a-z-]+", rest)} <= {*known[place]}, (rule["alert"], place, rest)


@contextmanager
def running_system(folder: Path, database: Server) -> Iterator[tuple[Stack, list[dict[str, Any]]]]:
    """All processes, with what Prometheus is to scrape; a dump goes on for as long as the test does."""
    gateway, sink, search = (f"127.0.0.1:{free_port()}" for _ in range(3))
    running = Stack(folder, with_ca=True, sink_options=["--metrics", sink])
    running.gateway.arguments += ["--metrics", gateway]
    agent = running.agent("db1", {"shop": database}, dump={"max_rows_per_second": 1})
    with ExitStack() as ends:
        for each in (running.client, running.gateway, running.api, running.sink):
            ends.enter_context(each)
        wait_for("the API", lambda: running.api_answers() or None)
        wait_for("the gateway", lambda: "gateway listens on" in running.gateway.tail(1_000))
        running.enrol(agent)
        ends.enter_context(agent)
        ends.enter_context(searching(running, search))
        running.start_sync("shop", "shop", "t", "now")
        running.start_sync("shop", "shop", "large", "dump")
        token = {"credentials_file": str(running.token_file)}
        yield (
            running,
            [
                {
                    "job_name": "menura-api",
                    "authorization": token,
                    "static_configs": _at(f"127.0.0.1:{running.api_port}"),
                },
                {"job_name": "menura-gateway", "static_configs": _at(gateway)},
                {"job_name": "menura-sink", "static_configs": _at(sink)},
                {"job_name": "menura-search", "static_configs": _at(search)},
            ],
        )


def searching(running: Stack, metrics: str) -> Process:
    (indexes := running.folder / "indexes").mkdir()
    where = ("--folder", str(indexes), "--lake", str(running.lake), "--listen", f"127.0.0.1:{free_port()}")
    return Process(["search", "serve", *where, "--metrics", metrics], running.folder / "search.log")


def _at(address: str) -> list[dict[str, list[str]]]:
    return [{"targets": [address]}]


@pytest.mark.long
@pytest.mark.spark
def test_queries_when_a_real_prometheus_scrapes_a_running_system_then_each_gives_data(tmp_path: Path) -> None:
    with ExitStack() as ends:
        database = ends.enter_context(server("mariadb", tmp_path / "server"))
        database.create_replication_user()
        database.run("SET GLOBAL expire_logs_days = 7")
        load.create_tables(database, "shop", "t")
        load.create_tables(database, "shop", "large", rows=5_000)
        _, jobs = ends.enter_context(running_system(tmp_path / "stack", database))
        client = ends.enter_context(prometheus(tmp_path / "prometheus", jobs))
        ends.enter_context(load.writing(database, "shop", "t"))
        for title, query in panel_queries():
            if not names_in(query) & ELSEWHERE:
                wait_for_data(client, query, f"the panel {title!r}")
        for rule in RULES:
            values(client, rule["expr"])  # which gives nothing where all is well
            for name in names_in(rule["expr"]) - ELSEWHERE:
                wait_for_data(client, name, f"the rule {rule['alert']}")


def wait_for_data(client: httpx.Client, query: str, of: str) -> None:
    wait_for(f"data of {of}: {query}", lambda: values(client, query) or None, 600)
