"""The first token of an API: of an admin of the whole fleet, in a file that only its owner reads.

Comes in: a file's name. Goes out: a file with a token that is good. It is made where there is none, or where that of
the file is not good, as after the loss of the database or a revocation. The file is durable before the row: a kill
between them leaves a token that is good for nothing, and the next start makes another one.
"""

import os
import secrets
from pathlib import Path

from menura.instants import now_us

from controlplane_api.database import Database
from controlplane_api.errors import TokenFileUnusable
from controlplane_api.identity import api_tokens, audit
from controlplane_api.identity.api_tokens import ApiToken
from controlplane_api.identity.callers import Grant, Role

NAME = "admin-token-file"
ACTOR = "start of the API"


def ensure_admin_token(database: Database, file: Path) -> None:
    """Raises `TokenFileUnusable`, `DatabaseError`."""
    known = _read(file)
    with database.read() as connection:
        row = None if known is None else api_tokens.row_of(connection, known.id)
    if known is not None and row is not None and api_tokens.is_live(row, now_us()) and api_tokens.verify(row, known):
        return
    token = ApiToken(secrets.token_hex(8), secrets.token_urlsafe(32))
    _write(file, token)
    with database.write() as connection:
        api_tokens.create(connection, Grant(Role.ADMIN, None), NAME, ACTOR, now_us(), None, token)
        audit.record(
            connection, "", ACTOR, "create api token", found=f"{token.id}, admin of the whole fleet, in {file}"
        )


def _read(file: Path) -> ApiToken | None:
    try:
        return ApiToken.parse(file.read_text().strip())
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    except OSError as unreadable:
        raise _unusable(file, unreadable) from unreadable


def _write(file: Path, token: ApiToken) -> None:
    beside = file.with_name(f"{file.name}.new")
    try:
        beside.unlink(missing_ok=True)  # what a kill has left
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            written.write(f"{token.reveal()}\n")
            written.flush()
            os.fsync(written.fileno())
        beside.rename(file)
    except OSError as unwritable:
        raise _unusable(file, unwritable) from unwritable


def _unusable(file: Path, failure: OSError) -> TokenFileUnusable:
    return TokenFileUnusable(
        "keeping a token of the API", f"{file}: {failure.strerror}", remedy="Name a file in a folder of this user."
    )
