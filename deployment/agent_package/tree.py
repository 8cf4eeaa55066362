"""The files of an installed agent, as they lie beneath a root: what every package of it holds.

::

    /opt/menura-agent/lib/pythonX.Y   the agent, the contract and their locked packages, for each Python that was named
    /opt/menura-agent/main.py         starts them; /usr/bin/menura finds the Python
    /opt/menura-agent/MANIFEST        SHA-256 of each file, as sha256sum reads it
    /usr/lib/menura-agent             the updater, which root runs
    /usr/lib/systemd, /etc/menura, /usr/share/doc/menura-agent

Comes in: wheels of this distribution, by interpreter, requirements.lock, whose hashes uv checks, and what git has of
the other files. The same ones give the same bytes: times are the commit's, and the machine leaves nothing in them.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from deployment.agent_package.sbom import sbom

SOURCE = Path(__file__).parents[2]
HOME = Path("opt/menura-agent")
UPDATER = Path("usr/lib/menura-agent")
#: in which form it is installed; each package has its own
PACKAGED_AS = HOME / "FORMAT"
#: the configuration is its owner's
CONFIGURATION = Path("etc/menura/agent.yaml")
CREDENTIALS = Path("etc/menura/credentials")
DOCUMENTS = Path("usr/share/doc/menura-agent")
_OWN = "deployment/agent_package/root"
#: of the wheel, what receives changes
_RECEIVING = ("controlplane_api", "gateway", "spark_sink")
#: what compilers and type checkers read
_NOT_RUN = (".pyx", ".pxd", ".pyi", ".h", ".c", ".proto", ".typed")
#: of a package's metadata, what says how it came here
_OF_THE_INSTALLER = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_build.json", "uv_cache.json")


def make_tree(root: Path, wheels: Mapping[str, Path], uv: str, epoch: int) -> None:
    """`wheels`: of interpreters as `python3.11`. `root` is not there yet. Raises CalledProcessError."""
    for name in tracked(_OWN):
        to = root / Path(name).relative_to(_OWN)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / name, to)
    for python, wheel in wheels.items():
        _install(root / HOME / "lib" / python, python, wheel, uv)
    (root / CREDENTIALS).mkdir()
    documents = root / DOCUMENTS
    documents.mkdir(parents=True)
    shutil.copy(SOURCE / "LICENSE", documents / "copyright")
    shutil.copy(SOURCE / "docs/install-agent.md", documents)
    found = {d.name: d for python in wheels for d in distributions(path=[str(root / HOME / "lib" / python)])}
    (documents / "sbom.cdx.json").write_text(sbom(found.values(), (SOURCE / "requirements.lock").read_text(), epoch))
    for path in files(root):
        path.chmod(0o755 if path.parent == root / "usr/bin" else 0o644)
    manifest = root / HOME / "MANIFEST"
    manifest.write_text("".join(_manifest(root)))
    manifest.chmod(0o644)


def tracked(folder: str) -> list[str]:
    """What git has of a folder of this checkout."""
    command = ["git", "-C", str(SOURCE), "ls-files", "-z", folder]
    return [*filter(None, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0"))]


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def newest_libc(root: Path) -> str:
    """Of the symbols that compiled modules ask the C library for."""
    wanted = {
        tuple(map(int, found.split(b".")))
        for module in root.rglob("*.so*")
        for found in re.findall(rb"GLIBC_(2\.\d+)", module.read_bytes())
    }
    return ".".join(map(str, max(wanted)))


def _install(lib: Path, python: str, wheel: Path, uv: str) -> None:
    command = [uv, "pip", "install", "--quiet", "--python", python, "--target", str(lib), "--link-mode", "copy"]
    lock = ["--constraint", str(SOURCE / "requirements.lock")]
    subprocess.run([*command, *lock, f"menura[agent] @ {wheel.resolve().as_uri()}"], check=True)
    for name in (*_RECEIVING, "bin", ".lock"):
        path = lib / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in [*lib.rglob("*")]:
        is_of_installer = path.parent.suffix == ".dist-info" and path.name in _OF_THE_INSTALLER
        if path.is_file() and (is_of_installer or path.suffix in _NOT_RUN):
            path.unlink()
    modules = [str(path) for path in sorted(lib.rglob("*.so"))]
    subprocess.run(["strip", "--strip-unneeded", *modules], check=True)
    (points,) = lib.glob("menura-*.dist-info/entry_points.txt")
    lines = points.read_text().splitlines()
    points.write_text("".join(f"{line}\n" for line in lines if not re.search(rf"=\s*({'|'.join(_RECEIVING)})\.", line)))
    _compile(lib, python)


def _compile(lib: Path, python: str) -> None:
    """Root owns the folder: no agent could write what it has compiled. Checked by no time and no hash of the source."""
    command = [python, "-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([*command, "-s", str(lib), "-p", f"/{HOME}/lib/{python}", str(lib)], check=True)


def _manifest(root: Path) -> Iterator[str]:
    for path in files(root):
        inside = path.relative_to(root)
        if inside != CONFIGURATION:
            yield f"{hashlib.sha256(path.read_bytes()).hexdigest()}  /{inside}\n"
