"""The readers that a benchmark compares, each in a process of its own, measured by the kernel.

What a reader is given: a server, a case (file and GTID set where it begins) and how many rows it holds.
What comes back: rows, wall and CPU seconds, and the process's peak resident memory.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import psutil
from menura.landing import decode_entry, entry_path

from tests.bench.workload import Case
from tests.servers import ROOT, SERVERS, Server
from tests.stack import Process, Stack, stack, wait_for

#: the giant transaction is one cut
LONGEST_CUT_SECONDS = 600
CONNECTORX = Path(__file__).with_name("connectorx.txt")
GO_MYSQL = Path(__file__).with_name("go_mysql")


@dataclass(frozen=True)
class Measure:
    case: str
    reader: str
    rows: int
    wall_s: float
    cpu_s: float
    peak_rss_bytes: int


Reader = Callable[[Server, Case], Measure]


class AnyCase(Protocol):
    """Of any kind of source."""

    @property
    def name(self) -> str: ...
    @property
    def rows(self) -> int: ...


def mysqlbinlog(server: Server, case: Case) -> Measure:
    """`mysqlbinlog --read-from-remote-server --raw`: copies the log, decodes nothing."""
    root = SERVERS / "mysql"
    binary = root / "usr/bin/mysqlbinlog"
    loader = [str(root / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", str(root / "usr/lib/x86_64-linux-gnu")]
    command = [*loader, str(binary)] if binary.exists() else [shutil.which("mysqlbinlog") or "mysqlbinlog"]
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-defaults", "--read-from-remote-server", "--raw", f"--result-file={folder}/"]
        login = [
            f"--host={server.host}",
            f"--port={server.port}",
            "--user=menura",
            "--password=menura-secret",
            "--ssl-mode=DISABLED",
        ]
        return measured("mysqlbinlog", case, [*command, *options, *login, "--get-server-public-key", case.file])


def mysql_replication(server: Server, case: Case) -> Measure:
    """python-mysql-replication: each row as Python objects."""
    return _in_python("mysql-replication", "mysql_replication", server, case)


def menura_decode(server: Server, case: Case) -> Measure:
    """The compiled core alone: receive, check CRC32, decode into Arrow columns, drop them."""
    return _in_python("menura-decode", "decode", server, case)


def go_mysql(server: Server, case: Case) -> Measure:
    """go-mysql's documented loop: each row as Go values."""
    return _in_go("go-mysql", "default", server, case)


def go_mysql_tuned(server: Server, case: Case) -> Measure:
    """go-mysql with the least work that it can be set to do."""
    return _in_go("go-mysql-tuned", "tuned", server, case)


def menura_select(server: Server, case: Case) -> Measure:
    """One SELECT over one connection into Arrow columns, which are dropped: what connectorx does."""
    return _of_table("menura-select", [sys.executable, "-m", "tests.bench.dump"], server, case)


def menura_dump(server: Server, case: Case) -> Measure:
    """The same, with each batch encoded as it travels."""
    return _of_table("menura-dump", [sys.executable, "-m", "tests.bench.dump", "--encode"], server, case)


def connectorx(server: Server, case: Case) -> Measure:
    """connectorx: one SELECT over one connection into Arrow columns, by the binary protocol."""
    command = [sys.executable, "-m", "tests.bench.connectorx_select"]
    return _of_table("connectorx", command, server, case, installed("connectorx", CONNECTORX))


def install_peers(readers: Collection[str]) -> None:
    """Before anything is measured: what can't be had is said at once."""
    if "connectorx" in readers:
        installed("connectorx", CONNECTORX)
    if not {"go-mysql", "go-mysql-tuned"}.isdisjoint(readers):
        go_program(GO_MYSQL)


@cache
def installed(package: str, requirements: Path) -> dict[str, str]:
    """An environment with a peer that is installed beside everybody's, for which it is too large."""
    folder = ROOT / "build" / f"bench-{package}"
    if not (folder / package).exists():
        options = ["--quiet", "--no-deps", "--require-hashes", f"--target={folder}"]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, f"--requirement={requirements}"], check=True)
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))}


@cache
def go_program(folder: Path) -> Path:
    """Build a reader; Go keeps what has not changed."""
    binary = ROOT / "build" / f"{folder.name.replace('_', '-')}-reader"
    go = shutil.which("go")
    assert go is not None  # else it is not among the readers
    subprocess.run([go, "build", "-o", binary, "."], cwd=folder, check=True)
    return binary


def _of_table(
    reader: str, command: list[str], server: Server, case: Case, environment: dict[str, str] | None = None
) -> Measure:
    arguments = [server.host, str(server.port), case.table, str(case.rows)]
    return measured(reader, case, [*command, *arguments], environment)


def _in_go(reader: str, mode: str, server: Server, case: Case) -> Measure:
    return measured(
        reader, case, [str(go_program(GO_MYSQL)), server.host, str(server.port), case.file, str(case.rows), mode]
    )


def _in_python(reader: str, module: str, server: Server, case: Case) -> Measure:
    arguments = [server.host, str(server.port), case.file, str(case.rows)]
    return measured(reader, case, [sys.executable, "-m", f"tests.bench.{module}", *arguments])


def measured(reader: str, case: AnyCase, command: list[str], environment: dict[str, str] | None = None) -> Measure:
    """Run to its end; CPU as the kernel accounts it, memory as its high-water mark read last (every 10 ms).

    The kernel's own ru_maxrss won't do: a child begins with its parent's.
    """
    began = time.monotonic()
    peak = 0
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=complaints, env=environment)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            peak = max(peak, peak_resident_bytes(child.pid))
            time.sleep(0.01)
        wall = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            complaints.seek(0)
            complaint = complaints.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{reader} failed on case {case.name} with exit code {child.returncode}: {complaint}")
    return Measure(case.name, reader, case.rows, wall, _cpu_seconds(usage), peak)


def _cpu_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def menura(server: Server, case: Case) -> Measure:
    """The whole agent: read the log, or dump the table; a real gateway beside it lands and commits."""
    return _menura(server, case, "")


def menura_zstd(server: Server, case: Case) -> Measure:
    """The same with less on the wire."""
    return replace(_menura(server, case, "zstd"), reader="menura-zstd")


def _menura(server: Server, case: Case, compression: str) -> Measure:
    start = "dump" if case.name == "dump" else {"position": case.gtid_set}
    with tempfile.TemporaryDirectory() as folder, stack(Path(folder), sink=False, cut_interval_ms=500) as running:
        # without TLS, as python-mysql-replication reads
        agent = running.agent("bench-agent", {"bench": server}, tls_mode="disabled", compression=compression)
        return whole_agent(running, agent, case, "bench", case.table, start)


def whole_agent(running: Stack, agent: Process, case: AnyCase, database: str, table: str, start: object) -> Measure:
    """CPU and memory are the agent's alone. The wall begins with the commit of the start cut, when the command has come
    from the API to the agent and the log has been asked for, and ends with that of the last row.
    """
    with agent:
        path = running.wait_for_table("bench", database, table)
        assert agent.running is not None
        process = psutil.Process(agent.running.pid)
        cpu_before = sum(process.cpu_times()[:2])
        running.post(f"{path}/start", {"start": start})
        began_us, rows = _landed(running, agent, 1)
        committed_at_us, entry = began_us, 1
        while rows < case.rows:
            entry += 1
            committed_at_us, landed = _landed(running, agent, entry)
            rows += landed
        cpu = sum(process.cpu_times()[:2]) - cpu_before
        peak = peak_resident_bytes(agent.running.pid)
    if rows not in (case.rows, case.rows * (2 if case.name == "update" else 1)):
        raise RuntimeError(f"case {case.name}: {rows} rows landed, {case.rows} changes expected")
    return Measure(case.name, "menura", case.rows, (committed_at_us - began_us) / 1e6, cpu, peak)


def _landed(running: Stack, agent: Process, entry: int) -> tuple[int, int]:
    """When an entry of the log was committed, and how many rows it has."""
    path = running.landing / entry_path(entry)
    wait_for(f"log entry {entry}; agent says: {agent.tail(5)}", path.exists, LONGEST_CUT_SECONDS, every=0.02)
    document = decode_entry(path.read_bytes())
    return document.committed_at_us, sum(file.rows for cut in document.cuts for file in cut.files)


def peak_resident_bytes(pid: int) -> int:
    """High-water mark of a process's resident memory; 0 when it has just ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


READERS: dict[str, Reader] = {
    "menura": menura,
    "menura-zstd": menura_zstd,
    "menura-decode": menura_decode,
    "mysqlbinlog": mysqlbinlog,
    "mysql-replication": mysql_replication,
}
if shutil.which("go"):
    READERS |= {"go-mysql": go_mysql, "go-mysql-tuned": go_mysql_tuned}
#: of the case `dump`
TABLE_READERS: dict[str, Reader] = {
    "menura": menura,
    "menura-zstd": menura_zstd,
    "menura-select": menura_select,
    "menura-dump": menura_dump,
    "connectorx": connectorx,
}
