"""Identities of agents at the gateway: values, what a certificate says, and the seam to the CA.

Comes in: the certificate of a TLS connection whose chain gRPC has verified. Goes out: whose it is. `Authority` is the
control plane's CA, which `controlplane_api` implements over its files and its database. Its calls are synchronous and
short: the gateway runs them in a worker thread.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from menura.identity import agent_of

from gateway.errors import (
    AgentRevoked,
    AgentUnknown,
    CertificateInvalid,
    CertificateMissing,
    CertificateSuperseded,
    IdentityMismatch,
    SourceNotAssigned,
)
from gateway.registry import AgentName, SourceKey, Standing

NOTHING_READ = "Nothing of it was read"
REMEDY = "Enrol the agent: menura agent enrol. Of a CA of your own, give certificates the URI menura://TENANT/AGENT"


@dataclass(frozen=True, slots=True)
class Identity:
    """Of one certificate of an agent."""

    tenant: str
    agent: str
    #: of its public key, as SubjectPublicKeyInfo
    key_sha256: str
    expires_at_us: int

    @property
    def name(self) -> AgentName:
        return self.tenant, self.agent


@dataclass(frozen=True, slots=True)
class GatewayCertificate:
    key_pem: bytes
    chain_pem: bytes
    renew_at_us: int
    valid_from_us: int

    def is_due(self, at_us: int) -> bool:
        """Whether another one is to be made: it is time, or the clock was ahead when it was made and has gone back.

        Agents, whose clocks are right, would take one from the future for invalid until then.
        """
        return not self.valid_from_us <= at_us < self.renew_at_us

    def __repr__(self) -> str:
        return f"GatewayCertificate(renew_at_us={self.renew_at_us})"


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What an agent asks for; `token` and `secret` are those of a `menura.identity.EnrolmentToken`."""

    token: str
    secret: bytes
    agent: str
    #: PKCS#10, DER
    request: bytes
    sources: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Enrolment(token={self.token!r}, agent={self.agent!r})"


@dataclass(frozen=True, slots=True)
class Enrolled:
    tenant: str
    agent: str
    certificate_pem: bytes
    #: of the sources that it named: those that are another agent's, or nobody's
    unassigned: tuple[str, ...]


class Authority(Protocol):
    """Certifies agents and gateways."""

    @property
    def ca_pem(self) -> bytes: ...

    def certify_gateway(self) -> GatewayCertificate:
        """For a key that is made for it and stays in the process."""

    def enrol(self, enrolment: Enrolment, address: str) -> Enrolled:
        """Spend the token. Raises a `MenuraError`: `address` asked and got nothing, which is audited."""

    def renew(self, identity: Identity, request: bytes) -> bytes:
        """A new certificate in PEM for the agent's key; raises a `MenuraError`."""


@lru_cache(maxsize=4096)
def identity_of(certificate_pem: bytes) -> Identity:
    """Whose certificate it is; raises `CertificateInvalid`."""
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension) as unreadable:
        raise _invalid(f"its names can't be read ({type(unreadable).__name__})") from unreadable
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    named = agent_of(uris[0]) if len(uris) == 1 else None
    if named is None:
        raise _invalid(f"{len(uris)} URIs, expected one that is menura://TENANT/AGENT")
    return Identity(*named, key_sha256(certificate), _us(certificate.not_valid_after_utc))


def check_named(identity: Identity, said: AgentName) -> None:
    """Raises `IdentityMismatch` where a header names another agent than its connection's certificate."""
    if identity.name != said:
        raise IdentityMismatch(
            "admitting an agent",
            f"its certificate is of agent {identity.agent} of tenant {identity.tenant}, and its header names agent"
            f" {said[1]} of tenant {said[0]}",
            data=NOTHING_READ,
            remedy="Correct tenant and agent in the agent's configuration, or gateway.identity",
        )


def check_standing(identity: Identity, standing: Standing | None) -> None:
    """Raises an `IdentityRefused` unless the database knows the agent with this key."""
    anew = f"enrol it with menura agent enrol and a token of menura token create --agent {identity.agent}"
    if standing is None or not standing.is_enrolled:
        raise AgentUnknown(
            _admitting(identity.name),
            "the control plane has no such agent that comes with a certificate",
            data=NOTHING_READ,
            remedy=f"{anew.capitalize()}. Where its certificate is of your own CA: menura agents add {identity.agent}",
        )
    if standing.is_revoked:
        raise AgentRevoked(
            _admitting(identity.name), "it was revoked", data=NOTHING_READ, remedy=f"If it may come back, {anew}"
        )
    if standing.key_sha256 not in (None, identity.key_sha256):
        raise CertificateSuperseded(
            _admitting(identity.name),
            "its certificate is for another key than the one that it has enrolled last",
            data=NOTHING_READ,
            remedy=f"Use the files of its last enrolment, or {anew}",
        )


def check_without_certificate(name: AgentName, standing: Standing | None) -> None:
    """Raises an `IdentityRefused` for an agent that is not to be taken at its word."""
    if standing is not None and standing.is_revoked:
        raise AgentRevoked(_admitting(name), "it was revoked", data=NOTHING_READ, remedy="Give the agent another name")
    if standing is not None and standing.is_enrolled:
        raise CertificateMissing(
            _admitting(name),
            "it has enrolled, and comes without its certificate to a gateway without TLS",
            data=NOTHING_READ,
            remedy="Let the agent dial the gateway that it enrolled at, or give it another name",
        )


def check_assigned(own: frozenset[str], source: SourceKey, agent: str) -> None:
    """Raises `SourceNotAssigned` unless it is among the agent's own sources."""
    if source.source not in own:
        raise not_assigned(source, agent)


def not_assigned(source: SourceKey, agent: str) -> SourceNotAssigned:
    return SourceNotAssigned(
        f"admitting a source of agent {agent}",
        "the control plane has not given it to this agent",
        data="Nothing of it was read; the agent's other sources go on",
        remedy=f"If it is this agent's: menura sources assign {source.source} --agent {agent}",
        source=source.source,
    )


def _admitting(name: AgentName) -> str:
    return f"admitting agent {name[1]} of tenant {name[0]}"


def key_sha256(owner: x509.Certificate | x509.CertificateSigningRequest) -> str:
    spki = owner.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).hexdigest()


def _us(instant: datetime) -> int:
    return int(instant.timestamp()) * 1_000_000


def _invalid(found: str) -> CertificateInvalid:
    return CertificateInvalid("reading an agent's certificate", found, data=NOTHING_READ, remedy=REMEDY)
