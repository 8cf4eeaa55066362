"""The gateway's memory with rows of many MiB: 192 MiB, four of the largest row, and one more for each stream."""

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from gateway.registry import SourceKey
from tests.gateway.scripted_agent import OPTIONS, ScriptedAgent, change_batch, cut_end, rows_batch
from tests.gateway.sql_registry import open_registry, want
from tests.servers import free_port

MIB = 1 << 20
FIXED_BYTES, ROWS_AT_ONCE, GRPC_COPIES = 192 * MIB, 4, 2
#: seven bits of each byte are chance, so that a row can't be compressed to less than 7/8
_SEVEN_BITS = bytes(octet & 0x7F for octet in range(256))
ANSWER_SECONDS = 300.0


@pytest.mark.long
@pytest.mark.parametrize("size_mib", [15, 63])
def test_memory_of_a_gateway_when_rows_are_large_then_is_bounded_by_them(size_mib: int, tmp_path: Path) -> None:
    peak_bytes = _peak_bytes(tmp_path, ("acme",), size_mib)
    assert peak_bytes <= FIXED_BYTES + (ROWS_AT_ONCE + 1) * size_mib * MIB


@pytest.mark.long
def test_memory_of_a_gateway_when_three_tenants_send_large_rows_at_once_then_each_adds_one_of_them(
    tmp_path: Path,
) -> None:
    tenants, size_mib = ("acme", "brook", "cedar"), 31
    peak_bytes = _peak_bytes(tmp_path, tenants, size_mib)
    assert peak_bytes <= FIXED_BYTES + (ROWS_AT_ONCE + GRPC_COPIES + len(tenants)) * size_mib * MIB


def _peak_bytes(folder: Path, tenants: Sequence[str], size_mib: int) -> int:
    """Of a gateway to which each tenant sends five rows, all tenants at once."""
    landing, file, port = folder / "landing", folder / "control.db", free_port()
    database, _ = open_registry(file)
    for tenant in tenants:
        want(database, SourceKey(tenant, "shop"), "orders")
    command = [sys.executable, "-m", "tests.gateway.killable", str(landing), str(file), str(port)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    try:
        asyncio.run(_send_all(f"127.0.0.1:{port}", tenants, size_mib))
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    finally:
        process.terminate()
        process.wait()
    assert found is not None
    print(f"gateway, {len(tenants)} x {size_mib} MiB: {int(found[1]) >> 10}")  # noqa: T201
    return int(found[1]) << 10


async def _send_all(address: str, tenants: Sequence[str], size_mib: int) -> None:
    await asyncio.gather(*(_send(address, tenant, size_mib) for tenant in tenants))


async def _send(address: str, tenant: str, size_mib: int) -> None:
    """Cuts of a row each, under credit, and one of three rows in batches of their own."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await asyncio.wait_for(channel.channel_ready(), ANSWER_SECONDS)
        agent = ScriptedAgent(channel, tenant, "agent-1", ("shop",))
        await agent.open("Control_Config")
        stream, run = await agent.open_binlog("shop")
        gsn = run.next_gsn
        for cut, rows in enumerate((1, 1, 3), start=run.next_cut):
            for _ in range(rows):
                note = random.Random(gsn).randbytes(size_mib * MIB).translate(_SEVEN_BITS).decode()
                await stream.wait_credit(ANSWER_SECONDS)
                await stream.send_batch(change_batch(run, cut, "orders", rows_batch([gsn], note=note)))
                gsn += 1
            await stream.send(cut_end=cut_end(run, cut, gsn - 1))
        while (await stream.expect("cut_committed", ANSWER_SECONDS)).cut < run.next_cut + 2:
            continue
