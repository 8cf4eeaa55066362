"""A gateway whose agents come with certificates, over the control plane's own CA and database."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID
from menura.identity import EnrolmentToken
from menura.instants import now_us

from agent.enrolment import enrol
from agent.identity import Credentials, IdentityFile
from controlplane_api.database import Database
from controlplane_api.identity import tokens
from controlplane_api.identity.authority import SqlAuthority
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway.metrics import GatewayMetrics
from tests.gateway.harness import running_gateway
from tests.gateway.scripted_agent import OPTIONS, ScriptedAgent
from tests.servers import free_port


@dataclass(frozen=True)
class Installation:
    """A database, a CA, and a gateway at `address`."""

    folder: Path
    database: Database
    authority: SqlAuthority
    address: str
    enrol_port: int
    metrics: GatewayMetrics

    def token(self, tenant: str = "acme", agent: str = "", ttl_seconds: int = 3_600) -> EnrolmentToken:
        with self.database.write() as connection:
            return tokens.create(connection, tenant, agent, ttl_seconds, now_us())

    async def enrol(self, agent: str, *sources: str, tenant: str = "acme", anew: bool = False) -> IdentityFile:
        """The file of an agent that has enrolled."""
        token = self.token(tenant, agent if anew else "")
        return await self.enrol_with(token, agent, *sources)

    async def enrol_with(self, token: EnrolmentToken, agent: str, *sources: str) -> IdentityFile:
        file = IdentityFile(self.folder / f"{token.id}-{agent}" / "identity.pem")
        await asyncio.to_thread(enrol, "127.0.0.1", self.enrol_port, token, agent, sources, file)
        return file

    @asynccontextmanager
    async def dialled(
        self, shown: IdentityFile | Credentials, tenant: str, agent: str, *sources: str
    ) -> AsyncIterator[ScriptedAgent]:
        """An agent that names itself so and shows this certificate; nothing is open yet."""
        found = shown.read() if isinstance(shown, IdentityFile) else shown
        credentials = grpc.ssl_channel_credentials(found.ca, found.key, found.certificate)
        options = (*OPTIONS, ("grpc.ssl_target_name_override", found.server_name))
        async with grpc.aio.secure_channel(self.address, credentials, options=options) as channel:
            yield ScriptedAgent(channel, tenant, agent, sources)


@asynccontextmanager
async def identified_gateway(
    folder: Path, database: Database, lifetime: timedelta = timedelta(days=1), **settings: Any
) -> AsyncIterator[Installation]:
    authority, enrol_port = SqlAuthority(database, folder / "ca", lifetime), free_port()
    enrol_listen = f"127.0.0.1:{enrol_port}"
    registry, metrics = SqlRegistry(database), GatewayMetrics()
    async with running_gateway(
        folder / "landing", registry, metrics, authority, enrol_listen=enrol_listen, **settings
    ) as address:
        yield Installation(folder, database, authority, address, enrol_port, metrics)


def forged(
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    *names: x509.GeneralName,
    issuer: x509.Name | None = None,
    until: datetime | None = None,
    extensions: tuple[x509.ExtensionType, ...] = (),
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A certificate that this CA's key signs, with these names and without the control plane's rules."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged")]))
        .issuer_name(issuer or ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(until or now + timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(ca_key, SHA256()), key


@contextmanager
def recorded_lines(logger: logging.Logger) -> Iterator[list[str]]:
    """All that is logged below this logger meanwhile, with the exceptions."""
    lines: list[str] = []

    class Recorder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    recorder, level = Recorder(), logger.level
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(recorder)
