"""Stop and start over an agent and a gateway: the commands' promise about rows, checked in the cut log."""

from pathlib import Path

from menura.landing import decode_entry, entry_path

from tests.agent.dumping import agent_inside
from tests.agent.memory import ORDERS, config, create, order
from tests.agent.memory import database as source
from tests.memory_source.database import Change, MemoryDatabase
from tests.stack import Stack, stack, wait_for

__all__ = ["source"]

TABLE = "/api/v1/tenants/acme/sources/shop/tables/shop/orders"


def landed_rows(running: Stack) -> int:
    rows, number = 0, 1
    while (path := running.landing / entry_path(number)).exists():
        rows += sum(file.rows for cut in decode_entry(path.read_bytes()).cuts for file in cut.files)
        number += 1
    return rows


def wait_for_state(running: Stack, state: str) -> None:
    def state_now() -> str:
        return running.get(TABLE)["state"]

    wait_for(f"state {state}", lambda: state_now() == state)


def test_resume_when_rows_were_written_while_stopped_then_each_lands_once(
    source: MemoryDatabase, tmp_path: Path
) -> None:
    def insert(number: int, name: str) -> None:
        source.commit(Change(ORDERS, None, order(number, name)))

    create(source)
    with (
        stack(tmp_path / "stack", sink=False) as running,
        agent_inside(config(tmp_path, f"127.0.0.1:{running.gateway_port}")),
    ):
        wait_for("the cartography", lambda: running.client.get(TABLE).is_success)
        running.post(f"{TABLE}/start", {"start": "oldest"})
        insert(0, "first")
        written = 1
        # a sync that is stopped before its first cut has no position yet, and begins again at the log's beginning
        wait_for("the sync's first cut", lambda: running.get(TABLE)["rows"] == written)
        for turn in range(4):
            wait_for_state(running, "streaming")
            for _ in range(20):
                insert(written, f"turn {turn}")
                written += 1
            stopped = running.post(f"{TABLE}/stop")  # at once: the last rows are still on their way
            assert (stopped["state"], stopped["changed"]) == ("stopped", True)
            insert(written, "while stopped")
            written += 1
            resumed = running.post(f"{TABLE}/start")
            assert (resumed["changed"], resumed["notice"]) == (True, "")
        wait_for("all rows", lambda: landed_rows(running) >= written)
        wait_for("the API to follow", lambda: running.get(TABLE)["rows"] == landed_rows(running))
        wait_for_state(running, "streaming")
        assert landed_rows(running) == written
        assert running.get(TABLE)["earlier_rows_missing"] == ""
