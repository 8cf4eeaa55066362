"""Writers that keep a table busy, through restarts of its server."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pymysql
from pymysql.connections import Connection

from tests.servers import Server

COLUMNS = "id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, amount DECIMAL(10,2) NOT NULL, note VARCHAR(80) NULL"
PAUSE_SECONDS = 0.01


def create_tables(server: Server, database: str, *tables: str, rows: int = 20) -> None:
    """Tables of `COLUMNS` with a few rows each."""
    server.run(f"CREATE DATABASE IF NOT EXISTS {database} CHARACTER SET utf8mb4")
    for table in tables:
        server.run(f"CREATE TABLE {database}.{table} ({COLUMNS})")
        insert_rows(server, database, table, rows)


def insert_rows(server: Server, database: str, table: str, rows: int) -> None:
    values = ", ".join(f"({number}.25, 'row {number}')" for number in range(rows))
    server.run(f"INSERT INTO {database}.{table} (amount, note) VALUES {values}")


@dataclass
class Load:
    """What a writer has done so far."""

    transactions: int = 0
    lost_connections: int = 0
    failures: list[Exception] = field(default_factory=list)


@contextmanager
def writing(server: Server, database: str, *tables: str) -> Iterator[Load]:
    """Transactions over all tables until the context ends; a lost connection is made anew."""
    stop, load, pick = threading.Event(), Load(), random.Random(database)

    def work() -> None:
        connection: Connection | None = None
        while not stop.wait(PAUSE_SECONDS):
            try:
                connection = connection or server.connect(database=database, autocommit=False)
                _transaction(connection, tables, pick)
                load.transactions += 1
            except (pymysql.err.OperationalError, pymysql.err.InterfaceError):
                load.lost_connections += 1
                if connection is not None:
                    with suppress(pymysql.err.Error):
                        connection.close()
                connection = None
            except Exception as failure:  # noqa: BLE001  (a thread's top: raised below)
                load.failures.append(failure)
                return
        if connection is not None:
            connection.close()

    writer = threading.Thread(target=work)
    writer.start()
    try:
        yield load
    finally:
        stop.set()
        writer.join()
    assert not load.failures, load.failures


def _transaction(connection: Connection, tables: tuple[str, ...], pick: random.Random) -> None:
    with connection.cursor() as cursor:
        for table in tables:
            amount = f"{pick.randrange(10**6) / 100:.2f}"
            cursor.execute(f"INSERT INTO {table} (amount, note) VALUES (%s, %s)", (amount, f"note {amount}"))
            cursor.execute(f"UPDATE {table} SET amount = amount + 1 WHERE id = %s", (pick.randint(1, 60),))
            if pick.random() < 0.2:
                cursor.execute(f"DELETE FROM {table} WHERE id = %s", (pick.randint(1, 200),))
            if pick.random() < 0.1:
                cursor.execute(f"UPDATE {table} SET id = -id WHERE id = %s", (pick.randint(1, 200),))
    connection.commit()
