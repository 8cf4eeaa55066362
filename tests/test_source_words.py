"""What no source brings knows none: the words of databases stand in `agent/sources` alone.

The import contracts of pyproject.toml forbid modules; this forbids words, in code, comments and documentation strings.
"""

import re
from functools import reduce
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: what knows no source: the agent's engine, gateway, control plane, sink, and what they share
WITHOUT_SOURCES = ("agent", "gateway", "controlplane_api", "spark_sink", "proto/menura")
TEXTS = frozenset({".py", ".pyx", ".pxd", ".pyi", ".h", ".proto", ".js", ".html", ".css", ".mako"})
WORDS = re.compile(
    r"mysql|mariadb|innodb|binlog|binary log|gtid|table map|my\.cnf|server_uuid|foreign_key_checks|set global"
    r"|information_schema|utf8mb\d|postgres|pgoutput|pgsql|\bwal\b|\blsn\b|pg_\w+|replica identity|\btoast\b",
    re.IGNORECASE,
)
_REQUEST_TYPES = ("MySQLClient", "MySQLBinlog", "PgSQLClient", "PgSQLWal", "PgSQLLogDec")
#: texts in which such a word stands for another reason, by file; a file that is not here has none
MEANT: dict[str, tuple[str, ...]] = {
    # the control plane's own database
    "controlplane_api/commands/options.py": ("postgresql://",),
    "controlplane_api/commits.py": ("PostgreSQL", "pg_current_snapshot"),
    "controlplane_api/database.py": ("postgresql", "PostgreSQL", "postgres", "WAL"),
    "controlplane_api/doctor.py": ("PostgreSQL", "postgresql://", "pg_stat_activity"),
    "controlplane_api/documents.py": ("postgresql",),
    "controlplane_api/errors/database.py": ("PostgreSQL",),
    "controlplane_api/lookups.py": ("postgresql", "PostgreSQL"),
    "controlplane_api/migrating.py": (
        *("PostgreSQL", "postgresql"),
        *("pg_advisory_xact_lock", "pg_try_advisory_lock", "pg_advisory_unlock", "pg_index"),
    ),
    "controlplane_api/migrations/env.py": ("postgresql", "PostgreSQL"),
    "controlplane_api/migrations/versions/rev_0017_changes.py": ("postgresql", "PostgreSQL", "plpgsql", "pg_notify"),
    "controlplane_api/migrations/versions/rev_0020_source_configurations.py": ("postgresql",),
    "controlplane_api/migrations/versions/rev_0042_upgrades.py": ("postgresql",),
    "controlplane_api/migrations/versions/rev_0039_blocked_and_audit.py": ("postgresql", "POSTGRESQL", "plpgsql"),
    "controlplane_api/migrations/versions/rev_0040_audit_numbers.py": (
        *("postgresql", "PostgreSQL", "POSTGRESQL"),
        *("plpgsql", "pg_catalog", "pg_temp"),
    ),
    "controlplane_api/registry/lock_holders.py": (
        *("postgresql", "PostgreSQL"),
        *("pg_stat_activity", "pg_blocking_pids", "pg_prepared_xacts"),
    ),
    "controlplane_api/registry/changes.py": ("PostgreSQL",),
    "controlplane_api/revisions.py": ("postgresql",),
    "controlplane_api/rollout_turns.py": ("postgresql",),
    "controlplane_api/registry/landings.py": ("postgresql",),
    "controlplane_api/registry/leases.py": ("postgresql", "PostgreSQL"),
    "controlplane_api/registry/sql_registry.py": ("postgresql",),
    "proto/menura/bounds.py": ("which PostgreSQL does not store",),
    # a column's name since its first migration
    "controlplane_api/migrations/versions/rev_0001_first.py": ('"server_uuid"',),
    "controlplane_api/models/sources.py": ('mapped_column("server_uuid"',),
    # landings of former formats, when there was one kind of source
    "proto/menura/change_batch.py": ("of landings up to format 5: the text in which MySQL and MariaDB print it",),
    "proto/menura/landing.py": (
        "Format 5 has values in the text of MySQL and MariaDB",
        "Format 4 has positions of MySQL and MariaDB",
        "Up to format 4 there were MySQL and MariaDB alone",
        "gtid_set",
        "server_uuid",
        "has_gtids",
        '"gtids"',
        "without GTIDs a position had",
        "a log with GTIDs had neither",
        "binlog.000002",
        'LandedPosition("mysql"',
        # examples
        '"flavor": "mysql"',
        '"kind": "mysql"',
        "charset utf8mb4",
    ),
    # where a pipe's rows go
    "spark_sink/plugins/mysql_tables.py": (
        "MySQL",
        "MariaDB",
        '"mariadb" in',
        "is_mariadb",
        "utf8mb4_nopad_bin",
        "utf8mb4_0900_bin",
        "pymysql",
        "menura[mysql]",
        "utf8mb4",
        "information_schema",
    ),
    "spark_sink/landed/default_values.py": ("in the words of MySQL and MariaDB", "As MySQL and MariaDB print"),
    # names of the protocol, each of which has its role
    "proto/menura/roles.py": _REQUEST_TYPES,
    "proto/menura/v1/stream.proto": _REQUEST_TYPES,
    "proto/menura/v1/catalog.proto": ('e.g. "mariadb"',),
    "proto/menura/v1/config.proto": ('e.g. "mariadb"',),
}


def texts() -> dict[str, str]:
    files = (file for folder in WITHOUT_SOURCES for file in (ROOT / folder).rglob("*") if file.suffix in TEXTS)
    named = {str(file.relative_to(ROOT)): file for file in files}
    return {
        name: file.read_text()
        for name, file in named.items()
        if not name.startswith("agent/sources/") and "_pb2" not in name
    }


def test_words_of_sources_when_searched_outside_of_them_then_there_are_none() -> None:
    found = {}
    for name, text in texts().items():
        rest = reduce(lambda left, meant: left.replace(meant, ""), MEANT.get(name, ()), text)
        words = [line.strip() for line in rest.splitlines() if WORDS.search(line)]
        if words:
            found[name] = words
    assert found == {}


def test_a_meant_word_when_it_is_listed_then_it_is_there() -> None:
    there = texts()
    assert [(name, meant) for name, listed in MEANT.items() for meant in listed if meant not in there[name]] == []


@pytest.mark.parametrize("word", ["binlog_row_image", "GTID set", "SET GLOBAL x = 1", "PgSQLWal", "pg_catalog"])
def test_words_when_a_source_means_one_then_it_is_found(word: str) -> None:
    assert WORDS.search(f"Have the server change {word}.")
