"""Which landing this is: an identity that a landing gets once, and that its database and its lakes keep.

Numbers of entries, cuts and rows begin at 1 in each landing. A database or a lake that went on with another landing
would take numbers that it has for rows that it has, and leave them out.

Comes in: the landing's storage and the database. Goes out: the identity, for the log's entries. Durable: first
landing.json, which is put if absent, then the database's row. A kill between leaves a landing that the next start takes
for the database's. Of two gateways that open an empty landing at once, both read what the first one has put.
"""

import secrets

from menura.landing import IDENTITY_PATH, LandingFormatError, decode_identity, encode_identity

from gateway.errors import LandingFailed, LogUnreadable, OtherLanding
from gateway.landing.storage import Storage
from gateway.registry import Registry


def known_identity(storage: Storage, landing: str, registry: Registry) -> str:
    """The identity of the landing at this address, which is the database's; '' where the database has none yet.

    Raises `OtherLanding`, `LogUnreadable`.
    """
    found = _read(storage, landing)
    known = registry.claim_landing(landing, "")
    if known:
        _check(landing, found, known)
        registry.claim_landing(landing, found)  # at this address, from now on
    return known


def new_identity(storage: Storage, landing: str, registry: Registry) -> str:
    """The identity of a landing that becomes the database's. Raises as above, and `LandingFailed`."""
    found = _read(storage, landing) or _make(storage, landing)
    _check(landing, found, registry.claim_landing(landing, found))
    return found


def _check(landing: str, found: str, known: str) -> None:
    if found == known:
        return
    missing = f"it does not say which landing it is ({IDENTITY_PATH} is missing)"
    raise OtherLanding(
        f"opening the landing {landing}",
        f"{f'it is landing {found}' if found else missing}, and the database belongs to landing {known}",
        data="Nothing was read or written",
        remedy=f"Point --landing to the landing of this database, or restore it there with its {IDENTITY_PATH};"
        " a new landing needs a new database and a new lake",
    )


def _make(storage: Storage, landing: str) -> str:
    try:
        storage.put_if_absent(IDENTITY_PATH, encode_identity(secrets.token_hex(16)))
    except OSError as failed:
        raise LandingFailed(
            f"giving the landing {landing} its identity",
            f"{type(failed).__name__} {failed.strerror or ''}".strip(),
            data="Nothing was landed",
            remedy="Check the landing's free space and permissions, and start the gateway again",
        ) from failed
    return _read(storage, landing)


def _read(storage: Storage, landing: str) -> str:
    document = storage.read(IDENTITY_PATH)
    if document is None:
        return ""
    try:
        return decode_identity(document)
    except LandingFormatError as broken:
        raise LogUnreadable(
            f"opening the landing {landing}",
            str(broken),
            data="Nothing was read or written",
            remedy=f"Restore {IDENTITY_PATH} as it was; lakes and the database know the identity",
        ) from broken
