"""What a tenant's agents may hold of the gateway, and when their turn comes, beside hostile ones."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from menura.v1.snapshot_pb2 import DumpPlan
from menura.v1.stream_pb2 import StreamResponse

from gateway.backlog import StreamQueue
from gateway.loop_turns import Owner
from gateway.registry import SourceKey
from gateway.shares import FairThreads, Shares, Turns
from gateway.wire.message import Frames, Received

HOSTILE, HONEST = ("acme", "db-1"), ("globex", "db-1")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 300))


async def settle() -> None:
    """Until every task that can go on has done so."""
    for _ in range(20):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=400))
def test_shares_when_agents_take_all_that_they_may_then_whoever_comes_new_has_room(pieces: list[tuple[int, int]]):
    shares, held = Shares(1_000), dict[Owner, int]()
    for tenant, agent in pieces:
        owner = f"tenant-{tenant}", f"agent-{agent}"
        if shares.has_room(owner):
            shares.change(owner, 1)
            held[owner] = held.get(owner, 0) + 1
    assert shares.has_room(("new", "db-1"))
    assert shares.has_room(("tenant-0", "new"))
    for owner, amount in held.items():
        shares.change(owner, -amount)
    assert (shares._held, dict(shares._of_tenant), dict(shares._of_owner)) == (0, {}, {})


def test_share_when_it_is_used_up_then_one_agent_has_a_third_and_many_of_a_tenant_have_a_half() -> None:
    alone, many = Shares(900), Shares(900)
    while alone.has_room(HOSTILE):
        alone.change(HOSTILE, 1)
    for number in range(1_000):
        owner = "acme", f"db-{number}"
        while many.has_room(owner):
            many.change(owner, 1)
    assert alone._held == 300
    assert 440 <= many._held <= 450


def test_room_when_a_share_is_free_again_then_all_who_waited_for_it_go_on_and_no_other() -> None:
    async def scenario() -> None:
        shares, came = Shares(90), list[str]()

        async def wait(owner: Owner, name: str, takes: int = 0) -> None:
            await shares.room(owner)
            shares.change(owner, takes)
            came.append(name)

        shares.change(HOSTILE, 60)
        tasks = [asyncio.create_task(wait(HOSTILE, f"hostile {number}")) for number in range(3)]
        await settle()
        await wait(HONEST, "honest", takes=10)
        assert came == ["honest"]
        tasks[1].cancel()
        shares.change(HOSTILE, -40)
        await settle()
        assert came == ["honest", "hostile 0", "hostile 2"]
        assert not shares._waiting

    run(scenario)


def test_room_when_the_first_takes_it_all_then_the_next_waits_on() -> None:
    async def scenario() -> None:
        shares, came = Shares(90), list[int]()

        async def take(number: int) -> None:
            await shares.room(HOSTILE)
            shares.change(HOSTILE, 60)
            came.append(number)

        shares.change(HOSTILE, 60)
        tasks = [asyncio.create_task(take(number)) for number in range(3)]
        for expected in range(3):
            await settle()
            assert came == list(range(expected))
            shares.change(HOSTILE, -60)
        await asyncio.gather(*tasks)

    run(scenario)


def test_room_when_one_agent_takes_all_again_and_again_then_another_tenant_is_the_next_one() -> None:
    async def scenario() -> None:
        shares, came = Shares(100), list[Owner]()

        async def take(owner: Owner, amount: int) -> None:
            await shares.room(owner)
            shares.change(owner, amount)
            came.append(owner)
            await asyncio.sleep(0)
            shares.change(owner, -amount)

        shares.change(HOSTILE, 100)
        tasks = [asyncio.create_task(take(HOSTILE, 100)) for _ in range(50)]
        await settle()
        tasks += [asyncio.create_task(take(HONEST, 1))]
        await settle()
        shares.change(HOSTILE, -100)
        await asyncio.gather(*tasks)
        assert came.index(HONEST) <= 1

    run(scenario)


def test_queue_when_its_stream_ends_while_a_message_waits_for_it_then_nothing_of_it_is_held() -> None:
    """The receiver went on for a moment after the end, and what it counted then was counted for ever."""

    async def scenario() -> None:
        shares = Shares(128 << 20)
        queue = StreamQueue(shares, HOSTILE, SourceKey("acme", "shop"), "receiving")
        plan = StreamResponse(dump_plan=DumpPlan(dump="d"))
        await queue.put(Received(plan, Frames(b"", b"", 0), 3 << 20))
        waiting = asyncio.create_task(queue.put(Received(plan, Frames(b"", b"", 0), 3 << 20)))
        await settle()
        queue.close()
        await waiting
        assert shares._held == 0

    run(scenario)


def test_turns_when_one_tenant_waits_a_thousand_times_then_another_one_is_next_and_its_agents_alternate() -> None:
    async def scenario() -> None:
        turns, came = Turns(), list[Owner]()

        async def work(owner: Owner) -> None:
            async with turns.of(owner):
                came.append(owner)
                await asyncio.sleep(0)

        owners = [HOSTILE] * 1_000 + [("acme", "db-2")] * 2 + [HONEST]
        await asyncio.gather(*(work(owner) for owner in owners))
        assert came[:2] == [HOSTILE, HOSTILE]  # nobody else was there when these came
        assert came.index(HONEST) <= 3
        assert came.index(("acme", "db-2")) <= 4
        assert (turns._of_tenant.total(), bool(turns._waiting)) == (0, False)

    run(scenario)


def test_turns_when_those_who_wait_are_cancelled_before_and_after_their_call_then_none_is_lost() -> None:
    async def scenario() -> None:
        turns = Turns()
        await turns.take(HOSTILE)
        waiting = [asyncio.create_task(turns.take(HOSTILE)) for _ in range(4)]
        await settle()
        waiting[0].cancel()  # and is called before it knows
        turns.give(HOSTILE)
        await settle()
        assert [task.done() for task in waiting] == [True, True, False, False]
        turns.give(HOSTILE)
        waiting[2].cancel()  # after its call
        with suppress(asyncio.CancelledError):
            await waiting[2]
        await waiting[3]
        turns.give(HOSTILE)
        assert (turns._of_tenant.total(), bool(turns._waiting)) == (0, False)

    run(scenario)


def test_turns_when_one_tenant_may_have_some_of_them_then_the_others_are_there_for_the_next() -> None:
    async def scenario() -> None:
        turns = Turns(3, most_of_tenant=2)
        for owner in (HOSTILE, HOSTILE):
            await turns.take(owner)
        waiting = asyncio.create_task(turns.take(HOSTILE))
        await settle()
        await turns.take(HONEST)
        again = asyncio.create_task(turns.take(HONEST))
        await settle()
        assert not waiting.done() and not again.done()
        turns.give(HONEST)
        await settle()
        assert not waiting.done() and again.done()  # which came later
        turns.give(HOSTILE)
        await waiting
        for owner in (HONEST, HOSTILE, HOSTILE):
            turns.give(owner)
        assert (turns._of_tenant.total(), bool(turns._waiting)) == (0, False)

    run(scenario)


def test_turns_when_one_owner_may_have_some_of_its_tenants_then_another_owner_of_it_is_next() -> None:
    async def scenario() -> None:
        turns, another = Turns(4, most_of_tenant=3, most_of_owner=2), ("acme", "db-2")
        for _ in range(2):
            await turns.take(HOSTILE)
        waiting = asyncio.create_task(turns.take(HOSTILE))
        await settle()
        await turns.take(another)
        again = asyncio.create_task(turns.take(another))
        await settle()
        assert not waiting.done() and not again.done()
        turns.give(another)
        await settle()
        assert not waiting.done() and again.done()  # which came later
        turns.give(HOSTILE)
        await waiting
        for owner in (another, HOSTILE, HOSTILE):
            turns.give(owner)
        assert (turns._of_owner.total(), turns._of_tenant.total(), bool(turns._waiting)) == (0, 0, False)

    run(scenario)


def test_threads_when_nobody_waits_for_their_work_any_more_then_the_turn_lasts_until_it_is_done() -> None:
    async def scenario() -> None:
        free, came = threading.Event(), threading.Event()
        with ThreadPoolExecutor(2) as executor:
            threads = FairThreads(executor, Turns())
            first = asyncio.create_task(_result(threads, HOSTILE, lambda: free.wait(300)))
            await settle()
            first.cancel()
            second = asyncio.create_task(_result(threads, HONEST, lambda: came.set() or True))
            await settle()
            assert not came.is_set()
            free.set()
            assert await second

    run(scenario)


async def _result(threads: FairThreads, owner: Owner, work: Callable[[], bool]) -> bool:
    return await (await threads.start(owner, work))
