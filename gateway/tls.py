"""What the gateway shows of itself, and whom it trusts: certificates that change while it runs.

Comes in: an `Authority`, or PEM files of an operator's own CA. Goes out: credentials for gRPC's port, which asks for
the newest certificate at each handshake. Connections that are open stay as they are.

Files are looked at every few seconds. New ones count when all of them can be read and belong together; until then the
former ones serve on, and the log says what is wrong.
"""

import asyncio
import logging
import os
import ssl
from pathlib import Path
from typing import Protocol

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from menura.instants import now_us

from gateway.config import TlsFiles
from gateway.errors import ListenRefused
from gateway.identity import Authority

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


class ServerTls(Protocol):
    def credentials(self) -> grpc.ServerCredentials:
        """Every client has to show a certificate of the CA."""

    async def run(self) -> None:
        """Follow what changes until cancelled."""


class _Served:
    """The configuration that the next handshake takes."""

    def __init__(self, key: bytes, chain: bytes, client_ca: bytes) -> None:
        self.set(key, chain, client_ca)

    def set(self, key: bytes, chain: bytes, client_ca: bytes) -> None:
        self._next: grpc.ServerCertificateConfiguration | None = grpc.ssl_server_certificate_configuration(
            [(key, chain)], client_ca
        )

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(self._take(), self._take, require_client_authentication=True)

    def _take(self) -> "grpc.ServerCertificateConfiguration | None":
        """Called at each handshake, in gRPC's threads; None: nothing has changed since."""
        configuration, self._next = self._next, None
        return configuration


class AuthorityTls:
    """The gateway's own certificate of the CA, made anew well before it ends."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._current = authority.certify_gateway()
        self._served = _Served(self._current.key_pem, self._current.chain_pem, authority.ca_pem)
        #: of the port for enrolment, which asks for no client certificate
        self.enrolment = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.enrolment.minimum_version = ssl.TLSVersion.TLSv1_3
        self._load()

    def credentials(self) -> grpc.ServerCredentials:
        return self._served.credentials()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._current.is_due(now_us()):
                self._current = await asyncio.to_thread(self._authority.certify_gateway)
                self._served.set(self._current.key_pem, self._current.chain_pem, self._authority.ca_pem)
                self._load()
                logger.info("the gateway has a new certificate")

    def _load(self) -> None:
        """The standard library takes files alone: this one is in memory, and nobody else sees it."""
        with os.fdopen(os.memfd_create("gateway"), "wb") as file:
            file.write(self._current.key_pem + self._current.chain_pem)
            file.flush()
            self.enrolment.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


class FilesTls:
    """Raises `ListenRefused` where the files can't be used from the start."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._look()
        self._told = ""
        try:
            self._served = _Served(*self._read())
        except ValueError as wrong:
            raise ListenRefused(
                "reading the gateway's TLS files", str(wrong), remedy="Give a PEM certificate, its key, and the CA"
            ) from wrong

    def credentials(self) -> grpc.ServerCredentials:
        return self._served.credentials()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            seen = await asyncio.to_thread(self._look)
            if seen == self._seen:
                continue
            try:
                self._served.set(*await asyncio.to_thread(self._read))
            except (ListenRefused, ValueError) as wrong:
                if str(wrong) != self._told:
                    logger.warning("new TLS files are not used, the former ones serve on: %s", wrong)
                self._told = str(wrong)
            else:
                self._seen, self._told = seen, ""
                logger.info("the gateway has new TLS files")

    def _paths(self) -> tuple[Path, Path, Path]:
        return self._files.key, self._files.certificate, self._files.client_ca

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(map(_stamp, self._paths()))

    def _read(self) -> tuple[bytes, bytes, bytes]:
        """Key, chain and CA; raises `ListenRefused` or ValueError, which show nothing of a key."""
        key, chain, client_ca = map(_read, self._paths())
        try:
            matches = load_pem_private_key(key, None).public_key() == x509.load_pem_x509_certificate(chain).public_key()
            x509.load_pem_x509_certificates(client_ca)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise ValueError("one of the files is no PEM of what it should be") from None
        if not matches:
            raise ValueError(f"{self._files.key} is not the key of {self._files.certificate}")
        return key, chain, client_ca


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_size, seen.st_ino


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise ListenRefused(
            "reading the gateway's TLS files", f"{path}: {unreadable.strerror}", remedy="Name a readable PEM file"
        ) from unreadable
