"""From a table map to how its rows are read: the table's columns at that moment, minus what the filter ignores.

Comes in: bodies of TABLE_MAP events, and the filter's verdict. Goes out: `TablePlan`s for the decoder. With
binlog_row_metadata=FULL a table map says all about its columns. Otherwise information_schema is asked, and what
it says is checked against the table map; that describes the table as it is now, so a DDL in the stream then
stops the table. Never a guess: a contradiction raises a `TableError`.
"""

from contextlib import closing
from dataclasses import dataclass

from menura.change_batch import is_reserved
from menura.schema import Column, schema_id
from menura.types import ColumnType, Kind

from agent.config import SourceConfig
from agent.errors import (
    TableColumnReserved,
    TableColumnUnsupported,
    TableError,
    TableSchemaMismatch,
    TableSchemaUnknown,
)
from agent.mysql import constants
from agent.mysql.column_types import ColumnTypeUnknown, column_type, needs_definition, size_is_logged
from agent.mysql.connection import Facts, connect, server_errors
from agent.mysql.information_schema import ColumnUnknown, read_columns
from agent.mysql.table_map import MappedColumn, TableMap, TableMapError, parse_table_map
from agent.native.decoder import PlannedColumn, TablePlan, UnsupportedColumn

DOING = "reading a table's definition"
COMPLETE = "The table is complete up to the transaction before it"
FULL_METADATA = (
    "Run on the server: SET GLOBAL binlog_row_metadata = 'FULL'; add binlog_row_metadata=FULL to [mysqld] in my.cnf,"
    " and start the table's sync anew"
)

_TYPE_PREFIX = "MYSQL_TYPE_"
_TYPE_NAMES = {
    number: name.removeprefix(_TYPE_PREFIX) for name, number in vars(constants).items() if name.startswith(_TYPE_PREFIX)
}

#: (database, table)
Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Known:
    plan: TablePlan
    #: described by information_schema, not by the log
    is_asked: bool


class TablePlanner:
    """The plans of one stream; equal table maps share one."""

    def __init__(self, config: SourceConfig, facts: Facts) -> None:
        self._config = config
        self._mariadb = facts.flavor == "mariadb"
        self._plans: dict[bytes, _Known] = {}
        self._current: dict[Table, _Known] = {}
        self._asked: dict[Table, tuple[Column, ...]] = {}

    def plan(self, table: Table, body: bytes) -> TablePlan:
        """How the rows after this TABLE_MAP are read; raises a `TableError`."""
        known = self._plans.get(body[6:])  # without its id, which changes for no reason of ours
        if known is None:
            known = self._make(table, body)
            self._plans[body[6:]] = known
        self._current[table] = known
        return known.plan

    def definition_changed(self, table: Table) -> None:
        """A DDL of the table stands in the stream; raises `TableSchemaUnknown` where the log does not describe it."""
        known = self._current.get(table)
        if known is not None and known.is_asked:
            raise TableSchemaUnknown(
                "following a change of a table's definition",
                "the log does not describe columns (binlog_row_metadata is not FULL), so rows after it can't be read",
                data=COMPLETE,
                remedy=FULL_METADATA,
                source=self._config.name,
                database=table[0],
                table=table[1],
            )

    def _make(self, table: Table, body: bytes) -> _Known:
        verdict = self._config.filter.verdict(*table)
        try:
            table_map = parse_table_map(body, mariadb=self._mariadb)
            is_asked = any(needs_definition(column, mariadb=self._mariadb) for column in table_map.columns)
            asked = self._ask(table, table_map) if is_asked else None
            if asked is not None and any(column.name is None for column in table_map.columns):
                columns = asked
            else:
                columns = tuple(
                    self._column(table_map, index, asked, sent=not verdict.ignores(column.name or ""))
                    for index, column in enumerate(table_map.columns)
                )
            self._check_names(table, columns)
            sent = tuple(column for column in columns if not verdict.ignores(column.name))
            planned = [
                PlannedColumn(column, logged.type, logged.metadata, not verdict.ignores(column.name))
                for column, logged in zip(columns, table_map.columns, strict=True)
            ]
            return _Known(TablePlan(table[0], table[1], schema_id(sent), planned), is_asked)
        except (TableMapError, ColumnTypeUnknown, ColumnUnknown) as unknown:
            raise self._error(TableColumnUnsupported, table, str(unknown), self._ignore_or_upgrade(table)) from unknown
        except UnsupportedColumn as unsupported:
            if is_asked:
                raise self._error(TableSchemaMismatch, table, str(unsupported), FULL_METADATA) from unsupported
            remedy = self._ignore_or_upgrade(table)
            raise self._error(TableColumnUnsupported, table, str(unsupported), remedy) from unsupported

    def _column(self, table_map: TableMap, index: int, asked: tuple[Column, ...] | None, *, sent: bool) -> Column:
        """A column that the table map describes; of one that is not sent the type matters only for its size."""
        mapped = table_map.columns[index]
        assert mapped.name is not None
        places = [column for column, _ in table_map.primary_key or ()]
        key = places.index(index) + 1 if index in places else 0
        definition = asked[index].type if asked is not None and asked[index].name == mapped.name else None
        return Column(mapped.name, self._type(mapped, definition, sent=sent), nullable=mapped.nullable, key=key)

    def _type(self, mapped: MappedColumn, definition: ColumnType | None, *, sent: bool) -> ColumnType:
        if not sent and size_is_logged(mapped, mariadb=self._mariadb):
            return ColumnType(Kind.BLOB)
        try:
            return column_type(mapped, mariadb=self._mariadb, fallback=definition)
        except ColumnTypeUnknown as unknown:
            name = _TYPE_NAMES.get(mapped.type, "unknown")
            raise ColumnTypeUnknown(f"column {mapped.name} of type {name}: {unknown}") from unknown

    def _check_names(self, table: Table, columns: tuple[Column, ...]) -> None:
        for column in columns:
            if is_reserved(column.name):
                remedy = f"Rename it on the server: ALTER TABLE {table[1]} RENAME COLUMN {column.name} TO ..."
                found = f"the column name {column.name} is one of the lake's own"
                raise self._error(TableColumnReserved, table, found, remedy)

    def _ask(self, table: Table, table_map: TableMap) -> tuple[Column, ...]:
        """The columns of information_schema, asked once per stream and table."""
        if table not in self._asked:
            server = self._config.binlog
            with (
                closing(connect(server, self._config.name)) as connection,
                server_errors(DOING, server, self._config.name, "SELECT"),
            ):
                self._asked[table] = read_columns(connection, *table)
        columns = self._asked[table]
        if len(columns) != len(table_map.columns):
            found = f"information_schema shows {len(columns)} columns, the log has {len(table_map.columns)}"
            raise self._error(TableSchemaMismatch, table, found, FULL_METADATA)
        return columns

    def _ignore_or_upgrade(self, table: Table) -> str:
        setting = f"sources.{self._config.name}.filter.{'.'.join(table)}.ignored_columns"
        return f"Add the column to {setting} and restart the agent, or upgrade Menura; then start the table's sync anew"

    def _error(self, kind: type[TableError], table: Table, found: str, remedy: str) -> TableError:
        return kind(
            DOING, found, data=COMPLETE, remedy=remedy, source=self._config.name, database=table[0], table=table[1]
        )
