"""Folders for what a view's turn writes aside, which go with their process, however that ends.

    TMPDIR/menura-view-scratch-RANDOM/    its process, and what that starts for it, hold a lock on the folder itself

Goes out: a folder of this user alone. Of a process that SIGKILL ended the folder stays, and its lock does not: the next
process that wants one here, or the next sink that begins, removes it. Others' folders are known by their owner, and
those in use by their lock. What was written there is of no use to anybody else: a kill loses nothing.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOLCK
from functools import lru_cache
from pathlib import Path

_PREFIX = "menura-view-scratch-"
#: in vain, before the file system is known to have no locks
_MOST_MADE = 10

logger = logging.getLogger("menura.sink")


@contextmanager
def scratch_folder() -> Iterator[tuple[str, int]]:
    """An empty folder, and the file that holds its lock, for processes that are started to work there. Raises OSError.

    The folder goes at the end, also where one of these removes its files at the same time.
    """
    _remove_left_once(tempfile.gettempdir(), os.getpid())
    folder, lock = _made()
    try:
        yield folder, lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _made() -> tuple[str, int]:
    """Another one where a process that removes folders was there before the lock was. Raises OSError."""
    for _ in range(_MOST_MADE):
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        if (lock := _locked(folder)) is not None:
            return folder, lock
        shutil.rmtree(folder, ignore_errors=True)
    raise OSError(ENOLCK, "folders of TMPDIR can't be locked", tempfile.gettempdir())


def _locked(folder: str) -> int | None:
    """The lock of a folder of this user's; None: another process has it, it has gone, or it is no such folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(lock)
        if found.st_uid == os.geteuid() and os.path.samestat(found, os.lstat(folder)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


@lru_cache(maxsize=4)
def _remove_left_once(_where: str, _process: int) -> None:
    remove_left()


def remove_left() -> None:
    """Remove folders whose processes were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (lock := _locked(str(folder))) is None:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        if folder.exists():
            logger.warning("folder that a killed process has left can't be removed folder=%s", folder)
