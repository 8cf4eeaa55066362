"""How commands come to the API: with the token and the CA that their options name."""

import re
from pathlib import Path

from controlplane_api.api.client import ApiClient
from controlplane_api.commands.options import access
from controlplane_api.errors import TokenFileUnusable

MAX_TOKEN_FILE_BYTES = 4_096


def connect(api: str, tenant: str) -> ApiClient:
    """The API as the command's options name it. Raises `TokenFileUnusable`, `ApiUnreachable`."""
    token = "" if access.token_file is None else read_token(access.token_file)
    try:
        return ApiClient(api, tenant, token, access.ca)
    except OSError as unusable:  # an ssl.SSLError is one
        found = f"{access.ca}: {unusable.strerror}"
        raise TokenFileUnusable("reading the CA of the API", found, remedy="Correct --ca.") from unusable


def read_token(file: Path) -> str:
    """Raises `TokenFileUnusable`, which does not show what is in the file."""
    doing = "reading the token of the API"
    remedy = "Name a file with a token alone: --token-file or MENURA_API_TOKEN_FILE."
    try:
        with file.open("rb") as opened:
            token = opened.read(MAX_TOKEN_FILE_BYTES).decode("ascii").strip()
    except OSError as unreadable:
        raise TokenFileUnusable(doing, f"{file}: {unreadable.strerror}", remedy=remedy) from unreadable
    except UnicodeDecodeError:
        token = ""
    if re.fullmatch(r"[!-~]+", token) is None:
        raise TokenFileUnusable(doing, f"{file} has no token", remedy=remedy)
    return token
