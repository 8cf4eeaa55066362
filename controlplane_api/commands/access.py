"""How commands come to the API: with the token and the CA that their options name."""

from pathlib import Path
from urllib.parse import urlsplit

from menura import token_file
from menura.addresses import is_loopback

from controlplane_api.api.client import ApiClient
from controlplane_api.commands.options import access
from controlplane_api.errors import ApiUnreachable, TokenFileUnusable


def connect(api: str, tenant: str) -> ApiClient:
    """The API as the command's options name it. Raises `TokenFileUnusable`, `ApiUnreachable`."""
    token = "" if access.token_file is None else read_token(access.token_file)
    where = urlsplit(api)
    if token and where.scheme == "http" and not is_loopback(where.hostname or ""):
        raise ApiUnreachable(
            "reading the API's address",
            f"{api} is not HTTPS, and a token would go there in clear",
            data="Nothing was sent.",
            remedy="Set --api to https://HOST:PORT; the API beyond loopback serves no other.",
        )
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
        return token_file.read_token(file)
    except OSError as unreadable:
        raise TokenFileUnusable(doing, f"{file}: {unreadable.strerror}", remedy=remedy) from unreadable
    except ValueError as missing:
        raise TokenFileUnusable(doing, f"{file} {missing}", remedy=remedy) from missing
