"""What a stream's blocking work says when nobody waits for it any more."""

import asyncio
import errno
import logging
import threading

import pytest

from gateway.landing_parts import LandingJobs
from gateway.metrics import GatewayMetrics
from gateway.registry import SourceKey
from gateway.threads import threads


def test_work_when_it_fails_behind_the_end_of_its_stream_then_the_log_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics, begun, free = GatewayMetrics(), threading.Event(), threading.Event()

    def put() -> None:
        begun.set()
        free.wait()
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        with threads(1) as pools:
            owner = ("acme", "db-1")
            jobs = LandingJobs(pools.landing, metrics, SourceKey("acme", "shop"), owner, "landing a batch")
            stream = asyncio.create_task(jobs.run(put))
            await asyncio.to_thread(begun.wait)
            stream.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stream
            free.set()
            await jobs.settle()
            await jobs.settle()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    (said,) = caplog.messages
    assert said.startswith("landing a batch of acme/shop failed behind the end of its stream: [Errno 28] No space left")
    assert "the agent reads again" in said and said.endswith("it is tried again by itself")
    assert metrics.menura_landing_failures_total == 1
