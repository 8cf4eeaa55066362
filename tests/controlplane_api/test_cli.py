import json
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import httpx
import psutil
import pytest
from menura.cli import WORDS
from menura.instants import now_us

from controlplane_api.api import lake_queries
from controlplane_api.cli import COMMANDS
from controlplane_api.commands import up as up_module
from controlplane_api.commands.tables import parse_table
from controlplane_api.database import Database, open_database
from controlplane_api.errors import RequestInvalid
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import SourceKey, TableEffective
from tests.controlplane_api import facts
from tests.controlplane_api.commands import Done, menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, LANDING, cut, entry, file, started, stopped
from tests.controlplane_api.lake_facts import Sink, lake_source, stop
from tests.servers import free_port, two_free_ports
from tests.stack import MENURA, Process, wait_for


@pytest.fixture
def kind() -> str:
    return "sqlite"


@pytest.fixture
def api(database: Database) -> Iterator[str]:
    with serving(database) as url:
        yield url


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command, as a shell starts it."""
    return subprocess.run([*MENURA, *arguments], capture_output=True, text=True, timeout=600, check=False)


def test_clients_when_tables_start_and_stop_then_show_it(api: str, registry: SqlRegistry):
    facts.record_shop(registry)
    here = {"MENURA_API": api, "MENURA_TENANT": "acme"}
    begun = menura("sync", "start", "shop", "shop.orders", "shop.items", "--from", "now", **here)
    assert begun.returncode == 0, begun.stderr
    assert "shop.orders: started. Rows written before" in begun.stdout
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 1234), start=[started("orders", 0, "purged")])))
    registry.apply_entry(LANDING, entry(2, cut(2, stop=[stopped("items", 2)])))
    status = menura("status", **here).stdout
    for words in ("shop.orders", "1,234", "earlier rows missing: purged", "failed", "An event that can't be read."):
        assert words in status
    assert "db1.example" in menura("agents", **here).stdout
    assert "mysql 9.7.0" in menura("sources", **here).stdout
    listed = json.loads(menura("tables", "shop", "--json", **here).stdout)
    assert [table["state"] for table in listed["tables"]] == ["failed", "not_synced", "pending"]
    assert menura("sync", "stop", "shop", "--all", **here).returncode == 0
    assert registry.desired(KEY).tables == ()
    assert json.loads(menura("sources", "--json", "--api", api, "--tenant", "globex").stdout)["sources"] == []


def test_sync_when_by_a_pattern_then_plans_starts_now_and_later_and_shows_rules_and_progress(
    api: str, registry: SqlRegistry
):
    facts.record_shop(registry)
    here = {"MENURA_API": api, "MENURA_TENANT": "acme"}
    pattern = ("sync", "start", "shop", "--match", "shop.*s", "--future", "--from", "now")
    plan = menura(*pattern, "--dry-run", **here)
    assert "shop.orders: would be changed: started." in plan.stdout
    assert registry.desired(KEY).tables == ()
    assert "shop.orders: started." in menura(*pattern, **here).stdout
    facts.record_shop(registry, "orders", "items", "notes", "returns")
    assert [each.table for each in registry.desired(KEY).tables] == ["items", "notes", "orders", "returns"]
    progress = menura("sync", "progress", "shop", **here).stdout
    assert "start " in progress and "3 waiting" in progress and "shop.orders" in progress
    rules = menura("sync", "rules", "shop", **here).stdout
    (line,) = [line for line in rules.splitlines() if "shop.*s" in line]
    assert "shop.*s" not in menura("sync", "rules", "shop", "--remove", line.split()[0], **here).stdout
    assert menura("sync", "stop", "shop", "--match", "*.o*", **here).stdout == "shop.orders: stopped.\n"
    for wrong in (("--match", "shop.*", "--all"), ("shop.orders", "--future"), ()):
        assert menura("sync", "start", "shop", *wrong, **here).returncode == 2
    assert menura("sync", "progress", "shop", "none", **here).returncode == 1


def test_clients_when_a_stage_stands_still_then_status_tables_and_lakes_say_so_and_commands_bring_back(
    api: str, registry: SqlRegistry, database: Database, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("controlplane_api.api.presence.SILENT_SECONDS", 2 * 3600)
    facts.record_shop(registry)
    here = {"MENURA_API": api, "MENURA_TENANT": "acme"}
    assert menura("sync", "start", "shop", "shop.orders", "shop.items", **here).returncode == 0
    begun = [started("orders", 0), started("items", 0)]
    registry.apply_entry(LANDING, entry(1, cut(1, file("orders", 1234), start=begun)))
    tables = [TableEffective("shop", name, "STREAMING") for name in ("orders", "items")]
    registry.record_effective(KEY, 1, tables, None, facts.T0)
    sink = Sink()
    sink.tell(database, 0, entry=1, sources=(lake_source(1),), stopped=(stop("orders"),))
    for words in ("status", "tables shop"):
        shown = menura(*words.split(), **here).stdout
        for part in (
            "failed",
            "held up in stage lake",
            "failed at cut 1",
            "following at cut 1",
            "shop.orders: The file",
        ):
            assert part in shown, (words, part, shown)
    assert "cut 1 of 1" in menura("sources", **here).stdout
    lakes = menura("lakes", **here).stdout
    assert "main" in lakes and "/data/lake" in lakes and LANDING in lakes
    retried = menura("sync", "retry", "shop", "shop.orders", "shop.items", **here)
    assert "shop.orders: is tried again. Its sink tries it again" in retried.stdout
    assert "shop.items: not changed. Nothing of it has stopped." in retried.stdout
    assert "its sink was asked" in menura("tables", "shop", **here).stdout
    begun_anew = menura("sync", "resync", "shop", "--all", **here)
    assert begun_anew.stdout.count("begins anew. Dump ") == 2
    assert len(registry.dumps(KEY).dumps) == 2
    registry.record_agent_gone("acme", "agent-1", "run-1", facts.T0)
    shown = menura("status", **here).stdout
    assert shown.count("its agent agent-1 is not connected") == 1
    assert "waiting" in shown and "streaming" not in shown
    forgotten = menura("lakes", "--forget", "main", "--json", **here)
    assert json.loads(forgotten.stdout)["lakes"] == []
    assert menura("lakes", "--forget", "main", **here).returncode == 25


def test_clients_when_something_is_wrong_then_one_line_and_distinct_exit_codes(api: str, registry: SqlRegistry):
    facts.record_shop(registry)
    cases = {
        20: ("gateway", "run", "--database", "sqlite:////nowhere/control.db", "--landing", "x"),
        21: ("api", "run", "--database", "oracle://x"),
        23: ("api", "run", "--database", "sqlite:////tmp/x.db", "--listen", "0.0.0.0:7080"),
        3: ("gateway", "run", "--database", "sqlite://", "--landing", "x", "--metrics", "nonsense"),
        25: ("tables", "nowhere", "--api", api, "--tenant", "acme"),
        2: ("sync", "start", "shop", "orders", "--api", api, "--tenant", "acme"),
    }
    for code, arguments in cases.items():
        assert_refused(menura(*arguments), code, arguments[0])
    nowhere = ("agents", "--api", f"http://127.0.0.1:{free_port()}")
    assert_refused(process(*nowhere), 24, "agents")


@pytest.mark.parametrize("ca", [(), ("--tls-client-ca", "ca.pem", "--ca", "ca")])
def test_gateway_when_its_tls_would_let_anonymous_agents_in_or_has_two_cas_then_does_not_start(ca: tuple[str, ...]):
    """With a certificate and no CA of agents it was encrypted and anonymous."""
    where = ("--database", "sqlite:////nowhere/control.db", "--landing", "x", "--listen", "0.0.0.0:7070")
    done = menura("gateway", "run", *where, "--tls-certificate", "gw.pem", "--tls-key", "gw.key", *ca)
    assert_refused(done, 3 if ca else 23, "gateway")
    assert "--tls-client-ca" in done.stderr


def assert_refused(done: Done | subprocess.CompletedProcess[str], code: int, word: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith(f"menura {word}: "), done.stderr


def test_words_when_they_are_the_control_planes_then_each_has_an_app():
    assert {name for name, word in WORDS.items() if word.component == "controlplane_api"} == set(COMMANDS)


def test_sync_when_one_table_is_refused_then_others_start_and_exit_code_says_so(api: str, registry: SqlRegistry):
    facts.record_shop(registry)
    done = menura("sync", "start", "shop", "shop.orders", "shop.nowhere", "--api", api, "--tenant", "acme")
    assert done.returncode == 25
    assert "1 of 2 were refused: TABLE_UNKNOWN" in done.stderr
    assert [table.table for table in registry.desired(KEY).tables] == ["orders"]


def test_clients_when_a_name_has_control_characters_then_the_terminal_gets_none(api: str, registry: SqlRegistry):
    registry.record_agent(facts.agent_seen())
    facts.record_cartography(registry, KEY, "mysql", "9\x1b[2J", facts.UUID, [facts.table_seen("a\x1b[31mb[red]")], 0)
    for words in (("tables", "shop"), ("sources",), ("sync", "start", "shop", "--all"), ("status",)):
        done = menura(*words, "--api", api, "--tenant", "acme")
        assert done.returncode == 0
        assert "\x1b" not in done.stdout
    assert "[red]" in menura("tables", "shop", "--api", api, "--tenant", "acme").stdout


@pytest.mark.parametrize(
    "word", ["orders", "a.b.c", "shop.", ".orders", "`shop`", "`shop.orders", "`a`b.c", "a.`b`c", ""]
)
def test_table_when_it_is_not_database_and_table_then_refused(word: str):
    with pytest.raises(RequestInvalid):
        parse_table(word)


def test_table_when_quoted_then_dots_and_backticks_are_its_own():
    assert parse_table("`a.b`.c") == ("a.b", "c")
    assert parse_table("`a``b`.`c.d`") == ("a`b", "c.d")


class Up:
    """`menura up` over a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gateway, self.api = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.metrics = f"127.0.0.1:{free_port()}"
        listen = ("--gateway-listen", self.gateway, "--api-listen", self.api, "--gateway-metrics", self.metrics)
        self.process = Process(["up", "--data", str(folder / "data"), "--no-sink", *listen], folder / "up.log")

    def start(self) -> list[psutil.Process]:
        """Its processes, itself first, once it says that all are up."""
        self.process.start()
        wait_for("menura up", lambda: self.says("dashboard  http://") or not self.process.is_running())
        assert self.process.is_running(), self.process.tail()
        assert self.process.running is not None
        parent = psutil.Process(self.process.running.pid)
        return [parent, *parent.children(recursive=True)]

    def says(self, words: str) -> bool:
        return words in self.process.log.read_text()


@contextmanager
def made(folder: Path) -> Iterator[Up]:
    found = Up(folder)
    yield found
    if found.process.running is not None:
        found.process.stop()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with made(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, list[psutil.Process]]]:
    """One that runs, for tests that leave it running; its processes at its start."""
    with made(tmp_path_factory.mktemp("up")) as found:
        yield found, found.start()


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(map(lives, processes))


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it has ended between these two looks
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_when_asked_to_stop_then_ends_well_and_leaves_no_process(up: Up, number: signal.Signals):
    processes = up.start()
    assert len(processes) == 3
    processes[0].send_signal(number)
    assert up.process.running is not None
    assert up.process.running.wait(300) == 0
    assert all_gone(processes)
    database = open_database(f"sqlite:///{up.folder}/data/control.db")
    assert SqlRegistry(database).generations([SourceKey("a", "b")]) == {}
    database.close()


def test_up_when_other_hosts_reach_it_then_the_line_that_it_prints_enrols_an_agent_there(tmp_path: Path):
    port = two_free_ports()  # agents enrol at the second one
    up = Up(tmp_path)
    up.process.arguments[up.process.arguments.index(up.gateway)] = f"0.0.0.0:{port}"
    up.start()
    try:
        wait_for("the line", lambda: up.says("menura agent enrol"))
        (line,) = [line for line in up.process.log.read_text().splitlines() if "menura agent enrol" in line]
        word, *command = shlex.split(line)[1:]
        assert f":{port}" in command[command.index("--gateway") + 1]
        command[command.index("--gateway") + 1] = f"127.0.0.1:{port}"  # a test's host may not know its own name
        config = tmp_path / "agent.yaml"
        config.write_text(f'gateway: {{address: "127.0.0.1:{port}"}}\nagent: db-1\nstate_folder: {tmp_path}/state\n')
        command[command.index("--config") + 1] = str(config)
        done = process(word, *command)
        assert done.stdout.startswith("enrolled: agent db-1 of tenant default"), done
        token = command[command.index("--token") + 1]
        logs = "".join(log.read_text() for log in (tmp_path / "data" / "log").iterdir())
        assert "agent enrolled: agent=default/db-1" in logs
        assert token.split(".")[2] not in logs
        assert process(word, *command).stderr.count("agent db-1 has used it")
    finally:
        up.process.stop()


def test_up_when_killed_then_leaves_no_process(up: Up):
    processes = up.start()
    up.process.kill()
    wait_for("its processes to end", lambda: all_gone(processes))


def test_up_when_a_port_is_taken_then_says_which_and_leaves_no_process(
    shared: tuple[Up, list[psutil.Process]], tmp_path: Path
):
    up, processes = shared
    data = str(tmp_path / "second")
    done = process("up", "--data", data, "--no-sink", "--gateway-listen", up.gateway, "--api-listen", up.api)
    assert (done.returncode, done.stdout) == (23, ""), done
    assert up.gateway in done.stderr
    assert processes[0].is_running()


def test_up_when_it_is_asked_to_then_the_gateways_figures_can_be_scraped(shared: tuple[Up, list[psutil.Process]]):
    text = httpx.get(f"http://{shared[0].metrics}/metrics", timeout=300).text
    assert "\nmenura_landing_cuts_total 0.0\n" in text


def test_up_when_another_runs_in_the_folder_then_refused(shared: tuple[Up, list[psutil.Process]]):
    done = process("up", "--data", str(shared[0].folder / "data"), "--no-sink")
    assert (done.returncode, done.stderr.count("\n")) == (26, 1)
    assert "another menura up runs in it" in done.stderr


def test_up_when_a_component_is_killed_then_it_is_restarted(shared: tuple[Up, list[psutil.Process]]):
    up, processes = shared
    api = next(process for process in processes[1:] if "api" in process.cmdline())
    api.kill()
    wait_for("the restart", lambda: up.says("component restarted: component=API"))
    assert up.says("component died, restarting: component=API exit_code=-9")

    def answers() -> bool:
        try:
            return httpx.get(f"http://{up.api}/healthz").is_success
        except httpx.TransportError:
            return False

    wait_for("the API to answer again", answers)


def test_up_when_it_is_to_compare_behind_gaps_then_the_gateway_is_and_else_not(tmp_path: Path):
    listen = ("127.0.0.1:7070", "127.0.0.1:7080")
    for wanted in (True, False):
        gateway, *_ = up_module._components(tmp_path, *listen, compare_behind_gaps=wanted, with_sink=False)
        assert ("--compare-behind-gaps" in gateway.arguments) is wanted


def test_up_when_it_runs_a_sink_then_its_lake_is_expected_before_the_sink_says_anything(tmp_path: Path):
    up_module._prepare_database(tmp_path, with_sink=True)
    up_module._prepare_database(tmp_path, with_sink=True)  # again, at the next start
    listen = ("127.0.0.1:7070", "127.0.0.1:7080")
    *_, sink = up_module._components(tmp_path, *listen, sink_metrics="127.0.0.1:9464", with_sink=True)
    assert list(sink.arguments[-2:]) == ["--metrics", "127.0.0.1:9464"]
    needs = {
        "gateway_metrics": "0.0.0.0:9463",
        "sink_metrics": "0.0.0.0:9464",
        "metrics_token_file": tmp_path / "token",
    }
    gateway, _, guarded = up_module._components(tmp_path, *listen, **needs, with_sink=True)  # type: ignore[arg-type]
    for each in (gateway, guarded):
        assert dict(pairwise(each.arguments))["--metrics-token-file"] == str(tmp_path / "token")
    arguments = dict(pairwise(sink.arguments))
    assert arguments["--api"] == "http://127.0.0.1:7080"
    database = open_database(f"sqlite:///{tmp_path}/control.db")
    with database.read() as connection:
        (expected,) = lake_queries.sinks(connection, now_us(), limit=10).lakes
    database.close()
    assert (expected.lake, expected.state, expected.received_at_us) == (arguments["--name"], "unknown", None)
    assert (expected.url, expected.landing) == (arguments["--lake"], arguments["--landing"])


def test_up_when_a_component_cannot_start_then_says_its_last_words(tmp_path: Path):
    data = tmp_path / "data"
    listen = ("--gateway-listen", f"192.0.2.1:{free_port()}", "--api-listen", f"127.0.0.1:{free_port()}")
    done = process("up", "--data", str(data), "--no-sink", *listen)
    assert done.returncode in (23, 26), done
    assert "192.0.2.1" in done.stderr
