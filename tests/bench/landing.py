"""How fast the gateway lands: a synthetic agent feeds prebuilt batches, so that only the gateway is measured.

`python -m tests.bench.landing [BATCHES]` prints rows/s, the gateway's CPU and memory, and the same rows written by
one plain pyarrow loop in this process as the peer.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import grpc
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from menura.v1.changes_pb2 import ChangeBatch, Replicate

from gateway.registry import SourceKey
from gateway.wire.change_batch import read_batch
from gateway.wire.message import frames_of
from tests.gateway.scripted_agent import (
    OPTIONS,
    ROW_FIELDS,
    UNREPRESENTABLE,
    AgentStream,
    ScriptedAgent,
    change_batch,
    cut_end,
    transactions_batch,
)
from tests.gateway.sql_registry import open_registry, want
from tests.servers import free_port

ROWS = 65_536
#: batches of a cut: about what an agent ends one after
CUT_BATCHES = 8


def table_columns() -> dict[str, pa.Array]:
    """Eleven columns of the usual kinds; no two rows are equal."""
    numbers = [(index * 2_654_435_761) % 4_294_967_291 for index in range(ROWS)]
    return {
        "id": pa.array(range(ROWS), pa.int64()),
        "customer_id": pa.array([n % 100_000 for n in numbers], pa.int32()),
        "sku": pa.array([f"SKU-{n % 50_000:06}" for n in numbers]),
        "quantity": pa.array([n % 100 for n in numbers], pa.int16()),
        "price": pa.array([n % 100_000 for n in numbers], pa.int64())
        .cast(pa.decimal128(19, 0))
        .cast(pa.decimal128(21, 2)),
        "discount": pa.array([n / 7 for n in numbers], pa.float64()),
        "status": pa.array([("new", "paid", "sent", "done")[n % 4] for n in numbers]),
        "note": pa.array([f"order of customer {n % 100_000}, line {n % 17}" for n in numbers]),
        "placed_on": pa.array([n % 20_000 for n in numbers], pa.int32()).cast(pa.date32()),
        "placed_at": pa.array([n * 1000 for n in numbers], pa.int64()).cast(pa.timestamp("us")),
        "changed_at": pa.array([n * 1001 for n in numbers], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }


def prebuilt(run: Replicate, batches: int) -> list[ChangeBatch]:
    columns = table_columns()
    head = [pa.array([0] * ROWS, pa.int8()), None, pa.array([index // 1000 for index in range(ROWS)], pa.int32())]
    own = [pa.field(name, column.type) for name, column in columns.items()]
    schema = pa.schema([*ROW_FIELDS, *own, UNREPRESENTABLE])
    transactions = transactions_batch(ROWS // 1000 + 1)
    made = []
    for number in range(batches):
        head[1] = pa.array(range(run.next_gsn + number * ROWS, run.next_gsn + (number + 1) * ROWS), pa.int64())
        rows = pa.RecordBatch.from_arrays([*head, *columns.values(), pa.nulls(ROWS, pa.string())], schema=schema)
        made.append(change_batch(run, run.next_cut + number // CUT_BATCHES, "orders", rows, transactions))
    return made


async def feed(stream: AgentStream, run: Replicate, batches: list[ChangeBatch]) -> None:
    for number, batch in enumerate(batches, 1):
        await stream.send_batch(batch)
        if number % CUT_BATCHES == 0 or number == len(batches):
            await stream.send(cut_end=cut_end(run, batch.cut, batch.last_gsn))
    while (await stream.expect("cut_committed", 120)).cut < batches[-1].cut:
        pass


def peer(batches: list[ChangeBatch], file: Path) -> float:
    """CPU seconds of decoding and writing the same batches without a gateway."""
    before = time.process_time()
    writer = None
    for batch in batches:
        landed = read_batch(batch, frames_of(batch), 0)
        assert landed is not None
        writer = writer or pq.ParquetWriter(
            file,
            landed.rows.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=["_change_type", "_position"],
        )
        writer.write_batch(landed.rows)
    assert writer is not None
    writer.close()
    return time.process_time() - before


async def measure(folder: Path, batch_count: int) -> None:
    database, _ = open_registry(folder / "control.db")
    want(database, SourceKey("acme", "shop"), "orders")
    database.close()
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gateway.killable", str(folder / "landing"), str(folder / "control.db"), str(port)]
    )
    try:
        gateway = psutil.Process(process.pid)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            await channel.channel_ready()
            agent = ScriptedAgent(channel, "acme", "agent-1", ("shop",))
            control = await agent.open("Control_Config")
            await control.expect("hello_ack")
            stream, run = await agent.open_binlog("shop")
            batches = prebuilt(run, batch_count)
            cpu_before, began, own_cpu = sum(gateway.cpu_times()[:2]), time.perf_counter(), time.process_time()
            await feed(stream, run, batches)
            wall, cpu = time.perf_counter() - began, sum(gateway.cpu_times()[:2]) - cpu_before
            own_cpu = time.process_time() - own_cpu
            peak_rss = next(
                int(line.split()[1]) * 1024
                for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
                if line.startswith("VmHWM")
            )
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
    rows = batch_count * ROWS
    wire = sum(len(batch.rows) + len(batch.transactions) for batch in batches)
    plain_cpu = peer(batches, folder / "peer.parquet")
    sys.stdout.write(
        f"{rows:,} rows, {wire / rows:.0f} B/row on the wire: {rows / wall:,.0f} rows/s, "
        f"gateway {cpu / rows * 1e6:.2f} CPU s per million rows ({cpu / plain_cpu:.2f} times a plain pyarrow loop), "
        f"synthetic agent {own_cpu / rows * 1e6:.2f}, gateway's peak memory {peak_rss >> 20} MiB\n"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(measure(Path(scratch), int(sys.argv[1]) if len(sys.argv) > 1 else 64))
