"""A database's host for tests: a bare Debian with Python in a folder, and a network in which ports are doors elsewhere.

Comes in: the folder that `.ci/setup agent-host` has unpacked. Each command runs with a copy of it as its root, in a
network namespace whose loopback is all there is: a door listens there, and dials on this machine. No systemd runs: what
`systemctl start` would do with the unit, as its user and with its credentials, `service` does. Nothing stays of it.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.balancer import Balancer
from tests.needs import needs_setup
from tests.servers import ROOT
from tests.stack import wait_for

UNPACKED = ROOT / ".servers/agent-host"
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
END_SECONDS = 300
_UNIT = Path("usr/lib/systemd/system/menura-agent.service")
_CREDENTIALS = Path("run/credentials/menura-agent.service")
_CLONE_NEWNET = 0x40000000


def run_there(command: Callable[..., list[str]], script: str, given: str) -> str:
    """What the script prints in /root; it has to succeed. `command`: what runs words on the host."""
    done = subprocess.run(
        command("/bin/sh", "-ec", f"cd /root\n{script}"),
        input=given, capture_output=True, text=True, check=False, timeout=END_SECONDS,
        env={"PATH": PATH, "HOME": "/root"},
    )  # fmt: skip
    assert done.returncode == 0, f"{script}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass
class Host:
    root: Path
    #: of a process in its network
    network: int

    def _command(self, *command: str) -> list[str]:
        mounted = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        inside = ["unshare", "--mount", "sh", "-c", mounted, str(self.root), *command]
        return ["nsenter", f"--net=/proc/{self.network}/ns/net", *inside]

    def run(self, script: str, given: str = "") -> str:
        """What the script prints, as root in /root; it has to succeed."""
        return run_there(self._command, script, given)

    @contextmanager
    def service(self, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
        """The unit's process, and what it tells its service manager; it has to end well when it is told to."""
        unit = (self.root / _UNIT).read_text().splitlines()
        entries = dict(line.split("=", 1) for line in unit if "=" in line)
        given, _, folder = entries["LoadCredential"].partition(":")
        credentials = self.root / _CREDENTIALS
        credentials.mkdir(parents=True)
        for file in (self.root / folder[1:]).iterdir():
            shutil.copy(file, credentials / f"{given}_{file.name}")
        user = entries["User"]
        self.run(f"chown -R {user}: /{_CREDENTIALS} && chmod -R u=rX,go= /{_CREDENTIALS}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        listener.setblocking(False)
        listener.bind(str(self.root / "run/notify"))
        (self.root / "run/notify").chmod(0o777)
        demoted = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
        words = self._command(*demoted, "--inh-caps=-all", "--bounding-set=-all", *entries["ExecStart"].split())
        environment = {"PATH": PATH, "NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "3000000"}
        with log.open("wb") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment)
        try:
            yield process, listener
            process.send_signal(signal.SIGTERM)
            assert process.wait(END_SECONDS) == 0, log.read_text()[-4000:]
        finally:
            process.kill()
            process.wait()
            listener.close()
            shutil.rmtree(credentials)


@contextmanager
def secured_host(folder: Path, doors: Mapping[int, int]) -> Iterator[Host]:
    """`doors`: ports of its loopback, and where on this machine each leads."""
    needs_setup("programs in a root of their own")
    if not (UNPACKED / "ready").exists():
        assert "CI" not in os.environ, ".ci/setup agent-host unpacks a host"
        pytest.skip("needs root and a bare Debian: .ci/setup agent-host")
    subprocess.run(["cp", "--archive", "--reflink=auto", str(UNPACKED), str(folder)], check=True)
    lo_up = "ip link set lo up && echo up && exec sleep infinity"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", lo_up], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
            with ExitStack() as opened:
                for at, port in doors.items():
                    opened.enter_context(door(holder.pid, at, port))
                yield Host(folder, holder.pid)
        finally:
            holder.kill()


def door(network: int, at: int, port: int) -> Balancer:
    """Made by a thread that is in that network from then on; those that dial are not."""

    def make() -> Balancer:
        with Path(f"/proc/{network}/ns/net").open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        return Balancer(port, at=at)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def wait_told(words: str, service: tuple[subprocess.Popen[bytes], socket.socket], log: Path) -> None:
    """Until the service has told its manager so."""
    process, listener = service

    def look() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        return any(words in each for each in told(listener))

    wait_for(f"the service to tell {words!r}", look, END_SECONDS)


def told(listener: socket.socket) -> list[str]:
    """All that a service has told its manager since."""
    read = []
    with suppress(BlockingIOError):
        while True:
            read.append(listener.recv(4096).decode())
    return read


def listening_ports(process: int) -> set[int]:
    """In the network of a process."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    ]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
