"""What a user installs: sdist and wheel from a clean checkout, and the agent's extra alone on a database host."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.servers import ROOT, Flavor, server

pytestmark = pytest.mark.long

MAX_AGENT_BYTES = 60 << 20
#: what a database host must not get
BARRED = ("pyarrow", "pyspark", "fastapi", "sqlalchemy", "deltalake", "typer", "py4j", "mysql-replication")


def run(*command: str, **options: object) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """sdist and wheel (the wheel from the sdist), built from what git would hand to a stranger."""
    checkout, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    archive = checkout / "archive.tar"
    tracked = run("git", "-C", str(ROOT), "ls-files", "-z").split("\0")
    with tarfile.open(archive, "w") as tar:
        for name in tracked:
            if name and (ROOT / name).exists():
                tar.add(ROOT / name, name)
    with tarfile.open(archive) as tar:
        tar.extractall(checkout, filter="data")
    archive.unlink()
    compiler = tmp_path_factory.mktemp("compiler") / "cc"  # how fast the core is matters to no test here
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o700)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target)]
    run(*build, cwd=checkout, env={**os.environ, "CC": str(compiler)})
    return {"sdist": next(target.glob("*.tar.gz")), "wheel": next(target.glob("*.whl"))}


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
