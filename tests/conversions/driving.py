"""One server's tables: made, filled, altered in rounds, and written between."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

import pymysql

from tests.agent.ddl.converting import WRITING
from tests.churn.kind import MARKER
from tests.conversions.tables import COPYING, IN_PLACE_FIRST, Alter, Dice, Table
from tests.servers import Server

FIRST_ROWS = 14
#: statements that are tried for one ALTER, until the server takes one
TRIES = 12
#: values that a strict server refuses, taken away one by one
MOST_REFUSED_VALUES = 30
#: ER_ALTER_OPERATION_NOT_SUPPORTED, the same with a reason
_NOT_BY_THIS_ALGORITHM = (1845, 1846)
_PLACE = re.compile(r"column '(?:.*\.)?`?(?P<column>c\w+)`?' at row (?P<row>\d+)|at row (?P<only>\d+)")


@dataclass
class Done:
    """What one server has done."""

    #: by the algorithm that was named; "": the server's own choice
    algorithms: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    #: rounds in which a table found nothing that the server takes
    idle: int = 0


class Driver:
    def __init__(
        self, server: Server, database: str, tables: Sequence[Table], seed: str, *, mixes_formats: bool
    ) -> None:
        """`mixes_formats`: each ALTER of MariaDB may leave times as they were before 5.6, or as they are since."""
        self.tables = tables
        self.done = Done()
        self._dice = Dice(f"{seed} driver")
        self._mixes_formats = mixes_formats
        server.run(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        self._connection = server.connect(database=database)

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: TracebackType | type[BaseException] | BaseException | None) -> None:
        self._connection.close()

    def create(self) -> None:
        self._write("FULL")
        self._must(f"CREATE TABLE {MARKER} (id BIGINT AUTO_INCREMENT PRIMARY KEY)")
        for table in self.tables:
            self._must(table.create)

    def fill(self) -> None:
        for table in self.tables:
            self._insert(table, FIRST_ROWS)

    def round(self) -> None:
        """An ALTER of each table, and changes of some of its rows."""
        for table in self.tables:
            if not self._alter(table):
                self.done.idle += 1
            self._change(table)

    # --- rows

    def _insert(self, table: Table, count: int) -> None:
        self._write(table.image)
        for values in table.values(self._dice, count):
            table.next_id += 1
            if self._run(_insert(table, values)) is None:
                continue
            # one value that the server refuses at any rate does not keep the others away
            key = {name: value for name, value in values.items() if name in table.key.split(", ")}
            if self._run(_insert(table, key)) is None:
                for name, value in values.items() - key.items():
                    self._run(f"UPDATE IGNORE {table.name} SET {name} = {value} WHERE id = {table.next_id}")

    def _change(self, table: Table) -> None:
        """A few rows: most keep what they had, so that nobody writes over what the lake has wrong."""
        dice, ids = self._dice, range(1, table.next_id + 1)
        self._insert(table, 2)
        some = ", ".join(map(str, dice.sample(ids, 2)))
        self._run(f"UPDATE IGNORE {table.name} SET n = COALESCE(n, 0) + 1 WHERE id IN ({some})")
        column = dice.choice(table.columns)
        value = table.values(dice, 1)[0][column.name]
        self._run(f"UPDATE IGNORE {table.name} SET {column.name} = {value} WHERE id = {dice.choice(ids)}")
        if dice.random() < 0.3:
            self._run(f"DELETE FROM {table.name} WHERE id = {dice.choice(ids)}")

    # --- definitions

    def _alter(self, table: Table) -> bool:
        for _ in range(TRIES):
            alter = table.propose(self._dice)
            if alter is not None and self._try(table, alter):
                return True
        return False

    def _try(self, table: Table, alter: Alter) -> bool:
        algorithms = list(COPYING if self._dice.random() < 0.4 else IN_PLACE_FIRST)
        for _ in range(MOST_REFUSED_VALUES):
            self._alter_session(table)
            statement = alter.sql(algorithms[0])
            refused = self._run(statement)
            if refused is None:
                table.accept(statement, alter)
                table.was_empty |= not self._rows(f"SELECT 1 FROM {table.name} LIMIT 1")
                self.done.algorithms[algorithms[0]] += 1
                return True
            if refused[0] in _NOT_BY_THIS_ALGORITHM and len(algorithms) > 1:
                del algorithms[0]
            elif not self._take_away(table, alter, refused[1]):
                break
        self.done.refused += 1
        return False

    def _take_away(self, table: Table, alter: Alter, message: str) -> bool:
        """The value that a strict server refuses to convert; the rest of the column stays."""
        place = _PLACE.search(message)
        if place is None or table.mode.name not in _STRICT_ONES:
            return False
        order = table.key or "id"
        row = int(place["row"] or place["only"])
        self._write(table.image)
        found = self._rows(f"SELECT id FROM {table.name} ORDER BY {order} LIMIT 1 OFFSET {max(row - 1, 0)}")
        if not found:
            return False
        names = {column.name for column in table.columns}
        column = place["column"] if place["column"] in names else next((was for was, _ in alter.changes), "id")
        ((number,),) = found
        is_key = column in table.key.split(", ")
        if is_key or self._run(f"UPDATE {table.name} SET {column} = NULL WHERE id = {number} AND {column} IS NOT NULL"):
            self._run(f"DELETE FROM {table.name} WHERE id = {number}")
        return True

    def _alter_session(self, table: Table) -> None:
        if self._mixes_formats:
            self._must(f"SET GLOBAL mysql56_temporal_format = {self._dice.choice(['ON', 'OFF'])}")
        self._must(f"SET SESSION sql_mode = '{table.mode.sql_mode}', time_zone = '{table.mode.time_zone}'")

    # --- statements

    def _write(self, image: str) -> None:
        self._must(WRITING, f"SET SESSION binlog_row_image = '{image}'")

    def _must(self, *statements: str) -> None:
        for statement in statements:
            refused = self._run(statement)
            assert refused is None, (statement, refused)

    def _run(self, statement: str) -> tuple[int, str] | None:
        """The server's code and message where it refuses."""
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError as refused:
                return int(refused.args[0]), str(refused.args[1])
        return None

    def _rows(self, statement: str) -> tuple[tuple[object, ...], ...]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()


_STRICT_ONES = ("strict", "strict, no zero dates")


def _insert(table: Table, values: dict[str, str]) -> str:
    names = ", ".join(["id", "n", *values])
    return (
        f"INSERT IGNORE INTO {table.name} ({names}) VALUES ({', '.join([str(table.next_id), '0', *values.values()])})"
    )
