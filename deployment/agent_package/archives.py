"""A tree as packages: Debian's and RPM's by nfpm, and an archive with scripts for hosts that have no package manager.

Comes in: a tree of `tree`. Goes out: files of which the same tree and time give the same bytes, whoever owns the tree.
"""

import gzip
import io
import json
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

from deployment.agent_package.tree import (
    CONFIGURATION,
    CREDENTIALS,
    DOCUMENTS,
    HOME,
    PACKAGED_AS,
    SOURCE,
    UPDATER,
    files,
    newest_libc,
)

SCRIPTS = SOURCE / "deployment/agent_package/scripts"
DESCRIPTION = (
    "Change data capture beside a MySQL, MariaDB or PostgreSQL server.\nIt dials a gateway, and opens no port."
)


def write_archive(root: Path, version: str, epoch: int, out: Path) -> Path:
    """Of the tree and the scripts, beneath one folder."""
    folder = f"menura-agent-{version}"
    made = out / f"{folder}-linux-x86_64.tar.gz"
    with (
        made.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar,
    ):
        for script in sorted(SCRIPTS.iterdir()):
            name = script.name if script.name == "install" else f"scripts/{script.name}"
            _add(tar, f"{folder}/{name}", script.read_bytes(), 0o755, epoch)
        _add(tar, f"{folder}/root/{PACKAGED_AS}", b"tar\n", 0o644, epoch)
        for path in files(root):
            _add(tar, f"{folder}/root/{path.relative_to(root)}", path.read_bytes(), path.stat().st_mode & 0o777, epoch)
    return made


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int, epoch: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), mode, epoch
    tar.addfile(member, io.BytesIO(content))


def write_package(packager: str, root: Path, version: str, epoch: int, nfpm: str, out: Path, work: Path) -> Path:
    """`packager`: deb or rpm. Raises CalledProcessError."""
    form = work / f"FORMAT.{packager}"
    form.write_text(f"{packager}\n")
    configuration = work / "nfpm.json"
    configuration.write_text(json.dumps(_nfpm(root, version, epoch, form), indent=1))
    made = out / f"menura-agent-{version}-linux-x86_64.{packager}"
    command = [nfpm, "package", "--config", str(configuration), "--packager", packager, "--target", str(made)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={"SOURCE_DATE_EPOCH": str(epoch)})
    return made


def _nfpm(root: Path, version: str, epoch: int, form: Path) -> dict[str, object]:
    """Of https://nfpm.goreleaser.com/configuration: JSON is YAML.

    Folders are named, since rpm removes no other: an empty one of a former version's metadata would be found for it.
    """
    at = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pythons = sorted(path.name for path in (root / HOME / "lib").iterdir())
    libc = newest_libc(root / HOME)
    own = {"owner": "root", "group": "root", "mtime": at}
    contents: list[dict[str, object]] = [
        {"dst": f"/{CREDENTIALS}", "type": "dir", "file_info": own | {"mode": 0o700}},
    ]
    for folder in (HOME, UPDATER, DOCUMENTS):
        for path in sorted([root / folder, *(found for found in (root / folder).rglob("*") if found.is_dir())]):
            contents.append({"dst": f"/{path.relative_to(root)}", "type": "dir", "file_info": own | {"mode": 0o755}})
    for path in files(root):
        inside = path.relative_to(root)
        entry: dict[str, object] = {"src": str(path), "dst": f"/{inside}"}
        if inside == CONFIGURATION:
            entry["type"] = "config|noreplace"
        contents.append(entry | {"file_info": own | {"mode": path.stat().st_mode & 0o777}})
    contents.append({"src": str(form), "dst": f"/{PACKAGED_AS}", "file_info": own | {"mode": 0o644}})
    return {
        "name": "menura-agent",
        "arch": "amd64",
        "platform": "linux",
        "version": version,
        "mtime": at,
        "maintainer": "Menura <menura@localhost>",
        "description": DESCRIPTION,
        "license": "Apache-2.0",
        "section": "database",
        "contents": contents,
        "scripts": {name: str(SCRIPTS / name) for name in ("postinstall", "preremove", "postremove")},
        "rpm": {"buildhost": "localhost", "scripts": {"posttrans": str(SCRIPTS / "restart")}},
        "overrides": {
            "deb": {"depends": [" | ".join(pythons), f"libc6 (>= {libc})", "passwd"]},
            "rpm": {"depends": [_any_of(pythons), f"glibc >= {libc}", "shadow-utils"]},
        },
    }


def _any_of(pythons: list[str]) -> str:
    """As RPM writes it.

    >>> _any_of(["python3.11", "python3.12"])
    '(python(abi) = 3.11 or python(abi) = 3.12)'
    """
    wanted = [f"python(abi) = {name.removeprefix('python')}" for name in pythons]
    return wanted[0] if len(wanted) == 1 else f"({' or '.join(wanted)})"
