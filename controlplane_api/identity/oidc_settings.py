"""The identity provider that people log in with, as a YAML file says it::

    name: Acme                              # on the button
    issuer: https://id.example              # as its discovery document names itself
    client_id: menura
    client_secret_file: /etc/menura/oidc.secret   # without one Menura is a public client
    scopes: [openid, profile, groups]
    name_claim: email                       # whom the audit log names; sub stands beside it
    groups_claim: groups                    # of the ID token: a text, or a list of texts
    grants:
      - {group: cdc-admins, role: admin}                  # without a tenant: of the whole fleet
      - {group: shop-team, role: operator, tenant: acme}

Comes in: the file. Goes out: `OidcSettings`. A key that is not there, or is not known, is an error that names it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from menura.addresses import is_loopback

from controlplane_api.errors import LoginUnusable
from controlplane_api.identity.callers import Grant, Role

MAX_FILE_BYTES = 1 << 20
_REQUIRED = ("issuer", "client_id", "grants")
_DEFAULTS: dict[str, Any] = {
    "name": "single sign-on",
    "client_secret_file": "",
    "scopes": ["openid", "profile"],
    "name_claim": "sub",
    "groups_claim": "groups",
}


@dataclass(frozen=True, slots=True)
class OidcSettings:
    name: str
    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: tuple[str, ...]
    name_claim: str
    groups_claim: str
    #: by group, in the file's order
    grants: tuple[tuple[str, Grant], ...]

    def grants_of(self, claims: dict[str, Any]) -> tuple[Grant, ...]:
        """What the groups of a person give; none for groups that the file does not name."""
        said = claims.get(self.groups_claim, [])
        groups = {said} if isinstance(said, str) else set(filter(_is_text, said if isinstance(said, list) else []))
        return tuple(dict.fromkeys(grant for group, grant in self.grants if group in groups))


def read_oidc_settings(file: Path) -> OidcSettings:
    """Raises `LoginUnusable`."""
    try:
        with file.open("rb") as opened:
            found = yaml.safe_load(opened.read(MAX_FILE_BYTES))
    except (OSError, yaml.YAMLError) as unreadable:
        raise _unusable(file, f"it can't be read ({type(unreadable).__name__})") from unreadable
    if not isinstance(found, dict):
        raise _unusable(file, "it is no mapping")
    if unknown := sorted(map(str, found.keys() - _DEFAULTS.keys() - set(_REQUIRED))):
        raise _unusable(file, f"it has keys that mean nothing: {', '.join(unknown)}")
    if missing := [name for name in _REQUIRED if not found.get(name)]:
        raise _unusable(file, f"it lacks {', '.join(missing)}")
    said = {**_DEFAULTS, **found}
    texts = ("name", "issuer", "client_id", "client_secret_file", "name_claim", "groups_claim")
    if wrong := [name for name in texts if not isinstance(said[name], str)]:
        raise _unusable(file, f"{wrong[0]} is no text")
    if not isinstance(said["scopes"], list) or "openid" not in said["scopes"] or not all(map(_is_text, said["scopes"])):
        raise _unusable(file, "scopes is no list of texts with openid")
    issuer = urlsplit(said["issuer"])
    if issuer.scheme != "https" and not (issuer.scheme == "http" and is_loopback(issuer.hostname or "")):
        raise _unusable(file, "issuer is no https:// address")
    secret = said["client_secret_file"]
    return OidcSettings(
        name=said["name"],
        issuer=said["issuer"],
        client_id=said["client_id"],
        client_secret=_secret(file, file.parent / secret) if secret else "",
        scopes=tuple(said["scopes"]),
        name_claim=said["name_claim"],
        groups_claim=said["groups_claim"],
        grants=tuple(_grant(file, entry) for entry in said["grants"]),
    )


def _secret(file: Path, secret: Path) -> str:
    try:
        found = secret.read_text().strip()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise _unusable(file, f"client_secret_file can't be read ({type(unreadable).__name__})") from unreadable
    if not found:
        raise _unusable(file, "client_secret_file is empty")
    return found


def _grant(file: Path, entry: object) -> tuple[str, Grant]:
    wrong = _unusable(file, f"an entry of grants is not {{group, role, tenant}} with a role of {', '.join(Role)}")
    if not isinstance(entry, dict) or entry.keys() - {"group", "role", "tenant"} or not _is_text(entry.get("group")):
        raise wrong
    try:
        return entry["group"], Grant(Role(str(entry.get("role"))), entry.get("tenant"))
    except (ValueError, TypeError) as unknown:
        raise wrong from unknown


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _unusable(file: Path, found: str) -> LoginUnusable:
    return LoginUnusable(f"reading the identity provider's settings in {file}", found, remedy="Correct the file.")
