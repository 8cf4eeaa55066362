"""kill -9 of agent, gateway and sink while ranges are read again: the table ends equal, and its ledger says so once."""

from pathlib import Path

import pytest

from tests.e2e.lake import wait_until_equal
from tests.e2e.test_dump import wait_until_dumped
from tests.e2e.test_repairs import (
    DATABASE,
    ROWS,
    TABLE,
    change_unlogged,
    chunks,
    create,
    ended,
    is_proven,
    of_table,
    proof,
    writing,
)
from tests.servers import server
from tests.stack import stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill]


def test_table_when_each_process_is_killed_during_its_repair_then_it_is_equal_and_proven(tmp_path: Path) -> None:
    with server("mariadb", tmp_path / "server") as origin, stack(tmp_path / "stack") as running:
        origin.create_replication_user()
        create(origin)
        with running.agent("repaired", {"shop": origin}, dump={"workers": 2, "max_chunk_rows": 20_000}) as agent:
            running.start_sync("shop", DATABASE, TABLE, "dump")
            wait_until_dumped(running, "shop", 1)
            change_unlogged(origin)
            named = [{"database": DATABASE, "table": TABLE}]
            running.post(f"/api/v1/tenants/{running.tenant}/sources/shop/verifications", {"tables": named})
            wait_for("rows to be named", lambda: proof(running, "shop")["state"] == "differs", 600)
            with writing(origin):
                # so slowly that each process is killed while it runs
                order = {"limits": {"rows_per_second": 500}}
                repair = running.post(of_table(running, "shop", "repair"), order)["repair"]

                def read() -> int:
                    return sum(chunk.rows for chunk in chunks(running) if chunk.dump == repair)

                for process in (agent, running.gateway, running.sink):
                    before = read()
                    wait_for("more of it to land", lambda than=before: read() > than, 600)
                    assert not ended(running, "shop", repair), "the kill would come too late"
                    process.kill()
                    process.start()
                running.post(f"/api/v1/tenants/{running.tenant}/sources/shop/dumps/{repair}/limits", {})
                wait_for("the repair to be done", lambda: ended(running, "shop", repair), 600)
                rows = read()
            wait_for("the table to be proven", lambda: is_proven(running, "shop"), 600)
        wait_until_equal(running.lake, running.tenant, "shop", origin, DATABASE, [TABLE])
        assert 0 < rows < ROWS / 2, "others' rows were not read"
        entries = running.get(of_table(running, "shop", "ledger"))["entries"]
        assert [each["kind"] for each in reversed(entries) if each["dump"] == repair] == ["REPAIR_STARTED", "REPAIRED"]
        assert entries[0]["kind"] == "VERIFIED"
