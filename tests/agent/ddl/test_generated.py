"""Random DDL on a small schema, on real servers: what is tracked equals information_schema after each statement.

MENURA_DDL_EXAMPLES: how many sequences for each server (default 6). `tracked statements` is printed at the end.
"""

import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent.sources.mysql.ddl.model import Catalog
from tests.agent.ddl.tracking import Tracking
from tests.servers import Flavor

EXAMPLES = int(os.environ.get("MENURA_DDL_EXAMPLES", "6"))
STATEMENTS = 25

NAMES = ["id", "x", "y", "z", "X", "`w w`", "v", "u"]
TABLES = ["a", "b", "c", "`d d`"]
CHARSETS = ["utf8mb4", "latin1", "utf8mb3", "ascii", "ucs2", "binary"]
TYPES = [
    *(
        "INT",
        "TINYINT UNSIGNED",
        "BIGINT",
        "DECIMAL(10,2)",
        "DOUBLE",
        "FLOAT",
        "SMALLINT(4) ZEROFILL",
        "BOOL",
        "BIT(3)",
    ),
    *("VARCHAR(10)", "CHAR(3)", "TEXT", "ENUM('a','b')", "SET('a','c')", "LONGTEXT", "VARCHAR(300)", "CHAR(2) ASCII"),
    *("DATE", "DATETIME(3)", "TIMESTAMP NULL", "TIME", "YEAR", "BLOB", "BINARY(4)", "JSON", "POINT", "VARBINARY(9)"),
]
EXTRAS = [
    *("", "", "", "", "NOT NULL", "NULL", "UNIQUE", "COMMENT 'it''s'", "INVISIBLE", "PRIMARY KEY", "DEFAULT NULL"),
    *("DEFAULT 1", "DEFAULT '1'", "DEFAULT 'a'", "DEFAULT (1)", "NOT NULL DEFAULT 2", "NOT NULL DEFAULT ''"),
]


class Draw:
    """Statements that mostly fit the catalog of the moment."""

    def __init__(self, data: st.DataObject, catalog: Catalog) -> None:
        self._data = data
        self._catalog = catalog

    def one(self, *values: str) -> str:
        return self._data.draw(st.sampled_from(values))

    def table(self, *, there: bool = True) -> str:
        """Mostly one that is there, or mostly one that is not."""
        known = [quoted(table) for database, table in sorted(self._catalog.tables) if database == "t"]
        others = [table for table in TABLES if table not in known]
        return self.one(*((known * 9 if there else known) + (others if there else others * 9)))

    def column(self, table: str, *, there: bool = True) -> str:
        definition = self._catalog.tables.get(("t", table.strip("`")))
        known = [quoted(column.name) for column in definition.columns if not column.hidden] if definition else []
        others = [name for name in NAMES if name not in known]
        return self.one(*((known * 9 if there else known) + (others if there else others * 9)))

    def type(self) -> str:
        text = self.one(*TYPES)
        if text in ("VARCHAR(10)", "CHAR(3)", "TEXT", "VARCHAR(300)"):
            text += self.one("", "", f" CHARACTER SET {self.one(*CHARSETS)}")
        return f"{text} {self.one(*EXTRAS)}".strip()

    def place(self, table: str) -> str:
        return self.one("", "", " FIRST", f" AFTER {self.column(table)}")

    def action(self, table: str) -> str:
        new, old, other = self.column(table, there=False), self.column(table), self.column(table)
        charset = self.one(*CHARSETS)
        return self.one(
            *[f"ADD {self.one('', 'COLUMN ', 'COLUMN IF NOT EXISTS ')}{new} {self.type()}{self.place(table)}"] * 5,
            f"ADD ({new} {self.type()}, {self.column(table, there=False)} {self.type()})",
            *[f"DROP {self.one('', 'COLUMN ', 'COLUMN IF EXISTS ')}{old}"] * 3,
            *[f"MODIFY {old} {self.type()}{self.place(table)}"] * 3,
            *[f"CHANGE {old} {self.one(new, other)} {self.type()}{self.place(table)}"] * 3,
            *[f"RENAME COLUMN {old} TO {self.one(new, new, other)}"] * 2,
            *("DROP PRIMARY KEY", f"ADD PRIMARY KEY ({old})", f"ADD PRIMARY KEY ({old}, {other})"),
            *(f"CONVERT TO CHARACTER SET {charset}", f"DEFAULT CHARACTER SET {charset}"),
            f"ALTER {old} {self.one('DROP DEFAULT', 'SET DEFAULT 3', 'SET DEFAULT NULL', 'SET INVISIBLE')}",
            *(f"ADD UNIQUE u ({old})", f"ADD INDEX ({old})", "DROP INDEX u"),
            *("FORCE", f"RENAME TO {self.table(there=False)}", "ADD SYSTEM VERSIONING", "DROP SYSTEM VERSIONING"),
        )

    def statement(self) -> str:
        table, new = self.table(), self.table(there=False)
        kind = self._data.draw(st.integers(0, 19))
        if kind <= 2:
            names = self._data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique_by=str.lower))
            body = ", ".join(f"{name} {self.type()}" for name in names)
            words = self.one("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", "CREATE OR REPLACE TABLE")
            return f"{words} {new} ({body}){self.one('', ' CHARACTER SET latin1', ' COLLATE utf8mb4_bin')}"
        if kind == 3:
            return self.one(f"CREATE TABLE {new} LIKE {table}", f"CREATE TABLE {new} SELECT * FROM {table}")
        if kind == 4:
            return self.one(f"DROP TABLE {table}", f"DROP TABLE IF EXISTS {table}, {new}", f"TRUNCATE {table}")
        if kind == 5:
            return self.one(
                f"RENAME TABLE {table} TO {new}",
                f"RENAME TABLE {table} TO tmp, {self.table()} TO {table}, tmp TO {new}",
            )
        if kind == 6:
            return f"ALTER DATABASE t CHARACTER SET {self.one(*CHARSETS)}"
        return f"ALTER TABLE {table} {', '.join(self.action(table) for _ in range(self._data.draw(st.integers(1, 3))))}"


def quoted(name: str) -> str:
    return name if name.isalnum() else f"`{name}`"


TEMPLATE = "CREATE TABLE {} (id INT PRIMARY KEY, x VARCHAR(10), y DECIMAL(5,2) DEFAULT 1, z DATETIME, v TEXT)"


@pytest.mark.parametrize("flavor", ["mysql", "mariadb"])
def test_tracked_definitions_when_random_statements_run_then_equal_information_schema(
    both: dict[Flavor, Tracking], flavor: Flavor
):
    tracked = both[flavor]
    ran = unsure = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="MENURA_DDL_EXAMPLES" not in os.environ,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def follow(data: st.DataObject) -> None:
        nonlocal ran, unsure
        tracked.reset()
        done = []
        for number in range(2 + STATEMENTS):
            text = TEMPLATE.format("ab"[number]) if number < 2 else Draw(data, tracked.catalog).statement()
            outcome = tracked.run(text)
            done.append(text)
            assert not outcome.differences, f"{outcome.differences} after {done}"
            ran += len(outcome.statements)
            unsure += len(outcome.unsure)

    follow()
    print(f"{flavor}: tracked statements: {ran}, unsure: {unsure}")  # noqa: T201
    assert unsure <= ran * 0.05, "the tracker must rarely be unsure"
