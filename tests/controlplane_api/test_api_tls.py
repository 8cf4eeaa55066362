"""`menura api run` beyond loopback: HTTPS, its certificate replaced while it runs, and nobody anonymous."""

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.controlplane_api.commands import menura
from tests.servers import free_port
from tests.stack import Process, wait_for


def write_certificate(folder: Path, name: str) -> None:
    """A certificate of its own making for localhost, with its key, in place of what is there."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, SHA256())
    )
    for file, content in (
        ("api.key", key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())),
        ("api.pem", certificate.public_bytes(Encoding.PEM)),
    ):
        beside = folder / f"{file}.new"
        beside.write_bytes(content)
        beside.rename(folder / file)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def api(tmp_path: Path, port: int) -> Iterator[Process]:
    write_certificate(tmp_path, "first")
    arguments = ["--database", f"sqlite:///{tmp_path}/control.db", "--listen", f"0.0.0.0:{port}"]
    arguments += ["--tls-certificate", str(tmp_path / "api.pem"), "--tls-key", str(tmp_path / "api.key")]
    arguments += ["--admin-token-file", str(tmp_path / "api.token")]
    process = Process(["api", "run", *arguments], tmp_path / "api.log")
    with process:
        wait_for("the API", lambda: "API and dashboard on https" in process.log.read_text() or not process.is_running())
        assert process.is_running(), process.tail()
        yield process


def subject_at(port: int) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port)) as raw, context.wrap_socket(raw) as connection:
        shown = x509.load_der_x509_certificate(connection.getpeercert(binary_form=True) or b"")
    return shown.subject.rfc4514_string()


def test_api_when_others_reach_it_then_it_speaks_tls_and_follows_its_certificate(
    api: Process, port: int, tmp_path: Path
):
    url, ca = f"https://localhost:{port}", str(tmp_path / "api.pem")
    where = {"MENURA_API": url, "MENURA_API_CA": ca, "MENURA_API_TOKEN_FILE": str(tmp_path / "api.token")}
    wait_for("its answer", lambda: menura("agents", **where).returncode == 0)
    assert "CALLER_MISSING" in menura("agents", **{**where, "MENURA_API_TOKEN_FILE": ""}).stderr
    assert "API_UNREACHABLE" in menura("agents", **{**where, "MENURA_API_CA": ""}).stderr  # the system does not know it
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/healthz")
    trusted = ssl.create_default_context(cafile=ca)
    token = (tmp_path / "api.token").read_text().strip()
    session = httpx.post(f"{url}/api/v1/session", json={"token": token}, verify=trusted, timeout=300)
    assert session.headers["set-cookie"].startswith("__Host-menura-session=")
    assert "; Secure" in session.headers["set-cookie"]
    assert subject_at(port) == "CN=first"
    (tmp_path / "api.key").write_text("half a pair")
    wait_for("its complaint", lambda: "new certificate is not used" in api.log.read_text())
    assert subject_at(port) == "CN=first"
    write_certificate(tmp_path, "second")
    wait_for("the new certificate", lambda: subject_at(port) == "CN=second")
    assert menura("agents", **where).returncode == 0  # trusts the file, which is the new one's
    assert token not in api.log.read_text()
