"""What messages about who is who say is to be done: taken word for word, it lets the agent in."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from menura.instants import now_us
from menura.v1.config_pb2 import CertificateRequest

from agent.errors import IdentityUnusable
from agent.identity import IdentityFile
from agent.private_key import request_for
from controlplane_api.database import Database, open_database
from controlplane_api.identity import agents, tokens
from controlplane_api.identity.ca_files import load_or_make
from tests.controlplane_api.commands import Done, menura
from tests.controlplane_api.conftest import serving
from tests.gateway.identities import Installation, forged, identified_gateway
from tests.gateway.scripted_agent import AgentStream
from tests.gateway.test_identity import shown
from tests.remedies import commands
from tests.servers import ROOT, free_port

pytestmark = pytest.mark.long

CONFIG = """\
tenant: acme
agent: db-1
state_folder: {folder}
gateway: {{address: "{address}"}}
sources: {{shop: {{client: {{host: 127.0.0.1, user: menura}}}}}}
"""


class Operator:
    """Runs commands, on the operator's machine and on the agent's host."""

    def __init__(self, folder: Path, database: Database, api: str) -> None:
        self.folder, self.database, self._api = folder, database, api
        self.here: Installation | None = None

    def run(self, *command: str) -> Done:
        return menura(*command, MENURA_API=self._api, MENURA_TENANT="acme")

    def told(self, *command: str) -> str:
        """The message of a command that is refused."""
        done = self.run(*command)
        assert done.returncode, done.stdout
        return done.stderr

    def agent(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "menura.cli", "agent", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)

    def enrol(self, token: str, agent: str = "db-1") -> subprocess.CompletedProcess[str]:
        """`menura agent enrol` on the agent's host."""
        assert self.here is not None
        where = ("--gateway", self.here.address, "--enrol-port", str(self.here.enrol_port))
        file = ("--identity", str(self.folder / agent / "identity.pem"))
        return self.agent("enrol", *where, *file, "--agent", agent, "--token", token)

    def take(self, message: str, *expected: str, agent: str = "db-1") -> None:
        """Do all that the message names: a token enrols the agent; the rest is said as it stands."""
        named = commands(re.sub(r"\Amenura [a-z]+: ", "", message))
        assert {" ".join(command[:2]) for command in named} == set(expected), message
        wants_enrolment, token = "agent enrol" in expected or "token create" in expected, ""
        for command in named:
            if command[:2] != ["agent", "enrol"]:
                done = self.run(*command)
                assert done.returncode == 0, done.stderr
                token = done.stdout.strip() if command[:2] == ["token", "create"] else token
        if wants_enrolment:
            token = token or self.run("token", "create", "--agent", "db-1").stdout.strip()
            enrolled = self.enrol(token, agent)
            assert enrolled.returncode == 0, enrolled.stderr

    def file(self, agent: str = "db-1") -> IdentityFile:
        return IdentityFile(self.folder / agent / "identity.pem")


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    database = open_database(f"sqlite:///{tmp_path}/control.db")
    with serving(database) as api:
        yield Operator(tmp_path, database, api)
    database.close()


async def refusal(here: Installation, operator: Operator, **sent: object) -> str:
    """What the agent hears when its Control_Config stream ends, or when it has sent this there."""
    async with here.dialled(operator.file(), "acme", "db-1", "shop") as agent:
        stream: AgentStream = await agent.open("Control_Config")
        if sent:
            await stream.expect("hello_ack")
            await stream.send(**sent)
        error = await stream.expect("error")
        return f"{error.code}: {error.found}. {error.remedy}"


def test_enrolment_when_it_is_refused_then_what_the_messages_say_is_taken(tmp_path: Path, operator: Operator) -> None:
    (tmp_path / "agent.yaml").write_text(CONFIG.format(folder=tmp_path / "state", address="gateway.example:7070"))
    config = str(tmp_path / "agent.yaml")
    no_ca = operator.told("token", "create")
    assert ["gateway", "run", "--ca", "FOLDER"] in commands(no_ca)  # as the next lines start it

    async def scenario() -> None:
        async with identified_gateway(tmp_path, operator.database) as here:
            operator.here = here
            await asyncio.to_thread(enrolments, here)

    def enrolments(here: Installation) -> None:
        insecure = operator.agent("check", "--config", config).stderr
        assert "GATEWAY_INSECURE" in insecure
        assert f"Run menura agent enrol --config {config} --token TOKEN" in insecure
        token = operator.run("token", "create").stdout.strip()
        where = ("--gateway", here.address, "--enrol-port", str(here.enrol_port))
        done = operator.agent("enrol", "--config", config, "--token", token, *where)
        assert done.stdout.startswith("enrolled: agent db-1 of tenant acme"), done.stderr
        assert operator.agent("enrol", *where, "--token", "no token").stderr.count("menura token create")

        operator.take(operator.enrol(token, "db-2").stderr, "token create", agent="db-2")  # it is spent
        free = operator.run("token", "create").stdout.strip()
        operator.take(operator.enrol(free).stderr, "token create")  # the name is taken
        operator.take(operator.told("agents", "add", "db-1"), "token create")
        operator.take(operator.told("agents", "revoke", "db-9"), "agents")
        operator.take(operator.told("token", "revoke", "f" * 16), "token list")
        with operator.database.write() as connection:
            for _ in range(tokens.MAX_LIVE_TOKENS - len(good_tokens(operator))):
                tokens.create(connection, "acme", "", 60, now_us())
        operator.take(operator.told("token", "create"), "token list")
        assert operator.run("token", "revoke", good_tokens(operator)[0]).returncode == 0
        assert operator.run("token", "create").returncode == 0

    asyncio.run(scenario())


def good_tokens(operator: Operator) -> list[str]:
    with operator.database.read() as connection:
        found = tokens.listed(connection, "acme", 100)
    return [row.token for row in found if row.used_at_us is None and row.revoked_at_us is None]


def test_agent_when_its_streams_are_refused_then_what_the_messages_say_is_taken(
    tmp_path: Path, operator: Operator
) -> None:
    async def scenario() -> None:
        async with identified_gateway(tmp_path, operator.database) as here:
            operator.here = here
            ca = load_or_make(tmp_path / "ca")
            assert isinstance(ca.key, ec.EllipticCurvePrivateKey)

            def take(message: str, *expected: str) -> asyncio.Future[None]:
                return asyncio.ensure_future(asyncio.to_thread(operator.take, message, *expected))

            async def refused_with(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> str:
                async with here.dialled(shown(here, certificate, key), "acme", "db-1", "shop") as agent:
                    error = await (await agent.open("Control_Config")).expect_error()
                    return f"{error.code}: {error.found}. {error.remedy}"

            uri = x509.UniformResourceIdentifier("menura://acme/db-1")
            stranger = forged(ca.certificate, ca.key, uri)
            unknown = await refused_with(*stranger)
            await take(unknown, "agent enrol", "agents add", "token create")
            superseded = await refused_with(*stranger)
            assert superseded.startswith("CERTIFICATE_SUPERSEDED")
            await take(superseded, "agent enrol", "token create")
            await take(await refused_with(*forged(ca.certificate, ca.key)), "agent enrol")  # it names nobody

            not_assigned = await refusal(here, operator)
            assert not_assigned.startswith("SOURCE_NOT_ASSIGNED")
            await take(not_assigned, "sources assign")
            async with here.dialled(operator.file(), "acme", "db-1", "shop") as agent:
                stream = await agent.open("Control_Config")
                assert (await stream.expect("desired_state")).source == "shop"

            other_key = request_for(ec.generate_private_key(ec.SECP256R1()))
            for request in (other_key, b"no request"):
                told = await refusal(here, operator, certificate_request=CertificateRequest(request=request))
                assert told.startswith("CERTIFICATE_REQUEST_INVALID")
                await take(told, "agent enrol")

            with operator.database.write() as connection:
                agents.revoke(connection, "acme", "db-1", now_us())
            revoked = await refusal(here, operator)
            assert revoked.startswith("AGENT_REVOKED")
            await take(revoked, "agent enrol", "token create")
            async with here.dialled(operator.file(), "acme", "db-1", "shop") as agent:
                await (await agent.open("Control_Config")).expect("desired_state")

    asyncio.run(scenario())


def test_certificate_when_it_has_expired_then_what_the_messages_say_is_taken(
    tmp_path: Path, operator: Operator
) -> None:
    async def scenario() -> None:
        async with identified_gateway(tmp_path, operator.database, timedelta(seconds=40)) as here:
            operator.here = here
            await asyncio.to_thread(operator.enrol, operator.run("token", "create").stdout.strip())
            file = operator.file()
            config = (
                f"gateway: {{address: '{here.address}', identity: {file.path}}}\nstate_folder: {tmp_path}\nremote:\n"
            )
            (tmp_path / "agent.yaml").write_text(config)
            examined = await asyncio.to_thread(
                operator.run, "doctor", "--config", str(tmp_path / "agent.yaml"), "--output", "json"
            )
            found = {each["check"]: each for each in json.loads(examined.stdout)["findings"]}
            assert found["gateway-handshake"]["result"] == found["agent-identity"]["result"] == "ok"
            async with here.dialled(file, "acme", "db-1", "shop") as agent:
                stream = await agent.open("Control_Config")
                await stream.expect("hello_ack")
                while (error := await stream.expect("error")).code == "SOURCE_NOT_ASSIGNED":
                    pass
                assert error.code == "CERTIFICATE_EXPIRED"
            with pytest.raises(IdentityUnusable, match="has expired") as expired:
                file.check_expiry()
            for message in (error.remedy, str(expired.value), found["agent-certificate"]["fix"]):
                expected = {"agent enrol", "token create"} if "menura token" in message else {"agent enrol"}
                await asyncio.to_thread(operator.take, message, *expected)
            file.check_expiry()

    asyncio.run(scenario())


def test_gateway_when_it_listens_beyond_loopback_without_a_ca_then_the_setting_of_the_message_starts_it(
    tmp_path: Path,
) -> None:
    port = free_port()
    command = [sys.executable, "-m", "menura.cli", "gateway", "run", "--database", f"sqlite:///{tmp_path}/control.db"]
    command += ["--landing", str(tmp_path / "landing"), "--listen", f"0.0.0.0:{port}"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert refused.returncode == 3
    assert "Give --ca FOLDER, which the gateway makes by itself" in refused.stderr
    assert ["token", "create"] in commands(refused.stderr)
    enrolment = ["--enrol-listen", f"127.0.0.1:{free_port()}"]
    with subprocess.Popen(
        [*command, "--ca", str(tmp_path / "ca"), *enrolment], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as started:
        assert started.stdout is not None
        try:
            assert f"gateway listens on 0.0.0.0:{port}" in started.stdout.readline()
        finally:
            started.terminate()
