"""Secrets of every kind have values of their own here. The stack works, fails and crashes, and none of them shows."""

import base64
import os
import secrets
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest
import yaml

from tests.controlplane_api.test_oidc import GRANTS
from tests.object_store import CREDENTIAL, SECRET_VARIABLE, S3Proxy
from tests.oidc_provider import SECRET, oidc_provider
from tests.postgres import SourceServer, source_server
from tests.servers import Server, free_port, server
from tests.stack import MENURA, Process, Stack, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]

#: of REST, as an admin of the fleet sees it
PATHS = ("/api/v1/sources", "/api/v1/audit", "/api/v1/lakes", "/api/v1/api-tokens", "/metrics", "/healthz")
PATHS_OF_TENANT = (
    "agents",
    "sources",
    "sources/shop",
    "sources/shop/tables",
    "audit",
    "api-tokens",
    "enrolment-tokens",
)


class Canaries:
    """Values by what they are, in each form in which they might show."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def new(self, what: str) -> str:
        """With characters that have another form in a URL, in YAML and in JSON."""
        return self.add(what, f'cn{secrets.token_hex(12)}/+ "@é')

    def add(self, what: str, value: str) -> str:
        self.values[what] = value
        return value

    def forms(self) -> Iterator[tuple[str, bytes]]:
        for what, value in self.values.items():
            plain = value.encode()
            for form in (plain, quote(value, "").encode(), base64.b64encode(plain).rstrip(b"="), plain.hex().encode()):
                yield what, form
            if value.startswith("cn"):  # what is left where somebody escapes the other characters
                yield what, plain[:26]

    def found(self, place: str, data: bytes) -> list[tuple[str, str]]:
        return sorted({(what, place) for what, form in self.forms() if form in data})


def files_below(folder: Path, *without: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not any(path == other or other in path.parents for other in without):
            yield path


def arguments_of(processes: Iterable[Process]) -> bytes:
    """As everybody on the host may list them."""
    found = []
    for process in processes:
        if process.running is not None and process.is_running():
            with suppress(FileNotFoundError):
                found.append(Path(f"/proc/{process.running.pid}/cmdline").read_bytes())
    return b"\n".join(found)


def rows_of(control: SourceServer) -> bytes:
    """All of the control plane's database."""
    with psycopg.connect(host=control.host, port=control.port, user=control.user, dbname="menura") as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        rows = [row for (table,) in tables for row in connection.execute(f'SELECT t::text FROM "{table}" t')]
    assert len(tables) > 20
    return "\n".join(row[0] for row in rows).encode()


def command(*arguments: str, **environment: str) -> tuple[int, bytes]:
    done = subprocess.run(
        [*MENURA, *arguments], env={**os.environ, **environment}, capture_output=True, check=False, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def url_of(control: SourceServer, password: str, port: int | None = None) -> str:
    return f"postgresql://menura:{quote(password, '')}@{control.host}:{port or control.port}/menura"


class Installation:
    def __init__(self, folder: Path, proxy: S3Proxy, control: SourceServer, source: Server, canaries: Canaries) -> None:
        self.folder, self.control, self.source, self.canaries = folder, control, source, canaries
        self.said: list[tuple[str, bytes]] = []
        self.gateway_metrics, self.provider_port = free_port(), free_port()
        self.database_password = canaries.new("password of the control plane's database")
        self.source_password = canaries.new("password of the source")
        control.run(
            f"CREATE ROLE menura LOGIN PASSWORD '{self.database_password}'", "CREATE DATABASE menura OWNER menura"
        )
        source.create_replication_user("canary", self.source_password.replace("'", "''"))
        source.run(
            "CREATE DATABASE birds", "CREATE TABLE birds.t (id INT PRIMARY KEY)", "INSERT INTO birds.t VALUES (1)"
        )
        self.stack = Stack(folder / "stack", with_ca=True, store=proxy.url, storage=proxy.options())
        stack, secret = self.stack, folder / "stack" / "oidc"
        secret.mkdir()
        (secret / "secret").write_text(canaries.add("secret of the OIDC client", SECRET))
        (secret / "oidc.yaml").write_text(
            f"issuer: http://127.0.0.1:{self.provider_port}\nname: Acme\nclient_id: menura\n"
            f"client_secret_file: secret\nscopes: [openid, profile, groups]\nname_claim: email\n{GRANTS}"
        )
        for process in (stack.gateway, stack.api):
            place = process.arguments.index("--database")
            del process.arguments[place : place + 2]
            process.environment["MENURA_DATABASE"] = url_of(control, self.database_password)
        stack.gateway.arguments += ["--metrics", f"127.0.0.1:{self.gateway_metrics}"]
        stack.api.arguments += ["--oidc", str(secret / "oidc.yaml")]

    def hear(self, what: str, code_and_words: tuple[int, bytes], *, code: int | None = None) -> bytes:
        """What a command says, which has to fail unless `code` is 0."""
        found, words = code_and_words
        assert (found == 0) == (code == 0), words.decode()
        self.said.append((what, words))
        return words

    def agent_with(self, name: str, **client: Any) -> Process:
        settings = {
            "host": self.source.host,
            "port": self.source.port,
            "user": "canary",
            "password": self.source_password,
            "tls": {"mode": "preferred"},
            **client,
        }
        return self.stack.agent_of(name, {"shop" if name == "db1" else name: {"client": settings}})

    def enrol(self, agent: Process, token: str) -> tuple[int, bytes]:
        enrolled = ["agent", "enrol", "--config", agent.arguments[-1], "--enrol-port", str(self.stack.enrol_port)]
        return command(*enrolled, MENURA_ENROLMENT_TOKEN=token)

    def ask(self, path: str) -> None:
        answer = self.stack.client.get(path)
        self.said.append((path, answer.content + repr(answer.headers).encode()))


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as ends:
        proxy = S3Proxy(tmp_path / "store")
        ends.callback(proxy.close)
        control = ends.enter_context(source_server())
        source = ends.enter_context(server("mariadb", tmp_path / "source"))
        canaries = Canaries()
        canaries.add("secret of the object store", CREDENTIAL)
        made = Installation(tmp_path, proxy, control, source, canaries)
        ends.callback(made.stack.client.close)
        yield made


def test_secrets_of_every_kind_when_the_stack_works_fails_and_crashes_then_they_show_nowhere(
    installation: Installation,
) -> None:
    here, stack, canaries = installation, installation.stack, installation.canaries
    callback = f"http://127.0.0.1:{stack.api_port}/api/v1/login/provider/callback"
    agents = {
        "db1": here.agent_with("db1"),
        "refused": here.agent_with("refused", password=canaries.new("wrong password of the source")),
        "away": here.agent_with("away", port=free_port()),
    }
    processes = [stack.gateway, stack.api, stack.sink, agents["db1"]]
    with ExitStack() as ends:
        ends.enter_context(oidc_provider(here.folder / "provider.log", here.provider_port, callback))
        for process in (stack.gateway, stack.api):
            ends.enter_context(process)
        wait_for("the API to answer", lambda: stack.api_answers() or None)
        wait_for("the gateway to listen", lambda: "gateway listens on" in stack.gateway.tail(1_000))
        canaries.add("token of an admin", stack.token_file.read_text().strip().rpartition(".")[2])
        ends.enter_context(stack.sink)
        for name, agent in agents.items():
            token = stack.command("token", "create").split()[0]
            canaries.add(f"enrolment token of {name}", token.rpartition(".")[2])
            here.hear("enrolment", here.enrol(agent, token), code=0)
            here.hear("enrolment again", here.enrol(here.agent_with(f"twice-{name}"), token))
            identity = stack.folder / f"agent-acme-{name}.state" / "identity.pem"
            key = identity.read_text().partition("-----BEGIN PRIVATE KEY-----\n")[2].splitlines()[1]
            canaries.add(f"key of agent {name}", key)
            if agent in processes:
                ends.enter_context(agent)
        follow(here, processes)
        fail(here)
        said_by_rest(here)
        assert canaries.found("arguments", arguments_of(processes)) == []
    look_everywhere(here, agents)


def follow(here: Installation, processes: Sequence[Process]) -> None:
    """Rows land and reach the lake; each process is killed once and goes on."""
    stack = here.stack
    stack.start_sync("shop", "birds", "t", "oldest")
    stack.wait_until_streaming("shop", "birds", "t")
    for process in processes:
        process.kill()
        process.start()
    wait_for("the API to answer", lambda: stack.api_answers() or None)
    here.source.run("INSERT INTO birds.t VALUES (2)")
    stack.wait_until_streaming("shop", "birds", "t")


def fail(here: Installation) -> None:
    """Each secret where it is refused, and where nobody is to take it."""
    stack, canaries = here.stack, here.canaries
    wrong = canaries.new("wrong password of the control plane's database")
    for what, url in (
        ("refused database", url_of(here.control, wrong)),
        ("database that is away", url_of(here.control, here.database_password, free_port())),
        ("database's URL that can't be read", f"postgresql://menura:{quote(wrong, '')}@127.0.0.1:port/menura"),
    ):
        words = here.hear(what, command("api", "run", "--listen", f"127.0.0.1:{free_port()}", MENURA_DATABASE=url))
        assert b"DATABASE_" in words, words.decode()
    landing = [word for word in stack.gateway.arguments if word.startswith("--storage-option")]
    wrong_key = {SECRET_VARIABLE: canaries.new("wrong secret of the object store")}
    doctor = ["doctor", "--landing", f"{stack.store}/landing", *landing]
    here.hear(
        "refused store", command(*doctor, MENURA_DATABASE=url_of(here.control, here.database_password), **wrong_key)
    )
    for name, code in (("refused", b"SOURCE_ACCESS_DENIED"), ("away", b"SOURCE_UNREACHABLE")):
        config = str(stack.folder / f"agent-acme-{name}.yaml")
        assert code in here.hear(f"source that is {name}", command("agent", "run", "--config", config))
    token_file = here.folder / "wrong.token"
    known = stack.token_file.read_text().strip().rpartition(".")[0]
    token_file.write_text(f"{known}.{canaries.add('wrong token', 'W' * 43)}")
    where = {"MENURA_API": f"http://127.0.0.1:{stack.api_port}", "MENURA_TENANT": "acme"}
    here.hear("refused token", command("agents", "--token-file", str(token_file), **where))
    with httpx.Client(base_url=where["MENURA_API"], trust_env=False, timeout=300) as stranger:
        login = stranger.get("/api/v1/login/provider")
        assert SECRET not in login.headers["location"]
        here.said.append(("login", login.content + repr(login.headers).encode()))
        answer = stranger.get("/api/v1/login/provider/callback", params={"code": "x", "state": "y"})
        here.said.append(("callback", answer.content + repr(answer.headers).encode()))


def said_by_rest(here: Installation) -> None:
    for path in (*PATHS, *(f"/api/v1/tenants/acme/{path}" for path in PATHS_OF_TENANT)):
        here.ask(path)
    metrics = httpx.get(f"http://127.0.0.1:{here.gateway_metrics}/metrics", trust_env=False, timeout=300)
    assert metrics.is_success and b"menura_log_entries_total" in metrics.content
    here.said.append(("the gateway's /metrics", metrics.content))


def look_everywhere(here: Installation, agents: dict[str, Process]) -> None:
    stack = here.stack
    kept = [stack.token_file, stack.folder / "oidc" / "secret", here.folder / "wrong.token", stack.folder / "ca"]
    kept += [Path(path) for path in stack.folder.glob("agent-acme-*.yaml")]
    kept += [stack.folder / f"agent-acme-{name}.state" / "identity.pem" for name in agents]
    own = [here.folder / "store" / "s3proxy.properties", here.folder / "source", here.folder / "provider.log"]
    found = [each for place, data in here.said for each in here.canaries.found(place, data)]
    found += here.canaries.found("the control plane's database", rows_of(here.control))
    looked = list(files_below(here.folder, *kept, *own))
    found += [each for path in looked for each in here.canaries.found(str(path), path.read_bytes())]
    assert found == []
    names = {path.name for path in looked}
    assert {"gateway.log", "api.log", "sink.log", "agent-acme-db1.log"} <= names
    assert any(path.suffix == ".parquet" for path in looked)
    # What is looked for is found where it is meant to be.
    for name in agents:
        configured = yaml.safe_load((stack.folder / f"agent-acme-{name}.yaml").read_text())
        password = next(iter(configured["sources"].values()))["client"]["password"]
        assert password in here.canaries.values.values()
    assert here.canaries.found("", stack.token_file.read_bytes()) != []
    assert here.canaries.found("", (stack.folder / "agent-acme-db1.state" / "identity.pem").read_bytes()) != []
