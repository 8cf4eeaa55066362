"""Packages of other versions of the agent than this checkout's, built as `make packages` builds them.

Comes in: the wheel of this checkout. Goes out: packages of a wheel that says another version and, where a test asks for
it, has a line more: one that can't start, or one that dials where no gateway is.
"""

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from deployment.agent_package.__main__ import build
from tests.servers import ROOT

#: of a module of the wheel: what is replaced in it, and by what
Defect = Mapping[str, tuple[str, str]]
DOES_NOT_START: Defect = {"agent/cli.py": ("def main() -> int:\n", "def main() -> int:\n    raise RuntimeError\n")}
DIALS_NOBODY: Defect = {
    "agent/runtime/session.py": (
        "def _channel(gateway: GatewayConfig) -> grpc.Channel:\n",
        "def _channel(gateway: GatewayConfig) -> grpc.Channel:\n    import dataclasses\n"
        "    gateway = dataclasses.replace(gateway, address='127.0.0.1:1')\n",
    )
}


def release(
    wheel: Path, version: str, key: Path, folder: Path, nfpm: Path | None, defect: Defect | None = None
) -> Path:
    """The folder with its packages, SHA256SUMS and their signature."""
    out, work = folder / f"release-{version}", folder / f"work-{version}"
    out.mkdir(parents=True)
    work.mkdir()
    found = ROOT / ".venv/uv/bin/uv"
    uv = str(found) if found.exists() else "uv"
    python = f"python3.{sys.version_info.minor}"
    made = _reversioned(wheel, version, work, defect or {})
    build({python: made}, out, work, uv, None if nfpm is None else str(nfpm), version, key)
    return out


def package_of(release: Path, extension: str) -> Path:
    (found,) = release.glob(f"menura-agent-*.{extension}")
    return found


def _reversioned(wheel: Path, version: str, folder: Path, defect: Defect) -> Path:
    """Named after its version, as installers want it; its RECORD goes, which the packages leave out too."""
    former = wheel.name.split("-")[1]
    made = folder / wheel.name.replace(former, version, 1)
    old, new = (f"menura-{named}.dist-info/" for named in (former, version))
    left = dict(defect)
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
        for name in source.namelist():
            content = source.read(name)
            if name in left:
                words, others = left.pop(name)
                assert content.decode().count(words) == 1, (name, words)
                content = content.decode().replace(words, others).encode()
            if name == f"{old}METADATA":
                content = content.replace(f"Version: {former}".encode(), f"Version: {version}".encode(), 1)
            target.writestr(name.replace(old, new), b"" if name.endswith("/RECORD") else content)
    assert not left, left
    return made
