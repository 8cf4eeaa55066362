"""What the tests of installing build, and what docs/install-agent.md says to run."""

import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deployment.agent_package.__main__ import build
from tests.servers import ROOT


def run(*command: str, **options: object) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


@dataclass(frozen=True)
class Packages:
    folder: Path
    #: what they hold, as it lies on a host
    root: Path
    digests: dict[str, str]


def build_packages(folder: Path, wheel: Path, nfpm: Path, key: Path) -> Packages:
    out, work = folder / "out", folder / "work"
    out.mkdir(parents=True)
    work.mkdir()
    uv = ROOT / ".venv/uv/bin/uv"
    python = f"python3.{sys.version_info.minor}"
    made = build({python: wheel}, out, work, str(uv if uv.exists() else shutil.which("uv")), str(nfpm), "0.1.0", key)
    return Packages(out, work / "root", {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in made})


def documented(words: str) -> str:
    """The block of docs/install-agent.md that has these words."""
    text = (ROOT / "docs/install-agent.md").read_text()
    (found,) = (block for block in re.findall(r"^```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if words in block)
    return str(found)
