"""Files with rows and their keys are for the user alone that writes them, whatever umask the process was begun with."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from controlplane_api.database import open_database
from gateway.registry import SourceKey
from tests.gateway.scripted_agent import commit_cut, scripted_agent
from tests.gateway.sql_registry import want
from tests.servers import ROOT, free_port


def open_to_others(folder: Path) -> dict[str, str]:
    return {str(path): oct(path.stat().st_mode) for path in folder.rglob("*") if path.stat().st_mode & 0o077}


def test_database_when_it_is_opened_then_its_files_are_its_owners_alone_also_those_of_a_former_version(
    tmp_path: Path,
) -> None:
    file, former_umask = tmp_path / "control.db", os.umask(0o022)
    try:
        database = open_database(f"sqlite:///{file}")
        assert {path.name for path in tmp_path.iterdir()} >= {"control.db", "control.db-wal"}
        assert not open_to_others(tmp_path)
        for path in tmp_path.iterdir():
            path.chmod(0o644)
        again = open_database(f"sqlite:///{file}")
        assert not open_to_others(tmp_path)
    finally:
        os.umask(former_umask)
    again.close()
    database.close()


def test_gateway_when_it_lands_then_folders_entries_and_files_are_its_users_alone(tmp_path: Path) -> None:
    database, landing, port = open_database(f"sqlite:///{tmp_path}/control.db"), tmp_path / "landing", free_port()
    want(database, SourceKey("acme", "shop"), "orders")
    command = [sys.executable, "-m", "menura.cli", "gateway", "run", "--database", f"sqlite:///{tmp_path}/control.db"]
    command += ["--landing", str(landing), "--listen", f"127.0.0.1:{port}"]

    async def scenario() -> None:
        async with scripted_agent(f"127.0.0.1:{port}", "shop") as agent:
            stream, run = await agent.open_binlog("shop")
            await commit_cut(stream, run, 1, range(1, 11))

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, umask=0o022) as gateway:
        assert gateway.stdout is not None
        try:
            assert "gateway listens" in gateway.stdout.readline()
            asyncio.run(scenario())
        finally:
            gateway.terminate()
    database.close()
    assert {path.suffix for path in landing.rglob("*.*")} == {".json", ".parquet"}
    assert not open_to_others(tmp_path)
