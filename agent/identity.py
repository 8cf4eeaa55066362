"""Who this agent is, as files on its host: what `menura agent enrol` has made, or those of an operator's own CA.

Comes in: paths. Goes out: what a connection to the gateway needs, read when one is made: files may change while the
agent runs.

An enrolment is one file that its owner alone may read: the private key, the agent's certificate, the CA's. It is
written beside its place, made durable, then renamed: a kill leaves the former one or the new one.
"""

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from menura.identity import GATEWAY_HOST, agent_of

from agent.errors import IdentityUnusable

FILE_NAME = "identity.pem"
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
    """What an enrolment's file says."""

    tenant: str
    agent: str
    ca: x509.Certificate
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @property
    def not_before(self) -> datetime:
        return self.certificate.not_valid_before_utc

    @property
    def not_after(self) -> datetime:
        return self.certificate.not_valid_after_utc

    def request(self) -> bytes:
        """A certificate request for the key, DER: who asks is known by the connection."""
        return request_for(self.key)


@dataclass(frozen=True, slots=True)
class IdentityFile:
    path: Path

    def load(self) -> Identity:
        """Raises `IdentityUnusable`."""
        raw = _read(self.path)
        if self.path.stat().st_mode & 0o077:
            raise _unusable(self.path, "others than its owner may read it", f"chmod 600 {self.path}")
        try:
            key = load_pem_private_key(raw, None)
            certificate, ca = x509.load_pem_x509_certificates(raw)[:2]
            named = _agent_of(certificate)
        except (ValueError, TypeError, x509.ExtensionNotFound):  # their texts may show what was read
            named = None
        if named is None or not isinstance(key, ec.EllipticCurvePrivateKey):
            raise _unusable(self.path, "it is no identity of an agent", "Enrol the agent again")
        if certificate.public_key() != key.public_key():
            raise _unusable(self.path, "its certificate is for another key", "Enrol the agent again")
        return Identity(*named, ca, certificate, key)

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
        return Credentials(
            found.ca.public_bytes(Encoding.PEM),
            found.certificate.public_bytes(Encoding.PEM),
            key_pem(found.key),
            GATEWAY_HOST,
        )

    def stamp(self) -> Stamp:
        return (_stamp(self.path),)

    def prepare(self, key: ec.EllipticCurvePrivateKey) -> None:
        """Keep the key beside the file, so that what can't be written is known before a token is spent."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_durably(self._beside, key_pem(key))
        except OSError as refused:
            raise _unwritable(self.path, refused) from refused

    def write(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, ca: x509.Certificate) -> None:
        """The certificate's and the CA's replace the former ones; raises `IdentityUnusable`."""
        parts = key_pem(key), certificate.public_bytes(Encoding.PEM), ca.public_bytes(Encoding.PEM)
        try:
            _write_durably(self._beside, b"".join(parts))
            self._beside.rename(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as refused:
            raise _unwritable(self.path, refused) from refused

    @property
    def _beside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")


def request_for(key: ec.EllipticCurvePrivateKey) -> bytes:
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    return request.public_bytes(Encoding.DER)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate_for(pem: bytes, tenant: str, agent: str, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A certificate that was asked for; raises ValueError where it is another one."""
    certificate = x509.load_pem_x509_certificate(pem)
    if certificate.public_key() != key.public_key() or _agent_of(certificate) != (tenant, agent):
        raise ValueError("it is a certificate of somebody else")
    return certificate


def _agent_of(certificate: x509.Certificate) -> tuple[str, str] | None:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return agent_of(uris[0]) if len(uris) == 1 else None


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
