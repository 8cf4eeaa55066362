"""What this host's updater gets from the agent, and what it answers: files, which survive the agent's own restart.

Comes in: what a gateway desires, piece by piece. Goes out: in `upgrade` of the state folder each package under its
digest, whole or as far as it has come, then `order.json`, which the updater waits for. A kill leaves a part, which goes
on where it ended, or the order. No name of a gateway is a path. Whatever no order names goes. The updater belongs to
root, and trusts nothing here: deployment/agent_package/root/usr/lib/menura-agent.

::

    {"format": 1, "generation": 3, "package": {"version", "sha256", "size_bytes", "sums", "signature"}, "way_back": ...,
     "invocation": "5f0c...", "at_boot_seconds": 4711.2}      systemd's name of this process, seconds since the boot
    {"format": 1, "invocation": "5f0c...", "sources": {"shop": "", "stock": "SOURCE_UNREACHABLE"}}      beside `upgrade`
    {"format": 1, "generation": 3, "state": "DONE", "version": "0.2.0", "found": "", "remedy": ""}      of root
"""

import base64
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from menura.errors import printable
from menura.v1 import config_pb2

from agent.runtime.state_folder import sync, write_whole

log = logging.getLogger("menura.upgrade")

FORMAT: Final = 1
MAX_PACKAGE_BYTES: Final = 256 << 20
MAX_SUMS_BYTES, MAX_SIGNATURE_BYTES = 64 << 10, 4 << 10
#: what a disk keeps for others
KEPT_FREE_BYTES: Final = 256 << 20
_MAX_RESULT_BYTES: Final = 64 << 10
_MAX_ORDER_BYTES: Final = 256 << 10
_MAX_TEXT_CHARS: Final = 1000
#: a part of a package has this behind its digest
_PART = ".part"
_ORDER = "order.json"
_VERSION = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6}){2,3}")


class NoOrder(Exception):
    """What is desired can't be ordered; says why."""


@dataclass(frozen=True, slots=True)
class Package:
    version: str
    sha256: str
    size_bytes: int
    sums: bytes
    signature: bytes

    @classmethod
    def of(cls, said: config_pb2.AgentPackage) -> "Package":
        """Raises `NoOrder`."""
        if _VERSION.fullmatch(said.version) is None:
            raise NoOrder("a version that is not of three or four numbers")
        if re.fullmatch("[0-9a-f]{64}", said.sha256) is None:
            raise NoOrder("a digest that is none")
        if not 0 < said.size_bytes <= MAX_PACKAGE_BYTES:
            raise NoOrder(f"a package of {said.size_bytes} bytes, where at most {MAX_PACKAGE_BYTES} are taken")
        if len(said.sums) > MAX_SUMS_BYTES or len(said.signature) > MAX_SIGNATURE_BYTES:
            raise NoOrder("a longer list of digests or signature than there can be")
        return cls(said.version, said.sha256, said.size_bytes, said.sums, said.signature)


@dataclass(frozen=True, slots=True)
class Order:
    generation: int
    package: Package
    way_back: Package

    @classmethod
    def of(cls, desired: config_pb2.DesiredVersion) -> "Order":
        """Raises `NoOrder`."""
        return cls(desired.generation, Package.of(desired.package), Package.of(desired.way_back))


@dataclass(frozen=True, slots=True)
class Result:
    """What the updater has done last."""

    generation: int
    #: DONE, ROLLED_BACK or REFUSED
    state: str
    version: str
    found: str
    remedy: str


class ToldSources:
    """Which sources are in error, by which code, for the updater: written by one thread, whenever it is otherwise."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the agent's state."""
        self._path = folder / "upgrade-sources.json"
        self._told: Mapping[str, str] | None = None
        self._is_kept = True

    def tell(self, sources: Mapping[str, str]) -> None:
        """What can't be written is logged once and tried again: the updater begins nothing without it."""
        if sources == self._told:
            return
        said = {"format": FORMAT, "invocation": os.environ.get("INVOCATION_ID", ""), "sources": dict(sources)}
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self._path, json.dumps(said).encode())
        except OSError as full:
            if self._is_kept:
                fields = {"file": str(self._path), "found": full.strerror or type(full).__name__}
                log.warning("the host's updater is not told how the sources are", extra={"fields": fields})
            self._is_kept = False
        else:
            self._told, self._is_kept = sources, True


@dataclass(frozen=True, slots=True)
class UpgradePlaces:
    #: the agent's own
    folder: Path
    result: Path = Path("/var/lib/menura-agent-upgrade/result.json")
    #: by which the host's owner allows upgrades
    key: Path = Path("/etc/menura/packages.pem")
    home: Path = Path("/opt/menura-agent")

    @classmethod
    def of(cls, state: Path, environment: Mapping[str, str]) -> "UpgradePlaces":
        """systemd's folder is the one where the updater looks, wherever the configuration keeps the state."""
        of_systemd = environment.get("STATE_DIRECTORY", "").partition(":")[0]
        return cls((Path(of_systemd) if of_systemd else state) / "upgrade")

    def is_at_work(self) -> bool:
        """Whether the updater has begun what it has not ended."""
        return self.result.with_name("unfinished").exists()

    def packaged_as(self) -> str:
        """deb, rpm or tar; empty: the agent that runs is of no package."""
        if not Path(__file__).is_relative_to(self.home):
            return ""
        try:
            with (self.home / "FORMAT").open() as file:
                return file.read(16).strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def allows(self) -> bool:
        """Whether the host's owner has put a key there; whether it is a good one says the updater."""
        return self.key.is_file()

    def described(self) -> str:
        """For the host's owner: whether upgrades are allowed, and what the last one did."""
        allowed = f"allowed by {self.key}" if self.allows() else f"not allowed: there is no {self.key}"
        result = self.last_result()
        if result is None:
            return f"{allowed}; none was ordered yet"
        done = {"DONE": "was installed", "ROLLED_BACK": "was rolled back", "REFUSED": "was refused"}
        what = done.get(result.state, "ended in a way that this version does not know")
        return f"{allowed}; the last one, to {result.version}, {what}" + (f": {result.found}" if result.found else "")

    def last_result(self) -> Result | None:
        """None: there is none, or none that this version knows."""
        found = _loaded(self.result, _MAX_RESULT_BYTES)
        texts = [found.get(name) for name in ("state", "version", "found", "remedy")]
        generation = found.get("generation")
        if not isinstance(generation, int) or not all(isinstance(text, str) for text in texts):
            return None
        return Result(generation, *(printable(str(text))[:_MAX_TEXT_CHARS] for text in texts))


class OrderFolder:
    """Raises OSError wherever the disk does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> Order | None:
        """The one that was written last; None: none was, or none that this version knows."""
        found = _loaded(self._folder / _ORDER, _MAX_ORDER_BYTES)
        try:
            packages = [_package(found[name]) for name in ("package", "way_back")]
            return Order(int(found["generation"]), *packages)
        except (KeyError, TypeError, ValueError):
            return None

    def write(self, order: Order) -> None:
        """Its packages are there. Says who writes it and when, by a clock that nobody sets."""
        content: dict[str, object] = {
            "format": FORMAT,
            "generation": order.generation,
            "invocation": os.environ.get("INVOCATION_ID", ""),
            "at_boot_seconds": time.clock_gettime(time.CLOCK_BOOTTIME),
        }
        for name, package in (("package", order.package), ("way_back", order.way_back)):
            sums, signature = (base64.b64encode(it).decode() for it in (package.sums, package.signature))
            facts = {"version": package.version, "sha256": package.sha256, "size_bytes": package.size_bytes}
            content[name] = {**facts, "sums": sums, "signature": signature}
        write_whole(self._folder / _ORDER, json.dumps(content).encode())

    def begin(self, order: Order) -> None:
        """The former order goes, and all that this one does not name."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        digests = {order.package.sha256, order.way_back.sha256}
        for path in self._folder.iterdir():
            if path.name.removesuffix(_PART) not in digests:
                path.unlink()

    def clear(self) -> None:
        """The order is gone for good before its packages are."""
        if not self._folder.exists():
            return
        (self._folder / _ORDER).unlink(missing_ok=True)
        sync(self._folder)
        for path in self._folder.iterdir():
            path.unlink()

    def lacks_bytes(self, order: Order) -> int:
        """That are to be free, and are not."""
        missing = sum(package.size_bytes - self.size(package) for package in _distinct(order))
        return max(0, missing + KEPT_FREE_BYTES - shutil.disk_usage(self._folder).free)

    def size(self, package: Package) -> int:
        """As far as it has come."""
        if (self._folder / package.sha256).exists():
            return package.size_bytes
        try:
            return (self._folder / f"{package.sha256}{_PART}").stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, package: Package, data: bytes) -> None:
        """At `size`; a part that is whole is then `complete`."""
        with os.fdopen(os.open(self._part(package), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
            file.write(data)

    def complete(self, package: Package) -> bool:
        """Durable under its digest; False: it has other bytes, and is gone."""
        part = self._part(package)
        with part.open("rb") as file:
            is_whole = hashlib.file_digest(file, "sha256").hexdigest() == package.sha256
            if is_whole:
                os.fsync(file.fileno())
        if is_whole:
            part.rename(self._folder / package.sha256)
        else:
            part.unlink()
        return is_whole

    def _part(self, package: Package) -> Path:
        return self._folder / f"{package.sha256}{_PART}"


def _distinct(order: Order) -> list[Package]:
    return [order.package, *([order.way_back] if order.way_back.sha256 != order.package.sha256 else [])]


def _loaded(path: Path, most_bytes: int) -> dict[str, Any]:
    """Empty: it is not there, or not ours."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(most_bytes))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("format") == FORMAT else {}


def _package(said: dict[str, Any]) -> Package:
    sums, signature = (base64.b64decode(said[name]) for name in ("sums", "signature"))
    return Package(str(said["version"]), str(said["sha256"]), int(said["size_bytes"]), sums, signature)
