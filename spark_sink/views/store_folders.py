"""Where on a machine the stores of views are, who may use them, and when they go.

    FOLDER/LAKE/VIEW/lock          held by the one process that uses the view's stores; its time says when that was last
    FOLDER/LAKE/VIEW/ALIAS/...     a store (`store`); LAKE, VIEW and ALIAS are digests
    FOLDER/LAKE/VIEW/ALIAS.failed  it could not be made then, and is not tried again at once

FOLDER is the user's own, and nobody else may write there: rows come from it. Stores of views that are there no more are
removed by the driver, on its machine; elsewhere they go when nothing has used them for days.
"""

import errno
import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

#: a table of fewer rows has no store: a scan of it costs less than the rest of a turn
LEAST_ROWS = 500_000
#: of all stores of a machine; and the part of what is free on its disk that a new one may take
MOST_BYTES, PART_OF_FREE = 64 << 30, 1 / 2
#: stores that nothing has used for so long are removed
UNUSED_SECONDS = 7 * 86400.0
_LOCK = "lock"

logger = logging.getLogger("menura.sink")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """`folder`: on whichever machine a view's turn comes to."""

    folder: str
    least_rows: int = LEAST_ROWS
    most_bytes: int = MOST_BYTES


@dataclass(frozen=True, slots=True)
class ViewFolder:
    """Where the stores of one view are, which this process alone uses now."""

    path: Path
    settings: StoreSettings


def default_folder() -> str:
    return f"{tempfile.gettempdir()}/menura-view-stores-{os.geteuid()}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


@contextmanager
def stores_of(settings: StoreSettings, lake: str, view: tuple[str, str]) -> Iterator[ViewFolder | None]:
    """`view`: its tenant and name. None: another process has its stores, or they can't be used."""
    with ExitStack() as held:
        yield _taken(held, settings, lake, view)


def _taken(held: ExitStack, settings: StoreSettings, lake: str, view: tuple[str, str]) -> ViewFolder | None:
    try:
        be_own(Path(settings.folder))
        folder = _folder(settings, lake) / _name(view)
        folder.mkdir(parents=True, exist_ok=True)
        return ViewFolder(folder, settings) if held.enter_context(_locked(folder)) else None
    except OSError as failed:
        _warn(settings.folder, f"{type(failed).__name__}: {failed.strerror}")
        return None


@lru_cache(maxsize=64)
def _warn(folder: str, said: str) -> None:
    """Once of a process."""
    logger.warning("folder of views' stores not usable, tables may be scanned folder=%s error=%s", folder, said)


def be_own(root: Path) -> None:
    """Have it be there, the user's own; raises OSError where it is somebody else's, or others may write there."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "it is a link, of another user, or others may write there")


def _folder(settings: StoreSettings, lake: str) -> Path:
    return Path(settings.folder, digest(lake))


def _name(view: tuple[str, str]) -> str:
    return digest("/".join(view))


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether this process has the view's stores now."""
    with (folder / _LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(file.fileno())
            is_ours = os.path.samestat(os.fstat(file.fileno()), (folder / _LOCK).stat())  # or it was removed meanwhile
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        yield is_ours


def room_bytes(settings: StoreSettings) -> int:
    """What one more store may take. Raises OSError."""
    root = Path(settings.folder)
    return min(settings.most_bytes - _used_bytes(root), int(shutil.disk_usage(root).free * PART_OF_FREE))


def _used_bytes(root: Path) -> int:
    """Of all files below. One that goes meanwhile, as other views' do, takes no room. Raises OSError."""
    used = 0
    for folder, _, names in os.walk(root, onerror=_unless_gone):
        for name in names:
            try:
                used += os.lstat(f"{folder}/{name}").st_size
            except FileNotFoundError:
                continue
    return used


def _unless_gone(failed: OSError) -> None:
    if not isinstance(failed, FileNotFoundError):
        raise failed


def remove_unused(settings: StoreSettings) -> None:
    """Remove this machine's stores that nothing has used for long, of any lake. Raises OSError."""
    for folder in Path(settings.folder).glob("*/*"):
        if time.time() - (folder / _LOCK).stat().st_mtime > UNUSED_SECONDS:
            _remove(folder)


def remove_others(settings: StoreSettings, lake: str, views: Iterable[tuple[str, str]]) -> None:
    """Remove this machine's stores of all other views of the lake."""
    wanted = set(map(_name, views))
    if not Path(settings.folder).exists():
        return
    try:
        be_own(Path(settings.folder))
        for folder in _folder(settings, lake).glob("*"):
            if folder.name not in wanted:
                _remove(folder)
    except OSError as failed:
        _warn(settings.folder, f"{type(failed).__name__}: {failed.strerror}")


def _remove(folder: Path) -> None:
    """A view's stores, unless they are in use."""
    with _locked(folder) as is_ours:
        if is_ours:
            shutil.rmtree(folder)
