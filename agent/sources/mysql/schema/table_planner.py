"""From a table map to how its rows are read: the table's columns at that moment, minus what the filter ignores.

Comes in: bodies of TABLE_MAP events, and the filter's verdict. Goes out: `TablePlan`s for the decoder. With
binlog_row_metadata=FULL a table map says all about its columns but for a few types. Otherwise, and for those,
`definitions` tells how the table looks at this position, and that is checked against the table map. Never a guess: a
contradiction that stays raises a `TableError`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import compress

from menura.change_batch import LITERAL_DEFAULT, NULL_DEFAULT, UNREPRESENTABLE_DEFAULT
from menura.naming import sync_anew

from agent.errors import (
    TableColumnUnsupported,
    TableError,
    TableSchemaMismatch,
    TableSchemaUnknown,
)
from agent.filter import Verdict
from agent.sources.mysql.columns import Column, schema_id
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl import hidden
from agent.sources.mysql.ddl.derived import unsent
from agent.sources.mysql.ddl.model import ColumnDefinition, Default, TableDefinition
from agent.sources.mysql.log import constants
from agent.sources.mysql.log.table_map import MappedColumn, TableMap, TableMapError, parse_table_map
from agent.sources.mysql.native.decoder import PlannedColumn, TablePlan, UnsupportedColumn
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.column_types import (
    ColumnTypeUnknown,
    column_type,
    may_be_versioned,
    most_bytes_of,
    needs_definition,
    size_is_logged,
)
from agent.sources.mysql.schema.definitions import Definitions
from agent.sources.mysql.schema.log_scan import Transaction
from agent.sources.mysql.schema.versions import Unknown, Version
from agent.sources.mysql.server.connection import Facts
from agent.sources.mysql.server.foreign_keys import Cascades
from agent.sources.mysql.types import ColumnType, Kind
from agent.sources.mysql.wire_literals import wire_literal

DOING = "reading a table's definition"
COMPLETE = "The table is complete up to the transaction before it"
FULL_METADATA = (
    "Run on the server: SET GLOBAL binlog_row_metadata = 'FULL'; add binlog_row_metadata=FULL to [mysqld] in my.cnf"
)

_NEEDED_FOR_LOG = ("the log does not describe columns", FULL_METADATA)
_NEEDED_FOR_FILTER = (
    "the filter ignores columns of the table, and the log does not say which others are computed from those",
    "Read the table again",
)
_NEEDED_FOR_GENERATED = (
    "the server leaves generated columns out of its log, and the log does not say which these are",
    "Read the table again",
)
_TYPE_PREFIX = "MYSQL_TYPE_"
_TYPE_NAMES = {
    number: name.removeprefix(_TYPE_PREFIX) for name, number in vars(constants).items() if name.startswith(_TYPE_PREFIX)
}

#: (database, table)
Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a table map stands."""

    #: behind the last finished transaction
    position: BinlogPosition
    transaction: Transaction


class TablePlanner:
    """The plans of one stream; equal table maps of one definition share one."""

    def __init__(self, config: MysqlConfig, facts: Facts, definitions: Definitions) -> None:
        self._config = config
        self._mariadb = facts.flavor == "mariadb"
        self._definitions = definitions
        self.cascades = Cascades(config.name, config.binlog, facts)
        self._plans: dict[Table, dict[bytes, TablePlan]] = {}

    def plan(self, table: Table, body: bytes, moment: Moment | None) -> TablePlan:
        """How the rows after this TABLE_MAP are read; no `moment`: the table has these rows already.

        Raises a `TableError`, and a `SourceError` where the server has to be asked and can't answer.
        """
        plans = self._plans.setdefault(table, {})
        # without its id and its flags, which change for no reason of ours: two plans of one table would give their rows
        # apart, and out of order
        known = plans.get(body[8:])
        if known is None:
            known = self._make(table, body, moment)
            if moment is not None:
                plans[body[8:]] = known
        return known

    def united_in(self, tables: Iterable[Table]) -> set[Table]:
        """Lower-cased names of the tables that hold the rows of these, where they are MERGE tables."""
        return self.cascades.united_in(tables)

    def definition_changed(self, table: Table) -> None:
        """An equal table map may mean other columns from here on."""
        self._plans.pop(table, None)
        self.cascades.definition_changed(table)

    def _make(self, table: Table, body: bytes, moment: Moment | None) -> TablePlan:
        try:
            table_map = parse_table_map(body, mariadb=self._mariadb)
            is_open = (
                self._ignores_columns(table)
                or self._lacks_columns(table)
                or may_be_versioned(table_map, mariadb=self._mariadb)
            )
            if is_open or any(needs_definition(column, mariadb=self._mariadb) for column in table_map.columns):
                return self._by_definition(table, table_map, moment)
            return self._by_table_map(table, table_map, moment)
        except (TableMapError, ColumnTypeUnknown) as unknown:
            raise self._error(TableColumnUnsupported, table, str(unknown), self._ignore_or_upgrade(table)) from unknown

    def _ignores_columns(self, table: Table) -> bool:
        """Then its definition says which columns are computed from those; no table map does."""
        return self._config.filter.verdict(*table).keeps_columns

    def _lacks_columns(self, table: Table) -> bool:
        """Of its columns, those that the server leaves out of the log while they are generated are not sent."""
        return table in self._config.filter.findings.unlogged

    def _by_table_map(self, table: Table, table_map: TableMap, moment: Moment | None) -> TablePlan:
        columns = self._columns(table, table_map, None)
        if moment is not None:
            self._definitions.described(table, definition_of(columns), moment.position)
        known = self._definitions.of(table)
        if isinstance(known, TableDefinition):  # which the table map can't tell
            told = {column.name: (_insert_default(column), column.row_end) for column in known.columns}
            columns = tuple(_told(column, *told.get(column.name, ("", False))) for column in columns)
        try:
            return self._compiled(table, table_map, columns)
        except UnsupportedColumn as unsupported:
            remedy = self._ignore_or_upgrade(table)
            raise self._error(TableColumnUnsupported, table, str(unsupported), remedy) from unsupported

    def _by_definition(self, table: Table, table_map: TableMap, moment: Moment | None) -> TablePlan:
        """A definition that the table map contradicts is looked for once more."""
        if moment is None:
            return self._fitting(table, table_map, self._definitions.of(table))
        version = self._definitions.learned(table, moment.position, moment.transaction)
        try:
            return self._fitting(table, table_map, version)
        except TableSchemaMismatch as contradiction:
            self._definitions.doubted(table, contradiction.found)
        version = self._definitions.learned(table, moment.position, moment.transaction)
        return self._fitting(table, table_map, version)

    def _fitting(self, table: Table, table_map: TableMap, version: Version) -> TablePlan:
        if not isinstance(version, TableDefinition):
            why = version.why if isinstance(version, Unknown) else "there is no such table by then"
            is_described = table_map.columns[0].name is not None
            needs, remedy = _NEEDED_FOR_LOG
            if is_described and self._lacks_columns(table):
                needs, remedy = _NEEDED_FOR_GENERATED
            if is_described and self._ignores_columns(table):
                needs, remedy = _NEEDED_FOR_FILTER
            raise self._error(
                TableSchemaUnknown, table, f"{needs}, and its definition is not known, because {why}", remedy
            )
        try:
            return self._checked(table, table_map, version)
        except _Contradiction as contradiction:
            found = f"{contradiction}, by its definition"
            raise self._error(TableSchemaMismatch, table, found, FULL_METADATA) from contradiction

    def _checked(self, table: Table, table_map: TableMap, definition: TableDefinition) -> TablePlan:
        """By a definition that must fit the table map; raises `_Contradiction`."""
        defined = columns_of(definition)
        if len(defined) != len(table_map.columns):
            raise _Contradiction(f"{len(table_map.columns)} columns in the log are {len(defined)}")
        hashes = frozenset(place for place, column in enumerate(definition.columns) if hidden.is_hash(column))
        for place, (column, logged) in enumerate(zip(defined, table_map.columns, strict=True)):
            is_other = logged.name is not None and logged.name.lower() != column.name.lower()
            if is_other and not (place in hashes and hidden.may_be_hash(logged.name or "")):
                raise _Contradiction(f"column {logged.name} is {column.name}")
            if logged.nullable != column.nullable:
                raise _Contradiction(
                    f"column {column.name}, which may {'' if logged.nullable else 'not '}be NULL, differs"
                )
        for tracked, logged in zip(definition.columns, table_map.columns, strict=True):
            most_bytes = most_bytes_of(tracked, logged)
            if most_bytes != logged.metadata:
                raise _Contradiction(f"column {tracked.name} of at most {logged.metadata} bytes has {most_bytes}")
        is_described = table_map.columns[0].name is not None
        columns = self._columns(table, table_map, defined) if is_described else defined
        try:
            return self._compiled(table, table_map, columns, hashes)
        except UnsupportedColumn as unsupported:
            raise _Contradiction(str(unsupported)) from unsupported

    def _columns(self, table: Table, table_map: TableMap, defined: tuple[Column, ...] | None) -> tuple[Column, ...]:
        verdict = self.verdict(table)
        return tuple(
            self._column(table_map, index, defined, sent=not verdict.ignores(column.name or ""))
            for index, column in enumerate(table_map.columns)
        )

    def _compiled(
        self, table: Table, table_map: TableMap, columns: tuple[Column, ...], hashes: frozenset[int] = frozenset()
    ) -> TablePlan:
        """`hashes`: places of columns that no statement can name."""
        verdict = self.verdict(table)
        self._check_key(table, columns, verdict)
        is_sent = [place not in hashes and not verdict.ignores(column.name) for place, column in enumerate(columns)]
        sent = tuple(compress(columns, is_sent))
        known = self._definitions.of(table)
        is_looked_up = self._lacks_columns(table)
        computed = _computed(known, is_looked_up) if isinstance(known, TableDefinition) else frozenset()
        planned = [
            PlannedColumn(column, logged.type, logged.metadata, sends, column.name.lower() in computed)
            for column, logged, sends in zip(columns, table_map.columns, is_sent, strict=True)
        ]
        return TablePlan(table[0], table[1], schema_id(sent), planned)

    def verdict(self, table: Table) -> Verdict:
        """Which of its columns are not sent; the definition stands for the rows that are planned."""
        known = self._definitions.of(table)
        return unsent(self._config.filter, table, known if isinstance(known, TableDefinition) else None)

    def _check_key(self, table: Table, columns: Iterable[Column], verdict: Verdict) -> None:
        for column in columns:
            if column.key and verdict.ignores(column.name):
                raise self._config.filter.ignored_key(self._config.name, table, column.name, DOING, COMPLETE)

    def _column(self, table_map: TableMap, index: int, defined: tuple[Column, ...] | None, *, sent: bool) -> Column:
        """A column that the table map describes; of one that is not sent the type matters only for its size."""
        mapped = table_map.columns[index]
        assert mapped.name is not None
        places = [column for column, _ in table_map.primary_key or ()]
        key = places.index(index) + 1 if index in places else 0
        definition = defined[index] if defined is not None else None
        type_ = self._type(mapped, definition.type if definition else None, sent=sent)
        column = Column(mapped.name, type_, nullable=mapped.nullable, key=key)
        return _told(column, definition.default, definition.row_end) if definition else column

    def _type(self, mapped: MappedColumn, definition: ColumnType | None, *, sent: bool) -> ColumnType:
        if not sent and size_is_logged(mapped, mariadb=self._mariadb):
            return ColumnType(Kind.BLOB)
        try:
            return column_type(mapped, mariadb=self._mariadb, fallback=definition)
        except ColumnTypeUnknown as unknown:
            name = _TYPE_NAMES.get(mapped.type, "unknown")
            raise ColumnTypeUnknown(f"column {mapped.name} of type {name}: {unknown}") from unknown

    def _ignore_or_upgrade(self, table: Table) -> str:
        setting = f"sources.{self._config.name}.filter.{'.'.join(table)}.ignored_columns"
        return f"Add the column to {setting} and restart the agent, or upgrade Menura"

    def _error(self, kind: type[TableError], table: Table, found: str, remedy: str) -> TableError:
        remedy = f"{remedy}; then run: {sync_anew(self._config.name, *table)}"
        return kind(
            DOING, found, data=COMPLETE, remedy=remedy, source=self._config.name, database=table[0], table=table[1]
        )


class _Contradiction(Exception):
    """A definition does not fit a table map; says where."""


def columns_of(definition: TableDefinition) -> tuple[Column, ...]:
    keys = {name.lower(): place for place, name in enumerate(definition.primary_key, start=1)}
    return tuple(
        Column(
            column.name,
            column.type,
            nullable=column.nullable,
            key=keys.get(column.name.lower(), 0),
            default=_insert_default(column),
            row_end=column.row_end,
        )
        for column in definition.columns
    )


def _told(column: Column, default: str, row_end: bool) -> Column:
    """The column with what a table map can't tell."""
    return replace(column, default=default, row_end=row_end)


def _computed(definition: TableDefinition, is_looked_up: bool) -> frozenset[str]:
    """Lower-cased names of columns that are generated, or may be: of what only table maps tell that is not known.

    `is_looked_up`: what may be was looked up, after an update had lacked it.
    """
    return frozenset(
        column.name.lower()
        for column in definition.columns
        if column.generated or (column.reads_unknown and not is_looked_up)
    )


def _insert_default(column: ColumnDefinition) -> str:
    if column.generated:
        return ""
    if column.default is Default.NULL:
        return NULL_DEFAULT
    # How a timestamp's text is meant depends on the session that set it.
    if column.default is Default.LITERAL and column.type.kind is not Kind.TIMESTAMP:
        value = wire_literal(column.type, column.default_text)
        if value is not None:
            return (LITERAL_DEFAULT if value.is_representable else UNREPRESENTABLE_DEFAULT) + value.text
    return ""


def definition_of(columns: tuple[Column, ...]) -> TableDefinition:
    """What a table map that describes itself tells of a table: no defaults."""
    defined = tuple(
        ColumnDefinition(column.name, column.type, column.nullable, Default.EXPRESSION) for column in columns
    )
    key = sorted((column for column in columns if column.key), key=lambda column: column.key)
    return TableDefinition(defined, tuple(column.name for column in key))
