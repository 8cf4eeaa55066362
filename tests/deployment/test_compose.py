"""docker-compose.yml: its rules, and each of its commands run on this machine in the order of docs/containers.md."""

import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.deployment.compose import Project, compose_file, documented_commands
from tests.deployment.images import FILES
from tests.servers import ROOT, ServerMissing
from tests.stack import wait_for

SERVICES = compose_file()["services"]
OWN = {"gateway-1", "gateway-2", "api", "sink", "search", "search-index", "agent", "object-store"}


def make_secrets(script: Path) -> "subprocess.CompletedProcess[str]":
    if shutil.which("openssl") is None:
        raise ServerMissing("no openssl, with which certificates are made")
    return subprocess.run(["sh", script], capture_output=True, text=True, check=False, timeout=300)


def networks(service: str) -> set[str]:
    return set(SERVICES[service]["networks"])


def check_specification(file: Path) -> "subprocess.CompletedProcess[str]":
    """By the schema of the compose specification that the tool brings with it."""
    tool = Path(sys.executable).with_name("check-jsonschema")
    words = [tool, "--builtin-schema", "vendor.compose-spec", file]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


def test_file_when_checked_against_the_compose_specification_then_follows_it(tmp_path: Path) -> None:
    assert check_specification(ROOT / "docker-compose.yml").returncode == 0
    other = tmp_path / "docker-compose.yml"
    other.write_text((ROOT / "docker-compose.yml").read_text().replace("cap_drop:", "capdrop:", 1))
    refused = check_specification(other)
    assert refused.returncode == 1 and "'capdrop' was unexpected" in refused.stdout


def test_file_when_read_then_names_only_what_it_has() -> None:
    file = compose_file()
    assert set(file) == {"x-part", "x-database", "x-gateway", "services", "networks", "volumes", "secrets"}
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"} and "healthcheck" in SERVICES[needed], (name, needed)
        assert set(service["networks"]) <= set(file["networks"]), name
        assert set(service.get("secrets", ())) <= set(file["secrets"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in file["volumes"] or (ROOT / source).is_file(), (name, source)
        if "healthcheck" in service:
            assert set(service["healthcheck"]) == {"test", "interval", "timeout", "retries"}, name
            assert service["healthcheck"]["test"][0] == "CMD", name


def test_services_when_others_reach_their_metrics_then_need_a_token_and_prometheus_has_it() -> None:
    listening = {
        name for name, each in SERVICES.items() if any("--metrics=" in str(w) for w in each.get("command", ()))
    }
    assert listening == {"gateway-1", "gateway-2", "sink", "search"}
    for name in (*listening, "prometheus"):
        assert "metrics-token" in SERVICES[name]["secrets"], name
    for name in listening:
        assert "--metrics-token-file=/run/secrets/metrics-token" in SERVICES[name]["command"], name
    jobs = yaml.safe_load((ROOT / "deployment/prometheus/prometheus.yaml").read_text())["scrape_configs"]
    for job in jobs:
        file = "/var/lib/api/api.token" if job["job_name"] == "menura-api" else "/run/secrets/metrics-token"
        assert job["authorization"] == {"credentials_file": file}, job["job_name"]


def test_services_when_read_then_have_no_more_rights_than_they_need() -> None:
    for name, service in SERVICES.items():
        assert service["user"] not in ("", "0", "root", "0:0"), name
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert all(volume.endswith(":ro") for volume in service.get("volumes", ()) if volume.startswith(".")), name
    # who is on a network with whom
    assert {name for name in SERVICES if "control" in networks(name)} == {
        "control-plane", "gateway-1", "gateway-2", "api",
    }  # fmt: skip
    assert networks("control-plane") == {"control"} and networks("source") == {"source"}
    assert {name for name in SERVICES if "source" in networks(name)} == {"source", "agent"}
    assert not networks("agent") & networks("api") and not networks("agent") & networks("object-store")
    assert {name for name in SERVICES if "search" in networks(name)} == {"api", "search"}
    internal = ("control", "source", "storage", "search")
    assert all(compose_file()["networks"][name] == {"internal": True} for name in internal)


def test_dockerfile_when_read_then_each_image_has_an_unprivileged_user_and_its_files() -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = {stage.split()[2]: stage for stage in text.split("\nFROM ")[1:]}
    for name in OWN:
        stage = stages[SERVICES[name]["build"]["target"]]
        users = [line for line in stage.splitlines() if line.startswith("USER ")]
        assert users[-1:] == ["USER menura"] or (not users and stage.startswith("part AS")), name
    assert "\nUSER menura\n" in stages["part"]
    assert all(path in text for path in FILES)
    named = [*(ROOT / "docker-compose.yml", ROOT / "Dockerfile"), *(ROOT / "deployment").glob("*.*")]
    assert not [path for path in named if "BEGIN" in path.read_text() or "PASSWORD=" in path.read_text()]


@pytest.mark.needs_setup
def test_secrets_when_made_twice_then_stay(tmp_path: Path) -> None:
    script = tmp_path / "make-secrets"
    script.write_bytes((ROOT / "deployment/make-secrets").read_bytes())
    assert make_secrets(script).returncode == 0
    made = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    again = make_secrets(script)
    assert again.returncode == 1 and "stays as it is" in again.stderr
    assert made == {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    files = {Path(secret["file"]).name for secret in compose_file()["secrets"].values()}
    assert set(made) == files | {"ca.key", ".gitignore"}
    (tmp_path / "secrets/metrics.token").unlink()  # as an earlier version had it
    added = make_secrets(script)
    assert added.returncode == 0 and "metrics.token is new; the others stay as they are" in added.stderr
    after = {path.name: path.read_bytes() for path in (tmp_path / "secrets").iterdir()}
    token = after["metrics.token"]
    assert len(token) == 48 and token != made["metrics.token"] and after == made | {"metrics.token": token}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").glob("*.token")} == {0o444}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "secrets/ca.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.spark
@pytest.mark.long
def test_commands_when_run_as_readme_says_then_a_row_and_a_later_change_come_to_the_lake(tmp_path: Path) -> None:
    with Project(tmp_path) as project:
        assert make_secrets(tmp_path / "deployment/make-secrets").returncode == 0
        secret = (tmp_path / "deployment/secrets/object-store.key").read_text()

        def amounts() -> dict[int, str]:
            options = {
                "aws_endpoint": f"http://127.0.0.1:{project.ports['object-store', '9000']}",
                "aws_region": "us-east-1",
                "allow_http": "true",
                "aws_access_key_id": "menura",
                "aws_secret_access_key": secret,
            }
            folder = "s3://menura/lake/default/shop/shop/orders/current"
            try:
                rows = (
                    DeltaTable(folder, storage_options=options).to_pyarrow_table(columns=["id", "amount"]).to_pylist()
                )
            except TableNotFoundError:
                return {}
            return {row["id"]: str(row["amount"]) for row in rows}

        def accepted(words: list[str]) -> bool:
            """Also a command about a table that the agent has not told of yet."""
            project.check()
            try:
                project.run(words)
            except AssertionError as refused:
                assert "shop" in str(refused), refused
                return False
            return True

        commands = documented_commands()
        first = next(number for number, words in enumerate(commands) if words[0] == "exec" and words[2] == "source")
        for words in commands[:first]:
            if "sync" in words:
                wait_for("the table's start", lambda words=words: accepted(words), 900)
            else:
                project.run(words)
        assert set(project.processes) == set(SERVICES)
        wait_for("the rows", lambda: amounts() == {1: "10.50", 2: "20.00"}, 900)
        # the other gateway takes the source over
        project.run(["stop", "gateway-1"])
        for words in commands[first:]:
            project.run(words)
        wait_for("the change", lambda: amounts() == {1: "10.50", 2: "20.00", 3: "30.00"}, 900)
        wait_for(
            "the row to be found",
            lambda: found(project, "edsger") == [{"id": 3, "customer": "Edsger", "amount": "30.00"}],
        )
        project.check()


_NOT_YET = ("SEARCH_AWAY", "SEARCH_BUSY", "SEARCH_REFUSED")


def found(project: Project, text: str) -> list[dict[str, Any]]:
    """Rows of the shop's orders with these words, as the API gives them; none while there is no index."""
    token = (project.folder / "volumes/api-state/api.token").read_text().strip()
    trust = ssl.create_default_context(cafile=project.folder / "deployment/secrets/ca.pem")
    api = f"https://localhost:{project.ports['api', '7080']}/api/v1"
    answer = httpx.post(
        f"{api}/tenants/default/sources/shop/tables/shop/orders/search",
        json={"text": text},
        headers={"Authorization": f"Bearer {token}"},
        verify=trust,
        timeout=300,
    )
    # there is no index yet, or the service is not there yet, or is slow
    if answer.status_code == httpx.codes.NOT_FOUND or answer.json().get("code") in _NOT_YET:
        return []
    assert answer.is_success, answer.text
    rows: list[dict[str, Any]] = answer.json()["rows"]
    return rows
