"""The receiving side's part of `menura doctor`: database, landing, and the host of gateway and API.

`checks` are pure; `gather` asks. Nothing is migrated: a database of a former revision is left as it is.
"""

import resource
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from menura.doctor import Asked, Checks, Finding, Verdict, clock, failed, ok, room, unknown, warning
from menura.host_facts import clock_is_synchronised, free_bytes
from menura.landing import IDENTITY_PATH, LandingFormatError, decode_identity
from menura.stores import examination
from menura.stores.opening import open_store
from menura.stores.options import StorageOptions, parse
from menura.stores.store import StoreUnusable
from sqlalchemy import Connection, inspect, make_url, text

from controlplane_api.database import Database, existing_database
from controlplane_api.errors import ControlPlaneError, RequestInvalid
from controlplane_api.migrating import alembic_config

checks = Checks["CentreFacts"]()

LEAST_OPEN_FILES = 4_096
LEAST_FREE_BYTES = 1 << 30
LEAST_CONNECTIONS = 20
MOST_SKEW_US = 5_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CentreFacts:
    """None: could not be asked, or not named."""

    #: without its password
    database: str
    #: why it can't be used; empty: it can
    database_error: str = ""
    is_sqlite: bool = False
    #: of its migrations; empty: it has none yet
    revision: str = ""
    head: str = ""
    #: that this version knows
    is_known: bool = True
    gateways: int | None = None
    #: its clock less this host's
    skew_us: int | None = None
    connections: int | None = None
    most_connections: int | None = None
    #: of a file's disk
    database_free_bytes: int | None = None
    #: that the database follows, and that the landing has; empty: none yet
    followed: Sequence[str] = ()
    landing: str | None = None
    landing_error: str = ""
    open_files: int = 0
    clock_is_synchronised: bool | None = None
    scratch: str = ""
    scratch_free_bytes: int | None = None
    #: addresses that are to be free and are taken
    taken: Sequence[str] = ()


@checks("database-answers", "Gateways commit nothing, and the API answers nothing, without it.")
def database_answers(facts: CentreFacts) -> Verdict:
    if not facts.database_error:
        return ok(f"{facts.database} answers")
    return failed(facts.database_error, "Start the database, or correct --database and its user's password and rights")


@checks("database-revision", "A process of another version refuses to start, or migrates the database.")
def database_revision(facts: CentreFacts) -> Verdict:
    if facts.database_error:
        return unknown("the database does not answer")
    if not facts.is_known:
        return failed(f"revision {facts.revision} is of a newer version", "pip install --upgrade menura")
    if facts.revision == facts.head:
        return ok(f"revision {facts.head}")
    found = f"revision {facts.revision}, and this version's is {facts.head}" if facts.revision else "it is empty"
    return warning(found, "Start the API or a gateway of this version, which brings it to its revision")


@checks("database-kind", "Several gateways hear of each other's changes by PostgreSQL alone, and SQLite is one file.")
def database_kind(facts: CentreFacts) -> Verdict:
    if facts.gateways is None:
        return unknown("gateways could not be counted")
    if not facts.is_sqlite or facts.gateways <= 1:
        return ok("SQLite, and one gateway" if facts.is_sqlite else "PostgreSQL")
    return failed(
        f"{facts.gateways} gateways have one SQLite file", "Set --database to postgresql://... for all of them"
    )


@checks("database-disk", "On a full disk nothing is committed, and agents wait.")
def database_disk(facts: CentreFacts) -> Verdict:
    if not facts.is_sqlite:
        return ok("it is no file of this host")
    fix = "Free 1 GiB of the disk of the database's file"
    return room(facts.database_free_bytes, LEAST_FREE_BYTES, "free on its disk", fix)


@checks("database-connections", "Each gateway and API process takes up to 20 connections.")
def database_connections(facts: CentreFacts) -> Verdict:
    if facts.is_sqlite:
        return ok("a file has no limit of connections")
    if facts.connections is None or facts.most_connections is None:
        return unknown("connections could not be counted")
    found = f"{facts.connections} of {facts.most_connections} connections are taken"
    if facts.most_connections - facts.connections >= LEAST_CONNECTIONS:
        return ok(found)
    more = 2 * facts.most_connections
    return warning(found, f"Run on the database, and restart it: ALTER SYSTEM SET max_connections = {more}")


@checks("database-clock", "Leases, presence and lag compare the database's clock with this host's.")
def database_clock(facts: CentreFacts) -> Verdict:
    if facts.skew_us is None:
        return unknown("its clock could not be asked")
    found = f"its clock is {abs(facts.skew_us) / 1e6:.1f} s {'ahead' if facts.skew_us > 0 else 'behind'}"
    if abs(facts.skew_us) <= MOST_SKEW_US:
        return ok(found)
    return warning(found, "Run on both hosts: timedatectl set-ntp true")


@checks("landing-identity", "A database that goes on with another landing's numbers mixes two histories.")
def landing_identity(facts: CentreFacts) -> Verdict:
    if facts.landing_error:
        return failed(facts.landing_error, f"Restore {IDENTITY_PATH} as it was, or start the version that made it")
    if facts.landing is None or facts.database_error:
        return unknown("database and landing were not both asked")
    if not facts.followed or facts.landing in facts.followed:
        return ok("the database follows this landing" if facts.followed else "the database follows no landing yet")
    found = f"it is landing {facts.landing or '(none)'}, and the database follows {', '.join(facts.followed)}"
    return failed(found, "Set --landing to the one that the database follows; a new landing needs a new database")


@checks("open-files", "Each agent's connection and each file that is written takes one.")
def open_files(facts: CentreFacts) -> Verdict:
    if facts.open_files >= LEAST_OPEN_FILES:
        return ok(f"{facts.open_files} files may be open")
    fix = f"Add LimitNOFILE={LEAST_OPEN_FILES} to [Service] of the unit, or run: ulimit -n {LEAST_OPEN_FILES}"
    return warning(f"{facts.open_files} files may be open", fix)


@checks("clock-synchronised", "A clock that nobody sets runs away, and certificates and leases are judged by it.")
def clock_synchronised(facts: CentreFacts) -> Verdict:
    return clock(facts.clock_is_synchronised)


@checks("scratch-disk", "Uploads and Spark keep files there for a while.")
def scratch_disk(facts: CentreFacts) -> Verdict:
    fix = "export TMPDIR=FOLDER, on a disk with 1 GiB free"
    return room(facts.scratch_free_bytes, LEAST_FREE_BYTES, f"free below {facts.scratch}", fix)


@checks("ports", "Who finds its port taken does not start.")
def ports(facts: CentreFacts) -> Verdict:
    if not facts.taken:
        return ok("no address that is to be free is taken")
    port = facts.taken[0].rpartition(":")[2]
    return failed(
        f"taken: {', '.join(facts.taken)}", f"See who has it, and end it or choose another: ss -ltnp sport = :{port}"
    )


def examine(asked: Asked) -> list[Finding]:
    """Raises `RequestInvalid`."""
    if not asked.database and not asked.landing and not asked.listen:
        return []
    try:
        options = parse(asked.storage_options)
    except StoreUnusable as wrong:
        raise RequestInvalid("reading --storage-option", str(wrong), remedy="Give KEY=VALUE.") from wrong
    facts = gather(asked, options)
    found = [each for each in checks.of("receiving side", facts) if _is_named(each.check, asked, facts)]
    return found + (examination.examine("landing", asked.landing, options) if asked.landing else [])


def _is_named(check: str, asked: Asked, facts: CentreFacts) -> bool:
    """Whether the command line has named what the check is of."""
    if check == "landing-identity":
        return bool(facts.landing_error or (asked.database and asked.landing))
    return bool(asked.database) or not check.startswith("database")


def gather(asked: Asked, options: StorageOptions) -> CentreFacts:
    facts = _of_host(asked)
    landing, landing_error = _landing(asked.landing, options) if asked.landing else (None, "")
    facts |= {"landing": landing, "landing_error": landing_error}
    if not asked.database:
        return CentreFacts(database="", **facts)  # type: ignore[arg-type]
    try:
        database = existing_database(asked.database)
    except ControlPlaneError as unusable:
        return CentreFacts(database="", database_error=unusable.found, **facts)  # type: ignore[arg-type]
    try:
        with database.read() as connection:
            facts |= _of_database(connection, database)
    except ControlPlaneError as unusable:
        facts["database_error"] = unusable.found
    finally:
        database.close()
    return CentreFacts(database=database.shown_url, **facts)  # type: ignore[arg-type]


def _of_host(asked: Asked) -> dict[str, object]:
    scratch = tempfile.gettempdir()
    return {
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],  # which a gateway uses, see `menura.open_files`
        "clock_is_synchronised": clock_is_synchronised(),
        "scratch": scratch,
        "scratch_free_bytes": free_bytes(Path(scratch)),
        "taken": tuple(address for address in asked.listen if _is_taken(address)),
    }


def _is_taken(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        raise RequestInvalid("reading --listen", f"{address!r} is not HOST:PORT", remedy="Give e.g. 127.0.0.1:7070.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host.strip("[]"), int(port)))
        except OSError:
            return True
    return False


def _landing(url: str, options: StorageOptions) -> tuple[str | None, str]:
    """Which one it is, '' for a new one, and why that can't be read."""
    try:
        document = open_store(url, options).read(IDENTITY_PATH)
        return ("" if document is None else decode_identity(document).landing), ""
    except LandingFormatError as broken:
        return None, str(broken)
    except (StoreUnusable, OSError):  # the store's own checks say why
        return None, ""


def _of_database(connection: Connection, database: Database) -> dict[str, object]:
    scripts = ScriptDirectory.from_config(alembic_config())
    revision = MigrationContext.configure(connection).get_current_revision() or ""
    known = {script.revision for script in scripts.walk_revisions()}
    is_sqlite = connection.dialect.name == "sqlite"
    facts: dict[str, object] = {
        "is_sqlite": is_sqlite,
        "revision": revision,
        "head": scripts.get_current_head() or "",
        "is_known": not revision or revision in known,
    }
    tables = inspect(connection).get_table_names()
    if "gateway" in tables and "landing" in tables:
        now = time.time_ns() // 1000
        live = text("SELECT count(*) FROM gateway WHERE expires_at_us > :now")
        facts["gateways"] = connection.execute(live, {"now": now}).scalar_one()
        names = connection.execute(text("SELECT coalesce(identity, url) FROM landing")).scalars()
        facts["followed"] = tuple(map(str, names))
    else:
        facts["gateways"] = 0
    return facts | (_of_sqlite(database) if is_sqlite else _of_server(connection))


def _of_sqlite(database: Database) -> dict[str, object]:
    file = Path(str(make_url(database.engine.url).database))
    return {"database_free_bytes": free_bytes(file.parent), "skew_us": 0}


def _of_server(connection: Connection) -> dict[str, object]:
    before = time.time_ns() // 1000
    asked = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    server_us = int(connection.execute(text(asked)).scalar_one())
    counted = "SELECT (SELECT count(*) FROM pg_stat_activity), current_setting('max_connections')::int"
    connections, most = connection.execute(text(counted)).one()
    return {
        "skew_us": server_us - (before + time.time_ns() // 1000) // 2,
        "connections": int(connections),
        "most_connections": int(most),
    }
