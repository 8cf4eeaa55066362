"""Enrolment tokens: made by an operator, spent once by a database's host.

Comes in: commands, within the caller's transaction. Goes out: rows that hold a digest of the secret; the secret itself
is in the answer to whoever made the token, and nowhere else. A token ends when it is spent, when its time is over, or
when it is revoked; its row stays for `KEPT_SECONDS` after that.
"""

import hmac
import secrets
from collections.abc import Sequence
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from menura.identity import EnrolmentToken as Token
from menura.identity import fingerprint, secret_sha256
from menura.instants import instant_text
from sqlalchemy import Connection, Select, delete, func, insert, select, update

from controlplane_api.errors import CaMissing, TokensTooMany, TokenUnknown
from controlplane_api.models import AnyRow, CertificateAuthority, EnrolmentToken, Tenant
from controlplane_api.tenants import ensure_tenants
from gateway.errors import TokenRefused

MAX_LIVE_TOKENS = 1_000
KEPT_SECONDS = 30 * 86_400
#: compared where there is no such token
_NO_SECRET = "0" * 64


def create(connection: Connection, tenant: str, agent: str, ttl_seconds: int, now: int) -> Token:
    """A new one, and its tenant where that is new. `agent`: the only one that it enrols, or empty.

    Raises `CaMissing` and `TokensTooMany`.
    """
    pem = connection.execute(select(CertificateAuthority.certificate_pem)).scalar()
    if pem is None:
        raise CaMissing(
            "making an enrolment token",
            "no gateway with a CA has used this database, so agents could enrol nowhere",
            data="Nothing was changed.",
            remedy="Start one first: menura gateway run --ca FOLDER, or menura up --gateway-listen 0.0.0.0:7070.",
        )
    connection.execute(delete(EnrolmentToken).where(EnrolmentToken.expires_at_us < now - KEPT_SECONDS * 1_000_000))
    tenant_id = ensure_tenants(connection, {tenant}, now)[tenant]
    live = select(func.count()).where(
        EnrolmentToken.tenant_id == tenant_id,
        EnrolmentToken.used_at_us.is_(None),
        EnrolmentToken.revoked_at_us.is_(None),
        EnrolmentToken.expires_at_us > now,
    )
    if connection.execute(live).scalar_one() >= MAX_LIVE_TOKENS:
        raise TokensTooMany(
            "making an enrolment token",
            f"the tenant has {MAX_LIVE_TOKENS} that nobody has used",
            data="Nothing was changed.",
            remedy="Revoke those that nobody needs: menura token list.",
        )
    certificate = x509.load_pem_x509_certificate(pem.encode()).public_bytes(Encoding.DER)
    token = Token(secrets.token_hex(8), secrets.token_bytes(32), fingerprint(certificate))
    connection.execute(
        insert(EnrolmentToken).values(
            token=token.id,
            secret_sha256=secret_sha256(token.secret),
            tenant_id=tenant_id,
            agent=agent,
            created_at_us=now,
            expires_at_us=now + ttl_seconds * 1_000_000,
        )
    )
    return token


def listed(connection: Connection, tenant: str, limit: int, before: int | None = None) -> Sequence[AnyRow]:
    """The newest first, without digests, of those before this row where one is named."""
    statement = _of_tenant(tenant)
    if before is not None:
        statement = statement.where(EnrolmentToken.id < before)
    return connection.execute(statement.order_by(EnrolmentToken.id.desc()).limit(limit)).all()


def row(connection: Connection, tenant: str, token: str) -> AnyRow:
    """One that is there, without its digest."""
    return connection.execute(_of_tenant(tenant).where(EnrolmentToken.token == token)).one()


def _of_tenant(tenant: str) -> Select[*tuple[Any, ...]]:
    shown = [column for column in EnrolmentToken.__table__.columns if column.name != "secret_sha256"]
    return select(*shown).join_from(EnrolmentToken, Tenant).where(Tenant.name == tenant)


def tenant_of(connection: Connection, token: str) -> str:
    """Empty where there is no such token."""
    named = select(Tenant.name).join_from(EnrolmentToken, Tenant).where(EnrolmentToken.token == token)
    return connection.execute(named).scalar() or ""


def revoke(connection: Connection, tenant: str, token: str, now: int) -> None:
    """Raises `TokenUnknown`, also for another tenant's."""
    of_tenant = select(Tenant.id).where(Tenant.name == tenant).scalar_subquery()
    changed = connection.execute(
        update(EnrolmentToken)
        .where(EnrolmentToken.token == token, EnrolmentToken.tenant_id == of_tenant)
        .values(revoked_at_us=func.coalesce(EnrolmentToken.revoked_at_us, now))
    )
    if changed.rowcount == 0:
        raise TokenUnknown(
            "revoking an enrolment token", "this tenant has none of that name", remedy="See menura token list."
        )


def spend(connection: Connection, token: str, secret: bytes, agent: str, now: int) -> AnyRow:
    """Its tenant, and the agent that it is for: spent with the caller's transaction. Raises `TokenRefused`."""
    row = connection.execute(
        select(EnrolmentToken, Tenant.name.label("tenant"))
        .join_from(EnrolmentToken, Tenant)
        .where(EnrolmentToken.token == token)
        .with_for_update(of=EnrolmentToken)
    ).first()
    known = _NO_SECRET if row is None else row.secret_sha256
    if not hmac.compare_digest(secret_sha256(secret), known) or row is None:
        raise _refused("there is no such token")
    if row.revoked_at_us is not None:
        raise _refused("it was revoked")
    if row.used_at_us is not None:
        raise _refused(f"agent {row.used_by} has used it at {instant_text(row.used_at_us)}")
    if row.expires_at_us <= now:
        raise _refused(f"its time was over at {instant_text(row.expires_at_us)}")
    if row.agent and row.agent != agent:
        raise _refused(f"it is for agent {row.agent} alone, and {agent} came with it")
    spent = update(EnrolmentToken).where(EnrolmentToken.id == row.id).values(used_at_us=now, used_by=agent)
    connection.execute(spent)
    return row


def _refused(found: str) -> TokenRefused:
    return TokenRefused(
        "enrolling an agent",
        f"the token enrols nobody: {found}",
        data="Nothing was certified",
        remedy="Make another one: menura token create",
    )
