"""The host of the updater: its places, its package managers, and what systemd says of the agent's service.

Comes in: verified packages. Goes out: the version installed, in the format in which the agent is installed. What a kill
in the middle of an installation leaves, the same installation mends when it runs again.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

COMMAND_SECONDS, LOCK_SECONDS = 900, 600
SERVICE = "menura-agent.service"
_OTHER_FILES = (
    "usr/bin/menura",
    "usr/lib/menura-agent",
    "usr/lib/systemd/system/menura-agent.service",
    "usr/lib/systemd/system/menura-agent-upgrade.path",
    "usr/lib/systemd/system/menura-agent-upgrade.service",
)
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


class Refused(Exception):
    """Nothing of the order is done. `str` is what was found."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.remedy = remedy


class InstallFailed(Exception):
    """Says why."""


@dataclass(frozen=True, slots=True)
class Places:
    root: Path = Path("/")

    @property
    def agent_state(self) -> Path:
        return self.root / "var/lib/menura-agent"

    @property
    def own(self) -> Path:
        return self.root / "var/lib/menura-agent-upgrade"

    @property
    def unfinished(self) -> Path:
        return self.own / "unfinished"

    @property
    def key(self) -> Path:
        return self.root / "etc/menura/packages.pem"

    @property
    def home(self) -> Path:
        return self.root / "opt/menura-agent"


@dataclass(frozen=True, slots=True)
class Service:
    """As systemd sees it: `status` are the words of its process, and of no other."""

    active: str
    #: of systemd, for each start of it another one
    invocation: str
    status: str
    exit_status: str
    restarts: str


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Raises FileNotFoundError, TimeoutExpired."""
    return subprocess.run(
        words, env=_ENVIRONMENT | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", check=False, timeout=COMMAND_SECONDS,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Host:
    places: Places

    def installed(self) -> tuple[str, str]:
        """The package's format, and its version. Raises `Refused`."""
        home = self.places.home
        kind = version = ""
        with suppress(FileNotFoundError):
            kind = (home / "FORMAT").read_text().strip()
        if kind == "deb":
            said = run("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev} ${Version}", "menura-agent").stdout
            version = said.removeprefix("ii").strip() if said.startswith("ii ") else ""
        elif kind == "rpm":
            version = run("rpm", "--query", "--queryformat", "%{VERSION}", "menura-agent").stdout.strip()
        elif kind == "tar":
            names = {path.name.split("-")[1] for path in home.glob("lib/python3.*/menura-*.dist-info")}
            version = names.pop().removesuffix(".dist") if len(names) == 1 else ""
        if re.fullmatch(r"[0-9]+(\.[0-9]+)+", version) is None:
            raise Refused("the agent is not wholly installed as a package", "install its package by hand once")
        return kind, version

    def install(self, kind: str, path: Path) -> None:
        """As by hand, whatever version is there. Raises `InstallFailed`, OSError, TimeoutExpired."""
        if kind == "deb":
            with _dpkg_lock():
                keep = ("--force-confold", "--force-confdef")  # its owner has written the configuration
                done = run("dpkg", "--install", *keep, str(path), DPKG_FRONTEND_LOCKED="true")
        elif kind == "rpm":
            done = run("rpm", "--upgrade", "--oldpackage", "--replacepkgs", "--nosignature", str(path))
        else:
            done = _install_archive(path)
        if done.returncode != 0:
            said = _last_line(done.stderr) or _last_line(done.stdout) or "it has said nothing"
            raise InstallFailed(f"its installation ended with {done.returncode}: {said}")
        os.sync()  # before the journal says that it is there

    def files(self) -> str:
        """Another one after any installed file was written, replaced or removed."""
        seen = hashlib.sha256()
        places = [self.places.home, *(self.places.root / name for name in _OTHER_FILES)]
        for path in sorted(found for place in places for found in (place, *place.rglob("*"))):
            with suppress(FileNotFoundError):
                is_ = path.lstat()
                seen.update(f"{path}\0{is_.st_mode} {is_.st_ino} {is_.st_size} {is_.st_ctime_ns}\0".encode())
        return seen.hexdigest()

    def start(self) -> None:
        """The service, where the installation has not: one that has failed is not started by it."""
        for words in (("daemon-reload",), ("reset-failed", SERVICE), ("--no-block", "start", SERVICE)):
            run("systemctl", *words)

    def service(self) -> Service:
        names = ("ActiveState", "InvocationID", "StatusText", "ExecMainStatus", "NRestarts")
        said = run("systemctl", "show", SERVICE, *(f"--property={name}" for name in names)).stdout
        found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        return Service(*(found.get(name, "") for name in names))


def _install_archive(path: Path) -> subprocess.CompletedProcess[str]:
    folder = path.with_name("unpacked")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    done = run("tar", "--extract", "--gzip", "--no-same-owner", "--file", str(path), "--directory", str(folder))
    if done.returncode == 0:
        (inside,) = folder.iterdir()
        done = run(str(inside / "install"))
    shutil.rmtree(folder, ignore_errors=True)
    return done


@contextmanager
def _dpkg_lock() -> Iterator[None]:
    """That of dpkg's front ends, which are waited for. Raises `InstallFailed`."""
    with Path("/var/lib/dpkg/lock-frontend").open("a") as file:
        for _ in range(LOCK_SECONDS):
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(1)
            else:
                break
        else:
            raise InstallFailed(f"another package manager has had dpkg's lock for {LOCK_SECONDS} s")
        yield


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "".join(sign if sign.isprintable() else " " for sign in lines[-1])[:200] if lines else ""


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """A kill leaves the former file or this one. Raises OSError."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
