"""What hostile clients of tenant acme do to a gateway.

`python -m tests.gateway.attacks NAME ADDRESS` says `begins`, and goes on until it is ended. Attacks of the first kind
take what they can, and hold it as long as their streams are open. Those of the second kind are what one stream of a
thousand does, again and again; their agents have connections of their own.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import grpc
from menura.message_parts import MAX_GRPC_BYTES, PART_BYTES
from menura.v1.catalog_pb2 import Cartography, ColumnCard, TableCard
from menura.v1.changes_pb2 import Position
from menura.v1.config_pb2 import EffectiveState, Heartbeat, Hello, SourceHello, SourceStatus, TableName, TableState
from menura.v1.error_pb2 import Error
from menura.v1.stream_pb2 import Header, MessagePart, RequestType, StreamResponse

from gateway.tasks import run_until_first
from tests.gateway.gateway_process import SOURCES, TABLES, names
from tests.gateway.scripted_agent import (
    ANSWER_SECONDS,
    OPTIONS,
    AgentStream,
    ScriptedAgent,
    change_batch,
    cut_end,
    raw_stream,
    rows_batch,
    scripted_agent,
)

#: channels of a process to one address have one connection else
OWN_CONNECTION = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
MIB = 1 << 20
STREAMS, AGENTS, ERRORS = 1_000, 50, 40
#: what ends a hostile stream, for which the next one comes
ENDS = (grpc.RpcError, asyncio.InvalidStateError, EOFError, TimeoutError)
#: until a stream that the gateway has let go on is given up
STREAM_SECONDS = 20
#: between the ends of streams that end together
WAVE_SECONDS = 5

T = TypeVar("T")
Attack = Callable[[str, AsyncExitStack], Awaitable[None]]
#: what this process has done
counted: "Counter[str]" = Counter()


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
        for _ in range(120):
            try:
                async with asyncio.timeout(0.5):
                    await stream.call.write(FIRST_PART)
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

    async def send_until_it_waits(stream: AgentStream) -> None:
        with suppress(TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            for _ in range(ERRORS):
                async with asyncio.timeout(2):
                    await stream.send(error=LARGE_ERROR)

    streams = []
    for number in range(AGENTS):
        agent = await ends.enter_async_context(scripted_agent(address, tenant="acme", agent=f"agent-{number}"))
        streams += [await agent.open("Control_Config") for _ in range(STREAMS // AGENTS)]
    for stream in streams:
        await stream.expect("hello_ack")
    await asyncio.gather(*map(send_until_it_waits, streams))


async def send_under_credit(stream: AgentStream, batch: object) -> None:
    """Where there is no credit any more, the attack has all that it can have."""
    with suppress(TimeoutError):
        await stream.wait_credit(1.0)
        await stream.send(change_batch=batch)


LARGE_ERROR = Error(code="X", doing="x", found="x" * 60_000)
#: as large as one gRPC message may be
LARGEST_ERROR = Error(code="X", found="x" * (MAX_GRPC_BYTES - 1_000))
LINE = Error(code="X", doing="a\r\n\x1b[2J", found="x" * 100)
FIRST_PART = StreamResponse(part=MessagePart(whole_bytes=200 * MIB, data=bytes(PART_BYTES))).SerializeToString()
TABLES_TOLD = [TableName(database="shop", table=f"table_{number}") for number in range(100)]
COLUMNS = [ColumnCard(name=f"column_{number}", column_type="varchar(100)", charset="utf8mb4") for number in range(10)]


@dataclass(frozen=True, slots=True)
class Place:
    """Of one hostile stream: its agent, with a session that lives, and a source of its own."""

    address: str
    agent: ScriptedAgent
    source: str
    #: of which tables are wanted; streams of several places replace each other there
    wanted: str

    async def opened(self, request_type: str, source: str = "") -> AgentStream:
        stream = await self.agent.open(request_type, source)
        await stream.expect("hello_ack", STREAM_SECONDS)
        return stream


HostileStream = Callable[[Place], Awaitable[None]]


async def errors(place: Place) -> None:
    await _send_all(await place.opened("Control_Config"), error=LARGE_ERROR)


async def largest_frames(place: Place) -> None:
    await _send_all(await place.opened("Control_Config"), error=LARGEST_ERROR)


async def large_messages(place: Place) -> None:
    """In parts: as many things, or signs, as a message may have."""
    stream = await place.opened("Control_Config")
    match int(place.source.rpartition("-")[2]) % 3:
        case 0:
            said: dict[str, Any] = {"error": Error(code="X", found="\u202e" * (4 * MIB))}
        case 1:
            tables = [TableState(table=TABLES_TOLD[0])] * 200_000
            said = {"effective_state": EffectiveState(source=place.source, tables=tables)}
        case _:
            stream = await place.opened("Control_Heartbeat")
            said = {"heartbeat": Heartbeat(sources=[SourceStatus(source=place.source)] * 300_000)}
    await run_until_first(_read_all(stream), _send_all(stream, **said))


async def log_lines(place: Place) -> None:
    await _send_all(await place.opened("Control_Heartbeat"), error=LINE)


async def heartbeats(place: Place) -> None:
    stream = await place.opened("Control_Heartbeat")
    beat = Heartbeat(sources=[SourceStatus(source=place.source)] * 200)
    await run_until_first(_read_all(stream), _send_all(stream, heartbeat=beat))


async def slow_readers(place: Place) -> None:
    """Each heartbeat is acknowledged, and no acknowledgement is read."""
    await _send_all(await place.opened("Control_Heartbeat"), heartbeat=Heartbeat())


async def cartographies(place: Place) -> None:
    stream = await place.opened("MySQLClient", place.source)
    cards = [TableCard(table=table, engine="InnoDB", columns=COLUMNS) for table in TABLES_TOLD]
    part = Cartography(source=place.source, flavor="mysql", tables=cards, last=True)
    await run_until_first(_read_all(stream), _send_all(stream, cartography=part))


async def reports(place: Place) -> None:
    stream = await place.opened("Control_Config")
    state = EffectiveState(source=place.source, tables=[TableState(table=table) for table in TABLES_TOLD])
    await run_until_first(_read_all(stream), _send_all(stream, effective_state=state))


async def batches_without_credit(place: Place) -> None:
    stream = await place.agent.open("MySQLBinlog", place.wanted)
    run = await stream.expect("replicate", STREAM_SECONDS)
    batch = change_batch(run, 1, "table_1", rows_batch(range(1, 1_000)))
    await run_until_first(_read_all(stream), _send_all(stream, change_batch=batch))


async def never_ending(place: Place) -> None:
    stream = await place.opened("MySQLClient", place.source)
    while True:
        await stream.call.write(FIRST_PART)
        counted["messages"] += 1


async def malformed(place: Place) -> None:
    stream = await place.opened("Control_Heartbeat")
    await stream.call.write(b"\xff" * 1_000)
    await stream.expect("error", STREAM_SECONDS)


async def oversized(place: Place) -> None:
    stream = await place.opened("Control_Heartbeat")
    await stream.call.write(bytes(MIB))
    await stream.expect("error", STREAM_SECONDS)


async def replayed(place: Place) -> None:
    stream = await place.opened("Control_Heartbeat")
    await stream.send(heartbeat=Heartbeat())
    await stream.send({"sequence": stream.header.sequence}, heartbeat=Heartbeat())
    await stream.expect("error", STREAM_SECONDS)


async def opened_and_closed(place: Place) -> None:
    stream = await place.opened("Control_Heartbeat")
    await stream.close()


async def opened_and_left(place: Place) -> None:
    """All that are open end at one moment."""
    stream = await place.opened("Control_Heartbeat")
    await asyncio.sleep(WAVE_SECONDS - asyncio.get_running_loop().time() % WAVE_SECONDS)
    await stream.close()


async def unopened(place: Place) -> None:
    """Without a Hello."""
    stream = place.agent.dial("Control_Heartbeat")
    async with asyncio.timeout(STREAM_SECONDS):
        await stream.call.initial_metadata()


async def new_connections(place: Place) -> None:
    async with grpc.aio.insecure_channel(place.address, options=OWN_CONNECTION) as channel:
        agent = ScriptedAgent(channel, place.agent.tenant, place.agent.agent, (), place.agent.session)
        await replace(place, agent=agent).opened("Control_Heartbeat")


async def _read_all(stream: AgentStream) -> None:
    while await stream.call.read() is not grpc.aio.EOF:
        pass


async def _send_all(stream: AgentStream, **payload: Any) -> None:
    while True:
        await stream.send(**payload)
        counted["messages"] += 1


def _by_name(*attacks: T) -> dict[str, T]:
    return {attack.__name__: attack for attack in attacks}  # type: ignore[attr-defined]


#: what `test_attack_memory` measures too
ATTACKS: dict[str, Attack] = _by_name(
    *(compressed_hello, silent_streams, stalled_parts, open_cuts, ends_of_16_mib, errors_on_a_thousand_streams)
)
HOSTILE_STREAMS: dict[str, HostileStream] = _by_name(
    *(
        errors,
        largest_frames,
        large_messages,
        log_lines,
        heartbeats,
        slow_readers,
        cartographies,
        reports,
        batches_without_credit,
        never_ending,
    ),
    *(malformed, oversized, replayed, unopened, opened_and_closed, opened_and_left, new_connections),
)


async def on_a_thousand_streams(hostile: HostileStream, address: str, ends: AsyncExitStack) -> None:
    """Until it is cancelled."""

    async def again(place: Place) -> None:
        while True:
            counted["streams"] += 1
            with suppress(*ENDS):
                await hostile(place)

    places = []
    for number in range(AGENTS):
        name = f"agent-{number}"
        sources = [f"{name}-{source}" for source in range(STREAMS // AGENTS)]
        channel = await ends.enter_async_context(grpc.aio.insecure_channel(address, options=OWN_CONNECTION))
        agent = ScriptedAgent(channel, "acme", name, (*sources, names()[number % SOURCES]))
        await (await agent.open("Control_Config")).expect("hello_ack")
        places += [Place(address, agent, source, names()[number % SOURCES]) for source in sources]
    print("begins", flush=True)  # noqa: T201
    await asyncio.gather(*map(again, places))


async def _again(attack: Attack, address: str) -> None:
    print("begins", flush=True)  # noqa: T201
    while True:
        counted["streams"] += 1
        with suppress(*ENDS):
            async with AsyncExitStack() as ends:
                await attack(address, ends)


async def main(name: str, address: str) -> None:
    """Until SIGTERM, which has it say how much it did."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        async with AsyncExitStack() as ends:
            if name in HOSTILE_STREAMS:
                await on_a_thousand_streams(HOSTILE_STREAMS[name], address, ends)
            else:
                await _again(ATTACKS[name], address)
    except asyncio.CancelledError:
        print(json.dumps(counted), flush=True)  # noqa: T201
        os._exit(0)  # a thousand streams that are closed in order take long


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
