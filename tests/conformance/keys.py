# ruff: noqa: E501  (SQL)
"""Foreign keys whose actions change rows: of each kind, on each server, how the lake comes to them.

Comes in: cases, each with tables of its own, read by a real agent. Goes out: what the agent said of the child `c`: that
its rows are in the log, that the lake is to derive them, or that it is read again and why. That the lake then has the
source's rows is what tests/e2e/test_foreign_keys.py shows; these tables say which way is taken.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pymysql
from menura.v1 import changes_pb2

from tests.agent.gateway_double import GatewayDouble
from tests.agent.running import client, running_agent, write_config
from tests.conformance.cases import PLATFORMS, Platform
from tests.conformance.run import WRONG
from tests.servers import server

SOURCE = "keys"
WAIT_SECONDS = 180.0
#: as MySQL works up to 9.5
NATIVE = "MySQL 9.7, innodb_native_foreign_keys"
REFUSED, LOGGED, DERIVED, UNCHANGED = "refused", "logged", "derived", "unchanged"

_P = "p (id INT PRIMARY KEY, code INT, UNIQUE (code))"
_C = "c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) {})"
_ROWS = ("INSERT INTO p VALUES (1, 1), (2, 2), (3, 3)", "INSERT INTO c VALUES (1, 1), (2, 2), (3, 3)")
_GO = "DELETE FROM p WHERE id = 1"


@dataclass(frozen=True)
class KeyCase:
    """`c` is looked at; tables that are not synced are named `outside`."""

    name: str
    tables: tuple[str, ...]
    rows: tuple[str, ...]
    statements: tuple[str, ...]


def _simple(name: str, action: str, *statements: str) -> KeyCase:
    return KeyCase(name, (_P, _C.format(action)), _ROWS, statements)


KEY_CASES = (
    _simple("ON DELETE CASCADE, a row of the parent is deleted", "ON DELETE CASCADE", _GO),
    _simple("ON DELETE SET NULL, a row of the parent is deleted", "ON DELETE SET NULL", _GO),
    _simple("ON DELETE SET DEFAULT", "ON DELETE SET DEFAULT", _GO),
    _simple("ON UPDATE CASCADE, the parent's key is updated", "ON UPDATE CASCADE", "UPDATE p SET id = 9 WHERE id = 1"),
    _simple(
        "ON UPDATE SET NULL, the parent's key is updated", "ON UPDATE SET NULL", "UPDATE p SET id = 9 WHERE id = 1"
    ),
    _simple("REPLACE of the parent's row", "ON DELETE CASCADE", "REPLACE INTO p VALUES (1, 7)"),
    _simple(
        "ON DUPLICATE KEY UPDATE of the parent's key",
        "ON UPDATE CASCADE",
        "INSERT INTO p VALUES (1, 1) ON DUPLICATE KEY UPDATE id = 9",
    ),
    _simple(
        "DELETE that names parent and child",
        "ON DELETE CASCADE",
        "DELETE p, c FROM p JOIN c ON c.p = p.id WHERE p.id = 1",
    ),
    _simple("foreign_key_checks=0", "ON DELETE CASCADE", "SET foreign_key_checks = 0", _GO),
    KeyCase(
        "key on two columns",
        (
            "p (id INT, code INT, PRIMARY KEY (id, code))",
            "c (id INT PRIMARY KEY, p INT, code INT, FOREIGN KEY (p, code) REFERENCES p (id, code) ON DELETE CASCADE)",
        ),
        ("INSERT INTO p VALUES (1, 1)", "INSERT INTO c VALUES (1, 1, 1)"),
        (_GO,),
    ),
    KeyCase(
        "table that refers to itself",
        ("c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES c (id) ON DELETE CASCADE)",),
        ("INSERT INTO c VALUES (1, NULL), (2, 1)",),
        ("DELETE FROM c WHERE id = 1",),
    ),
    KeyCase(
        "fourth level",
        (
            _P,
            "a (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
            "b (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES a (id) ON DELETE CASCADE)",
            "c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES b (id) ON DELETE CASCADE)",
        ),
        ("INSERT INTO p VALUES (1, 1)", *(f"INSERT INTO {table} VALUES (1, 1)" for table in "abc")),
        (_GO,),
    ),
    KeyCase(
        "parent that is not synced",
        (
            "outside (id INT PRIMARY KEY)",
            "c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES outside (id) ON DELETE CASCADE)",
        ),
        ("INSERT INTO outside VALUES (1)", "INSERT INTO c VALUES (1, 1)"),
        ("DELETE FROM outside WHERE id = 1",),
    ),
    KeyCase(
        "child without a primary key",
        (_P, "c (id INT, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)"),
        _ROWS,
        (_GO,),
    ),
    KeyCase(
        "two types of text",
        (
            "p (id VARCHAR(9) PRIMARY KEY)",
            "c (id INT PRIMARY KEY, p CHAR(9), FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
        ),
        ("INSERT INTO p VALUES ('1')", "INSERT INTO c VALUES (1, '1')"),
        (_GO,),
    ),
    *(
        KeyCase(
            f"column computed from the key, {name}",
            (
                _P,
                _C.format("ON DELETE CASCADE ON UPDATE CASCADE").replace("p INT,", "p INT, n INT AS (p + 1) VIRTUAL,"),
            ),
            (_ROWS[0], "INSERT INTO c (id, p) VALUES (1, 1), (2, 2), (3, 3)"),
            (statement,),
        )
        for name, statement in (
            ("ON DELETE CASCADE, a row of the parent is deleted", _GO),
            ("ON UPDATE CASCADE, the parent's key is updated", "UPDATE p SET id = 9 WHERE id = 1"),
        )
    ),
)


def examine_keys(folder: Path) -> dict[str, dict[str, str]]:
    """Server: case: outcome."""
    work = [(platform.name, platform, "") for platform in PLATFORMS]
    work.append((NATIVE, next(platform for platform in PLATFORMS if platform.flavor == "mysql"), "ON"))
    with ThreadPoolExecutor(len(work)) as pool:
        running = {
            name: pool.submit(_examine, platform, native, folder / f"keys{number}")
            for number, (name, platform, native) in enumerate(work)
        }
        return {name: found.result() for name, found in running.items()}


def keys_section(found: Mapping[str, Mapping[str, str]]) -> str:
    lines = [f"| key and statement | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    lines += [f"| {case.name} | {' | '.join(cells[case.name] for cells in found.values())} |" for case in KEY_CASES]
    return _HEAD + "\n".join(lines) + "\n"


_HEAD = f"""
### Foreign keys' actions

What the agent says of the child at such a statement, at the default policy:

- **{LOGGED}**: the server logs the child's rows.
- **{DERIVED}**: the log does not hold them; the lake carries the key out, exactly at each cut. The child stops in the lake
  with CASCADE_UNCERTAIN, and is read again, where what its rows refer to can't be told: texts beyond ASCII that a
  collation may take for equal, images without the key's columns, values that the lake's type can't hold.
- **re-read**: the child is read again by a dump, for the reason given. So is a child below a table that is to be read
  again or whose rows of before its sync the lake lacks (tests/agent/test_foreign_keys.py).
- {UNCHANGED}: no row of the child changes at this server, and the agent says nothing else.
- {REFUSED}: the server takes no such key or statement.

"""


def _examine(platform: Platform, native: str, folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True)
    settings = {"innodb_native_foreign_keys": native} if native else {}
    outcomes: dict[str, str] = {}
    gateway = GatewayDouble()
    with server(platform.flavor, folder / "server", release=platform.version, **settings) as running:
        running.create_replication_user()
        running.run("CREATE DATABASE ends", "CREATE TABLE ends.sentinel (id INT PRIMARY KEY)")
        taken = [(f"k{number}", case) for number, case in enumerate(KEY_CASES)]
        for database, case in list(taken):
            try:
                running.run(f"CREATE DATABASE {database}")
                running.run(*(f"CREATE TABLE {table}" for table in case.tables), *case.rows, database=database)
            except pymysql.err.MySQLError:
                outcomes[case.name] = REFUSED
                taken.remove((database, case))
        for database, case in taken:
            names = [table.split()[0] for table in case.tables]
            gateway.sync(SOURCE, *((database, name) for name in names if name != "outside"), oldest=True)
        gateway.sync(SOURCE, ("ends", "sentinel"), oldest=True)
        config = write_config(folder, gateway.address, {SOURCE: {"client": client(running)}})
        try:
            with running_agent(config, folder / "agent.log"):
                _wait_for(gateway, running.run, 1)
                before = {database: _rows(gateway, database) for database, _ in taken}
                held = {database: running.run(f"SELECT * FROM {database}.c ORDER BY id") for database, _ in taken}
                for database, case in list(taken):
                    try:
                        running.run(*case.statements, database=database)
                    except pymysql.err.IntegrityError:
                        outcomes[case.name] = REFUSED
                        taken.remove((database, case))
                _wait_for(gateway, running.run, 2)
                is_changed = {
                    database: running.run(f"SELECT * FROM {database}.c ORDER BY id") != held[database]
                    for database, _ in taken
                }
        finally:
            gateway.stop()
    for database, case in taken:
        outcomes[case.name] = _outcome(gateway, database, before[database], is_changed[database])
    return outcomes


def _wait_for(gateway: GatewayDouble, run: object, number: int) -> None:
    assert callable(run)
    run(f"INSERT INTO ends.sentinel VALUES ({number})")
    gateway.wait(lambda: any(row["id"] == number for row in gateway.rows(SOURCE, ("ends", "sentinel"))), WAIT_SECONDS)


def _rows(gateway: GatewayDouble, database: str) -> int:
    return len(gateway.rows(SOURCE, (database, "c")))


def _outcome(gateway: GatewayDouble, database: str, rows_before: int, is_changed: bool) -> str:
    """`is_changed`: the server's rows are others than before."""
    table = (database, "c")
    stops = [stop for cut in gateway.source(SOURCE).committed for stop in cut.stopped]
    codes = [str(stop.error.code) for stop in stops if (stop.table.database, stop.table.table) == table]
    events = gateway.events(SOURCE, table)
    whys = [event.unlogged_changes for event in events if event.unlogged_changes]
    if codes:
        return codes[0]
    if whys:
        return f"re-read: {whys[0].rpartition(': ')[2].replace(f'{database}.', '')}"
    if any(event.unchecked_from_gsn for event in gateway.events(SOURCE, (database, "p"))):
        return WRONG if is_changed else UNCHANGED
    told = [event for event in events if event.kind == changes_pb2.TableEvent.FOREIGN_KEYS]
    if any(event.foreign_keys for event in told):
        return DERIVED
    if _rows(gateway, database) > rows_before:
        return LOGGED
    return WRONG if is_changed else UNCHANGED
