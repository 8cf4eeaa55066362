"""Where the agent keeps what it may forget: files that are made again when they are lost.

Comes in: the configuration and the environment. Goes out: a folder that only its owner reads. What is in it belongs to
the modules that write it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from agent.errors import StateFolderUnusable


def state_folder_of(configured: str, agent: str, environment: Mapping[str, str]) -> Path:
    """`state_folder` of the configuration, else systemd's, else the user's.

    >>> str(state_folder_of("", "db-1", {"XDG_STATE_HOME": "/home/a/.state"}))
    '/home/a/.state/menura/db-1'
    """
    if configured:
        return Path(configured)
    of_systemd = environment.get("STATE_DIRECTORY", "").partition(":")[0]
    if of_systemd:
        return Path(of_systemd)
    if environment.get("XDG_STATE_HOME"):
        return Path(environment["XDG_STATE_HOME"]) / "menura" / agent
    if environment.get("HOME"):
        return Path(environment["HOME"]) / ".local/state/menura" / agent
    return Path("/var/lib/menura") / agent


def make_state_folder(folder: Path, source: str) -> None:
    """Make it where it is not there yet, for its owner alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as refused:
        raise state_unusable(folder, refused.strerror or type(refused).__name__, source) from refused


def state_unusable(path: Path, found: str, source: str) -> StateFolderUnusable:
    return StateFolderUnusable(
        f"opening {path}, where the agent keeps its state",
        found,
        data="Nothing is lost: the log is read again from the last committed cut",
        remedy="Set state_folder to a folder that the agent's user may write to, on a disk that has room",
        source=source,
    )


def write_whole(path: Path, content: bytes) -> None:
    """A kill leaves the former file or this one: temporary file, fsync, rename, fsync of the folder. Raises OSError.

    Its owner alone reads it, also in a folder that somebody else has made.
    """
    temporary = path.with_suffix(f"{path.suffix}.new")
    temporary.unlink(missing_ok=True)  # one that a kill left may be open to others
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Which names it has is durable. Raises OSError."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
