"""Transactions over all tables, rate-limited, each of several changes of several tables, sent in one packet.

A writer knows nothing of what DDL makes of the tables: it asks for their columns each time one of its statements is
refused, and gives each column any value, which the server converts (no strict mode).
"""

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT, ER

from tests.churn.tables import Dice, Shape, number
from tests.servers import Server

WRITERS = 4
SESSION = "SET SESSION sql_mode = '', innodb_lock_wait_timeout = 3, lock_wait_timeout = 20"
#: what writers and DDL may do to each other
MEETINGS = frozenset(
    {
        ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, ER.DUP_ENTRY, ER.BAD_FIELD_ERROR, ER.NO_SUCH_TABLE,
        ER.NO_REFERENCED_ROW_2, ER.ROW_IS_REFERENCED_2, ER.BAD_NULL_ERROR,
        1020,  # record has changed since last read
        1412,  # table definition has changed
        1761,  # foreign key: duplicate entry in the child
        6575,  # foreign keys: actions on more tables than the server follows
        1906, 3105,  # a value for a generated column
        1615,  # prepared statement needs to be re-prepared
        1264, 1265, 1292, 1366, 1406, 3140,  # a value that does not fit
    }
)  # fmt: skip
_ANY: tuple[Callable[[Dice], str], ...] = (
    lambda dice: "NULL",
    lambda dice: str(dice.randrange(-200, 70_000)),
    lambda dice: f"{dice.randrange(-(10**6), 10**6) / 10_000:.4f}",
    lambda dice: dice.choice(["'x'", "'y,z'", "'a'", "'word ä'", "'☃ snow'", "'trailing  '", "''"]),
    lambda dice: f"'20{dice.randrange(1, 38):02}-0{dice.randrange(1, 10)}-17 23:59:59.{dice.randrange(10**6):06}'",
    lambda dice: f"X'{dice.randrange(1 << 32):08X}'",
)


@dataclass
class Done:
    """What the writers did."""

    transactions: int = 0
    refused: int = 0
    failures: list[Exception] = field(default_factory=list)


class Workload:
    """Writers that run until `stop`, with so many transactions a second between them."""

    def __init__(self, server: Server, database: str, shapes: dict[str, Shape], seed: int, rate: float) -> None:
        self.done = Done()
        self._server = server
        self._database = database
        self._shapes = shapes
        self._pause = WRITERS / rate
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {name}"),), name=f"writer {name}")
            for name in range(WRITERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, dice: Dice) -> None:
        try:
            with closing(self._connect()) as connection:
                columns = self._columns(connection)
                due = time.monotonic()
                while not self._stop.is_set():
                    if not self._try(connection, transaction(dice, self._shapes, columns)):
                        columns = self._columns(connection)
                    due = max(due + self._pause, time.monotonic() - 1)
                    self._stop.wait(max(0.0, due - time.monotonic()))
        except Exception as failure:  # noqa: BLE001  (a thread's top: raised by whoever waits for it)
            self.done.failures.append(failure)

    def _connect(self) -> Connection:
        return self._server.connect(
            database=self._database, client_flag=CLIENT.MULTI_STATEMENTS, init_command=SESSION, autocommit=False
        )

    def _try(self, connection: Connection, statements: str) -> bool:
        try:
            with connection.cursor() as cursor:
                cursor.execute(statements)
                while cursor.nextset():
                    pass
        except pymysql.err.MySQLError as met:
            connection.rollback()
            if met.args[0] not in MEETINGS:
                raise
            with self._lock:
                self.done.refused += 1
            return False
        with self._lock:
            self.done.transactions += 1
        return True

    def _columns(self, connection: Connection) -> dict[str, list[str]]:
        """Of each table those that a writer may give a value."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = DATABASE()"
                " AND extra NOT LIKE '%GENERATED%' AND extra NOT LIKE '%auto_increment%'"
            )
            found: dict[str, list[str]] = {}
            for table, column in cursor.fetchall():
                if table in self._shapes and column not in self._shapes[table].key:
                    found.setdefault(table, []).append(column)
        connection.rollback()
        return found


def transaction(dice: Dice, shapes: dict[str, Shape], columns: dict[str, list[str]]) -> str:
    """Statements of one; a few are rolled back."""
    there = sorted(columns)
    changes = [
        change(dice, table, shapes[table], columns[table]) for table in dice.choices(there, k=dice.randint(1, 4))
    ]
    return "; ".join(["START TRANSACTION", *changes, "ROLLBACK" if dice.random() < 0.03 else "COMMIT"])


def change(dice: Dice, table: str, shape: Shape, columns: list[str]) -> str:
    """One change of one table."""
    values = {column: value(dice, shape, column) for column in columns}
    keys = {column: make(dice) for column, make in shape.key.items()} or dict(list(values.items())[:1])
    where = " AND ".join(f"`{column}` <=> {literal}" for column, literal in keys.items())
    what = dice.random()
    if what < 0.5 or not values:
        row = {**values, **keys}
        verb = "REPLACE" if what < 0.15 and shape.key else "INSERT IGNORE"
        return f"{verb} INTO `{table}` ({', '.join(f'`{name}`' for name in row)}) VALUES ({', '.join(row.values())})"
    if what < 0.78:
        chosen = dice.sample(sorted(values), dice.randint(1, len(values)))
        return f"UPDATE IGNORE `{table}` SET {', '.join(f'`{c}` = {values[c]}' for c in chosen)} WHERE {where} LIMIT 3"
    if what < 0.82 and shape.key:
        column, make = dice.choice(list(shape.key.items()))
        return f"UPDATE IGNORE `{table}` SET `{column}` = {make(dice)} WHERE {where} LIMIT 1"
    return f"DELETE FROM `{table}` WHERE {where} LIMIT 3"


def value(dice: Dice, shape: Shape, column: str) -> str:
    fitting = (shape.values or {}).get(column)
    if fitting is not None:
        return fitting(dice)
    return number(dice) if dice.random() < 0.5 else dice.choice(_ANY)(dice)
