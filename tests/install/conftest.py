"""What makes the agent's packages."""

import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.install.building import Packages, build_packages, documented, run
from tests.install.versions import Defect, release
from tests.servers import ROOT

Releases = Callable[..., Path]


@pytest.fixture(scope="package")
def nfpm() -> Path:
    found = ROOT / ".servers/nfpm/nfpm"
    if not found.exists():
        assert "CI" not in os.environ, ".ci/setup nfpm builds it, with a Go of 1.23 or later"
        pytest.skip("needs nfpm: .ci/setup nfpm builds it, with a Go of 1.23 or later")
    return found


@pytest.fixture(scope="package")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """sdist and wheel (the wheel from the sdist), built from what git would hand to a stranger."""
    checkout, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("dist")
    archive = checkout / "archive.tar"
    tracked = run("git", "-C", str(ROOT), "ls-files", "-z").split("\0")
    with tarfile.open(archive, "w") as tar:
        for name in tracked:
            if name and (ROOT / name).exists():
                tar.add(ROOT / name, name)
    with tarfile.open(archive) as tar:
        tar.extractall(checkout, filter="data")
    archive.unlink()
    compiler = tmp_path_factory.mktemp("compiler") / "cc"  # how fast the core is matters to no test here
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o700)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target)]
    run(*build, cwd=checkout, env={**os.environ, "CC": str(compiler)})
    return {"sdist": next(target.glob("*.tar.gz")), "wheel": next(target.glob("*.whl"))}


@pytest.fixture(scope="package")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private key, with its public half beside it, made as the document says."""
    folder = tmp_path_factory.mktemp("key")
    made = documented("openssl genpkey").splitlines()
    run("sh", "-ec", "\n".join(made[:2]), cwd=folder)
    assert made[2:] == ["make packages SIGNING_KEY=packages.key"]
    return folder / "packages.key"


@pytest.fixture(scope="package")
def packages(
    distributions: dict[str, Path], nfpm: Path, key: Path, tmp_path_factory: pytest.TempPathFactory
) -> Packages:
    return build_packages(tmp_path_factory.mktemp("packages"), distributions["wheel"], nfpm, key)


@pytest.fixture(scope="package")
def releases(
    distributions: dict[str, Path], nfpm: Path, key: Path, tmp_path_factory: pytest.TempPathFactory
) -> Releases:
    """Of a version, and whatever its defect is: the folder that `menura upgrade add` takes."""
    made: dict[tuple[str, str], Path] = {}
    folder = tmp_path_factory.mktemp("releases")

    def of(version: str, defect: Defect | None = None) -> Path:
        wanted = version, str(defect)
        if wanted not in made:
            made[wanted] = release(distributions["wheel"], version, key, folder / str(len(made)), nfpm, defect)
        return made[wanted]

    return of
