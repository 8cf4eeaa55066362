"""What a package tells the package manager, read from its own header; and which packages are not built."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from deployment.agent_package.__main__ import build, main
from deployment.agent_package.archives import SCRIPTS, write_package
from tests.servers import ROOT

pytestmark = pytest.mark.long

METADATA = Path("opt/menura-agent/lib/python3.11/menura-0.1.0.dist-info")
#: numbers of RPM's tags
MODES, REQUIRED, REQUIRED_VERSIONS, FOLDER_OF, NAMES, FOLDERS, AFTER_ALL = 1030, 1049, 1050, 1116, 1117, 1118, 1152


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files of the system, and of two Pythons a module and metadata."""
    root = tmp_path / "root"
    shutil.copytree(ROOT / "deployment/agent_package/root", root, ignore=shutil.ignore_patterns("__pycache__"))
    for lib in ("python3.11", "python3.12"):
        metadata = root / METADATA.parent.with_name(lib) / METADATA.name
        metadata.mkdir(parents=True)
        (metadata / "METADATA").touch()
        (metadata.parent / "core.so").write_bytes(b"GLIBC_2.17")
    (root / "usr/share/doc/menura-agent").mkdir(parents=True)
    (root / "usr/share/doc/menura-agent/copyright").touch()
    return root


def test_rpm_when_it_is_built_then_its_folders_are_its_own_and_it_needs_one_of_its_pythons(
    tree: Path, nfpm: Path, tmp_path: Path
) -> None:
    header = rpm_header(write_package("rpm", tree, "0.1.0", 0, str(nfpm), tmp_path, tmp_path).read_bytes())
    found = {
        header[FOLDERS][int(at)] + name: int(mode)
        for at, name, mode in zip(header[FOLDER_OF], header[NAMES], header[MODES], strict=True)
    }
    folders = {name: mode & 0o7777 for name, mode in found.items() if mode & 0o170000 == 0o040000}
    home = Path("/opt/menura-agent")
    own = [home, home / "lib", *(home / "lib" / name for name in ("python3.11", "python3.12"))]
    own += [home / "lib" / name / METADATA.name for name in ("python3.11", "python3.12")]
    own += [Path("/usr/lib/menura-agent"), Path("/usr/share/doc/menura-agent")]
    assert folders == dict.fromkeys(map(str, own), 0o755) | {"/etc/menura/credentials": 0o700}
    assert "(python(abi) = 3.11 or python(abi) = 3.12)" in header[REQUIRED]
    assert header[AFTER_ALL] == [(SCRIPTS / "restart").read_text()]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_deb_when_it_is_built_then_has_its_folders(tree: Path, nfpm: Path, tmp_path: Path) -> None:
    made = write_package("deb", tree, "0.1.0", 0, str(nfpm), tmp_path, tmp_path)
    listed = subprocess.run(["dpkg-deb", "--contents", str(made)], capture_output=True, text=True, check=True).stdout
    (found,) = (line for line in listed.splitlines() if line.endswith(f"./{METADATA}/"))
    assert found.startswith("drwxr-xr-x root/root")


def test_packages_when_they_would_not_be_what_they_say_then_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*options: str) -> str:
        monkeypatch.setattr("sys.argv", ["packages", "--out", str(tmp_path / "dist"), *options])
        assert main() == 1
        assert not (tmp_path / "dist").exists()
        return capsys.readouterr().err

    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "agent.yaml").touch()
    monkeypatch.setattr("deployment.agent_package.__main__.SOURCE", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "in no commit, agent.yaml for one" in refused()
    assert "there is no /no/nfpm" in refused("--nfpm", "/no/nfpm")
    assert "can't sign with /no/key" in refused("--signing-key", "/no/key")
    key = tmp_path.with_name("ed25519.key")
    subprocess.run(["openssl", "genpkey", "-algorithm", "ED25519", "-out", str(key)], check=True, capture_output=True)
    assert "a key that it can: openssl genpkey -algorithm RSA" in refused("--signing-key", str(key))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "this machine is aarch64" in refused()


def test_packages_when_they_are_built_without_a_key_then_a_former_signature_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = tmp_path / "SHA256SUMS.sig"
    former.write_bytes(b"of a former build")
    monkeypatch.setattr("deployment.agent_package.__main__.make_tree", lambda root, *_: root.mkdir())
    made = build({}, tmp_path, tmp_path, "uv", None, "0.1.0")
    assert [path.name for path in made] == ["menura-agent-0.1.0-linux-x86_64.tar.gz", "SHA256SUMS"]
    assert not former.exists()


def rpm_header(package: bytes) -> dict[int, list[str]]:
    """Numbers and texts by tag: beyond the lead of 96 bytes and the signature's header, filled up to eights."""
    _, end = _section(package, 96)
    return _section(package, (end + 7) // 8 * 8)[0]


def _section(package: bytes, start: int) -> tuple[dict[int, list[str]], int]:
    entries, size = struct.unpack_from(">8xII", package, start)
    values = start + 16 + entries * 16
    found: dict[int, list[str]] = {}
    for at in range(start + 16, values, 16):
        tag, kind, offset, count = struct.unpack_from(">IIII", package, at)
        if kind in (3, 4):
            numbers = struct.unpack_from(f">{count}{'HI'[kind - 3]}", package, values + offset)
            found[tag] = list(map(str, numbers))
        elif kind in (6, 8):
            found[tag] = [text.decode() for text in package[values + offset :].split(b"\0", count)[:count]]
    return found, values + size
