"""gRPC's wake-ups of the event loop: all that wait are done in one turn of it."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway import grpc_wakeups
from tests.gateway.harness import landed_gsns, running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import commit_cut, eventually, scripted_agent


def is_empty(wakeups: socket.socket) -> bool:
    try:
        return not wakeups.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True


def test_wakeups_when_several_sockets_have_many_then_one_turn_makes_a_call_for_each_byte() -> None:
    """A handler that does one thing a call: gRPC's own empties its queue, and need not."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with ExitStack() as sockets:
            pairs = [[sockets.enter_context(end) for end in socket.socketpair()] for _ in range(3)]
            queues = [list(range(count)) for count in (1, 7, 200)]

            def handle(number: int) -> None:
                assert pairs[number][0].recv(1)
                queues[number].pop()

            readers: list[Callable[[], None]] = []
            loop.add_reader = lambda _, woken: readers.append(woken)  # type: ignore[method-assign, assignment]
            for number, (read, write) in enumerate(pairs):
                read.setblocking(False)
                with grpc_wakeups.taken_at_once(loop):
                    loop.add_reader(read, handle, number)
                loop.add_reader = lambda _, woken: readers.append(woken)  # type: ignore[method-assign, assignment]
                write.send(bytes(len(queues[number])))
            for woken in readers:
                woken()
            assert queues == [[], [], []]
            assert all(is_empty(read) for read, _ in pairs)

    asyncio.run(scenario())


def test_wakeups_when_more_wait_than_a_turn_may_do_then_the_next_turns_do_the_others() -> None:
    most = grpc_wakeups.MOST_CALLS
    calls: list[int] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        read, write = socket.socketpair()
        with read, write:
            read.setblocking(False)
            with grpc_wakeups.taken_at_once(loop):
                loop.add_reader(read, lambda: calls.append(len(read.recv(1))))
            write.send(bytes(2 * most + 1))
            seen = {0}
            while len(calls) < 2 * most + 1:
                await asyncio.sleep(0)
                seen.add(len(calls))
            loop.remove_reader(read)
            assert is_empty(read)
            assert seen == {0, most, 2 * most, 2 * most + 1}

    asyncio.run(scenario())
    assert set(calls) == {1}


def test_gateway_when_grpc_asks_its_loop_in_another_way_then_it_says_so_and_else_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(*, by_number: bool) -> None:
        loop = asyncio.get_running_loop()
        read, write = socket.socketpair()
        with read, write:
            with grpc_wakeups.taken_at_once(loop):
                loop.add_reader(read.fileno() if by_number else read, print)
            with grpc_wakeups.taken_at_once(loop):  # another gateway of the loop: gRPC asks once
                pass
            loop.remove_reader(read)

    asyncio.run(scenario(by_number=False))
    assert not caplog.records
    asyncio.run(scenario(by_number=True))
    assert len(caplog.records) == 2
    assert "gRPC wakes the event loop in a way that this gateway does not know" in caplog.text


def test_wakeups_when_another_loop_has_taken_them_then_the_handler_is_called_all_the_same() -> None:
    """gRPC has one socket for all loops of a process, which look at it in threads of theirs."""

    async def scenario() -> None:
        loop, called = asyncio.get_running_loop(), []
        read, write = socket.socketpair()
        with read, write:
            read.setblocking(False)
            write.send(b"1")
            with grpc_wakeups.taken_at_once(loop):
                loop.add_reader(read, called.append, None)
            read.recv(1)
            assert not called
            loop.remove_reader(read)
            wakeups: list[object] = []
            loop.add_reader = lambda *args: wakeups.extend(args)  # type: ignore[method-assign, assignment]
            with grpc_wakeups.taken_at_once(loop):
                loop.add_reader(read, called.append, None)
            _, woken = wakeups
            woken()  # type: ignore[operator]
            assert called == [None]

    asyncio.run(scenario())


def test_other_readers_of_the_loop_when_they_are_added_afterwards_then_nothing_is_taken_from_them() -> None:
    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        with grpc_wakeups.taken_at_once(loop):
            pass
        assert "add_reader" not in vars(loop)
        read, write = socket.socketpair()
        with read, write:
            read.setblocking(False)
            write.send(b"said")
            return await loop.sock_recv(read, 10)

    assert asyncio.run(scenario()) == b"said"


def test_gateway_when_agents_talk_to_it_then_grpc_wakes_it_by_a_socket_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gRPC may ask the loop in another way: then this fails, and nothing else does."""
    looked_at: list[socket.socket] = []
    waiting = grpc_wakeups._waiting

    def seen(wakeups: socket.socket) -> int:
        looked_at.append(wakeups)
        return waiting(wakeups)

    monkeypatch.setattr(grpc_wakeups, "_waiting", seen)
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, [1])
            before = len(looked_at)
            await commit_cut(stream, run, 2, [2])
            assert len(looked_at) > before
            assert len(set(looked_at)) == 1
            await eventually("no wake-up to be left", lambda: is_empty(looked_at[0]))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1, 2]
