"""What a statement does to rows and names, beyond how tables look afterwards."""

import random

import pytest

from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.model import Catalog, ChangeKind, EarlierRows, Rows, Server, Statement
from agent.sources.mysql.ddl.query_status import parse_status
from agent.sources.mysql.log.events import EventBodyError
from agent.sources.mysql.types import BINARY_KINDS, Kind
from tests.agent.ddl.test_corpus import CORPUS, statements
from tests.agent.ddl.tracking import Tracking
from tests.servers import Flavor

MYSQL = Server(mariadb=False, version=(9, 7, 4))
MARIADB = Server(mariadb=True, version=(10, 11, 19))
EMPTY = Catalog({}, {"t": "utf8mb4", "o": "latin1"})


def after(*texts: str, server: Server = MYSQL, catalog: Catalog = EMPTY) -> Catalog:
    for text in texts:
        applied = apply(catalog, Statement(text, "t"), server)
        assert not applied.unsure, applied.unsure
        catalog = applied.catalog
    return catalog


def told(catalog: Catalog, text: str, server: Server = MYSQL) -> list[tuple]:
    applied = apply(catalog, Statement(text, "t"), server)
    assert not applied.unsure, applied.unsure
    return [(one.kind.name, one.table[1], one.new_table and one.new_table[1], one.rows) for one in applied.changes]


SOME = after("CREATE TABLE a (id INT PRIMARY KEY, x INT)", "CREATE TABLE b (y INT)", "CREATE TABLE c (z INT)")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ALTER TABLE a ENGINE=InnoDB", [("ALTERED", "a", None, Rows.KEPT)]),
        ("ALTER TABLE a ENGINE=BLACKHOLE", [("ALTERED", "a", None, Rows.REMOVED)]),
        ("ALTER IGNORE TABLE a ADD UNIQUE (x)", [("ALTERED", "a", None, Rows.PARTLY_REMOVED)]),
        ("ALTER TABLE a DROP PARTITION p1, p2", [("ALTERED", "a", None, Rows.PARTLY_REMOVED)]),
        ("ALTER TABLE a TRUNCATE PARTITION ALL", [("ALTERED", "a", None, Rows.REMOVED)]),
        ("ALTER TABLE a DISCARD TABLESPACE", [("ALTERED", "a", None, Rows.REMOVED)]),
        ("ALTER TABLE a DISCARD PARTITION p TABLESPACE", [("ALTERED", "a", None, Rows.PARTLY_REMOVED)]),
        ("ALTER TABLE a IMPORT TABLESPACE", [("ALTERED", "a", None, Rows.ARRIVED)]),
        ("ALTER TABLE a IMPORT PARTITION ALL TABLESPACE", [("ALTERED", "a", None, Rows.ARRIVED)]),
        (
            "ALTER TABLE a EXCHANGE PARTITION p WITH TABLE b",
            [
                ("ALTERED", "a", None, Rows.PARTLY_REMOVED | Rows.ARRIVED),
                ("ALTERED", "b", None, Rows.REMOVED | Rows.ARRIVED),
            ],
        ),
        (
            "ALTER TABLE a CONVERT PARTITION p TO TABLE n",
            [("ALTERED", "a", None, Rows.PARTLY_REMOVED), ("CREATED", "n", None, Rows.ARRIVED)],
        ),
        (
            "ALTER TABLE a CONVERT TABLE b TO PARTITION p VALUES LESS THAN (9)",
            [("ALTERED", "a", None, Rows.ARRIVED), ("DROPPED", "b", None, Rows.REMOVED)],
        ),
        ("TRUNCATE a", [("TRUNCATED", "a", None, Rows.REMOVED)]),
        ("DROP TABLE a, nosuch", [("DROPPED", "a", None, Rows.REMOVED)]),
        ("CREATE TABLE IF NOT EXISTS a (q INT)", []),
        ("CREATE TABLE n (q INT)", [("CREATED", "n", None, Rows.KEPT)]),
        (
            "CREATE OR REPLACE TABLE a (q INT)",
            [("DROPPED", "a", None, Rows.REMOVED), ("CREATED", "a", None, Rows.KEPT)],
        ),
        ("RENAME TABLE a TO n", [("RENAMED", "a", "n", Rows.REMOVED), ("CREATED", "n", None, Rows.ARRIVED)]),
        (
            "ALTER TABLE a ADD q INT, RENAME n",
            [("RENAMED", "a", "n", Rows.REMOVED), ("CREATED", "n", None, Rows.ARRIVED)],
        ),
        ("RENAME TABLE a TO n, n TO a", []),
        (
            "RENAME TABLE a TO n, b TO a, n TO b",
            [
                ("RENAMED", "b", "a", Rows.REMOVED),
                ("RENAMED", "a", "b", Rows.REMOVED),
                ("CREATED", "a", None, Rows.ARRIVED),
                ("CREATED", "b", None, Rows.ARRIVED),
            ],
        ),
        ("CREATE VIEW v AS SELECT * FROM a", []),
        ("DROP DATABASE t", [("DROPPED", table, None, Rows.REMOVED) for table in "abc"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_apply_when_rows_move_without_row_events_then_says_what_became_of_them(text, wanted):
    assert told(SOME, text) == wanted


def test_apply_when_a_table_is_altered_and_renamed_then_one_change_tells_all():
    applied = apply(SOME, Statement("ALTER TABLE a CHANGE x w BIGINT, ADD q INT DEFAULT 7, RENAME TO o.n", "t"), MYSQL)
    change = applied.changes[0]
    assert (change.kind, change.new_table) == (ChangeKind.RENAMED, ("o", "n"))
    assert change.renamed_columns == (("x", "w"),)
    assert [(column.name, column.earlier_rows, column.text) for column in change.added_columns] == [
        ("q", EarlierRows.TEXT, "7")
    ]
    assert change.before == SOME.tables["t", "a"]
    assert change.after == applied.catalog.tables["o", "n"] == applied.changes[1].after
    assert ("t", "a") not in applied.catalog.tables


@pytest.mark.parametrize(
    ("text", "tables"),
    [
        ("ALTER TABLE nosuch ADD q INT", ["nosuch"]),
        ("ALTER TABLE a DROP nosuch", ["a"]),
        ("ALTER TABLE a ADD x INT", ["a"]),
        ("ALTER TABLE a ADD q SOMETHING", ["a"]),
        ("ALTER TABLE a FROBNICATE b", ["a", "b"]),
        ("ALTER TABLE a ADD q INT AFTER nosuch", ["a"]),
        ("CREATE TABLE n (a INT) SELECT 1", ["n"]),
        ("CREATE TABLE n LIKE nosuch", ["n"]),
        ("CREATE TABLE n (a INT", ["n"]),
        ("CREATE TABLE n (a VARCHAR(5) DEFAULT 'not closed", []),
        ("CREATE TABLE q.n (a VARCHAR(5))", ["n"]),
        ("RENAME TABLE a TO b frobnicate", ["a", "b"]),
        ("DROP TABLE a b", ["a", "b"]),
    ],
)
def test_apply_when_a_statement_is_not_understood_then_its_tables_are_unknown(text, tables):
    applied = apply(SOME, Statement(text, "t"), MYSQL)
    assert {unsure.table[1] for unsure in applied.unsure} >= set(tables)
    assert all(applied.catalog.tables[unsure.table] is None for unsure in applied.unsure)
    assert applied.changes == () or text.startswith("RENAME") or "SELECT" in text


def test_apply_when_a_statement_failed_then_only_what_it_dropped_is_sure():
    failed = apply(SOME, Statement("ALTER TABLE a ADD q INT", "t", error_code=1317), MARIADB)
    assert [unsure.table for unsure in failed.unsure] == [("t", "a")]
    dropped = apply(SOME, Statement("DROP TABLE `a`,`nosuch`", "t", error_code=1051), MARIADB)
    assert ("t", "a") not in dropped.catalog.tables and not dropped.unsure
    replaced = apply(SOME, Statement("CREATE OR REPLACE TABLE a (q INT, q INT)", "t", error_code=1060), MARIADB)
    assert ("t", "a") not in replaced.catalog.tables and not replaced.unsure
    emptied = apply(SOME, Statement("DROP DATABASE t", "t", error_code=1146), MARIADB)
    assert not emptied.catalog.tables and "t" not in emptied.catalog.databases


@pytest.mark.parametrize("names", [1, 2])
def test_apply_when_the_server_ignores_case_then_names_are_found(names):
    server = Server(mariadb=False, version=(9, 7, 4), lower_case_table_names=names)
    catalog = after("CREATE TABLE Orders (id INT)", "ALTER TABLE orders ADD x INT", server=server)
    key = ("t", "orders" if names == 1 else "Orders")
    assert [column.name for column in catalog.tables[key].columns] == ["id", "x"]
    assert not after("DROP TABLE ORDERS", server=server, catalog=catalog).tables


#: a column's words, one a line
ADDED = """
    INT
    INT DEFAULT 5
    INT NOT NULL
    BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615
    BOOL DEFAULT TRUE
    DECIMAL(10,2) NOT NULL
    DECIMAL(10,2) DEFAULT 1.5
    DECIMAL(20,10) NOT NULL
    INT ZEROFILL NOT NULL DEFAULT 7
    VARCHAR(5)
    VARCHAR(5) NOT NULL
    VARCHAR(9) DEFAULT 'é''x'
    CHAR(5) DEFAULT 'a '
    TEXT NOT NULL
    VARCHAR(5) CHARACTER SET latin1 DEFAULT 'ü'
    ENUM('p','q') NOT NULL
    ENUM('p','q') DEFAULT 'Q'
    SET('p','q') NOT NULL
    SET('p','q') DEFAULT 'q,p'
    BINARY(3) NOT NULL
    BINARY(3) DEFAULT 'a'
    VARBINARY(5) DEFAULT 0x00FF00
    VARBINARY(5) NOT NULL
    BLOB NOT NULL
    BIT(9) DEFAULT b'101'
    BIT(3) NOT NULL
    DATE DEFAULT '2020-1-2'
    DATE NOT NULL
    DATETIME(3) DEFAULT '2020-01-02 03:04:05.6789'
    DATETIME(2) NOT NULL
    TIMESTAMP NULL
    TIMESTAMP(2) NULL DEFAULT '2020-01-02 03:04:05.5'
    TIME(1) DEFAULT '-1:2:3.46'
    TIME NOT NULL
    YEAR NOT NULL
    YEAR DEFAULT 69
    DOUBLE DEFAULT 0.1
    FLOAT NOT NULL
    FLOAT DEFAULT 2.5
    DOUBLE(8,2) DEFAULT 1.239
    JSON
    VARCHAR(9) DEFAULT ('abc')
    INT DEFAULT (3)
    TEXT DEFAULT ('long')
    TEXT DEFAULT 'long'
    INET6 DEFAULT '::0001'
    INET6 NOT NULL
    UUID NOT NULL
    INET4 NOT NULL
    UUID DEFAULT '123E4567-E89B-12D3-A456-426655440000'
    DATE DEFAULT '0000-00-00'
    TIMESTAMP NULL DEFAULT 0
    DATETIME DEFAULT CURRENT_TIMESTAMP
    VARCHAR(36) DEFAULT (uuid())
    INT AS (id + 1)
    INT AUTO_INCREMENT UNIQUE
"""
COMPUTED = ("CURRENT_TIMESTAMP", "uuid()", "AS (", "AUTO_INCREMENT")


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_added_columns_when_rows_were_there_then_hold_what_was_told(both: dict[Flavor, Tracking], flavor: Flavor):
    tracked = both[flavor]
    tracked.reset()
    tracked.run("SET sql_mode = ''")
    tracked.run("SET time_zone = '+02:00'")
    tracked.run("CREATE TABLE a (id INT PRIMARY KEY)")
    tracked.run("INSERT INTO a VALUES (1)")
    reader = tracked.running.connect(database="t", init_command="SET time_zone = '+00:00'")
    compared = 0
    for number, words in enumerate(line.strip() for line in ADDED.strip().splitlines()):
        outcome = tracked.run(f"ALTER TABLE a ADD c{number} {words}")
        if outcome.refused:
            continue
        change = outcome.applied[0].changes[0]
        assert change.after is not None
        kind = change.after.columns[-1].type.kind
        (column,) = change.added_columns
        shown = f"HEX(c{number})" if kind in BINARY_KINDS else f"CAST(c{number} + 0 AS CHAR)"
        if kind not in BINARY_KINDS and kind is not Kind.BIT:
            shown = f"CAST(c{number} AS CHAR)"
        with reader.cursor() as cursor:
            cursor.execute(f"SELECT c{number} IS NULL, {shown} FROM a")
            is_null, text = cursor.fetchone()
        if any(word in words for word in COMPUTED):
            assert column.earlier_rows is EarlierRows.UNKNOWN, words
        elif is_null:
            assert column.earlier_rows is EarlierRows.NULL, words
        else:
            assert column.earlier_rows is EarlierRows.TEXT, words
            same = column.text == text or (
                kind in (Kind.FLOAT, Kind.DOUBLE, Kind.INT) and float(column.text) == float(text)
            )
            assert same, (words, column.text, text)
        compared += 1
        tracked.run(f"ALTER TABLE a DROP c{number}")
    reader.close()
    assert compared > 40


def test_apply_when_statements_are_damaged_then_never_fails():
    chance = random.Random(20)
    texts = [text for theme in CORPUS for text, _ in statements(theme.read_text())]
    for _ in range(6000):
        text = chance.choice(texts)
        for _ in range(chance.randint(1, 3)):
            start, end = sorted(chance.randint(0, len(text)) for _ in range(2))
            piece = chance.choice(texts)
            some = chance.choice(
                ["", "'", "`", "(", ")", ",", "/*", "*/", "é", "\udce9", "9" * 5000, piece[:9], piece[-9:]]
            )
            text = text[:start] + some + text[min(end, start + 12) :]
        for server in (MYSQL, MARIADB):
            apply(SOME, Statement(text, "t", sql_mode=chance.choice([0, 4, 1 << 20, 1 << 10])), server)


def test_parse_status_when_variables_are_cut_off_then_raises():
    whole = bytes.fromhex("00000000010100002054000000000603737464042d002d0008000506532b30323a30")
    assert parse_status(whole, mariadb=True).collation_client == 45
    assert parse_status(whole, mariadb=True).explicit_defaults_for_timestamp is True
    assert parse_status(whole + b"\xc8whatever", mariadb=True).sql_mode == 0x54200000
    complete = {0, 5, 14, 19, 26, len(whole)}
    for length in range(len(whole)):
        if length not in complete:
            with pytest.raises(EventBodyError):
                parse_status(whole[:length], mariadb=True)


@pytest.mark.parametrize(
    ("flags", "is_without_effect"), [("8202", True), ("82040000000000000000", False), ("82080100000000000000", True)]
)
def test_parse_status_when_mariadb_alters_in_two_phases_then_only_the_commit_counts(flags, is_without_effect):
    assert parse_status(bytes.fromhex(flags), mariadb=True).is_without_effect is is_without_effect
