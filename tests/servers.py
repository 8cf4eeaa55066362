"""Private MariaDB and MySQL servers for tests, benchmarks and the demo: real ones, on free ports, in scratch folders.

A server comes from a template data folder that is made once per checkout, so that starting one takes a
second or two. `MENURA_TEST_MARIADB_URL` and `MENURA_TEST_MYSQL_URL` (mysql://root:PASSWORD@HOST:PORT) name
servers that run elsewhere; what needs a server of its own settings then says so and skips.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import pymysql

ROOT = Path(__file__).resolve().parents[1]
SERVERS = ROOT / ".servers"
START_SECONDS = 120

Flavor = Literal["mariadb", "mysql"]
URL_VARIABLES: Mapping[Flavor, str] = {"mariadb": "MENURA_TEST_MARIADB_URL", "mysql": "MENURA_TEST_MYSQL_URL"}


class ServerMissing(RuntimeError):
    """No server of that kind on this machine; the message says how to get one."""


@dataclass
class Server:
    flavor: Flavor
    port: int
    host: str = "127.0.0.1"
    user: str = "root"
    password: str = ""
    folder: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    settings: dict[str, str] = field(default_factory=dict)

    def connect(self, **options: object) -> pymysql.connections.Connection:
        """A new autocommitting PyMySQL connection as the administrator."""
        arguments = {"autocommit": True, "charset": "utf8mb4", **options}
        return pymysql.connect(host=self.host, port=self.port, user=self.user, password=self.password, **arguments)

    def run(self, *statements: str, database: str | None = None) -> list[tuple[object, ...]]:
        """Run statements one by one; the rows of the last."""
        with closing(self.connect(database=database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def create_replication_user(self, user: str = "menura", password: str = "menura-secret") -> None:
        self.run(
            f"CREATE USER IF NOT EXISTS '{user}'@'%' IDENTIFIED BY '{password}'",
            f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{user}'@'%'",
        )

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(with_signal)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def start(self) -> None:
        """Start again in the same folder and on the same port, after `stop`."""
        assert self.folder is not None
        self.process = _launch(self.flavor, self.folder, self.port, self.settings)
        _wait_until_up(self)


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def server(flavor: Flavor, folder: Path, **settings: str) -> Iterator[Server]:
    """A running server with a fresh data folder in `folder`; `settings` are server options with '_' for '-'.

    Row-based binary log, full images and full metadata, unless `settings` say otherwise.
    """
    url = os.environ.get(URL_VARIABLES[flavor])
    if url:
        if settings:
            raise ServerMissing(f"{URL_VARIABLES[flavor]} names a running server; this needs one with {settings}")
        parts = urlsplit(url)
        yield Server(
            flavor,
            parts.port or 3306,
            parts.hostname or "127.0.0.1",
            unquote(parts.username or "root"),
            unquote(parts.password or ""),
        )
        return
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(_template(flavor), folder / "data")
    (folder / "data" / "auto.cnf").unlink(missing_ok=True)  # each MySQL makes a server UUID of its own
    running = Server(flavor, free_port(), folder=folder, settings=settings)
    try:
        running.start()
        yield running
    finally:
        running.stop(signal.SIGKILL if os.environ.get("MENURA_TEST_FAST_STOP", "1") == "1" else signal.SIGTERM)


def _command(flavor: Flavor) -> list[str]:
    if flavor == "mariadb":
        binary = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin:/usr/libexec:/usr/local/sbin")
        if binary is None:
            raise ServerMissing(
                f"no mariadbd: run .ci/setup mariadb as root, install mariadb-server, or set {URL_VARIABLES[flavor]}"
            )
        return [binary, "--no-defaults"]
    root = SERVERS / "mysql"
    if not (root / "ready").exists():
        raise ServerMissing(f"no MySQL server: run .ci/setup mysql as root, or set {URL_VARIABLES[flavor]}")
    loader = [str(root / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", str(root / "usr/lib/x86_64-linux-gnu")]
    options = [
        f"--basedir={root}/usr",
        f"--lc-messages-dir={root}/usr/share/mysql",
        f"--plugin-dir={root}/usr/lib/mysql/plugin",
        "--secure-file-priv=",
        "--mysqlx=OFF",
    ]
    return [*loader, str(root / "usr/sbin/mysqld"), "--no-defaults", *options]


def _template(flavor: Flavor) -> Path:
    """The data folder of a server that has just been initialised, made once; safe when two ask at the same time."""
    template = SERVERS / f"{flavor}-data"
    if template.exists():
        return template
    command = _command(flavor)
    draft = SERVERS / f"{flavor}-data.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    SERVERS.mkdir(exist_ok=True)
    if flavor == "mariadb":
        install = shutil.which("mariadb-install-db") or shutil.which(
            "mariadb-install-db", path="/usr/bin:/usr/local/bin"
        )
        if install is None:
            raise ServerMissing("mariadbd is there but mariadb-install-db is not: install mariadb-server")
        options = [
            f"--datadir={draft}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ]
        made = subprocess.run([install, "--no-defaults", *options, *_as_user()], capture_output=True, check=False)
    else:
        made = subprocess.run(
            [*command, "--initialize-insecure", f"--datadir={draft}", *_as_user()], capture_output=True, check=False
        )
    if made.returncode:
        raise ServerMissing(
            f"initialising a {flavor} data folder failed: {(made.stderr or made.stdout).decode()[-2000:]}"
        )
    try:
        draft.rename(template)
    except OSError:  # another process was first
        shutil.rmtree(draft, ignore_errors=True)
    return template


def _as_user() -> list[str]:
    return ["--user=root"] if os.getuid() == 0 else []


def _launch(flavor: Flavor, folder: Path, port: int, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    options = {
        "datadir": str(folder / "data"),
        "port": str(port),
        "bind_address": "127.0.0.1",
        "socket": str(folder / "s.sock") if len(str(folder)) < 90 else f"/tmp/menura-{port}.sock",
        "pid_file": str(folder / "server.pid"),
        "server_id": "1",
        "log_bin": str(folder / "data" / "binlog"),
        "binlog_format": "ROW",
        "binlog_row_image": "FULL",
        "binlog_row_metadata": "FULL",
        "innodb_buffer_pool_size": "128M",
        "innodb_flush_log_at_trx_commit": "2",
        "sync_binlog": "0",
    }
    if flavor == "mysql":
        options |= {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
    options |= settings
    arguments = [
        f"--{name.replace('_', '-')}={value}" if value != "" else f"--{name.replace('_', '-')}"
        for name, value in options.items()
    ]
    log = (folder / "server.log").open("ab")
    with log:
        return subprocess.Popen(
            [*_command(flavor), *arguments, *_as_user()], stdout=log, stderr=log, start_new_session=True
        )


def _wait_until_up(running: Server) -> None:
    assert running.process is not None and running.folder is not None
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            running.connect(connect_timeout=2).close()
        except pymysql.err.OperationalError as refused:
            if running.process.poll() is not None or time.monotonic() > deadline:
                log = (running.folder / "server.log").read_text(errors="replace")[-3000:]
                raise ServerMissing(f"the {running.flavor} server did not come up: {refused}\n{log}") from refused
            time.sleep(0.05)
        else:
            return
