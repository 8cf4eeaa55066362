"""Agents with certificates from end to end: enrolled, renewed and revoked while they run, and copies of them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.identity import IdentityFile
from tests.e2e.test_tls import landed_rows
from tests.gateway.test_session import make_certificates
from tests.servers import Server, server
from tests.stack import Process, Stack, wait_for

HOUR_SECONDS = 3_600


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server("mariadb", tmp_path_factory.mktemp("server")) as started:
        started.create_replication_user()
        yield started


@pytest.fixture
def table(source: Server, request: pytest.FixtureRequest) -> str:
    """A database of its own with a table t of one row."""
    name = f"d{abs(hash(request.node.name)) % 10**9}"
    source.run(
        f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (id INT PRIMARY KEY)", f"INSERT INTO {name}.t VALUES (1)"
    )
    return name


@contextmanager
def identified(folder: Path, *settings: str) -> Iterator[Stack]:
    stack = Stack(folder / "stack", with_ca=True)
    stack.gateway.arguments += settings
    with stack.client, stack.gateway, stack.api:
        wait_for("the API to answer", lambda: stack.api_answers() or None)
        wait_for("the gateway to listen", lambda: "gateway listens on" in stack.gateway.tail(1_000))
        yield stack


def agent_of(stack: Stack, source: Server, name: str = "db1") -> Process:
    return stack.agent(name, {"shop": source})


def shown(stack: Stack, name: str = "db1") -> dict[str, Any]:
    """The agent as the API shows it."""
    found = [agent for agent in stack.get(f"/api/v1/tenants/{stack.tenant}/agents")["agents"] if agent["agent"] == name]
    view: dict[str, Any] = found[0]
    return view


def identity(stack: Stack, name: str = "db1") -> IdentityFile:
    return IdentityFile(stack.folder / f"agent-{stack.tenant}-{name}.state" / "identity.pem")


def count(process: Process, words: str) -> int:
    return process.log.read_text().count(words)


def is_connected(stack: Stack) -> bool:
    return bool(shown(stack)["connected"])


@pytest.mark.long
def test_certificates_when_they_are_short_lived_then_both_ends_renew_them_and_rows_land_without_a_restart(
    tmp_path: Path, source: Server, table: str
) -> None:
    life_seconds = 60
    with identified(tmp_path, "--certificate-hours", str(life_seconds / HOUR_SECONDS)) as stack:
        agent = agent_of(stack, source)
        assert "enrolled: agent db1 of tenant acme" in stack.enrol(agent)
        first = identity(stack).load()
        with agent:
            stack.start_sync("shop", table, "t", "oldest")
            wait_for("the first row to land", lambda: landed_rows(stack.landing) == 1)
            rows = 1

            def is_over() -> bool:
                """The first certificate has expired, and each end has had two more."""
                nonlocal rows
                rows += 1
                source.run(f"INSERT INTO {table}.t VALUES ({rows})")
                renewed = count(agent, "certificate renewed"), count(stack.gateway, "the gateway has a new certificate")
                return min(renewed) >= 2 and datetime.now(UTC) > first.not_after

            wait_for("certificates to be renewed", is_over, 900, every=1)
            rows += 1
            source.run(f"INSERT INTO {table}.t VALUES ({rows})")
            wait_for("all rows to land", lambda: landed_rows(stack.landing) == rows)
            assert identity(stack).load().key == first.key
            assert identity(stack).path.stat().st_mode & 0o777 == 0o600
            assert count(agent, "CERTIFICATE_EXPIRED") == 0


def test_agent_when_it_is_revoked_then_its_streams_end_and_it_comes_back_by_a_token_that_names_it_alone(
    tmp_path: Path, source: Server, table: str
) -> None:
    with identified(tmp_path) as stack:
        agent = agent_of(stack, source)
        stack.enrol(agent)
        with agent:
            stack.start_sync("shop", table, "t", "oldest")
            wait_for("the row to land", lambda: landed_rows(stack.landing) == 1)
            assert stack.command("agents", "revoke", "db1") == "Agent db1 is revoked.\n"
            wait_for("its streams to end", lambda: not is_connected(stack))
            wait_for("the agent to hear it", lambda: count(agent, "AGENT_REVOKED"))
            source.run(f"INSERT INTO {table}.t VALUES (2)")
            assert "revoked" in stack.command("agents")
            wait_for("the refusal to be shown", lambda: (shown(stack)["problem"] or {}).get("code") == "AGENT_REVOKED")
            assert "AGENT_REVOKED" in stack.command("audit")
            stack.gateway.stop()
            stack.gateway.start()  # it lasts
            agent.stop()
            agent.start()
            refused = count(stack.gateway, "AGENT_REVOKED")
            wait_for("it to be refused again", lambda: count(stack.gateway, "AGENT_REVOKED") > refused)
            assert landed_rows(stack.landing) == 1
            stack.enrol(agent, named=True)
            wait_for("the second row to land", lambda: landed_rows(stack.landing) == 2)
            wait_for(
                "it to be shown", lambda: (shown(stack)["connected"], shown(stack)["revoked_at_us"]) == (True, None)
            )


@pytest.mark.long
def test_agent_when_it_is_a_copy_of_another_one_then_is_shown_as_that_and_stands_back_until_it_is_alone(
    tmp_path: Path, source: Server, table: str
) -> None:
    with identified(tmp_path) as stack:
        agent = agent_of(stack, source)
        stack.enrol(agent)
        config = yaml.safe_load(Path(agent.arguments[-1]).read_text())
        copied = tmp_path / "copied"
        shutil.copytree(stack.folder / "agent-acme-db1.state", copied)
        config |= {"state_folder": str(copied)}
        config["gateway"]["identity"] = str(copied / "identity.pem")
        (tmp_path / "copy.yaml").write_text(yaml.safe_dump(config))
        copy = Process(["agent", "run", "--config", str(tmp_path / "copy.yaml")], tmp_path / "copy.log")
        with agent:
            stack.start_sync("shop", table, "t", "oldest")
            wait_for("the row to land", lambda: landed_rows(stack.landing) == 1)
            with copy:
                wait_for("it to be shown", lambda: (shown(stack)["problem"] or {}).get("code") == "DUPLICATE_AGENT")
                assert "DUPLICATE_AGENT" in stack.command("agents")
                wait_for("the copy to hear it", lambda: count(copy, "DUPLICATE_AGENT"))
                source.run(f"INSERT INTO {table}.t VALUES (2)")
                wait_for("the second row to land", lambda: landed_rows(stack.landing) == 2)
                assert count(agent, "SESSION_REPLACED") == 0
                assert count(agent, "DUPLICATE_AGENT") == 0
                agent.stop()
                source.run(f"INSERT INTO {table}.t VALUES (3)")
                wait_for("the copy to take over", lambda: landed_rows(stack.landing) == 3)


def test_files_of_a_ca_of_ones_own_when_they_change_then_both_ends_use_the_new_ones(
    tmp_path: Path, source: Server
) -> None:

    files = tmp_path / "files"
    files.mkdir()
    make_certificates(files, "db1")
    ca, certificate, key = (str(files / name) for name in ("ca.pem", "end.pem", "end.key"))
    stack = Stack(tmp_path / "stack")
    stack.gateway.arguments += ["--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", ca]
    agent = agent_of(stack, source)
    path = Path(agent.arguments[-1])
    config = yaml.safe_load(path.read_text())
    tls = {"ca": ca, "certificate": certificate, "key": key}
    config["gateway"] = {"address": f"localhost:{stack.gateway_port}", "tls": tls}
    path.write_text(yaml.safe_dump(config))
    with stack.client, stack.gateway, stack.api:
        wait_for("the API to answer", lambda: stack.api_answers() or None)
        stack.command("agents", "add", "db1")
        stack.command("sources", "assign", "shop", "--agent", "db1")
        with agent:
            wait_for("it to connect", lambda: is_connected(stack))
            fresh = tmp_path / "fresh"
            fresh.mkdir()
            make_certificates(fresh, "db1")  # another CA too: nothing of the former ones helps
            for name in ("ca.pem", "end.key", "end.pem"):
                (fresh / name).replace(files / name)
            wait_for("the gateway to take them", lambda: count(stack.gateway, "the gateway has new TLS files"))
            wait_for("the agent to take them", lambda: count(agent, "connecting anew with new certificates"))
            opened = count(agent, "stream open")
            wait_for("its streams to open on them", lambda: count(agent, "stream open") > opened or is_connected(stack))
            wait_for("it to be connected", lambda: is_connected(stack))
