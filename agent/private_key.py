"""The agent's private key, made by `cryptography`. An agent that runs loads none of it: see DECISIONS 249."""

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def request_for(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate request, DER: who asks is known by the connection."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    return request.public_bytes(Encoding.DER)


def request_of(pem: bytes) -> bytes:
    """The same for a key in PEM, which is one of `new_key`."""
    key = load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return request_for(key)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_key_der(key: ec.EllipticCurvePrivateKey) -> bytes:
    """SubjectPublicKeyInfo, as a certificate has it."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
