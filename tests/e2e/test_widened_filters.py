"""Columns that a filter or the host's policy leaves out no more: the lake gets their earlier values by itself."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live_source import LiveSource, mysql_source, postgresql_source
from tests.servers import FLAVORS
from tests.stack import Stack, wait_for

NOTES = "notes"


@pytest.fixture(params=[*FLAVORS, "postgresql"])
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveSource]:
    with ExitStack() as ends:
        if request.param == "postgresql":
            yield ends.enter_context(postgresql_source())
        else:
            yield ends.enter_context(mysql_source(request.param, tmp_path / "server", "wide"))


def test_columns_when_the_filter_leaves_them_out_no_more_then_the_lake_has_their_earlier_values(
    origin: LiveSource, running: Stack, request: pytest.FixtureRequest
) -> None:
    source, namespace = f"wide-{request.node.callspec.id}", origin.namespace
    origin.run(
        f"CREATE TABLE {NOTES} (id INT PRIMARY KEY, note VARCHAR(20), code INT)",
        *(f"INSERT INTO {NOTES} VALUES ({number}, 'note {number}', {number})" for number in range(50)),
    )
    rules = {f"{namespace}.{NOTES}": {"ignored_columns": ["note"]}}
    with origin.agent(running, source, source, filter=rules):
        running.start_sync(source, namespace, NOTES, "dump")
        wait_for("all but the notes", lambda: origin.compare(running, source, NOTES, ["note"]).equal)
        wait_for("the agent's word", lambda: running.table(source, namespace, NOTES)["ignored_columns"] == ["note"])
    origin.run(f"UPDATE {NOTES} SET code = code + 1000 WHERE id < 10")
    with origin.agent(running, source, source):
        wait_for("the notes of all rows", lambda: origin.compare(running, source, NOTES).equal)
        wait_for("nothing to be stale any more", lambda: running.table(source, namespace, NOTES)["unlogged"] is None)
        origin.run(f"INSERT INTO {NOTES} VALUES (100, 'later', 1)")
        wait_for("later rows", lambda: origin.compare(running, source, NOTES).equal)
    dumps = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
    assert sum(dump["cause"] == "reread" for dump in dumps) >= 1


def test_columns_when_the_hosts_policy_keeps_them_back_no_more_then_the_lake_has_their_earlier_values(
    origin: LiveSource, running: Stack, request: pytest.FixtureRequest
) -> None:
    """First while the agent runs, then while it and the gateway are away, with a column that came meanwhile."""
    source, namespace = f"policy-{request.node.callspec.id}", origin.namespace
    table = f"policed_{request.node.callspec.id.replace('-', '_')}"
    policy = running.folder / f"{source}-policy.yaml"

    def hides(*columns: str) -> None:
        named = {"databases": {namespace: {table: {"ignored_columns": list(columns)}}}} if columns else {}
        policy.write_text(json.dumps({"default": "open", **named}))

    def is_whole(*ignored: str) -> bool:
        told = running.table(source, namespace, table)
        return told["unlogged"] is None and bool(origin.compare(running, source, table, ignored).equal)

    hides("canary_note", "canary_code")
    origin.run(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, canary_note VARCHAR(20), canary_code INT, more INT)",
        *(f"INSERT INTO {table} VALUES ({number}, 'note {number}', {number}, 1)" for number in range(50)),
    )
    agent = origin.agent(running, source, source)
    agent.arguments += ["--policy", str(policy)]
    with agent:
        running.start_sync(source, namespace, table, "dump")
        wait_for("all but what stays", lambda: is_whole("canary_note", "canary_code"))
        wait_for("streaming", lambda: running.table(source, namespace, table)["state"] == "streaming")
        assert "canary" not in json.dumps(running.table(source, namespace, table))
        hides("canary_code")
        assert agent.running is not None
        os.kill(agent.running.pid, signal.SIGHUP)
        wait_for("the notes of all rows", lambda: is_whole("canary_code"))
        origin.run(f"INSERT INTO {table} VALUES (100, 'later', 1, 1)", f"UPDATE {table} SET more = 2 WHERE id < 5")
        wait_for("later rows", lambda: is_whole("canary_code"))
        agent.kill()
    running.gateway.kill()
    hides()
    origin.run(
        f"ALTER TABLE {table} ADD COLUMN canary_late INT",
        f"UPDATE {table} SET canary_late = id, canary_code = canary_code + 1 WHERE id < 10",
    )
    running.gateway.start()
    with agent:
        wait_for("the codes of all rows", is_whole)
    dumps = running.get(f"/api/v1/tenants/{running.tenant}/sources/{source}/dumps")["dumps"]
    assert sum(dump["cause"] == "reread" for dump in dumps) == 2
