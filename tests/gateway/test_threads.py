"""The gateway's threads: what they change for the whole process ends with them."""

import asyncio
import sys

from gateway.threads import SWITCH_SECONDS, threads


def test_switch_interval_when_gateways_end_in_any_order_then_it_is_the_processs_own_again_behind_the_last() -> None:
    former = sys.getswitchinterval()
    assert former != SWITCH_SECONDS

    async def gateway(begun: asyncio.Event, end: asyncio.Event) -> None:
        with threads(1):
            begun.set()
            await end.wait()

    async def scenario(order: tuple[int, int]) -> None:
        begun, ends = [asyncio.Event() for _ in order], [asyncio.Event() for _ in order]
        gateways = [asyncio.create_task(gateway(*events)) for events in zip(begun, ends, strict=True)]
        for event in begun:
            await event.wait()
        for number in order:
            assert sys.getswitchinterval() == SWITCH_SECONDS
            ends[number].set()
            await gateways[number]

    for order in ((0, 1), (1, 0)):
        asyncio.run(scenario(order))
        assert sys.getswitchinterval() == former
