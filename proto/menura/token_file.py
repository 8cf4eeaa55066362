"""A file that has a token: a secret that whoever asks a server shows as Authorization: Bearer."""

import re
from pathlib import Path

MAX_FILE_BYTES = 4_096
_TOKEN = re.compile(rb"[!-~]+")


def read_token(file: Path) -> str:
    """Raises OSError; ValueError, which does not show what is in the file, for one that has no token alone."""
    with file.open("rb") as opened:
        token = opened.read(MAX_FILE_BYTES).strip()
    if _TOKEN.fullmatch(token) is None:
        raise ValueError("has no token")
    return token.decode("ascii")
