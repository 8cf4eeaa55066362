"""A gateway in this process, and what it has landed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from menura.health import Readiness
from menura.landing import LogEntry, decode_entry, entry_path

from gateway.config import GatewayConfig
from gateway.identity import Authority
from gateway.metrics import GatewayMetrics
from gateway.registry import Registry
from gateway.server import serve


@asynccontextmanager
async def running_gateway(
    landing: Path | str,
    registry: Registry,
    metrics: GatewayMetrics | None = None,
    authority: Authority | None = None,
    readiness: Readiness | None = None,
    **settings: Any,
) -> AsyncIterator[str]:
    """The address of a gateway that serves until the block ends, and stops without a failure."""
    settings = {"listen": "127.0.0.1:0", "commit_spacing_ms": 10, "poll_seconds": 0.05, **settings}
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(GatewayConfig(str(landing), **settings), registry, stop, ready.set_result, metrics, authority, readiness)
    )
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield ready.result()
    finally:
        stop.set()
        async with asyncio.timeout(300):
            await task


def read_log(landing: Path) -> list[LogEntry]:
    entries = []
    while (path := landing / entry_path(len(entries) + 1)).exists():
        entries.append(decode_entry(path.read_bytes()))
    return entries


def read_rows(landing: Path, entries: list[LogEntry]) -> list[dict]:
    return [
        row
        for entry in entries
        for cut in entry.cuts
        for file in cut.files
        for row in pq.read_table(landing / file.path).to_pylist()
    ]


def landed_gsns(landing: Path) -> list[int]:
    """Row numbers of the whole log, sorted."""
    return sorted(row["_gsn"] for row in read_rows(landing, read_log(landing)))


def data_files(landing: Path) -> list[Path]:
    return sorted(landing.glob("data/**/*.parquet"))
