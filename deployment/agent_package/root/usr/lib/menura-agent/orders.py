"""What the agent has ordered, and whether this host's publisher has signed it: every byte of the order is hostile.

Comes in: order.json and packages in a folder that the agent owns and may change at any moment, root's own key. Goes
out: an `Order`, copies of its packages in a folder of root that are verified there, or `Refused`. Nothing is durable
here. No name of the order is a path, no link is followed, no pipe is waited for, every size has a limit.
"""

import base64
import hashlib
import json
import os
import re
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from this_host import Places, Refused, run

FORMAT = 1
MAX_ORDER_BYTES, MAX_SUMS_BYTES, MAX_SIGNATURE_BYTES = 256 << 10, 64 << 10, 4 << 10
MAX_PACKAGE_BYTES, MAX_SOURCES_BYTES = 256 << 20, 4 << 20
EXTENSION = {"deb": "deb", "rpm": "rpm", "tar": "tar.gz"}
ORDER_AGAIN = "then order the upgrade again"


@dataclass(frozen=True, slots=True)
class Package:
    version: str
    sha256: str
    size_bytes: int
    sums: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Order:
    #: of what is ordered, whoever writes it again: which order it is
    digest: str
    generation: int
    package: Package
    way_back: Package
    #: of the agent's service, as the process that wrote the file had it
    invocation: str
    #: when it was written last, since the boot: no clock that is set, no file's time
    at_boot_seconds: float


def read_order(places: Places) -> Order | None:
    """None: there is none. Raises `Refused`."""
    try:
        folder = _orders(places)
    except FileNotFoundError:
        return None
    try:
        with _opened(folder, "order.json") as file:
            content = file.read(MAX_ORDER_BYTES + 1)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    if len(content) > MAX_ORDER_BYTES:
        raise _strange(f"more than {MAX_ORDER_BYTES} bytes")
    try:
        said = json.loads(content)
        generation = said["generation"]
        if said["format"] != FORMAT or type(generation) is not int or not 0 < generation < 1 << 64:
            raise _strange("a format or a generation that this updater does not know")
        package, way_back = (_package(said[name]) for name in ("package", "way_back"))
        invocation, at_boot_seconds = said.pop("invocation"), said.pop("at_boot_seconds")
        if type(invocation) is not str or type(at_boot_seconds) is not float:
            raise _strange("a writer or a time that this updater does not know")
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    except (ValueError, KeyError, TypeError, RecursionError) as broken:
        raise _strange(f"fields that this updater does not know ({type(broken).__name__})") from broken
    return Order(digest, generation, package, way_back, invocation, at_boot_seconds)


def read_sources(places: Places, invocation: str) -> dict[str, str] | None:
    """Of each source of this process of the agent the code of its error, empty where it has none.

    None: this process has said nothing that this updater knows.
    """
    try:
        folder = os.open(places.agent_state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        with _opened(folder, "upgrade-sources.json") as file:
            content = file.read(MAX_SOURCES_BYTES + 1)
        said = json.loads(content) if len(content) <= MAX_SOURCES_BYTES else {}
        found = said["sources"]
        is_known = said["format"] == FORMAT and said["invocation"] == invocation and type(found) is dict
    except (FileNotFoundError, Refused, ValueError, KeyError, TypeError, RecursionError):
        return None
    finally:
        os.close(folder)
    return found if is_known and all(type(code) is str for code in found.values()) else None


def named(names: list[str]) -> str:
    """For people: some of them, without what would move a terminal."""
    shown = ["".join(sign if sign.isprintable() else "?" for sign in name)[:80] for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _package(said: dict[str, Any]) -> Package:
    version, digest, size = said["version"], said["sha256"], said["size_bytes"]
    rank(version)
    if re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise _strange("a digest that is none")
    if type(size) is not int or not 0 < size <= MAX_PACKAGE_BYTES:
        raise _strange(f"a package that is empty or has more than {MAX_PACKAGE_BYTES} bytes")
    sums, signature = (base64.b64decode(said[name], validate=True) for name in ("sums", "signature"))
    if len(sums) > MAX_SUMS_BYTES or len(signature) > MAX_SIGNATURE_BYTES:
        raise _strange("a longer list or signature than there can be")
    return Package(version, digest, size, sums, signature)


def rank(version: str) -> tuple[int, ...]:
    """By which versions are compared. Raises ValueError, TypeError.

    >>> rank("0.10.0") > rank("0.9.3")
    True
    """
    if re.fullmatch(r"(0|[1-9][0-9]{0,5})(\.(0|[1-9][0-9]{0,5})){2,3}", version) is None:
        raise ValueError("no version of numbers")
    numbers = [int(number) for number in version.split(".")]
    return (*numbers, *[0] * (4 - len(numbers)))


def _strange(found: str) -> Refused:
    return Refused(f"the order has {found}", f"use one version of Menura on both sides, {ORDER_AGAIN}")


def _orders(places: Places) -> int:
    """The agent's folder of orders. Raises FileNotFoundError, `Refused`."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    state = os.open(places.agent_state, flags)
    try:
        return os.open("upgrade", flags | os.O_NOFOLLOW, dir_fd=state)
    except NotADirectoryError as other:
        raise _strange("a folder that is none, or a link") from other
    finally:
        os.close(state)


def _opened(folder: int, name: str) -> IO[bytes]:
    """A plain file. Raises FileNotFoundError, `Refused`."""
    try:
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as other:
        raise _strange(f"a file that can't be opened ({other.strerror})") from other
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise _strange("a file that is no plain one")
    return os.fdopen(number, "rb")


def copy_package(places: Places, package: Package, to: Path) -> None:
    """The bytes that the digest names, durable. Raises `Refused`."""
    found, left = hashlib.sha256(), package.size_bytes
    folder = _orders(places)
    try:
        with _opened(folder, package.sha256) as file, to.open("xb") as copy:
            while left >= 0 and (chunk := file.read(min(1 << 20, left + 1))):
                left -= len(chunk)
                found.update(chunk)
                copy.write(chunk)
            copy.flush()
            os.fsync(copy.fileno())
    except FileNotFoundError as missing:
        raise _strange("a package that is not there") from missing
    finally:
        os.close(folder)
    if left != 0 or found.hexdigest() != package.sha256:
        raise _strange("a package of other bytes than it names")


def check_key(places: Places) -> None:
    """Raises `Refused`."""
    mend = f"its owner may put the publisher's public key there: install -m 0644 menura-packages.pem {places.key}"
    for place, is_kind in ((places.key.parent, stat.S_ISDIR), (places.key, stat.S_ISREG)):
        try:
            found = place.lstat()
        except FileNotFoundError:
            raise Refused(f"this host allows no upgrades: there is no {places.key}", mend) from None
        if not is_kind(found.st_mode) or found.st_uid != 0 or found.st_mode & 0o022:
            raise Refused(f"others than root may have written {place}", f"chown root:root and chmod go-w {place}")


def verify(places: Places, copy: Path, package: Package, kind: str) -> None:
    """`copy`: in a folder of root. Raises `Refused`."""
    sums, signature = copy.with_name(f"{copy.name}.sums"), copy.with_name(f"{copy.name}.sig")
    sums.write_bytes(package.sums)
    signature.write_bytes(package.signature)
    words = ("openssl", "dgst", "-sha256", "-verify", str(places.key), "-signature", str(signature), str(sums))
    try:
        is_signed = run(*words).returncode == 0
    except FileNotFoundError as missing:
        found = "this host has no openssl, which verifies packages"
        raise Refused(found, f"install openssl, {ORDER_AGAIN}") from missing
    if not is_signed:
        raise Refused(
            f"the package of {package.version} is not signed with this host's key {places.key}",
            "compare the key with the publisher's: whoever sent the package is not he, or has another key",
        )
    file = f"menura-agent-{package.version}-linux-{os.uname().machine}.{EXTENSION[kind]}"
    if f"{package.sha256}  {file}".encode() not in package.sums.split(b"\n"):
        found = f"the publisher has signed no {file} of these bytes"
        raise Refused(found, f"add the package of this format and machine to the release, {ORDER_AGAIN}")
    inside = _inside(kind, copy)
    if inside != f"menura-agent {package.version}":
        raise Refused(f"{file} holds {inside[:80]!r}", f"build the packages anew, {ORDER_AGAIN}")


def _inside(kind: str, path: Path) -> str:
    """Name and version, as the package has them itself; its publisher is known by now."""
    if kind == "tar":
        with tarfile.open(path, "r:gz") as tar:
            folders = {member.name.partition("/")[0] for member in tar}
        return " ".join(sorted(folders)[0].rsplit("-", 1)) if len(folders) == 1 else f"{len(folders)} folders"
    if kind == "deb":
        return run("dpkg-deb", "--show", "--showformat", "${Package} ${Version}", str(path)).stdout.strip()
    return run("rpm", "--query", "--nosignature", "--queryformat", "%{NAME} %{VERSION}", "--package", str(path)).stdout


def check_rank(order: Order, installed: str, replaced: tuple[str, str, str], least: str) -> None:
    """No replay of an old package. Raises `Refused`.

    `replaced`: the version that the last upgrade has installed, and version and digest of the package that it replaced.
    """
    wanted = order.package.version
    if order.way_back.version != installed:
        found = f"the way back is {order.way_back.version}, and {installed} is installed"
        raise Refused(found, f"wait until the control plane knows what runs here, {ORDER_AGAIN}")
    if wanted == installed:
        raise Refused(f"{wanted} is installed already", "order another version")
    if least and rank(wanted) < rank(least):
        mend = "its owner may lower MENURA_UPGRADE_LEAST_VERSION: systemctl edit menura-agent-upgrade.service"
        raise Refused(f"this host takes nothing older than {least}, and {wanted} is ordered", mend)
    if rank(wanted) < rank(installed) and replaced != (installed, wanted, order.package.sha256):
        found = f"{wanted} is older than {installed}, and not the package that the last upgrade has replaced"
        raise Refused(found, "install it by hand on the host, or order a newer one")
