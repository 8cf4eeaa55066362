"""What is to be checked of a PostgreSQL server, over gathered `ServerFacts`. Pure: see `menura.doctor`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from menura.doctor import Checks, Verdict, failed, ok, unknown, warning
from menura.errors import MenuraError

from agent.sources.postgresql.errors import PublicationLacking, TablesUnidentified
from agent.sources.postgresql.server.connection import OLDEST_VERSION
from agent.sources.postgresql.server.quoting import quoted
from agent.sources.postgresql.server.slot import WAL_LEVEL_REMEDY

checks = Checks["ServerFacts"]()

MOST_SKEW_US = 5_000_000
LEAST_CONNECTIONS = 10
#: of the oldest transaction: a slot can't be made, and rows can't be cleaned up, while one runs
MOST_TRANSACTION_SECONDS = 3_600
LEAST_SENDER_TIMEOUT_MS = 30_000
KINDS = "insert, update, delete, truncate"


@dataclass(frozen=True, slots=True)
class Transaction:
    """Of a session that is not the agent's."""

    pid: int
    user: str
    application: str
    #: as a timestamptz is written, to the microsecond
    begun: str
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """None: could not be asked."""

    #: e.g. 150018
    version: int
    version_text: str
    is_standby: bool
    #: of the session, in the units of pg_settings, by name
    settings: Mapping[str, str]
    #: of the agent's role
    role: str
    is_superuser: bool
    #: has the attribute REPLICATION, or is a member of a managed service's role that stands for it
    may_replicate: bool
    slots: int
    senders: int
    connections: int
    #: empty: there is none yet
    slot: str
    slot_status: str
    slot_reason: str
    publication: str
    #: of it; None: there is none
    publishes: frozenset[str] | None
    via_root: bool
    #: what would keep tables from being synced, of `server.checks.advice`; None: could not be asked
    findings: Sequence[MenuraError] | None
    #: of those that this role sees; None: none runs
    oldest_transaction: Transaction | None
    skew_us: int
    is_encrypted: bool
    is_this_host: bool
    #: of the configuration, e.g. sources.shop.client
    setting: str


def _run(statement: str) -> str:
    return f"Run on the server: {statement}"


def _alter(name: str, value: str, *, restart: bool = False) -> str:
    then = "; and restart it" if restart else "; SELECT pg_reload_conf()"
    return _run(f"ALTER SYSTEM SET {name} = '{value}'") + then


def _expected(facts: ServerFacts, name: str, value: str, verdict: Callable[[str, str], Verdict], fix: str) -> Verdict:
    """A server that does not know the setting has the value."""
    found = facts.settings.get(name, value)
    return ok(f"{name} is {found}") if found == value else verdict(f"{name} is {found}", fix)


@checks("version", "Older servers send changes in ways that were never tried.")
def version(facts: ServerFacts) -> Verdict:
    if facts.version >= OLDEST_VERSION:
        return ok(f"PostgreSQL {facts.version_text}")
    return failed(f"PostgreSQL {facts.version_text}", f"Upgrade the server to {OLDEST_VERSION // 10_000} or later")


@checks("wal-level", "Without logical decoding the server gives no changes.")
def wal_level(facts: ServerFacts) -> Verdict:
    return _expected(facts, "wal_level", "logical", failed, WAL_LEVEL_REMEDY)


@checks("slots", "The agent's stream needs a slot of its own.")
def slots(facts: ServerFacts) -> Verdict:
    most = int(facts.settings["max_replication_slots"])
    found = f"{facts.slots} of {most} replication slots are taken"
    if facts.slots < most or facts.slot_status:
        return ok(found)
    return failed(found, _alter("max_replication_slots", str(most + 10), restart=True))


@checks("senders", "The agent's stream needs a process of the server that sends.")
def senders(facts: ServerFacts) -> Verdict:
    most = int(facts.settings["max_wal_senders"])
    found = f"{facts.senders} of {most} WAL senders are taken"
    if facts.senders < most:
        return ok(found)
    return failed(found, _alter("max_wal_senders", str(most + 10), restart=True))


@checks("slot", "What the slot has lost can't be read any more: tables go on behind a gap, with a dump.")
def slot(facts: ServerFacts) -> Verdict:
    if not facts.slot_status:
        return ok("the agent has no slot yet: it makes one when a sync begins")
    found = f"slot {facts.slot} is {facts.slot_status}" + (f", {facts.slot_reason}" if facts.slot_reason else "")
    if facts.slot_status == "lost" or facts.slot_reason:
        return failed(found, _run(f"SELECT pg_drop_replication_slot('{facts.slot}')"))
    if facts.slot_status in ("unreserved", "extended"):
        return warning(found, "Start the agent; where it runs, its log says why it does not read")
    return ok(found)


@checks("slot-bound", "Without a bound an agent that is away fills the server's disk, and the server stops.")
def slot_bound(facts: ServerFacts) -> Verdict:
    megabytes = int(facts.settings.get("max_slot_wal_keep_size", "-1"))
    if megabytes >= 0:
        return ok(f"max_slot_wal_keep_size is {megabytes} MB")
    return warning("max_slot_wal_keep_size is without a bound", _alter("max_slot_wal_keep_size", "100GB"))


@checks("slot-idle", "A slot that the server drops while the agent is away is a gap.")
def slot_idle(facts: ServerFacts) -> Verdict:
    fix = _alter("idle_replication_slot_timeout", "0")
    return _expected(facts, "idle_replication_slot_timeout", "0", warning, fix)


@checks("sender-timeout", "A server that gives up soon ends the stream of an agent that is only busy.")
def sender_timeout(facts: ServerFacts) -> Verdict:
    found = int(facts.settings["wal_sender_timeout"])
    if found == 0 or found >= LEAST_SENDER_TIMEOUT_MS:
        return ok(f"wal_sender_timeout is {found} ms")
    return warning(f"wal_sender_timeout is {found} ms", _alter("wal_sender_timeout", "60s"))


@checks("durable-log", "After a crash a server without fsync can lack transactions that the lake has.")
def durable_log(facts: ServerFacts) -> Verdict:
    return _expected(facts, "fsync", "on", failed, _alter("fsync", "on"))


@checks("whole-pages", "After a crash pages that were written in part are lost.")
def whole_pages(facts: ServerFacts) -> Verdict:
    return _expected(facts, "full_page_writes", "on", failed, _alter("full_page_writes", "on"))


@checks("standby-feedback", "Without it a standby ends long reads of a dump, whose chunks are then read again.")
def standby_feedback(facts: ServerFacts) -> Verdict:
    if not facts.is_standby:
        return ok("the server is no standby")
    return _expected(facts, "hot_standby_feedback", "on", warning, _alter("hot_standby_feedback", "on"))


@checks("decoding-memory", "Transactions above it are kept on the server's disk until they commit, at half the speed.")
def decoding_memory(facts: ServerFacts) -> Verdict:
    kilobytes = int(facts.settings["logical_decoding_work_mem"])
    if kilobytes >= 64 << 10:
        return ok(f"logical_decoding_work_mem is {kilobytes >> 10} MB")
    return warning(f"logical_decoding_work_mem is {kilobytes} kB", _alter("logical_decoding_work_mem", "64MB"))


@checks("grant-replication", "It lets the agent have changes sent.")
def grant_replication(facts: ServerFacts) -> Verdict:
    role = quoted(facts.role)
    if facts.may_replicate or facts.is_superuser:
        return ok(f"{role} may replicate")
    return failed(f"{role} lacks REPLICATION", _run(f"ALTER ROLE {role} REPLICATION"))


@checks("grants-too-many", "Who takes the agent's password can do all that its role may.")
def grants_too_many(facts: ServerFacts) -> Verdict:
    role = quoted(facts.role)
    if not facts.is_superuser:
        return ok(f"{role} is no superuser")
    return warning(f"{role} is a superuser", _run(f"ALTER ROLE {role} NOSUPERUSER REPLICATION"))


@checks("publication", "The server sends changes of published tables alone.")
def publication(facts: ServerFacts) -> Verdict:
    name = quoted(facts.publication)
    if facts.publishes is not None:
        return ok(f"there is a publication {name}")
    statement = f"CREATE PUBLICATION {name} WITH (publish_via_partition_root = true)"
    return warning(f"there is no publication {name}; the agent makes it where its role may", _run(statement))


@checks("publication-kinds", "What a publication leaves out never reaches the lake.")
def publication_kinds(facts: ServerFacts) -> Verdict:
    lacking = [kind for kind in KINDS.split(", ") if facts.publishes is not None and kind not in facts.publishes]
    if not lacking:
        return ok(f"it publishes {KINDS}")
    statement = f"ALTER PUBLICATION {quoted(facts.publication)} SET (publish = '{KINDS}')"
    return failed(f"it leaves out {', '.join(lacking)}", _run(statement))


@checks("publication-root", "Without it rows of a partitioned table come as those of its partitions.")
def publication_root(facts: ServerFacts) -> Verdict:
    if facts.publishes is None or facts.via_root:
        return ok("rows of partitions are published as their table's")
    statement = f"ALTER PUBLICATION {quoted(facts.publication)} SET (publish_via_partition_root = true)"
    return warning("rows of partitions are published as the partitions'", _run(statement))


def _found(facts: ServerFacts, are_there: Callable[[MenuraError], bool], well: str) -> Verdict:
    if facts.findings is None:
        return unknown("the tables could not be looked at")
    found = [error for error in facts.findings if are_there(error)]
    if not found:
        return ok(well)
    return warning("; ".join(error.found for error in found), "; ".join(error.remedy for error in found))


@checks("tables-published", "The server sends no changes of a table that is not published; its sync stops.")
def tables_published(facts: ServerFacts) -> Verdict:
    return _found(facts, lambda error: isinstance(error, PublicationLacking), "each is, or the agent may add it")


@checks("replica-identity", "Nothing says which row an UPDATE or DELETE is of; the server refuses them once published.")
def replica_identity(facts: ServerFacts) -> Verdict:
    return _found(facts, lambda error: isinstance(error, TablesUnidentified), "rows of each table can be told apart")


@checks("grant-select", "It lets the agent read rows that tables had before their sync began.")
def grant_select(facts: ServerFacts) -> Verdict:
    others = (PublicationLacking, TablesUnidentified)
    return _found(facts, lambda error: not isinstance(error, others), f"{quoted(facts.role)} may read each table")


@checks("transactions", "A slot is made once all transactions of before have ended, and they keep old rows and WAL.")
def transactions(facts: ServerFacts) -> Verdict:
    oldest = facts.oldest_transaction
    if oldest is None:
        return ok("no transaction that this role sees runs")
    whose = f"pid {oldest.pid}, {oldest.application or 'without a name'}, of {oldest.user}"
    found = f"the oldest transaction has run for {oldest.seconds} s: {whose}"
    if oldest.seconds <= MOST_TRANSACTION_SECONDS:
        return ok(found)
    session = f"FROM pg_stat_activity WHERE pid = {oldest.pid}"
    end = f"SELECT pg_terminate_backend(pid) {session} AND xact_start = '{oldest.begun}'"
    return warning(found, f"{_run(f'SELECT * {session}')}; where nobody needs what it does: {end}")


@checks("connections", "An agent that gets no connection reads nothing; dumps take one for each worker.")
def connections(facts: ServerFacts) -> Verdict:
    most = int(facts.settings["max_connections"])
    found = f"{facts.connections} of {most} connections are taken"
    if most - facts.connections >= LEAST_CONNECTIONS:
        return ok(found)
    return warning(found, _alter("max_connections", str(2 * most), restart=True))


@checks("encrypted", "In the clear, whoever is on the way reads rows and can change them.")
def encrypted(facts: ServerFacts) -> Verdict:
    if facts.is_encrypted or facts.is_this_host:
        return ok("by TLS" if facts.is_encrypted else "the server is on this host")
    return failed("the connection is in the clear", f"Set {facts.setting}.tls: {{mode: verify-full, ca: FILE}}")


@checks("clock", "Lag and freshness compare the server's clock with others'.")
def clock(facts: ServerFacts) -> Verdict:
    found = f"the server's clock is {abs(facts.skew_us) / 1e6:.1f} s {'ahead' if facts.skew_us > 0 else 'behind'}"
    if abs(facts.skew_us) <= MOST_SKEW_US:
        return ok(found)
    return warning(found, "Run on the server's host and on this one: timedatectl set-ntp true")
