"""What happens to a server's log behind an agent's back, and what the agent says of it, for tests."""

from contextlib import closing
from pathlib import Path

from menura.v1 import changes_pb2, config_pb2

from tests.agent.gateway_double import GatewayDouble, Table
from tests.agent.running import client, running_agent, write_config
from tests.agent.test_replication import ORDERS, change, wait_equal
from tests.servers import Server
from tests.stack import wait_for


def config(folder: Path, gateway: GatewayDouble, database: Server, **source: object) -> Path:
    return write_config(folder, gateway.address, {"shop": {"client": client(database), **source}})


def purge(database: Server) -> None:
    database.run("FLUSH BINARY LOGS")
    change(database, rounds=1)
    database.run("FLUSH BINARY LOGS")
    last = database.run("SHOW BINARY LOGS")[-1][0]

    def is_purged() -> bool:  # a log that a replica still reads stays
        database.run(f"PURGE BINARY LOGS TO '{last}'")
        return database.run("SHOW BINARY LOGS")[0][0] == last

    wait_for("the logs to be purged", is_purged)


def wait_for_another_second(database: Server, before: int) -> None:
    """The server's log says to the second when a file was begun."""
    wait_for("the server's next second", lambda: seconds_of(database) > before, every=0.05)


def seconds_of(database: Server) -> int:
    return int(str(database.run("SELECT UNIX_TIMESTAMP()")[0][0]))


def gaps(gateway: GatewayDouble, table: Table = ORDERS) -> list[changes_pb2.TableEvent]:
    """What committed cuts say of the log that is not in the lake."""
    events = [event for cut in gateway.source("shop").committed for event in cut.events]
    kind = changes_pb2.TableEvent.LOG_GAP
    return [e for e in events if e.kind == kind and (e.table.database, e.table.table) == table]


def position_now(database: Server) -> str:
    statement = "SELECT @@gtid_binlog_pos" if database.flavor == "mariadb" else "SELECT @@gtid_executed"
    return str(database.run(statement)[0][0])


def reset(database: Server) -> None:
    database.run("RESET MASTER" if database.flavor == "mariadb" else "RESET BINARY LOGS AND GTIDS")


def read_once(path: Path, gateway: GatewayDouble, database: Server, log: Path) -> int:
    """Let an agent read what there is; how many cuts it has committed."""
    with running_agent(path, log):
        change(database, rounds=1)
        wait_equal(gateway, database, ORDERS)
    gateway.wait_gone("shop")
    return len(gateway.source("shop").committed)


def change_over_seconds(database: Server) -> None:
    """A transaction of several seconds: a replica's GTID event says another one than the source's."""
    with closing(database.connect(autocommit=False)) as connection, connection.cursor() as cursor:
        for number in (7000, 7001):
            cursor.execute(f"INSERT INTO shop.orders (id, note) VALUES ({number}, 'slow')")
            wait_for_another_second(database, seconds_of(database))
        connection.commit()


def insert(database: Server, number: int) -> None:
    database.run(f"INSERT INTO shop.orders (id, note) VALUES ({number}, 'new')")


def wait_for_row(gateway: GatewayDouble, number: int) -> None:
    gateway.wait(lambda: any(row["id"] == number for row in gateway.rows("shop", ORDERS)))


def wait_until_it_waits(gateway: GatewayDouble, code: str) -> config_pb2.OtherServer:
    """Until the source says that it waits for its operator, each table says why, and the lag is not known."""
    record = gateway.source("shop")
    gateway.wait(lambda: record.effective and record.effective[-1].error.code == code)
    said = record.effective[-1]
    assert said.error.terminal
    assert "menura sources accept shop" in said.error.remedy
    assert [table.state for table in said.tables] == [config_pb2.TableState.WAITING] * len(said.tables)
    assert [table.error.code for table in said.tables] == [code] * len(said.tables)
    gateway.wait(lambda: record.status.error.code == code)
    assert not record.status.HasField("lag_us")
    assert said.other_server.identity
    return said.other_server


def accept(gateway: GatewayDouble, database: Server, identity: str) -> changes_pb2.TableEvent:
    """An operator takes the server for the source's: its rows land from there on. Gives the one gap that is told."""
    gateway.accept("shop", identity)
    gateway.wait(lambda: gaps(gateway))
    insert(database, 9000)
    wait_for_row(gateway, 9000)
    (gap,) = gaps(gateway)
    assert gap.reread
    return gap
