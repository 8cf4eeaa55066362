"""`python -m tests.postgres_releases 14 18`: other releases than this machine's PostgreSQL, in .servers/postgresql-N.

The servers are those that zonky builds for embedding, from Maven Central: `initdb`, `pg_ctl` and `postgres` alone.
"""

import argparse
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from spark_sink.errors import SinkError
from spark_sink.jars import fetch_module
from tests.servers import SERVERS

#: by release: the version that is fetched
VERSIONS = {"14": "14.22.0", "17": "17.9.0", "18": "18.4.0"}
_ORGANISATION = "io.zonky.test.postgres"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64v8"}


def fetch(release: str) -> Path:
    """The folder of this release's server, fetched if it is not there. Raises `SinkError`."""
    folder = SERVERS / f"postgresql-{release}"
    if (folder / "bin" / "initdb").is_file():
        return folder
    module = f"embedded-postgres-binaries-linux-{_ARCHITECTURES[platform.machine()]}"
    SERVERS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SERVERS, prefix=f"postgresql-{release}-") as scratch:
        jar = fetch_module((_ORGANISATION, module, VERSIONS[release]), Path(scratch))
        with zipfile.ZipFile(jar) as archive:
            (packed,) = (name for name in archive.namelist() if name.endswith(".txz"))
            archive.extract(packed, scratch)
        draft = Path(scratch) / "server"
        with tarfile.open(Path(scratch) / packed) as files:
            files.extractall(draft, filter="tar")
        draft.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.postgres_releases", description="Fetch servers for tests.")
    parser.add_argument("releases", nargs="+", choices=sorted(VERSIONS))
    try:
        for release in parser.parse_args().releases:
            fetch(release)
    except SinkError as failure:
        print(failure, file=sys.stderr)  # noqa: T201
        return failure.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
