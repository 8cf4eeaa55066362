"""The memory of a gateway process under attack, by its RSS: hostile clients over real gRPC, and a tenant who commits.

The bound for all: what an idle gateway takes, and 256 MiB; with a thousand full streams 512 MiB in all. Before, the
same attacks took 3 GiB and more.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest
from menura.message_parts import PART_BYTES
from menura.v1.changes_pb2 import Position
from menura.v1.config_pb2 import Hello, SourceHello
from menura.v1.error_pb2 import Error
from menura.v1.stream_pb2 import Header, MessagePart, RequestType, StreamResponse

from gateway.registry import SourceKey
from tests.gateway.scripted_agent import (
    ANSWER_SECONDS,
    OPTIONS,
    AgentStream,
    change_batch,
    commit_cut,
    cut_end,
    raw_stream,
    rows_batch,
    scripted_agent,
)
from tests.gateway.sql_registry import open_registry, want
from tests.servers import free_port

#: channels of a process to one address have one connection else
OWN_CONNECTION = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
MIB = 1 << 20
MOST_GROWN_BYTES = 256 * MIB
#: of a gateway with a thousand hostile streams
MOST_BYTES = 512 * MIB
STREAMS, AGENTS, ERRORS = 1_000, 50, 40
SOURCES = 12
TABLES = 8

Attack = Callable[[str, AsyncExitStack], Awaitable[None]]


async def compressed_hello(address: str, _: AsyncExitStack) -> None:
    """C2: 655 KiB of gzip, 120 MiB of empty sources: 137 to 3,030 MiB."""
    header = Header(tenant="acme", agent="a", request_type=RequestType.Control_Config, sequence=1, session="s")
    hello = StreamResponse(header=header, hello=Hello(sources=[SourceHello()])).SerializeToString()
    bomb = hello + b"\x12\x80\x80\x80\x39" + b"\x22\x00" * (60 << 19)  # Hello again: merged
    for compression in (grpc.Compression.Gzip, None):
        async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
            call = raw_stream(channel, compression=compression)
            with suppress(grpc.RpcError, asyncio.InvalidStateError):
                await call.write(bomb)
            async with asyncio.timeout(ANSWER_SECONDS):
                assert (await call.code()) is not grpc.StatusCode.OK


async def silent_streams(address: str, ends: AsyncExitStack) -> None:
    """2,307 of 3,000 stayed open for good. Four connections, of which none is the other tenant's."""
    for _ in range(4):
        channel = await ends.enter_async_context(grpc.aio.insecure_channel(address, options=OWN_CONNECTION))
        for _ in range(250):
            call = raw_stream(channel)
            ends.callback(call.cancel)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await call.initial_metadata()


async def stalled_parts(address: str, ends: AsyncExitStack) -> None:
    """Each announces 200 MiB, and sends as much of it as it may."""
    hostile = await ends.enter_async_context(scripted_agent(address, *names(), tenant="acme"))
    for name in names():
        stream = await hostile.open("MySQLClient", name)
        await stream.expect("hello_ack")
        part = MessagePart(whole_bytes=200 * MIB, data=bytes(PART_BYTES))
        message = StreamResponse(part=part).SerializeToString()
        for _ in range(120):
            try:
                async with asyncio.timeout(0.5):
                    await stream.call.write(message)
            except TimeoutError:
                break


async def open_cuts(address: str, ends: AsyncExitStack) -> None:
    """H3: 160 KiB over 12 sources with open cuts took 830 MiB for as long as these stay open."""
    hostile = await ends.enter_async_context(scripted_agent(address, *names(), tenant="acme"))
    for name in names():
        stream, run = await hostile.open_binlog(name)
        gsn = 1
        for number in range(24):
            rows = rows_batch(range(gsn, gsn + 32_000), note="x" * 80)
            gsn += 32_000
            await send_under_credit(stream, change_batch(run, 1, f"table_{number % TABLES}", rows))


async def ends_of_16_mib(address: str, ends: AsyncExitStack) -> None:
    """H1: messages without credit waited without a bound."""
    hostile = await ends.enter_async_context(scripted_agent(address, *names(), tenant="acme"))
    for name in names():
        stream, run = await hostile.open_binlog(name)
        end = cut_end(run, 1, 0, position=Position(kind="mysql", text="x" * (15 * MIB)))
        with suppress(grpc.RpcError, asyncio.InvalidStateError, TimeoutError):
            for _ in range(3):
                async with asyncio.timeout(20):
                    await stream.send(cut_end=end)


async def errors_on_a_thousand_streams(address: str, ends: AsyncExitStack) -> None:
    """What an agent sends faster than its quota waits in gRPC's windows, of which each stream has one: 3,878 MiB."""
    found = "x" * 60_000

    async def send_until_it_waits(stream: AgentStream) -> None:
        with suppress(TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            for _ in range(ERRORS):
                async with asyncio.timeout(2):
                    await stream.send(error=Error(code="X", doing="x", found=found))

    streams = []
    for number in range(AGENTS):
        agent = await ends.enter_async_context(scripted_agent(address, tenant="acme", agent=f"agent-{number}"))
        streams += [await agent.open("Control_Config") for _ in range(STREAMS // AGENTS)]
    for stream in streams:
        await stream.expect("hello_ack")
    await asyncio.gather(*map(send_until_it_waits, streams))


ATTACKS: list[Attack] = [
    *(compressed_hello, silent_streams, stalled_parts, open_cuts, ends_of_16_mib),
    errors_on_a_thousand_streams,
]


def names() -> list[str]:
    return [f"source-{number}" for number in range(SOURCES)]


async def send_under_credit(stream: AgentStream, batch: object) -> None:
    """Where there is no credit any more, the attack has all that it can have."""
    with suppress(TimeoutError):
        await stream.wait_credit(1.0)
        await stream.send(change_batch=batch)


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_memory_of_a_gateway_when_it_is_attacked_then_it_is_bounded_and_the_other_tenant_commits(
    attack: Attack, tmp_path: Path
) -> None:
    with gateway_process(tmp_path) as (address, process):

        async def scenario() -> int:
            async with AsyncExitStack() as ends:
                channel = await ends.enter_async_context(grpc.aio.insecure_channel(address, options=OPTIONS))
                await asyncio.wait_for(channel.channel_ready(), ANSWER_SECONDS)
                honest = await ends.enter_async_context(scripted_agent(address, "shop", tenant="globex"))
                stream, run = await honest.open_binlog("shop")
                await commit_cut(stream, run, 1, [1])
                idle_bytes = _memory(process, "VmRSS")
                await attack(address, ends)
                await commit_cut(stream, run, 2, [2])
                heartbeats = await honest.open("Control_Heartbeat")
                await heartbeats.expect("hello_ack")
                return idle_bytes

        idle_bytes = asyncio.run(scenario())
        highest_bytes = _memory(process, "VmHWM")
    grown_bytes = highest_bytes - idle_bytes
    print(f"{attack.__name__}: {idle_bytes >> 20} MiB, and {grown_bytes >> 20} MiB")  # noqa: T201
    if attack is errors_on_a_thousand_streams:
        assert highest_bytes < MOST_BYTES
    else:
        assert grown_bytes < MOST_GROWN_BYTES


@contextmanager
def gateway_process(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    file, port = folder / "control.db", free_port()
    database, _ = open_registry(file)
    want(database, SourceKey("globex", "shop"), "orders")
    for name in names():
        want(database, SourceKey("acme", name), *(f"table_{number}" for number in range(TABLES)))
    database.close()
    command = [sys.executable, "-m", "tests.gateway.killable", str(folder / "landing"), str(file), str(port)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        yield f"127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait()


def _memory(process: "subprocess.Popen[bytes]", name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10
