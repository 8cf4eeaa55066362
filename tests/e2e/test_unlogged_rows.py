"""Rows that a server changed beside its log: the commands of verify name them, and bring them.

By nature nothing of such a change is in the log, so the state says streaming until somebody compares.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane_api.errors import LakeDiffers
from tests.controlplane_api.commands import menura
from tests.e2e.postgresql_lake import DATABASE
from tests.live_source import LiveSource, PostgresqlSource, mysql_source, postgresql_source
from tests.servers import FLAVORS
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

ROWS = 200
POSTGRESQL = "postgresql"
#: of a differing row, in what a repair says
KEY = re.compile(r"\b(\d+)\b")


@contextmanager
def _live(name: str, folder: Path) -> Iterator[LiveSource]:
    if name == POSTGRESQL:
        with postgresql_source() as found:
            yield found
    else:
        with mysql_source("mysql" if name == "mysql" else "mariadb", folder, "unlogged") as found:
            yield found


def change_unlogged(origin: LiveSource) -> set[int]:
    """The keys that have changed."""
    if isinstance(origin, PostgresqlSource):
        # as after a page that was repaired by hand: logical decoding has nothing of it
        places = origin.run("SELECT ctid FROM items WHERE id IN (7, 8, 150)")
        rows = ", ".join(f"'{place}'::tid" for (place,) in places)
        killed = f"SELECT heap_force_kill('items'::regclass, ARRAY[{rows}])"
        origin.server.run("CREATE EXTENSION pg_surgery", killed, database=DATABASE)
        return {7, 8, 150}
    origin.run(
        "SET SESSION sql_log_bin = 0",
        "UPDATE items SET note = 'unlogged' WHERE id IN (7, 8)",
        "DELETE FROM items WHERE id = 150",
        "INSERT INTO items VALUES (1000, 'unlogged')",
    )
    return {7, 8, 150, 1000}


def differing(origin: LiveSource, running: Stack, source: str) -> set[int]:
    """Keys of rows that the source and the lake do not both have."""
    compared = origin.compare(running, source, "items")
    return {int(str(row[0])) for row in (*compared.only_in_source, *compared.only_in_lake)}


def report(running: Stack, source: str, table: str) -> int:
    """The exit code of `menura verify report`."""
    where = {
        "MENURA_API": f"http://127.0.0.1:{running.api_port}",
        "MENURA_API_TOKEN_FILE": str(running.token_file),
        "MENURA_TENANT": running.tenant,
    }
    return menura("verify", "report", source, table, **where).returncode


def named(running: Stack, source: str, table: str) -> set[int]:
    """Keys that a repair says differ."""
    said = running.command("verify", "repair", source, table, "--dry-run")
    return {int(key) for key in KEY.findall(said.partition("differ: ")[2].partition(".")[0])}


@pytest.mark.parametrize("name", [*FLAVORS, POSTGRESQL])
def test_rows_when_changed_beside_the_log_then_the_commands_of_verify_name_and_bring_them(
    name: str, running: Stack, tmp_path: Path
) -> None:
    source = f"beside-{name}"
    with _live(name, tmp_path) as origin:
        origin.run(
            "CREATE TABLE items (id INT PRIMARY KEY, note VARCHAR(40))",
            f"INSERT INTO items VALUES {', '.join(f'({number}, {number})' for number in range(1, ROWS + 1))}",
        )
        table = f"{origin.namespace}.items"
        with origin.agent(running, source, source):
            running.start_sync(source, origin.namespace, "items", "dump")
            running.wait_until_streaming(source, origin.namespace, "items")
            keys = change_unlogged(origin)
            origin.run("UPDATE items SET note = 'logged' WHERE id = 9")
            wait_for("the logged row alone to be in the lake", lambda: differing(origin, running, source) == keys)
            running.wait_until_streaming(source, origin.namespace, "items")
            running.command("verify", "run", source, table)
            wait_for(
                "the report to say that it differs", lambda: report(running, source, table) == LakeDiffers.exit_code
            )
            plan = ["verify", "repair", source, table, "--dry-run"]
            wait_for("the keys to be named", lambda: keys <= set(map(int, KEY.findall(running.command(*plan)))))
            assert differing(origin, running, source) == keys
            running.command("verify", "repair", source, table)
            wait_for("the report to say that it is equal", lambda: report(running, source, table) == 0, 600)
            assert differing(origin, running, source) == set()
