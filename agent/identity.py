"""Who this agent is, as files on its host: what `menura agent enrol` has made, or those of an operator's own CA.

Comes in: paths. Goes out: what a connection to the gateway needs, read when one is made: files may change while the
agent runs.

An enrolment is one file that its owner alone may read: the private key, the agent's certificate, the CA's, and the
request for certificates of that key. It is written beside its place, made durable, then renamed: a kill leaves the
former one or the new one.
"""

import base64
import os
import re
import ssl
import textwrap
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from menura.identity import GATEWAY_HOST, agent_of

from agent.certificate import Certificate, read_certificate
from agent.errors import IdentityUnusable

FILE_NAME = "identity.pem"
_CERTIFICATE, _REQUEST = "CERTIFICATE", "CERTIFICATE REQUEST"
_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[^-]*-----END (?:[A-Z]+ )*PRIVATE KEY-----\n?")
Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """For one connection, in PEM."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None = field(repr=False)
    #: that the gateway's certificate has to be for; empty: the host that is dialled
    server_name: str = ""


class CredentialFiles(Protocol):
    def read(self) -> Credentials:
        """Raises `IdentityUnusable`."""

    def stamp(self) -> Stamp:
        """Another one after each change of the files."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Of an operator's own CA; without `ca` the system's CAs count."""

    ca: Path | None
    certificate: Path | None
    key: Path | None

    def read(self) -> Credentials:
        ca, certificate, key = (None if path is None else _read(path) for path in (self.ca, self.certificate, self.key))
        return Credentials(ca, certificate, key)

    def stamp(self) -> Stamp:
        return tuple(_stamp(path) for path in (self.ca, self.certificate, self.key) if path is not None)


@dataclass(frozen=True, slots=True)
class Identity:
    """What an enrolment's file says; what it has in PEM is in PEM."""

    tenant: str
    agent: str
    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    facts: Certificate
    #: DER; empty: an agent of before has written the file
    kept_request: bytes

    @property
    def not_before(self) -> datetime:
        return self.facts.not_before

    @property
    def not_after(self) -> datetime:
        return self.facts.not_after

    def request(self) -> bytes:
        """A certificate request for the key, DER."""
        if self.kept_request:
            return self.kept_request
        from agent.private_key import request_of  # noqa: PLC0415  (its library takes ten MiB)

        return request_of(self.key)


@dataclass(frozen=True, slots=True)
class IdentityFile:
    path: Path

    def load(self) -> Identity:
        """Raises `IdentityUnusable`."""
        raw = _read(self.path)
        if self.path.stat().st_mode & 0o077:
            raise _unusable(self.path, "others than its owner may read it", f"chmod 600 {self.path}")
        try:
            found = _identity(raw)
            _check_key(self.path)
        except (ValueError, ssl.SSLError) as strange:  # their texts may show what was read
            is_other = isinstance(strange, ssl.SSLError) and "_MISMATCH" in (strange.reason or "")
            what = "its certificate is for another key" if is_other else "it is no identity of an agent"
            raise _unusable(self.path, what, "Enrol the agent again") from None
        return found

    def check_expiry(self) -> None:
        """Raises `IdentityUnusable` once the certificate is over."""
        found = self.load()
        if found.not_after <= datetime.now(UTC):
            raise _unusable(
                self.path,
                f"the certificate of agent {found.agent} has expired at {found.not_after:%Y-%m-%d %H:%M:%S} UTC",
                "Enrol it anew: menura agent enrol, with a token of"
                f" menura token create --tenant {found.tenant} --agent {found.agent}",
            )

    def read(self) -> Credentials:
        found = self.load()
        return Credentials(found.ca, found.certificate, found.key, GATEWAY_HOST)

    def stamp(self) -> Stamp:
        return (_stamp(self.path),)

    def prepare(self, key: bytes) -> None:
        """Keep the key beside the file, so that what can't be written is known before a token is spent."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_durably(self._beside, key)
        except OSError as refused:
            raise _unwritable(self.path, refused) from refused

    def write(self, key: bytes, request: bytes, certificate: bytes, ca: bytes) -> Identity:
        """They replace the former ones: PEM, but for the request. What was written.

        Raises `IdentityUnusable`, or ValueError where it would not be one that can be used.
        """
        parts = key, certificate, ca, _pem(_REQUEST, request)
        try:
            _write_durably(self._beside, b"".join(parts))
            try:
                _check_key(self._beside)
            except ssl.SSLError:
                raise ValueError("it can't be used with the key") from None
            written = _identity(b"".join(parts))
            self._beside.rename(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as refused:
            raise _unwritable(self.path, refused) from refused
        return written

    @property
    def _beside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")


def certificate_for(pem: bytes, tenant: str, agent: str, public_key: bytes) -> bytes:
    """A certificate that was asked for, in PEM; raises ValueError where it is another one."""
    der, *_ = _blocks(pem, _CERTIFICATE)
    certificate = read_certificate(der)
    if certificate.public_key != public_key or _agent_of(certificate) != (tenant, agent):
        raise ValueError("it is a certificate of somebody else")
    return _pem(_CERTIFICATE, der)


def _identity(raw: bytes) -> Identity:
    """Raises ValueError."""
    key = _KEY.search(raw)
    own, ca, *_ = _blocks(raw, _CERTIFICATE)
    facts = read_certificate(own)
    read_certificate(ca)
    named = _agent_of(facts)
    if key is None or named is None or not facts.is_of_ec_key:
        raise ValueError("it is no identity of an agent")
    request = next(iter(_blocks(raw, _REQUEST)), b"")
    return Identity(*named, _pem(_CERTIFICATE, ca), _pem(_CERTIFICATE, own), key[0], facts, request)


def _check_key(path: Path) -> None:
    """That the file's first certificate is for its key; raises ssl.SSLError."""
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(path, password=lambda: b"")  # nobody is asked for one


def _agent_of(certificate: Certificate) -> tuple[str, str] | None:
    return agent_of(certificate.uris[0]) if len(certificate.uris) == 1 else None


def _blocks(pem: bytes, label: str) -> list[bytes]:
    """What its parts of that name hold; raises ValueError."""
    pattern = rf"-----BEGIN {label}-----([A-Za-z0-9+/=\s]*)-----END {label}-----"
    return [base64.b64decode(found) for found in re.findall(pattern.encode(), pem)]


def _pem(label: str, der: bytes) -> bytes:
    lines = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return "".join(f"{line}\n" for line in (f"-----BEGIN {label}-----", *lines, f"-----END {label}-----")).encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as broken:
        raise _unusable(path, broken.strerror or type(broken).__name__, "Enrol the agent, or name another file") from (
            broken
        )


def _write_durably(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _stamp(path: Path) -> tuple[int, int, int]:
    """Zeros: it is not there."""
    try:
        seen = path.stat()
    except OSError:
        return 0, 0, 0
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _unusable(path: Path, found: str, remedy: str) -> IdentityUnusable:
    return IdentityUnusable(f"reading {path}", found, data="Nothing was sent", remedy=remedy)


def _unwritable(path: Path, refused: OSError) -> IdentityUnusable:
    return IdentityUnusable(
        f"writing {path}",
        refused.strerror or type(refused).__name__,
        data="What was there before is still there",
        remedy="Name a file in a folder that the agent's user may write to, with --identity or gateway.identity",
    )
