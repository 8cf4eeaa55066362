"""The end of a replication stream whose server waits until somebody reads."""

from pathlib import Path

import pytest

from agent.config_entries import Secret
from agent.sources.mysql.config import ServerConfig
from agent.sources.mysql.positions import BinlogPosition, BinlogPositionKind
from agent.sources.mysql.server.connection import connect, facts_of
from agent.sources.mysql.server.replication import identity_of, open_stream
from tests.servers import Flavor, Server, server
from tests.stack import wait_for

#: the server asks for room after 0.2, 0.6, 1.4, 3, 6.2, 12.6 and 25.4 seconds, and so on
WAITED_SECONDS = 26
#: long before it asks the next time, and long for a busy machine
AT_ONCE_SECONDS = 20.0
LOG_BYTES = 48 << 20
#: of a row in the log; more than a server puts into one packet would only make it slower
ROW_BYTES = 1 << 20


@pytest.mark.parametrize("flavor", ["mariadb", "mysql"])
def test_a_stream_when_it_is_closed_while_the_server_waits_with_a_full_window_then_the_server_ends_its_thread_at_once(
    flavor: Flavor, tmp_path: Path
) -> None:
    """Until then MariaDB would begin no other stream of the same server id."""
    with server(flavor, tmp_path / "server") as database:
        database.run("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, b LONGBLOB)")
        ((file, offset, *_),) = database.run("SHOW MASTER STATUS" if flavor == "mariadb" else "SHOW BINARY LOG STATUS")
        database.run(*[f"INSERT INTO shop.t (b) VALUES (REPEAT('x', {ROW_BYTES}))"] * (LOG_BYTES // ROW_BYTES))
        config = ServerConfig(database.host, database.user, database.port, Secret(database.password))
        connection = connect(config, "shop")
        facts = facts_of(connection, "shop")
        connection.close()
        start = BinlogPosition(file=str(file), offset=int(str(offset)))
        stream = open_stream(config, "shop", facts, identity_of("acme", "a", "shop", 0), start, BinlogPositionKind.FILE)
        wait_for("the server to wait", lambda: waiting_seconds(database) >= WAITED_SECONDS)

        stream.interrupt()
        buffer = memoryview(bytearray(1 << 20))
        while stream.receive_into(buffer, 300):  # what has arrived; the server hears nothing of that
            continue
        stream.close()

        wait_for("its thread to end", lambda: waiting_seconds(database) < 0, AT_ONCE_SECONDS)


def waiting_seconds(database: Server) -> int:
    """For how long the server's thread has been at it; -1: there is none."""
    rows = database.run(
        "SELECT time FROM information_schema.processlist WHERE command IN ('Binlog Dump', 'Binlog Dump GTID', 'Killed')"
    )
    return max((int(str(time)) for (time,) in rows), default=-1)
