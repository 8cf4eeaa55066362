"""gRPC's wake-ups of the event loop: all that wait are taken before what they stand for is done."""

import asyncio
import socket
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


def test_wakeups_when_many_wait_then_their_handler_is_called_once_and_finds_none() -> None:
    found: list[bool] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        read, write = socket.socketpair()
        with read, write:
            read.setblocking(False)
            with grpc_wakeups.taken_at_once(loop):
                loop.add_reader(read, lambda told: found.append(told and is_empty(read)), True)
            for _ in range(200):
                write.send(b"1")
            await eventually("the handler", lambda: found)
            for _ in range(3):  # the loop looks at its sockets again
                await asyncio.sleep(0)
            assert found == [True]
            write.send(b"1")
            await eventually("the handler again", lambda: len(found) == 2)
            loop.remove_reader(read)

    asyncio.run(scenario())
    assert found == [True, True]


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


def test_gateway_when_agents_talk_to_it_then_grpc_wakes_it_by_an_emptied_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gRPC may ask the loop in another way: then this fails, and nothing else does."""
    emptied: list[socket.socket] = []
    empty = grpc_wakeups._empty

    def seen(wakeups: socket.socket) -> None:
        empty(wakeups)
        emptied.append(wakeups)

    monkeypatch.setattr(grpc_wakeups, "_empty", seen)
    registry = MemoryRegistry()
    registry.want("acme", "shop", "orders")

    async def scenario() -> None:
        async with running_gateway(tmp_path, registry) as address, scripted_agent(address, "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, [1])
            before = len(emptied)
            await commit_cut(stream, run, 2, [2])
            assert len(emptied) > before
            assert len(set(emptied)) == 1
            await eventually("no wake-up to be left", lambda: is_empty(emptied[0]))

    asyncio.run(scenario())
    assert landed_gsns(tmp_path) == [1, 2]
