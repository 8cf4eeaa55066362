"""What a user installs: sdist and wheel from a clean checkout, the agent's extra alone, and the agent's packages.

The packages are installed by the lines of docs/install-agent.md, on a host that is a folder of its own.
"""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deployment.agent_package.archives import write_package
from tests.e2e.test_identity import identified
from tests.e2e.test_tls import landed_rows
from tests.install.building import Packages, build_packages, documented, run
from tests.install.secured_host import Host, listening_ports, resident_bytes, secured_host, told, wait_told
from tests.servers import ROOT, Flavor, server
from tests.stack import wait_for

pytestmark = pytest.mark.long

MAX_AGENT_BYTES = 60 << 20
#: of all files that a package of the agent brings
MAX_PACKAGE_BYTES = 60_000_000
#: 46 and 47 MiB were measured, with a source of MariaDB and with one of PostgreSQL
MAX_IDLE_BYTES = 50 << 20
#: what a database host must not get
BARRED = ("pyarrow", "pyspark", "fastapi", "sqlalchemy", "deltalake", "typer", "py4j", "mysql-replication")
#: and the modules of these, where one is named otherwise
BARRED_MODULES = (*BARRED[:-1], "pymysqlreplication", "gateway", "controlplane_api", "spark_sink")


@pytest.fixture(scope="module")
def agent_environment(distributions: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and its agent extra, versions as locked; the path of its python."""
    folder = tmp_path_factory.mktemp("agent") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    python = folder / "bin" / "python"
    requirement = f"menura[agent] @ {distributions['wheel'].as_uri()}"
    plain_lock = folder / "constraints.txt"
    plain_lock.write_text("".join(_locked_versions()))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    run(*pip, "--constraint", str(plain_lock), requirement)
    return python


def _locked_versions() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line.rstrip(" \\") + "\n" for line in lines if line and not line.startswith((" ", "#"))]


def test_wheel_when_built_from_sdist_then_holds_core_and_stubs(distributions: dict[str, Path]) -> None:
    names = zipfile.ZipFile(distributions["wheel"]).namelist()
    for wanted in ("menura/v1/stream_pb2.py", "menura/v1/stream_pb2_grpc.py", "menura/types.py", "agent/cli.py"):
        assert wanted in names
    decoders = ("agent/sources/mysql/native/decoder.", "agent/sources/postgresql/native/decoder.")
    for compiled in (*decoders, "agent/columnar/ipc.", "menura/byte_stream_split.", "menura/row_hash."):
        assert any(name.startswith(compiled) and name.endswith(".so") for name in names)
    assert not any(name.startswith("tests/") for name in names)


def test_agent_extra_when_installed_alone_then_is_small_and_brings_no_lake(agent_environment: Path) -> None:
    probe = (
        "import importlib.metadata as m, json, pathlib, sysconfig; p = pathlib.Path(sysconfig.get_paths()['purelib']);"
        "print(json.dumps([sorted(d.metadata['Name'].lower() for d in m.distributions()),"
        "sum(f.stat().st_size for f in p.rglob('*') if f.is_file() and f.suffix != '.pyc')]))"
    )
    installed, size = json.loads(run(str(agent_environment), "-c", probe))
    assert not set(BARRED) & set(installed), installed
    assert size < MAX_AGENT_BYTES, f"{size / 2**20:.1f} MiB installed: {installed}"


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_agent_extra_when_alone_then_checks_a_real_server(
    flavor: Flavor, agent_environment: Path, tmp_path: Path
) -> None:
    with server(flavor, tmp_path / "server") as database:
        database.create_replication_user()
        configuration = tmp_path / "agent.yaml"
        configuration.write_text(
            "tenant: acme\nagent: alone\ngateway: {address: '127.0.0.1:1'}\nsources:\n  shop:\n    client:\n"
            f"      {{host: 127.0.0.1, port: {database.port}, user: menura, password: menura-secret}}\n"
        )
        configuration.chmod(0o600)
        command = agent_environment.parent / "menura"
        # no Java, no compiler, nothing of this checkout
        environment = {"PATH": str(agent_environment.parent), "HOME": str(tmp_path)}
        run(str(command), "agent", "check", "--config", str(configuration), cwd=tmp_path, env=environment)


def test_menura_when_a_component_is_not_installed_then_says_which_extra(agent_environment: Path) -> None:
    done = subprocess.run(
        [str(agent_environment.parent / "menura"), "sink", "run"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "menura[spark]" in done.stderr


def test_packages_when_built_then_are_small_and_bring_the_agent_alone(packages: Packages) -> None:
    files = [path for path in packages.root.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    assert size <= MAX_PACKAGE_BYTES, f"{size} bytes installed"
    lib = packages.root / f"opt/menura-agent/lib/python3.{sys.version_info.minor}"
    assert not [name for name in BARRED_MODULES if (lib / name).exists()]
    manifest = (packages.root / "opt/menura-agent/MANIFEST").read_text().splitlines()
    assert len(manifest) == len(files) - 2  # itself, and the configuration
    sbom = json.loads((packages.root / "usr/share/doc/menura-agent/sbom.cdx.json").read_text())
    assert sbom["metadata"]["component"]["name"] == "menura"
    brought = {path.name.partition("-")[0].replace("_", "-").lower() for path in lib.glob("*.dist-info")}
    assert {each["name"] for each in sbom["components"]} == brought - {"menura"}
    assert all(each["licenses"] and each["properties"] for each in sbom["components"])


def test_packages_when_built_twice_then_are_the_same_bytes(
    packages: Packages, distributions: dict[str, Path], nfpm: Path, key: Path, tmp_path: Path
) -> None:
    assert build_packages(tmp_path / "again", distributions["wheel"], nfpm, key).digests == packages.digests
    sums = (packages.folder / "SHA256SUMS").read_text().splitlines()
    assert dict(reversed(line.split("  ")) for line in sums) == {
        name: digest for name, digest in packages.digests.items() if not name.startswith("SHA256SUMS")
    }


def test_agent_when_installed_as_documented_then_its_rows_land_and_upgrades_and_removal_keep_what_they_should(
    packages: Packages, nfpm: Path, key: Path, tmp_path: Path
) -> None:
    with server("mariadb", tmp_path / "server") as database, identified(tmp_path / "stack") as stack:
        database.create_replication_user()
        database.run(
            "CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)", "INSERT INTO shop.t VALUES (1)"
        )
        doors = {7070: stack.gateway_port, 7071: stack.enrol_port, 3306: database.port}
        with secured_host(tmp_path / "host", doors) as host:
            with (host.root / "etc/hosts").open("a") as hosts:
                hosts.write("127.0.0.1 localhost gateway.example\n")
            for file in packages.folder.iterdir():
                shutil.copy(file, host.root / "root")
            shutil.copy(key.with_name("menura-packages.pem"), host.root / "root")
            write_package("deb", packages.root, "0.1.1", 0, str(nfpm), host.root / "root", tmp_path)
            _check_signature(host, tmp_path)
            host.run(documented("dpkg --install"))
            host.run(documented("install -m 0600"), "menura-secret\n")
            (host.root / "etc/menura/agent.yaml").write_text(documented("sources:"))
            token = stack.command("token", "create").split()[0]
            *enrol, start = documented("agent enrol").replace("menura1....", token).splitlines()
            assert start == "systemctl enable --now menura-agent"
            name = host.run("hostname").strip()
            assert f"enrolled: agent {name} of tenant acme" in host.run("\n".join(enrol))
            _check_as_the_service(host)
            log = tmp_path / "agent.log"
            with host.service(log) as service:
                process, listener = service
                wait_told("gateway connected; 1 sources", service, log)

                def rests() -> bool:
                    told(listener)
                    return resident_bytes(process.pid) <= MAX_IDLE_BYTES

                wait_for("the agent to rest", rests)
                stack.start_sync("shop", "shop", "t", "oldest")
                wait_for("the row to land", lambda: landed_rows(stack.landing) == 1)
                assert listening_ports(process.pid) == set(doors)
                outside = host.run(
                    "python3 -c 'import socket; print(socket.socket().connect_ex((\"192.0.2.1\", 443)))'"
                )
                assert int(outside) == 101  # ENETUNREACH
            _replace_and_remove(host)


def _check_signature(host: Host, folder: Path) -> None:
    """With the right key and files it holds; with another key, another signed file or another package it does not."""
    told = host.run(documented("-verify")).splitlines()
    names = [path.name for path in (host.root / "root").glob("menura-agent-0.1.0*")]
    assert told[0] == "Verified OK"
    assert sorted(told[1:]) == sorted(f"{name}: OK" for name in names)
    other = folder / "other"
    other.mkdir()
    run("sh", "-ec", "\n".join(documented("openssl genpkey").splitlines()[:2]), cwd=other)
    assert _is_refused(host, "menura-packages.pem", (other / "menura-packages.pem").read_bytes())
    sums = (host.root / "root/SHA256SUMS").read_bytes()
    assert _is_refused(host, "SHA256SUMS", sums + sums.splitlines(keepends=True)[-1].replace(b"0.1.0", b"0.1.1"))
    for name in names:
        assert _is_refused(host, name, (host.root / "root" / name).read_bytes() + b"\0")
    assert _is_refused(host, "SHA256SUMS.sig", None)
    host.run(documented("-verify"))


def _is_refused(host: Host, name: str, content: bytes | None) -> bool:
    """With a file that has this content in place of its own, or with None is not there."""
    path = host.root / "root" / name
    whole = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    told = host.run(f"{{ {documented('-verify')} }} 2>&1 || echo ended with $?")
    path.write_bytes(whole)
    return "ended with 1" in told


def _check_as_the_service(host: Host) -> None:
    """What systemd-run would do: the command as the service's user, with its credentials in a folder of its own."""
    folder = "/run/credentials/check"
    host.run(f"install -D -o menura-agent /etc/menura/credentials/shop.password {folder}/menura_shop.password")
    started = f"runuser -u menura-agent -- env CREDENTIALS_DIRECTORY={folder} sh -c"
    told = host.run(re.sub("systemd-run.*?sh -c", started, documented("systemd-run"), flags=re.DOTALL))
    assert told.startswith("shop: ok"), told


def _replace_and_remove(host: Host) -> None:
    def version() -> str:
        return host.run("dpkg-query --show --showformat '${Version}' menura-agent")

    kept = [host.root / "etc/menura/agent.yaml", host.root / "var/lib/menura-agent/identity.pem"]
    contents = [path.read_bytes() for path in kept]
    host.run("dpkg --install menura-agent-0.1.1-linux-x86_64.deb")
    assert version() == "0.1.1"
    host.run(documented("dpkg --install"))
    assert version() == "0.1.0"
    host.run("menura agent grants --flavor mariadb; sha256sum --quiet --check /opt/menura-agent/MANIFEST")
    host.run(documented("dpkg --remove"))
    assert [path.read_bytes() for path in kept] == contents
    assert not (host.root / "opt/menura-agent").exists()
    host.run(documented("dpkg --purge"))
    _assert_gone(host)
    host.run("umask 077\n" + documented("tar --extract"))
    host.run("runuser -u menura-agent -- menura agent grants --flavor mariadb")
    host.run("sha256sum --quiet --check /opt/menura-agent/MANIFEST")
    (host.root / "usr/bin/python3.11").rename(host.root / "usr/bin/python3.x")
    refused = host.run("menura agent check 2>&1 || echo ended with $?")
    assert "python3.11, and none of them is in PATH" in refused
    assert "ended with 2" in refused
    host.run("/opt/menura-agent/uninstall/remove --purge")
    _assert_gone(host)


def _assert_gone(host: Host) -> None:
    left = ("opt/menura-agent", "usr/bin/menura", "etc/menura", "var/lib/menura-agent", "usr/share/doc/menura-agent")
    assert not [name for name in left if (host.root / name).exists()]
    assert "menura" not in (host.root / "etc/passwd").read_text()
