"""Chunks of dumps from an agent's batches to what a cut commits: nothing counts before, nothing stays behind."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from menura.v1.snapshot_pb2 import ChunkDropped, DumpFailed, DumpStatus

from gateway.landing import chunk_files
from gateway.metrics import GatewayMetrics
from gateway.registry import SourceKey
from tests.gateway.dump_script import dump_begun, open_dump
from tests.gateway.harness import data_files, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.random_dump import RandomDump
from tests.gateway.scripted_agent import (
    chunk_ref,
    cut_end,
    dump_plan,
    eventually,
    scripted_agent,
    snapshot_batch,
    snapshot_rows,
    table_event,
)
from tests.gateway.test_failures import file_size_limit
from tests.remedies import commands

SHOP = SourceKey("acme", "shop")


@pytest.fixture
def registry() -> MemoryRegistry:
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")
    return registry


@pytest.fixture
def dump(registry: MemoryRegistry) -> str:
    """Of that table, asked for."""
    return registry.want_dump("acme", "shop", "orders")


def named_files(landing: Path) -> list[Path]:
    return sorted(landing / file.path for entry in read_log(landing) for cut in entry.cuts for file in cut.files)


def landed_ids(landing: Path) -> list[int]:
    """Of all committed chunks, sorted."""
    return sorted(i for path in named_files(landing) for i in pq.read_table(path).column("id").to_pylist())


def assert_landed(landing: Path, ids: Iterable[int]) -> None:
    """These rows once, and no file that no cut names."""
    assert landed_ids(landing) == list(ids)
    assert data_files(landing) == named_files(landing)


def test_a_dump_when_its_chunks_are_named_by_cuts_lands_whole_and_ends(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    metrics = GatewayMetrics()

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, '["500"]', metrics=metrics) as (script, started):
            assert [(part.number, part.lower, part.upper) for part in script.order.remaining] == [
                (0, "", '["500"]'),
                (1, '["500"]', ""),
            ]
            await script.send_chunk(1, "", '["500"]', range(1, 300), range(300, 501), last_of_range=True)
            await script.send_chunk(2, '["500"]', '["700"]', range(501, 701), range=1)
            assert not named_files(tmp_path)
            await script.end_cut((1, started), (2, started))
            committed = await script.client.expect("chunks_committed")
            assert [(chunk.dump, chunk.chunk) for chunk in committed.chunks] == [(dump, 1), (dump, 2)]
            await script.send_chunk(3, '["700"]', "", range=1)
            await script.end_cut((3, script.gsn))
            await script.finish(started)
            await script.until_over()

    asyncio.run(scenario())
    cuts = [cut for entry in read_log(tmp_path) for cut in entry.cuts]
    assert [event.kind for cut in cuts for event in cut.events] == ["DUMP_STARTED", "DUMPED"]
    chunks = [chunk for cut in cuts for chunk in cut.chunks]
    assert [
        (chunk.chunk, chunk.gsn, chunk.range, chunk.upper, chunk.last_of_range, chunk.rows) for chunk in chunks
    ] == [
        (1, 1, 0, '["500"]', True, 500),
        (2, 1, 1, '["700"]', False, 200),
        (3, 2, 1, "", True, 0),
    ]
    files = [file for cut in cuts for file in cut.files]
    assert [(file.chunk, file.dump, file.rows, file.first_gsn, file.last_gsn) for file in files] == [
        (1, dump, 500, 1, 1),
        (2, dump, 200, 1, 1),
    ]
    assert pq.read_schema(tmp_path / files[0].path).names == ["id", "note", "_unrepresentable"]
    assert_landed(tmp_path, range(1, 701))
    assert registry.ledger.done == [dump]
    assert (metrics.menura_dump_chunks_total, metrics.menura_dump_rows_total) == (3, 700)


def test_a_table_in_one_chunk_when_it_is_large_lands_in_files_of_a_size_under_little_credit(
    tmp_path: Path, registry: MemoryRegistry, dump: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_files, "MAX_FILE_BYTES", 20_000)
    monkeypatch.setattr(chunk_files, "ROW_GROUP_BYTES", 10_000)

    async def scenario() -> None:
        async with (
            running_gateway(tmp_path, registry, dump_credit_window_bytes=20_000) as address,
            scripted_agent(address, "shop") as agent,
        ):
            script = await open_dump(agent, dump)
            await script.client.send(dump_plan=dump_plan(dump, key=[], ranges=[]))
            await script.send_chunk(1, "", "", *(range(n, n + 500) for n in range(0, 50_000, 500)))
            dumped = table_event(1, "DUMPED", dump=dump, removes_rows=True)
            await script.end_cut((1, 2), rows=2, events=[dumped])

    asyncio.run(scenario())
    (cut,) = (cut for entry in read_log(tmp_path) for cut in entry.cuts)
    assert [(event.kind, event.gsn) for event in cut.events] == [("DUMPED", 1)]
    assert [(chunk.gsn, chunk.rows) for chunk in cut.chunks] == [(2, 50_000)]
    assert len({file.path for file in cut.files}) == len(cut.files) > 3
    assert_landed(tmp_path, range(50_000))


def test_an_empty_table_when_it_is_dumped_ends_without_a_file(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "")
            await script.end_cut((1, started))
            await script.finish(started)

    asyncio.run(scenario())
    assert registry.ledger.done == [dump]
    assert data_files(tmp_path) == []


def test_chunks_of_several_ranges_when_their_batches_interleave_land_each_for_itself(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, "b", "c") as (script, started):
            for place in range(5):
                for number in (3, 1, 2):
                    ids = range(number * 1000 + place * 10, number * 1000 + place * 10 + 10)
                    await script.client.send_batch(snapshot_batch(dump, number, snapshot_rows(ids)))
            for number, lower, upper in ((3, "c", ""), (1, "", "b"), (2, "b", "c")):
                end = {"row_count": 50, "range": number - 1, "last_of_range": True}
                await script.send_chunk(number, lower, upper, **end)
            await script.end_cut((2, started), (3, started), (1, started))
            await script.finish(started)

    asyncio.run(scenario())
    files = [file for entry in read_log(tmp_path) for cut in entry.cuts for file in cut.files]
    for file in files:
        ids = pq.read_table(tmp_path / file.path).column("id").to_pylist()
        assert ids == list(range(file.chunk * 1000, file.chunk * 1000 + 50))
    assert sorted(file.chunk for file in files) == [1, 2, 3]


def test_a_chunk_that_is_not_pending_when_a_cut_names_it_is_ignored(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    metrics = GatewayMetrics()

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, metrics=metrics) as (script, started):
            await script.send_chunk(1, "", "m", range(10))
            await script.send_chunk(2, "m", "p", range(10))
            # one that never came, one of nobody's dump, and the second of a range before its first
            await script.end_cut((7, started), (2, started))
            await script.end_cut(chunks=[chunk_ref("no-such-dump", 1, started)])
            assert not named_files(tmp_path)
            await script.end_cut((1, started), (2, started), (1, started))
            await script.client.expect("chunks_committed")

    asyncio.run(scenario())
    assert metrics.menura_dump_unknown_chunks_total == 4
    assert [chunk.chunk for entry in read_log(tmp_path) for cut in entry.cuts for chunk in cut.chunks] == [1, 2]


def test_the_client_stream_when_it_closes_takes_its_pending_chunks_with_it_and_goes_on_at_the_ledger(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "m", range(10))
            await script.end_cut((1, started))
            await script.send_chunk(2, "m", "p", range(10, 20))
            await script.client.send_batch(snapshot_batch(dump, 3, snapshot_rows(range(100))))  # has no end
            await script.client.close()
            await eventually("what no cut named to go", lambda: data_files(tmp_path) == named_files(tmp_path))
            await script.reopen_client()
            order = script.order
            assert [(part.lower, part.upper) for part in order.remaining] == [("m", "")]
            assert order.next_chunk >= 3  # that one may have been lost on its way
            await script.end_cut((2, started))  # of the stream before
            await script.send_chunk(order.next_chunk, "m", "", range(10, 30))
            await script.end_cut((order.next_chunk, started))
            await script.finish(started)

    asyncio.run(scenario())
    assert_landed(tmp_path, range(30))


def test_the_binlog_stream_when_it_is_opened_anew_finds_the_pending_chunks(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "", range(10))
            await script.binlog.close()
            await script.reopen_binlog()
            await script.end_cut((1, started))
            await script.finish(started)

    asyncio.run(scenario())
    assert landed_ids(tmp_path) == list(range(10))


def test_a_new_client_stream_when_the_old_one_still_lives_replaces_it(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "", range(10))
            old = script.client
            await script.reopen_client()
            assert (await old.expect_error()).code == "STREAM_SUPERSEDED"
            await eventually("its files to go", lambda: not data_files(tmp_path))
            await script.end_cut((1, started))
            assert not named_files(tmp_path)

    asyncio.run(scenario())


def test_a_range_when_it_is_read_anew_replaces_what_was_pending_from_there_on(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    metrics = GatewayMetrics()

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, metrics=metrics) as (script, started):
            await script.send_chunk(1, "", "d", range(10))
            await script.send_chunk(2, "d", "g", range(10, 20))
            await script.send_chunk(3, "g", "k", range(20, 30))
            await script.send_chunk(4, "d", "h", range(10, 25))
            await script.send_chunk(5, "h", "", range(25, 40))
            await script.end_cut((1, started), (4, started), (5, started))
            await script.finish(started)

    asyncio.run(scenario())
    assert_landed(tmp_path, range(40))
    assert metrics.menura_dump_discarded_chunks_total == 2


def test_chunks_that_the_agent_gives_up_when_it_says_so_are_deleted(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, dump_credit_window_bytes=3000) as (script, started):
            await script.send_chunk(1, "", "d", range(10))
            await script.send_chunk(2, "d", "g", range(10, 20))
            await script.client.send(chunk_dropped=ChunkDropped(dump=dump, chunk=1))
            for chunk in range(3, 60):  # each would hold credit for ever
                await script.client.send_batch(snapshot_batch(dump, chunk, snapshot_rows(range(20))))
                await script.client.send(chunk_dropped=ChunkDropped(dump=dump, chunk=chunk))
            await script.send_chunk(60, "", "", range(30))
            await script.end_cut((1, started), (2, started), (60, started))
            await script.finish(started)

    asyncio.run(scenario())
    assert_landed(tmp_path, range(30))


def test_a_dump_when_it_is_cancelled_leaves_what_is_committed_and_nothing_else(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "d", range(10))
            await script.end_cut((1, started))
            await script.send_chunk(2, "d", "g", range(10, 20))
            await script.client.send_batch(snapshot_batch(dump, 3, snapshot_rows(range(100))))
            registry.cancel_dump("acme", "shop", dump)
            await script.until_over()
            await eventually("its files to go", lambda: data_files(tmp_path) == named_files(tmp_path))
            # what was on its way
            await script.client.send(snapshot_batch=snapshot_batch(dump, 3, snapshot_rows(range(100))))
            await script.send_chunk(3, "g", "", landed=False, row_count=200)
            await script.client.send(dump_status=DumpStatus(dump=dump, state=DumpStatus.READING))
            await script.client.send(dump_failed=DumpFailed(dump=dump))
            await script.client.send(chunk_dropped=ChunkDropped(dump=dump, chunk=3))
            await script.client.send(dump_plan=dump_plan(dump))
            await script.end_cut((2, started), (3, started))
            await script.finish(started)  # its event is left out
            registry.want_dump("acme", "shop", "orders")
            assert (await script.client.expect("desired_dumps")).dumps
            await script.client.wait_credit(least=32 << 20)
            assert script.client.credit == 32 << 20

    asyncio.run(scenario())
    assert landed_ids(tmp_path) == list(range(10))
    kinds = [event.kind for entry in read_log(tmp_path) for cut in entry.cuts for event in cut.events]
    assert kinds == ["DUMP_STARTED"]
    assert registry.ledger.done == []
    assert registry.ledger.failed == {}


def test_a_dump_that_fails_at_the_agent_when_it_says_so_is_over(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, _):
            await script.send_chunk(1, "", "d", range(10))
            error = {"code": "TABLE_DROPPED", "found": "it is gone", "terminal": True}
            await script.client.send(dump_failed={"dump": dump, "error": error})
            await script.until_over()

    asyncio.run(scenario())
    assert registry.ledger.failed[SHOP, dump].code == "TABLE_DROPPED"
    assert data_files(tmp_path) == []


def test_states_of_dumps_when_they_come_quickly_are_recorded_now_and_then(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    states = registry.dump_states

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            client, _ = await agent.open_client("shop")
            for rows in range(1, 200):
                status = DumpStatus(dump=dump, state=DumpStatus.WAITING, reason="lag", rows_per_second=rows)
                await client.send(dump_status=status)
            await eventually("the last one", lambda: dump in states and states[dump].rows_per_second == 199)

    asyncio.run(scenario())
    assert (states[dump].state, states[dump].reason) == ("WAITING", "lag")


def test_a_second_plan_of_a_dump_when_it_comes_changes_nothing(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump, "m") as (script, _):
            await script.client.send(dump_plan=dump_plan(dump, "a", "b", "c"))
            await script.send_chunk(1, "", "m", range(3), last_of_range=True)

    asyncio.run(scenario())
    assert [part.upper for part in registry.ledger.planned[SHOP, dump].ranges] == ["m", ""]


def test_a_plan_by_key_when_the_dump_was_planned_without_one_ends_the_dump(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            script = await open_dump(agent, dump)
            await script.client.send(dump_plan=dump_plan(dump, key=[], ranges=[]))
            await eventually("the plan", lambda: (SHOP, dump) in registry.ledger.planned)
            await script.reopen_client()
            await script.client.send(dump_plan=dump_plan(dump, "m"))
            await script.until_over()
            changed = registry.ledger.failed[SHOP, dump]
            assert changed.code == "DUMP_PLAN_CHANGED"
            (words,) = commands(changed.message)
            assert words == ["dump", "start", "shop", "shop.orders"]
            script = await open_dump(agent, registry.want_dump("acme", "shop", "orders"))
            await script.plan("m")
            started = await script.start()
            await script.send_chunk(1, "", "m", range(5), last_of_range=True)
            await script.send_chunk(2, "m", "", range(5, 10), range=1, last_of_range=True)
            await script.end_cut((1, started), (2, started))
            await script.finish(started)
            await script.until_over()

    asyncio.run(scenario())
    assert_landed(tmp_path, range(10))


def test_a_cut_with_chunks_when_the_log_refuses_it_ends_both_streams_and_its_ranges_are_read_again(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "d", range(10))
            await script.send_chunk(2, "d", "g", range(10, 20))
            (tmp_path / "log").rename(tmp_path / "log-away")
            (tmp_path / "log").write_text("a file where the folder should be")
            await script.end_cut((1, started), settle=False)
            assert (await script.binlog.expect_error()).code == "LANDING_FAILED"
            assert (await script.client.expect_error()).code == "CHUNKS_LOST"
            await eventually("dropped files to go", lambda: not data_files(tmp_path))
            (tmp_path / "log").unlink()
            (tmp_path / "log-away").rename(tmp_path / "log")
            await script.reopen_binlog()
            await script.reopen_client()
            chunk = script.order.next_chunk
            assert chunk > 2
            await script.send_chunk(chunk, "", "", range(20))
            await script.end_cut((chunk, started))
            await script.finish(started)

    asyncio.run(scenario())
    assert_landed(tmp_path, range(20))


def test_a_disk_that_is_full_when_a_chunk_is_written_ends_the_stream_for_a_while_and_says_so(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            with file_size_limit(40_000):
                for _ in range(4):
                    await script.client.send_batch(snapshot_batch(dump, 1, snapshot_rows(range(60_000))))
                await script.send_chunk(1, "", "", landed=False, row_count=240_000)
                error = await script.client.expect_error()
                assert (error.code, error.terminal) == ("LANDING_FAILED", False)
                assert "File too large" in error.found
                await eventually("the report", lambda: registry.problems.get(SHOP))
                await script.end_cut()  # the table's changes go on
                assert registry.problems[SHOP] is not None
            await eventually("its files to go", lambda: not data_files(tmp_path))
            await script.reopen_client()
            chunk = script.order.next_chunk
            await script.send_chunk(chunk, "", "", range(60_000))
            await eventually("the report's end", lambda: registry.problems[SHOP] is None)
            await script.end_cut((chunk, started))
            await script.finish(started)

    asyncio.run(scenario())
    assert_landed(tmp_path, range(60_000))


def test_a_client_stream_when_a_named_chunk_is_not_settled_waits_for_the_ledger(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "m", range(10))
            before = len(read_log(tmp_path))
            registry.fail_apply = 4
            await script.end_cut((1, started), settle=False)
            await eventually("the log entry", lambda: len(read_log(tmp_path)) > before)
            await script.client.close()
            await script.reopen_client()
            assert [part.lower for part in script.order.remaining] == ["m"]

    asyncio.run(scenario())


def test_a_cut_of_an_older_run_when_it_names_a_chunk_leaves_it_pending(
    tmp_path: Path, registry: MemoryRegistry, dump: str
) -> None:
    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "m", range(10))
            old = script.run
            registry.want("acme", "shop", "orders", "items")
            script.run = await script.binlog.expect("replicate")
            chunks = [chunk_ref(dump, 1, started)]
            await script.binlog.send(cut_end=cut_end(old, script.cut, script.gsn + 1, chunks=chunks))
            await script.end_cut((1, started))

    asyncio.run(scenario())
    assert landed_ids(tmp_path) == list(range(10))


@pytest.mark.history
@pytest.mark.parametrize("seed", range(6))
def test_a_dump_by_random_steps_when_its_streams_break_lands_each_row_once(
    tmp_path: Path, registry: MemoryRegistry, dump: str, seed: int
) -> None:
    async def scenario() -> None:
        async with running_gateway(tmp_path, registry, dump_credit_window_bytes=20_000) as address:
            async with asyncio.timeout(600):
                await RandomDump(address, dump, seed, rows=4000, breaks=True).run()
            await eventually("what no cut named to go", lambda: data_files(tmp_path) == named_files(tmp_path))

    asyncio.run(scenario())
    assert registry.ledger.done == [dump]
    assert landed_ids(tmp_path) == list(range(1, 4001))
