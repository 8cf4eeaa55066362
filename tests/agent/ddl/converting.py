"""A server that converts columns, and what the lake would hold of each value before and after."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
import pymysql

from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.model import Catalog, ColumnDefinition, Statement
from agent.sources.mysql.ddl.model import Server as DefinitionServer
from agent.sources.mysql.ddl.sql_modes import Session
from spark_sink.landed.lake_schema import lake_type, wider
from tests.agent.ddl.conversion_cases import Type
from tests.agent.native.selection import definition_of, plan_of_table, read, session
from tests.servers import Server

WRITING = "SET SESSION sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'"
#: a row has at most 65,535 bytes
_COLUMNS = 12


@dataclass(frozen=True)
class Mode:
    """What a session that converts has set."""

    name: str
    sql_mode: str = ""
    time_zone: str = "+00:00"
    #: behind the ALTER's action
    algorithm: str = ""
    ignore: bool = False
    #: `sql_mode` as the log has it
    sql_bits: int = 0


_STRICT, _NO_ZERO = 1 << 21, 1 << 23 | 1 << 24
LAX = Mode("not strict")
STRICT = Mode("strict", "STRICT_TRANS_TABLES", sql_bits=_STRICT)
#: MySQL's default; MariaDB's without the zero dates
STRICTER = Mode(
    "strict, no zero dates", "STRICT_TRANS_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE", sql_bits=_STRICT | _NO_ZERO
)
COPIED = Mode("copied", algorithm=", ALGORITHM=COPY")
IN_PLACE = Mode("in place", algorithm=", ALGORITHM=INPLACE")
AT_ONCE = Mode("at once", algorithm=", ALGORITHM=INSTANT")
PADDED = Mode("padded", "PAD_CHAR_TO_FULL_LENGTH", sql_bits=1 << 31)
IGNORED = Mode("ignored", "STRICT_TRANS_TABLES", ignore=True, sql_bits=_STRICT)
TRUNCATED = Mode("fractions truncated", "TIME_TRUNCATE_FRACTIONAL", sql_bits=1 << 32)
ROUNDED = Mode("fractions rounded", "TIME_ROUND_FRACTIONAL", sql_bits=1 << 34)
FIXED_ZONE = Mode("another time zone", time_zone="-07:30")


def session_of(mode: Mode, *, mariadb: bool) -> Session:
    return Session(mariadb, mode.sql_bits, mode.ignore, "")


@dataclass
class Conversion:
    before: Type
    after: Type
    mode: Mode
    #: the server's code; 0: it converted
    refused: int = 0
    #: the lake's column of before can't take the type: its values would be under two names
    is_apart: bool = False
    #: (before, after), as the lake has them
    changed: list[tuple[object, object]] = field(default_factory=list)
    #: places of `changed` among the type's values; behind the last one: NULL
    changed_rows: list[int] = field(default_factory=list)

    @property
    def kept(self) -> bool:
        return not self.refused and not self.is_apart and not self.changed


def landed(server: Server, table: str) -> tuple[pa.Table, list[dict[str, str]]]:
    """Rows in the order of their keys, as a dump lands them; and of each what is unrepresentable."""
    plan = plan_of_table(server, table, definition_of(server, table))
    with closing(session(server)) as connection:
        batches, _ = read(connection, plan)
    rows = pa.Table.from_batches(batches).sort_by("id")
    return rows, [json.loads(text) if text else {} for text in rows["_unrepresentable"].to_pylist()]


def lake_values(column: pa.ChunkedArray, other: pa.DataType) -> list[object] | None:
    """As the lake holds them in a column that takes `other` too; None: there is none."""
    ours, theirs = lake_type(column.type), lake_type(other)
    assert ours is not None and theirs is not None
    type_ = wider(ours, theirs)
    if type_ is None:
        return None
    return [repr(value) for value in column.cast(ours).cast(type_).to_pylist()]


def _by_id(
    rows: pa.Table, values: list[object], odd: list[dict[str, str]], name: str
) -> dict[int, tuple[object, object]]:
    found = zip(rows["id"].to_pylist(), values, odd, strict=True)
    return {number: (value, unrepresentable.get(name)) for number, value, unrepresentable in found}


class Converter:
    """One server; a table at a time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._connection = server.connect(database="t")
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            major, minor = str(cursor.fetchall()[0][0]).split(".")[:2]
        self.version = (int(major), int(minor))
        self.alters = 0

    def close(self) -> None:
        self._connection.close()

    def run(self, statement: str) -> int:
        """The server's code."""
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(statement)
            except pymysql.err.MySQLError as refused:
                return int(refused.args[0])
        return 0

    def create(self, before: Type, columns: int, table: str = "w") -> None:
        self.run(WRITING)
        self.run(f"DROP TABLE IF EXISTS {table}")
        listed = ", ".join(f"c{at} {before.definition} NULL" for at in range(columns))
        made = self.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, {listed})")
        assert not made, (before.definition, made)

    def fill(self, before: Type, columns: int, table: str = "w") -> None:
        self.create(before, columns, table)
        for number, value in enumerate((*before.values, "NULL")):
            self.run(f"INSERT IGNORE INTO {table} (id, c0) VALUES ({number}, {value})")
        if columns > 1:
            copied = ", ".join(f"c{at} = c0" for at in range(1, columns))
            refused = self.run(f"UPDATE {table} SET {copied}")
            assert not refused, (before.definition, refused)

    def convert(self, before: Type, afters: Sequence[Type], mode: Mode) -> Iterator[Conversion]:
        for start in range(0, len(afters), _COLUMNS):
            some = afters[start : start + _COLUMNS]
            self.fill(before, len(some))
            yield from self._convert(before, some, mode)

    def singly(self, before: Type, items: Sequence[tuple[Type, int]], mode: Mode) -> Iterator[Conversion]:
        """Each value, by its place, alone: what is refused does not hide another."""
        values = (*before.values, "NULL")
        for start in range(0, len(items), _COLUMNS):
            some = items[start : start + _COLUMNS]
            self.create(before, len(some))
            self.run("INSERT INTO w (id) VALUES (1)")
            for at, (_, number) in enumerate(some):
                self.run(f"UPDATE IGNORE w SET c{at} = {values[number]}")
            yield from self._convert(before, [after for after, _ in some], mode)

    def _convert(self, before: Type, afters: Sequence[Type], mode: Mode) -> list[Conversion]:
        were, were_odd = landed(self.server, "w")
        found = []
        self.run(f"SET SESSION sql_mode = '{mode.sql_mode}', time_zone = '{mode.time_zone}'")
        for at, after in enumerate(afters):
            ignore = " IGNORE" if mode.ignore else ""
            code = self.run(f"ALTER{ignore} TABLE w MODIFY c{at} {after.definition} NULL{mode.algorithm}")
            self.alters += 1
            found.append(Conversion(before, after, mode, code))
        now, now_odd = landed(self.server, "w")
        for at, conversion in enumerate(found):
            if conversion.refused:
                continue
            name = f"c{at}"
            ours = lake_values(were[name], now[name].type)
            theirs = lake_values(now[name], were[name].type)
            if ours is None or theirs is None:
                conversion.is_apart = True
                continue
            before_by_id = _by_id(were, ours, were_odd, name)
            after_by_id = _by_id(now, theirs, now_odd, name)
            # what is gone was taken away by IGNORE, which is told by itself
            other = {number: value for number, value in after_by_id.items() if value != before_by_id[number]}
            conversion.changed = [(before_by_id[number], value) for number, value in other.items()]
            conversion.changed_rows = list(other)
        return found


def definition(type_: Type, mariadb: bool) -> ColumnDefinition:
    """A nullable column of the type, as a statement defines it."""
    statement = Statement(f"CREATE TABLE d (c {type_.definition} NULL)", "t")
    applied = apply(
        Catalog({}, {"t": "utf8mb4"}), statement, DefinitionServer(mariadb, (11, 8, 0) if mariadb else (9, 7, 0))
    )
    found = applied.catalog.tables["t", "d"]
    assert found is not None, (type_.definition, applied.unsure)
    return found.columns[0]
