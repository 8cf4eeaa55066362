"""Private MariaDB and MySQL servers for tests, benchmarks and the demo: real ones, on free ports, in scratch folders.

A server comes from a template data folder that is made once per checkout, so that starting one takes a
second or two. `MENURA_TEST_MARIADB_URL`, `MENURA_TEST_MARIADB_11_8_URL` and `MENURA_TEST_MYSQL_URL`
(mysql://root:PASSWORD@HOST:PORT) name servers that run elsewhere; what needs a server of its own settings then says
so and skips. A server without a version is this machine's MariaDB, or Debian sid's MySQL.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

import pymysql

from tests.needs import needs_setup

ROOT = Path(__file__).resolve().parents[1]
SERVERS = ROOT / ".servers"
START_SECONDS = 300

Flavor = Literal["mariadb", "mysql"]
FLAVORS: tuple[Flavor, ...] = ("mariadb", "mysql")
#: what the tests of each type and setting run on: flavor, version
TESTED: tuple[tuple[Flavor, str], ...] = (("mysql", ""), ("mariadb", ""), ("mariadb", "11.8"))


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
    version: str = ""
    program: str = ""

    def connect(self, **options: object) -> pymysql.connections.Connection:
        """A new autocommitting PyMySQL connection as the administrator.

        Without TLS where nothing needs it: PyMySQL reads all certificates of the machine for each connection.
        """
        needs_tls = bool(self.password) or "require_secure_transport" in self.settings
        arguments = {
            "autocommit": True,
            "charset": "utf8mb4",
            "connect_timeout": START_SECONDS,
            "ssl_disabled": not needs_tls,
            **options,
        }
        return pymysql.connect(host=self.host, port=self.port, user=self.user, password=self.password, **arguments)

    def run(self, *statements: str, database: str | None = None) -> list[tuple[object, ...]]:
        """Run statements one by one; the rows of the last."""
        with closing(self.connect(database=database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def prepare_xa(self, xid: str, *statements: str, database: str | None = None) -> None:
        """An XA transaction, prepared by a session that then ends; another one may commit it afterwards."""
        connection = self.connect(database=database)
        try:
            with connection.cursor() as cursor:
                for statement in (f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}"):
                    cursor.execute(statement)
        finally:
            self.leave(connection)

    def leave(self, connection: pymysql.connections.Connection) -> None:
        """End it, until the server has seen that: what it has prepared is nobody's only then."""
        session = connection.thread_id()
        connection.close()
        deadline = time.monotonic() + START_SECONDS
        while self.run(f"SELECT 1 FROM information_schema.processlist WHERE id = {session}"):
            assert time.monotonic() < deadline, f"session {session} does not end"
            time.sleep(0.005)

    def roll_back_prepared(self) -> None:
        """XA transactions that a test has left behind: they would hold their tables for ever."""
        if self.flavor == "mariadb":
            names = [row[3] for row in self.run("XA RECOVER FORMAT = 'SQL'")]
        else:
            found = self.run("XA RECOVER CONVERT XID")  # 0x and both parts of the name
            at = [(kind, 2 + 2 * int(str(length)), str(data)) for kind, length, _, data in found]
            names = [f"X'{data[2:end]}',X'{data[end:]}',{kind}" for kind, end, data in at]
        for name in names:
            self.run(f"XA ROLLBACK {name}")

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
            self.process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def start(self) -> None:
        """Start again in the same folder and on the same port, after `stop`."""
        assert self.folder is not None
        self.process = _launch(self)
        _wait_until_up(self)


#: Below what systems give to outgoing connections, and each process begins elsewhere: a port that was free a moment ago
#: is not taken by a connection or by a test beside this one.
_PORTS = range(10_000, 32_000)
_ports = (_PORTS[(os.getpid() * 2_503 + number) % len(_PORTS)] for number in count())
#: its byte of a port's number is locked by the process that has been given the port, until that process ends
_PORT_LOCKS = Path(tempfile.gettempdir()) / f"menura-test-ports-{os.getuid()}"


@cache
def _port_locks() -> int:
    return os.open(_PORT_LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def free_port() -> int:
    """One that nobody listens on; a process gets another one each time.

    No test beside this one gets it either, before something listens on it and while its server is stopped for a moment.
    """
    for port in _ports:
        with closing(socket.socket()) as listener, suppress(OSError):
            fcntl.lockf(_port_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("ports do not end")


def two_free_ports() -> int:
    """The first of two that follow each other."""
    port = free_port()
    while (following := free_port()) != port + 1:
        port = following
    return port


@contextmanager
def server(flavor: Flavor, folder: Path, *, release: str = "", program: str = "", **settings: str) -> Iterator[Server]:
    """A running server with a fresh data folder in `folder`; `settings` are server options with '_' for '-'.

    Row-based binary log, full images and full metadata, unless `settings` say otherwise. `program` is a copy of the
    server's executable that is to run in its place. At the end the folder keeps the server's log alone.
    """
    needs_setup("a database server")
    variable = _url_variable(flavor, release)
    url = os.environ.get(variable)
    if url:
        if settings:
            raise ServerMissing(f"{variable} names a running server; this needs one with {settings}")
        parts = urlsplit(url)
        yield Server(
            flavor,
            parts.port or 3306,
            parts.hostname or "127.0.0.1",
            unquote(parts.username or "root"),
            unquote(parts.password or ""),
            version=release,
        )
        return
    folder.mkdir(parents=True, exist_ok=True)
    # At most a quarter of a template is not zero, and only that is written.
    subprocess.run(["cp", "-a", "--sparse=always", _template(flavor, release), folder / "data"], check=True)
    (folder / "data" / "auto.cnf").unlink(missing_ok=True)  # each MySQL makes a server UUID of its own
    running = Server(flavor, free_port(), folder=folder, settings=settings, version=release, program=program)
    try:
        running.start()
        yield running
    finally:
        running.stop(signal.SIGKILL if os.environ.get("MENURA_TEST_FAST_STOP", "1") == "1" else signal.SIGTERM)
        for large in ("data", "tmp"):  # a whole run starts hundreds of servers, of 200 MB and more; the log stays
            shutil.rmtree(folder / large, ignore_errors=True)


def _url_variable(flavor: Flavor, version: str) -> str:
    return f"MENURA_TEST_{'_'.join([flavor, *version.split('.')]).rstrip('_').upper()}_URL"


def _command(flavor: Flavor, version: str, program: str = "") -> list[str]:
    """The server's program and what it needs to find its own files."""
    if flavor == "mariadb" and not version:
        return [_installed("mariadbd"), "--no-defaults"]
    name = f"{flavor}-{version}" if version else flavor
    root = SERVERS / name
    if not (root / "ready").exists():
        raise ServerMissing(f"no {name} server: run .ci/setup {name} as root, or set {_url_variable(flavor, version)}")
    installed = root / "usr/sbin" / ("mysqld" if flavor == "mysql" else "mariadbd")
    loader = [str(root / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", str(root / "usr/lib/x86_64-linux-gnu")]
    options = [
        f"--basedir={root}/usr",
        f"--lc-messages-dir={root}/usr/share/{'mysql' if flavor == 'mysql' else 'mariadb'}",
        f"--plugin-dir={root}/usr/lib/mysql/plugin",
        "--secure-file-priv=",
    ]
    if flavor == "mysql":
        options.append("--mysqlx=OFF")
    return [*loader, program or str(installed), "--no-defaults", *options]


def _installed(program: str) -> str:
    """Where a program of this machine's MariaDB is."""
    found = shutil.which(program) or shutil.which(program, path="/usr/bin:/usr/sbin:/usr/libexec:/usr/local/sbin")
    if found is None:
        variable = _url_variable("mariadb", "")
        raise ServerMissing(f"no {program}: run .ci/setup mariadb as root, install mariadb-server, or set {variable}")
    return found


def _template(flavor: Flavor, version: str) -> Path:
    """The data folder of a server that has just been initialised, made once; safe when two ask at the same time."""
    name = f"{flavor}-{version}" if version else flavor
    template = SERVERS / f"{name}-data"
    if template.exists():
        return template
    command = _command(flavor, version)
    draft = SERVERS / f"{name}-data.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    SERVERS.mkdir(exist_ok=True)
    if flavor == "mysql":
        made = _run([*command, "--initialize-insecure", f"--datadir={draft}", *_as_user()])
    elif version:
        made = _bootstrap(command, SERVERS / name / "usr/share/mariadb", draft)
    else:
        made = _run(
            [
                _installed("mariadb-install-db"),
                "--no-defaults",
                f"--datadir={draft}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                *_as_user(),
            ]
        )
    if made.returncode:
        raise ServerMissing(
            f"initialising a {name} data folder failed: {(made.stderr or made.stdout).decode()[-2000:]}"
        )
    try:
        draft.rename(template)
    except OSError:  # another process was first
        shutil.rmtree(draft, ignore_errors=True)
    return template


def _bootstrap(command: list[str], share: Path, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """What mariadb-install-db does, which can't run a server through another loader."""
    (folder / "mysql").mkdir(parents=True)
    scripts = [
        "mariadb_system_tables",
        "mariadb_performance_tables",
        "mariadb_system_tables_data",
        "mariadb_sys_schema",
    ]
    statements = [b"USE mysql;\nSET @auth_root_socket = NULL;\n"]
    statements += [(share / f"{script}.sql").read_bytes() for script in scripts]
    return _run([*command, "--bootstrap", f"--datadir={folder}", *_as_user()], b"".join(statements))


def _run(command: list[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    # a MariaDB that starts clears its temporary files: in a shared folder that hits the ones of other servers
    with tempfile.TemporaryDirectory() as temporary:
        return subprocess.run(
            command, input=stdin, capture_output=True, check=False, env={**os.environ, "TMPDIR": temporary}
        )


def _as_user() -> list[str]:
    return ["--user=root"] if os.getuid() == 0 else []


def _launch(running: Server) -> subprocess.Popen[bytes]:
    folder, port = running.folder, running.port
    assert folder is not None
    (folder / "tmp").mkdir(exist_ok=True)  # see _run
    options = {
        "datadir": str(folder / "data"),
        "tmpdir": str(folder / "tmp"),
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
    if running.flavor == "mysql":
        options |= {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
        # A server is up in two thirds of the time, with half of the memory; nothing here reads that schema.
        options |= {"performance_schema": "OFF", "upgrade": "NONE"}
    options |= running.settings
    arguments = [
        f"--{name.replace('_', '-')}={value}" if value != "" else f"--{name.replace('_', '-')}"
        for name, value in options.items()
    ]
    log = (folder / "server.log").open("ab")
    with log:
        return subprocess.Popen(
            [*_command(running.flavor, running.version, running.program), *arguments, *_as_user()],
            stdout=log,
            stderr=log,
            start_new_session=True,
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


def replicate(primary: Server, replica: Server, *, applies: bool = True) -> None:
    """Make an empty, running server follow `primary` from its first transaction on; its server_id is its own.

    The replica writes what it applies to its own log, unless its settings say otherwise. Without `applies` it fetches
    the log and waits for START of its SQL_THREAD.
    """
    threads = "" if applies else " IO_THREAD"
    primary.run(
        "CREATE USER IF NOT EXISTS 'follower'@'%' IDENTIFIED BY 'follower-secret'",
        "GRANT REPLICATION SLAVE ON *.* TO 'follower'@'%'",
    )
    if primary.flavor == "mysql":
        replica.run(
            "RESET BINARY LOGS AND GTIDS",
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{primary.host}', SOURCE_PORT = {primary.port}, "
            "SOURCE_USER = 'follower', SOURCE_PASSWORD = 'follower-secret', SOURCE_AUTO_POSITION = 1, "
            "GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1",
            f"START REPLICA{threads}",
        )
        return
    replica.run(
        "RESET MASTER",
        "SET GLOBAL gtid_slave_pos = ''",
        f"CHANGE MASTER TO MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, MASTER_USER = 'follower', "
        "MASTER_PASSWORD = 'follower-secret', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
        f"START SLAVE{threads}",
    )


@contextmanager
def replica_of(primary: Server, folder: Path, *, applies: bool = True, **settings: str) -> Iterator[Server]:
    """A running replica of `primary`, with `settings` of its own."""
    settings = {"server_id": "2", "log_slave_updates": "1", **settings}
    if primary.flavor == "mysql":
        settings["log_replica_updates"] = settings.pop("log_slave_updates")
    with server(primary.flavor, folder, release=primary.version, **settings) as replica:
        replicate(primary, replica, applies=applies)
        yield replica
