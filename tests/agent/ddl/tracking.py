"""A server, its log, and a catalog that follows it: each statement is tracked and compared with information_schema."""

import re
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields, replace

import pymysql

from agent.sources.mysql.columns import Column
from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.model import (
    Applied,
    Catalog,
    ColumnDefinition,
    Default,
    Server,
    Statement,
    Table,
    TableDefinition,
    Unsure,
)
from agent.sources.mysql.ddl.session import statement_of
from agent.sources.mysql.log.events import parse_query
from agent.sources.mysql.log.table_map import parse_table_map
from agent.sources.mysql.native.decoder import PlannedColumn, TablePlan, UnsupportedColumn
from agent.sources.mysql.schema.column_types import most_bytes_of
from agent.sources.mysql.server.information_schema import read_databases, read_definitions
from agent.sources.mysql.types import BINARY_KINDS, Kind
from tests.servers import Server as RunningServer

_HEADER = struct.Struct("<IBIIIH")
_QUERY_EVENT, _TABLE_MAP_EVENT = 2, 19
_CHECKSUM_BYTES = 4
_SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")


@dataclass
class Outcome:
    #: the server's code; 0: it took the statement
    refused: int = 0
    applied: list[Applied] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    #: bodies of TABLE_MAP events
    table_maps: list[bytes] = field(default_factory=list)
    unsure: list[Unsure] = field(default_factory=list)
    #: what differs from information_schema, for people
    differences: list[str] = field(default_factory=list)


class Tracking:
    """One server with row-based log and minimal metadata, and what is known of it."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        version = str(running.run("SELECT VERSION()")[0][0])
        numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
        names = running.run("SELECT @@lower_case_table_names")[0][0]
        self.server = Server("MariaDB" in version, (numbers[0], numbers[1], numbers[2]), int(str(names)))
        self._admin = running.connect()
        self.catalog = Catalog({}, {})
        self.reset()

    def close(self) -> None:
        self.connection.close()
        self._admin.close()

    def reset(self) -> None:
        """An empty server, a new session with a database `t`."""
        with self._admin.cursor() as cursor:
            cursor.execute("SHOW DATABASES")
            for (name,) in list(cursor.fetchall()):
                if name not in _SYSTEM:
                    cursor.execute("DROP DATABASE `" + name.replace("`", "``") + "`")
            cursor.execute("CREATE DATABASE t CHARACTER SET utf8mb4")
            cursor.execute("SHOW BINARY LOG STATUS" if not self.server.mariadb else "SHOW MASTER STATUS")
            self._file, self._offset = cursor.fetchall()[0][:2]
        self.connection = self.running.connect(database="t")
        self.catalog = Catalog(self.read(), read_databases(self._admin))

    def read(self) -> dict[Table, TableDefinition | None]:
        found = read_definitions(self._admin, None, self.server)
        return {table: None if isinstance(read, Unsure) else read for table, read in found.items()}

    def run(self, text: str) -> Outcome:
        """Run, track and compare; tables that end as unsure are read anew afterwards."""
        outcome = Outcome()
        with self.connection.cursor() as cursor:
            try:
                cursor.execute(text)
                cursor.fetchall()
            except pymysql.err.MySQLError as refused:
                outcome.refused = int(refused.args[0])
        for type_, body in self._events():
            if type_ == _TABLE_MAP_EVENT:
                outcome.table_maps.append(body)
            elif type_ == _QUERY_EVENT:
                statement = statement_of(parse_query(body), self.server)
                outcome.statements.append(statement)
                applied = apply(self.catalog, statement, self.server)
                outcome.applied.append(applied)
                outcome.unsure += applied.unsure
                self.catalog = applied.catalog
        if outcome.applied:
            self._compare(outcome)
        return outcome

    def _events(self) -> Iterator[tuple[int, bytes]]:
        assert self.running.folder is not None
        with (self.running.folder / "data" / self._file).open("rb") as log:
            log.seek(self._offset)
            events = log.read()
        at = 0
        while at + _HEADER.size <= len(events):
            _, type_, _, length, _, _ = _HEADER.unpack_from(events, at)
            if at + length > len(events):
                break
            yield type_, events[at + _HEADER.size : at + length - _CHECKSUM_BYTES]
            at += length
        self._offset += at

    def _compare(self, outcome: Outcome) -> None:
        there = self.read()
        tables = dict(self.catalog.tables)
        for table in {**tables, **there}:
            if table in there and there[table] is None:  # information_schema can't tell
                continue
            if table in tables and tables[table] is None:
                if table in there:
                    tables[table] = there[table]
                else:
                    del tables[table]
                continue
            wrong = differences(table, tables.get(table), there.get(table), mariadb=self.server.mariadb)
            outcome.differences += wrong
            if wrong and table in there:  # told once
                tables[table] = there[table]
            elif wrong:
                del tables[table]
        databases = {name: charset for name, charset in read_databases(self._admin).items() if name not in _SYSTEM}
        tracked = {name: charset for name, charset in self.catalog.databases.items() if name not in _SYSTEM}
        if databases != tracked:
            outcome.differences.append(f"databases: tracked {tracked}, there {databases}")
        self.catalog = Catalog(tables, self.catalog.databases)


def differences(
    table: Table, tracked: TableDefinition | None, there: TableDefinition | None, *, mariadb: bool
) -> list[str]:
    """What a tracked definition has otherwise than information_schema, which can't show all."""
    if tracked is None or there is None:
        return [f"{table}: tracked {tracked is not None}, there {there is not None}"] if tracked != there else []
    found = []
    if _unique_keys(tracked) != _unique_keys(there):
        found.append(f"{table}: unique keys {_unique_keys(tracked)}, there {_unique_keys(there)}")
    if (tracked.primary_key, tracked.charset) != (there.primary_key, there.charset):
        found.append(f"{table}: {tracked.primary_key} {tracked.charset}, there {there.primary_key} {there.charset}")
    for ours, theirs in zip(tracked.columns, there.columns, strict=False):
        ours, theirs = _comparable(ours, theirs, mariadb=mariadb)  # noqa: PLW2901
        if ours != theirs:
            found.append(f"{table}.{ours.name}: {_other(ours, theirs)}")
    if len(tracked.columns) != len(there.columns):
        found.append(f"{table}: {[c.name for c in tracked.columns]}, there {[c.name for c in there.columns]}")
    return found


def _unique_keys(definition: TableDefinition) -> list[tuple[str, list[tuple[str, int]]]]:
    return sorted((key.name.lower(), [(n.lower(), s) for n, s in key.parts]) for key in definition.keys if key.unique)


def _other(ours: ColumnDefinition, theirs: ColumnDefinition) -> str:
    names = [part.name for part in fields(ours) if getattr(ours, part.name) != getattr(theirs, part.name)]
    return ", ".join(f"{name} {getattr(ours, name)!s}, there {getattr(theirs, name)!s}" for name in names)


def _comparable(
    ours: ColumnDefinition, theirs: ColumnDefinition, *, mariadb: bool
) -> tuple[ColumnDefinition, ColumnDefinition]:
    # information_schema shows it in other words
    ours, theirs = replace(ours, expression=""), replace(theirs, expression="")
    if set(theirs.reads or ()) <= set(ours.reads or ()):  # a statement's keywords are in ours
        ours, theirs = replace(ours, reads=None), replace(theirs, reads=None)
    if not mariadb and theirs.nullable and ours.default is Default.NONE:  # MySQL shows both as NULL
        ours, theirs = replace(ours, default=Default.NULL), replace(theirs, default=Default.NULL)
    if ours.type.kind is Kind.TIMESTAMP and {ours.default, theirs.default} == {Default.LITERAL, Default.EXPRESSION}:
        # one of them does not know the time zone
        return replace(ours, default=Default.NONE, default_text=""), replace(
            theirs, default=Default.NONE, default_text=""
        )
    if ours.type.kind is Kind.FLOAT and ours.default is theirs.default is Default.LITERAL:  # it shows six digits
        ours = replace(ours, default_text=repr(float(f"{float(ours.default_text):.6g}")))
        theirs = replace(theirs, default_text=repr(float(f"{float(theirs.default_text):.6g}")))
    if ours.type.kind in BINARY_KINDS and {ours.default, theirs.default} == {Default.LITERAL, Default.EXPRESSION}:
        # MySQL ends it at a zero byte, MariaDB shows '?' for what is no text
        return replace(ours, default=Default.NONE, default_text=""), replace(
            theirs, default=Default.NONE, default_text=""
        )
    return ours, theirs


def row_differences(tracked: Tracking) -> tuple[int, list[str]]:
    """Puts an empty row in each table: how many took one, and whose row events contradict what is tracked."""
    tracked.run("SET sql_mode = '', foreign_key_checks = 0")
    compared, wrong = 0, []
    for table, definition in tracked.catalog.tables.items():
        name = ".".join("`" + part.replace("`", "``") + "`" for part in table)
        outcome = tracked.run(f"INSERT INTO {name} () VALUES ()") if definition else Outcome()
        maps = [parse_table_map(body, mariadb=tracked.server.mariadb) for body in outcome.table_maps]
        logged = [table_map for table_map in maps if (table_map.database, table_map.table) == table]
        if definition is None or not logged:
            continue
        compared += 1
        columns = [Column(column.name, column.type) for column in definition.columns]
        try:
            pairs = list(zip(columns, logged[0].columns, strict=True))
            TablePlan(*table, "", [PlannedColumn(column, found.type, found.metadata, True) for column, found in pairs])
        except (ValueError, UnsupportedColumn) as contradiction:
            wrong.append(f"row events of {table}: {contradiction}")
            continue
        for column, found in zip(definition.columns, logged[0].columns, strict=True):
            if most_bytes_of(column, found) != found.metadata:
                wrong.append(f"row events of {table}: {column.name} of {found.metadata} bytes has {column.length}")
    return compared, wrong


@contextmanager
def tracking(running: RunningServer) -> Iterator[Tracking]:
    with closing(Tracking(running)) as tracked:
        yield tracked
