"""Agents as processes for tests: their configuration, their start and what they print."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.servers import ROOT, Server

END_SECONDS = 300
#: of agents that run: each with its log, and the codes with which it may end by itself
_agents: dict[subprocess.Popen[bytes], tuple[Path, tuple[int, ...]]] = {}
#: a SIGABRT makes the interpreter print where each thread is
HANG_SHOWS_STACKS = (sys.executable, "-X", "faulthandler")


def client(server: Server, **changes: object) -> dict[str, object]:
    """The `client` part of a source that reads `server` as the user menura."""
    return {"host": server.host, "port": server.port, "user": "menura", "password": "menura-secret"} | changes


def write_config(folder: Path, gateway: str, sources: dict[str, object]) -> Path:
    path = folder / "agent.yaml"
    config = {
        "tenant": "acme",
        "agent": "db-1",
        "gateway": {"address": gateway},
        "state_folder": str(folder / "state"),
        "sources": sources,
    }
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def agent(command: str, config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `menura agent COMMAND` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "agent.cli", command, "--config", str(config), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=END_SECONDS,
        env=environment(),
    )


@contextmanager
def running_agent(
    config: Path, log: Path, *exit_codes: int, command: Sequence[str] = (*HANG_SHOWS_STACKS, "-m", "agent.cli")
) -> Iterator[subprocess.Popen[bytes]]:
    """`menura agent run` in the background; told to stop it ends with 0 or a named code, unless the test killed it.

    `command`: what stands for `menura agent`.
    """
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, "run", "--config", str(config), "--log-level", "debug"],
            stdout=out,
            stderr=out,
            env=environment(),
        )
    _agents[process] = log, exit_codes
    try:
        yield process
    finally:
        del _agents[process]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            process.wait()
            raise AssertionError(f"it does not end:\n{log.read_text()[-8000:]}") from None
    assert code in (exit_codes or (0,)) or code == -signal.SIGKILL, log.read_text()[-4000:]
    assert "Traceback" not in log.read_text(), log.read_text()[-4000:]


def check_agents() -> None:
    """Raises where one of `running_agent` has failed; one that was sent a signal to end has not."""
    for process, (log, exit_codes) in list(_agents.items()):  # another thread may start one
        code = process.poll()
        if code not in (None, 0, -signal.SIGKILL, -signal.SIGTERM, *exit_codes):
            raise AssertionError(f"the agent has ended with {code}:\n{log.read_text()[-4000:]}")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")])}
