"""The memory of a gateway process under attack, by its RSS: hostile clients over real gRPC, and a tenant who commits.

The bound for all: what an idle gateway takes, and 256 MiB; with a thousand full streams 512 MiB in all. Before, the
same attacks took 3 GiB and more.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from tests.gateway.attacks import ATTACKS, Attack, errors_on_a_thousand_streams
from tests.gateway.gateway_process import gateway_process, memory_bytes
from tests.gateway.scripted_agent import ANSWER_SECONDS, OPTIONS, commit_cut, scripted_agent

MIB = 1 << 20
MOST_GROWN_BYTES = 256 * MIB
#: of a gateway with a thousand hostile streams
MOST_BYTES = 512 * MIB


@pytest.mark.long
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
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
                idle_bytes = memory_bytes(process, "VmRSS")
                await attack(address, ends)
                await commit_cut(stream, run, 2, [2])
                heartbeats = await honest.open("Control_Heartbeat")
                await heartbeats.expect("hello_ack")
                return idle_bytes

        idle_bytes = asyncio.run(scenario())
        highest_bytes = memory_bytes(process, "VmHWM")
    grown_bytes = highest_bytes - idle_bytes
    print(f"{attack.__name__}: {idle_bytes >> 20} MiB, and {grown_bytes >> 20} MiB")  # noqa: T201
    if attack is errors_on_a_thousand_streams:
        assert highest_bytes < MOST_BYTES
    else:
        assert grown_bytes < MOST_GROWN_BYTES
