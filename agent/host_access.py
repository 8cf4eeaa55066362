"""What a source's configuration may reach on this host: files, environment variables, hosts to dial.

Comes in: names that a configuration has. Goes out: their contents, or why not. The agent's own file may name anything
(`OWN`). What the control plane sends may name what `remote` of that file allows, and a gateway that is somebody else's
gets no further: files of one folder, wherever a link in it points, the variables that are listed, and this host alone
unless others are listed.
"""

import ipaddress
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from menura.addresses import is_loopback

MAX_FILE_BYTES = 1 << 20


class AccessRefused(Exception):
    """`args` are what was found, and the remedy."""


class HostAccess(Protocol):
    #: what it reads was sent by the control plane
    is_remote: bool

    def path(self, name: str) -> Path:
        """The file of that name; raises `AccessRefused`."""

    def read(self, name: str) -> bytes:
        """Its content; raises `AccessRefused` or OSError."""

    def variable(self, name: str) -> str | None:
        """None: it is not set. Raises `AccessRefused`."""

    def check_host(self, host: str) -> None:
        """Raises `AccessRefused` for a host that may not be dialled."""


class OwnAccess:
    """Of the agent's own file."""

    is_remote = False

    def path(self, name: str) -> Path:
        return Path(name)

    def read(self, name: str) -> bytes:
        return Path(name).read_bytes()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def check_host(self, host: str) -> None:
        return


OWN = OwnAccess()


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """`remote` of the agent's file."""

    #: absolute
    secrets: Path
    variables: frozenset[str] = frozenset()
    #: names, "*.DOMAIN", addresses and networks; none: this host alone
    hosts: tuple[str, ...] = ()
    is_remote = True

    def path(self, name: str) -> Path:
        """Without links, and inside the folder."""
        try:
            folder = self.secrets.resolve(strict=True)
            found = (folder / name).resolve()
        except (OSError, RuntimeError, ValueError) as broken:  # a loop of links, a NUL
            words = getattr(broken, "strerror", None) or "it is no path"
            raise AccessRefused(
                f"names a file of {self.secrets}: {words}", f"Make the folder {self.secrets}, with the file in it"
            ) from broken
        if not found.is_relative_to(folder):
            raise AccessRefused(
                f"names a file outside of {self.secrets}",
                "Put the file there, or let remote.secrets of the agent's own file name another folder",
            )
        return found

    def read(self, name: str) -> bytes:
        path = self.path(name)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise AccessRefused("names what is no file", f"Make a file of it in {self.secrets}")
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise AccessRefused(
                f"names a file of more than {MAX_FILE_BYTES} bytes", "Name a file with the secret alone"
            )
        return content

    def variable(self, name: str) -> str | None:
        if name not in self.variables:
            raise AccessRefused(
                f"names the environment variable {name!r}, which the agent's own file does not allow",
                "Add it to remote.variables there and restart the agent, or use a file of remote.secrets",
            )
        return os.environ.get(name)

    def check_host(self, host: str) -> None:
        if not any(_matches(host, allowed) for allowed in self.hosts) and not is_loopback(host):
            raise AccessRefused(
                f"names the host {host!r}, which the agent's own file does not allow",
                "Add it to remote.hosts there and restart the agent",
            )


def _matches(host: str, allowed: str) -> bool:
    """
    >>> _matches("10.0.3.7", "10.0.0.0/16"), _matches("DB1.example", "*.example"), _matches("a.evil", "*.example")
    (True, True, False)
    """
    named = host.lower().rstrip(".")
    if allowed.startswith("*."):
        return named.endswith(allowed[1:].lower())
    try:
        return ipaddress.ip_address(host.strip("[]")) in ipaddress.ip_network(allowed, strict=False)
    except ValueError:
        return named == allowed.lower()


def overlaps(secrets: Path, others: Mapping[str, Path]) -> str:
    """What of the agent's own a folder of secrets would give away; empty: nothing.

    >>> overlaps(Path("/var/lib"), {"the state folder": Path("/var/lib/menura")})
    'the state folder'
    """
    found = (name for name, path in others.items() if path.resolve().is_relative_to(secrets.resolve()))
    return next(found, "")
