"""Rows from an agent's batches to landed Parquet and the cut log."""

import asyncio
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from menura.change_batch import METADATA_WHOLE_ROWS
from menura.landing import decode_entry, entry_path
from menura.v1.changes_pb2 import Position, TableStopped
from menura.v1.config_pb2 import TableName
from menura.v1.error_pb2 import Error

from gateway.config import GatewayConfig
from gateway.landing import committer, parquet
from gateway.metrics import GatewayMetrics
from gateway.registry import SourceKey
from tests.gateway.harness import data_files, landed_gsns, read_log, read_rows, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    WHOLE_ROWS,
    change_batch,
    commit_cut,
    cut_end,
    eventually,
    partial_batch,
    rows_batch,
    scripted_agent,
    table_event,
    with_bits,
)


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
        "_absent": None,
    }  # fmt: skip
    assert rows[29]["_change_type"] == "delete"
    assert rows[29]["_position"] == "uuid:2"
    schema = pq.read_schema(tmp_path / cut.files[0].path)
    assert schema.field("id").metadata == {b"menura.source_type": b"bigint", b"menura.key": b"1"}
    assert registry.entries == entries


def test_rows_at_or_below_the_committed_number_when_they_are_resent_are_dropped(tmp_path: Path) -> None:
    registry, metrics = MemoryRegistry(), GatewayMetrics()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, metrics) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))
            await stream.send_batch(change_batch(run, 2, "orders", rows_batch(range(1, 9))))
            await commit_cut(stream, run, 2, range(5, 21))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 21))
    assert metrics.menura_landing_resent_rows_total == 8 + 6
    assert metrics.menura_landing_committed_rows_total == 20


def test_partial_rows_when_they_come_between_whole_ones_land_with_what_is_absent(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch([1])))
            await stream.send_batch(change_batch(run, 1, "orders", partial_batch([2, 3, 4], [None, b"\2", b"\1"])))
            await stream.send_batch(change_batch(run, 1, "orders", partial_batch([5], [None])))
            await commit_cut(stream, run, 1, [6])

    asyncio.run(scenario())
    rows = read_rows(tmp_path, read_log(tmp_path))
    assert [row["_absent"] for row in rows] == [None, None, b"\2", b"\1", None, None]
    assert [(row["id"], row["note"]) for row in rows[1:4]] == [(200, "note 2"), (300, None), (None, "note 4")]
    (file,) = read_log(tmp_path)[0].cuts[0].files
    assert pq.read_metadata(tmp_path / file.path).metadata[METADATA_WHOLE_ROWS.encode()] == WHOLE_ROWS.encode()


@pytest.mark.parametrize("is_split", [False, True])
def test_truth_values_when_they_come_in_bits_land_as_they_were_sent(tmp_path: Path, is_split: bool) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 6))
            rows = with_bits(rows_batch(range(1, 100)))
            await stream.send_batch(change_batch(run, 2, "orders", rows, is_split=is_split))
            await stream.send(cut_end=cut_end(run, 2, 99))
            await stream.expect("cut_committed")

    asyncio.run(scenario())
    (file,) = read_log(tmp_path)[1].cuts[0].files
    landed = pq.read_table(tmp_path / file.path)
    assert landed["paid"].to_pylist() == [(True, False, None)[number % 3] for number in range(5, 99)]
    assert landed.schema.field("paid").type == pa.bool_()
    assert landed.schema.field("paid").metadata == {b"menura.source_type": b"boolean"}


def test_events_of_a_cut_when_it_ends_land_in_its_entry_and_resent_ones_do_not(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders", "items")
    columns = [
        {"name": "id", "source_type": "bigint", "arrow_format": "l", "key": 1},
        {"name": "n", "arrow_format": "d:10,2", "renamed_from": "m"},
        {"name": "a", "arrow_format": "u", "text": "x"},
        {"name": "d", "arrow_format": "tdD", "unrepresentable": "0000-00-00"},
        {"name": "b", "arrow_format": "tsu:UTC", "is_null": True},
        {"name": "c", "arrow_format": "l", "is_unknown": True},
        {"name": "e", "arrow_format": "b", "text": "false"},
    ]
    events = [
        table_event(3, "ALTERED", columns=columns, statement="ALTER TABLE orders ...", position="uuid:3"),
        table_event(5, "TRUNCATED", table="items", removes_rows=True),
        table_event(6, "RENAMED", removes_rows=True, new_name={"database": "shop", "table": "old"}),
    ]

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch([2, 4])))
            await stream.send(cut_end=cut_end(run, 1, 6, events=events))
            await stream.expect("cut_committed")
            await stream.send(cut_end=cut_end(run, 2, 7, events=[*events, table_event(7, "RENAMED", table="items")]))
            await stream.expect("cut_committed")

    asyncio.run(scenario())
    first, second = (entry.cuts[0] for entry in read_log(tmp_path))
    assert [(event.table, event.kind, event.gsn, event.removes_rows) for event in first.events] == [
        ("orders", "ALTERED", 3, False),
        ("items", "TRUNCATED", 5, True),
        ("orders", "RENAMED", 6, True),
    ]
    assert first.events[0].statement == "ALTER TABLE orders ..."
    assert [(column.name, column.earlier_rows, column.earlier_text) for column in first.events[0].columns] == [
        ("id", "", ""),
        ("n", "", ""),
        ("a", "literal", "x"),
        ("d", "unrepresentable", "0000-00-00"),
        ("b", "null", ""),
        ("c", "unknown", ""),
        ("e", "literal", "false"),
    ]
    assert first.events[2].new_name == ("shop", "old")
    assert [(event.table, event.gsn) for event in second.events] == [("items", 7)]
    assert registry.entries == read_log(tmp_path)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[committer.CompleteCut]:
    """The cuts that have come to the committer."""
    submit, came = committer.Committer.submit, list[committer.CompleteCut]()

    def note(to: committer.Committer, cut: committer.CompleteCut) -> None:
        came.append(cut)
        submit(to, cut)

    monkeypatch.setattr(committer.Committer, "submit", note)
    return came


def test_cuts_with_large_events_when_they_wait_together_go_into_several_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: list[committer.CompleteCut]
) -> None:
    monkeypatch.setattr(committer, "MAX_ENTRY_EVENTS_BYTES", 5_000)
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            registry.away = True  # the first entry waits for it, and the others behind that
            for cut in range(1, 9):
                event = table_event(cut, "ALTERED", statement="x" * 2_000, transaction_id=0)
                await stream.send(cut_end=cut_end(run, cut, cut, events=[event]))
            await eventually("all cuts", lambda: len(submitted) == 8)
            registry.away = False
            for _ in range(8):
                await stream.expect("cut_committed")

    asyncio.run(scenario())
    entries = read_log(tmp_path)
    assert [cut.cut for entry in entries for cut in entry.cuts] == list(range(1, 9))
    assert max(len(entry.cuts) for entry in entries) == 2


def test_a_committed_cut_when_it_is_ended_again_is_acknowledged_again(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))
            await commit_cut(stream, run, 2, range(11, 21))
            await stream.send(cut_end=cut_end(run, 1, 10))
            again = await stream.expect("cut_committed")
            assert (again.cut, again.log_entry) == (1, 1)

    asyncio.run(scenario())
    assert len(read_log(tmp_path)) == 2


def test_a_cut_out_of_turn_when_it_comes_ends_the_stream(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await stream.send(cut_end=cut_end(run, 3, 10))
            assert (await stream.expect_error()).code == "OUT_OF_SEQUENCE"
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(run, 2, "orders", rows_batch(range(1, 9))))
            assert (await stream.expect_error()).code == "OUT_OF_SEQUENCE"
            stream, run = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(run, 1, "orders", rows_batch(range(1, 9))))
            await stream.send(cut_end=cut_end(run, 1, 7))
            assert (await stream.expect_error()).code == "OUT_OF_SEQUENCE"

    asyncio.run(scenario())
    assert read_log(tmp_path) == []
    assert data_files(tmp_path) == []


def test_a_newer_stream_of_a_source_when_it_opens_drops_what_the_older_had_not_committed(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            older, first = await agent.open_binlog("shop")
            await commit_cut(older, first, 1, range(1, 11))
            await older.send_batch(change_batch(first, 2, "orders", rows_batch(range(11, 70_000))))
            newer, second = await agent.open_binlog("shop")
            assert (await older.expect_error()).code == "STREAM_SUPERSEDED"
            assert second.lease_epoch > first.lease_epoch
            assert (second.next_cut, second.next_gsn, second.position.token) == (2, 11, "10")
            await commit_cut(newer, second, 2, range(11, 16))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 16))
    assert len(data_files(tmp_path)) == 2


def test_the_desired_tables_when_they_change_begin_a_new_run(tmp_path: Path) -> None:
    registry, metrics = MemoryRegistry(), GatewayMetrics()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, metrics) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, first = await agent.open_binlog("shop")
            await stream.send_batch(change_batch(first, 1, "orders", rows_batch(range(1, 11))))
            await stream.send(cut_end=cut_end(first, 1, 10))
            await stream.send_batch(change_batch(first, 2, "orders", rows_batch(range(11, 21))))
            await eventually("both batches", lambda: metrics.menura_landing_batches_total == 2)
            registry.want("acme", "shop", "orders", "items")
            second = await stream.expect("replicate")
            assert (await stream.expect("cut_committed")).cut == 1
            assert (second.generation, second.next_cut, second.next_gsn) == (first.generation + 1, 2, 11)
            window = GatewayConfig("unused").credit_window_bytes
            assert stream.credit == window  # what was dropped gave its credit back
            stale = change_batch(first, 2, "orders", rows_batch(range(11, 21)))
            await stream.send_batch(stale)
            await commit_cut(stream, second, 2, range(11, 31), table="items")
            while stream.credit < window:
                await stream._receive()

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == list(range(1, 31))
    assert metrics.menura_landing_fenced_batches_total == 1


def test_the_desired_tables_when_their_database_is_put_back_to_an_older_copy_begin_a_new_run(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")
    older = registry.wanted[SourceKey("acme", "shop")]
    registry.want("acme", "shop", "orders", "items")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, first = await agent.open_binlog("shop")
            registry.wanted[SourceKey("acme", "shop")] = older
            second = await stream.expect("replicate")
            assert (first.generation, second.generation) == (2, 1)
            assert [sync.table.table for sync in second.tables] == ["orders"]

    asyncio.run(scenario())


def test_a_table_that_the_agent_stopped_when_the_cut_commits_leaves_the_next_run(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders", "items")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            stop = TableStopped(
                table=TableName(database="shop", table="items"),
                position=Position(kind="mysql", text="binlog.000001:5"),
                error=Error(code="EVENT_UNKNOWN", doing="reading", found="event 99", terminal=True),
            )
            await stream.send(cut_end=cut_end(run, 1, 0, stopped=[stop]))
            assert [sync.table.table for sync in (await stream.expect("replicate")).tables] == ["orders"]

    asyncio.run(scenario())
    stopped = read_log(tmp_path)[0].cuts[0].stopped
    assert [(stop.table, stop.code, stop.message) for stop in stopped] == [
        ("items", "EVENT_UNKNOWN", "reading: event 99.")
    ]


def test_cuts_of_two_sources_when_they_end_together_share_an_entry(
    tmp_path: Path, submitted: list[committer.CompleteCut]
) -> None:
    registry = MemoryRegistry()
    for source in ("shop", "crm"):
        registry.want("acme", source, "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop", "crm") as agent:
            shop, shop_run = await agent.open_binlog("shop")
            crm, crm_run = await agent.open_binlog("crm")
            registry.away = True
            await shop.send(cut_end=cut_end(shop_run, 1, 2))
            await eventually("its entry, which waits for the registry", lambda: read_log(tmp_path))
            for cut in (2, 3):
                await shop.send(cut_end=cut_end(shop_run, cut, 2))
            await crm.send(cut_end=cut_end(crm_run, 1, 0))
            await eventually("all cuts", lambda: len(submitted) == 4)
            registry.away = False
            assert (await crm.expect("cut_committed")).log_entry == 2
            assert [(await shop.expect("cut_committed")).log_entry for _ in range(3)] == [1, 2, 2]

    asyncio.run(scenario())
    assert [sorted((cut.source, cut.cut) for cut in entry.cuts) for entry in read_log(tmp_path)] == [
        [("shop", 1)],
        [("crm", 1), ("shop", 2), ("shop", 3)],
    ]


def test_a_transaction_beyond_the_credit_window_when_it_ends_appears_at_once(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders", "items")
    window = 256 << 10

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, credit_window_bytes=window) as address,
            scripted_agent(address, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            sent_bytes = 0
            for first in range(1, 100_001, 10_000):
                table = "orders" if first % 20_000 == 1 else "items"
                batch = change_batch(run, 1, table, rows_batch(range(first, first + 10_000)))
                sent_bytes += len(batch.rows)
                await stream.send_batch(batch)
            assert sent_bytes > 2 * window
            assert read_log(tmp_path) == []
            await stream.send(cut_end=cut_end(run, 1, 100_000))
            await stream.expect("cut_committed")
            while stream.credit < window:
                await stream._receive()

    asyncio.run(scenario())
    files = read_log(tmp_path)[0].cuts[0].files
    assert sorted((file.table, file.rows) for file in files) == [("items", 50_000), ("orders", 50_000)]
    assert landed_gsns(tmp_path) == list(range(1, 100_001))


def test_more_tables_than_open_files_when_they_outgrow_memory_go_on_in_further_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_OPEN_FILES", 2)
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 1)
    registry = MemoryRegistry()
    tables = [f"table {number}/..%" for number in range(4)]
    registry.want("acme", "shop", *tables)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            for number in range(12):
                await stream.send_batch(change_batch(run, 1, tables[number % 4], rows_batch([number + 1])))
            await stream.send(cut_end=cut_end(run, 1, 12))
            await stream.expect("cut_committed")

    asyncio.run(scenario())
    files = read_log(tmp_path)[0].cuts[0].files
    assert len({file.path for file in files}) == len(files) == 12
    assert landed_gsns(tmp_path) == list(range(1, 13))


def test_two_tenants_with_a_source_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    registry = MemoryRegistry()
    for tenant in ("acme", "umbrella"):
        registry.want(tenant, "shop", "orders")

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop") as acme,
            scripted_agent(address, "shop", tenant="umbrella") as umbrella,
        ):
            for agent, rows in ((acme, 3), (umbrella, 5)):
                stream, run = await agent.open_binlog("shop")
                await commit_cut(stream, run, 1, range(1, rows + 1))

    asyncio.run(scenario())
    cuts = {cut.tenant: cut for entry in read_log(tmp_path) for cut in entry.cuts}
    assert {tenant: cut.files[0].rows for tenant, cut in cuts.items()} == {"acme": 3, "umbrella": 5}
    assert all(cut.files[0].path.startswith(f"data/{tenant}/shop/") for tenant, cut in cuts.items())


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_landing_url_when_it_names_a_file_system_holds_log_and_rows(tmp_path: Path, scheme: str) -> None:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")
    url = f"{scheme}://{tmp_path}/landing"

    async def scenario() -> None:
        for cut in (1, 2):
            async with running_gateway(url, registry) as address, scripted_agent(address, "shop") as agent:
                stream, run = await agent.open_binlog("shop")
                await commit_cut(stream, run, cut, range(cut * 10 - 9, cut * 10 + 1))

    asyncio.run(scenario())
    file_system, root = fsspec.core.url_to_fs(url)
    gsns = []
    for number in (1, 3):  # between them is the fence of the second gateway
        entry = decode_entry(file_system.cat_file(f"{root}/{entry_path(number)}"))
        file = entry.cuts[0].files[0]
        with file_system.open(f"{root}/{file.path}") as data:
            gsns += pq.read_table(data).column("_gsn").to_pylist()
        assert file.bytes == file_system.size(f"{root}/{file.path}")
    assert gsns == list(range(1, 21))
