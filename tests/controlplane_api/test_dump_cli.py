"""Dumps from the command line."""

import json
from collections.abc import Iterator

import pytest

from controlplane_api.database import Database
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.registry import Problem
from tests.controlplane_api.commands import menura
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import KEY, T0
from tests.controlplane_api.test_dump_api import read_some, stream_orders
from tests.stack import http_client


@pytest.fixture
def here(database: Database, registry: SqlRegistry) -> Iterator[dict[str, str]]:
    """What a command's environment says of the API; shop.orders streams."""
    with serving(database) as url, http_client(url) as client:
        stream_orders(client, registry)
        yield {"MENURA_API": url, "MENURA_TENANT": "acme"}


def test_clients_when_a_dump_runs_then_show_steer_and_end_it(here: dict[str, str], registry: SqlRegistry):
    begun = menura("dump", "start", "shop", "shop.orders", "--workers", "3", **here)
    assert begun.returncode == 0, begun.stderr
    uuid = registry.dumps(KEY).dumps[0].dump
    assert f"shop.orders: dump begun. Dump {uuid}." in begun.stdout
    read_some(registry, uuid)
    listed = menura("dump", "list", "--running", **here).stdout
    for words in (f"{uuid[:8]}: mind the gap", "shop.orders", "reading", "25.0 %"):
        assert words in listed, listed
    assert max(len(line.rstrip()) for line in listed.splitlines()) <= 80
    shown = menura("dump", "show", uuid[:8], **here).stdout
    for words in (
        "key ranges of id",
        "300 rows",
        "about 25.0 % of about 1,200 rows",
        "3 workers",
        "1 of 4 done",
        "2.0 h, needed for",
    ):
        assert words in shown, shown
    assert json.loads(menura("dump", "show", uuid, "--json", **here).stdout)["of_ranges"][0]["done"] is True
    assert "dump reading 25.0 %" in " ".join(menura("tables", "shop", **here).stdout.split())
    for words in (("pause",), ("priority", "-2"), ("limit", "--rows-per-second", "9"), ("resume",), ("cancel",)):
        done = menura("dump", words[0], uuid, *words[1:], **here)
        assert done.returncode == 0, done.stderr
    refused = menura("dump", "resume", uuid, **here)
    assert (refused.returncode, refused.stdout) == (25, "")
    assert "DUMP_OVER" in refused.stderr and "menura dump start" in refused.stderr
    assert "DUMP_UNKNOWN" in menura("dump", "show", "ffff-none", **here).stderr
    events = menura("events", "shop", "shop.orders", **here).stdout
    assert "dump started" in events and uuid in events.replace("\n", "")


def test_clients_when_a_sync_starts_from_a_dump_then_it_is_listed_with_why_it_failed(
    here: dict[str, str], registry: SqlRegistry
):
    begun = menura("sync", "start", "shop", "shop.items", "--from", "dump", "--force", **here)
    assert begun.returncode == 0, begun.stderr
    (desired,) = registry.dumps(KEY).dumps
    assert (desired.table, "menura dump list" in begun.stdout) == ("items", True)
    broken = Problem("DUMP_ACCESS_DENIED", "The user may not\x1b[2J read it.", terminal=True, at_us=T0)
    registry.record_dump_failed(KEY, desired.dump, broken, T0)
    listed = menura("dump", "list", "shop", **here)
    assert "\x1b" not in listed.stdout
    assert "failed" in listed.stdout and "The user may not" in listed.stdout
    assert "were refused: SYNC_NOT_RUNNING" in menura("dump", "start", "shop", "shop.notes", **here).stderr
    assert json.loads(menura("dump", "list", "--json", "--running", **here).stdout)["dumps"] == []
