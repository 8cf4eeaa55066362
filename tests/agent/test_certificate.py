"""What the agent reads of a certificate by itself, beside what `cryptography` reads of it; and the file that has it."""

import itertools
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
)
from menura.identity import agent_uri

from agent import config
from agent.certificate import Certificate, read_certificate
from agent.errors import IdentityUnusable
from agent.identity import IdentityFile, certificate_for
from agent.private_key import key_pem, new_key, public_key_der, request_for, request_of

NAME = agent_uri("acme", "db-1")
#: beyond 2049 times have another form
TIMES = [(1999, 2049), (2049, 2050), (2050, 9999)]
URIS = [x509.UniformResourceIdentifier(f"menura://acme/{'x' * length}") for length in (1, 150, 300)]
EXTENSIONS: list[list[x509.ExtensionType]] = [
    [],
    [x509.BasicConstraints(ca=True, path_length=3)],
    [
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("a"), x509.UniformResourceIdentifier(NAME)]),
    ],
    [x509.SubjectAlternativeName(URIS)],
]


def made(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, years: tuple[int, int], extensions: list[x509.ExtensionType]
) -> x509.Certificate:
    builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(x509.Name([]))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(datetime(years[0], 2, 28, 23, 59, 58, tzinfo=UTC))
    builder = builder.not_valid_after(datetime(years[1], 12, 31, 1, 2, 3, tzinfo=UTC))
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, SHA256())


def expected(certificate: x509.Certificate) -> Certificate:
    uris: list[str] = []
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            uris += extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    public_key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return Certificate(certificate.not_valid_before_utc, certificate.not_valid_after_utc, tuple(uris), public_key)


@pytest.fixture(scope="module")
def keys() -> list[ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]:
    return [new_key(), ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)]


def test_certificate_when_another_library_has_made_it_then_both_read_the_same(
    keys: list[ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey],
) -> None:
    for key, years, extensions in itertools.product(keys, TIMES, EXTENSIONS):
        certificate = made(key, years, extensions)
        found = read_certificate(certificate.public_bytes(Encoding.DER))
        assert found == expected(certificate)
        assert found.is_of_ec_key == isinstance(key, ec.EllipticCurvePrivateKey)


def test_certificate_when_bytes_of_it_are_others_then_is_refused_or_read_as_another_library_reads_it() -> None:
    good = made(new_key(), TIMES[0], EXTENSIONS[2]).public_bytes(Encoding.DER)
    chance = random.Random(1)
    read = refused = 0
    for at in range(len(good)):
        for other in (0x80, 0xFF, good[at] ^ 1, chance.randrange(256)):
            der = good[:at] + bytes([other]) + good[at + 1 :]
            try:
                found = read_certificate(der)
            except ValueError:
                refused += 1
                continue
            try:
                certificate = x509.load_der_x509_certificate(der)
                load_der_public_key(found.public_key)
                wanted = expected(certificate)
            except Exception:  # noqa: BLE001  (whatever it refuses is read by nobody: TLS refuses it too)
                continue
            read += 1
            assert found == wanted, (at, other)
    for end in range(len(good)):
        with pytest.raises(ValueError):
            read_certificate(good[:end])
    assert read > 200
    assert refused > 200


@pytest.fixture
def file(tmp_path: Path) -> IdentityFile:
    return IdentityFile(tmp_path / "identity.pem")


def written(file: IdentityFile, *, request: bytes | None = None, years: tuple[int, int] = (2020, 2040)) -> bytes:
    """The key of an identity that was written; both its certificates are its own."""
    key = new_key()
    certificate = made(key, years, EXTENSIONS[2]).public_bytes(Encoding.PEM)
    file.write(key_pem(key), request_for(key) if request is None else request, certificate, certificate)
    return key_pem(key)


def test_identity_when_it_is_read_then_is_what_was_written(file: IdentityFile) -> None:
    key = written(file)
    found = file.load()
    assert (found.tenant, found.agent, found.key) == ("acme", "db-1", key)
    assert found.not_before < datetime.now(UTC) < found.not_after - timedelta(days=365)
    x509.load_pem_x509_certificate(found.certificate)
    request = x509.load_der_x509_csr(found.request())
    assert request.is_signature_valid
    assert request.public_key() == x509.load_pem_x509_certificate(found.certificate).public_key()
    assert "PRIVATE" not in repr(found)
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_identity_when_an_agent_of_before_has_written_it_then_makes_the_request_that_it_lacks(
    file: IdentityFile,
) -> None:
    key = written(file)
    file.path.write_bytes(file.path.read_bytes().partition(b"-----BEGIN CERTIFICATE REQUEST")[0])
    assert file.load().kept_request == b""
    request = x509.load_der_x509_csr(file.load().request())
    assert request.public_key() == x509.load_der_x509_csr(request_of(key)).public_key()


def test_configuration_when_the_agent_has_enrolled_then_a_gateway_on_this_host_has_to_know_it_too(
    tmp_path: Path,
) -> None:
    file = IdentityFile(tmp_path / "identity.pem")
    path = tmp_path / "agent.yaml"
    path.write_text(
        f"{{agent: db-1, tenant: acme, gateway: {{address: '127.0.0.1:7070'}}, state_folder: {tmp_path}, remote: {{}}}}"
    )
    assert config.load(path).gateway.tls is None
    written(file)
    assert config.load(path).gateway.tls == file


@pytest.mark.parametrize("wrong", ["key", "nothing", "rsa", "name", "one", "encrypted"])
def test_identity_when_it_is_none_then_says_so_and_shows_nothing_of_it(file: IdentityFile, wrong: str) -> None:
    key, other = new_key(), rsa.generate_private_key(65537, 2048)
    pem = made(key, TIMES[0], EXTENSIONS[2]).public_bytes(Encoding.PEM)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    of_rsa = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    content, words = {
        "key": (key_pem(new_key()) + pem + pem, "for another key"),
        "nothing": (b"", "no identity"),
        "rsa": (of_rsa + made(other, TIMES[0], EXTENSIONS[2]).public_bytes(Encoding.PEM) + pem, "no identity"),
        "name": (key_pem(key) + made(key, TIMES[0], EXTENSIONS[0]).public_bytes(Encoding.PEM) + pem, "no identity"),
        "one": (key_pem(key) + pem, "no identity"),
        "encrypted": (encrypted + pem + pem, "no identity"),
    }[wrong]
    file.path.write_bytes(content)
    file.path.chmod(0o600)
    with pytest.raises(IdentityUnusable, match=words) as refused:
        file.load()
    assert not any(line in str(refused.value) for line in content.decode().splitlines())


def test_renewed_certificate_when_it_is_no_use_then_the_former_stays(file: IdentityFile) -> None:
    key = written(file)
    former = file.path.read_bytes()
    other = made(new_key(), TIMES[0], EXTENSIONS[2]).public_bytes(Encoding.PEM)
    with pytest.raises(ValueError, match="somebody else"):
        certificate_for(other, "acme", "db-1", file.load().facts.public_key)
    with pytest.raises(ValueError, match="with the key"):
        file.write(key, b"", other, other)
    assert file.path.read_bytes() == former


def test_key_when_it_is_made_then_its_public_half_is_as_a_certificate_has_it() -> None:
    key = new_key()
    found = read_certificate(made(key, TIMES[0], []).public_bytes(Encoding.DER))
    assert found.public_key == public_key_der(key)
