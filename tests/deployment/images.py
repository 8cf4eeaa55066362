"""What images bring to the services of docker-compose.yml: files, and servers with data of their own.

The images of MariaDB and PostgreSQL begin with a script that makes a server's data from the environment and files, and
leaves it alone where it is there. Here `make` and `fill` do as much of that as docker-compose.yml asks for.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests import postgres, servers
from tests.deployment.prometheus_server import installed
from tests.object_store import JAR
from tests.servers import ROOT
from tests.stack import wait_for

#: paths in the images of Dockerfile
FILES = {
    "/opt/menura/bin/with-database": ROOT / "deployment/with-database",
    "/opt/menura/jars": ROOT / ".jars",
    "/opt/object-store/s3proxy.jar": JAR,
}
START_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Served:
    """How a server is started that has its data."""

    command: list[str]
    user: int | None = None


def make(image: str, command: list[str], environment: dict[str, str], ends: ExitStack) -> Served:
    """The command of a service as its image carries it out; what it has made goes with `ends`."""
    kind = image.partition(":")[0]
    if kind == "mariadb":
        return _mariadb(command, environment, ends)
    if kind == "postgres":
        return _postgresql(command, environment, ends)
    if kind == "prom/prometheus":
        return Served([installed("prometheus"), *command])
    return Served(command)


def _mariadb(command: list[str], environment: dict[str, str], ends: ExitStack) -> Served:
    program, *words = command
    assert program == "mariadbd"
    server = servers._command("mariadb", "")
    folder = Path(tempfile.mkdtemp(prefix="menura-compose-"))
    ends.callback(shutil.rmtree, folder)
    subprocess.run(["cp", "-a", "--sparse=always", servers._template("mariadb", ""), folder / "data"], check=True)
    socket = folder / "socket"
    places = [f"--datadir={folder}/data", f"--tmpdir={folder}", f"--socket={socket}", f"--pid-file={folder}/pid"]
    alone = ["--bind-address=127.0.0.1", "--innodb-buffer-pool-size=64M"]
    # clients look there last, and for nothing else
    (Path(environment["HOME"]) / ".my.cnf").write_text(f"[client]\nsocket={socket}\n")
    return Served([*server, *words, *places, *alone, *servers._as_user()])


def fill(image: str, environment: dict[str, str], scripts: list[Path]) -> None:
    """What MariaDB's image does with the server that it has started for itself."""
    if not image.startswith("mariadb:"):
        return
    client = [servers._installed("mariadb"), "--user=root"]

    def run(statements: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            client,
            input=statements,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS,
        )

    wait_for("MariaDB to listen on its socket", lambda: run("SELECT 1").returncode == 0, START_SECONDS)
    user = environment["MARIADB_USER"]
    password = Path(environment["MARIADB_PASSWORD_FILE"]).read_text()
    of_root = Path(environment["MARIADB_ROOT_PASSWORD_FILE"]).read_text()
    statements = [f"CREATE USER '{user}'@'%' IDENTIFIED BY '{password}';", *(path.read_text() for path in scripts)]
    for each in (*statements, f"ALTER USER root@{environment['MARIADB_ROOT_HOST']} IDENTIFIED BY '{of_root}';"):
        done = run(each)
        assert done.returncode == 0, done.stderr


def _postgresql(command: list[str], environment: dict[str, str], ends: ExitStack) -> Served:
    program, *words = command
    assert program == "postgres"
    binaries, user = postgres._binaries(), postgres._unprivileged_user()
    folder = ends.enter_context(postgres._scratch())
    data, password = folder / "data", folder / "password"
    password.write_text(Path(environment["POSTGRES_PASSWORD_FILE"]).read_text())
    postgres.give_away(folder)
    given = (f"--username={environment['POSTGRES_USER']}", f"--pwfile={password}")
    locale = ("--locale=C.UTF-8", "-E", "UTF8", "-N", *shlex.split(environment["POSTGRES_INITDB_ARGS"]))
    postgres._run(user, binaries / "initdb", "-D", data, *given, *locale)
    database = f'CREATE DATABASE "{environment["POSTGRES_DB"]}";\n'
    postgres._run(user, binaries / "postgres", "--single", "-D", data, "postgres", stdin=database.encode())
    places = ["-D", str(data), "-k", str(folder), "-c", "fsync=off"]
    return Served([str(binaries / "postgres"), *words, *places], user=user.pw_uid if user else None)


def programs() -> list[str]:
    """Folders with programs of the images that are in no folder of PATH here."""
    return [
        str(postgres._binaries()),
        "/usr/sbin",
        *([f"{os.environ['JAVA_HOME']}/bin"] if "JAVA_HOME" in os.environ else []),
    ]
