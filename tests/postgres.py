"""A private PostgreSQL for tests: a real one, on a free port, in a scratch folder.

`MENURA_TEST_POSTGRESQL_URL` (postgresql://USER:PASSWORD@HOST:PORT/postgres) names one that runs elsewhere.
A test gets a database of its own from `PostgreSQL.fresh_database`.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
from psycopg import sql

from tests.needs import needs_setup
from tests.servers import ServerMissing, free_port

URL_VARIABLE = "MENURA_TEST_POSTGRESQL_URL"
START_SECONDS = 300


@dataclass
class PostgreSQL:
    #: of a database that always exists
    url: str
    _numbers: "count[int]"

    def fresh_database(self, copy_of: str = "") -> str:
        """URL of an empty database, or of a copy of another one that nobody uses now, by its URL."""
        name = f"menura_{os.getpid()}_{next(self._numbers)}"
        created, template = sql.Identifier(name), sql.Identifier(copy_of.rpartition("/")[2] or "template1")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(created))
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(created, template))
        return f"{self.url.rpartition('/')[0]}/{name}"


@contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    """A running PostgreSQL with fresh data, stopped and removed at the end."""
    needs_setup("PostgreSQL")
    url = os.environ.get(URL_VARIABLE)
    if url:
        yield PostgreSQL(url, count())
        return
    binaries = _binaries()
    # Not below pytest's folder: another user must be able to enter it.
    folder = Path(tempfile.mkdtemp(prefix="menura-pg-"))
    user = _unprivileged_user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    port = free_port()
    options = f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={folder} -c fsync=off"
    try:
        data = folder / "data"
        _run(
            user, binaries / "initdb", "-D", data, "-U", "menura", "-A", "trust", "--locale=C.UTF-8", "-E", "UTF8", "-N"
        )
        pg_ctl = (binaries / "pg_ctl", "-D", data)
        _run(user, *pg_ctl, "-w", "-t", START_SECONDS, "-l", folder / "server.log", "-o", options, "start")
        try:
            yield PostgreSQL(f"postgresql://menura@127.0.0.1:{port}/postgres", count())
        finally:
            _run(user, *pg_ctl, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise ServerMissing(f"no PostgreSQL: run .ci/setup postgresql as root, or set {URL_VARIABLE}")
    return Path(on_path).parent


def _unprivileged_user() -> pwd.struct_passwd | None:
    """Whom the server runs as: it refuses root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise ServerMissing("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


def _run(user: pwd.struct_passwd | None, *command: object) -> None:
    identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    arguments = [str(word) for word in command]
    # The server inherits the output: a pipe would never end.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(arguments, stdout=output, stderr=output, cwd="/", check=False, **identity)
        if done.returncode:
            output.seek(0)
            raise ServerMissing(f"{arguments[0]} failed: {output.read().decode(errors='replace')[-2000:]}")
