"""`make packages`: the agent for a database's host as deb, rpm and archive, with SHA256SUMS, into dist/.

Comes in: what git has of this checkout, all of it committed, and for each Python that is named the interpreter itself.
Goes out: files which are the same bytes for the same wheels; whether two machines build the same wheel is not known. A
kill leaves files of this and a former build; the checksums are written last, and after them their signature.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from deployment.agent_package.archives import write_archive, write_package
from deployment.agent_package.signature import NAME as SIGNATURE
from deployment.agent_package.signature import KeyRefused, signed, write_signature
from deployment.agent_package.tree import SOURCE, make_tree, tracked


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m deployment.agent_package", description="Packages of the agent.")
    parser.add_argument("--python", action="append", default=[], metavar="python3.11", help="one that is installed")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="of this checkout, instead of building it")
    parser.add_argument("--out", type=Path, default=SOURCE / "dist", metavar="FOLDER")
    parser.add_argument("--uv", default="uv", metavar="FILE")
    parser.add_argument("--nfpm", metavar="FILE", help="without it there is no deb and no rpm")
    parser.add_argument("--signing-key", type=Path, metavar="FILE", help="private key that signs SHA256SUMS")
    arguments = parser.parse_args()
    key: Path | None = arguments.signing_key
    refusal = _refusal(arguments.nfpm, key)
    if refusal:
        print(f"packages: {refusal}; nothing was built", file=sys.stderr)
        return 1
    pythons = arguments.python or [f"python3.{sys.version_info.minor}"]
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        uv = str(Path(shutil.which(arguments.uv) or arguments.uv).absolute())
        wheels = {python: arguments.wheel or build_wheel(python, uv, work) for python in pythons}
        for made in build(wheels, out, work, uv, arguments.nfpm, _version(), key):
            print(made)
    if key is None:
        print("packages: SHA256SUMS is not signed, so no host can tell who built them: make packages SIGNING_KEY=FILE")
    return 0


def _refusal(nfpm: str | None, key: Path | None) -> str:
    if platform.machine() != "x86_64":
        return f"this machine is {platform.machine()}, and packages are labelled and tested for x86_64 alone"
    if nfpm is not None and shutil.which(nfpm) is None:
        return f"there is no {nfpm}, which makes deb and rpm: .ci/setup nfpm builds it with a Go of 1.23 or later"
    try:
        if key is not None:
            signed(b"", key)
    except KeyRefused as refused:
        return str(refused)
    status = ["git", "-C", str(SOURCE), "status", "--porcelain"]
    changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout.splitlines()
    if changed:
        return f"files of this checkout are in no commit, {changed[0][3:]} for one: commit, stash or remove them"
    return ""


def build(
    wheels: dict[str, Path], out: Path, work: Path, uv: str, nfpm: str | None, version: str, key: Path | None = None
) -> list[Path]:
    """What was written into `out`, SHA256SUMS and its signature last; the tree stays in `work` as `root`.

    A former build's signature goes first. Raises `KeyRefused`.
    """
    (out / SIGNATURE).unlink(missing_ok=True)
    epoch, root = _epoch(), work / "root"
    make_tree(root, wheels, uv, epoch)
    made = [write_archive(root, version, epoch, out)]
    if nfpm is not None:
        made += [write_package(packager, root, version, epoch, nfpm, out, work) for packager in ("deb", "rpm")]
    sums = out / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in made))
    signatures = [write_signature(sums, key)] if key is not None else []
    return [*made, sums, *signatures]


def _version() -> str:
    project: dict[str, str] = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
    return project["version"]


def _epoch() -> int:
    """Of the newest commit."""
    command = ["git", "-C", str(SOURCE), "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def build_wheel(python: str, uv: str, work: Path) -> Path:
    """Built from a copy of what git has: nothing that a checkout has built gets into it.

    Linked by the compiler alone: some Pythons would have it name their folder as one where libraries are (RUNPATH).
    """
    checkout = work / f"checkout-{python}"
    for name in tracked("."):
        if (SOURCE / name).exists():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / name, checkout / name)
    made = work / f"wheel-{python}"
    lock = str(SOURCE / "requirements.lock")
    command = [
        uv,
        "build",
        "--quiet",
        "--wheel",
        "--python",
        python,
        "--build-constraint",
        lock,
        "--out-dir",
        str(made),
    ]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(_epoch()), "LDSHARED": "cc -shared"}
    subprocess.run(command, cwd=checkout, check=True, env=environment)
    (wheel,) = made.glob("*.whl")
    return wheel


if __name__ == "__main__":
    sys.exit(main())
