"""A Prometheus of this machine, as Debian packages it: `.ci/setup prometheus`."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.needs import needs_setup
from tests.servers import ServerMissing, free_port
from tests.stack import wait_for


def promtool(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([installed("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=600)


def installed(name: str) -> str:
    needs_setup(name)
    found = shutil.which(name)
    if found is None:
        raise ServerMissing(f"no {name} on this machine: run .ci/setup prometheus")
    return found


@contextmanager
def prometheus(folder: Path, jobs: Sequence[dict[str, Any]]) -> Iterator[httpx.Client]:
    """Scrapes these jobs each three seconds until the context ends; a client of its API."""
    program, address = installed("prometheus"), f"127.0.0.1:{free_port()}"
    folder.mkdir()
    config = {"global": {"scrape_interval": "3s", "scrape_timeout": "3s"}, "scrape_configs": list(jobs)}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    words = [f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen([program, *words, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", timeout=300) as client:
            wait_for("Prometheus", lambda: running.poll() is not None or _is_ready(client))
            yield client
    finally:
        running.terminate()
        running.wait(300)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").is_success
    except httpx.TransportError:
        return False


def values(client: httpx.Client, expression: str) -> list[dict[str, Any]]:
    """What an expression gives now; it has to be one."""
    answer = client.get("/api/v1/query", params={"query": expression})
    assert answer.status_code == 200, f"{expression}: {answer.text}"
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found
