# ruff: noqa: E501  (a table: one statement a line)
"""Which columns an ALTER TABLE converts: those that are told, and no others, have other values in the lake afterwards.

Each statement runs on real servers, is read from their logs, and the rows that a dump lands before and after it are
compared column by column.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.converted import COMPUTED, converted
from agent.sources.mysql.ddl.model import (
    AddedColumn,
    Catalog,
    Change,
    EarlierRows,
    Rows,
    Server,
    Statement,
    TableDefinition,
)
from agent.sources.mysql.ddl.sql_modes import Session
from tests.agent.ddl.converting import lake_values, landed
from tests.agent.ddl.tracking import Tracking, tracking
from tests.servers import Flavor, server

BOTH = ("mysql", "mariadb")
STRICT = "STRICT_TRANS_TABLES"
NO_ZERO = "NO_ZERO_DATE,NO_ZERO_IN_DATE"


@dataclass(frozen=True)
class Case:
    name: str
    columns: str
    values: tuple[str, ...]
    alter: str
    #: columns that are told, and whose values in earlier rows differ
    told: tuple[str, ...] = ()
    #: that are told although these values stay the same: others would not
    careful: tuple[str, ...] = ()
    sql_mode: str = ""
    time_zone: str = "+00:00"
    on: tuple[str, ...] = BOTH
    #: how many rows IGNORE leaves
    left: int | None = None
    engine: str = "InnoDB"
    #: the statement that makes the table names it; else it is the session's
    names_engine: bool = True


_ZEROS = ("0, 0", "0, 1", "7, 2")
_COMPUTED = "a DECIMAL(4,2), g INT AS (a * 100) {}, h INT AS (g + 1) STORED"
_ODD = "a INT, d DATE, e DATETIME(3), f DATE NOT NULL"
_ODD_VALUES = (
    "1, '2024-02-30', '2024-02-30', '2024-02-30'",
    "2, '2024-00-10', '2024-00-10', '2024-00-10'",
    "3, '2024-01-02', '2024-01-02', '2024-01-02'",
)
_TWICE = "a INT, t TIMESTAMP NULL, u TIMESTAMP(3) NOT NULL"
#: in America/New_York both are 01:30
_TWICE_VALUES = (
    "1, '2024-11-03 05:30:00', '2024-11-03 05:30:00.5'",
    "2, '2024-11-03 06:30:00', '2024-11-03 06:30:00.5'",
)

CASES = [
    # NULL
    *(
        Case(f"NOT NULL of {type_}", f"a {type_} NULL", ("NULL", value), f"MODIFY a {type_} NOT NULL", ("a",))
        for type_, value in (("INT", "7"), ("VARCHAR(5)", "'x'"), ("DATE", "'2024-01-02'"), ("BLOB", "X'01'"), ("ENUM('a','b')", "'b'"))
    ),
    Case("NOT NULL with a default", "a INT NULL", ("NULL",), "MODIFY a INT NOT NULL DEFAULT 5", ("a",)),
    Case("NOT NULL of a timestamp", "a TIMESTAMP NULL", ("NULL",), "MODIFY a TIMESTAMP NOT NULL", ("a",)),
    Case("NOT NULL of a timestamp, strict", "a TIMESTAMP NULL", ("NULL",), "MODIFY a TIMESTAMP NOT NULL", ("a",), sql_mode=STRICT, on=("mariadb",)),
    Case("NOT NULL, strict", "a INT NULL", ("7",), "MODIFY a INT NOT NULL", sql_mode=STRICT),
    Case("primary key", "k INT, a INT NULL", ("1, NULL", "2, 5"), "DROP PRIMARY KEY, ADD PRIMARY KEY (k), MODIFY a BIGINT NOT NULL", ("a",), ("k",)),
    Case("NULL", "a INT NOT NULL", ("7",), "MODIFY a INT NULL"),
    # AUTO_INCREMENT
    Case("AUTO_INCREMENT", "n INT NOT NULL, a INT, KEY (n)", _ZEROS, "MODIFY n INT AUTO_INCREMENT", ("n",)),
    Case("AUTO_INCREMENT, strict", "n INT NOT NULL, a INT, KEY (n)", _ZEROS, "MODIFY n INT AUTO_INCREMENT", ("n",), sql_mode=STRICT),
    Case("AUTO_INCREMENT, zero", "n INT NOT NULL, a INT, KEY (n)", _ZEROS, "MODIFY n INT AUTO_INCREMENT", sql_mode="NO_AUTO_VALUE_ON_ZERO"),
    Case("AUTO_INCREMENT of NULL", "n INT NULL, a INT, KEY (n)", ("NULL, 1", "0, 2"), "MODIFY n INT AUTO_INCREMENT", ("n",), sql_mode="NO_AUTO_VALUE_ON_ZERO"),
    Case("AUTO_INCREMENT, wider", "n INT NOT NULL AUTO_INCREMENT, a INT, KEY (n)", _ZEROS, "MODIFY n BIGINT AUTO_INCREMENT"),
    # generated columns
    Case("expression", "a INT, g INT AS (a + 1) STORED", ("1, DEFAULT",), "MODIFY g INT AS (a + 2) STORED", ("g",)),
    Case("expression, virtual", "a INT, g INT AS (a + 1) VIRTUAL", ("1, DEFAULT",), "MODIFY g INT AS (a + 2) VIRTUAL", ("g",)),
    Case("the same expression", "a INT, g INT AS (a + 1) STORED", ("1, DEFAULT",), "MODIFY g INT AS (a  +  1) STORED", sql_mode=f"{STRICT},ALLOW_INVALID_DATES"),
    Case("another type", "a INT, g INT AS (a / 2) STORED", ("1, DEFAULT",), "MODIFY g DECIMAL(5,2) AS (a / 2) STORED", ("g",)),
    Case("base converted", _COMPUTED.format("STORED"), ("1.26, DEFAULT, DEFAULT",), "MODIFY a DECIMAL(4,1)", ("a", "g", "h")),
    Case("base converted, virtual", _COMPUTED.format("VIRTUAL"), ("1.26, DEFAULT, DEFAULT",), "MODIFY a DECIMAL(4,1)", ("a", "g", "h")),
    Case("base wider", "a INT, g VARCHAR(20) AS (CONCAT(a, '')) STORED", ("7, DEFAULT",), "MODIFY a INT(5) ZEROFILL", ("g",), ("a",)),
    Case("base compares otherwise", "a VARCHAR(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, g INT AS (a = 'X') VIRTUAL", ("'x', DEFAULT",),
         "MODIFY a VARCHAR(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", ("g",)),
    Case("tables's collation", "a VARCHAR(5) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, g INT AS (a = 'X') VIRTUAL", ("'x', DEFAULT",),
         "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", ("g",)),
    Case("base left alone", "a INT, b INT, g INT AS (a + 1) STORED", ("1, 2, DEFAULT",), "MODIFY b BIGINT"),
    Case("no longer computed", "a INT, g INT AS (a + 1) STORED", ("1, DEFAULT",), "MODIFY g INT"),
    Case("no longer computed, shorter", "a INT, g INT AS (a + 1) STORED", ("1000, DEFAULT",), "MODIFY g TINYINT", ("g",)),
    Case("computed from now on", "a INT, g INT", ("1, 7",), "MODIFY g INT AS (a + 1) STORED", ("g",)),
    Case("computed in a time zone", "a INT, t TIMESTAMP NULL, g DATETIME AS (t) STORED", ("1, '2024-01-01', DEFAULT",),
         "MODIFY a BIGINT", ("g",), time_zone="+05:00"),
    # what a server computes for earlier rows
    Case("added", "a INT", ("1",), "ADD n DATETIME DEFAULT CURRENT_TIMESTAMP, ADD z INT, ADD d INT DEFAULT 5, ADD g INT AS (a + 1)", ("n", "g")),
    Case("added as a number", "a INT", ("1", "2"), "ADD n INT AUTO_INCREMENT UNIQUE", ("n",)),
    Case("added as an expression", "a INT", ("1",), "ADD u VARCHAR(36) DEFAULT (UUID())", ("u",), on=("mariadb",)),
    # names
    Case("renamed", "a DECIMAL(6,4), b INT", ("1.2345, 300",), "CHANGE a b DECIMAL(6,2), CHANGE b a TINYINT", ("b", "a")),
    Case("only renamed", "a DECIMAL(6,4), b INT", ("1.2345, 300",), "CHANGE a b DECIMAL(6,4), CHANGE b a INT"),
    Case("dropped and added", "a DECIMAL(6,4), b INT", ("1.2345, 300",), "DROP a, ADD a INT"),
    # tables
    *(
        Case(f"nothing converted: {alter}", "a INT, b TEXT, c CHAR(5), d DATETIME(2), e ENUM('a','b')", ("1, 'b', 'c', '2024-01-02', 'b'",), alter, sql_mode=STRICT)
        for alter in ("FORCE", "ENGINE=InnoDB", "ENGINE=MyISAM", "ROW_FORMAT=COMPACT", "ORDER BY a", "ADD KEY (a)", "ADD UNIQUE (a)", "ALTER a SET DEFAULT 3",
                      "COMMENT = 'x'", "MODIFY a INT COMMENT 'x' AFTER b", "MODIFY e ENUM('a','b','c')", "ADD CHECK (a > 0)", "DROP b", "PARTITION BY HASH (id)")
    ),
    Case("charset", "a VARCHAR(20), b CHAR(5), c ENUM('a','b'), d BLOB", ("'Ж', 'ab', 'a', X'FF'",), "CONVERT TO CHARACTER SET latin1", ("a",), ("b",)),
    Case("wider charset", "a VARCHAR(20) CHARACTER SET latin1, b TEXT CHARACTER SET latin1", ("'ä', 'b'",), "CONVERT TO CHARACTER SET utf8mb4"),
    Case("padded", "a CHAR(5), b CHAR(5)", ("'x', 'x'",), "MODIFY a VARCHAR(5), MODIFY b CHAR(7)", ("a",), sql_mode="PAD_CHAR_TO_FULL_LENGTH"),
    Case("longer vector", "a VECTOR(2), b VECTOR(3)", ("X'0000803F000000C0', X'0000803F000000C00000803F'",), "MODIFY a VECTOR(3), MODIFY b VECTOR(2)", ("b",), on=("mysql",)),
    Case("updated", "a INT, t DATETIME ON UPDATE CURRENT_TIMESTAMP", ("1, '2001-01-01'",), "MODIFY a BIGINT, ALGORITHM=COPY", sql_mode=STRICT),
    # dates that no calendar has
    Case("dates copied", _ODD, _ODD_VALUES, "MODIFY a BIGINT", ("d", "e", "f"), on=("mysql",)),
    Case("dates copied by MariaDB", _ODD, _ODD_VALUES, "MODIFY a BIGINT", on=("mariadb",)),
    *(
        Case(f"dates copied: {alter}", _ODD, _ODD_VALUES, alter, ("d", "e", "f"), sql_mode=NO_ZERO)
        for alter in ("MODIFY a BIGINT", "ADD z INT, ALGORITHM=COPY", "ENGINE=MyISAM", "PARTITION BY HASH (id)", "ADD CHECK (a > 0)")
    ),
    Case("dates of a table that is made anew", _ODD, _ODD_VALUES, "FORCE", careful=("d", "e", "f"), sql_mode=NO_ZERO),
    Case("dates of a table that can't be made anew in place", f"{_ODD}, s TEXT, FULLTEXT (s)", tuple(f"{values}, 'x'" for values in _ODD_VALUES), "FORCE", ("d", "e", "f"), sql_mode=NO_ZERO, on=("mysql",)),
    Case("dates copied beside a new column", _ODD, _ODD_VALUES, "ADD s INT AS (a + 1) STORED", ("d", "e", "f", "s"), sql_mode=NO_ZERO),
    *(
        Case(f"dates of {engine}: {alter}", _ODD, _ODD_VALUES, alter, ("d", "e", "f"), sql_mode=NO_ZERO, on=on, engine=engine)
        for engine, on in (("MyISAM", BOTH), ("Aria", ("mariadb",)))
        for alter in ("ADD z INT", "DROP a", "ADD KEY (a)", "FORCE")
    ),
    Case("dates of the session's engine", _ODD, _ODD_VALUES, "ADD z INT", ("d", "e", "f"), sql_mode=NO_ZERO, engine="MyISAM", names_engine=False),
    Case("dates of the session's engine, which may copy them", _ODD, _ODD_VALUES, "ADD z INT", careful=("d", "e", "f"), sql_mode=NO_ZERO, on=("mariadb",), names_engine=False),
    Case("dates of a table that gets InnoDB", _ODD, _ODD_VALUES, "ENGINE=InnoDB", ("d", "e", "f"), sql_mode=NO_ZERO, engine="MyISAM", names_engine=False),
    Case("dates of the session's engine, strict", _ODD, _ODD_VALUES[2:], "ADD z INT", sql_mode=f"{STRICT},{NO_ZERO}", engine="MyISAM", names_engine=False),
    *(
        Case(f"dates not copied by MyISAM: {alter}", _ODD, _ODD_VALUES, alter, sql_mode=NO_ZERO, engine="MyISAM")
        for alter in ("RENAME COLUMN a TO b", "ALTER a SET DEFAULT 3", "RENAME TO x")
    ),
    Case("dates not copied", _ODD, _ODD_VALUES, "ADD z INT, DROP a", sql_mode=NO_ZERO),
    Case("dates allowed", _ODD, _ODD_VALUES, "MODIFY a BIGINT", sql_mode="ALLOW_INVALID_DATES"),
    Case("zero dates with digits", "d DATETIME", ("'0000-00-00'",), "MODIFY d DATETIME(3)", ("d",), sql_mode=STRICT),
    Case("dates with digits, strict", "d DATETIME", ("'2024-01-02'",), "MODIFY d DATETIME(3)", sql_mode=f"{STRICT},{NO_ZERO}"),
    # an hour that comes twice
    Case("instants copied", _TWICE, _TWICE_VALUES, "MODIFY a BIGINT", ("t", "u"), time_zone="SYSTEM", on=("mysql",)),
    Case("instants copied, strict", _TWICE, _TWICE_VALUES, "ADD z INT, ALGORITHM=COPY", ("t", "u"), sql_mode=f"{STRICT},{NO_ZERO}", time_zone="SYSTEM", on=("mysql",)),
    Case("instants with digits", _TWICE, _TWICE_VALUES, "MODIFY t TIMESTAMP(3) NULL", ("t", "u"), sql_mode=f"{STRICT},{NO_ZERO}", time_zone="SYSTEM", on=("mysql",)),
    Case("instants with digits on MariaDB", _TWICE, _TWICE_VALUES, "MODIFY t TIMESTAMP(3) NULL", sql_mode=f"{STRICT},{NO_ZERO}", time_zone="SYSTEM", on=("mariadb",)),
    Case("instants copied in UTC", _TWICE, _TWICE_VALUES, "MODIFY a BIGINT"),
    Case("instants not copied", _TWICE, _TWICE_VALUES, "ADD z INT", time_zone="SYSTEM"),
    Case("instants copied by MariaDB", _TWICE, _TWICE_VALUES, "MODIFY a BIGINT", time_zone="SYSTEM", on=("mariadb",)),
    # IGNORE
    Case("ignored", "a INT", ("1000", "NULL"), "MODIFY a TINYINT NOT NULL", ("a",), sql_mode=STRICT, on=("mariadb",), left=2),
    Case("ignored key", "a INT UNIQUE", ("1000", "2000"), "MODIFY a TINYINT", ("a",), sql_mode=STRICT, on=("mariadb",), left=1),
    Case("ignored check", "a INT", ("1", "2"), "ADD CHECK (a > 1)", sql_mode=STRICT, on=("mariadb",), left=1),
    Case("ignored partition", "a INT", ("1", "20"), "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (2))", on=("mariadb",), left=1),
]  # fmt: skip


@pytest.fixture(scope="module")
def zoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Flavor, Tracking]]:
    """Servers whose SYSTEM is a time zone with an hour that comes twice."""
    fast = {"binlog_row_metadata": "MINIMAL", "innodb_flush_log_at_trx_commit": "0", "innodb_doublewrite": "0"}
    folder = tmp_path_factory.mktemp("zoned")
    with (
        pytest.MonkeyPatch.context() as patched,
        server("mysql", (patched.setenv("TZ", "America/New_York"), folder / "mysql")[1], **fast) as mysql,
        server("mariadb", folder / "mariadb", **fast) as mariadb,
        tracking(mysql) as of_mysql,
        tracking(mariadb) as of_mariadb,
    ):
        yield {"mysql": of_mysql, "mariadb": of_mariadb}


def run(tracked: Tracking, case: Case) -> tuple[Change, set[str], int]:
    """What is told, columns whose values in the lake differ, and how many rows are left."""
    name, ignore = "x", " IGNORE" if case.left is not None else ""
    tracked.reset()
    tracked.run("SET sql_mode = 'ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO', time_zone = '+00:00'")
    tracked.run(f"SET default_storage_engine = {case.engine}")
    engine = f" ENGINE={case.engine}" if case.names_engine else ""
    made = tracked.run(f"CREATE TABLE {name} (id INT PRIMARY KEY, {case.columns}){engine}")
    assert not made.refused, made
    for number, values in enumerate(case.values, 1):
        assert not tracked.run(f"INSERT INTO {name} VALUES ({number}, {values})").refused
    were, were_odd = landed(tracked.running, name)
    tracked.run(f"SET sql_mode = '{case.sql_mode}', time_zone = '{case.time_zone}'")
    outcome = tracked.run(f"ALTER{ignore} TABLE {name} {case.alter}")
    assert not outcome.refused and not outcome.differences and not outcome.unsure, outcome
    (change,) = outcome.applied[-1].changes
    now, now_odd = landed(tracked.running, name)
    return change, differing(were, were_odd, now, now_odd, change), now.num_rows


def differing(were, were_odd, now, now_odd, change: Change) -> set[str]:
    """By their names of afterwards; of added columns those whose values nobody tells."""
    found = {column.name for column in change.added_columns if column.earlier_rows is EarlierRows.UNKNOWN}
    added = {column.name for column in change.added_columns}
    old_names = {new: old for old, new in change.renamed_columns}
    ids = were["id"].to_pylist()
    for name in set(now.column_names) - added - {"_unrepresentable"}:
        old = old_names.get(name, name)
        ours, theirs = lake_values(were[old], now[name].type), lake_values(now[name], were[old].type)
        assert ours is not None and theirs is not None
        before = dict(zip(ids, zip(ours, (odd.get(old) for odd in were_odd), strict=True), strict=True))
        after = zip(now["id"].to_pylist(), theirs, (odd.get(name) for odd in now_odd), strict=True)
        if any(before[number] != (value, odd) for number, value, odd in after):
            found.add(name)
    return found


@pytest.mark.parametrize(
    ("case", "flavor"), [pytest.param(case, flavor, id=f"{case.name}-{flavor}") for case in CASES for flavor in case.on]
)
def test_alter_when_columns_change_then_those_are_told_whose_values_differ(
    zoned: dict[Flavor, Tracking], case: Case, flavor: Flavor
):
    change, differ, left = run(zoned[flavor], case)

    assert {name for name, _ in change.converted} == {*case.told, *case.careful}, change.converted
    assert differ == set(case.told), differ
    assert len(change.converted) == len({name for name, _ in change.converted}) and all(
        why for _, why in change.converted
    )
    assert left == (len(case.values) if case.left is None else case.left)
    assert (change.rows is Rows.KEPT) == (case.left is None)


@pytest.mark.parametrize("flavor", BOTH)
@pytest.mark.parametrize("labels", ["'ä','b'", "'Ж','b'"])
def test_alter_when_a_charset_is_converted_to_that_takes_members_for_others_then_the_table_is_unsure(
    zoned: dict[Flavor, Tracking], flavor: Flavor, labels: str
):
    """Servers take the bytes of a member of an ENUM or SET for bytes of the new charset."""
    tracked = zoned[flavor]
    tracked.reset()
    assert not tracked.run(f"CREATE TABLE x (id INT PRIMARY KEY, c ENUM({labels}), d SET({labels}))").refused

    outcome = tracked.run("ALTER TABLE x CONVERT TO CHARACTER SET latin1")

    assert not outcome.refused and [unsure.table for unsure in outcome.unsure] == [("t", "x")]


def table(text: str, server: Server) -> TableDefinition:
    applied = apply(Catalog({}, {"t": "utf8mb4"}), Statement(f"CREATE TABLE x ({text})", "t"), server)
    made = applied.catalog.tables["t", "x"]
    assert made is not None, applied.unsure
    return made


MYSQL = Server(mariadb=False, version=(9, 7, 0))


def test_converted_when_two_definitions_are_compared_then_unknown_sessions_count_as_lax_ones():
    before = table(
        "id INT PRIMARY KEY, a INT, b VARCHAR(9), c INT, d DATE, g INT AS (a + 1), h INT AS (b = 'x')", MYSQL
    )
    after = table(
        "id BIGINT PRIMARY KEY, e TINYINT, b VARCHAR(9), c INT NOT NULL, d DATE, g INT AS (e + 1), h INT AS (b = 'x'), n INT",
        MYSQL,
    )

    found = converted(before, after, {"e": "a"}, [AddedColumn("n", EarlierRows.UNKNOWN)], Session(mariadb=False))

    assert dict(found) == {
        "e": "int to tinyint has no place for all values",
        "c": "NOT NULL makes 0, an empty value or the current time of NULL",
        "g": "it is computed from a column that was converted, or by another expression",
        "h": "it is computed from a column that was converted, or by another expression",
        "n": COMPUTED,
    }
    assert converted(before, before, {}, [], Session(mariadb=False)) == (("h", found[3][1]),), (
        "a collation may be another"
    )


def test_converted_when_a_definition_was_kept_by_an_older_agent_then_what_it_lacks_is_not_taken_for_sure():
    before = table("a INT UNSIGNED, t TINYTEXT, g INT AS (a + 1), n INT UNSIGNED", MYSQL)
    after = table("a BIGINT, t TEXT, g INT AS (a + 1), n VARCHAR(20)", MYSQL)
    assert [name for name, _ in converted(before, after, {}, [], Session(mariadb=False))] == ["g"]
    older = replace(
        before, columns=tuple(replace(c, zerofill=None, expression="", shape="", length=0) for c in before.columns)
    )

    assert [name for name, _ in converted(older, after, {}, [], Session(mariadb=False))] == ["t", "g", "n"]


@pytest.mark.parametrize(
    ("session", "strict", "shifts"),
    [
        (Session(False, 0, time_zone="SYSTEM"), False, True),
        (Session(False, 1 << 21, time_zone="SYSTEM", system_time_zone="UTC"), True, False),
        (Session(False, 1 << 22, time_zone="SYSTEM", system_time_zone="CET"), True, True),
        (Session(False, 1 << 21, time_zone="+02:00"), True, False),
        (Session(False, 1 << 21, time_zone="Europe/Vienna"), True, True),
        (Session(False, 1 << 21), True, False),
        (Session(False), False, False),
        (Session(True, 1 << 21, True, "Europe/Vienna"), False, False),
    ],
)
def test_session_when_its_settings_are_known_then_it_says_what_they_refuse_and_shift(session, strict, shifts):
    assert (session.is_strict, session.may_shift_instants) == (strict, shifts)
