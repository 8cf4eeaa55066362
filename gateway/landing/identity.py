"""Which landing this is: an identity that a landing gets once, and that its database and its lakes keep.

Numbers of entries, cuts and rows begin at 1 in each landing. A database or a lake that went on with another landing
would take numbers that it has for rows that it has, and leave them out.

Comes in: the landing's storage and address, and the database. Goes out: the database's name for the landing, which is
the address by which its first gateway knew it, and the identity, for the log's entries. Durable: first landing.json,
which is put if absent, then the database's row. A kill between leaves a landing that the next start takes for the
database's. Of two gateways that open an empty landing at once, both read what the first one has put.
"""

import logging
import secrets

from menura.landing import (
    FOLDERS_FORMAT,
    FORMAT,
    IDENTITY_PATH,
    LandingFormatError,
    LandingIdentity,
    decode_identity,
    encode_identity,
    entry_path,
)
from menura.stores.store import Store

from gateway.errors import LandingFailed, LandingUnusable, LogBehindRegistry, LogUnreadable, OtherLanding
from gateway.registry import LandingOther, Registry

logger = logging.getLogger(__name__)


def open_landing(storage: Store, url: str, registry: Registry) -> tuple[str, LandingIdentity]:
    """The database's name for the landing, and its identity, which it gets now where it has none.

    Raises `OtherLanding`, `LogBehindRegistry`, `LogUnreadable`, `LandingFailed`, `LandingUnusable`.
    """
    found = _read(storage, url)
    try:
        if not found.landing:
            name = registry.claim_landing(url, "")
            applied = registry.applied_entry(name)
            check_entry(storage, name, found, applied)
            has_entries = applied > 0 or storage.read(entry_path(1, in_folders=False)) is not None
            found = _make(storage, url, FOLDERS_FORMAT - 1 if has_entries else FORMAT)
        _check_put_if_absent(storage, url, found)
        return registry.claim_landing(url, found.landing), found
    except LandingOther as other:
        missing = f"it does not say which landing it is ({IDENTITY_PATH} is missing)"
        raise OtherLanding(
            f"opening the landing {url}",
            f"{f'it is landing {found.landing}' if found.landing else missing}, and {other}",
            data="Nothing was read or written",
            remedy="Give all gateways of a database the same landing: one that was moved has its"
            f" {IDENTITY_PATH} with it. A new landing needs a new database and a new lake",
        ) from other


def check_entry(storage: Store, landing: str, identity: LandingIdentity, applied_entry: int) -> None:
    """That the log has the entry which the database holds. Raises `LogBehindRegistry`."""
    if applied_entry and storage.read(entry_path(applied_entry, in_folders=identity.in_folders)) is None:
        raise LogBehindRegistry(
            f"reading the cut log of {landing}",
            f"the database holds entry {applied_entry}, the log does not",
            data="Nothing was changed",
            remedy="Point landing to the folder that this database belongs to, or restore its log",
        )


def _make(storage: Store, landing: str, format_: int) -> LandingIdentity:
    try:
        storage.put_if_absent(IDENTITY_PATH, encode_identity(LandingIdentity(secrets.token_hex(16), format_)))
    except OSError as failed:
        raise LandingFailed(
            f"giving the landing {landing} its identity",
            f"{type(failed).__name__} {failed.strerror or ''}".strip(),
            data="Nothing was landed",
            remedy="Check the landing's free space and permissions, and start the gateway again",
        ) from failed
    return _read(storage, landing)


def _check_put_if_absent(storage: Store, landing: str, identity: LandingIdentity) -> None:
    """Some object stores do not know `If-None-Match` and put in place of what is there: here, of the same document."""
    try:
        is_kept = not storage.put_if_absent(IDENTITY_PATH, encode_identity(identity))
    except OSError as failed:  # a full disk, a store that is away: commits will say so, and go on when it is over
        logger.warning("whether the landing's store keeps what is there is not known: %s", type(failed).__name__)
        return
    if not is_kept:
        raise LandingUnusable(
            f"opening the landing {landing}",
            "its store replaces a file that was to be put only where there is none",
            data="Nothing was landed: two gateways would have written over each other's entries",
            remedy="Use a store with conditional writes: Amazon S3, MinIO, Ceph and others have them in newer versions",
        )


def _read(storage: Store, landing: str) -> LandingIdentity:
    document = storage.read(IDENTITY_PATH)
    if document is None:
        return LandingIdentity()
    try:
        return decode_identity(document)
    except LandingFormatError as broken:
        raise LogUnreadable(
            f"opening the landing {landing}",
            str(broken),
            data="Nothing was read or written",
            remedy=f"Start the version that made it, or restore {IDENTITY_PATH} as it was; lakes and the database know"
            " the identity",
        ) from broken
