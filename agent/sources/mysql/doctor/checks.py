"""What is to be checked of a MySQL or MariaDB server, over gathered `ServerFacts`. Pure: see `menura.doctor`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from menura.doctor import Checks, Verdict, failed, ok, unknown, warning

from agent.sources.mysql.doctor.grants import GLOBAL
from agent.sources.mysql.server.checks import LOG_BIN_REMEDY
from agent.sources.mysql.server.quoting import quoted
from agent.sources.mysql.server.transaction_precise import PreciseTable
from agent.table_positions import Table

checks = Checks["ServerFacts"]()

DAY_SECONDS = 86_400
#: a dump that is longer than the log is kept ends with a gap
LEAST_RETENTION_SECONDS = 3 * DAY_SECONDS
MOST_SKEW_US = 5_000_000
LEAST_CERTIFICATE_DAYS = 14
LEAST_CONNECTIONS = 10
#: tables, or privileges, that one finding names
NAMED = 5
OLDEST = {"mysql": (8, 0), "mariadb": (10, 5)}
#: what the agent has use for; LOCK TABLES for dumps of a MySQL server without GTIDs
_NEEDED = frozenset({"USAGE", "SELECT", "REPLICATION SLAVE", "REPLICATION CLIENT", "SLAVE MONITOR", "LOCK TABLES"})
#: towards GTIDs while a server works: from a value to the next one, its lines in my.cnf, and what has to be so before
_CONSISTENCY = {
    "OFF": ("WARN", "", ""),
    "WARN": (
        "ON",
        "enforce_gtid_consistency=ON",
        "Wait until a usual day has left no warning of GTID consistency in the server's error log",
    ),
}
_GTID_MODE = {
    "OFF": ("OFF_PERMISSIVE", "", ""),
    "OFF_PERMISSIVE": ("ON_PERMISSIVE", "", "Wait until its primary and replicas have OFF_PERMISSIVE too"),
    "ON_PERMISSIVE": (
        "ON",
        "gtid_mode=ON, enforce_gtid_consistency=ON",
        "Wait until its primary and replicas have ON_PERMISSIVE too, Ongoing_anonymous_transaction_count of SHOW STATUS"
        " is 0 on each, and the replicas have applied what was logged before",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """None: could not be asked."""

    flavor: str
    version: tuple[int, int]
    #: global ones, by name
    variables: Mapping[str, str]
    #: of the agent's account, by scope
    privileges: Mapping[str, frozenset[str]]
    #: as GRANT calls it
    account: str
    #: with which the agent reads the log
    replica_id: int
    #: its clock less this host's
    skew_us: int | None
    #: it applies another server's log
    is_replica: bool | None
    #: databases that are logged, or not; empty: all are
    logged_databases: str | None
    ignored_databases: str | None
    #: of those that this account sees and the filter lets through
    keyless_tables: tuple[Table, ...] | None
    untransactional_tables: tuple[Table, ...] | None
    #: of the whole server, as far as this account sees them
    precise_tables: tuple[PreciseTable, ...]
    connections: int | None
    #: of this connection; empty: it is in the clear
    cipher: str
    certificate_days: int | None
    is_this_host: bool
    #: of the configuration, e.g. sources.shop.client
    setting: str

    def has(self, privilege: str) -> bool:
        held = self.privileges.get(GLOBAL, frozenset())
        return privilege in held or "ALL PRIVILEGES" in held


def _run(statement: str, line: str = "") -> str:
    return f"Run on the server: {statement}" + (f"; add {line} to [mysqld] in my.cnf" if line else "")


def _set(name: str, value: str) -> str:
    quoted = value if value.isdigit() else f"'{value}'"
    return _run(f"SET GLOBAL {name} = {quoted}", f"{name}={value}")


def _expected(
    facts: ServerFacts, name: str, value: str, verdict: Callable[[str, str], Verdict], fix: str, absent: str | None
) -> Verdict:
    """`absent`: what a server has that does not know the variable; None: the value."""
    found = facts.variables.get(name, value if absent is None else absent)
    return ok(f"{name} is {found}") if found.upper() == value.upper() else verdict(f"{name} is {found or 'empty'}", fix)


@checks("version", "Older servers write logs of which some events were never tried.")
def version(facts: ServerFacts) -> Verdict:
    oldest, found = OLDEST[facts.flavor], ".".join(map(str, facts.version))
    if facts.version >= oldest:
        return ok(f"{facts.flavor} {found}")
    return failed(f"{facts.flavor} {found}", f"Upgrade the server to {'.'.join(map(str, oldest))} or later")


@checks("log-bin", "Without a binary log there is nothing to read changes from.")
def log_bin(facts: ServerFacts) -> Verdict:
    return _expected(facts, "log_bin", "ON", failed, LOG_BIN_REMEDY, None)


@checks("binlog-format", "Statements in the log do not say which rows they changed; their tables stop.")
def binlog_format(facts: ServerFacts) -> Verdict:
    fix = _set("binlog_format", "ROW") + " and reconnect its clients"
    return _expected(facts, "binlog_format", "ROW", failed, fix, None)


@checks("binlog-row-image", "With partial images changes lack columns, which the lake has to find in what it holds.")
def binlog_row_image(facts: ServerFacts) -> Verdict:
    fix = _set("binlog_row_image", "FULL") + " and reconnect its clients"
    return _expected(facts, "binlog_row_image", "FULL", warning, fix, None)


@checks("binlog-row-value-options", "Partial JSON values need the value before, which only whole images hold.")
def binlog_row_value_options(facts: ServerFacts) -> Verdict:
    options = facts.variables.get("binlog_row_value_options", "")
    if not options or facts.variables.get("binlog_row_image", "FULL").upper() == "FULL":
        return ok(f"binlog_row_value_options is {options or 'empty'}")
    fix = _run("SET GLOBAL binlog_row_value_options = ''", "binlog_row_value_options=") + " and reconnect its clients"
    return failed(f"binlog_row_value_options is {options} with partial images", fix)


@checks("binlog-row-metadata", "With FULL the log itself says what columns are called; else the agent keeps a history.")
def binlog_row_metadata(facts: ServerFacts) -> Verdict:
    return _expected(facts, "binlog_row_metadata", "FULL", warning, _set("binlog_row_metadata", "FULL"), "MINIMAL")


@checks("binlog-checksum", "Without a checksum bytes that were damaged on their way are found late, or not.")
def binlog_checksum(facts: ServerFacts) -> Verdict:
    return _expected(facts, "binlog_checksum", "CRC32", warning, _set("binlog_checksum", "CRC32"), None)


@checks("binlog-retention", "What the log loses while an agent is away, or while a dump runs, is a gap.")
def binlog_retention(facts: ServerFacts) -> Verdict:
    variables = facts.variables
    seconds = int(variables.get("binlog_expire_logs_seconds") or 0)
    seconds = seconds or round(float(variables.get("expire_logs_days") or 0) * DAY_SECONDS)
    if not seconds or variables.get("binlog_expire_logs_auto_purge", "ON").upper() == "OFF":
        return ok("the server removes no log by its age")
    if seconds >= LEAST_RETENTION_SECONDS:
        return ok(f"logs are kept for {seconds / DAY_SECONDS:.1f} days")
    has_seconds = "binlog_expire_logs_seconds" in variables  # MariaDB from 10.6 on
    fix = _set("binlog_expire_logs_seconds", str(7 * DAY_SECONDS)) if has_seconds else _set("expire_logs_days", "7")
    return warning(f"logs are kept for {seconds / DAY_SECONDS:.1f} days", fix)


@checks("binlog-databases", "Changes of databases that the server does not log never arrive, and nobody sees that.")
def binlog_databases(facts: ServerFacts) -> Verdict:
    if facts.logged_databases is None or facts.ignored_databases is None:
        return unknown("the end of the log could not be asked for", _grant(facts, "REPLICATION CLIENT"))
    if not facts.logged_databases and not facts.ignored_databases:
        return ok("all databases are logged")
    found = (
        f"binlog_do_db is {facts.logged_databases or 'empty'}, binlog_ignore_db {facts.ignored_databases or 'empty'}"
    )
    return failed(found, "Start the server without binlog_do_db and binlog_ignore_db")


@checks("server-id", "A server without a number can't be read by replicas.")
def server_id(facts: ServerFacts) -> Verdict:
    found = int(facts.variables.get("server_id") or 0)
    return ok(f"server_id is {found}") if found else failed("server_id is 0", _set("server_id", "1"))


@checks("replica-id", "Two replicas with one number throw each other out again and again.")
def replica_id(facts: ServerFacts) -> Verdict:
    if int(facts.variables.get("server_id") or 0) != facts.replica_id:
        return ok(f"the agent reads as replica {facts.replica_id}")
    source = facts.setting.rpartition(".")[0]
    return failed(
        f"the server itself has the agent's number {facts.replica_id}",
        f"Set {source}.server_id to a number that no server and no other replica has",
    )


@checks("gtids", "Without GTIDs positions are file and offset, which mean nothing on another server after a failover.")
def gtids(facts: ServerFacts) -> Verdict:
    if facts.flavor == "mariadb":
        return ok("MariaDB always has GTIDs")
    found = facts.variables.get("gtid_mode", "OFF")
    if found.upper() == "ON":
        return ok("gtid_mode is ON")
    return warning(f"gtid_mode is {found}", _next_gtid_step(facts))


def _next_gtid_step(facts: ServerFacts) -> str:
    """One alone: who takes the next one too early has statements refused, or replicas that stop."""
    name, values = "enforce_gtid_consistency", _CONSISTENCY
    if facts.variables.get(name, "OFF").upper() == "ON":
        name, values = "gtid_mode", _GTID_MODE
    value, lines, before = values[facts.variables.get(name, "OFF").upper()]
    fix = _run(f"SET GLOBAL {name} = '{value}'", lines)
    fix = f"{before}. {fix}" if before else fix
    return fix if (name, value) == ("gtid_mode", "ON") else f"{fix}; then menura doctor says the next step"


@checks("gtid-strictness", "With GTIDs that may go back, or transactions without one, a failover can lose its place.")
def gtid_strictness(facts: ServerFacts) -> Verdict:
    if facts.flavor == "mariadb":
        return _expected(facts, "gtid_strict_mode", "ON", warning, _set("gtid_strict_mode", "ON"), "OFF")
    found = facts.variables.get("enforce_gtid_consistency", "OFF")
    told = f"enforce_gtid_consistency is {found}"
    return ok(told) if found.upper() == "ON" else warning(told, _next_gtid_step(facts))


@checks("replica-logs", "A replica that does not log what it applies has none of its primary's changes in its log.")
def replica_logs(facts: ServerFacts) -> Verdict:
    if facts.is_replica is None:
        return unknown("whether it is a replica could not be asked", _grant(facts, _monitor(facts)))
    if not facts.is_replica:
        return ok("the server is no replica")
    name = "log_slave_updates" if facts.flavor == "mariadb" else "log_replica_updates"
    fix = f"Start the server with {name}=ON"
    return _expected(facts, name, "ON", failed, fix, facts.variables.get("log_slave_updates"))


@checks("durable-log", "After a crash a log that was not flushed lacks transactions that were read, or has them anew.")
def durable_log(facts: ServerFacts) -> Verdict:
    return _expected(facts, "sync_binlog", "1", warning, _set("sync_binlog", "1"), None)


@checks("durable-rows", "After a crash tables that were not flushed lack rows that the log, and so the lake, have.")
def durable_rows(facts: ServerFacts) -> Verdict:
    name = "innodb_flush_log_at_trx_commit"
    return _expected(facts, name, "1", warning, _set(name, "1"), None)


def _grant(facts: ServerFacts, privilege: str) -> str:
    return _run(f"GRANT {privilege} ON *.* TO {facts.account}")


def _monitor(facts: ServerFacts) -> str:
    return "REPLICA MONITOR" if facts.flavor == "mariadb" else "REPLICATION CLIENT"


def _status(facts: ServerFacts) -> str:
    return "BINLOG MONITOR" if facts.flavor == "mariadb" else "REPLICATION CLIENT"


@checks("grant-replication-slave", "It lets the agent read the log.")
def grant_replication_slave(facts: ServerFacts) -> Verdict:
    if facts.has("REPLICATION SLAVE"):
        return ok(f"{facts.account} has REPLICATION SLAVE")
    return failed(f"{facts.account} lacks REPLICATION SLAVE", _grant(facts, "REPLICATION SLAVE"))


@checks("grant-log-status", "It lets the agent ask where the log ends, without which no lag is known.")
def grant_log_status(facts: ServerFacts) -> Verdict:
    if facts.has("REPLICATION CLIENT"):
        return ok(f"{facts.account} has {_status(facts)}")
    return failed(f"{facts.account} lacks {_status(facts)}", _grant(facts, _status(facts)))


@checks("grant-select", "It lets the agent see tables, and read rows that they had before their sync began.")
def grant_select(facts: ServerFacts) -> Verdict:
    held = [scope for scope, names in facts.privileges.items() if names & {"SELECT", "ALL PRIVILEGES"}]
    if held:
        return ok(f"{facts.account} has SELECT on {', '.join(sorted(held))}")
    return failed(f"{facts.account} has SELECT nowhere", _grant(facts, "SELECT"))


@checks("grant-replica-lag", "It lets dumps of a replica wait while it falls behind.")
def grant_replica_lag(facts: ServerFacts) -> Verdict:
    wanted = _monitor(facts)
    name = "SLAVE MONITOR" if facts.flavor == "mariadb" else wanted
    if facts.is_replica is False or facts.has(name):
        return ok("the server is no replica" if facts.is_replica is False else f"{facts.account} has {wanted}")
    return warning(f"{facts.account} lacks {wanted}", _grant(facts, wanted))


@checks("grants-too-many", "Who takes the agent's password can do all that its account may.")
def grants_too_many(facts: ServerFacts) -> Verdict:
    held = {scope: more for scope, names in facts.privileges.items() if (more := _beyond_need(names))}
    if not held:
        return ok(f"{facts.account} has no more than it needs")
    statements = [statement for scope, names in held.items() for statement in _revocation(facts, scope, names)]
    found = [f"{_some(names)} on {scope}" for scope, names in held.items()]
    return warning(f"{facts.account} has {'; '.join(found)}", _run("; ".join(statements)))


def _beyond_need(names: frozenset[str]) -> list[str]:
    return sorted(name for name in names - _NEEDED if not name.startswith("SELECT ("))


def _revocation(facts: ServerFacts, scope: str, names: list[str]) -> list[str]:
    """Of ALL PRIVILEGES what is needed is given back, on the same scope alone."""
    if "ALL PRIVILEGES" not in names:
        return [f"REVOKE {', '.join(names)} ON {scope} FROM {facts.account}"]
    statements = [f"REVOKE {name} ON {scope} FROM {facts.account}" for name in names]  # no other goes with it
    needed = ["SELECT"]
    if scope == GLOBAL:
        needed += dict.fromkeys(("REPLICATION SLAVE", _status(facts), _monitor(facts)))
    return [*statements, f"GRANT {', '.join(needed)} ON {scope} TO {facts.account}"]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


@checks("keys", "A table without a primary key is dumped in one snapshot, and its rows can't be verified or repaired.")
def keys(facts: ServerFacts) -> Verdict:
    column = "row_id BIGINT UNSIGNED NOT NULL INVISIBLE AUTO_INCREMENT PRIMARY KEY"
    return _tables(facts.keyless_tables, "without a primary key", f"ADD COLUMN {column}")


@checks("engines", "A table without transactions keeps and logs the rows of a statement that fails halfway.")
def engines(facts: ServerFacts) -> Verdict:
    return _tables(facts.untransactional_tables, "of an engine without transactions", "ENGINE = InnoDB")


def _tables(tables: tuple[Table, ...] | None, what: str, alteration: str) -> Verdict:
    if tables is None:
        return unknown("tables could not be listed")
    if not tables:
        return ok(f"there is no table {what}")
    statements = [f"ALTER TABLE {quoted(table)} {alteration}" for table in tables[:NAMED]]
    named = _some([".".join(table) for table in tables])
    return warning(f"{len(tables)} tables {what}: {named}", _run("; ".join(statements)))


@checks(
    "row-versions",
    "Changes of a table whose versions count transactions are logged as statements, which stops every table.",
)
def row_versions(facts: ServerFacts) -> Verdict:
    found = facts.precise_tables
    if not found:
        return ok("there is no table whose versions count transactions")
    statements = [statement for each in found[:NAMED] for statement in each.statements()]
    named = _some([".".join(each.table) for each in found])
    return warning(
        f"{len(found)} tables whose versions count transactions: {named}",
        f"Copy the former versions that you need, which go. {_run('; '.join(statements))}; all in one session",
    )


@checks("connections", "An agent that gets no connection reads nothing; dumps take one for each worker.")
def connections(facts: ServerFacts) -> Verdict:
    most = int(facts.variables.get("max_connections") or 0)
    if facts.connections is None or not most:
        return unknown("connections could not be counted")
    found = f"{facts.connections} of {most} connections are taken"
    if most - facts.connections >= LEAST_CONNECTIONS:
        return ok(found)
    return warning(found, _set("max_connections", str(2 * most)))


@checks("encrypted", "In the clear, whoever is on the way reads rows and can change them.")
def encrypted(facts: ServerFacts) -> Verdict:
    if facts.cipher or facts.is_this_host:
        return ok(facts.cipher or "the server is on this host")
    return failed("the connection is in the clear", f"Set {facts.setting}.tls: {{mode: verify_identity, ca: FILE}}")


@checks("server-certificate", "With an expired certificate the agent no longer connects where it verifies the server.")
def server_certificate(facts: ServerFacts) -> Verdict:
    if not facts.cipher:
        return ok("the connection has no certificate")
    if facts.certificate_days is None:
        return unknown("the server does not say when its certificate ends")
    found = f"the server's certificate ends in {facts.certificate_days} days"
    if facts.certificate_days >= LEAST_CERTIFICATE_DAYS:
        return ok(found)
    return warning(found, "Replace the files that ssl_cert and ssl_key name, and run on the server: " + _reload(facts))


def _reload(facts: ServerFacts) -> str:
    return "FLUSH SSL" if facts.flavor == "mariadb" else "ALTER INSTANCE RELOAD TLS"


@checks("clock", "Lag and freshness compare the server's clock with others'.")
def clock(facts: ServerFacts) -> Verdict:
    if facts.skew_us is None:
        return unknown("the server's clock could not be asked")
    found = f"the server's clock is {abs(facts.skew_us) / 1e6:.1f} s {'ahead' if facts.skew_us > 0 else 'behind'}"
    if abs(facts.skew_us) <= MOST_SKEW_US:
        return ok(found)
    return warning(found, "Run on the server's host and on this one: timedatectl set-ntp true")
