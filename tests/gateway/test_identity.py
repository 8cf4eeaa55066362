"""Who may open streams at a gateway with certificates: everybody else is refused by name, and that is kept."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from menura.identity import GATEWAY_HOST
from menura.instants import now_us
from sqlalchemy import select

from agent.identity import Credentials
from agent.private_key import key_pem
from controlplane_api.database import open_database
from controlplane_api.identity import agents, audit
from controlplane_api.identity.ca_files import load_or_make
from controlplane_api.identity.certificates import ca_certificate
from controlplane_api.models import Agent, Source, Tenant
from controlplane_api.registry.sql_registry import SqlRegistry
from gateway import loop_turns
from gateway.config import GatewayConfig
from gateway.errors import ListenRefused
from gateway.registry import SourceKey
from gateway.shares import Owner
from tests.gateway.harness import running_gateway
from tests.gateway.identities import Installation, forged, identified_gateway
from tests.gateway.memory_registry import MemoryRegistry
from tests.gateway.scripted_agent import ScriptedAgent, commit_cut, eventually, raw_stream, scripted_agent
from tests.gateway.sql_registry import want

Scenario = Callable[[Installation], Awaitable[None]]


def run(folder: Path, scenario: Scenario, lifetime: timedelta = timedelta(days=1)) -> None:
    database = open_database(f"sqlite:///{folder}/control.db")

    async def main() -> None:
        async with identified_gateway(folder, database, lifetime) as installation:
            await scenario(installation)

    asyncio.run(main())
    database.close()


def names(here: Installation) -> tuple[set[str], set[str], set[str]]:
    """Tenants, agents and sources that there are."""
    with here.database.read() as connection:
        tenants, found, sources = (
            {row.name for row in connection.execute(select(kind.name))} for kind in (Tenant, Agent, Source)
        )
        return tenants, found, sources


def audited(here: Installation, tenant: str = "acme") -> list[tuple[str, str]]:
    with here.database.read() as connection:
        return [(row.action, row.refused) for row in audit.search(connection, tenant, 100).rows if row.refused]


def shown(here: Installation, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Credentials:
    pem = certificate.public_bytes(Encoding.PEM)
    return Credentials(here.authority.ca_pem, pem, key_pem(key), GATEWAY_HOST)


async def assert_not_connected(here: Installation, shown: Credentials, agent: str = "db-1") -> None:
    async with here.dialled(shown, "acme", agent, "shop") as stranger:
        stream = stranger.dial("Control_Config")
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            await stream.send()
            await stream.expect("hello_ack")


def test_agent_when_it_shows_its_certificate_then_commits_and_the_database_knows_it(tmp_path: Path) -> None:
    async def scenario(here: Installation) -> None:
        file = await here.enrol("db-1", "shop")
        async with here.dialled(file, "acme", "db-1", "shop") as agent:
            await (await agent.open("Control_Config")).expect("desired_state")
            want(here.database, SourceKey("acme", "shop"), "orders")
            stream, replicate = await agent.open_binlog("shop")
            await commit_cut(stream, replicate, 1, range(1, 11))
            with here.database.read() as connection:
                row = agents.agent_row(connection, "acme", "db-1")
            assert (row.connected, row.version) == (True, "test")

    run(tmp_path, scenario)


@pytest.mark.parametrize("said", [("globex", "db-1"), ("acme", "db-2"), ("globex", "db-9"), ("acme", "nobody")])
def test_header_when_it_names_somebody_else_than_the_certificate_then_is_refused_audited_and_makes_nobody(
    tmp_path: Path, said: tuple[str, str]
) -> None:
    async def scenario(here: Installation) -> None:
        file = await here.enrol("db-1", "shop")
        await here.enrol("db-2", "crm")
        await here.enrol("db-1", "shop", tenant="globex")
        before = names(here)
        async with here.dialled(file, *said, "shop", "stolen") as liar:
            for kind, source in (("Control_Config", ""), ("MySQLBinlog", "shop"), ("MySQLClient", "shop")):
                error = await (await liar.open(kind, source)).expect_error()
                assert error.code == "IDENTITY_MISMATCH"
                assert "its certificate is of agent db-1 of tenant acme" in error.found
        assert names(here) == before
        await eventually("the audit log", lambda: audited(here) == [("connect", "IDENTITY_MISMATCH")] * 3)
        assert audited(here, "globex") == []

    run(tmp_path, scenario)


def test_agent_of_another_tenant_when_it_asks_for_our_source_then_neither_sees_nor_commits_anything_of_it(
    tmp_path: Path,
) -> None:
    """The TRUNCATE of before: names were enough for it."""

    async def scenario(here: Installation) -> None:
        ours, theirs = await here.enrol("db-1", "shop"), await here.enrol("db-1", "crm", tenant="globex")
        async with (
            here.dialled(ours, "acme", "db-1", "shop") as owner,
            here.dialled(theirs, "globex", "db-1", "crm", "shop") as other,
        ):
            await (await owner.open("Control_Config")).expect("desired_state")
            control = await other.open("Control_Config")
            assert (await control.expect("error")).code == "SOURCE_NOT_ASSIGNED"
            assert (await control.expect("desired_state")).source == "crm"
            for kind in ("MySQLBinlog", "MySQLClient"):
                error = await (await other.open(kind, "shop")).expect_error()
                assert (error.code, "menura sources assign shop" in error.remedy) == ("SOURCE_NOT_ASSIGNED", True)
            await owner.open_client("shop")
        await eventually("the audit log", lambda: len(audited(here, "globex")) == 3)

    run(tmp_path, scenario)


def test_source_when_it_is_another_agents_then_only_that_one_has_it_until_it_is_assigned(tmp_path: Path) -> None:
    async def scenario(here: Installation) -> None:
        first, second = await here.enrol("db-1", "shop"), await here.enrol("db-2", "crm")
        async with (
            here.dialled(first, "acme", "db-1", "shop") as owner,
            here.dialled(second, "acme", "db-2", "crm", "shop") as other,
        ):
            taker = await other.open("Control_Config")  # it comes first, which was enough before
            assert (await taker.expect("error")).code == "SOURCE_NOT_ASSIGNED"
            keeper = await owner.open("Control_Config")
            assert (await keeper.expect("desired_state")).source == "shop"
            client, _ = await owner.open_client("shop")
            with here.database.write() as connection:
                agents.assign(connection, "acme", "shop", "db-2")
            assert (await client.expect_error()).code == "SOURCE_NOT_ASSIGNED"
            assert {(await taker.expect("desired_state")).source for _ in range(2)} == {"crm", "shop"}
            assert (await keeper.expect("error")).code == "SOURCE_NOT_ASSIGNED"
            await other.open_client("shop")

    run(tmp_path, scenario)


def test_certificates_when_they_are_not_of_the_ca_or_have_expired_then_nobody_connects(tmp_path: Path) -> None:
    async def scenario(here: Installation) -> None:
        file = await here.enrol("db-1", "shop")
        ca = load_or_make(tmp_path / "ca")
        assert isinstance(ca.key, ec.EllipticCurvePrivateKey)
        uri = x509.UniformResourceIdentifier("menura://acme/db-1")
        foreign_key = ec.generate_private_key(ec.SECP256R1())
        foreign = ca_certificate(foreign_key, "Menura CA", datetime.now(UTC))
        own = ec.generate_private_key(ec.SECP256R1())
        strangers = {
            "self-signed": forged(ca_certificate(own, "me", datetime.now(UTC)), own, uri),
            "of another installation": forged(foreign, foreign_key, uri),
            "of another one that takes the CA's name": forged(foreign, foreign_key, uri, issuer=ca.certificate.subject),
            "expired": forged(ca.certificate, ca.key, uri, until=datetime.now(UTC) - timedelta(seconds=1)),
            "a gateway's": forged(
                ca.certificate, ca.key, uri, extensions=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),)
            ),
        }
        for certificate, key in strangers.values():
            shown = Credentials(
                here.authority.ca_pem, certificate.public_bytes(Encoding.PEM), key_pem(key), GATEWAY_HOST
            )
            await assert_not_connected(here, shown)
        await assert_not_connected(here, Credentials(here.authority.ca_pem, None, None, GATEWAY_HOST))
        async with here.dialled(file, "acme", "db-1", "shop") as agent:
            await (await agent.open("Control_Config")).expect("hello_ack")

    run(tmp_path, scenario)


def test_certificate_when_the_ca_has_signed_it_and_it_is_not_the_agents_then_is_refused_by_name(tmp_path: Path) -> None:
    async def scenario(here: Installation) -> None:
        await here.enrol("db-1", "shop")
        ca = load_or_make(tmp_path / "ca")
        assert isinstance(ca.key, ec.EllipticCurvePrivateKey)
        uri = x509.UniformResourceIdentifier
        for names_, code in (
            ((uri("menura://acme/db-1"),), "CERTIFICATE_SUPERSEDED"),  # another key than the enrolled one
            ((uri("menura://acme/db-9"),), "AGENT_UNKNOWN"),
            ((), "CERTIFICATE_INVALID"),
            ((x509.DNSName("db-1"),), "CERTIFICATE_INVALID"),
            ((uri("spiffe://acme/db-1"),), "CERTIFICATE_INVALID"),
            ((uri("menura://acme/db-1"), uri("menura://acme/db-2")), "CERTIFICATE_INVALID"),
        ):
            certificate, key = forged(ca.certificate, ca.key, *names_)
            shown = Credentials(
                here.authority.ca_pem, certificate.public_bytes(Encoding.PEM), key_pem(key), GATEWAY_HOST
            )
            said = "db-9" if code == "AGENT_UNKNOWN" else "db-1"
            async with here.dialled(shown, "acme", said, "shop") as stranger:
                assert (await (await stranger.open("Control_Config")).expect_error()).code == code

    run(tmp_path, scenario)


def test_gateway_when_it_shows_no_certificate_of_the_ca_then_the_agent_does_not_speak(tmp_path: Path) -> None:
    async def scenario(here: Installation) -> None:
        file = await here.enrol("db-1", "shop")
        found = file.read()
        other = load_or_make(tmp_path / "other")
        for ca, name in ((other.pem, found.server_name), (found.ca, "gateway.example")):
            await assert_not_connected(here, Credentials(ca, found.certificate, found.key, name))

    run(tmp_path, scenario)


def test_agent_when_its_key_was_enrolled_anew_then_the_former_one_is_out_while_it_streams(tmp_path: Path) -> None:
    async def scenario(here: Installation) -> None:
        former = await here.enrol("db-1", "shop")
        async with here.dialled(former, "acme", "db-1", "shop") as agent:
            control = await agent.open("Control_Config")
            await control.expect("desired_state")
            await here.enrol("db-1", "shop", anew=True)
            assert (await control.expect_error()).code == "CERTIFICATE_SUPERSEDED"

    run(tmp_path, scenario)


def test_agent_when_it_has_enrolled_or_was_revoked_then_a_gateway_without_tls_does_not_take_it_at_its_word(
    tmp_path: Path,
) -> None:
    database = open_database(f"sqlite:///{tmp_path}/control.db")
    registry = SqlRegistry(database)

    async def scenario() -> None:
        async with identified_gateway(tmp_path, database) as here:
            await here.enrol("db-1", "shop")
        async with (
            running_gateway(tmp_path / "landing", registry) as address,
            scripted_agent(address, "crm", "shop", agent="db-7") as plain,
        ):
            control = await plain.open("Control_Config")
            refused = await control.expect("error")
            assert (refused.code, refused.source) == ("SOURCE_NOT_ASSIGNED", "shop")
            assert (await control.expect("desired_state")).source == "crm"
            plain.agent = "db-1"
            assert (await (await plain.open("Control_Config")).expect_error()).code == "CERTIFICATE_MISSING"
            with database.write() as connection:
                agents.revoke(connection, "acme", "db-7", now_us())
            assert (await control.expect_error()).code == "AGENT_REVOKED"
            plain.agent = "db-7"
            assert (await (await plain.open("Control_Config")).expect_error()).code == "AGENT_REVOKED"

    asyncio.run(scenario())
    database.close()


@pytest.mark.parametrize("listen", ["0.0.0.0:7070", "[::]:7070", "10.0.0.1:7070"])
def test_gateway_when_it_listens_beyond_loopback_without_certificates_then_says_how_to_get_them(listen: str) -> None:
    with pytest.raises(ListenRefused, match="Give --ca FOLDER, which the gateway makes by itself"):
        GatewayConfig("landing", listen=listen)
    assert GatewayConfig("landing", listen=listen, enrol_listen="0.0.0.0:7071").is_identified


def test_streams_when_an_agent_says_no_hello_then_it_has_its_places_and_its_share_of_turns_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was silent had the places and turns of all: a stream was its agent's only with its Hello."""
    monkeypatch.setattr("gateway.admission.MAX_STREAMS_OF_AGENT", 12)
    monkeypatch.setattr("gateway.admission.MAX_READING", 6)
    database = open_database(f"sqlite:///{tmp_path}/control.db")

    async def silent(here: Installation, hostile: ScriptedAgent) -> list[Any]:
        """Streams that the gateway has, and from which it reads nothing."""
        calls = [raw_stream(hostile.channel) for _ in range(12)]
        await eventually("their places", lambda: here.metrics.menura_session_open_streams == 12)
        return calls

    async def main() -> None:
        async with identified_gateway(tmp_path, database, hello_seconds=3_600) as here:
            hostile, honest = await here.enrol("db-1", "shop"), await here.enrol("db-2", "crm")
            async with (
                here.dialled(hostile, "acme", "db-1", "shop") as loud,
                here.dialled(honest, "acme", "db-2", "crm") as other,
            ):
                calls = await silent(here, loud)
                one_more = raw_stream(loud.channel)
                assert (await one_more.code(), await one_more.details()) == (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "12 streams of agent db-1 are open, at most 12 may be",
                )
                await (await other.open("Control_Config")).expect("desired_state")
                for call in calls:
                    call.cancel()
                await eventually("their end", lambda: here.metrics.menura_session_open_streams == 1)
                await (await loud.open("Control_Config")).expect("desired_state")

    asyncio.run(main())
    database.close()


def test_streams_when_they_begin_then_they_have_the_turns_of_their_certificates_agent_and_without_one_of_their_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[Owner] = []
    begin = loop_turns.begin

    def seen(owner: Owner) -> loop_turns.Turn:
        began.append(owner)
        return begin(owner)

    monkeypatch.setattr(loop_turns, "begin", seen)

    async def certified(here: Installation) -> None:
        async with here.dialled(await here.enrol("db-1", "shop"), "acme", "db-1", "shop") as agent:
            await (await agent.open("Control_Config")).expect("hello_ack")
        ca = load_or_make(tmp_path / "ca")
        assert isinstance(ca.key, ec.EllipticCurvePrivateKey)
        nobodys = shown(here, *forged(ca.certificate, ca.key, x509.DNSName("db-1")))
        async with here.dialled(nobodys, "acme", "db-1", "shop") as stranger:
            assert (await (await stranger.open("Control_Config")).expect_error()).code == "CERTIFICATE_INVALID"

    run(tmp_path, certified)
    assert began == [("acme", "db-1"), ("", "ipv4:127.0.0.1")]

    async def at_their_word() -> None:
        async with running_gateway(tmp_path / "other", MemoryRegistry()) as address:
            for number in range(2):
                async with scripted_agent(address, "shop", agent=f"db-{number}"):
                    pass

    began.clear()
    asyncio.run(at_their_word())
    assert began == [("", "ipv4:127.0.0.1")] * 2
