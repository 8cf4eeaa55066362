"""Who an agent is, as both ends write it: the name in its certificate, and the token that it enrols with.

An agent's certificate has one URI in its subjectAltName, ``menura://TENANT/AGENT``, and nothing else of it is read.
Every gateway that a control plane's CA has certified has the DNS name `GATEWAY_HOST`, whatever address an agent dials:
that CA certifies nobody else for it.
"""

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, field

from menura.naming import is_identity

GATEWAY_HOST = "gateway.menura.internal"

#: of the address that agents dial; on the next one they enrol, which needs no certificate
ENROLMENT_PORT_OFFSET = 1
#: before it was made, from when on a certificate is good: clocks differ
SKEW_SECONDS = 300
#: of a request to enrol and of its answer, both JSON
MAX_ENROLMENT_BYTES = 64 << 10
CA_PATH, ENROL_PATH = "/v1/ca", "/v1/enrol"

_SECRET_BYTES = 32
_URI = re.compile(r"menura://([^/]+)/([^/]+)")
_TOKEN = re.compile(r"menura1\.([0-9a-f]{16})\.([0-9A-Za-z_-]{43})\.([0-9A-Za-z_-]{43})")


def agent_uri(tenant: str, agent: str) -> str:
    return f"menura://{tenant}/{agent}"


def agent_of(uri: str) -> tuple[str, str] | None:
    """Tenant and agent; None for any other URI.

    >>> agent_of("menura://acme/shop-1"), agent_of("menura://acme/shop-1/x"), agent_of("spiffe://acme/shop-1")
    (('acme', 'shop-1'), None, None)
    """
    match = _URI.fullmatch(uri)
    if match is None or not all(map(is_identity, match.groups())):
        return None
    return match[1], match[2]


def fingerprint(certificate_der: bytes) -> bytes:
    """SHA-256 of a certificate."""
    return hashlib.sha256(certificate_der).digest()


@dataclass(frozen=True, slots=True)
class EnrolmentToken:
    """What an operator hands to a database's host: which token, its secret, and which CA stands behind it.

    >>> token = EnrolmentToken("00112233aabbccdd", b"s" * 32, b"f" * 32)
    >>> EnrolmentToken.parse(token.reveal()) == token, token
    (True, EnrolmentToken(id='00112233aabbccdd'))
    """

    id: str
    secret: bytes = field(repr=False)
    ca_fingerprint: bytes = field(repr=False)

    def reveal(self) -> str:
        return f"menura1.{self.id}.{_text(self.secret)}.{_text(self.ca_fingerprint)}"

    @classmethod
    def parse(cls, text: str) -> "EnrolmentToken":
        """Raises ValueError, which does not show the text."""
        match = _TOKEN.fullmatch(text.strip())
        if match is None:
            raise ValueError("this is no enrolment token")
        try:
            return cls(match[1], _bytes(match[2]), _bytes(match[3]))
        except binascii.Error:
            raise ValueError("this is no enrolment token") from None


def secret_sha256(secret: bytes) -> str:
    """What a control plane keeps of a token. It has 256 random bits, so that a plain hash can't be searched."""
    return hashlib.sha256(secret).hexdigest()


def _text(raw: bytes) -> str:
    if len(raw) != _SECRET_BYTES:
        raise ValueError(f"{len(raw)} bytes, expected {_SECRET_BYTES}")
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=")
