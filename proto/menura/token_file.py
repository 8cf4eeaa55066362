"""A file that has a token: a secret that whoever asks a server shows as Authorization: Bearer."""

import hmac
import os
import re
import stat
from pathlib import Path

MAX_FILE_BYTES = 4_096
_TOKEN = re.compile(rb"[!-~]+")
_BY_OTHERS = stat.S_IWGRP | stat.S_IRWXO


class TokenExposed(ValueError):
    """Others than the file's owner may read or change it."""


def read_token(file: Path) -> str:
    """Raises OSError; ValueError, which does not show what is in the file, for one that has no token alone."""
    with file.open("rb") as opened:
        return _token(opened.read(MAX_FILE_BYTES + 1))


class KeptToken:
    """A token that is read again once its file is another one; safe from any thread.

    A file that others than its owner may read or change is refused. One that lies on a read-only mount may be read by
    all of its container, which mounts it so; nobody changes it there.
    """

    def __init__(self, file: Path) -> None:
        """Raises OSError or ValueError, as each `matches` does."""
        self.file = file
        self._known = (_signature(file.stat()), self._read())

    def matches(self, authorization: str) -> bool:
        """Whether a request's header has it. It takes the same time for any other of that length."""
        signature = _signature(self.file.stat())
        if signature != self._known[0]:
            # The signature is from before: a file that changes meanwhile is read once more.
            self._known = (signature, self._read())
        return hmac.compare_digest(authorization.encode(), f"Bearer {self._known[1]}".encode())

    def _read(self) -> str:
        with self.file.open("rb") as opened:
            _check_mode(opened.fileno())
            return _token(opened.read(MAX_FILE_BYTES + 1))


def _signature(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _check_mode(handle: int) -> None:
    facts = os.fstat(handle)
    is_read_only = bool(os.fstatvfs(handle).f_flag & os.ST_RDONLY)
    if facts.st_mode & _BY_OTHERS and not is_read_only:
        raise TokenExposed(f"others than its owner may read or change it (mode {facts.st_mode & 0o777:03o})")


def _token(content: bytes) -> str:
    token = content.strip()
    if len(content) > MAX_FILE_BYTES or _TOKEN.fullmatch(token) is None:
        raise ValueError("has no token")
    return token.decode("ascii")
