"""Rows from an agent's batches to landed Parquet and the cut log."""

import asyncio
from pathlib import Path

import pyarrow.parquet as pq
from menura.landing import LogEntry, decode_entry, entry_path

from tests.gateway.conftest import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import change_batch, cut_end, rows_batch, scripted_agent


def read_log(landing: Path) -> list[LogEntry]:
    entries = []
    while (path := landing / entry_path(len(entries) + 1)).exists():
        entries.append(decode_entry(path.read_bytes()))
    return entries


def read_rows(landing: Path, entries: list[LogEntry]) -> list[dict]:
    return [
        row
        for entry in entries
        for cut in entry.cuts
        for file in cut.files
        for row in pq.read_table(landing / file.path).to_pylist()
    ]


def test_batches_of_a_cut_when_it_ends_land_row_for_row(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders", "items", oldest=True)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            assert (run.next_cut, run.next_gsn, run.lease_epoch > 0) == (1, 1, True)
            assert [sync.oldest for sync in run.tables] == [True, True]
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(1, 31, 2))))
            await stream.send_batch(change_batch(run, 1, "items", rows_batch(range(2, 31, 2), change_type=3)))
            await stream.send(cut_end=cut_end(run, 1, 30))
            committed = await stream.expect("cut_committed")
            assert (committed.cut, committed.log_entry) == (1, 1)

    asyncio.run(scenario())
    entries = read_log(tmp_path)
    cut = entries[0].cuts[0]
    assert (cut.tenant, cut.source, cut.cut, cut.last_gsn, cut.flavor) == ("acme", "shop", 1, 30, "mysql")
    assert [(file.table, file.rows, file.first_gsn, file.last_gsn) for file in cut.files] == [
        ("orders", 15, 1, 29),
        ("items", 15, 2, 30),
    ]
    rows = sorted(read_rows(tmp_path, entries), key=lambda row: row["_gsn"])
    assert [row["_gsn"] for row in rows] == list(range(1, 31))
    assert rows[0] == {
        "_change_type": "insert", "_gsn": 1, "_transaction_id": 1, "_commit_timestamp_us": 1_700_000_000_000_001,
        "_position": "uuid:1", "id": 100, "note": "note 1", "_unrepresentable": None,
    }  # fmt: skip
    assert rows[29]["_change_type"] == "delete"
    assert rows[29]["_position"] == "uuid:2"
    schema = pq.read_schema(tmp_path / cut.files[0].path)
    assert schema.field("id").metadata == {b"menura.source_type": b"bigint", b"menura.key": b"1"}
    assert registry.entries == entries
