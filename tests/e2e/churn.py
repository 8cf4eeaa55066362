"""Tables of every kind of key, and writers that change all of them at once: rows, keys, and rows that come again.

Keys come from a small space, so that what one transaction deletes another one inserts, also under a key that a dump
has read already, or has not read yet.
"""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from tests.servers import Server

TABLES = {
    "numbers": "id BIGINT PRIMARY KEY, amount DECIMAL(10,2) NOT NULL, note VARCHAR(80) NULL",
    "names": "name VARCHAR(40) NOT NULL, kind ENUM('c','a','b') NOT NULL, n INT NULL, note TEXT NULL, "
    "PRIMARY KEY (name, kind)",
    "codes": "v INT NULL, code VARBINARY(12) NOT NULL, part INT UNSIGNED NOT NULL, UNIQUE KEY by_code (code, part)",
    "bag": "a INT NULL, b VARCHAR(20) NULL",
}
#: what two writers may do to each other
_MEETINGS = frozenset({ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.DUP_ENTRY})
_KINDS = "cab"


def create(server: Server, database: str, rows: int, seed: int) -> None:
    """The tables, each with about so many rows."""
    dice = random.Random(seed)
    server.run(f"CREATE DATABASE {database} CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci")
    for table, columns in TABLES.items():
        server.run(f"CREATE TABLE {database}.{table} ({columns})")
    space = rows * 2
    with closing(server.connect(database=database)) as connection, connection.cursor() as cursor:
        for table, make in _ROWS.items():
            values = [make(dice, space) for _ in range(rows)]
            places = ", ".join(["%s"] * len(values[0]))
            cursor.executemany(f"INSERT IGNORE INTO {table} VALUES ({places})", values)


def _number(dice: random.Random, space: int) -> tuple[object, ...]:
    return dice.randrange(-space // 2, space // 2), f"{dice.randrange(10**6) / 100:.2f}", dice.choice([None, "x", "☃"])


def _name(dice: random.Random, space: int) -> tuple[object, ...]:
    spelled = dice.choice([str.upper, str.lower])(f"näme {dice.randrange(space // 3)}")
    return spelled, dice.choice(_KINDS), dice.randrange(100), dice.choice([None, "", "text"])


def _code(dice: random.Random, space: int) -> tuple[object, ...]:
    return (
        dice.randrange(100),
        dice.randrange(space // 2).to_bytes(3, "big") + b"\0\xff",
        dice.choice([0, 7, 2**32 - 1]),
    )


def _bag(dice: random.Random, space: int) -> tuple[object, ...]:
    return dice.randrange(20), dice.choice(["one", "two", None])


_ROWS: dict[str, Callable[[random.Random, int], tuple[object, ...]]] = {
    "numbers": _number, "names": _name, "codes": _code, "bag": _bag,
}  # fmt: skip


def _change(cursor: Cursor, dice: random.Random, space: int) -> None:
    """One to four changes of any of the tables."""
    for _ in range(dice.randint(1, 4)):
        table = dice.choice(list(_ROWS))
        row = _ROWS[table](dice, space)
        other = _ROWS[table](dice, space)
        match table, dice.randrange(5):
            case "numbers", 0:
                cursor.execute("DELETE FROM numbers WHERE id BETWEEN %s AND %s", (row[0], int(str(row[0])) + 3))
            case "numbers", 1:
                cursor.execute(
                    "UPDATE IGNORE numbers SET id = %s WHERE id >= %s ORDER BY id LIMIT 1", (other[0], row[0])
                )
            case "numbers", 2:
                cursor.execute(
                    "UPDATE numbers SET note = %s WHERE id BETWEEN %s AND %s", ("u", row[0], int(str(row[0])) + 5)
                )
            case "names", 0:
                cursor.execute("DELETE FROM names WHERE name = %s", row[:1])
            case "names", 1:
                cursor.execute(
                    "UPDATE IGNORE names SET name = %s, kind = %s WHERE name = %s AND kind = %s", (*other[:2], *row[:2])
                )
            case "codes", 0:
                cursor.execute("DELETE FROM codes WHERE code = %s", row[1:2])
            case "codes", 1:
                cursor.execute(
                    "UPDATE IGNORE codes SET code = %s, v = v + 1 WHERE code = %s LIMIT 1", (other[1], row[1])
                )
            case "bag", 0:
                cursor.execute("DELETE FROM bag WHERE a = %s LIMIT 1", row[:1])
            case "bag", 1:
                cursor.execute("UPDATE bag SET b = %s WHERE a = %s LIMIT 2", (other[1], row[0]))
            case _:
                verb = "INSERT" if table == "bag" else "REPLACE"
                cursor.execute(f"{verb} INTO {table} VALUES ({', '.join(['%s'] * len(row))})", row)


@contextmanager
def churning(server: Server, database: str, rows: int, seed: int, writers: int = 2) -> Iterator[None]:
    """Transactions over all tables until the context ends, some of them rolled back."""
    stop, failures = threading.Event(), []

    def work(number: int) -> None:
        dice = random.Random(seed * 100 + number)
        try:
            with closing(server.connect(database=database, autocommit=False)) as connection:
                while not stop.is_set():
                    try:
                        with connection.cursor() as cursor:
                            _change(cursor, dice, rows * 2)
                        connection.rollback() if dice.random() < 0.05 else connection.commit()
                    except pymysql.err.MySQLError as met:
                        if met.args[0] not in _MEETINGS:
                            raise
                        connection.rollback()
        except Exception as failure:  # noqa: BLE001  (a thread's top: raised below)
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
