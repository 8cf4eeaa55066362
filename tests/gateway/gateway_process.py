"""A gateway process as it is run, with its defaults, for tests that attack it; and what it takes of memory."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gateway.registry import SourceKey
from tests.gateway.sql_registry import open_registry, want
from tests.servers import ROOT, free_port
from tests.stack import MENURA

#: of the hostile tenant
SOURCES = 12
TABLES = 8

Process = subprocess.Popen[bytes]


def names() -> list[str]:
    """The hostile tenant's sources of which tables are wanted."""
    return [f"source-{number}" for number in range(SOURCES)]


@contextmanager
def gateway_process(folder: Path, log: IO[bytes] | None = None) -> Iterator[tuple[str, Process]]:
    """Its address, with the tables of tenant acme wanted, and one of globex; `log`: where its lines go."""
    file, port = folder / "control.db", free_port()
    database, _ = open_registry(file)
    want(database, SourceKey("globex", "shop"), "orders")
    for name in names():
        want(database, SourceKey("acme", name), *(f"table_{number}" for number in range(TABLES)))
    database.close()
    listen, data = ("--listen", f"127.0.0.1:{port}"), ("--landing", str(folder / "landing"))
    command = [*MENURA, "gateway", "run", "--database", f"sqlite:///{file}", *data, *listen]
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait()


def memory_bytes(process: Process, name: str) -> int:
    """Of the process, as the kernel names it: VmRSS, or VmHWM."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10
