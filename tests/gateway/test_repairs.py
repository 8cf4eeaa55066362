"""Repairs: chunks of the ranges that were ordered land, and what an agent says of others ends its stream."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from menura.landed_digest import LandedFocus, LandedRange
from menura.landing import KeyNumbers, LandedRepair, decode_entry, encode_entry
from menura.v1.changes_pb2 import KeyRange, RepairedRanges

from gateway.errors import PayloadInvalid
from gateway.registry import DumpDesired
from gateway.streams.dump_messages import dump_planned
from tests.gateway.dump_script import DumpScript, open_dump, registry
from tests.gateway.harness import read_log, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import dump_plan, scripted_agent, table_event

__all__ = ["registry"]

#: keys above 300 up to and with 400, and above 900
FOCUS = LandedFocus((LandedRange("", "", (300,), (400,)), LandedRange("", "", (900,), ())), kinds=("integer",))
RANGES = [
    {"number": 0, "lower": '["300"]', "upper": '["400"]'},
    {"number": 1, "lower": '["900"]', "upper": ""},
]
GONE = (KeyRange(above=["300"], up_to=["400"]), KeyRange(above=["900"]))


async def begin(script: DumpScript) -> int:
    """Plan and start; the number of the start."""
    await script.client.send(dump_plan=dump_plan(script.dump, ranges=RANGES))
    while not script.order.HasField("plan"):
        script.desired = await script.client.expect("desired_dumps")
    await script.end_cut(events=[table_event(script.gsn + 1, "REPAIR_STARTED", dump=script.dump)])
    return script.gsn


async def end(script: DumpScript, **said: Any) -> None:
    repaired = RepairedRanges(**{"key": ["id"], "kinds": ["integer"], "ranges": GONE, **said})
    await script.end_cut(
        events=[table_event(script.gsn + 1, "REPAIRED", dump=script.dump, repaired=repaired)], settle=False
    )


def test_a_repair_when_its_ranges_are_read_then_they_land_and_its_end_says_which_rows_are_gone(
    tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders", focus=FOCUS)

    async def scenario() -> int:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            script = await open_dump(agent, dump)
            started = await begin(script)
            await script.send_chunk(1, '["300"]', '["400"]', [301, 302], last_of_range=True)
            await script.send_chunk(2, '["900"]', "", [999], range=1)
            await script.end_cut((1, started), (2, started))
            await end(script, before_gsn=started)
            await script.until_over()
            return started

    started = asyncio.run(scenario())
    entries = read_log(tmp_path)
    cuts = [cut for entry in entries for cut in entry.cuts]
    assert [(chunk.chunk, chunk.rows, chunk.repairs) for cut in cuts for chunk in cut.chunks] == [
        (1, 2, True),
        (2, 1, True),
    ]
    first, last = [event for cut in cuts for event in cut.events]
    assert (first.kind, last.kind, last.removes_rows, last.removes_rows_before_gsn) == (
        "REPAIR_STARTED",
        "REPAIRED",
        False,
        0,
    )
    ranges = KeyNumbers((300,), (400,)), KeyNumbers((900,), ())
    assert last.repaired == LandedRepair(started, ("id",), ranges, ("integer",))
    assert registry.ledger.done == [dump]
    for entry in entries:
        assert decode_entry(encode_entry(entry)) == entry


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        (lambda started: {"before_gsn": started, "ranges": [KeyRange()]}, "PAYLOAD_INVALID"),
        (lambda started: {"before_gsn": started, "key": ["other"]}, "PAYLOAD_INVALID"),
        (lambda started: {"before_gsn": started - 1 or 5}, "PAYLOAD_INVALID"),
        (lambda started: {"before_gsn": started}, "OUT_OF_SEQUENCE"),
    ],
    ids=["other ranges", "another key", "another number", "not all is read"],
)
def test_a_repair_when_its_end_is_another_than_was_ordered_then_the_stream_ends(
    lie: Callable[[int], dict[str, Any]], code: str, tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders", focus=FOCUS)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            script = await open_dump(agent, dump)
            started = await begin(script)
            await end(script, **lie(started))
            assert (await script.binlog.expect("error")).code == code

    asyncio.run(scenario())
    assert registry.ledger.done == []


@pytest.mark.parametrize("kind", ["DUMP_STARTED", "DUMPED", "VERIFIED"])
def test_a_repair_when_an_event_says_that_the_whole_table_is_read_then_the_stream_ends(
    kind: str, tmp_path: Path, registry: MemoryRegistry
) -> None:
    dump = registry.want_dump("acme", "shop", "orders", focus=FOCUS)

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            script = await open_dump(agent, dump)
            facts = {"removes_rows": True} if kind == "DUMPED" else {}
            events = [table_event(script.gsn + 1, kind, dump=dump, **facts)]
            await script.end_cut(events=events, settle=False)
            assert (await script.binlog.expect("error")).code == "PAYLOAD_INVALID"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        RANGES[:1],
        [{"number": 0, "lower": "", "upper": ""}],
        [{"number": 0, "lower": '["300"]', "upper": ""}, {"number": 1, "lower": '["900"]', "upper": ""}],
    ],
)
def test_a_repairs_plan_when_its_ranges_are_not_those_of_its_order_then_it_is_refused(
    ranges: list[dict[str, Any]],
) -> None:
    order = DumpDesired("d", "shop", "orders", 0, False, 0, 0, 0, 0, None, (), 1, focus=FOCUS)
    with pytest.raises(PayloadInvalid):
        dump_planned(dump_plan("d", ranges=ranges, key=["id"] if ranges else []), order)
