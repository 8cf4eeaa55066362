# ruff: noqa: E501  (SQL)
"""Odd histories of tables, each with tables of its own: only SQL and names. `test_histories` runs them on servers.

What one server logs of single statements is in `tests.conformance.flows`, which has the agent alone. These go on over
restarts and sessions, and are compared in the lake.
"""

from dataclasses import dataclass

MARIADB = frozenset({"mariadb", "mariadb-11.8"})
MYSQL = frozenset({"mysql"})
ALL = MARIADB | MYSQL

#: in the place of a statement
RESTART = "(the server is shut down and started)"
KILL = "(the server is killed and started)"
KILL_AGENT = "(the agent is killed and started)"
#: what the session has prepared is nobody's then; another one goes on
LEAVE = "(the session ends)"
#: before a statement: by another session, or refused by the server
OTHER = "(other) "
REFUSED = "(refused) "

OUTSIDE = "outside"
_ROWS = "INSERT INTO {t} VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', 3), (4, 'four', 4)"
_PLAIN = ("CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40), n INT DEFAULT 7)", _ROWS)
_KEYLESS = ("CREATE TABLE {t} (id INT, note VARCHAR(40), n INT DEFAULT 7)", _ROWS)
_WITH_LOG = (*_PLAIN, "CREATE TABLE {t}_2 (id INT AUTO_INCREMENT PRIMARY KEY, w VARCHAR(60))")
_TWO = (*_PLAIN, "CREATE TABLE {t}_2 LIKE {t}", "INSERT INTO {t}_2 SELECT id, note, n * 100 FROM {t}")
_WITH_CHILD = (
    *_PLAIN,
    "CREATE TABLE {t}_2 (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES {t} (id) ON DELETE CASCADE ON UPDATE CASCADE)",
    "INSERT INTO {t}_2 VALUES (1, 1), (2, 2), (3, 3), (4, 2)",
)
_TRIGGERS = tuple(
    f"CREATE TRIGGER {{t}}_{when}_{verb} {when} {verb} ON {{t}} FOR EACH ROW INSERT INTO {{t}}_2 (w) VALUES ('{when} {verb}')"
    for when in ("BEFORE", "AFTER")
    for verb in ("INSERT", "UPDATE", "DELETE")
)
_UNTRANSACTIONAL = (
    *_PLAIN,
    "CREATE TABLE {t}_2 (id INT PRIMARY KEY, note VARCHAR(40), n INT) ENGINE=MyISAM",
    "INSERT INTO {t}_2 SELECT * FROM {t}",
)


@dataclass(frozen=True)
class History:
    #: of its table too
    name: str
    #: `{t}` is the table, `{t}_2` another one that is synced
    statements: tuple[str, ...]
    servers: frozenset[str] = ALL
    made: tuple[str, ...] = _PLAIN

    @property
    def tables(self) -> list[str]:
        has_second = any("CREATE TABLE {t}_2" in statement for statement in self.made)
        return [self.name, *([f"{self.name}_2"] if has_second else [])]


def _xa(xid: str, *statements: str) -> tuple[str, ...]:
    """Prepared by a session that ends."""
    return (f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'", LEAVE)


def _three(name: str) -> tuple[str, ...]:
    return (
        *_xa(f"{name}1", "UPDATE {t} SET note = 'first' WHERE id = 1"),
        *_xa(f"{name}2", "UPDATE {t} SET note = 'second' WHERE id = 2", "INSERT INTO {t} VALUES (5, 'five', 5)"),
        *_xa(f"{name}3", "DELETE FROM {t} WHERE id = 3"),
    )


def _ended(name: str) -> tuple[str, ...]:
    """In another order than they were prepared in."""
    return (f"XA COMMIT '{name}2'", f"XA ROLLBACK '{name}3'", f"XA COMMIT '{name}1'", "UPDATE {t} SET n = n + 1")


_CHANGED = ("UPDATE {t} SET note = REPEAT('x', 40)", "INSERT INTO {t} SELECT id + 10, REPEAT('y', 40), 3 FROM {t}")
_KEY_COLUMNS = [f"k{number}" for number in range(1, 17)]

HISTORIES = (
    # prepared transactions
    History("xa_restart", (*_three("r"), RESTART, *_ended("r"))),
    History("xa_server_killed", (*_three("k"), KILL, *_ended("k"))),
    History("xa_agent_killed", (*_three("a"), "UPDATE {t} SET note = 'between' WHERE id = 4", "FLUSH BINARY LOGS", KILL_AGENT, *_ended("a"), "FLUSH BINARY LOGS")),
    History("xa_locked", (*_xa("l1", "UPDATE {t} SET note = 'x' WHERE id = 1", "INSERT INTO {t} VALUES (9, 'nine', 9)"), RESTART, "SET SESSION lock_wait_timeout = 1", REFUSED + "ALTER TABLE {t} DROP COLUMN note", REFUSED + "TRUNCATE TABLE {t}", "XA COMMIT 'l1'", "ALTER TABLE {t} DROP COLUMN note", "UPDATE {t} SET n = 0 WHERE id = 2")),
    History("xa_again", tuple(word for n in range(1, 5) for word in (*_xa("s", f"UPDATE {{t}} SET n = {n}00 WHERE id = {n}"), f"XA {'COMMIT' if n % 2 else 'ROLLBACK'} 's'"))),
    History("xa_savepoint", (*_xa("v", "INSERT INTO {t} VALUES (10, 'xa', 1)", "SAVEPOINT s", "DELETE FROM {t} WHERE id < 3", "ROLLBACK TO s", "UPDATE {t} SET n = 99 WHERE id = 4"), "XA COMMIT 'v'")),
    History("xa_minimal", ("SET SESSION binlog_row_image = 'MINIMAL'", *_xa("m", "UPDATE {t} SET note = 'd' WHERE id = 1", "UPDATE {t} SET id = 60 WHERE id = 2", "DELETE FROM {t} WHERE id = 3"), "XA COMMIT 'm'")),
    History("xa_cascade", (*_xa("c", "DELETE FROM {t} WHERE id = 2", "UPDATE {t} SET id = 33 WHERE id = 3"), "XA COMMIT 'c'", "INSERT INTO {t}_2 VALUES (50, 1)"), made=_WITH_CHILD),
    History("xa_trigger", (*_xa("t", "INSERT INTO {t} VALUES (20, 't', 1)", "UPDATE {t} SET n = 2 WHERE id = 1"), "XA COMMIT 't'"), made=(*_WITH_LOG, *_TRIGGERS)),
    History("xa_compressed", ("SET SESSION binlog_transaction_compression = ON", *_xa("z", *_CHANGED), "UPDATE {t}_2 SET n = 0", "XA COMMIT 'z'"), MYSQL, _TWO),
    History("xa_compressed_at_once", ("SET SESSION binlog_transaction_compression = ON", "XA START 'o'", *_CHANGED, "XA END 'o'", "XA COMMIT 'o' ONE PHASE"), MYSQL),
    History("xa_compressed_rows", ("SET GLOBAL log_bin_compress_min_len = 10", "SET GLOBAL log_bin_compress = ON", *_xa("w", *_CHANGED), "SET GLOBAL log_bin_compress = OFF", "XA COMMIT 'w'"), MARIADB),
    History("xa_untransactional", (*_xa("u", "INSERT INTO {t} VALUES (10, 'xa', 1)", "INSERT INTO {t}_2 VALUES (10, 'at once', 1)"), "XA ROLLBACK 'u'"), MARIADB, _UNTRANSACTIONAL),
    History("xa_domains", ("SET SESSION gtid_domain_id = 5", *_xa("d", "UPDATE {t} SET note = 'd' WHERE id = 1"), "UPDATE {t} SET n = 0 WHERE id = 2", "SET SESSION gtid_domain_id = 6", "XA COMMIT 'd'"), MARIADB),
    # keys
    History("keys_swapped", ("UPDATE {t} a JOIN {t} b ON a.id = 1 AND b.id = 2 SET a.id = 1001", "UPDATE {t} SET id = 1 WHERE id = 2", "UPDATE {t} SET id = 2 WHERE id = 1001", "UPDATE {t} SET id = id + 1 ORDER BY id DESC", "UPDATE {t} SET id = id - 1 ORDER BY id", "UPDATE {t} a JOIN (SELECT id, n FROM {t}) b ON a.id = b.id SET a.n = b.n * 2, a.note = CONCAT(b.id, '!')")),
    History("unique_swapped", ("UPDATE {t} SET u = -u ORDER BY id", "INSERT INTO {t} VALUES (1, 2) ON DUPLICATE KEY UPDATE u = 100", "REPLACE INTO {t} VALUES (3, 100)", "REPLACE INTO {t} VALUES (9, -2)"), made=("CREATE TABLE {t} (id INT PRIMARY KEY, u INT UNIQUE)", "INSERT INTO {t} VALUES (1, 1), (2, 2), (3, 3)")),
    History("key_of_3072_bytes", ("UPDATE {t} SET v = v + 1", "INSERT INTO {t} VALUES (REPEAT('ü', 768), 9), (REPEAT('😀', 768), 10)", "UPDATE {t} SET k = CONCAT(k, 'x') WHERE v = 3", "DELETE FROM {t} WHERE v = 10"), made=("CREATE TABLE {t} (k VARCHAR(768) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, v INT)", "INSERT INTO {t} VALUES (REPEAT('a', 768), 1), (REPEAT('b', 767), 2)")),
    History("key_of_16_columns", ("UPDATE {t} SET v = v + 1", "UPDATE {t} SET k5 = 99, k16 = 3 WHERE k1 = 1", "DELETE FROM {t} WHERE k1 = 2"), made=(f"CREATE TABLE {{t}} ({', '.join(f'{name} INT' for name in _KEY_COLUMNS)}, v INT, PRIMARY KEY ({', '.join(reversed(_KEY_COLUMNS))}))", *(f"INSERT INTO {{t}} VALUES ({', '.join([str(n)] * 16)}, 0)" for n in (1, 2, 3)))),
    History("key_of_a_prefix", ("INSERT INTO {t} VALUES (REPEAT('c', 3000), 1)", "UPDATE {t} SET v = 5", "DELETE FROM {t} WHERE k LIKE 'b%'", "UPDATE {t} SET k = CONCAT(k, 'tail') WHERE k LIKE 'a%'"), made=("CREATE TABLE {t} (k TEXT, v INT, PRIMARY KEY (k(10)))", "INSERT INTO {t} VALUES (REPEAT('a', 300), 1), (REPEAT('b', 30), 1)")),
    History("key_invisible", ("INSERT INTO {t} (v) VALUES (5), (6)", "UPDATE {t} SET v = v + 1", "DELETE FROM {t} WHERE v = 2"), made=("CREATE TABLE {t} (id INT AUTO_INCREMENT INVISIBLE PRIMARY KEY, v INT)", "INSERT INTO {t} (v) VALUES (1), (2), (3)")),
    History("key_generated", ("INSERT INTO {t} (a) VALUES (5), (6)", "UPDATE {t} SET a = a + 1", "DELETE FROM {t} WHERE a = 2", "ALTER TABLE {t} ALTER COLUMN my_row_id SET VISIBLE", "UPDATE {t} SET a = a + 1 WHERE a > 3", "ALTER TABLE {t} ALTER COLUMN my_row_id SET INVISIBLE", "DELETE FROM {t} WHERE a = 3"), MYSQL, ("SET SESSION sql_generate_invisible_primary_key = ON", "CREATE TABLE {t} (a INT)", "INSERT INTO {t} (a) VALUES (1), (2), (3)")),
    History("key_functional", ("INSERT INTO {t} VALUES (9, 'ZZ', 3)", "UPDATE {t} SET note = 'yy' WHERE id = 1", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET note = 'ww', n = 1 WHERE id = 2", "DELETE FROM {t} WHERE id = 3"), MYSQL, ("CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40), n INT, UNIQUE KEY ((UPPER(note))), KEY ((n * 2)))", _ROWS)),
    History("key_functional_alone", ("INSERT INTO {t} VALUES (9, 'ZZ', 3)", "UPDATE {t} SET note = 'yy' WHERE id = 1", "DELETE FROM {t} WHERE id = 3"), MYSQL, ("CREATE TABLE {t} (id INT, note VARCHAR(40), n INT, UNIQUE KEY ((UPPER(note))))", _ROWS)),
    History("key_of_hashes", ("INSERT INTO {t} VALUES (5, REPEAT('z', 5000))", "UPDATE {t} SET b = REPEAT('y', 4000) WHERE id = 1", "REPLACE INTO {t} VALUES (9, REPEAT('y', 4000))", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET b = 's' WHERE id = 2"), MARIADB, ("CREATE TABLE {t} (id INT PRIMARY KEY, b BLOB, UNIQUE (b))", "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")),
    History("key_of_a_period", ("UPDATE {t} FOR PORTION OF p FROM '2020-03-01' TO '2020-06-01' SET n = 2", "DELETE FROM {t} FOR PORTION OF p FROM '2020-04-01' TO '2020-05-01'"), MARIADB, ("CREATE TABLE {t} (id INT, n INT, a DATE, b DATE, PERIOD FOR p (a, b), UNIQUE (id, p WITHOUT OVERLAPS))", "INSERT INTO {t} VALUES (1, 1, '2020-01-01', '2021-01-01')")),
    History("no_key", ("INSERT INTO {t} VALUES (1, 'a', 1), (1, 'a', 1), (1, 'a', 1)", "DELETE FROM {t} WHERE id = 1 LIMIT 2", "UPDATE {t} SET n = 9 LIMIT 1", "INSERT INTO {t} VALUES (NULL, NULL, NULL), (NULL, NULL, NULL)", "DELETE FROM {t} WHERE id IS NULL LIMIT 1", "ALTER TABLE {t} ORDER BY n DESC", "UPDATE {t} SET n = 3 WHERE id = 2", "ALTER TABLE {t} FORCE", "OPTIMIZE TABLE {t}", "DELETE FROM {t} WHERE id = 2"), made=_KEYLESS),
    # statements
    History("duplicates", ("INSERT INTO {t} VALUES (1, 'dup', 1), (8, 'new', 8) ON DUPLICATE KEY UPDATE note = 'updated', n = n + 1", "REPLACE INTO {t} VALUES (2, 'rep', 2), (11, 'r', 1)", "INSERT IGNORE INTO {t} VALUES (1, 'ign', 1), (12, 'ok', 1)", "DELETE FROM {t} WHERE id = 3"), made=(*_WITH_LOG, *_TRIGGERS)),
    History("rows_by_triggers", ("INSERT INTO {t} VALUES (30, 'abc', 3)", "UPDATE {t} SET note = 'zzz' WHERE id = 1", "INSERT INTO {t} VALUES (1, 'abc', 3) ON DUPLICATE KEY UPDATE note = 'dup'"), made=(*_PLAIN, "CREATE TRIGGER {t}_b BEFORE INSERT ON {t} FOR EACH ROW SET NEW.note = UPPER(NEW.note), NEW.n = NEW.n * 10", "CREATE TRIGGER {t}_u BEFORE UPDATE ON {t} FOR EACH ROW SET NEW.n = NEW.n + 1")),
    History("two_tables", ("UPDATE {t} a, {t}_2 b SET a.note = 'm', b.note = 'm' WHERE a.id = b.id", "DELETE a, b FROM {t} a LEFT JOIN {t}_2 b ON a.id = b.id WHERE a.id IN (1, 4)", "INSERT INTO {t} SELECT id + 200, note, n FROM {t}_2 UNION SELECT id + 300, note, n FROM {t}"), made=_TWO),
    History("views", ("CREATE VIEW {t}_v AS SELECT * FROM {t} WHERE n < 100 WITH CHECK OPTION", "UPDATE {t}_v SET n = 50 WHERE id = 1", "INSERT INTO {t}_v (id, n) VALUES (62, 5)", "DELETE FROM {t}_v WHERE id = 2")),
    History("temporary", ("CREATE TEMPORARY TABLE {t}_tmp (id INT PRIMARY KEY, w VARCHAR(20))", "INSERT INTO {t}_tmp VALUES (1, 'x'), (2, 'y')", "UPDATE {t} a JOIN {t}_tmp b USING (id) SET a.note = b.w", "DELETE a FROM {t} a JOIN {t}_tmp b USING (id) WHERE b.w = 'y'")),
    History("temporary_filled", ("SET SESSION binlog_format = 'STATEMENT'", "CREATE TEMPORARY TABLE {t}_tmp AS SELECT {t}_book(1) AS n", "CREATE OR REPLACE TEMPORARY TABLE {t}_tmp AS VALUES ({t}_book(2))", "CREATE TEMPORARY TABLE {t}_seen AS SELECT * FROM {t}_v", "SET SESSION binlog_format = 'ROW'"), MARIADB, (*_PLAIN, "CREATE FUNCTION {t}_book(n INT) RETURNS INT DETERMINISTIC MODIFIES SQL DATA BEGIN INSERT INTO {t} VALUES (n + 10, 'booked', n); RETURN n; END", "CREATE VIEW {t}_v AS SELECT {t}_book(3) AS n")),
    History("temporary_of_its_name", ("CREATE TEMPORARY TABLE {t} (id INT PRIMARY KEY, other BLOB)", "INSERT INTO {t} VALUES (1, 'in temp')", "UPDATE {t} SET other = 'q'", "TRUNCATE TABLE {t}", "ALTER TABLE {t} ADD z INT", "ALTER TABLE {t} RENAME TO {t}_tt", "UPDATE {t} SET n = 4 WHERE id = 2", "DROP TABLE {t}_tt", "CREATE TEMPORARY TABLE {t} (a INT)", "DROP TABLE {t}", "UPDATE {t} SET n = 5 WHERE id = 3", "DROP TEMPORARY TABLE IF EXISTS {t}", "DELETE FROM {t} WHERE id = 4")),
    History("made_by_select", ("CREATE TABLE {t}_n (id INT PRIMARY KEY, v INT) AS SELECT id, n AS v FROM {t}", "INSERT INTO {t} SELECT id + 20, 'c', v FROM {t}_n", "DROP TABLE {t}", "CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40)) AS SELECT id, 'again' AS note FROM {t}_n", "UPDATE {t} SET note = 'u' WHERE id = 1")),
    History("replaced_by_select", ("CREATE OR REPLACE TABLE {t} (id INT PRIMARY KEY, k DATE) AS SELECT 1 AS id, DATE'2020-01-01' AS k", "INSERT INTO {t} VALUES (2, '2021-01-01')"), MARIADB),
    History("engines_mixed", ("BEGIN", "INSERT INTO {t} VALUES (10, 'i', 1)", "INSERT INTO {t}_2 VALUES (10, 'm', 1)", "SAVEPOINT a", "INSERT INTO {t} VALUES (11, 'i', 1)", "INSERT INTO {t}_2 VALUES (11, 'm', 1)", "UPDATE {t}_2 SET note = 'changed' WHERE id = 1", "ROLLBACK TO a", "INSERT INTO {t} VALUES (12, 'i', 1)", "COMMIT", "BEGIN", "DELETE FROM {t} WHERE id = 1", "DELETE FROM {t}_2 WHERE id = 2", "ROLLBACK"), MARIADB, _UNTRANSACTIONAL),
    History("half_a_statement", (REFUSED + "INSERT INTO {t} VALUES (20, 'm', 1), (21, 'm', 1), (3, 'dup', 1), (22, 'm', 1)", REFUSED + "UPDATE {t} SET id = id + 1 ORDER BY id", "DELETE FROM {t} WHERE id = 20"), made=("CREATE TABLE {t} (id INT PRIMARY KEY, note VARCHAR(40), n INT) ENGINE=MyISAM", _ROWS)),
    History("images_in_a_transaction", ("BEGIN", "SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE {t} SET note = 'a' WHERE id = 1", "SET SESSION binlog_row_image = 'NOBLOB'", "UPDATE {t} SET note = 'b' WHERE id = 2", "SET SESSION binlog_row_image = 'FULL'", "UPDATE {t} SET note = 'c' WHERE id = 3", "COMMIT")),
    History("defaults_of_a_sequence", ("CREATE SEQUENCE {t}_s CACHE 3 MAXVALUE 9 CYCLE", "ALTER TABLE {t} MODIFY n INT DEFAULT (NEXTVAL({t}_s))", *(f"INSERT INTO {{t}} (id, note) VALUES ({n}, 's')" for n in range(50, 64)), "ALTER SEQUENCE {t}_s RESTART 2", "INSERT INTO {t} (id, note) VALUES (70, 's')"), MARIADB),
    History("json_in_parts", ("SET SESSION binlog_row_value_options = 'PARTIAL_JSON'", "BEGIN", "UPDATE {t} SET j = JSON_SET(j, '$.a', 2)", "UPDATE {t} SET j = JSON_REMOVE(j, '$.b')", "UPDATE {t} SET j = JSON_ARRAY_APPEND(j, '$.l', 4), k = JSON_SET(k, '$.x', 9)", "COMMIT", "UPDATE {t} SET id = id + 100, j = JSON_REPLACE(j, '$.a', 7)"), MYSQL, ("CREATE TABLE {t} (id INT PRIMARY KEY, j JSON, k JSON)", """INSERT INTO {t} VALUES (1, '{{"a": 1, "b": [1, 2, 3], "l": [1]}}', '{{"x": 1}}'), (2, JSON_OBJECT('a', REPEAT('q', 500), 'b', 1, 'l', JSON_ARRAY()), NULL)""")),
    # transactions
    History("rotated_meanwhile", ("BEGIN", "INSERT INTO {t} VALUES (10, 'a', 1)", OTHER + "FLUSH BINARY LOGS", "INSERT INTO {t} VALUES (11, 'a', 1)", OTHER + "UPDATE {t} SET n = 1 WHERE id = 1", OTHER + "FLUSH BINARY LOGS", "COMMIT", "FLUSH LOGS", "UPDATE {t} SET n = 2 WHERE id = 2")),
    History("clock_set_back", ("SET timestamp = 1000000000", "INSERT INTO {t} VALUES (10, 'old', 1)", "UPDATE {t} SET n = 3 WHERE id = 1", "ALTER TABLE {t} ADD COLUMN w INT DEFAULT 3", "SET timestamp = 1", "UPDATE {t} SET w = 4 WHERE id = 2", "SET timestamp = 2147483647", "UPDATE {t} SET w = 5 WHERE id = 3", "SET timestamp = DEFAULT", "UPDATE {t} SET w = 6 WHERE id = 4", KILL_AGENT, "UPDATE {t} SET w = 7 WHERE id = 4")),
    History("domains", ("SET SESSION gtid_domain_id = 3", OTHER + "SET SESSION gtid_domain_id = 4", *(word for n in range(10, 30) for word in (f"INSERT INTO {{t}} VALUES ({n}, 'a', 1)", OTHER + f"UPDATE {{t}} SET n = n + 1 WHERE id = {n}", OTHER + f"DELETE FROM {{t}} WHERE id = {n - 3}")), KILL_AGENT, OTHER + "UPDATE {t} SET note = 'd' WHERE id = 29"), MARIADB),
    History("numbers_ahead", ("SET SESSION server_id = 77", "INSERT INTO {t} VALUES (10, 'a', 1)", "SET SESSION gtid_seq_no = 999999", "INSERT INTO {t} VALUES (11, 'a', 1)", "UPDATE {t} SET n = 1 WHERE id = 11", "SET SESSION skip_replication = 1", "INSERT INTO {t} VALUES (12, 'skip', 1)"), MARIADB),
    History("numbers_with_gaps", ("SET gtid_next = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:5'", "INSERT INTO {t} VALUES (10, 'g', 1)", "SET gtid_next = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:3'", "BEGIN", "COMMIT", KILL_AGENT, "SET gtid_next = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:2'", "UPDATE {t} SET n = 5 WHERE id = 1", "SET gtid_next = 'AUTOMATIC'", KILL_AGENT, "UPDATE {t} SET n = 6 WHERE id = 2"), MYSQL),
    History("by_hand", ("SET autocommit = 0", "INSERT INTO {t} VALUES (10, 'l', 1)", "ALTER TABLE {t} ADD COLUMN more INT DEFAULT 1", "UPDATE {t} SET more = 2 WHERE id = 1", "CREATE TABLE {t}_z (a INT)", "DELETE FROM {t} WHERE id = 2", "ROLLBACK", "DELETE FROM {t} WHERE id = 3", "COMMIT", "LOCK TABLES {t} WRITE", "ALTER TABLE {t} ADD COLUMN most INT DEFAULT 1", "UPDATE {t} SET most = 2 WHERE id = 1", "UNLOCK TABLES", "INSERT INTO {t} (id) VALUES (77)", LEAVE, "INSERT INTO {t} (id) VALUES (78)")),
    History("in_memory", (RESTART, "SELECT * FROM {t}", "INSERT INTO {t} VALUES (9, 'nine', 9)", KILL, "INSERT INTO {t} VALUES (8, 'eight', 8)"), made=("CREATE TABLE {t} (id INT, note VARCHAR(40), n INT, PRIMARY KEY (id) USING BTREE) ENGINE=MEMORY", _ROWS)),
    # definitions
    History("swapped_by_way_of_outside", (f"RENAME TABLE {{t}} TO {OUTSIDE}.{{t}}_x, {{t}}_2 TO {{t}}, {OUTSIDE}.{{t}}_x TO {{t}}_2", "UPDATE {t} SET n = 50 WHERE id = 1", "UPDATE {t}_2 SET n = 60 WHERE id = 1", f"RENAME TABLE {{t}} TO {OUTSIDE}.{{t}}, {{t}}_2 TO {{t}}, {OUTSIDE}.{{t}} TO {{t}}_2", "INSERT INTO {t} VALUES (99, 'z', 1)", "INSERT INTO {t}_2 VALUES (98, 'z', 1)"), made=_TWO),
    History("unchecked", ("SET SESSION foreign_key_checks = 0, unique_checks = 0", "INSERT INTO {t}_2 VALUES (9, 999)", "DELETE FROM {t} WHERE id = 1", "SET SESSION foreign_key_checks = 1", "DELETE FROM {t} WHERE id = 2", "TRUNCATE TABLE {t}_2", "SET SESSION foreign_key_checks = 0", "TRUNCATE TABLE {t}", "INSERT INTO {t} VALUES (1, 'x', 1)"), made=_WITH_CHILD),
    History("modes", ("SET SESSION sql_mode = 'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES'", """ALTER TABLE "{t}" ADD COLUMN "w\\" VARCHAR(9) DEFAULT 'a\\b'""", """INSERT INTO "{t}" (id) VALUES (40)""", "SET SESSION sql_mode = 'NO_ZERO_DATE'", "ALTER TABLE {t} ADD COLUMN z DATE DEFAULT NULL", "UPDATE {t} SET z = '2020-02-02' WHERE id = 1")),
    History("moments", ("ALTER TABLE {t} ADD COLUMN at TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)", "INSERT INTO {t} (id) VALUES (42)", "UPDATE {t} SET n = n + 1 WHERE id = 1", "SET SESSION time_zone = '+05:00'", "ALTER TABLE {t} ADD COLUMN b TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00'", "UPDATE {t} SET n = n + 1 WHERE id = 2")),
    History("by_procedures", ("CREATE PROCEDURE {t}_p() BEGIN INSERT INTO {t} (id) VALUES (60); ALTER TABLE {t} ADD COLUMN p INT DEFAULT 8; UPDATE {t} SET p = 9 WHERE id = 1; END", "CALL {t}_p()", "PREPARE s FROM 'ALTER TABLE {t} ADD COLUMN q INT DEFAULT 4'", "EXECUTE s", "EXECUTE IMMEDIATE 'ALTER TABLE {t} DROP COLUMN p'"), MARIADB),
    History("many_versions", tuple(word for n in range(12) for word in (f"ALTER TABLE {{t}} ADD COLUMN i{n} INT DEFAULT {n} FIRST", f"UPDATE {{t}} SET i{n} = 100 WHERE id = {n % 4 + 1}", *([f"ALTER TABLE {{t}} DROP COLUMN i{n - 3}"] if n > 3 else [])))),
)  # fmt: skip


def histories_of(name: str) -> list[History]:
    return [history for history in HISTORIES if name in history.servers]
