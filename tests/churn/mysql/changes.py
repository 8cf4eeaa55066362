"""Changes of rows on MySQL and MariaDB; a column gets any value, which the server converts (no strict mode)."""

from collections.abc import Callable, Mapping

import pymysql
from pymysql.constants import CLIENT, ER

from tests.churn.kind import Columns, Dice, Shape, number
from tests.live_source import LiveSource

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
_LOCKED = frozenset({ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT})
_CONNECTION_LOST = frozenset({0, 2006, 2013})
#: those that a writer may give a value
_WRITABLE = """
    SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = DATABASE()
    AND extra NOT LIKE '%GENERATED%' AND extra NOT LIKE '%auto_increment%' ORDER BY table_name, ordinal_position
"""


def is_meeting(error: Exception) -> bool:
    return error.args[0] in MEETINGS


def is_locked(error: Exception) -> bool:
    return error.args[0] in _LOCKED


def is_lost(error: Exception) -> bool:
    return error.args[0] in _CONNECTION_LOST


def quoted(name: str) -> str:
    return f"`{name}`"


class MysqlSession:
    def __init__(self, source: LiveSource) -> None:
        self._connection = source.connect(client_flag=CLIENT.MULTI_STATEMENTS, init_command=SESSION, autocommit=True)

    def columns(self, tables: Mapping[str, Shape]) -> Columns:
        with self._connection.cursor() as cursor:
            cursor.execute(_WRITABLE)
            found: dict[str, dict[str, str]] = {}
            for table, column, kind in cursor.fetchall():
                if table in tables and column not in tables[table].key:
                    found.setdefault(table, {})[column] = kind
        return found

    def run(self, statements: str) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statements)
                while cursor.nextset():
                    pass
        except pymysql.err.MySQLError as refused:
            if not is_lost(refused):
                self._connection.rollback()
            raise

    def close(self) -> None:
        self._connection.close()


def transaction(dice: Dice, shapes: Mapping[str, Shape], columns: Columns) -> list[str]:
    """Statements of one; a few are rolled back."""
    there = sorted(columns)
    changes = [
        change(dice, table, shapes[table], columns[table]) for table in dice.choices(there, k=dice.randint(1, 4))
    ]
    return ["; ".join(["START TRANSACTION", *changes, "ROLLBACK" if dice.random() < 0.03 else "COMMIT"])]


def change(dice: Dice, table: str, shape: Shape, columns: Mapping[str, str]) -> str:
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
