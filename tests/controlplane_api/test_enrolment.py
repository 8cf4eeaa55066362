"""How an agent gets its certificate, from a token to a file, over the gateway's port for it, on both databases."""

import asyncio
import base64
import hashlib
import json
import logging
import os
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from menura.identity import ENROL_PATH, EnrolmentToken
from menura.instants import now_us
from sqlalchemy import text, update

from agent.enrolment import _ask, _verifying, enrol
from agent.errors import EnrolmentFailed, IdentityUnusable
from agent.identity import IdentityFile
from agent.private_key import key_pem, request_for
from controlplane_api.database import Database, open_database
from controlplane_api.errors import CaMissing, CaUnusable
from controlplane_api.identity import agents, audit, tokens
from controlplane_api.identity.authority import SqlAuthority
from controlplane_api.identity.ca_files import load_or_make
from controlplane_api.identity.certificates import ca_certificate, gateway_certificate
from controlplane_api.models import EnrolmentToken as TokenRow
from gateway.errors import CertificateRequestInvalid
from gateway.identity import Enrolment
from tests.controlplane_api.conftest import serving
from tests.gateway.identities import Installation, forged, identified_gateway, recorded_lines

Scenario = Callable[[Installation], Awaitable[None]]


def run(folder: Path, database: Database, scenario: Scenario) -> None:
    async def main() -> None:
        async with identified_gateway(folder, database) as installation:
            await scenario(installation)

    asyncio.run(main())


def sources_of(database: Database, agent: str) -> list[str]:
    with database.read() as connection:
        rows = connection.execute(
            text("SELECT source.name FROM source JOIN agent ON agent.id = agent_id WHERE agent.name = :a ORDER BY 1"),
            {"a": agent},
        )
        return [row.name for row in rows]


def test_agent_when_it_enrols_then_has_a_key_of_its_own_and_a_certificate_that_names_it_alone(
    tmp_path: Path, database: Database
) -> None:
    async def scenario(here: Installation) -> None:
        file = await here.enrol("db-1", "shop", "crm")
        identity = file.load()
        assert (identity.tenant, identity.agent) == ("acme", "db-1")
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        assert [path.name for path in file.path.parent.iterdir()] == ["identity.pem"]
        certificate = x509.load_pem_x509_certificate(identity.certificate)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert list(names) == [x509.UniformResourceIdentifier("menura://acme/db-1")]
        assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.ca))
        assert certificate.not_valid_after_utc - datetime.now(UTC) <= timedelta(days=1)
        assert sources_of(database, "db-1") == ["crm", "shop"]

    run(tmp_path, database, scenario)


def test_token_when_it_was_used_expired_revoked_or_never_made_then_enrols_nobody_and_that_is_audited(
    tmp_path: Path, database: Database
) -> None:
    async def scenario(here: Installation) -> None:
        used, expired, revoked = here.token(), here.token(), here.token()
        await here.enrol_with(used, "db-1")
        with database.write() as connection:
            connection.execute(update(TokenRow).where(TokenRow.token == expired.id).values(expires_at_us=now_us() - 1))
            tokens.revoke(connection, "acme", revoked.id, now_us())
        other_secret = EnrolmentToken(here.token().id, os.urandom(32), used.ca_fingerprint)
        unknown = EnrolmentToken("0" * 16, os.urandom(32), used.ca_fingerprint)
        for token, words in (
            (used, "agent db-1 has used it"),
            (expired, "its time was over"),
            (revoked, "it was revoked"),
            (other_secret, "there is no such token"),
            (unknown, "there is no such token"),
        ):
            with pytest.raises(EnrolmentFailed, match=f"TOKEN_REFUSED: .*{words}"):
                await here.enrol_with(token, "db-2")
        with database.read() as connection:
            rows = [(row.action, row.refused) for row in audit.search(connection, "acme", 10).rows]
        assert rows == [("enrol", "TOKEN_REFUSED")] * 4 + [("enrol", "")]  # the unknown one is no tenant's

    run(tmp_path, database, scenario)


def test_token_when_two_hosts_use_it_at_once_then_one_of_them_enrols(tmp_path: Path, database: Database) -> None:
    async def scenario(here: Installation) -> None:
        token = here.token()
        results = await asyncio.gather(
            *(here.enrol_with(token, f"db-{number}") for number in range(4)), return_exceptions=True
        )
        assert sorted(type(result).__name__ for result in results) == ["EnrolmentFailed"] * 3 + ["IdentityFile"]

    run(tmp_path, database, scenario)


def test_token_when_it_names_no_agent_then_takes_nobody_elses_name_nor_sources(
    tmp_path: Path, database: Database
) -> None:
    async def scenario(here: Installation) -> None:
        first = await here.enrol("db-1", "shop")
        token = here.token()
        with pytest.raises(EnrolmentFailed, match=r"AGENT_NAME_TAKEN: .*menura token create --agent db-1"):
            await here.enrol_with(token, "db-1", "shop")
        file = IdentityFile(tmp_path / "second" / "identity.pem")
        enrolled = await asyncio.to_thread(
            enrol, "127.0.0.1", here.enrol_port, token, "db-2", ["shop", "crm"], file
        )  # a refusal has not spent it
        assert enrolled.unassigned == ("shop",)
        assert (sources_of(database, "db-1"), sources_of(database, "db-2")) == (["shop"], ["crm"])
        with pytest.raises(EnrolmentFailed, match="it is for agent db-1 alone, and db-3 came with it"):
            await here.enrol_with(here.token(agent="db-1"), "db-3")
        again = await here.enrol("db-1", "shop", anew=True)
        assert again.load().key != first.load().key

    run(tmp_path, database, scenario)


def test_token_when_it_is_of_another_tenant_then_enrols_into_that_tenant_alone(
    tmp_path: Path, database: Database
) -> None:
    async def scenario(here: Installation) -> None:
        await here.enrol("db-1", "shop")
        file = await here.enrol("db-1", "shop", tenant="globex")
        assert (file.load().tenant, file.load().agent) == ("globex", "db-1")
        with database.read() as connection:
            rows = connection.execute(
                text(
                    "SELECT tenant.name AS tenant, agent.tenant_id AS of_agent, source.tenant_id AS of_source FROM"
                    " source JOIN agent ON agent.id = agent_id JOIN tenant ON tenant.id = source.tenant_id"
                )
            ).all()
        assert sorted(row.tenant for row in rows) == ["acme", "globex"]
        assert all(row.of_agent == row.of_source for row in rows)

    run(tmp_path, database, scenario)


def test_gateway_when_its_ca_is_not_the_tokens_then_is_not_shown_the_token(tmp_path: Path, database: Database) -> None:
    async def scenario(here: Installation) -> None:
        token = here.token()
        foreign = EnrolmentToken(token.id, token.secret, os.urandom(32))
        with pytest.raises(EnrolmentFailed, match="somebody stands between") as failed:
            await here.enrol_with(foreign, "db-1")
        assert failed.value.data == "The token was not shown to it"
        await here.enrol_with(token, "db-1")  # nobody has spent it

    run(tmp_path, database, scenario)


def test_gateway_when_it_shows_the_right_ca_and_has_no_certificate_of_it_then_is_not_shown_the_token(
    tmp_path: Path, database: Database
) -> None:
    """Whoever has seen the CA's certificate, which is public, stands in between."""

    async def scenario(here: Installation) -> None:
        other = load_or_make(tmp_path / "other")
        impostor_folder = tmp_path / "impostor"
        impostor_folder.mkdir()

        key = ec.generate_private_key(ec.SECP256R1())
        made = gateway_certificate(
            other.certificate, other.key, key.public_key(), datetime.now(UTC), timedelta(hours=1)
        )
        pem = impostor_folder / "both.pem"
        pem.write_bytes(key_pem(key) + made.public_bytes(Encoding.PEM))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        heard = []

        async def impersonate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            body = here.authority.ca_pem
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(impersonate, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            token, file = here.token(), IdentityFile(tmp_path / "agent" / "identity.pem")
            with pytest.raises(EnrolmentFailed, match="certificate verify failed"):
                await asyncio.to_thread(enrol, "127.0.0.1", port, token, "db-1", [], file)
        assert len(heard) == 1
        assert heard[0].startswith(b"GET /v1/ca")
        assert not file.path.exists()

    run(tmp_path, database, scenario)


def wishful(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request for another name, for a CA, for a server."""
    names = [x509.UniformResourceIdentifier("menura://globex/db-9"), x509.DNSName("gateway.menura.internal")]
    builder = x509.CertificateSigningRequestBuilder().subject_name(ca_certificate(key, "me", datetime.now(UTC)).subject)
    for extension in (
        x509.SubjectAlternativeName(names),
        x509.BasicConstraints(ca=True, path_length=None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    ):
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, SHA256()).public_bytes(Encoding.DER)


def test_request_when_it_has_wishes_of_its_own_then_they_are_ignored(tmp_path: Path, database: Database) -> None:
    authority = SqlAuthority(database, tmp_path / "ca", timedelta(hours=1))
    with database.write() as connection:
        token = tokens.create(connection, "acme", "", 60, now_us())
    key = ec.generate_private_key(ec.SECP256R1())
    enrolled = authority.enrol(Enrolment(token.id, token.secret, "db-1", wishful(key), ()), "127.0.0.1")
    made = x509.load_pem_x509_certificate(enrolled.certificate_pem)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.UniformResourceIdentifier("menura://acme/db-1")]
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usage = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert "me" not in made.subject.rfc4514_string().split("=")


def unproven() -> bytes:
    """A request whose signature is not of its key."""
    der = bytearray(request_for(ec.generate_private_key(ec.SECP256R1())))
    der[-4] ^= 1
    return bytes(der)


def rsa_request() -> bytes:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA256())
    return request.public_bytes(Encoding.DER)


@pytest.mark.parametrize("request_", [b"", b"no request", unproven(), rsa_request(), b"\x30" * 9_000])
def test_request_when_it_proves_no_key_that_we_certify_then_it_is_refused_and_the_token_stays_good(
    tmp_path: Path, request_: bytes
) -> None:

    database = open_database(f"sqlite:///{tmp_path}/control.db")
    authority = SqlAuthority(database, tmp_path / "ca", timedelta(hours=1))
    with database.write() as connection:
        token = tokens.create(connection, "acme", "", 60, now_us())
    with pytest.raises(CertificateRequestInvalid):
        authority.enrol(Enrolment(token.id, token.secret, "db-1", request_, ()), "127.0.0.1")
    good = request_for(ec.generate_private_key(ec.SECP256R1()))
    assert authority.enrol(Enrolment(token.id, token.secret, "db-1", good, ()), "127.0.0.1").agent == "db-1"
    database.close()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 60_000,
        b'{"token": 1, "secret": "AA==", "agent": "a", "request": "AA==", "sources": []}',
        b'{"token": "a", "secret": "AA==", "agent": "../a", "request": "AA==", "sources": []}',
        b'{"token": "a", "secret": "AA==", "agent": "a", "request": "AA==", "sources": ["' + b"x" * 100 + b'"]}',
        b'{"token": "a", "secret": "?", "agent": "a", "request": "AA==", "sources": []}',
    ],
)
def test_enrolment_when_it_is_no_request_then_it_is_refused_with_400(tmp_path: Path, body: bytes) -> None:

    database = open_database(f"sqlite:///{tmp_path}/control.db")

    async def scenario(here: Installation) -> None:
        ca = x509.load_pem_x509_certificate(here.authority.ca_pem)
        where = ("", "127.0.0.1", here.enrol_port, _verifying(ca), "POST", ENROL_PATH, body)
        status, answer = await asyncio.to_thread(_ask, *where)
        assert (status, json.loads(answer)["code"]) == (400, "ENROLMENT_REQUEST_INVALID")

    run(tmp_path, database, scenario)
    database.close()


def test_attempts_when_there_are_many_then_they_are_held_back_and_silent_connections_hold_up_nobody(
    tmp_path: Path,
) -> None:

    database = open_database(f"sqlite:///{tmp_path}/control.db")

    async def scenario(here: Installation) -> None:
        silent = [socket.create_connection(("127.0.0.1", here.enrol_port)) for _ in range(6)]
        wrong = EnrolmentToken("0" * 16, os.urandom(32), here.token().ca_fingerprint)
        codes: list[str] = []
        while "ENROLMENT_BUSY" not in codes:
            with pytest.raises(EnrolmentFailed) as failed:
                await here.enrol_with(wrong, "db-1")
            codes.append(failed.value.found.partition(":")[0])
            assert len(codes) < 100
        assert set(codes) == {"TOKEN_REFUSED", "ENROLMENT_BUSY"}
        for each in silent:
            each.close()

    run(tmp_path, database, scenario)
    database.close()


def test_secrets_when_everything_is_said_and_logged_then_they_are_nowhere(tmp_path: Path, database: Database) -> None:
    """Canaries: the token's secret in each form, and the agent's and the CA's keys."""

    async def scenario(here: Installation) -> None:
        token = here.token()
        file = await here.enrol_with(token, "db-1")
        with pytest.raises(EnrolmentFailed) as failed:
            await here.enrol_with(token, "db-2")
        identity = file.load()
        said = [repr(token), repr(failed.value), str(failed.value), repr(identity), repr(file.read())]
        enrolment = Enrolment(token.id, token.secret, "db-1", b"", ())
        said += [repr(enrolment), repr(here.authority), repr(here.authority.certify_gateway())]
        said += [repr(load_or_make(here.folder / "ca"))]
        with database.read() as connection:
            for table in ("enrolment_token", "audit", "agent", "certificate_authority"):
                said += [repr(tuple(row)) for row in connection.execute(text(f"SELECT * FROM {table}"))]
            said += [repr(tuple(row)) for row in tokens.listed(connection, "acme", 100)]
        secret = token.secret
        key = load_pem_private_key(identity.key, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        private = key.private_numbers().private_value.to_bytes(32, "big")
        pems = [file.path.read_text(), (here.folder / "ca" / "ca.key").read_text()]
        canaries = [form(raw) for raw in (secret, private) for form in (bytes.hex, repr, in_base64, in_url_base64)]
        canaries += [line for pem in pems for line in pem.partition("-----END PRIVATE KEY")[0].splitlines()[1:]]
        canaries = [canary.rstrip("=") for canary in canaries]
        found = [(canary, line) for canary in canaries for line in [*said, *lines] if canary in line]
        assert found == []
        assert len(canaries) > 10
        assert any("enrolment refused" in line for line in lines)

    with recorded_lines(logging.getLogger()) as lines:
        run(tmp_path, database, scenario)


def test_api_when_it_shows_tokens_then_their_secrets_are_in_the_answer_that_made_them_alone(
    tmp_path: Path, database: Database
) -> None:
    SqlAuthority(database, tmp_path / "ca", timedelta(hours=1))
    with serving(database) as url, httpx.Client(base_url=f"{url}/api/v1/tenants/acme", timeout=300) as client:
        made = client.post("/tokens", json={"agent": "db-1"}).json()
        token = EnrolmentToken.parse(made["token"])
        shown = [client.get(path).text for path in ("/tokens", "/audit", "/agents", "/fleet")]
        shown += [client.post(f"/tokens/{token.id}/revoke", json={}).text]
        shown += [client.post(path, json={"agent": "no name"}).text for path in ("/tokens", "/agents")]
        assert f'"id":"{token.id}"' in shown[0]
        assert f"{token.id} for agent db-1" in shown[1]
        forms = [form(token.secret).rstrip("=") for form in (bytes.hex, in_base64, in_url_base64)]
        forms.append(hashlib.sha256(token.secret).hexdigest())
        assert [text for text in shown if any(form in text for form in forms)] == []
        problem = client.post("/tokens/0123456789abcdef/revoke", json={})
        assert (problem.status_code, problem.json()["code"]) == (404, "TOKEN_UNKNOWN")
        other = client.post(f"{url}/api/v1/tenants/globex/tokens/{token.id}/revoke", json={})
        assert (other.status_code, other.json()["code"]) == (404, "TOKEN_UNKNOWN")


def in_base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def in_url_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode()


def test_token_when_no_gateway_has_a_ca_then_the_message_says_how_to_get_one(database: Database) -> None:
    with database.write() as connection, pytest.raises(CaMissing, match="menura gateway run --ca"):
        tokens.create(connection, "acme", "", 60, now_us())


def test_ca_when_it_is_made_then_its_files_are_the_owners_and_the_next_start_takes_it_again(tmp_path: Path) -> None:
    made, again = load_or_make(tmp_path / "ca"), load_or_make(tmp_path / "ca")
    assert made.fingerprint == again.fingerprint
    assert stat.S_IMODE((tmp_path / "ca" / "ca.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    (tmp_path / "ca" / "ca.pem").unlink()  # killed between the two files
    assert load_or_make(tmp_path / "ca").key.private_numbers() == made.key.private_numbers()  # type: ignore[union-attr]
    (tmp_path / "ca" / "ca.key").unlink()
    with pytest.raises(CaUnusable, match=r"without ca\.key"):
        load_or_make(tmp_path / "ca")


def test_ca_when_it_is_not_the_one_that_agents_know_then_the_gateway_does_not_start_unless_told(
    tmp_path: Path, database: Database
) -> None:
    first = SqlAuthority(database, tmp_path / "first", timedelta(hours=1))
    with pytest.raises(CaUnusable, match="--replace-ca"):
        SqlAuthority(database, tmp_path / "second", timedelta(hours=1))
    second = SqlAuthority(database, tmp_path / "second", timedelta(hours=1), replace=True)
    assert second.ca_pem != first.ca_pem
    SqlAuthority(database, tmp_path / "second", timedelta(hours=1))
    with database.read() as connection:
        told = [(row.actor, row.action) for row in audit.search(connection, "", 10).rows]
    assert told == [("start of a gateway", "replace the CA"), ("start of a gateway", "make known a CA")]


def test_ca_when_another_one_has_certified_it_then_agents_enrol_with_it(tmp_path: Path, database: Database) -> None:
    """An operator's own intermediate CA, put into the folder; its root is nowhere here."""

    root_key = ec.generate_private_key(ec.SECP256R1())
    root = ca_certificate(root_key, "root", datetime.now(UTC))
    own, key = forged(root, root_key, extensions=(x509.BasicConstraints(ca=True, path_length=None),))
    folder = tmp_path / "ca"
    folder.mkdir()
    (folder / "ca.key").write_bytes(key_pem(key))
    (folder / "ca.key").chmod(0o600)
    (folder / "ca.pem").write_bytes(own.public_bytes(Encoding.PEM) + root.public_bytes(Encoding.PEM))

    async def scenario(here: Installation) -> None:
        file = await here.enrol("db-1", "shop")
        assert x509.load_pem_x509_certificate(file.load().ca) == own
        async with here.dialled(file, "acme", "db-1", "shop") as agent:
            stream = await agent.open("Control_Config")
            await stream.expect("hello_ack")

    run(tmp_path, database, scenario)


@pytest.mark.parametrize("broken", ["no PEM", "others", "no CA", "open"])
def test_ca_when_its_files_are_wrong_then_the_message_says_what_and_shows_nothing_of_them(
    tmp_path: Path, broken: str
) -> None:

    folder = tmp_path / "ca"
    made = load_or_make(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    if broken == "no PEM":
        (folder / "ca.key").write_text("canary")
    elif broken == "others":
        (folder / "ca.key").write_bytes(key_pem(key))
    elif broken == "open":
        (folder / "ca.key").chmod(0o644)
    else:
        assert isinstance(made.key, ec.EllipticCurvePrivateKey)
        leaf, leaf_key = forged(made.certificate, made.key)
        (folder / "ca.pem").write_bytes(leaf.public_bytes(Encoding.PEM))
        (folder / "ca.key").write_bytes(key_pem(leaf_key))
    words = {"no PEM": "is no PEM", "others": "is not the key of", "no CA": "is no certificate of a CA", "open": "600"}
    with pytest.raises(CaUnusable, match=words[broken]) as refused:
        load_or_make(folder)
    assert "canary" not in str(refused.value)


def test_identity_when_it_can_not_be_written_then_the_token_is_not_spent(tmp_path: Path, database: Database) -> None:
    async def scenario(here: Installation) -> None:
        token = here.token()
        (tmp_path / "in the way").write_text("")
        file = IdentityFile(tmp_path / "in the way" / "identity.pem")
        with pytest.raises(IdentityUnusable, match="--identity"):
            await asyncio.to_thread(enrol, "127.0.0.1", here.enrol_port, token, "db-1", [], file)
        await here.enrol_with(token, "db-1")

    run(tmp_path, database, scenario)


def test_agent_when_it_was_revoked_then_a_token_that_names_it_brings_it_back(
    tmp_path: Path, database: Database
) -> None:
    async def scenario(here: Installation) -> None:
        await here.enrol("db-1")
        with database.write() as connection:
            assert agents.revoke(connection, "acme", "db-1", now_us())
            assert not agents.revoke(connection, "acme", "db-1", now_us())
        with pytest.raises(EnrolmentFailed, match="AGENT_NAME_TAKEN"):
            await here.enrol("db-1")
        await here.enrol("db-1", anew=True)
        with database.read() as connection:
            row: Any = agents.agent_row(connection, "acme", "db-1")
        assert row.revoked_at_us is None

    run(tmp_path, database, scenario)
