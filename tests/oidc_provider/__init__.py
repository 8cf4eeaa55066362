"""A real OpenID Connect provider for tests: npm's oidc-provider, which `.ci/setup oidc-provider` fetches."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.needs import needs_setup
from tests.servers import SERVERS, ServerMissing
from tests.stack import wait_for

MODULES = SERVERS / "oidc-provider"
SECRET = "canary-of-the-client-secret"


@contextmanager
def oidc_provider(log: Path, port: int, redirect_uri: str) -> Iterator[str]:
    """Its issuer. Each start has new keys, also at the port of a former one."""
    needs_setup("an OpenID Connect provider")
    node = shutil.which("node")
    if node is None or not (MODULES / "ready").exists():
        raise ServerMissing("no node or no oidc-provider: run .ci/setup oidc-provider")
    script = Path(__file__).with_name("provider.mjs")
    with log.open("ab") as written:
        process = subprocess.Popen(
            [node, str(script), str(MODULES), str(port), redirect_uri, SECRET], stdout=written, stderr=written
        )
    issuer = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"the provider, whose log is {log}", lambda: _answers(issuer) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield issuer
    finally:
        process.terminate()
        process.wait(300)


def _answers(issuer: str) -> bool:
    try:
        return httpx.get(f"{issuer}/.well-known/openid-configuration", trust_env=False).is_success
    except httpx.TransportError:
        return False
