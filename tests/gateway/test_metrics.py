"""What a gateway tells Prometheus."""

import asyncio
from pathlib import Path
from urllib.request import urlopen

import pytest

from gateway.errors import ListenRefused
from gateway.metrics import GatewayMetrics, serving_metrics
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import commit_cut, scripted_agent


def scraped(address: str) -> dict[str, float]:
    with urlopen(f"http://{address}/metrics", timeout=300) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_metrics_when_scraped_then_each_figure_of_the_gateway_is_that_of_now(tmp_path: Path) -> None:
    registry, metrics = MemoryRegistry(), GatewayMetrics()
    registry.want("acme", "shop", "orders")

    async def scenario(address: str) -> dict[str, float]:
        before = await asyncio.to_thread(scraped, address)
        async with (
            running_gateway(tmp_path, registry, metrics) as gateway,
            scripted_agent(gateway, "shop") as agent,
        ):
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))
        return before

    with serving_metrics("127.0.0.1:0", metrics) as address:
        before = asyncio.run(scenario(address))
        after = scraped(address)
    assert set(before) == set(GatewayMetrics.__slots__)
    assert not any(before.values())
    assert after == {name: float(getattr(metrics, name)) for name in before}
    assert (after["menura_landing_committed_rows_total"], after["menura_landing_cuts_total"]) == (10, 1)


@pytest.mark.parametrize("listen", ["", "nonsense", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.1:0"])
def test_metrics_when_the_address_can_not_be_listened_on_then_the_gateway_does_not_start(listen: str) -> None:
    with pytest.raises(ListenRefused, match="can't be listened on"), serving_metrics(listen, GatewayMetrics()):
        raise AssertionError("unreachable")
