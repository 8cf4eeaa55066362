"""Why a table stops by what its source does, with every setting of the agent at its default: all that there is.

`tests.churn` takes these codes for no failure, and `report` lists them: one truth for both.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stop:
    code: str
    why: str
    #: a test in which such a table stops
    shown_by: str


_LIMIT = Stop(
    "REREAD_LIMIT",
    "Within an hour its rows changed unlogged, or by a foreign key in a way that can't be told, more often than the"
    " agent's `dump.max_rereads_per_hour`.",
    "tests/controlplane_api/test_rereads.py",
)
MYSQL_STOPS = (
    Stop(
        "TABLE_STATEMENT_LOGGED",
        "A statement that defines a table and fills it (CREATE TABLE ... SELECT) was logged as text, or MariaDB logs"
        " each change of a table so, since its versions count transactions; any table of the source may have changed"
        " with it.",
        "tests/e2e/test_remedies.py",
    ),
    Stop(
        "TABLE_ROW_UNREADABLE",
        "A row in the log lacks values, as with `PARTIAL_JSON and MINIMAL` above, or its bytes do not fit its table.",
        "tests/agent/test_replication.py",
    ),
    Stop(
        "TABLE_SCHEMA_UNKNOWN",
        "Nobody knows what its rows in the log looked like, and no later statement in the log tells it.",
        "tests/agent/test_schema_over_time.py",
    ),
    Stop(
        "TABLE_SCHEMA_MISMATCH",
        "Its rows in the log contradict what is known of it, as after statements with `sql_log_bin=0`.",
        "tests/agent/test_table_remedies.py",
    ),
    Stop(
        "TABLE_COLUMN_UNSUPPORTED",
        "It has a column of a type or a collation that this version does not know, as one that the server's owner"
        " added.",
        "tests/agent/test_table_remedies.py",
    ),
    Stop(
        "ROWS_PARTIAL",
        "It has no primary key, only a unique one, and the log's rows lack some of their values (`binlog_row_image`)"
        " and do not describe columns.",
        "tests/e2e/test_remedies.py",
    ),
    _LIMIT,
)
POSTGRESQL_STOPS = (
    Stop(
        "TABLE_UNPUBLISHED",
        "The publication lacks it, or some of its rows, columns or kinds of changes, and the agent's user may not mend"
        " that; or its changes are not logged (`UNLOGGED`).",
        "tests/agent/postgresql/test_stops.py",
    ),
    Stop(
        "TABLE_IDENTITY_MISSING",
        "It has neither a primary key nor a replica identity: once it is published, its server refuses UPDATE and"
        " DELETE.",
        "tests/agent/postgresql/test_publication.py",
    ),
    Stop(
        "TABLE_ROW_UNREADABLE",
        "A row is larger than one that can be sent.",
        "tests/agent/postgresql/test_table_remedies.py",
    ),
    _LIMIT,
)
#: of a whole source
SOURCE_STOPS = (
    Stop(
        "SOURCE_DIVERGED",
        "A PostgreSQL server was put back from a copy of its files, or a standby that lacks what was read took its"
        " place.",
        "tests/agent/postgresql/test_log_gone.py",
    ),
    Stop(
        "SOURCE_REBUILT",
        "It is another PostgreSQL server, or its database was made anew.",
        "tests/agent/postgresql/test_log_gone.py",
    ),
)
#: by kind of source
STOPS = {"MySQL and MariaDB": MYSQL_STOPS, "PostgreSQL": POSTGRESQL_STOPS}
