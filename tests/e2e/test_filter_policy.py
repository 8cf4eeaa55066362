"""What the filter policy drops is found nowhere outside the database's own folder."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.lake import table_path, wait_for_changelog, wait_until_equal
from tests.oracle import count_changes
from tests.servers import Flavor, Server
from tests.stack import Stack, wait_for

pytestmark = pytest.mark.spark

#: bytes that nothing else on this machine holds
CANARY = "kanarienvogel-7f3a9c"
SHOWN = "sichtbar-5d21be"
IGNORED = ("secret", "secret_blob", "secret_json", "secret_shape")
#: computed from those, one by way of the other
DERIVED = ("copied", "shadow")
POLICIES = {
    # policy: (filter, tables that are synced, tables that are dropped)
    "accept": ({"hidden": None, "partial": {"ignored_columns": list(IGNORED)}}, ["open_one"], ["hidden"]),
    "drop": ({"open_one": None, "partial": {"ignored_columns": list(IGNORED)}}, ["open_one"], ["hidden"]),
    # of the host itself: see HOST_POLICY
    "host": ({}, ["open_one"], ["hidden"]),
}
#: computed columns stay with those that they are computed from; a table that stays does so under another name
HOST_POLICY = """
default: closed
databases:
  filter_host:
    open_one: allowed
    open_two: allowed
    partial: {columns: [id, shown, copied, shadow]}
    masked: {columns: all, ignored_columns: [former_name]}
"""


def write_canaries(server: Server, flavor: Flavor, database: str) -> None:
    """Inserts, updates, deletes and key changes, with the statements' own text in the log as well."""
    with_text = "binlog_rows_query_log_events" if flavor == "mysql" else "binlog_annotate_row_events"
    secret = f"'{CANARY}', X'{CANARY.encode().hex()}', '{{\"k\": \"{CANARY}\"}}'"
    longer = f"REPEAT('{CANARY}', 40)"
    server.run(
        f"SET SESSION {with_text} = 1",
        f"INSERT INTO partial (id, shown, secret, secret_blob, secret_json) VALUES (1, '{SHOWN}', {secret}), "
        f"(2, '{SHOWN}', {secret}), (3, 'kept', {secret}), (4, 'gone', {secret})",
        f"UPDATE partial SET secret = {longer}, secret_blob = {longer} WHERE id = 1",
        f"UPDATE partial SET shown = '{SHOWN} again' WHERE id = 2",
        "UPDATE partial SET id = 30 WHERE id = 3",
        "DELETE FROM partial WHERE id = 4",
        f"INSERT INTO hidden VALUES (1, '{CANARY}')",
        f"UPDATE hidden SET note = {longer}",
        f"INSERT INTO open_one VALUES (1, '{SHOWN}')",
        database=database,
    )


def content_of(path: Path) -> bytes:
    """What a file holds: its bytes, and of Parquet that is whole also the values, which stand there compressed."""
    raw = path.read_bytes()
    is_whole = raw.startswith(b"PAR1") and raw.endswith(b"PAR1")
    return raw + repr(pq.read_table(pa.BufferReader(raw)).to_pylist()).encode() if is_whole else raw


def files_with(word: str, folder: Path, since: float = 0.0) -> Iterator[Path]:
    """Of those that were written `since` then."""
    words = (word.encode(), word.encode().hex().encode(), word.encode("utf-16-le"))
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):  # the stack runs: a file may go
                content = content_of(path) if path.is_file() and path.stat().st_mtime >= since else b""
                if any(each in content for each in words):
                    yield path.relative_to(folder)


@pytest.mark.parametrize(("policy", "flavor"), [("accept", "mysql"), ("drop", "mariadb"), ("host", "mariadb")])
def test_ignored_column_when_its_rows_change_then_no_byte_of_it_leaves_the_host(
    policy: str, flavor: Flavor, servers: dict[Flavor, Server], running: Stack
) -> None:
    database, source, server = f"filter_{policy}", f"filter-{policy}", servers[flavor]
    rules, synced, dropped = POLICIES[policy]
    begun = time.time() - 5  # a file system's clock may be behind
    server.run(
        f"CREATE DATABASE {database} CHARACTER SET utf8mb4",
        f"CREATE TABLE {database}.partial (id INT PRIMARY KEY, secret VARCHAR(4000), shown VARCHAR(40), "
        "secret_blob BLOB, secret_json JSON, secret_shape GEOMETRY, "
        "copied VARCHAR(4100) AS (CONCAT(secret)) STORED, shadow VARCHAR(4200) AS (CONCAT(copied)) VIRTUAL)",
        f"CREATE TABLE {database}.hidden (id INT PRIMARY KEY, note TEXT)",
        f"CREATE TABLE {database}.open_one (id INT PRIMARY KEY, note TEXT)",
        f"CREATE TABLE {database}.masked (id INT PRIMARY KEY, note TEXT)",
    )
    write_canaries(server, flavor, database)
    is_of_host = policy == "host"
    agent = running.agent(source, {source: server}, filter_policy="accept" if is_of_host else policy, filter=rules)
    if is_of_host:
        file = running.folder / "policy.yaml"
        file.write_text(HOST_POLICY)
        agent.arguments += ["--policy", str(file)]
    with agent:
        for table in (*synced, "partial"):
            running.start_sync(source, database, table, "oldest")
        for table in () if is_of_host else dropped:
            path = running.wait_for_table(source, database, table)
            with pytest.raises(httpx.HTTPStatusError) as refused:
                running.post(f"{path}/start", {"start": "oldest"})
            assert refused.value.response.json()["code"] == "TABLE_DENIED"
        where = (running.lake, running.tenant, source, server, database)
        wait_until_equal(*where, synced)
        wait_until_equal(*where, ["partial"], ignored=(*IGNORED, *DERIVED))
        server.run(f"UPDATE {database}.partial SET secret = '{CANARY} live', id = id + 100")
        wait_until_equal(*where, ["partial"], ignored=(*IGNORED, *DERIVED))
        wait_for_changelog(*where[:3], database, "partial", count_changes(server, database)["partial"])
        if is_of_host:
            path = running.wait_for_table(source, database, "masked")
            assert running.post_refused(f"{path}/start", {"start": "oldest"})["code"] == "TABLE_DENIED"
            server.run(f"RENAME TABLE {database}.hidden TO {database}.open_two")
            server.run(
                f"INSERT INTO {database}.open_two VALUES (2, '{CANARY}')",
                f"INSERT INTO {database}.open_one VALUES (2, 'x')",
            )
            wait_until_equal(*where, synced)
            for table in ("hidden", "open_two"):
                assert running.client.get(running.table_path(source, database, table)).status_code == 404
            shown = running.get(running.table_path(source, database, "partial"))
            assert not any(name in str(shown) for name in (*IGNORED, *DERIVED))
        else:
            state = wait_for("the agent's word", lambda: running.table(source, database, "partial")["ignored_columns"])
            assert sorted(state) == sorted(IGNORED)
    assert server.folder is None or list(files_with(CANARY, server.folder)), "the search finds what is there"
    assert any(path.parts[0] == "landing" for path in files_with(SHOWN, running.folder, begun))
    assert any(path.parts[0] == "lake" for path in files_with(SHOWN, running.folder, begun))
    assert list(files_with(CANARY, running.folder, begun)) == []
    assert not any(table_path(*where[:3], database, table, "current").exists() for table in dropped)
