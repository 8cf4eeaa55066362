"""A database's host for tests that runs systemd: a bare Debian in a folder, booted in namespaces of its own.

Comes in: the folder that `.ci/setup agent-host` has unpacked. A copy of it is the root of a process 1 that is systemd,
in a network whose loopback is all there is: a door listens there, and dials on this machine. `power_off` is what a cut
of the power is: each process is gone at once. What was written stays, and `boot` goes on with it.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from tests.install.secured_host import END_SECONDS, door, run_there
from tests.needs import needs_setup
from tests.servers import ROOT
from tests.stack import wait_for

UNPACKED = ROOT / ".servers/booted-host"
_CGROUPS = Path("/sys/fs/cgroup")
#: $0: the root; what systemd finds in it is its own
_BOOT = """
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs dev
for each in null zero full random urandom tty; do touch dev/$each; mount --bind /dev/$each dev/$each; done
mkdir -p dev/shm dev/pts dev/mqueue .former
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
if [ -d /sys/fs/cgroup/systemd ]; then
    mount -t tmpfs tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
else
    mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
ip link set lo up
pivot_root . .former
cd /
exec env -i container=menura PATH=/usr/sbin:/usr/bin:/sbin:/bin sh -c \\
    'umount -l /.former; mount --make-rshared /; exec /lib/systemd/systemd --show-status=0 --unit=multi-user.target'
"""


#: what the above needs of a machine that may itself be a container
_SPACES = ("--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--net", "--cgroup")
_PROBE = """
mount -t tmpfs tmpfs /mnt
mkdir /mnt/cgroup
if [ -d /sys/fs/cgroup/systemd ]; then
    mount -t cgroup -o none,name=systemd cgroup /mnt/cgroup
else
    mount -t cgroup2 cgroup2 /mnt/cgroup
fi
"""


@cache
def _what_is_missing() -> str:
    """Why this machine can't boot another one in namespaces; empty: it can."""
    probe = ["unshare", *_SPACES, "--propagation", "private", "sh", "-ec", _PROBE]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return done.stderr.strip() or f"unshare ended with {done.returncode}"
    try:
        for folder in _groups(f"menura-{os.getpid()}-probe"):
            folder.mkdir()
            folder.rmdir()
    except OSError as refused:
        return str(refused)
    return ""


def _groups(name: str) -> list[Path]:
    """Of a host, in each hierarchy of cgroups that systemd uses."""
    found = [_CGROUPS / each / name for each in ("systemd", "unified") if (_CGROUPS / each).is_dir()]
    return found or [_CGROUPS / name]


@dataclass
class BootedHost:
    root: Path
    doors: Mapping[int, int]
    #: process 1, as this machine numbers it
    process: int = 0
    _open: ExitStack = field(default_factory=ExitStack)

    def boot(self) -> None:
        folders = _groups(f"menura-{os.getpid()}-{self.root.name}")
        for folder in folders:
            folder.mkdir(exist_ok=True)
        entered = "; ".join(f"echo $$ >{folder}/cgroup.procs" for folder in folders)
        within = f"unshare {' '.join(_SPACES)} --propagation private sh -ec {shlex.quote(_BOOT)}"
        # Nothing of it outlives the test, whatever ends that.
        words = ["setpriv", "--pdeathsig", "KILL", "sh", "-ec", f'{entered}; exec {within} "$0"', str(self.root)]
        holder = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        self._open.callback(_end, holder, folders)
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        wait_for("systemd to be process 1", lambda: _is_systemd(children), END_SECONDS)
        self.process = int(children.read_text())
        for at, port in self.doors.items():
            self._open.enter_context(door(self.process, at, port))
        wait_for("the host to be up", lambda: self._state() in ("running", "degraded"), END_SECONDS)

    def power_off(self) -> None:
        self._open.close()
        self._open = ExitStack()

    def _command(self, *command: str) -> list[str]:
        return ["nsenter", "--target", str(self.process), "--all", *command]

    def _state(self) -> str:
        words = self._command("systemctl", "is-system-running")
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()

    def run(self, script: str, given: str = "") -> str:
        """What the script prints, as root in /root; it has to succeed."""
        return run_there(self._command, script, given)

    def shows(self, unit: str, *properties: str) -> dict[str, str]:
        """As systemd has them."""
        names = " ".join(f"--property={name}" for name in properties)
        lines = self.run(f"systemctl show {unit} {names}").splitlines()
        return dict(line.split("=", 1) for line in lines)


def _is_systemd(children: Path) -> bool:
    with suppress(FileNotFoundError, ValueError):
        return Path(f"/proc/{int(children.read_text())}/comm").read_text().strip() == "systemd"
    return False


def _end(holder: subprocess.Popen[bytes], folders: list[Path]) -> None:
    """With process 1 of a namespace all others of it go."""
    holder.kill()
    holder.wait()
    for folder in folders:

        def is_gone(folder: Path = folder) -> bool:
            for below in sorted(folder.rglob("cgroup.procs"), reverse=True):
                with suppress(OSError):
                    below.parent.rmdir()
            return not folder.exists()

        wait_for(f"{folder} to be empty", is_gone, END_SECONDS)


@contextmanager
def booted_host(folder: Path, doors: Mapping[int, int]) -> Iterator[BootedHost]:
    """`doors`: ports of its loopback, and where on this machine each leads."""
    needs_setup("a host with systemd")
    if not (UNPACKED / "ready").exists():
        assert "CI" not in os.environ, ".ci/setup agent-host unpacks a host"
        pytest.skip("needs root and a bare Debian: .ci/setup agent-host")
    if _what_is_missing():
        pytest.skip(f"no host can be booted here: {_what_is_missing()}")
    subprocess.run(["cp", "--archive", "--reflink=auto", str(UNPACKED), str(folder)], check=True)
    host = BootedHost(folder, doors)
    try:
        host.boot()
        yield host
    finally:
        host.power_off()
