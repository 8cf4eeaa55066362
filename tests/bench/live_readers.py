"""Readers of a page's answers: what the API asks of its database for them, and how soon all of them are told.

    python -m tests.bench.live_readers [READERS]

They follow what the page of tables shows, of 100 tables in SQLite, over connections of their own to an API in this
process, whose CPU has theirs in it.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode, urlsplit

from menura.open_files import use_hard_limit
from sqlalchemy import event

from controlplane_api.database import open_database
from controlplane_api.registry.sql_registry import SqlRegistry
from tests.controlplane_api import facts
from tests.controlplane_api.conftest import serving
from tests.controlplane_api.facts import LANDING, cut, entry
from tests.controlplane_api.test_api import SHOP

ADDRESSES = ("/api/v1/fleet?limit=1000", SHOP, f"{SHOP}/tables?limit=100")
SECONDS = 20.0
#: opened at a time
AT_ONCE = 20


async def read(port: int, told: list[int], number: int) -> None:
    """`told`: how many answers each reader has been told."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    query = urlencode([("address", address) for address in ADDRESSES])
    writer.write(f"GET /api/v1/tenants/acme/live?{query} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    try:
        while line := await reader.readline():
            told[number] += line.startswith(b'data: {"number"')
    finally:
        writer.close()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")


def cpu_seconds() -> float:
    return sum(os.times()[:2])


async def measure(port: int, readers: int, statements: list[int], registry: SqlRegistry) -> None:
    told = [0] * readers
    tasks = []
    for number in range(readers):
        tasks.append(asyncio.create_task(read(port, told, number)))
        if number % AT_ONCE == 0:
            await asyncio.sleep(0.05)
    while min(told) < len(ADDRESSES):
        await asyncio.sleep(0.1)
    before, cpu = statements[0], cpu_seconds()
    await asyncio.sleep(SECONDS)
    say(f"at rest: {rates(statements[0] - before, cpu_seconds() - cpu, SECONDS)}")
    waits: list[float] = []
    before, cpu, began = statements[0], cpu_seconds(), time.monotonic()
    while (elapsed := time.monotonic() - began) < SECONDS:
        least, at = min(told), time.monotonic()
        number = len(waits) + 1
        await asyncio.to_thread(registry.apply_entry, LANDING, entry(number, cut(number)))
        while min(told) == least:
            await asyncio.sleep(0.01)
        waits.append(time.monotonic() - at)
    say(f"with {len(waits)} cuts one after the other: {rates(statements[0] - before, cpu_seconds() - cpu, elapsed)}")
    say(f"until the last reader is told: mean {sum(waits) / len(waits):.2f} s, most {max(waits):.2f} s")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def rates(statements: int, cpu: float, seconds: float) -> str:
    return f"{statements / seconds:.1f} statements a second, {cpu / seconds:.2f} cores"


def main(readers: int) -> None:
    use_hard_limit()
    with TemporaryDirectory() as folder:
        database = open_database(f"sqlite:///{Path(folder) / 'control.db'}")
        registry = SqlRegistry(database)
        facts.record_shop(registry, *(f"table_{number}" for number in range(100)))
        statements = [0]

        def count(*_arguments: object) -> None:
            statements[0] += 1

        event.listen(database.engine, "before_cursor_execute", count)
        with serving(database) as url:
            asyncio.run(measure(urlsplit(url).port or 0, readers, statements, registry))
        database.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
