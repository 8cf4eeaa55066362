"""Stop and start over a real agent and gateway: the commands' promise about rows, checked in the cut log."""

from pathlib import Path

from menura.landing import decode_entry, entry_path

from tests.servers import server
from tests.stack import Stack, stack, wait_for

TABLE = "/v1/tenants/acme/sources/shop/tables/shop/orders"


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


def test_resume_when_rows_were_written_while_stopped_then_each_lands_once(tmp_path: Path):
    with server("mariadb", tmp_path / "mariadb") as source, stack(tmp_path / "stack", sink=False) as running:
        source.create_replication_user()
        source.run("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(20))")
        agent = running.agent("agent-1", {"shop": source}).start()
        try:
            wait_for("the cartography", lambda: running.client.get(TABLE).is_success)
            running.post(f"{TABLE}/start", {"start": "oldest"})
            source.run("INSERT INTO shop.orders VALUES (0, 'first')")
            written = 1
            # a sync that is stopped before its first cut has no position yet, and begins again at the log's beginning
            wait_for("the sync's first cut", lambda: running.get(TABLE)["rows"] == written)
            for turn in range(4):
                wait_for_state(running, "streaming")
                for _ in range(20):
                    source.run(f"INSERT INTO shop.orders VALUES ({written}, 'turn {turn}')")
                    written += 1
                stopped = running.post(f"{TABLE}/stop")  # at once: the last rows are still on their way
                assert (stopped["state"], stopped["changed"]) == ("stopped", True)
                source.run(f"INSERT INTO shop.orders VALUES ({written}, 'while stopped')")
                written += 1
                resumed = running.post(f"{TABLE}/start")
                assert (resumed["changed"], resumed["notice"]) == (True, "")
            wait_for("all rows", lambda: landed_rows(running) >= written)
            wait_for("the API to follow", lambda: running.get(TABLE)["rows"] == landed_rows(running))
            wait_for_state(running, "streaming")
            assert landed_rows(running) == written, agent.tail()
            assert running.get(TABLE)["earlier_rows_missing"] == ""
        finally:
            agent.stop()
