"""The control plane's CA as a gateway uses it: `gateway.identity.Authority` over its files and the database.

Comes in: requests for certificates. Goes out: certificates, and what the database says of it. The certificate of the CA
is in the database too, where the API takes it for tokens. The key is in the folder and in this process alone.

An enrolment is one transaction: the token is spent, the agent has its key, its new sources are its own; then the
certificate leaves. A kill before the commit leaves everything as it was. One after it leaves a spent token and an agent
whose certificate nobody has: another token that names the agent brings one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from menura.identity import fingerprint
from menura.instants import now_us
from sqlalchemy import Connection, insert, select, update

from controlplane_api.database import Database
from controlplane_api.errors import CaUnusable, DatabaseUnavailable
from controlplane_api.identity import agents, audit, tokens
from controlplane_api.identity.ca_files import Ca, load_or_make
from controlplane_api.identity.certificates import agent_certificate, gateway_certificate, read_request
from controlplane_api.identity.standings import standing_of
from controlplane_api.models import CertificateAuthority
from gateway.errors import CertificateRequestInvalid, EnrolmentRefused, IdentityRefused, RegistryAway
from gateway.identity import Enrolled, Enrolment, GatewayCertificate, Identity, check_standing, key_sha256

#: of a certificate's life, when the next one is made
RENEW_AFTER = 1 / 3
_THE_ROW = 1
#: as the audit log names who brings a CA
ACTOR = "start of a gateway"


class SqlAuthority:
    """Thread-safe. Raises `CaUnusable` where the folder's CA can't be used, or is not that of the database."""

    def __init__(self, database: Database, folder: Path, lifetime: timedelta, *, replace: bool = False) -> None:
        self._database = database
        self._ca: Ca = load_or_make(folder)
        self._lifetime = lifetime
        with database.write() as connection:
            _publish(connection, self._ca, folder, replace=replace)

    @property
    def ca_pem(self) -> bytes:
        return self._ca.pem

    def certify_gateway(self) -> GatewayCertificate:
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        made = gateway_certificate(self._ca.certificate, self._ca.key, key.public_key(), now, self._lifetime)
        renew_at = now + (made.not_valid_after_utc - now) * RENEW_AFTER
        return GatewayCertificate(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            made.public_bytes(Encoding.PEM),
            int(renew_at.timestamp() * 1_000_000),
            int(made.not_valid_before_utc.timestamp() * 1_000_000),
        )

    def enrol(self, enrolment: Enrolment, address: str) -> Enrolled:
        request = read_request(enrolment.request)
        actor, now = f"token {enrolment.token} from {address}", now_us()
        with self._read() as connection:
            tenant = tokens.tenant_of(connection, enrolment.token)
        with self._audited(tenant, actor, "enrol"), self._write() as connection:
            token = tokens.spend(connection, enrolment.token, enrolment.secret, enrolment.agent, now)
            agent_id = agents.enrol(
                connection, token.tenant_id, enrolment.agent, key_sha256(request), anew=bool(token.agent), now=now
            )
            unassigned = agents.take_new_sources(connection, token.tenant_id, agent_id, enrolment.sources)
            audit.record(connection, token.tenant, actor, "enrol", found=f"agent {enrolment.agent}")
            made = self._certify(connection, request, token.tenant, enrolment.agent)
        return Enrolled(token.tenant, enrolment.agent, made, unassigned)

    def renew(self, identity: Identity, request: bytes) -> bytes:
        asked = read_request(request)
        with self._audited(identity.tenant, f"agent {identity.agent}", "renew"):
            if key_sha256(asked) != identity.key_sha256:
                raise CertificateRequestInvalid(
                    "renewing a certificate",
                    "the request is for another key than the certificate",
                    data="Nothing was certified",
                    remedy="For another key enrol anew: menura agent enrol",
                )
            with self._read() as connection:
                check_standing(identity, standing_of(connection, identity.tenant, identity.agent))
            with self._write() as connection:
                return self._certify(connection, asked, identity.tenant, identity.agent)

    def _certify(
        self, connection: Connection, request: x509.CertificateSigningRequest, tenant: str, agent: str
    ) -> bytes:
        now = datetime.now(UTC)
        made = agent_certificate(self._ca.certificate, self._ca.key, request, tenant, agent, now, self._lifetime)
        agents.certified(connection, tenant, agent, int(made.not_valid_after_utc.timestamp() * 1_000_000))
        return made.public_bytes(Encoding.PEM)

    @contextmanager
    def _audited(self, tenant: str, actor: str, action: str) -> Iterator[None]:
        """What is refused stands in the log, in a transaction of its own: that of the refusal changes nothing."""
        try:
            yield
        except (EnrolmentRefused, IdentityRefused) as refused:
            with self._write() as connection:
                audit.record(connection, tenant, actor, action, refused=refused.code, found=refused.found)
            raise

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        try:
            with self._database.write() as connection:
                yield connection
        except DatabaseUnavailable as away:
            raise _away(away) from away

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        try:
            with self._database.read() as connection:
                yield connection
        except DatabaseUnavailable as away:
            raise _away(away) from away


def _publish(connection: Connection, ca: Ca, folder: Path, *, replace: bool) -> None:
    known = connection.execute(select(CertificateAuthority.certificate_pem)).scalar()
    row = {"certificate_pem": ca.pem.decode(), "at_us": now_us()}
    if known is None:
        connection.execute(insert(CertificateAuthority).values(id=_THE_ROW, **row))
        audit.record(connection, "", ACTOR, "make known a CA", found=f"SHA-256 {ca.fingerprint.hex()}")
        return
    former = fingerprint(x509.load_pem_x509_certificate(known.encode()).public_bytes(Encoding.DER))
    if former == ca.fingerprint:
        return
    if not replace:
        raise CaUnusable(
            f"using the CA in {folder}",
            f"its certificate has SHA-256 {ca.fingerprint.hex()}, and agents know that with {former.hex()}",
            data="Nothing was changed.",
            remedy="Give --ca the folder of that CA. With --replace-ca this one counts, and every agent enrols again.",
        )
    connection.execute(update(CertificateAuthority).values(**row))
    found = f"SHA-256 {ca.fingerprint.hex()} for {former.hex()}"
    audit.record(connection, "", ACTOR, "replace the CA", found=found)


def _away(away: DatabaseUnavailable) -> RegistryAway:
    return RegistryAway(
        "asking the control plane's database",
        away.found,
        data="Nothing was certified",
        remedy="Check the database, and try again",
    )
