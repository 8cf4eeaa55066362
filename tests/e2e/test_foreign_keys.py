"""Foreign keys whose actions a server does not log, from real statements to the lake.

Chains of four levels, a tree, composite keys that move, REPLACE, ON DUPLICATE KEY UPDATE, foreign_key_checks=0, and
parents and children in one transaction with changes of their own around.
"""

import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pymysql
import pytest
from deltalake import DeltaTable

from tests.e2e.lake import row_count, table_path, wait_until_equal
from tests.servers import Server, server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

TABLES = {
    "a": "id INT PRIMARY KEY, code VARCHAR(9) UNIQUE, note VARCHAR(9)",
    "b": "id INT PRIMARY KEY, a INT, note VARCHAR(9),"
    " FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE ON UPDATE CASCADE",
    "c": "id INT PRIMARY KEY, b INT, code VARCHAR(9),"
    " FOREIGN KEY (b) REFERENCES b (id) ON DELETE CASCADE ON UPDATE CASCADE,"
    " FOREIGN KEY (code) REFERENCES a (code) ON DELETE SET NULL ON UPDATE CASCADE",
    "d": "id INT PRIMARY KEY, c INT, b INT, FOREIGN KEY (c) REFERENCES c (id) ON DELETE CASCADE ON UPDATE SET NULL,"
    " FOREIGN KEY (b) REFERENCES b (id) ON DELETE SET NULL",
    "e": "id INT PRIMARY KEY, d INT, FOREIGN KEY (d) REFERENCES d (id) ON DELETE CASCADE",
    "tree": "id INT PRIMARY KEY, up INT, a INT, FOREIGN KEY (up) REFERENCES tree (id) ON DELETE CASCADE,"
    " FOREIGN KEY (a) REFERENCES a (id) ON DELETE SET NULL ON UPDATE CASCADE",
    "g": "a INT, n INT, note VARCHAR(9), PRIMARY KEY (a, n),"
    " FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE ON UPDATE CASCADE",
    "h": "id INT PRIMARY KEY, a INT, n INT, FOREIGN KEY (a, n) REFERENCES g (a, n) ON DELETE CASCADE ON UPDATE CASCADE",
}
#: of tables whose key is `id`
COLUMNS = {"c": ("id", "b", "code"), "e": ("id", "d"), "tree": ("id", "up", "a"), "h": ("id", "a", "n")}
VALUES = 40


@pytest.fixture(scope="module", params=["mariadb", "mariadb-11.8", "mysql"])
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flavor, _, release = request.param.partition("-")
    settings = {"innodb_native_foreign_keys": "ON"} if flavor == "mysql" else {}
    with server(flavor, tmp_path_factory.mktemp("origin"), release=release, **settings) as running:
        running.create_replication_user()
        yield running


def statement(random_: random.Random) -> str:
    """One that may be refused."""
    table = random_.choice([*TABLES, "a", "a", "b", "tree"])
    one, other = (random_.choice([random_.randrange(VALUES), "NULL"]) for _ in range(2))
    key = random_.randrange(VALUES)
    text = random_.choice(["NULL", f"'k{random_.randrange(VALUES)}'", f"'K{random_.randrange(VALUES)}'"])
    row = {
        "a": f"({key}, {text}, 'n{other}')",
        "b": f"({key}, {one}, 'n{other}')",
        "c": f"({key}, {one}, {text})",
        "d": f"({key}, {one}, {other})",
        "e": f"({key}, {one})",
        "tree": f"({key}, {one}, {other})",
        "g": f"({key}, {random_.randrange(3)}, 'n{other}')",
        "h": f"({key}, {other}, {random_.randrange(3)})",
    }[table]
    column = "a" if table == "g" else "id"
    kind = random_.randrange(12)
    if kind < 5:
        return f"INSERT INTO {table} VALUES {row}"
    if kind == 5:
        return f"REPLACE INTO {table} VALUES {row}"
    if kind == 6:
        return f"INSERT INTO {table} VALUES {row} ON DUPLICATE KEY UPDATE {column} = {random_.randrange(VALUES)}"
    if kind == 7:
        return f"UPDATE {table} SET {column} = {column} + {VALUES // 2} WHERE {column} BETWEEN {key} AND {key + 1}"
    if kind == 8:
        return f"UPDATE a SET code = {text} WHERE id = {key}"
    if kind == 9 and table == "tree":
        return f"UPDATE tree SET up = {one} WHERE id = {key}"
    return f"DELETE FROM {table} WHERE {column} BETWEEN {key} AND {key + random_.randrange(3)}"


def run_random(origin: Server, database: str, seed: int, transactions: int) -> int:
    """How many statements the server took."""
    random_, taken = random.Random(seed), 0
    with closing(origin.connect(database=database)) as connection, connection.cursor() as cursor:
        for _ in range(transactions):
            cursor.execute(f"SET foreign_key_checks = {int(random_.random() > 0.05)}")
            cursor.execute("BEGIN")
            for _ in range(random_.randint(1, 6)):
                with suppress(pymysql.err.IntegrityError, pymysql.err.OperationalError):
                    taken += cursor.execute(statement(random_))
            cursor.execute(random_.choice(["COMMIT"] * 9 + ["ROLLBACK"]))
    return taken


def check_versions(lake: Path, tenant: str, source: str, database: str, table: str) -> int:
    """Each version of the current state at a cut is what its changelog leaves there; how many were looked at."""
    cuts = DeltaTable(str(lake / "_menura" / "cuts")).to_pyarrow_table().to_pylist()
    found = [row for row in cuts if (row["source"], row["database"], row["table"]) == (source, database, table)]
    looked = [row for row in found if row["current_version"] is not None][-40:]
    paths = [table_path(lake, tenant, source, database, table, part) for part in ("changelog", "current")]
    for row in looked:
        versions = (row["changelog_version"], row["current_version"])
        logged, current = (
            DeltaTable(str(path), version=version).to_pyarrow_table().to_pylist()
            for path, version in zip(paths, versions, strict=True)
        )
        held: dict[object, tuple[object, ...]] = {}
        for change in sorted(logged, key=lambda change: (change["_gsn"], _puts(change))):
            if _puts(change):
                held[change["id"]] = _values(change, table)
            else:
                held.pop(change["id"], None)
        assert sorted(held.values(), key=repr) == sorted((_values(row, table) for row in current), key=repr)
    return len(looked)


def _values(row: dict[str, object], table: str) -> tuple[object, ...]:
    return tuple(row[name] for name in COLUMNS[table])


def _puts(change: dict[str, object]) -> bool:
    return change["_change_type"] in ("insert", "update_postimage", "snapshot")


@pytest.mark.parametrize("begin", ["oldest", "dump"])
def test_rows_when_foreign_keys_act_unlogged_then_the_lake_equals_the_source_at_the_end_and_each_cut_its_changelog(
    origin: Server, running: Stack, begin: str
) -> None:
    release = origin.version.replace(".", "-") or "x"
    source, database = f"keys-{origin.flavor}-{release}-{begin}", f"keys_{begin}"
    origin.run(f"CREATE DATABASE {database}")
    origin.run(*(f"CREATE TABLE {table} ({columns})" for table, columns in TABLES.items()), database=database)
    if begin == "dump":
        assert run_random(origin, database, 1, 300) > 100
    with running.agent(source, {source: origin}), ThreadPoolExecutor(1) as beside:
        for table in TABLES:
            running.wait_for_table(source, database, table)
        writing = beside.submit(run_random, origin, database, 2, 1500) if begin == "dump" else None
        for table in TABLES:
            running.start_sync(source, database, table, begin)
        wait_for("the tables to stream", lambda: running.source(source)["tables"].get("streaming") == len(TABLES))
        taken = writing.result() if writing is not None else run_random(origin, database, 2, 1500)
        assert taken > 500
        wait_until_healed(running, source, origin, database, list(TABLES))
    if begin == "dump":
        return  # what a dump's end takes away stands in the events, not in the changelog
    for table in COLUMNS:  # a cut is recorded a moment after its tables
        where = (running.lake, running.tenant, source, database, table)
        wait_for(f"cuts of {table}", lambda where=where: check_versions(*where))


def begin_empty(
    origin: Server, running: Stack, source: str, database: str, tables: Sequence[str], start: str = "now"
) -> None:
    for table in tables:
        running.start_sync(source, database, table, start)
    wait_for("the tables to stream", lambda: running.source(source)["tables"].get("streaming") == len(tables))


def wait_until_healed(running: Stack, source: str, origin: Server, database: str, tables: Sequence[str]) -> None:
    """Equal, nothing noted, and nothing stopped."""
    wait_until_equal(running.lake, running.tenant, source, origin, database, tables)
    running.wait_until_streaming(source, database, *tables)
    wait_until_equal(running.lake, running.tenant, source, origin, database, tables)


def test_children_when_their_keys_change_while_the_agent_is_away_then_the_lake_equals_the_source(
    origin: Server, running: Stack
) -> None:
    """The agent asks a server that shows the keys of after the changes alone: dropped, added, and with another rule."""
    source, database = f"ddl-{origin.flavor}-{origin.version.replace('.', '-') or 'x'}", "keys_ddl"
    tables = ("p", "dropped", "added", "ruled")
    rule = "ADD CONSTRAINT {0}_key FOREIGN KEY (p) REFERENCES p (id) ON DELETE"
    origin.run(f"CREATE DATABASE {database}", "CREATE TABLE keys_ddl.p (id INT PRIMARY KEY)")
    for table in tables[1:]:
        origin.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, p INT)", database=database)
    for table in ("dropped", "ruled"):
        origin.run(f"ALTER TABLE {table} {rule.format(table)} CASCADE ON UPDATE CASCADE", database=database)
    agent = running.agent(source, {source: origin})
    numbers = ", ".join(f"({number})" for number in range(1, 10))
    pairs = ", ".join(f"({number}, {number})" for number in range(1, 10))
    with agent:
        begin_empty(origin, running, source, database, tables)
        origin.run(f"INSERT INTO p VALUES {numbers}", database=database)
        origin.run(*(f"INSERT INTO {table} VALUES {pairs}" for table in tables[1:]), database=database)
        origin.run("DELETE FROM p WHERE id = 1", database=database)
        wait_until_equal(running.lake, running.tenant, source, origin, database, tables)
    origin.run(
        "DELETE FROM p WHERE id = 2",
        "UPDATE p SET id = 20 WHERE id = 3",
        "ALTER TABLE dropped DROP FOREIGN KEY dropped_key",
        "DELETE FROM added WHERE p IN (1, 2, 3)",
        f"ALTER TABLE added {rule.format('added')} SET NULL ON UPDATE CASCADE",
        "ALTER TABLE ruled DROP FOREIGN KEY ruled_key",
        "DELETE FROM ruled WHERE id = 9",
        f"ALTER TABLE ruled {rule.format('ruled')} SET NULL",
        "DELETE FROM p WHERE id = 4",
        "INSERT INTO p VALUES (4)",
        "INSERT INTO ruled VALUES (30, 4)",
        "DELETE FROM p WHERE id IN (4, 20)",
        database=database,
    )
    with agent:
        origin.run("DELETE FROM p WHERE id = 5", database=database)
        wait_until_healed(running, source, origin, database, tables)


def test_a_child_when_its_parent_is_not_synced_then_it_is_read_again(origin: Server, running: Stack) -> None:
    source, database = f"alone-{origin.flavor}-{origin.version.replace('.', '-') or 'x'}", "keys_alone"
    origin.run(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.p (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.c (id INT PRIMARY KEY, p INT,"
        f" FOREIGN KEY (p) REFERENCES {database}.p (id) ON DELETE CASCADE)",
    )
    with running.agent(source, {source: origin}):
        begin_empty(origin, running, source, database, ["c"])
        origin.run(
            "INSERT INTO p VALUES (1), (2), (3)",
            "INSERT INTO c VALUES (1, 1), (2, 1), (3, 2), (4, 3)",
            database=database,
        )
        for number in (1, 2):
            origin.run(f"DELETE FROM p WHERE id = {number}", database=database)
        wait_until_healed(running, source, origin, database, ["c"])


def test_children_when_a_column_is_computed_from_the_keys_then_it_is_read_again_where_its_values_change(
    origin: Server, running: Stack
) -> None:
    """`c` and `n` compute, over two steps too, from what their keys' actions change; below `c` rows go with it."""
    source, database = f"computed-{origin.flavor}-{origin.version.replace('.', '-') or 'x'}", "keys_computed"
    columns = (
        "id INT PRIMARY KEY, p INT, label VARCHAR(9) AS (CONCAT('p', p)) VIRTUAL, shown VARCHAR(9) AS (UPPER(label))"
    )
    key = "FOREIGN KEY ({0}) REFERENCES {0} (id) ON DELETE"
    origin.run(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.p (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.c ({columns}, {key.format('p')} CASCADE ON UPDATE CASCADE)",
        f"CREATE TABLE {database}.n ({columns}, {key.format('p')} SET NULL ON UPDATE CASCADE)",
        f"CREATE TABLE {database}.below (id INT PRIMARY KEY, c INT, {key.format('c')} CASCADE)",
    )
    tables = ("p", "c", "n", "below")
    with running.agent(source, {source: origin}):
        begin_empty(origin, running, source, database, tables, "oldest")
        origin.run(
            "INSERT INTO p VALUES (1), (2), (3)",
            *(f"INSERT INTO {table} (id, p) VALUES (11, 1), (12, 2), (13, 3)" for table in "cn"),
            "INSERT INTO below VALUES (21, 11), (22, 12), (23, 13)",
            "DELETE FROM n WHERE p = 1",
            "DELETE FROM p WHERE id = 1",
            database=database,
        )
        wait_until_equal(running.lake, running.tenant, source, origin, database, ("p", "c", "below"))
        events = running.get(f"{running.table_path(source, database, 'c')}/events")["events"]
        assert not [event for event in events if event["kind"] == "ROWS_UNLOGGED"], events
        origin.run("UPDATE p SET id = 7 WHERE id = 3", "DELETE FROM p WHERE id = 2", database=database)
        wait_until_healed(running, source, origin, database, tables)


#: tables that were there before their syncs began, by family: the parents first; how each begins; "." is the table
BEGUN: dict[str, tuple[tuple[str, str, str], ...]] = {
    "parent": (("p1", "", "now"), ("c1", "p1", "dump")),
    "grandparent": (("p2", "", "now"), ("m2", "p2", "dump"), ("c2", "m2", "dump")),
    "middle": (("p3", "", "dump"), ("m3", "p3", "now"), ("c3", "m3", "dump"), ("d3", "c3", "dump")),
    "all": (("p4", "", "now"), ("m4", "p4", "now"), ("c4", "m4", "now")),
    "tree": (("t5", "t5", "now"),),
}
FOLLOWS = "FOREIGN KEY (up) REFERENCES {} (id) ON DELETE CASCADE ON UPDATE CASCADE"


@pytest.mark.long
def test_children_when_tables_above_them_began_without_earlier_rows_then_the_lake_equals_the_source(
    origin: Server, running: Stack
) -> None:
    """Rows that only the server has go, and take with them rows of other tables that the lake has."""
    source, database = f"begun-{origin.flavor}-{origin.version.replace('.', '-') or 'x'}", "keys_begun"
    tables = [each for family in BEGUN.values() for each in family]
    origin.run(f"CREATE DATABASE {database}")
    numbers = range(1, 10)
    for table, above, _ in tables:
        key = FOLLOWS.format(above) if above != table else FOLLOWS.format(above).replace("ON UPDATE CASCADE", "")
        origin.run(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, up INT" + (f", {key})" if above else ")"),
            f"INSERT INTO {table} VALUES "
            + ", ".join(f"({number}, {number - (above == table) or 'NULL'})" for number in numbers),
            database=database,
        )
    dumped = [table for table, _, start in tables if start == "dump"]
    whole = [*dumped, "m3", "m4", "c4", "t5"]  # of the others nothing follows that their own rows in the log do not say
    with running.agent(source, {source: origin}):
        for table, _, start in tables:
            running.start_sync(source, database, table, start)
        wait_for("the tables to stream", lambda: running.source(source)["tables"].get("streaming") == len(tables))
        wait_until_equal(running.lake, running.tenant, source, origin, database, dumped, 240)
        for table, above, _ in tables:
            if above and above != table:  # a row that the lake has in each, below one that it lacks
                origin.run(f"INSERT INTO {table} VALUES (100, 1), (101, 2), (102, 3)", database=database)
        origin.run("INSERT INTO t5 VALUES (100, 4)", database=database)
        for parent in ("p1", "p2", "p3", "p4"):
            origin.run(
                f"DELETE FROM {parent} WHERE id = 1",
                f"UPDATE {parent} SET id = 50 WHERE id = 2",
                f"DELETE FROM {parent} WHERE id = 50",
                f"UPDATE {parent} SET id = 60 WHERE id = 4",
                database=database,
            )
        origin.run("DELETE FROM t5 WHERE id = 2", database=database)
        wait_until_healed(running, source, origin, database, whole)


STATEMENTS_OF_SEVERAL_TABLES = (
    # both are named; of others of its children the parent alone
    "DELETE p, c FROM p JOIN c ON c.p = p.id WHERE p.id = 1",
    "DELETE c, p FROM c JOIN p ON c.p = p.id WHERE p.id = 2 AND c.id < 25",
    "DELETE p FROM p LEFT JOIN c ON c.p = p.id WHERE p.id IN (3, 4)",
    "UPDATE p JOIN c ON c.p = p.id SET p.id = 50, c.note = 'both' WHERE p.id = 5 AND c.id = 50",
    "UPDATE p JOIN other ON other.id = p.id SET p.id = 60, other.v = 6 WHERE p.id = 6",
    # two parents act on one row: one takes it away, the other one's value leaves it
    "DELETE p, q FROM p JOIN q ON p.id = q.id WHERE p.id = 7",
    "DELETE q, p FROM q JOIN p ON p.id = q.id WHERE q.id = 8",
    "UPDATE p JOIN q ON p.id = q.id SET p.id = 90, q.id = 90 WHERE p.id = 9",
    # in one transaction, with the child's own changes
    "BEGIN",
    "UPDATE two SET note = 'before' WHERE p = 10",
    "DELETE FROM q WHERE id = 10",
    "UPDATE two SET note = 'between' WHERE p = 10",
    "DELETE FROM p WHERE id = 10",
    "COMMIT",
    # triggers: of the child for its own statements, of the parent for what it does to the child
    "DELETE FROM c WHERE p = 11",
    "DELETE FROM p WHERE id = 11",
    "CREATE TRIGGER p_gone BEFORE DELETE ON p FOR EACH ROW UPDATE c SET note = 'trigger' WHERE p IN (OLD.id, 13)",
    "DELETE FROM p WHERE id = 12",
)


def test_children_when_statements_change_several_tables_at_once_then_the_lake_equals_the_source(
    origin: Server, running: Stack
) -> None:
    """Both sides of a key in one statement, two keys that meet in a row, and triggers on either side."""
    source, database = f"several-{origin.flavor}-{origin.version.replace('.', '-') or 'x'}", "keys_several"
    key = "FOREIGN KEY ({0}) REFERENCES {0} (id) ON DELETE {1} ON UPDATE CASCADE"
    numbers = range(1, 15)
    origin.run(
        f"CREATE DATABASE {database}",
        *(f"CREATE TABLE {database}.{parent} (id INT PRIMARY KEY)" for parent in "pq"),
        f"CREATE TABLE {database}.other (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE {database}.c (id INT PRIMARY KEY, p INT, note VARCHAR(9), {key.format('p', 'CASCADE')})",
        f"CREATE TABLE {database}.two (id INT PRIMARY KEY, p INT, q INT, note VARCHAR(9),"
        f" {key.format('p', 'CASCADE')}, {key.format('q', 'SET NULL')})",
        f"CREATE TABLE {database}.logged (id INT AUTO_INCREMENT PRIMARY KEY, c INT)",
    )
    origin.run(
        "CREATE TRIGGER c_gone AFTER DELETE ON c FOR EACH ROW INSERT INTO logged (c) VALUES (OLD.id)",
        database=database,
    )
    tables = ("p", "q", "other", "c", "two", "logged")
    with running.agent(source, {source: origin}):
        begin_empty(origin, running, source, database, tables)
        for parent in "pq":
            origin.run(f"INSERT INTO {parent} VALUES " + ", ".join(f"({n})" for n in numbers), database=database)
        origin.run(
            "INSERT INTO other VALUES " + ", ".join(f"({n}, 0)" for n in numbers),
            "INSERT INTO c VALUES " + ", ".join(f"({n * 10 + place}, {n}, 'n')" for n in numbers for place in range(9)),
            "INSERT INTO two VALUES " + ", ".join(f"({n * 100 + m}, {n}, {m}, 'n')" for n in numbers for m in numbers),
            database=database,
        )
        taken = 0
        with closing(origin.connect(database=database)) as connection, connection.cursor() as cursor:
            for statement in STATEMENTS_OF_SEVERAL_TABLES:
                with suppress(pymysql.err.IntegrityError):  # a server may begin with the side that is refused
                    cursor.execute(statement)
                    taken += 1
        assert taken > len(STATEMENTS_OF_SEVERAL_TABLES) - 4
        wait_until_healed(running, source, origin, database, tables)
        assert row_count(running.lake, running.tenant, source, database, "two") > 0


def test_parents_when_a_thousand_go_beside_other_writes_then_their_children_follow(
    origin: Server, running: Stack
) -> None:
    """Ten children each, a transaction a parent, with a write of another table in each."""
    source, database = f"many-{origin.flavor}-{origin.version.replace('.', '-') or 'x'}", "keys_many"
    tables, parents = ("p", "c", "other"), 1_000
    origin.run(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.p (id INT PRIMARY KEY)",
        f"CREATE TABLE {database}.c (id INT PRIMARY KEY AUTO_INCREMENT, p INT, note VARCHAR(20),"
        f" FOREIGN KEY (p) REFERENCES {database}.p (id) ON DELETE CASCADE)",
        f"CREATE TABLE {database}.other (id INT PRIMARY KEY AUTO_INCREMENT, v INT)",
    )
    with running.agent(source, {source: origin}):
        begin_empty(origin, running, source, database, tables)
        for begin in range(0, 2 * parents, 500):
            ids = range(begin, begin + 500)
            origin.run("INSERT INTO p VALUES " + ", ".join(f"({number})" for number in ids), database=database)
            rows = ", ".join(f"({number}, 'n{place}')" for number in ids for place in range(10))
            origin.run(f"INSERT INTO c (p, note) VALUES {rows}", database=database)
        wait_until_equal(running.lake, running.tenant, source, origin, database, tables)
        with closing(origin.connect(database=database)) as connection, connection.cursor() as cursor:
            began = time.monotonic()
            for number in range(parents):
                cursor.execute("BEGIN")
                cursor.execute(f"DELETE FROM p WHERE id = {number}")
                cursor.execute(f"INSERT INTO other (v) VALUES ({number})")
                cursor.execute("COMMIT")
            written = time.monotonic()
        wait_until_healed(running, source, origin, database, tables)
        sys.stdout.write(
            f"{origin.flavor} {origin.version}: {parents} parents with 10 children each went in"
            f" {written - began:.1f} s; the lake was equal {time.monotonic() - written:.1f} s after that\n"
        )
        assert row_count(running.lake, running.tenant, source, database, "c") == 10 * parents
