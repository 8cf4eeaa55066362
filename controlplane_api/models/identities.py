"""Who there is, what they show, and what was done."""

from typing import Any

from sqlalchemy import ForeignKey, Index, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from controlplane_api.models.base import Base, Id


class Tenant(Base):
    __tablename__ = "tenant"

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at_us: Mapped[int]


class Agent(Base):
    __tablename__ = "agent"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    name: Mapped[str]
    #: one run of its process
    session: Mapped[str]
    version: Mapped[str]
    hostname: Mapped[str]
    connected: Mapped[bool]
    connected_at_us: Mapped[int]
    seen_at_us: Mapped[int]
    resident_memory_bytes: Mapped[int | None]
    cpu_us: Mapped[int | None]
    #: of the public key that it has enrolled; none: it has none, or any that the operator's own CA certifies
    key_sha256: Mapped[str | None]
    enrolled_at_us: Mapped[int | None]
    #: since then it is refused, until it enrols again
    revoked_at_us: Mapped[int | None]
    #: of the certificate that it has shown or got last; none: it has shown none
    certificate_expires_at_us: Mapped[int | None]
    #: what a gateway found last about who it is
    problem: Mapped[dict[str, Any] | None]
    #: digest of its last report about the sources that are configured for it: `gateway.registry.ConfigurationDigests`
    reported: Mapped[str] = mapped_column(default="", server_default="")


class EnrolmentToken(Base):
    """What enrols an agent once: see `identity.tokens`. A row stays for a while after its end."""

    __tablename__ = "enrolment_token"
    __table_args__ = (UniqueConstraint("token"), Index(None, "tenant_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    #: its public half
    token: Mapped[str]
    secret_sha256: Mapped[str]
    tenant_id: Mapped[int] = mapped_column(ForeignKey("tenant.id"))
    #: the only one that it enrols; empty: any that is new
    agent: Mapped[str]
    created_at_us: Mapped[int]
    expires_at_us: Mapped[int]
    used_at_us: Mapped[int | None]
    #: the agent that it has enrolled
    used_by: Mapped[str] = mapped_column(default="")
    revoked_at_us: Mapped[int | None]


class CertificateAuthority(Base):
    """The CA whose gateways take agents: its certificate alone. One row, or none before the first gateway with a CA."""

    __tablename__ = "certificate_authority"

    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=False)
    certificate_pem: Mapped[str]
    at_us: Mapped[int]


class AuditEntry(Base):
    """What was done or refused about who is who. Rows are only added; the oldest ones go."""

    __tablename__ = "audit"
    __table_args__ = (
        Index("ix_audit_tenant_id", "tenant", "id"),
        Index("ix_audit_tenant_number", "tenant", "number"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at_us: Mapped[int]
    #: as it was said; there may be none of this name
    tenant: Mapped[str]
    actor: Mapped[str]
    action: Mapped[str]
    #: the code of the error that refused it; empty: it was done
    refused: Mapped[str]
    found: Mapped[str]
    #: among the tenant's: 1, 2, 3 of what was done, -1, -2, -3 of what was refused
    number: Mapped[int] = mapped_column(server_default="0")
    #: `refused` is the code of an error that is no refusal
    failed: Mapped[bool] = mapped_column(server_default=false())


class KeptAnswer(Base):
    """What the API has answered to a command with an Idempotency-Key; see `api.writing`."""

    __tablename__ = "kept_answer"
    __table_args__ = (Index(None, "tenant", "at_us"),)

    #: of the path; empty where it names none
    tenant: Mapped[str] = mapped_column(primary_key=True)
    #: as the audit log names it
    caller: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    at_us: Mapped[int]
    #: of method, path, query and body
    request_sha256: Mapped[str]
    #: as JSON; none: too large
    answer: Mapped[str | None]


class ApiToken(Base):
    """What a person or a script shows the API: see `identity.api_tokens`. A row stays for a while after its end."""

    __tablename__ = "api_token"
    __table_args__ = (UniqueConstraint("token"), Index(None, "tenant_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    #: its public half
    token: Mapped[str]
    secret_argon2: Mapped[str]
    name: Mapped[str]
    #: of `identity.callers.Role`
    role: Mapped[str]
    #: none: the whole fleet
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey("tenant.id"))
    #: who has made it
    created_by: Mapped[str]
    created_at_us: Mapped[int]
    #: none: never, as that of `menura api run --admin-token-file`
    expires_at_us: Mapped[int | None]
    revoked_at_us: Mapped[int | None]


class WebSession(Base):
    """What a browser's cookie names, or a link that makes one: see `identity.sessions`."""

    __tablename__ = "web_session"
    __table_args__ = (UniqueConstraint("secret_sha256"), Index(None, "actor"), Index(None, "token_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    secret_sha256: Mapped[str]
    #: is good once, for a session
    link: Mapped[bool]
    actor: Mapped[str]
    #: [role, tenant or null] each; of a session without a token
    grants: Mapped[list[Any]]
    #: whose role it has, as long as that token is good
    token_id: Mapped[int | None] = mapped_column(ForeignKey("api_token.id", ondelete="CASCADE"))
    created_at_us: Mapped[int]
    expires_at_us: Mapped[int]
