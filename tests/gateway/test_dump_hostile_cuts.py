"""What no honest agent says of a dump in its plan and in its cuts: the stream ends, and nothing is committed."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from menura.landing import LandedChunk

from gateway.landing import chunks
from gateway.registry import DumpDesired, DumpPlanned, KeyRange, SourceKey
from tests.gateway.dump_script import DumpScript, dump_begun, registry
from tests.gateway.harness import data_files, read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import (
    chunk_ref,
    dump_plan,
    eventually,
    scripted_agent,
    table_event,
)

__all__ = ["registry"]

PLANS: dict[str, dict[str, Any]] = {
    "a key without ranges": {"ranges": []},
    "ranges without a key": {"key": []},
    "a column without a name": {"key": [""]},
    "too many columns": {"key": [f"c{n}" for n in range(65)]},
    "a hole at the beginning": {"ranges": [{"lower": "a"}]},
    "a hole at the end": {"ranges": [{"upper": "a"}]},
    "a hole": {"ranges": [{"upper": "a"}, {"number": 1, "lower": "b"}]},
    "something after the last": {"ranges": [{"upper": ""}, {"number": 1}]},
    "a number twice": {"ranges": [{"upper": "a"}, {"lower": "a"}]},
    "too many ranges": {"ranges": [{"number": n} for n in range(5000)]},
    "a bound with a NUL": {"ranges": [{"upper": "\0"}, {"number": 1, "lower": "\0"}]},
    "a long bound": {"ranges": [{"upper": "m" * 40_000}, {"number": 1, "lower": "m" * 40_000}]},
}


@pytest.mark.parametrize("plan", PLANS)
def test_a_plan_that_leaves_out_rows_when_it_comes_is_refused(
    tmp_path: Path, registry: MemoryRegistry, plan: str
) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            client, _ = await agent.open_client("shop")
            await client.send(dump_plan=dump_plan(dump, **PLANS[plan]))
            assert (await client.expect_error()).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())
    assert registry.ledger.planned == {}


def started_later(script: DumpScript, started: int) -> dict[str, Any]:
    return {"chunks": [chunk_ref(script.dump, 1, script.gsn + 1)]}


CUTS: dict[str, tuple[str, Callable[[DumpScript, int], dict[str, Any]]]] = {
    "a number before the dump's start": (
        "OUT_OF_SEQUENCE",
        lambda script, started: {"chunks": [chunk_ref(script.dump, 1, started - 1)]},
    ),
    "a number that is not committed yet": ("OUT_OF_SEQUENCE", started_later),
    "another table": (
        "PAYLOAD_INVALID",
        lambda script, started: {"chunks": [chunk_ref(script.dump, 1, started, table="items")]},
    ),
    "an undesired table": (
        "TABLE_NOT_DESIRED",
        lambda script, started: {"chunks": [chunk_ref(script.dump, 1, started, table="secrets")]},
    ),
    "too many": (
        "PAYLOAD_INVALID",
        lambda script, started: {"chunks": [chunk_ref(script.dump, 1, started)] * 5000},
    ),
    "an end with ranges left": (
        "OUT_OF_SEQUENCE",
        lambda script, started: {
            "events": [table_event(script.gsn + 1, "DUMPED", dump=script.dump, removes_rows_before_gsn=started)]
        },
    ),
    "an end of a whole table without its rows": (
        "CHUNKS_LOST",
        lambda script, started: {
            "events": [table_event(script.gsn + 1, "DUMPED", dump=script.dump, removes_rows=True)]
        },
    ),
    "a start of another table": (
        "PAYLOAD_INVALID",
        lambda script, started: {
            "events": [table_event(script.gsn + 1, "DUMP_STARTED", table="items", dump=script.dump)]
        },
    ),
    **{
        name: (
            "PAYLOAD_INVALID",
            lambda script, started, event=event: {"events": [table_event(script.gsn + 1, **event)]},
        )
        for name, event in {
            "a start without a dump": {"kind": "DUMP_STARTED"},
            "a change of a definition with a dump": {"kind": "ALTERED", "dump": "d"},
            "a path for a dump": {"kind": "DUMP_STARTED", "dump": "../x"},
            "a start that removes rows": {"kind": "DUMP_STARTED", "dump": "d", "removes_rows": True},
            "an end that removes nothing": {"kind": "DUMPED", "dump": "d"},
            "an end that removes all and some": {
                "kind": "DUMPED", "dump": "d", "removes_rows": True, "removes_rows_before_gsn": 1
            },
            "an end that removes later rows": {"kind": "DUMPED", "dump": "d", "removes_rows_before_gsn": 99},
            "an end that removes rows below zero": {"kind": "DUMPED", "dump": "d", "removes_rows_before_gsn": -1},
            "rows removed by no dump": {"kind": "TRUNCATED", "removes_rows": True, "removes_rows_before_gsn": 1},
            "rows unlogged for no reason": {"kind": "ROWS_UNLOGGED"},
            "a re-read for no reason": {"kind": "ALTERED", "reread": True, "most_rereads_per_hour": 1},
            "a re-read without a bound": {"kind": "ROWS_UNLOGGED", "unlogged_changes": "why", "reread": True},
            "a bound without a re-read": {
                "kind": "ROWS_UNLOGGED", "unlogged_changes": "why", "most_rereads_per_hour": 1
            },
            "a gap for no reason": {"kind": "LOG_GAP", "gap_from": "0-1-5", "gap_to": "0-1-9"},
            "a gap in another event": {"kind": "ROWS_UNLOGGED", "unlogged_changes": "why", "gap_from": "0-1-5"},
            "a gap without end": {"kind": "LOG_GAP", "unlogged_changes": "why", "gap_to": "x" * 1025},
            "a reason without end": {"kind": "ROWS_UNLOGGED", "unlogged_changes": "x" * 4097},
            "a dump's end with unlogged changes": {
                "kind": "DUMPED", "dump": "d", "removes_rows": True, "unlogged_changes": "why"
            },
        }.items()
    },
}  # fmt: skip

TOO_EARLY = ("an end with ranges left", "an end of a whole table without its rows")


@pytest.mark.parametrize("lie", CUTS)
def test_a_lie_about_a_dump_when_a_cut_ends_ends_the_stream_and_commits_nothing(
    tmp_path: Path, registry: MemoryRegistry, lie: str
) -> None:
    code, tell = CUTS[lie]
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.send_chunk(1, "", "m", range(10))
            before = len(read_log(tmp_path))
            await script.end_cut(settle=False, **tell(script, started))
            assert (await script.binlog.expect_error()).code == code
            assert len(read_log(tmp_path)) == before
            await script.reopen_binlog()
            if lie in TOO_EARLY:  # both sides begin again at the ledger
                assert (await script.client.expect_error()).code == "CHUNKS_LOST"
                await eventually("its files to go", lambda: not data_files(tmp_path))
            else:  # the chunk is still there for an honest cut
                await script.end_cut((1, started))
                await script.client.expect("chunks_committed")

    asyncio.run(scenario())
    assert registry.ledger.done == []


def test_an_end_of_a_dump_when_it_names_another_start_is_refused(tmp_path: Path, registry: MemoryRegistry) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.end_cut()
            await script.send_chunk(1, "", "", range(10))
            await script.end_cut((1, script.gsn))
            events = [table_event(script.gsn + 1, "DUMPED", dump=dump, removes_rows_before_gsn=script.gsn)]
            await script.end_cut(settle=False, events=events)
            assert (await script.binlog.expect_error()).code == "OUT_OF_SEQUENCE"
            assert (await script.client.expect_error()).code == "CHUNKS_LOST"
            await script.reopen_binlog()
            await script.finish(started)

    asyncio.run(scenario())
    assert registry.ledger.done == [dump]


def test_a_dump_that_begins_twice_when_a_cut_says_so_keeps_its_first_start(
    tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders")

    async def scenario() -> None:
        async with dump_begun(tmp_path, registry, dump) as (script, started):
            await script.start()
            await script.reopen_binlog()
            await script.start()
            await script.send_chunk(1, "", "", range(10))
            await script.end_cut((1, started))
            await script.finish(started)

    asyncio.run(scenario())
    events = [event for entry in read_log(tmp_path) for cut in entry.cuts for event in cut.events]
    assert [(event.kind, event.gsn) for event in events] == [("DUMP_STARTED", 1), ("DUMPED", 5)]


def test_a_cut_of_another_session_when_it_names_a_chunk_does_not_get_it() -> None:
    key = SourceKey("acme", "shop")
    pending = chunks.PendingChunks()
    stream = pending.open(key, "session-1")
    assert pending.find(key, "session-2", "dump", 1) is None
    assert pending.close(key, stream) == []


def test_chunks_behind_one_that_its_cut_lost_are_not_found_any_more() -> None:
    key, part = SourceKey("acme", "shop"), KeyRange(0, "", "9")
    plan = DumpPlanned(("id",), (part,), None, None, None, None, "")
    order = DumpDesired("d", "shop", "orders", 0, False, 0, 0, 0, 1, plan, (part,), 1)
    pending = chunks.PendingChunks()
    stream = pending.open(key, "session")
    stream.desire([order])
    for number, lower, upper in ((1, "", "5"), (2, "5", "9")):
        chunk = LandedChunk("shop", "orders", "d", number, 0, 0, lower, upper, number == 2, 0, 0, 0, 0, "")
        stream.end(chunk)
        stream.add(chunk, ())
    first = pending.find(key, "session", "d", 1)
    assert first is not None
    assert pending.name(key, first)
    assert pending.find(key, "session", "d", 2) is not None
    pending.settle(key, [first], is_committed=False)
    assert pending.find(key, "session", "d", 2) is None
