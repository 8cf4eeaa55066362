"""The CA's key and certificate, as files of a folder: made at the first start, or put there by an operator.

``ca.key`` is a private key in PEM, ``ca.pem`` its certificate. An operator's own CA, be it a root or one that another
CA has certified, is used by putting both there; nothing here is ever overwritten. Agents and gateways trust this
certificate and no other one.

Each file is written beside its place, made durable, then renamed; a lock keeps a second process out meanwhile. A kill
before the key's rename leaves nothing that counts; one between key and certificate leaves the key, for which the next
start makes the certificate: nobody has seen one yet.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from menura.identity import fingerprint

from controlplane_api.errors import CaUnusable
from controlplane_api.identity.certificates import CaKey, ca_certificate

KEY_FILE, CERTIFICATE_FILE = "ca.key", "ca.pem"


@dataclass(frozen=True, slots=True)
class Ca:
    certificate: x509.Certificate
    key: CaKey = field(repr=False)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.certificate.public_bytes(Encoding.DER))


def load_or_make(folder: Path) -> Ca:
    """The folder's CA, made where the folder has none. Raises `CaUnusable`."""
    key_file, certificate_file = folder / KEY_FILE, folder / CERTIFICATE_FILE
    doing = f"using the CA in {folder}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(folder):
            if certificate_file.exists() and not key_file.exists():
                raise CaUnusable(doing, f"there is {CERTIFICATE_FILE} without {KEY_FILE}", remedy="Put its key there.")
            if not key_file.exists():
                _write(key_file, _pem(ec.generate_private_key(ec.SECP256R1())))
            key = _load_key(key_file)
            if not certificate_file.exists():
                made = ca_certificate(key, f"Menura CA {secrets.token_hex(4)}", datetime.now(UTC))
                _write(certificate_file, made.public_bytes(Encoding.PEM))
            # An operator's file may have the chain up to a root behind it: the first one is the CA.
            return _checked(Ca(x509.load_pem_x509_certificates(certificate_file.read_bytes())[0], key), doing)
    except OSError as refused:
        raise CaUnusable(
            doing, refused.strerror or type(refused).__name__, remedy="Name a folder that this user may write to."
        ) from refused
    except ValueError:  # its text may show what was read
        raise CaUnusable(
            doing, "a file is no PEM of a key, or of a certificate", remedy="Put both there as PEM, without a password."
        ) from None


def _load_key(file: Path) -> CaKey:
    if file.stat().st_mode & 0o007:
        raise CaUnusable(f"reading {file}", "everybody on this machine may read it", remedy=f"chmod 600 {file}")
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except TypeError:
        raise ValueError from None  # it has a password
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise CaUnusable(f"reading {file}", "its key is neither of an elliptic curve nor RSA", remedy="Use another CA.")
    return key


def _checked(ca: Ca, doing: str) -> Ca:
    try:
        may_sign = ca.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        may_sign = False
    found = ""
    if ca.certificate.public_key() != ca.key.public_key():
        found = f"{KEY_FILE} is not the key of {CERTIFICATE_FILE}"
    elif not may_sign:
        found = f"{CERTIFICATE_FILE} is no certificate of a CA"
    elif ca.certificate.not_valid_after_utc <= datetime.now(UTC):
        found = f"{CERTIFICATE_FILE} has expired"
    if found:
        raise CaUnusable(doing, found, data="Nothing was changed.", remedy="Put a CA's certificate and its key there.")
    return ca


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(file: Path, content: bytes) -> None:
    beside = file.with_suffix(".new")
    beside.unlink(missing_ok=True)  # what a kill has left
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    beside.rename(file)
    handle = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
