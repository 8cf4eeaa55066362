"""`menura agent enrol`: this host's agent gets a certificate with a token that an operator has made.

Comes in: the gateway's address and the token. Goes out: the file of `agent.identity`. Before the token is shown to
anybody the CA is known: the gateway tells its certificate over a connection that proves nothing, and it counts when its
digest is the token's. The second connection is one that this CA verifies.

The key is on disk before the token is spent. A kill after that, or an answer that is lost, leaves a token that is
spent and no certificate: another token, one that names the agent, brings one.
"""

import base64
import hmac
import http.client
import json
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from menura.errors import printable
from menura.identity import (
    CA_PATH,
    ENROL_PATH,
    GATEWAY_HOST,
    MAX_ENROLMENT_BYTES,
    EnrolmentToken,
    fingerprint,
)

from agent.errors import EnrolmentFailed
from agent.identity import IdentityFile, certificate_for
from agent.private_key import key_pem, new_key, public_key_der, request_for

SECONDS = 30.0
MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Enrolled:
    tenant: str
    agent: str
    #: of its sources: those that the control plane has not given to it
    unassigned: tuple[str, ...]


def enrol(
    host: str, port: int, token: EnrolmentToken, agent: str, sources: Sequence[str], file: IdentityFile
) -> Enrolled:
    """Spend the token and write the file; raises `EnrolmentFailed` or `IdentityUnusable`."""
    doing = f"enrolling at {host}:{port}"
    ca = _known_ca(doing, host, port, token)
    key = new_key()
    pem, request = key_pem(key), request_for(key)
    file.prepare(pem)
    asked = {
        "token": token.id,
        "secret": base64.b64encode(token.secret).decode(),
        "agent": agent,
        "request": base64.b64encode(request).decode(),
        "sources": list(sources),
    }
    status, body = _ask(doing, host, port, _verifying(ca), "POST", ENROL_PATH, json.dumps(asked).encode())
    if status != 200:
        raise _refused(doing, status, body)
    try:
        answer = json.loads(body)
        enrolled = Enrolled(str(answer["tenant"]), str(answer["agent"]), tuple(map(str, answer["unassigned"])))
        own = public_key_der(key)
        certificate = certificate_for(str(answer["certificate"]).encode(), enrolled.tenant, agent, own)
        file.write(pem, request, certificate, ca.public_bytes(Encoding.PEM))
    except (ValueError, TypeError, KeyError) as strange:
        raise EnrolmentFailed(
            doing,
            f"its answer is not of the form of this version ({type(strange).__name__})",
            data="The token is spent",
            remedy="Use the same version on both sides, and another token",
        ) from strange
    return enrolled


def _known_ca(doing: str, host: str, port: int, token: EnrolmentToken) -> x509.Certificate:
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    status, body = _ask(doing, host, port, unverified, "GET", CA_PATH, b"")
    try:
        ca = x509.load_pem_x509_certificate(body)
    except ValueError as strange:
        raise EnrolmentFailed(
            doing,
            f"it answers {status} and no certificate of a CA",
            data="The token was not shown to it",
            remedy="Check --gateway, and --enrol-port where the gateway has --enrol-listen",
        ) from strange
    if not hmac.compare_digest(fingerprint(ca.public_bytes(Encoding.DER)), token.ca_fingerprint):
        raise EnrolmentFailed(
            doing,
            "its CA is not the one that the token names: it is a gateway of another installation, or somebody stands"
            " between it and this host",
            data="The token was not shown to it",
            remedy="Check --gateway, and make the token with the control plane of that gateway",
        )
    return ca


def _verifying(ca: x509.Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # another CA may have certified it
    context.load_verify_locations(cadata=ca.public_bytes(Encoding.PEM).decode())
    return context


def _ask(
    doing: str, host: str, port: int, context: ssl.SSLContext, method: str, path: str, body: bytes
) -> tuple[int, bytes]:
    """Status and body of one request on a connection of its own."""
    assert len(body) <= MAX_ENROLMENT_BYTES
    try:
        with (
            socket.create_connection((host, port), SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=GATEWAY_HOST) as secured,
        ):
            connection = http.client.HTTPConnection(host, port)
            connection.sock = secured
            connection.request(method, path, body, {"Content-Type": "application/json", "Connection": "close"})
            answer = connection.getresponse()
            return answer.status, answer.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as broken:
        found = (broken.strerror if isinstance(broken, OSError) else None) or str(broken) or type(broken).__name__
        raise EnrolmentFailed(
            doing,
            printable(found),
            data="If the token was spent meanwhile, it enrols nobody any more",
            remedy="Check --gateway, that the gateway runs with --ca, and that its port for enrolment, the one after"
            " the agents', can be reached from this host",
        ) from broken


def _refused(doing: str, status: int, body: bytes) -> EnrolmentFailed:
    try:
        told = json.loads(body)
        texts = {name: printable(str(told[name]))[:1_000] for name in ("code", "found", "data", "remedy")}
    except (ValueError, TypeError, KeyError):
        return EnrolmentFailed(doing, f"it answers {status}", remedy="See the gateway's log")
    return EnrolmentFailed(doing, f"{texts['code']}: {texts['found']}", data=texts["data"], remedy=texts["remedy"])
