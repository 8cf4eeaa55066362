"""Private PostgreSQL servers for tests: real ones, on free ports, in scratch folders.

`postgresql` is the control plane's. `MENURA_TEST_POSTGRESQL_URL` (postgresql://USER:PASSWORD@HOST:PORT/postgres) is
one that runs elsewhere. There a test gets a database of its own from `PostgreSQL.fresh_database`.

`source_server` is a source's, with logical decoding; `standby_of` follows one. Where a test names no release, these are
of `MENURA_TEST_POSTGRESQL_RELEASE` or this machine's newest; one that is no package is in .servers/postgresql-RELEASE.
"""

import datetime
import fcntl
import ipaddress
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

import psycopg
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from psycopg import sql

from tests.needs import needs_setup
from tests.servers import SERVERS, ServerMissing, free_port

URL_VARIABLE = "MENURA_TEST_POSTGRESQL_URL"
RELEASE_VARIABLE = "MENURA_TEST_POSTGRESQL_RELEASE"
#: the newest release of those that `tests.postgres_releases` fetches
NEWEST = "18"
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


@dataclass
class SourceServer:
    """One whose databases are sources; users but its administrator log in with SCRAM."""

    port: int
    folder: Path
    release: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    #: the administrator, who needs no password
    user: str = "postgres"
    #: certificate of the CA that has signed the server's; with TLS alone
    ca: Path | None = None

    def connect(self, database: str = "postgres", **options: object) -> psycopg.Connection:
        """A new autocommitting connection, as the administrator unless `options` say otherwise."""
        arguments: dict[str, object] = {"user": self.user, "autocommit": True, "sslmode": "prefer", **options}
        return psycopg.connect(host=self.host, port=self.port, dbname=database, **arguments)

    def run(self, *statements: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run statements one by one, each in its transaction; the rows of the last."""
        with self.connect(database) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @property
    def version(self) -> int:
        """E.g. 150018."""
        with self.connect() as connection:
            return connection.info.server_version

    def create_database(self, name: str = "shop") -> None:
        self.run(f'CREATE DATABASE "{name}"')

    def renew_database(self, name: str = "shop", user: str = "menura") -> None:
        """Another, empty database of that name, of which the user may read what will be in schema public."""
        self.drop_slots()
        self.run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'CREATE DATABASE "{name}"')
        self.run(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {user}", database=name)

    def drop_slots(self) -> None:
        """Also those in use."""
        self.run(
            "SELECT pg_terminate_backend(active_pid, 60000) FROM pg_replication_slots WHERE active",
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",
        )

    def create_replication_user(
        self, database: str = "shop", user: str = "menura", password: str = "menura-secret"
    ) -> None:
        """Who may read what there is in schema public and will be, and replicate; no more."""
        self.run(f"CREATE ROLE {user} LOGIN REPLICATION PASSWORD '{password}'")
        self.run(
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}",
            f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {user}",
            database=database,
        )

    def start(self) -> None:
        """Start, also again in the same folder and on the same port."""
        options = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "fsync": "off",
            "wal_level": "logical",
            "max_wal_senders": "20",
            "max_replication_slots": "20",
            "shared_buffers": "32MB",
            "log_line_prefix": "%m [%p] %q%a ",
            **self.settings,
        }
        lines = [f"{name} = '{value}'" for name, value in options.items()]
        (self.folder / "data" / "menura.conf").write_text("\n".join(lines) + "\n")
        self._control("-w", "-t", START_SECONDS, "-l", self.folder / "server.log", "start")

    def stop(self, mode: str = "fast") -> None:
        """`immediate`: as a crash."""
        self._control("-w", "-t", START_SECONDS, "-m", mode, "stop")

    def reload(self) -> None:
        self._control("reload")

    def promote(self) -> None:
        """A standby."""
        self._control("-w", "-t", START_SECONDS, "promote")

    def wait_for_replay(self, standby: "SourceServer") -> None:
        """Until the standby has what is committed here."""
        end = self.run("SELECT pg_current_wal_flush_lsn()")[0][0]
        deadline = time.monotonic() + START_SECONDS
        while not standby.run(f"SELECT pg_last_wal_replay_lsn() >= '{end}'")[0][0]:
            assert time.monotonic() < deadline, f"the standby does not get to {end}"
            time.sleep(0.01)

    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    def _control(self, *words: object) -> None:
        _run(_unprivileged_user(), _binaries(self.release) / "pg_ctl", "-D", self.folder / "data", *words)


_HBA = """
local all         all                    trust
host  all         postgres  127.0.0.1/32 trust
host  replication postgres  127.0.0.1/32 trust
"""
#: so many signs of a folder's name that a socket in it has a name that a system takes
_FOLDER = "menura-pg-"


@contextmanager
def source_server(
    release: str = "", *, tls: str = "", is_other: bool = False, **settings: str
) -> Iterator[SourceServer]:
    """A running server with fresh data, and a database `shop`; `settings` are the server's.

    `tls`: it has a certificate for 127.0.0.1, and `hostssl` lets no user in without TLS, `host` lets all. `is_other`:
    it has a system identifier of its own, which takes seconds.
    """
    needs_setup("PostgreSQL")
    release = release or os.environ.get(RELEASE_VARIABLE, "")
    with _scratch() as folder:
        if is_other:
            _initialise(folder / "data", release)
        else:
            # Most of its first segment of WAL is zero.
            subprocess.run(["cp", "-R", "--sparse=always", _template(release), folder / "data"], check=True)
        running = SourceServer(free_port(), folder, release, dict(settings))
        kind = "host"
        if tls:
            kind = tls
            running.ca = _make_certificates(folder)
            running.settings |= {
                "ssl": "on",
                "ssl_cert_file": str(folder / "server.pem"),
                "ssl_key_file": str(folder / "server.key"),
            }
        (folder / "data" / "pg_hba.conf").write_text(f"{_HBA}{kind} all all 127.0.0.1/32 scram-sha-256\n")
        with (folder / "data" / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'menura.conf'\n")
        yield from _running(running)


@contextmanager
def standby_of(primary: SourceServer, *, slot: str = "", **settings: str) -> Iterator[SourceServer]:
    """A running hot standby of `primary`; `slot`: a physical slot of that name keeps the primary's WAL for it."""
    needs_setup("PostgreSQL")
    with _scratch() as folder:
        if slot:
            primary.run(f"SELECT pg_create_physical_replication_slot('{slot}')")
        _back_up(primary, folder / "data")
        own = {
            "primary_conninfo": f"host={primary.host} port={primary.port} user={primary.user} dbname=postgres",
            "primary_slot_name": slot,
            "hot_standby_feedback": "on",
            "wal_receiver_status_interval": "1",
            "wal_retrieve_retry_interval": "100ms",
            **settings,
        }
        yield from _running(SourceServer(free_port(), folder, primary.release, primary.settings | own))


def _back_up(running: SourceServer, data: Path) -> None:
    """Its files as pg_basebackup would have them, which not all packages of a server bring."""
    source = running.folder / "data"
    left_out = ("postmaster.*", "pg_wal", "pg_replslot", "pg_stat_tmp", "pgsql_tmp*")
    with running.connect() as connection:
        is_old = connection.info.server_version < 150000
        begin = "pg_start_backup('standby', true, false)" if is_old else "pg_backup_start('standby', true)"
        connection.execute(f"SELECT {begin}")
        shutil.copytree(source, data, ignore=shutil.ignore_patterns(*left_out), copy_function=_copy_if_there)
        for empty in ("pg_replslot", "pg_stat_tmp"):
            (data / empty).mkdir()
        end = "pg_stop_backup(false, false)" if is_old else "pg_backup_stop(false)"
        (label,) = connection.execute(f"SELECT labelfile FROM {end}").fetchone()
        shutil.copytree(source / "pg_wal", data / "pg_wal", copy_function=_copy_if_there)
    (data / "backup_label").write_text(label)
    (data / "standby.signal").touch()


def _copy_if_there(source: str, target: str) -> None:
    """What goes meanwhile the WAL brings, or nobody needs."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)


def _running(server: SourceServer) -> Iterator[SourceServer]:
    try:
        give_away(server.folder)
        server.start()
        yield server
    finally:
        with suppress(ServerMissing):  # it may be stopped already
            server.stop("immediate")


@contextmanager
def _scratch() -> Iterator[Path]:
    """Not below pytest's folder: another user must be able to enter it."""
    folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
    give_away(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def give_away(folder: Path) -> None:
    """All of it to whom the server runs as."""
    user = _unprivileged_user()
    if user is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


@cache
def _template(release: str) -> Path:
    """The data folder of a server that has just been initialised and has a database `shop`; made once per checkout."""
    SERVERS.mkdir(exist_ok=True)
    template = SERVERS / f"postgresql-{release or 'newest'}-data"
    with (SERVERS / f"{template.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if template.exists():
            return template
        with _scratch() as folder:
            data = folder / "data"
            _initialise(data, release)
            draft = SERVERS / f"{template.name}.{os.getpid()}"
            shutil.rmtree(draft, ignore_errors=True)
            shutil.copytree(data, draft, symlinks=True)
            draft.rename(template)
    return template


def _initialise(data: Path, release: str) -> None:
    binaries, user = _binaries(release), _unprivileged_user()
    locale = ("--locale=C.UTF-8", "-E", "UTF8")
    _run(user, binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", *locale, "-N")
    alone = (binaries / "postgres", "--single", "-D", data, "-c", "fsync=off", "postgres")
    _run(user, *alone, stdin=b"CREATE DATABASE shop;\n")


def _make_certificates(folder: Path) -> Path:
    """ca.pem; by it server.pem with server.key for 127.0.0.1, and client.pem with client.key for the user `menura`."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    _write_certificate(
        folder / "ca", authority, authority_key, authority, authority_key, x509.BasicConstraints(True, None)
    )
    alone = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    for name, subject, extension in (
        ("server", "server", alone),
        ("client", "menura", x509.BasicConstraints(False, None)),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        common = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        _write_certificate(folder / name, common, key, authority, authority_key, extension)
    return folder / "ca.pem"


def _write_certificate(
    path: Path,
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> None:
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        .sign(issuer_key, hashes.SHA256())
    )
    path.with_suffix(".pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.with_suffix(".key").write_bytes(private)
    path.with_suffix(".key").chmod(0o600)


def _binaries(release: str = "") -> Path:
    if release:
        places = (Path(f"/usr/lib/postgresql/{release}/bin"), SERVERS / f"postgresql-{release}" / "bin")
        chosen = next((place for place in places if (place / "initdb").exists()), None)
        if chosen is None:
            raise ServerMissing(f"no PostgreSQL {release} in {' or '.join(map(str, places))}")
        return chosen
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


def _run(user: pwd.struct_passwd | None, *command: object, stdin: bytes = b"") -> None:
    identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    arguments = [str(word) for word in command]
    # The server inherits the output: a pipe would never end.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(arguments, input=stdin, stdout=output, stderr=output, cwd="/", check=False, **identity)
        if done.returncode:
            output.seek(0)
            raise ServerMissing(f"{arguments[0]} failed: {output.read().decode(errors='replace')[-2000:]}")
