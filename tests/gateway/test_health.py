"""Whether a gateway lives and is ready, as probes see it."""

import asyncio
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
from menura.health import Health, Pulse, Readiness

from gateway.grpc_health import NOT_SERVING, SERVING
from gateway.metrics import GatewayMetrics, serving_metrics
from tests.gateway.harness import running_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.stack import wait_for


def probed(address: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{address}{path}", timeout=300) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_livez_when_the_event_loop_hangs_then_it_says_so_and_recovers() -> None:
    pulse, goes_on = Pulse("the event loop", still_seconds=3), threading.Event()

    async def hang() -> None:
        beating = asyncio.create_task(pulse.run())
        await asyncio.sleep(0)
        assert goes_on.wait(300)  # the loop stands still
        await asyncio.to_thread(wait_for, "a sign of life", lambda: probed(address, "/livez") == (200, "ok\n"))
        beating.cancel()

    with serving_metrics("127.0.0.1:0", GatewayMetrics(), Health(lifeless=pulse.stopped)) as address:
        assert probed(address, "/livez") == (200, "ok\n")  # it has not begun
        running = threading.Thread(target=lambda: asyncio.run(hang()))
        running.start()
        wait_for("no sign of life", lambda: probed(address, "/livez")[0] == 503)
        assert probed(address, "/livez")[1].startswith("the event loop has stood still for ")
        assert probed(address, "/readyz") == (200, "ok\n")
        goes_on.set()
        running.join()


def test_readyz_when_the_database_goes_away_then_it_and_grpc_say_so_until_it_is_back(tmp_path: Path) -> None:
    registry, readiness = MemoryRegistry(), Readiness()

    async def asked(channel: grpc.aio.Channel, service: bytes = b"") -> bytes:
        answer: bytes = await channel.unary_unary("/grpc.health.v1.Health/Check")(service)
        return answer

    async def until(channel: grpc.aio.Channel, answer: bytes) -> None:
        async with asyncio.timeout(300):
            while await asked(channel) != answer:
                await asyncio.sleep(0.05)

    async def scenario() -> list[str]:
        running = running_gateway(tmp_path, registry, readiness=readiness, lease_seconds=0.3)
        async with running as gateway, grpc.aio.insecure_channel(gateway) as channel:
            await until(channel, SERVING)
            assert await asked(channel, b"\x0a\x11menura.v1.Gateway") == SERVING
            registry.away = True
            await until(channel, NOT_SERVING)
            found = readiness.reasons()
            registry.away = False
            await until(channel, SERVING)
            unknown = await asyncio.gather(asked(channel, b"\x0a\x03abc"), return_exceptions=True)
        assert isinstance(unknown[0], grpc.aio.AioRpcError)
        assert unknown[0].code() is grpc.StatusCode.NOT_FOUND
        return found

    assert asyncio.run(scenario()) == ["the gateway's lease is not renewed: the database is away or refuses"]
    assert readiness.reasons() == ["the gateway is stopping"]
