"""Both connections of an agent under TLS: the database's CA verified, the gateway with a client certificate."""

from pathlib import Path

import pytest
import yaml
from menura.landing import decode_entry, entry_path

from tests.gateway.test_session import make_certificates
from tests.servers import Flavor, Server, server
from tests.stack import Process, Stack, wait_for


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_agent_when_both_its_connections_are_verified_tls_then_rows_land(flavor: Flavor, tmp_path: Path) -> None:
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    make_certificates(certificates, "secured")
    ca, certificate, key = (str(certificates / name) for name in ("ca.pem", "end.pem", "end.key"))
    tls = {"ssl_ca": ca, "ssl_cert": certificate, "ssl_key": key, "require_secure_transport": "ON"}
    with server(flavor, tmp_path / "server", **tls) as source:
        source.create_replication_user()
        source.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
        stack = Stack(tmp_path / "stack")
        stack.gateway.arguments += ["--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", ca]
        with stack.client, stack.gateway, stack.api:
            wait_for("the API to answer", lambda: stack.api_answers() or None)
            stack.command("agents", "add", "secured")
            stack.command("sources", "assign", "shop", "--agent", "secured")
            with agent(stack, source, tmp_path, {"ca": ca, "certificate": certificate, "key": key}):
                stack.start_sync("shop", "d", "t", "oldest")
                wait_for("two landed rows", lambda: landed_rows(stack.landing) == 2)


def agent(stack: Stack, source: Server, folder: Path, tls: dict[str, str]) -> Process:
    login = {"host": source.host, "port": source.port, "user": "menura", "password": "menura-secret"}
    config = {
        "tenant": stack.tenant,
        "agent": "secured",
        "state_folder": str(folder / "state"),
        "gateway": {"address": f"localhost:{stack.gateway_port}", "tls": tls},
        "sources": {"shop": {"client": {**login, "tls": {"mode": "verify_ca", "ca": tls["ca"]}}}},
    }
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump(config))
    path.chmod(0o600)
    return Process(["agent", "run", "--config", str(path)], folder / "agent.log")


def landed_rows(landing: Path) -> int:
    rows, number = 0, 1
    while (landing / entry_path(number)).exists():
        entry = decode_entry((landing / entry_path(number)).read_bytes())
        rows += sum(file.rows for cut in entry.cuts for file in cut.files)
        number += 1
    return rows
