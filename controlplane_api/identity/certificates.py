"""Certificates as the CA writes them. Pure: keys, names and instants come in, certificates go out.

What a certificate says is decided here alone. Of a request only the public key is taken, and only with the proof that
who asks has its private half.
"""

from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from menura.identity import GATEWAY_HOST, SKEW_SECONDS, agent_uri

from gateway.errors import CertificateRequestInvalid

CaKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

CA_DAYS = 3650
MAX_REQUEST_BYTES = 8 << 10
CURVES = (ec.SECP256R1, ec.SECP384R1)


def ca_certificate(key: CaKey, name: str, now: datetime) -> x509.Certificate:
    """Of a CA that has certified itself; it certifies no other CA."""
    subject = _named(name)
    return (
        _builder(subject, subject, now, now + timedelta(days=CA_DAYS))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )


def agent_certificate(
    ca: x509.Certificate, ca_key: CaKey, request: x509.CertificateSigningRequest, tenant: str, agent: str,
    now: datetime, lifetime: timedelta,
) -> x509.Certificate:  # fmt: skip
    """For the request's key, and nothing else that it wishes."""
    name = x509.UniformResourceIdentifier(agent_uri(tenant, agent))
    public_key = request.public_key()
    assert isinstance(public_key, ec.EllipticCurvePublicKey)  # see `read_request`
    return _leaf(ca, ca_key, public_key, agent, name, ExtendedKeyUsageOID.CLIENT_AUTH, now, lifetime)


def gateway_certificate(
    ca: x509.Certificate, ca_key: CaKey, key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> x509.Certificate:
    name = x509.DNSName(GATEWAY_HOST)
    return _leaf(ca, ca_key, key, GATEWAY_HOST, name, ExtendedKeyUsageOID.SERVER_AUTH, now, lifetime)


def read_request(der: bytes) -> x509.CertificateSigningRequest:
    """A request whose key we certify; raises `CertificateRequestInvalid`."""
    if len(der) > MAX_REQUEST_BYTES:
        raise _invalid(f"{len(der)} bytes, at most {MAX_REQUEST_BYTES}")
    try:
        request = x509.load_der_x509_csr(der)
        key, is_proven = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as unreadable:
        raise _invalid(f"it can't be read ({type(unreadable).__name__})") from unreadable
    if not is_proven:
        raise _invalid("its signature is not that of its key")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVES):
        raise _invalid("its key is not of the curve P-256 or P-384")
    return request


def _leaf(
    ca: x509.Certificate, ca_key: CaKey, key: ec.EllipticCurvePublicKey, common_name: str, name: x509.GeneralName,
    usage: x509.ObjectIdentifier, now: datetime, lifetime: timedelta,
) -> x509.Certificate:  # fmt: skip
    until = min(now + lifetime, ca.not_valid_after_utc)
    return (
        _builder(_named(common_name), ca.subject, now, until)
        .public_key(key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(_authority_key(ca), critical=False)
        .sign(ca_key, SHA256())
    )


def _builder(subject: x509.Name, issuer: x509.Name, now: datetime, until: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=SKEW_SECONDS))
        .not_valid_after(until)
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _authority_key(ca: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    try:
        known = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        known = x509.SubjectKeyIdentifier.from_public_key(ca.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _invalid(found: str) -> CertificateRequestInvalid:
    return CertificateRequestInvalid(
        "reading a certificate request", found, data="Nothing was certified", remedy="Enrol with menura agent enrol"
    )
