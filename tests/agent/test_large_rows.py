"""Memory with rows of many MiB: at most 96 MiB and four of the largest row image; afterwards it is given back."""

import random
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from menura.v1 import snapshot_pb2

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.servers import Server, server
from tests.stack import wait_for

TABLE: Table = ("shop", "large")
MIB = 1 << 20
FIXED_BYTES, ROWS_AT_ONCE = 96 * MIB, 4


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    log_size = {"mariadb": "innodb_log_file_size", "mysql": "innodb_redo_log_capacity"}[request.param]
    with server(request.param, folder, max_allowed_packet="256M", **{log_size: "1G"}) as found:
        found.create_replication_user()
        found.run("CREATE DATABASE shop")
        yield found


def memory(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def wait_rows(gateway: GatewayDouble, count: int) -> None:
    gateway.wait(lambda: sum(batch.rows.num_rows for batch in gateway.source("shop").batches) == count)


@pytest.mark.long
@pytest.mark.parametrize("size_mib", [15, 63])
def test_memory_when_rows_are_large_then_is_bounded_by_them_and_given_back(
    size_mib: int, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    rows = 6 if size_mib < 20 else 3
    fill(database, size_mib, rows)
    row_bytes = size_mib * MIB
    gateway.sync("shop", TABLE, now=True)
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    with running_agent(config, tmp_path / "log") as process:
        gateway.wait(lambda: gateway.source("shop").committed)
        before = memory(process.pid, "VmRSS")
        database.run("INSERT INTO shop.large SELECT id + 100, body FROM shop.large")
        wait_rows(gateway, rows)
        inserted = memory(process.pid, "VmHWM")
        database.run("UPDATE shop.large SET body = INSERT(body, 1, 4, 'next') WHERE id > 100")
        wait_rows(gateway, 3 * rows)
        updated = memory(process.pid, "VmHWM")
        print(f"{database.flavor} {size_mib} MiB: {before >> 20} {inserted >> 20} {updated >> 20}")  # noqa: T201
        wait_for("memory to be given back", lambda: memory(process.pid, "VmRSS") <= FIXED_BYTES + row_bytes)
    assert inserted <= FIXED_BYTES + ROWS_AT_ONCE * row_bytes
    assert updated <= FIXED_BYTES + ROWS_AT_ONCE * row_bytes


@pytest.mark.long
@pytest.mark.parametrize("size_mib", [15, 63])
def test_memory_when_a_table_of_large_rows_is_dumped_then_is_bounded_by_them(
    size_mib: int, database: Server, gateway: GatewayDouble, tmp_path: Path
) -> None:
    fill(database, size_mib, rows=6 if size_mib < 20 else 3)
    gateway.sync("shop", TABLE, dump="first")
    dump = gateway.dump("shop", "first", TABLE, limits=snapshot_pb2.DumpLimits())
    config = write_config(tmp_path, gateway.address, {"shop": {"client": client(database)}})
    with running_agent(config, tmp_path / "log") as process:
        gateway.wait(lambda: dump.is_over)
        peak = memory(process.pid, "VmHWM")
    print(f"{database.flavor} dump {size_mib} MiB: {peak >> 20}")  # noqa: T201
    assert not dump.failed
    assert peak <= FIXED_BYTES + ROWS_AT_ONCE * size_mib * MIB


def fill(database: Server, size_mib: int, rows: int) -> None:
    """Rows of bytes that can't be compressed."""
    forget = "RESET BINARY LOGS AND GTIDS" if database.flavor == "mysql" else "RESET MASTER"
    database.run(
        "DROP TABLE IF EXISTS shop.large", forget, "CREATE TABLE shop.large (id INT PRIMARY KEY, body LONGBLOB)"
    )
    with closing(database.connect(max_allowed_packet=256 * MIB)) as connection, connection.cursor() as cursor:
        for number in range(1, rows + 1):
            body = random.Random(number).randbytes(size_mib * MIB)
            cursor.execute("INSERT INTO shop.large VALUES (%s, %s)", (number, body))
