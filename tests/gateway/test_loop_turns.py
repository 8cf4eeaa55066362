"""Whose turn the event loop's is: of many that are ready, tenants have theirs by turns, and the agents of each."""

import asyncio
import itertools
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import pytest

from gateway import loop_turns
from gateway.loop_turns import LoopTurns, begin, taken
from gateway.quotas import Quota
from gateway.shares import Turns
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import commit_cut, eventually, scripted_agent

#: longer than any pass
FOR_EVER = 1e9


def of(tenant: str, agent: str) -> Context:
    context = copy_context()
    context.run(begin, (tenant, agent))
    return context


def test_calls_when_many_are_ready_then_tenants_have_turns_and_their_agents_and_each_ones_keep_their_order() -> None:
    called: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with taken(loop, FOR_EVER):
            first, second, other = of("acme", "a"), of("acme", "b"), of("globex", "a")
            for number in range(4):
                loop.call_soon(called.append, f"acme/a {number}", context=first)
            loop.call_soon(called.append, "acme/b 0", context=second)
            for number in range(2):
                loop.call_soon(called.append, f"globex/a {number}", context=other)
            await eventually("all calls", lambda: len(called) == 7)

    asyncio.run(scenario())
    assert called == ["acme/a 0", "globex/a 0", "acme/b 0", "globex/a 1", "acme/a 1", "acme/a 2", "acme/a 3"]


def test_calls_when_a_pass_is_over_then_the_loop_does_what_has_no_owner_before_the_next() -> None:
    called: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def again(number: int) -> None:
            called.append("nobody's")
            if number:
                loop.call_soon(again, number - 1)

        with taken(loop, 0.0):
            for _ in range(3):
                loop.call_soon(called.append, "acme's", context=of("acme", "a"))
            loop.call_soon(again, 2)
            await eventually("all calls", lambda: len(called) == 6)

    asyncio.run(scenario())
    assert called == ["acme's", "nobody's"] * 3


def test_pass_when_its_time_is_over_then_what_is_left_waits_for_the_next() -> None:
    asked: list[Any] = []
    called: list[int] = []
    loop = asyncio.new_event_loop()
    turns = LoopTurns(lambda call, context: asked.append(call), loop, 2.0, clock=itertools.count().__next__)
    context = of("acme", "a")
    for number in range(5):
        turns.call_soon(called.append, number, context=context)
    counts = []
    while asked:
        asked.pop()()
        counts.append(len(called))
    loop.close()
    assert counts == [2, 4, 5]  # seconds 0 to 2, 3 to 5, 6


def test_tasks_when_an_owner_has_begun_them_then_they_work_for_it_and_for_the_next_one_when_it_changes() -> None:
    owners: list[object] = []

    async def child() -> None:
        owners.append(_owner())
        await asyncio.sleep(0)
        owners.append(_owner())

    async def stream() -> None:
        turn = begin(("", "peer"))
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        turn.owner = ("acme", "agent-1")
        await task
        owners.append(_owner())

    async def scenario() -> None:
        with taken(asyncio.get_running_loop(), FOR_EVER):
            await asyncio.create_task(stream())
        owners.append(_owner())

    asyncio.run(scenario())
    assert owners == [("", "peer"), ("acme", "agent-1"), ("acme", "agent-1"), None]


def _owner() -> object:
    turn = loop_turns._TURN.get()
    return None if turn is None else turn.owner


def test_turn_of_the_process_when_a_busy_agent_has_it_or_is_called_to_it_then_others_wait_for_that_alone() -> None:
    waited: list[int] = []

    async def scenario() -> None:
        turns, is_done, steps = Turns(), asyncio.Event(), itertools.count()

        async def busy(tenant: str) -> None:
            begin((tenant, "busy"))
            while len(waited) < 2:
                next(steps)
                await asyncio.sleep(0)

        async def has_it() -> None:
            begin(("acme", "busy"))
            async with turns.of(("acme", "busy")):
                await is_done.wait()

        async def is_called() -> None:
            begin(("acme", "busy"))
            async with turns.of(("acme", "busy")):
                pass

        async def other() -> None:
            begin(("globex", "a"))
            async with turns.of(("globex", "a")):
                waited.append(next(steps))

        with taken(asyncio.get_running_loop(), 0.0):
            tasks = [asyncio.create_task(has_it())]
            await eventually("it has the turn", lambda: not turns._has_turn())
            tasks += [asyncio.create_task(is_called()), asyncio.create_task(other())]
            await eventually("both wait for it", lambda: len(list(turns._waiting.tenants())) == 2)
            tasks += [asyncio.create_task(busy("acme")) for _ in range(500)]
            tasks += [asyncio.create_task(busy(f"tenant-{number}")) for number in range(5)]
            await eventually("they are busy", lambda: next(steps) > 100)
            waited.append(next(steps))
            is_done.set()
            await asyncio.gather(*tasks)

    asyncio.run(scenario())
    assert waited[1] - waited[0] < 50


def test_calls_when_one_is_cancelled_and_one_fails_then_the_others_are_made() -> None:
    called: list[str] = []
    failures: list[BaseException] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, told: failures.append(told["exception"]))
        with taken(loop, FOR_EVER):
            context = of("acme", "a")
            loop.call_soon(called.append, "cancelled", context=context).cancel()
            loop.call_soon([].pop, context=context)
            loop.call_soon(called.append, "last", context=context)
            await eventually("the last call", lambda: called)

    asyncio.run(scenario())
    assert called == ["last"]
    assert [type(each) for each in failures] == [IndexError]


def test_loop_when_its_last_gateway_ends_then_what_waits_is_called_and_calls_are_its_own_again() -> None:
    called: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with taken(loop):
            with taken(loop):
                pass
            assert "call_soon" in vars(loop)
            loop.call_soon(called.append, "left", context=of("acme", "a"))
        assert "call_soon" not in vars(loop)
        assert not called
        await asyncio.sleep(0)
        assert called == ["left"]
        loop.call_soon(called.append, "own", context=of("acme", "a"))
        await asyncio.sleep(0)

    asyncio.run(scenario())
    assert called == ["left", "own"]


def test_streams_when_all_of_a_tenant_are_ready_before_another_tenants_then_that_one_has_the_next_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, served = MemoryRegistry(), []
    for tenant in ("acme", "globex"):
        registry.want(tenant, "shop", "orders")
    paid = Quota.paid

    async def scenario() -> None:
        gate, waiting = asyncio.Event(), []
        gate.set()

        async def paid_behind_the_gate(quota: Quota) -> None:
            await paid(quota)
            if not gate.is_set():
                waiting.append(_owner())
                await gate.wait()
                served.append(_owner())

        monkeypatch.setattr(Quota, "paid", paid_behind_the_gate)
        async with (
            running_gateway(tmp_path, registry) as address,
            scripted_agent(address, "shop") as hostile,
            scripted_agent(address, "shop", tenant="globex") as honest,
        ):
            stream, run = await honest.open_binlog("shop")
            others = [await hostile.open("Control_Heartbeat") for _ in range(100)]
            for other in others:
                await other.expect("hello_ack")
                await other.send(error={"code": "X"})
            gate.clear()
            for number, other in enumerate(others):
                await other.send(error={"code": "X"})
                await eventually("it to wait", lambda least=number: len(waiting) > least)
            await stream.send(error={"code": "X"})
            await eventually("the other tenant to wait", lambda: ("globex", "agent-1") in waiting)
            gate.set()
            await eventually("all to be served", lambda: len(served) == len(waiting))
            await commit_cut(stream, run, 1, [1])

    asyncio.run(scenario())
    assert served.index(("globex", "agent-1")) <= 1
    assert len(served) > 100
    assert landed_gsns(tmp_path) == [1]
