"""A control plane over PostgreSQL for the bench: a gateway with its CA, an API, and agents that have enrolled."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from menura.identity import GATEWAY_HOST
from menura.instants import now_us

from agent.identity import Credentials
from agent.private_key import request_for
from controlplane_api.database import Database, open_database
from controlplane_api.identity import agents
from controlplane_api.identity.ca_files import load_or_make
from controlplane_api.identity.certificates import agent_certificate, read_request
from controlplane_api.tenants import ensure_tenants
from gateway.identity import key_sha256
from tests.postgres import postgresql
from tests.servers import free_port
from tests.stack import Process, http_client, wait_for

START_SECONDS = 600
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Installation:
    folder: Path
    url: str
    database: Database
    gateway: Process
    api: Process
    address: str
    api_url: str

    def enrol(self, named: Sequence[tuple[str, str]]) -> list[Credentials]:
        """Agents by tenant and name, each with a key, a certificate and a source of its name; in one transaction."""
        ca = load_or_make(self.folder / "ca")
        made, now = [], datetime.now(UTC)
        with self.database.write() as connection:
            tenants = ensure_tenants(connection, {tenant for tenant, _ in named}, now_us())
            for tenant, name in named:
                key = ec.generate_private_key(ec.SECP256R1())
                request = read_request(request_for(key))
                agent = agents.enrol(connection, tenants[tenant], name, key_sha256(request), anew=False, now=now_us())
                agents.take_new_sources(connection, tenants[tenant], agent, [name])
                signed = agent_certificate(ca.certificate, ca.key, request, tenant, name, now, timedelta(days=1))
                pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
                made.append(Credentials(ca.pem, signed.public_bytes(Encoding.PEM), pem, GATEWAY_HOST))
        return made

    def start_gateway(self) -> None:
        self.gateway.log.unlink(missing_ok=True)
        self.gateway.start()
        wait_for("the gateway", self._serves, START_SECONDS)

    def _serves(self) -> bool:
        assert self.gateway.is_running(), self.gateway.tail()
        return "gateway serves" in self.gateway.tail(1000)


@contextmanager
def installation(folder: Path) -> Iterator[Installation]:
    with postgresql() as server:
        url = server.fresh_database()
        port, api_port, enrol_port = free_port(), free_port(), free_port()
        environment = {"MENURA_DATABASE": url}
        words = ["gateway", "run", "--landing", str(folder / "landing"), "--listen", f"127.0.0.1:{port}"]
        words += ["--ca", str(folder / "ca"), "--enrol-listen", f"127.0.0.1:{enrol_port}"]
        gateway = Process(words, folder / "gateway.log", environment)
        api = Process(
            ["api", "run", "--listen", f"127.0.0.1:{api_port}", "--anonymous"], folder / "api.log", environment
        )
        database, api_url = open_database(url), f"http://127.0.0.1:{api_port}"
        made = Installation(folder, url, database, gateway, api, f"127.0.0.1:{port}", api_url)
        try:
            made.start_gateway()
            api.start()
            with http_client(api_url) as client:
                wait_for("the API", lambda: _answers(client), START_SECONDS)
            yield made
        finally:
            for process in (api, gateway):
                if process.running is not None:
                    process.stop()
            database.close()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").is_success
    except httpx.TransportError:
        return False


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
