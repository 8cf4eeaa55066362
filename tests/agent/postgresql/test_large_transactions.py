"""Large transactions of a real server, which come while they run: none of their rows counts before the commit."""

import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tests.agent.gateway_double import GatewayDouble
from tests.agent.postgresql.sources import SOURCE, source
from tests.agent.postgresql.streaming import ORDERS, begin, create, current, run, selected, streaming
from tests.agent.running import running_agent, write_config
from tests.postgres import SourceServer, source_server
from tests.stack import wait_for

ROWS = 5_000
#: of a transaction's file, once blocks have come
BLOCK_BYTES = 64 << 10


@pytest.fixture
def server() -> Iterator[SourceServer]:
    """It sends a transaction in progress as soon as it can."""
    with source_server(logical_decoding_work_mem="64kB") as running:
        running.create_replication_user()
        yield running


def kept_bytes(pid: int, folder: Path) -> int:
    """Of a process's files without a name in a folder."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            target = str(link.readlink())
            if target.startswith(f"{folder}/") and target.endswith(" (deleted)"):
                found += link.stat().st_size
    return found


def fill(session: psycopg.Connection, keys: Iterator[int], note: str) -> None:
    """With rows of the next keys."""
    first = next(keys) * ROWS
    session.execute(
        f"INSERT INTO orders SELECT n, 'large', '{note}' || n FROM generate_series({first}, {first + ROWS - 1}) AS n"
    )


def fill_until(session: psycopg.Connection, keys: Iterator[int], condition: Callable[[], bool]) -> None:
    """A server that begins anew sends in progress only what grows from there on: so the transaction grows."""

    def look() -> bool:
        fill(session, keys, "more")
        return condition()

    wait_for("the transaction in progress", look, every=0.3)


def ids(gateway: GatewayDouble) -> set[int]:
    return {int(str(row["id"])) for row in gateway.rows(SOURCE, ORDERS)}


def test_transaction_when_the_agent_is_killed_in_its_midst_then_all_that_was_committed_of_it_comes_once(
    server: SourceServer, gateway: GatewayDouble, tmp_path: Path
) -> None:
    """With a savepoint that is rolled back, a transaction that is, and small ones beside them."""
    create(server)
    path = write_config(tmp_path, gateway.address, {SOURCE: source(server, max_streamed_bytes=1 << 30)})
    state, log, keys = tmp_path / "state", tmp_path / "log", count()
    url = f"postgresql://postgres@127.0.0.1:{server.port}/shop"
    with psycopg.connect(url) as large, psycopg.connect(url) as gone:
        with running_agent(path, log) as agent:
            begin(gateway, ORDERS)
            fill(large, keys, "a")
            large.execute("SAVEPOINT s")
            fill(gone, keys, "rolled back")
            run(server, "INSERT INTO orders VALUES (-1, 'small')")
            gateway.wait(lambda: -1 in ids(gateway))
            fill_until(large, keys, lambda: kept_bytes(agent.pid, state) > BLOCK_BYTES)
            agent.send_signal(signal.SIGKILL)
        assert not [one for one in state.iterdir() if one.suffix not in (".json", ".lock", ".new")]
        gateway.wait_gone(SOURCE)
        run(server, "INSERT INTO orders VALUES (-2, 'small')")
        large.execute("ROLLBACK TO s")
        with running_agent(path, log) as agent:
            gateway.wait(lambda: -2 in ids(gateway))
            fill_until(large, keys, lambda: kept_bytes(agent.pid, state) > BLOCK_BYTES)
            gone.rollback()
            large.execute("UPDATE orders SET note = 'c' WHERE id BETWEEN 0 AND 99")
            assert ids(gateway) == {-1, -2}
            large.commit()
            run(server, "INSERT INTO orders VALUES (-3, 'small')")
            gateway.wait(lambda: -3 in ids(gateway))
            wait_for("no file", lambda: kept_bytes(agent.pid, state) == 0)
    assert current(gateway, ORDERS) == selected(server, ORDERS)
    numbers = [row["_gsn"] for row in gateway.rows(SOURCE, ORDERS)]
    assert len(numbers) == len(set(numbers)) == len(selected(server, ORDERS)) + 100


def test_transaction_when_it_is_larger_than_may_be_kept_then_the_server_keeps_it_and_its_rows_come(
    server: SourceServer, gateway: GatewayDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    create(server)
    with streaming(tmp_path, gateway, server, max_streamed_bytes=BLOCK_BYTES):
        begin(gateway, ORDERS)
        with psycopg.connect(f"postgresql://postgres@127.0.0.1:{server.port}/shop") as large:
            fill_until(large, count(), lambda: "are left to the server" in caplog.text)
            run(server, "INSERT INTO orders VALUES (-1, 'small')")
            gateway.wait(lambda: ids(gateway) == {-1})
        gateway.wait(lambda: len(ids(gateway)) == len(selected(server, ORDERS)))
        assert current(gateway, ORDERS) == selected(server, ORDERS)
