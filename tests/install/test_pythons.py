"""The agent's packages for each other Python that it supports and that this machine has: built, and at work."""

import os
import subprocess
from pathlib import Path

import pytest

from deployment.agent_package.__main__ import build, build_wheel
from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_replication import ITEMS, ORDERS, change, prepare, wait_equal
from tests.install.building import run
from tests.servers import FLAVORS, ROOT, server

pytestmark = pytest.mark.long

#: beside the one that runs the tests
OTHERS = ("3.12", "3.13", "3.14")


def interpreter(version: str) -> Path:
    """One that starts: of PATH, or of pyenv's folder, whose own words in PATH start only the version that is chosen."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += Path.home().glob(".pyenv/versions/*/bin")
    for found in (folder / f"python{version}" for folder in folders):
        if found.exists() and not subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
            return found
    pytest.skip(f"needs Python {version}")


@pytest.mark.parametrize("version", OTHERS)
def test_package_when_it_is_built_for_another_python_then_its_agent_follows_both_kinds_of_servers(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = interpreter(version)
    compiler = tmp_path / "cc"  # how fast the core is matters to no test here
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("PATH", f"{python.parent}{os.pathsep}{os.environ['PATH']}")
    uv, work, name = str(ROOT / ".venv/uv/bin/uv"), tmp_path / "work", f"python{version}"
    work.mkdir()
    archive, sums = build({name: build_wheel(name, uv, work)}, tmp_path, work, uv, None, "0.1.0")
    assert archive.name in sums.read_text()
    menura = (str(python), "-I", "-S", str(work / "root/opt/menura-agent/main.py"))
    assert "GRANT" in run(*menura, "agent", "grants", "--flavor", "postgresql")
    for flavor in FLAVORS:
        folder = tmp_path / flavor
        folder.mkdir()
        gateway = GatewayDouble()
        try:
            with server(flavor, folder / "server") as database:
                prepare(database)
                gateway.sync("shop", ORDERS, ITEMS, oldest=True)
                config = write_config(folder, gateway.address, {"shop": {"client": client(database)}})
                with running_agent(config, folder / "log", command=(*menura, "agent")):
                    change(database, rounds=3)
                    change(database, rounds=2, table="items")
                    wait_equal(gateway, database, ORDERS, ITEMS)
        finally:
            gateway.stop()
