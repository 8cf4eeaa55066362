# ruff: noqa: E501  (SQL)
"""What a server is made to log beside types: statements, settings that change in the stream, ends, restarts, failures.

Only SQL, names and files to load; `run` does it on a server, and `tests.fuzz` takes the logs as its seeds.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.conformance.cases import ALL, BOTH_MARIADB, MYSQL, Platform

#: in the place of a statement: the server is shut down and started again, the connection ends and another one goes on,
#: or the agent reads what there is before the next statement
RESTART = "(restart)"
RECONNECT = "(reconnect)"
CATCH_UP = "(catch up)"
#: before a statement that the server refuses
FAILS = "(fails) "

_MYSQL = frozenset({MYSQL})


@dataclass(frozen=True)
class Flow:
    """Statements that make a server log more than rows. `{t}` is a table (id INT PRIMARY KEY, note VARCHAR(40))."""

    name: str
    statements: tuple[str, ...]
    platforms: frozenset[str] = ALL
    #: of the whole server, before and after
    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    #: what is compared, where a SELECT from the table does not show all of it, and what tells its rows apart
    shown_by: str = "{t}"
    key: tuple[str, ...] = ("id",)
    #: statements that make the table, where it is another one
    made: tuple[str, ...] = ()

    @property
    def is_sql(self) -> bool:
        """The statements alone, on one connection, do it."""
        return not self.on and not any(statement.startswith("(") for statement in self.statements)


_THREE = "INSERT INTO {t} VALUES (1, 'one'), (2, 'two'), (3, 'three')"
_PARENTS = (
    "CREATE TABLE {t}_p (id INT PRIMARY KEY)",
    "INSERT INTO {t}_p VALUES (1), (2), (3)",
    "ALTER TABLE {t} ADD FOREIGN KEY (id) REFERENCES {t}_p (id) ON DELETE CASCADE",
    _THREE,
)
#: with a value that a NOBLOB image leaves out, and rows on both sides of each ALTER
_KEY_GOES = (
    "ALTER TABLE {t} ADD COLUMN big TEXT",
    "INSERT INTO {t} VALUES (1, 'one', 'a'), (2, 'two', 'b'), (3, 'three', 'c')",
    "UPDATE {t} SET note = 'x' WHERE id = 1",
    "ALTER TABLE {t} DROP PRIMARY KEY, ADD UNIQUE KEY u (id)",
    "UPDATE {t} SET note = 'y' WHERE id = 1",
    "UPDATE {t} SET big = 'd' WHERE id = 2",
    "UPDATE {t} SET id = 30 WHERE id = 3",
    "INSERT INTO {t} VALUES (4, 'four', 'e'), (5, 'five', 'f')",
    "DELETE FROM {t} WHERE id = 4",
    "ALTER TABLE {t} DROP KEY u, ADD PRIMARY KEY (id)",
    "UPDATE {t} SET note = 'z' WHERE id IN (1, 5)",
    "UPDATE {t} SET id = 20 WHERE id = 2",
    "DELETE FROM {t} WHERE id = 30",
)
_CHANGE = (
    "INSERT INTO {t} VALUES (9, REPEAT('n', 40))",
    "UPDATE {t} SET note = REPEAT('x', 30) WHERE id = 1",
    "DELETE FROM {t} WHERE id = 9",
)


def _flips(*settings: str) -> tuple[str, ...]:
    """Each setting changes while the ones before it stay changed, then all of them go back, with rows after each."""
    return tuple(statement for setting in settings for statement in (setting, *_CHANGE))


_MYSQL_BACK = (
    "SET GLOBAL binlog_checksum = 'CRC32'", "SET GLOBAL binlog_row_metadata = 'FULL'", "SET GLOBAL binlog_row_image = 'FULL'",
    "SET GLOBAL binlog_row_value_options = ''", "SET GLOBAL binlog_transaction_compression = OFF",
)  # fmt: skip
_MYSQL_FLIPS = (_THREE, "ALTER TABLE {t} ADD COLUMN j JSON DEFAULT (JSON_OBJECT('a', 1))", *(statement.replace("(9, REPEAT('n', 40))", "(9, REPEAT('n', 40), '1')") for statement in _flips(
    "SET SESSION binlog_transaction_compression = ON", "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", "SET SESSION binlog_row_image = 'NOBLOB'",
    "SET GLOBAL binlog_row_metadata = 'MINIMAL'", "SET GLOBAL binlog_checksum = 'NONE'", "SET SESSION binlog_row_value_options = ''", "SET SESSION binlog_row_image = 'MINIMAL'",
    "SET SESSION binlog_transaction_compression = OFF", "SET GLOBAL binlog_row_metadata = 'FULL'", "SET GLOBAL binlog_checksum = 'CRC32'",
    "SET GLOBAL binlog_row_image = 'NOBLOB'", "SET GLOBAL binlog_row_value_options = 'PARTIAL_JSON'", "SET GLOBAL binlog_transaction_compression = ON", RECONNECT, "UPDATE {t} SET j = JSON_SET(j, '$.b', REPEAT('y', 50))",
)))  # fmt: skip
_MARIADB_BACK = (
    "SET GLOBAL binlog_checksum = 'CRC32'", "SET GLOBAL binlog_row_metadata = 'FULL'", "SET GLOBAL binlog_row_image = 'FULL'", "SET GLOBAL log_bin_compress = OFF",
)  # fmt: skip
_MARIADB_FLIPS = (_THREE, *_flips(
    "SET GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = ON", "SET SESSION binlog_row_image = 'NOBLOB'", "SET GLOBAL binlog_row_metadata = 'MINIMAL'",
    "SET GLOBAL binlog_checksum = 'NONE'", "SET SESSION binlog_row_image = 'MINIMAL'", "SET GLOBAL log_bin_compress = OFF", "SET GLOBAL binlog_row_metadata = 'NO_LOG'",
    "SET SESSION binlog_row_image = 'FULL'", "SET GLOBAL binlog_checksum = 'CRC32'", "SET GLOBAL binlog_row_metadata = 'FULL'", "SET GLOBAL binlog_row_image = 'MINIMAL'", RECONNECT,
))  # fmt: skip
_VERSIONED = "CREATE OR REPLACE TABLE {{t}} (id INT PRIMARY KEY, note VARCHAR(40), a TIMESTAMP(6) AS ROW START, b TIMESTAMP(6) AS ROW END, PERIOD FOR SYSTEM_TIME (a, b)) WITH SYSTEM VERSIONING {partitions}"
_CHANGED_TWICE = (
    "CREATE VIEW {t}_all AS SELECT * FROM {t} FOR SYSTEM_TIME ALL", "INSERT INTO {t} (id, note) VALUES (1, 'one'), (2, 'two'), (3, 'three')",
    "UPDATE {t} SET note = 'x' WHERE id = 1", "UPDATE {t} SET note = 'y' WHERE id < 3", "DELETE FROM {t} WHERE id = 2",
)  # fmt: skip
FLOWS = (
    Flow("one statement", (_THREE, "UPDATE {t} SET note = 'x' WHERE id = 2", "DELETE FROM {t} WHERE id = 3")),
    Flow("transaction", ("BEGIN", _THREE, "UPDATE {t} SET note = 'x'", "DELETE FROM {t} WHERE id = 1", "COMMIT")),
    Flow("transaction that is rolled back", (_THREE, "BEGIN", "DELETE FROM {t}", "ROLLBACK", "UPDATE {t} SET note = 'x'")),
    Flow("rollback to a savepoint", ("BEGIN", _THREE, "SAVEPOINT s", "DELETE FROM {t}", "ROLLBACK TO s", "UPDATE {t} SET note = 'kept' WHERE id = 1", "COMMIT")),
    Flow("savepoint that is released", ("BEGIN", _THREE, "SAVEPOINT s", "UPDATE {t} SET note = 'x'", "RELEASE SAVEPOINT s", "COMMIT")),
    Flow("XA, two phases", ("XA START 'x2-{t}'", _THREE, "XA END 'x2-{t}'", "XA PREPARE 'x2-{t}'", "XA COMMIT 'x2-{t}'")),
    Flow("XA, one phase", ("XA START 'x1-{t}'", _THREE, "XA END 'x1-{t}'", "XA COMMIT 'x1-{t}' ONE PHASE")),
    Flow("XA, rolled back", (_THREE, "XA START 'xr-{t}'", "DELETE FROM {t}", "XA END 'xr-{t}'", "XA PREPARE 'xr-{t}'", "XA ROLLBACK 'xr-{t}'")),
    Flow("REPLACE and ON DUPLICATE KEY", (_THREE, "REPLACE INTO {t} VALUES (1, 'replaced')", "INSERT INTO {t} VALUES (2, 'x') ON DUPLICATE KEY UPDATE note = 'updated'")),
    Flow("INSERT ... SELECT", (_THREE, "INSERT INTO {t} SELECT id + 10, note FROM {t}")),
    Flow("row image flipped between statements", (_THREE, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET note = 'minimal' WHERE id = 1", "SET SESSION binlog_row_image = 'NOBLOB'", "UPDATE {t} SET note = 'noblob' WHERE id = 2", "SET SESSION binlog_row_image = 'FULL'", "UPDATE {t} SET note = 'full' WHERE id = 3")),
    Flow("key changed, binlog_row_image=MINIMAL", (_THREE, "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET id = 100 WHERE id = 1")),
    Flow("key changed, binlog_row_image=NOBLOB", ("ALTER TABLE {t} ADD COLUMN b BLOB", "INSERT INTO {t} VALUES (1, 'a', 'b')", "SET SESSION binlog_row_image = 'NOBLOB'", "UPDATE {t} SET id = 100 WHERE id = 1")),
    *(
        Flow(
            f"primary key gives way to a unique NOT NULL one and comes back, binlog_row_image={image}",
            _KEY_GOES,
            on=(f"SET GLOBAL binlog_row_image = '{image}'",),
            off=("SET GLOBAL binlog_row_image = 'FULL'",),
        )
        for image in ("MINIMAL", "NOBLOB")
    ),
    Flow("virtual column that changes, binlog_row_image=MINIMAL", ("ALTER TABLE {t} ADD COLUMN v INT AS (CHAR_LENGTH(note)) VIRTUAL", CATCH_UP, "INSERT INTO {t} (id, note) VALUES (1, 'a'), (2, 'b')", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET note = 'longer' WHERE id = 1")),
    Flow("metadata and checksum flipped in the stream", (_THREE, "SET GLOBAL binlog_row_metadata = 'MINIMAL'", "UPDATE {t} SET note = 'x' WHERE id = 1", "SET GLOBAL binlog_checksum = 'NONE'", "UPDATE {t} SET note = 'y' WHERE id = 2", "SET GLOBAL binlog_row_metadata = 'FULL'", "UPDATE {t} SET note = 'z' WHERE id = 3", "SET GLOBAL binlog_checksum = 'CRC32'", "DELETE FROM {t} WHERE id = 1")),
    Flow("compression flipped in the stream", (_THREE, "SET SESSION binlog_transaction_compression = ON", "UPDATE {t} SET note = REPEAT('x', 40)", "SET SESSION binlog_transaction_compression = OFF", "DELETE FROM {t} WHERE id = 1"), _MYSQL),
    Flow("compression flipped in the stream", (_THREE, "SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10", "UPDATE {t} SET note = REPEAT('x', 40)", "ALTER TABLE {t} COMMENT 'long enough'", "SET GLOBAL log_bin_compress = OFF", "DELETE FROM {t} WHERE id = 1"), BOTH_MARIADB),
    Flow("log rotated", (_THREE, "FLUSH BINARY LOGS", "DELETE FROM {t} WHERE id = 2")),
    Flow("column added at the end", (_THREE, "ALTER TABLE {t} ADD COLUMN extra INT", "INSERT INTO {t} VALUES (4, 'four', 4)")),
    Flow("column added in front, metadata MINIMAL", ("SET GLOBAL binlog_row_metadata = 'MINIMAL'", _THREE, "ALTER TABLE {t} ADD COLUMN extra INT FIRST", "INSERT INTO {t} VALUES (9, 4, 'four')", "SET GLOBAL binlog_row_metadata = 'FULL'")),
    Flow("table renamed and back", (_THREE, "RENAME TABLE {t} TO {t}_away", "RENAME TABLE {t}_away TO {t}", "DELETE FROM {t} WHERE id = 2")),
    Flow("TRUNCATE", (_THREE, "TRUNCATE TABLE {t}", "INSERT INTO {t} VALUES (7, 'after')")),
    Flow("non-transactional table", ("DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40)) ENGINE=MyISAM", _THREE, "DELETE FROM {t} WHERE id = 2")),
    Flow("trigger", ("CREATE TABLE {t}_log (id INT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(60))", "CREATE TRIGGER {t}_noted AFTER INSERT ON {t} FOR EACH ROW INSERT INTO {t}_log (note) VALUES (NEW.note)", _THREE, "DROP TRIGGER {t}_noted", "DELETE FROM {t} WHERE id = 2")),
    Flow("statement-based INSERT", (_THREE, "SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO {t} VALUES (4, 'lost')", "SET SESSION binlog_format = 'ROW'")),
    Flow("LOAD DATA, statement-based", (_THREE, "SET SESSION binlog_format = 'STATEMENT'", "LOAD DATA INFILE '{file}' INTO TABLE {t}", "SET SESSION binlog_format = 'ROW'")),
    Flow("tagged GTID", ("SET SESSION gtid_next = 'AUTOMATIC:shop'", _THREE, "SET SESSION gtid_next = 'AUTOMATIC'", "DELETE FROM {t} WHERE id = 1"), _MYSQL),
    Flow("other GTID domain", ("SET SESSION gtid_domain_id = 7", _THREE, "SET SESSION gtid_domain_id = 0", "DELETE FROM {t} WHERE id = 1"), BOTH_MARIADB),
    Flow("two-phase ALTER", (_THREE, "SET SESSION binlog_alter_two_phase = ON", "ALTER TABLE {t} ADD COLUMN extra INT", "UPDATE {t} SET extra = 1 WHERE id = 1"), BOTH_MARIADB),
    Flow("row of 17 MiB", ("ALTER TABLE {t} ADD COLUMN big LONGBLOB", "INSERT INTO {t} VALUES (1, 'big', REPEAT('x', 17825792))", "INSERT INTO {t} VALUES (2, 'after', 'x')")),
    Flow("LOAD DATA", (_THREE, "LOAD DATA INFILE '{file}' INTO TABLE {t}")),
    Flow("MIXED format, a function that differs each time", (_THREE, "SET SESSION binlog_format = 'MIXED'", "UPDATE {t} SET note = UUID()", "SET SESSION binlog_format = 'ROW'")),
    Flow("statement-based INSERT with RAND(), a variable and AUTO_INCREMENT", ("ALTER TABLE {t} MODIFY id INT AUTO_INCREMENT", "INSERT INTO {t} (note) VALUES ('one')", "SET @word = 'w'", "SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO {t} (note) VALUES (CONCAT(@word, RAND()))", "SET SESSION binlog_format = 'ROW'")),
    Flow("LOAD DATA of several blocks, statement-based", (_THREE, "SET SESSION binlog_format = 'STATEMENT'", "LOAD DATA INFILE '{long_file}' INTO TABLE {t}", "SET SESSION binlog_format = 'ROW'")),
    Flow("LOAD DATA that fails, statement-based", ("DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40)) ENGINE=MyISAM", "INSERT INTO {t} VALUES (8, 'there')", "SET SESSION binlog_format = 'STATEMENT'", FAILS + "LOAD DATA INFILE '{file}' INTO TABLE {t}", "SET SESSION binlog_format = 'ROW'", "UPDATE {t} SET note = 'after'")),
    Flow("statement of 17 MiB in the log beside its rows", ("SET SESSION binlog_rows_query_log_events = ON", "INSERT INTO {t} VALUES (1, 'one') /* {long_text} */", "DELETE FROM {t}", "INSERT INTO {t} VALUES (2, 'after')"), _MYSQL),
    Flow("statement of 17 MiB in the log beside its rows", ("INSERT INTO {t} VALUES (1, 'one') /* {long_text} */", "DELETE FROM {t}", "INSERT INTO {t} VALUES (2, 'after')"), BOTH_MARIADB),
    Flow("UPDATE and DELETE of two tables", ("CREATE TABLE {t}_b LIKE {t}", _THREE, "INSERT INTO {t}_b SELECT * FROM {t}", "UPDATE {t} a JOIN {t}_b b ON a.id = b.id SET a.note = 'a', b.note = 'b'", "DELETE a, b FROM {t} a JOIN {t}_b b ON a.id = b.id WHERE a.id = 2")),
    Flow("triggers on three tables", ("CREATE TABLE {t}_b LIKE {t}", "CREATE TABLE {t}_c LIKE {t}", "CREATE TRIGGER {t}_1 AFTER INSERT ON {t}_b FOR EACH ROW INSERT INTO {t}_c VALUES (NEW.id, 'c')", "CREATE TRIGGER {t}_2 AFTER INSERT ON {t}_c FOR EACH ROW INSERT INTO {t} VALUES (NEW.id, 'from c')", "INSERT INTO {t}_b VALUES (1, 'b'), (2, 'b')", "DROP TRIGGER {t}_1", "DROP TRIGGER {t}_2", "UPDATE {t} SET note = 'x' WHERE id = 1")),
    Flow("table of the same name in another database", ("CREATE DATABASE {t}_db", "CREATE TABLE {t}_db.{t} (note VARCHAR(9), id BIGINT PRIMARY KEY)", "BEGIN", "INSERT INTO {t}_db.{t} VALUES ('other', 7)", _THREE, "UPDATE {t}_db.{t} SET note = 'x'", "UPDATE {t} SET note = 'y' WHERE id = 2", "COMMIT", "DROP DATABASE {t}_db")),
    Flow("procedure", ("CREATE PROCEDURE {t}_p() BEGIN INSERT INTO {t} VALUES (1, 'a'), (2, 'b'); UPDATE {t} SET note = 'c' WHERE id = 1; END", "CALL {t}_p()", "DELETE FROM {t} WHERE id = 2")),
    Flow("temporary table", ("CREATE TEMPORARY TABLE {t}_tmp LIKE {t}", "INSERT INTO {t}_tmp VALUES (1, 'x'), (2, 'y')", "INSERT INTO {t} SELECT * FROM {t}_tmp", "DROP TEMPORARY TABLE {t}_tmp", "DELETE FROM {t} WHERE id = 2")),
    Flow("CREATE TABLE ... SELECT", ("CREATE TABLE {t}_b (id INT PRIMARY KEY) SELECT 1 AS id, 'x' AS note", "INSERT INTO {t} SELECT * FROM {t}_b", "UPDATE {t} SET note = 'y'")),
    Flow("generated columns, REPLACE and ON DUPLICATE KEY", ("ALTER TABLE {t} ADD COLUMN g INT AS (id * 2) STORED, ADD COLUMN v VARCHAR(50) AS (CONCAT(note, '!')) VIRTUAL, ADD UNIQUE (g)", CATCH_UP, "INSERT INTO {t} (id, note) VALUES (1, 'a'), (2, 'b')", "INSERT INTO {t} (id, note) VALUES (1, 'c') ON DUPLICATE KEY UPDATE note = VALUES(note)", "REPLACE INTO {t} (id, note) VALUES (2, 'd')")),
    Flow("instant columns: added, dropped, in another order", (_THREE, "ALTER TABLE {t} ADD COLUMN a INT DEFAULT 7 AFTER id, ALGORITHM=INSTANT", "UPDATE {t} SET note = 'x' WHERE id = 1", "ALTER TABLE {t} DROP COLUMN a, ALGORITHM=INSTANT", "UPDATE {t} SET note = 'y' WHERE id = 2")),
    Flow("partition dropped", ("ALTER TABLE {t} PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (2), PARTITION p1 VALUES LESS THAN MAXVALUE)", _THREE, "ALTER TABLE {t} DROP PARTITION p0", "UPDATE {t} SET note = 'x'")),
    Flow("foreign key with ON DELETE CASCADE", ("CREATE TABLE {t}_p (id INT PRIMARY KEY)", "INSERT INTO {t}_p VALUES (1), (2), (3)", "ALTER TABLE {t} ADD FOREIGN KEY (id) REFERENCES {t}_p (id) ON DELETE CASCADE", _THREE, "DELETE FROM {t}_p WHERE id = 2", "UPDATE {t} SET note = 'x' WHERE id = 1")),
    *(
        Flow(
            f"foreign key with ON DELETE CASCADE in a compressed transaction, binlog_row_image={image}",
            (*_PARENTS, compressed, f"SET SESSION binlog_row_image = '{image}'", "BEGIN", "DELETE FROM {t}_p WHERE id = 2", "UPDATE {t} SET note = REPEAT('x', 40) WHERE id = 1", "COMMIT", "UPDATE {t} SET note = 'y' WHERE id = 3"),
            platforms,
            off=off,
        )
        for image in ("MINIMAL", "NOBLOB", "FULL")
        for compressed, platforms, off in (
            ("SET SESSION binlog_transaction_compression = ON", _MYSQL, ()),
            ("SET GLOBAL log_bin_compress_min_len = 10, GLOBAL log_bin_compress = ON", BOTH_MARIADB, ("SET GLOBAL log_bin_compress = OFF",)),
        )
    ),
    Flow("1,000 columns, metadata and images MINIMAL", ("SET GLOBAL binlog_row_metadata = 'MINIMAL'", "DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, {many_columns})", "INSERT INTO {t} (id, c7) VALUES (1, 1), (2, 2)", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET c990 = 3 WHERE id = 1", "DELETE FROM {t} WHERE id = 2", "SET GLOBAL binlog_row_metadata = 'FULL'")),
    Flow("JSON with a multi-valued index", ("ALTER TABLE {t} ADD COLUMN j JSON, ADD INDEX ((CAST(j->'$.a' AS UNSIGNED ARRAY)))", "INSERT INTO {t} VALUES (1, 'x', '{{\"a\": [1, 2]}}')", "UPDATE {t} SET j = '{{\"a\": [3]}}'"), _MYSQL),
    Flow("index and default of expressions", ("DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40), u CHAR(36) DEFAULT (UUID()), INDEX ((id + 1)), INDEX ((UPPER(note))))", "INSERT INTO {t} (id, note) VALUES (1, 'x'), (2, 'y')", "UPDATE {t} SET note = 'z' WHERE id = 1"), _MYSQL),
    Flow("partial JSON in NOBLOB images in a compressed transaction", ("ALTER TABLE {t} ADD COLUMN j JSON", "INSERT INTO {t} VALUES (1, 'x', JSON_OBJECT('a', REPEAT('x', 300)))", "SET SESSION binlog_transaction_compression = ON", "SET SESSION binlog_row_image = 'NOBLOB'", "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", "UPDATE {t} SET j = JSON_SET(j, '$.b', 1)", "UPDATE {t} SET note = 'y'"), _MYSQL),
    Flow("MINIMAL images in compressed events", ("INSERT INTO {t} VALUES (1, REPEAT('x', 40)), (2, REPEAT('y', 40))", "SET GLOBAL log_bin_compress = ON", "SET GLOBAL log_bin_compress_min_len = 10", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET note = REPEAT('z', 40)", "SET GLOBAL log_bin_compress = OFF", "DELETE FROM {t} WHERE id = 1"), BOTH_MARIADB),
    Flow("every setting flipped in the stream, of the session and of the server", _MYSQL_FLIPS, _MYSQL, off=_MYSQL_BACK),
    Flow("every setting flipped in the stream, of the session and of the server", _MARIADB_FLIPS, BOTH_MARIADB, off=_MARIADB_BACK),
    Flow("sequence", ("CREATE SEQUENCE {t}_s", "INSERT INTO {t} VALUES (NEXTVAL({t}_s), 'a'), (NEXTVAL({t}_s), 'b')", "DO SETVAL({t}_s, 50)", "INSERT INTO {t} VALUES (NEXTVAL({t}_s), 'c')", "DROP SEQUENCE {t}_s"), BOTH_MARIADB),
    Flow("system-versioned table, with its former rows", (_VERSIONED.format(partitions=""), *_CHANGED_TWICE), BOTH_MARIADB, shown_by="{t}_all", key=("id", "b")),
    Flow("system-versioned table, partitioned by SYSTEM_TIME", (_VERSIONED.format(partitions="PARTITION BY SYSTEM_TIME (PARTITION h HISTORY, PARTITION n CURRENT)"), *_CHANGED_TWICE), BOTH_MARIADB, shown_by="{t}_all", key=("id", "b")),
    Flow("FOR PORTION OF a period", ("CREATE OR REPLACE TABLE {t} (id INT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(40), a DATE, b DATE, PERIOD FOR p (a, b))", "INSERT INTO {t} (note, a, b) VALUES ('x', '2020-01-01', '2021-01-01')", "UPDATE {t} FOR PORTION OF p FROM '2020-03-01' TO '2020-06-01' SET note = 'y'", "DELETE FROM {t} FOR PORTION OF p FROM '2020-04-01' TO '2020-05-01'"), BOTH_MARIADB),
    Flow("BEGIN NOT ATOMIC, RETURNING", ("BEGIN NOT ATOMIC INSERT INTO {t} VALUES (1, 'a'), (2, 'b'); UPDATE {t} SET note = 'c' WHERE id = 1; END", "DELETE FROM {t} WHERE id = 2 RETURNING note", "REPLACE INTO {t} VALUES (3, 'd') RETURNING id"), BOTH_MARIADB),
    Flow("Aria table", ("ALTER TABLE {t} ENGINE=Aria", _THREE, "DELETE FROM {t} WHERE id = 2"), BOTH_MARIADB),
    Flow("XA, committed by another connection", ("XA START 'xd-{t}'", _THREE, "XA END 'xd-{t}'", "XA PREPARE 'xd-{t}'", RECONNECT, "XA COMMIT 'xd-{t}'", "UPDATE {t} SET note = 'x' WHERE id = 1")),
    Flow("server restarted, with a prepared XA", ("INSERT INTO {t} VALUES (4, 'four')", "XA START 'xs-{t}'", _THREE, "XA END 'xs-{t}'", "XA PREPARE 'xs-{t}'", RESTART, "XA COMMIT 'xs-{t}'", "DELETE FROM {t} WHERE id = 2")),
    Flow("statement larger than what the log keeps of one", ("INSERT INTO {t} VALUES (1, 'one')", "CREATE TABLE {t}_plain (id INT, note LONGTEXT) ENGINE=MyISAM", FAILS + "INSERT INTO {t}_plain VALUES (1, REPEAT('x', 9000)), (2, REPEAT('y', 9000))", "DELETE FROM {t}"), on=("SET GLOBAL binlog_stmt_cache_size = 4096", "SET GLOBAL max_binlog_stmt_cache_size = 4096"), off=("SET GLOBAL max_binlog_stmt_cache_size = DEFAULT", "SET GLOBAL binlog_stmt_cache_size = DEFAULT")),
    Flow("gtid_mode from ON to OFF", (_THREE, "SET GLOBAL gtid_mode = 'ON_PERMISSIVE'", "UPDATE {t} SET note = 'x' WHERE id = 1", "SET GLOBAL gtid_mode = 'OFF_PERMISSIVE'", "UPDATE {t} SET note = 'y' WHERE id = 2", CATCH_UP, "SET GLOBAL gtid_mode = 'OFF'", "DELETE FROM {t} WHERE id = 3"), _MYSQL),
    Flow("gtid_mode from OFF to ON", (_THREE, "SET GLOBAL gtid_mode = 'OFF_PERMISSIVE'", "UPDATE {t} SET note = 'x' WHERE id = 1", "SET GLOBAL gtid_mode = 'ON_PERMISSIVE'", "UPDATE {t} SET note = 'y' WHERE id = 2", CATCH_UP, "SET GLOBAL gtid_mode = 'ON'", "DELETE FROM {t} WHERE id = 3"), _MYSQL),
)  # fmt: skip


def flows_of(platform: Platform) -> list[Flow]:
    return [flow for flow in FLOWS if platform.name in flow.platforms]


def parts(folder: Path) -> dict[str, str]:
    """What statements name beside their table; the files are made in `folder`."""
    files = {"file": folder / "rows.txt", "long_file": folder / "many_rows.txt"}
    files["file"].write_text("8\teight\n")
    files["long_file"].write_text("".join(f"{number}\t{'x' * 39}\n" for number in range(10, 20_000)))
    for file in files.values():
        file.chmod(0o644)
    columns = ", ".join(f"c{number} TINYINT" for number in range(1, 1000))
    return {name: str(file) for name, file in files.items()} | {"long_text": "x" * (17 << 20), "many_columns": columns}
