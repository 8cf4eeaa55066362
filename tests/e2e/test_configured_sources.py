"""Sources that the control plane configures, from a file to landed rows; what is lost on the way converges."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.dumping import agent_inside
from tests.agent.memory import create, installed, order
from tests.e2e.test_tls import landed_rows
from tests.memory_source.database import Change, MemoryDatabase
from tests.remedies import commands
from tests.stack import Stack, stack, wait_for

ORDERS = ("shop", "orders")


def config_without_sources(folder: Path, running: Stack, **more: object) -> Path:
    path = folder / "agent.yaml"
    entries = {
        "tenant": "acme",
        "agent": "db-1",
        "gateway": {"address": f"127.0.0.1:{running.gateway_port}"},
        "state_folder": str(folder / "state"),
        "remote": {},
    }
    path.write_text(yaml.safe_dump(entries | more))
    return path


def fleet(folder: Path, sources: dict[str, Any]) -> str:
    path = folder / "fleet.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "tenant": "acme", "agents": {"db-1": {"sources": sources}}}))
    return str(path)


def memory(database: str = "shop", **entries: Any) -> dict[str, Any]:
    return {"kind": "memory", "database": database, **entries}


def shown(running: Stack, source: str = "shop") -> dict[str, Any]:
    view: dict[str, Any] = json.loads(running.command("sources", "show", source, "--json"))
    return view


def wait_until(running: Stack, source: str, state: str, reason: str) -> None:
    wait_for(
        f"{source} to be {state}, {reason}",
        lambda: (shown(running, source)["state"], shown(running, source)["reason"]) == (state, reason),
    )


def changes(said: str) -> list[tuple[str, str]]:
    return [(change["action"], change["source"]) for change in json.loads(said)["changes"]]


@contextmanager
def restored(running: Stack, copy: Path) -> Iterator[None]:
    """Inside, what uses the database stands; afterwards it uses the copy."""
    running.gateway.stop()
    running.api.stop()
    yield
    database = running.folder / "control.db"
    for name in ("control.db-wal", "control.db-shm"):
        (running.folder / name).unlink(missing_ok=True)
    database.write_bytes(copy.read_bytes())
    running.gateway.start()
    running.api.start()
    wait_for("the API to answer", lambda: running.api_answers() or None)


def copied(running: Stack, to: Path) -> Path:
    with closing(sqlite3.connect(running.folder / "control.db")) as now, closing(sqlite3.connect(to)) as copy:
        now.backup(copy)
    return to


@pytest.mark.long
def test_fleet_when_messages_and_the_database_are_lost_then_the_agent_converges_to_what_is_desired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(tmp_path, monkeypatch), stack(tmp_path / "stack", sink=False) as running:
        database, other = MemoryDatabase("shop"), MemoryDatabase("other")
        create(database, rows=3)
        create(other, rows=1)
        file = fleet(tmp_path, {"shop": memory(tables={"shop.orders": None})})
        assert changes(running.command("plan", "-f", file, "--json")) == [
            ("create", ""), ("create", "shop"), ("start", "shop")
        ]  # fmt: skip
        assert running.get("/api/v1/tenants/acme/fleet")["agents"] == []  # a plan alone
        running.command("apply", "-f", file)
        assert (shown(running)["state"], shown(running)["reason"]) == ("unknown", "AGENT_AWAY")
        with agent_inside(config_without_sources(tmp_path, running)):
            wait_until(running, "shop", "applied", "CONFIGURATION_APPLIED")
            running.wait_for_table("shop", *ORDERS)
            running.wait_until_streaming("shop", *ORDERS)
            wait_for("the rows to land", lambda: landed_rows(running.landing) >= 3)
            assert "nothing to change" in running.command("apply", "-f", file)
            older = copied(running, tmp_path / "older.db")
            # what is desired changes while nobody can hear of it
            running.gateway.kill()
            running.command(
                "apply", "-f", fleet(tmp_path, {"shop": memory(filter_policy="accept"), "other": memory("other")})
            )
            running.gateway.start()
            wait_until(running, "other", "applied", "CONFIGURATION_APPLIED")
            wait_until(running, "shop", "applied", "CONFIGURATION_APPLIED")
            assert shown(running)["generation"] == shown(running)["effective_generation"] == 2
            wait_for(
                "the new source's tables", lambda: running.get("/api/v1/tenants/acme/sources/other/tables")["total"]
            )
            with restored(running, older):
                database.commit(Change(ORDERS, None, order(1000, "meanwhile")))
            wait_until(running, "shop", "applied", "CONFIGURATION_APPLIED")
            assert shown(running)["generation"] == 1
            wait_for("the row to land", lambda: landed_rows(running.landing) >= 4)
            stored = tmp_path / "state" / "remote-sources.json"
            wait_for("the source that is not known any more to end", lambda: "other" not in stored.read_text())
            running.wait_until_streaming("shop", *ORDERS)
        running.gateway.stop()
        with agent_inside(config_without_sources(tmp_path, running)):  # it begins with what it has stored
            database.commit(Change(ORDERS, None, order(1003, "last")))
            running.gateway.start()
            wait_for("the last row to land", lambda: landed_rows(running.landing) >= 5)


def test_configuration_when_it_is_refused_then_the_former_one_runs_and_both_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(tmp_path, monkeypatch), stack(tmp_path / "stack", sink=False) as running:
        database = MemoryDatabase("shop")
        create(database, rows=3)
        good = {"shop": memory(tables={"shop.orders": {"start": "oldest"}})}
        with agent_inside(config_without_sources(tmp_path, running, sources={"own": memory()})):
            running.command("apply", "-f", fleet(tmp_path, good | {"own": memory("other")}))
            wait_for("the rows to land", lambda: landed_rows(running.landing) == 3)
            wait_until(running, "own", "refused", "CONFIG_SOURCE_LOCAL")
            own = running.source("own")  # it runs, as its own file says
            assert (own["problem"], [one["code"] for one in own["warnings"]]) == (None, ["CONFIG_SOURCE_LOCAL"])
            ((*remedy,),) = commands(shown(running, "own")["message"])
            running.command(*remedy)
            assert running.source("own")["address"] == "memory:shop"  # as its own file says, all the time
            file = fleet(tmp_path, {"shop": memory(dump={"workers": 1000}), "late": memory()})
            assert changes(running.command("apply", "-f", file, "--json")) == [("create", "late"), ("change", "shop")]
            wait_until(running, "shop", "refused", "CONFIG_INVALID")
            wait_until(running, "late", "applied", "CONFIGURATION_APPLIED")
            found = shown(running)
            assert (found["generation"], found["effective_generation"]) == (2, 1)
            assert "sources.shop.dump.workers is not a whole number from 1 to 64" in found["message"]
            database.commit(Change(ORDERS, None, order(1000, "goes on")))
            wait_for("the row to land", lambda: landed_rows(running.landing) == 4)
            # back to what runs: nothing begins again
            said = json.loads(running.command("apply", "-f", fleet(tmp_path, good), "--json"))
            assert [(one["action"], one["source"]) for one in said["changes"]] == [("change", "shop")]
            assert [(one["action"], one["source"]) for one in said["kept"]] == [("keep", "late")]
            wait_until(running, "shop", "applied", "CONFIGURATION_APPLIED")
            said = running.command("apply", "-f", fleet(tmp_path, {}), "--prune", "--json")
            assert changes(said) == [("remove", "late"), ("stop", "shop"), ("remove", "shop")]
            stored = tmp_path / "state" / "remote-sources.json"
            wait_for("the sources to end", lambda: json.loads(stored.read_text())["sources"] == {})
            assert "nothing to change" in running.command("plan", "-f", fleet(tmp_path, {}), "--prune")
