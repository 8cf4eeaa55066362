"""What a gateway tells Prometheus."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from gateway.errors import GatewayError, GatewayStopping, ListenRefused
from gateway.metrics import CERTIFICATES, FIGURES, REFUSALS, GatewayMetrics, serving_metrics
from tests.exit_codes_page import below
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import commit_cut, scripted_agent
from tests.metrics_token import token_file


def scraped(address: str) -> dict[str, float]:
    with urlopen(f"http://{address}/metrics", timeout=300) as answer:
        lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_metrics_when_scraped_then_each_figure_of_the_gateway_is_that_of_now(tmp_path: Path) -> None:
    registry, metrics = MemoryRegistry(), GatewayMetrics()
    registry.want("acme", "shop", "orders")

    async def scenario(address: str) -> tuple[dict[str, float], dict[str, float]]:
        before = await asyncio.to_thread(scraped, address)
        async with AsyncExitStack() as agents, running_gateway(tmp_path, registry, metrics) as gateway:
            agent = await agents.enter_async_context(scripted_agent(gateway, "shop"))
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))
            running = await asyncio.to_thread(scraped, address)
        return before, running

    with serving_metrics("127.0.0.1:0", metrics) as address:
        before, running = asyncio.run(scenario(address))
        after = scraped(address)
    codes = {f'{REFUSALS.name}{{code="{each.code}"}}' for each in below(GatewayError)}
    own = {name for name in before if name.startswith("menura_")}
    assert own == {figure.name for figure in FIGURES if not figure.labels} - {CERTIFICATES.name} | codes
    assert not any(before[name] for name in own)
    assert before["process_resident_memory_bytes"] > 0
    assert not any(running[name] for name in codes)
    assert (running["menura_landing_committed_rows_total"], running["menura_landing_cuts_total"]) == (10, 1)
    assert {name: after[name] for name in own - codes} == {name: float(getattr(metrics, name)) for name in own - codes}
    ended = {name: after[name] for name in codes if after[name]}
    assert ended.keys() <= {f'{REFUSALS.name}{{code="{GatewayStopping.code}"}}'}, "of streams that the end has met open"
    assert sum(ended.values()) == after["menura_session_errors_total"]


@pytest.mark.parametrize("listen", ["", "nonsense", "127.0.0.1:x", "127.0.0.1:99999", "192.0.2.1:0"])
def test_metrics_when_the_address_can_not_be_listened_on_then_the_gateway_does_not_start(
    listen: str, tmp_path: Path
) -> None:
    serving = serving_metrics(listen, GatewayMetrics(), token_file=token_file(tmp_path))
    with pytest.raises(ListenRefused, match="can't be listened on"), serving:
        raise AssertionError("unreachable")
