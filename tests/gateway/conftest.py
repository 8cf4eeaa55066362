"""A gateway in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gateway.config import GatewayConfig
from gateway.metrics import GatewayMetrics
from gateway.registry import Registry
from gateway.server import serve

Gateway = Callable[..., AbstractAsyncContextManager[str]]


@asynccontextmanager
async def running_gateway(
    landing: Path | str, registry: Registry, metrics: GatewayMetrics | None = None, **settings: Any
) -> AsyncIterator[str]:
    """The address of a gateway that serves until the block ends, and stops without a failure."""
    settings = {"listen": "127.0.0.1:0", "commit_spacing_ms": 10, "poll_seconds": 0.05, **settings}
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(GatewayConfig(str(landing), **settings), registry, stop, ready.set_result, metrics)
    )
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield ready.result()
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await task


@pytest.fixture
def gateway() -> Gateway:
    return running_gateway
