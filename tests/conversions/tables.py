"""Tables whose columns go from type to type: what stands in them, what comes next, and whether it keeps every value.

Pure: a seed decides. A server says what it has taken; then a table knows what the lake has to hold.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pyarrow as pa
from menura.types import lake_format, wider_format

from agent.sources.mysql.ddl.conversions import lost
from agent.sources.mysql.ddl.converted import converted
from agent.sources.mysql.ddl.model import ColumnDefinition, TableDefinition
from agent.sources.mysql.types import arrow_format
from spark_sink.landed.lake_schema import format_type, wider
from tests.agent.ddl.conversion_cases import TYPES, Type
from tests.agent.ddl.converting import (
    FIXED_ZONE,
    IGNORED,
    LAX,
    PADDED,
    ROUNDED,
    STRICT,
    STRICTER,
    TRUNCATED,
    Mode,
    definition,
    session_of,
)
from tests.servers import Flavor

Dice = random.Random

COLUMNS = 6
#: in which a table has its rows' identity: a number, nothing, or a column that is converted, and the number
KEYS = ("id", "id", "", "c0, id")
IMAGES = ("FULL", "MINIMAL", "NOBLOB")
MODES: dict[Flavor, tuple[Mode, ...]] = {
    "mysql": (LAX, STRICT, STRICTER, STRICTER, PADDED, TRUNCATED, FIXED_ZONE),
    "mariadb": (LAX, STRICT, STRICT, STRICTER, PADDED, IGNORED, ROUNDED, FIXED_ZONE),
}
#: as servers prefer them; "" is what a server chooses itself
IN_PLACE_FIRST = ("INSTANT", "INPLACE", "")
COPYING = ("COPY",)
#: the beginnings of types that a key may have, without a length of bytes
_IN_KEYS = ("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "DECIMAL", "CHAR", "VARCHAR", "DATE", "TIME", "ENUM",
            "BINARY", "VARBINARY")  # fmt: skip
_TIMES = re.compile("DATE|TIME")
#: charsets of bytes that are all texts
_WITHOUT_INVALID = ("_latin1", "_koi8r", "_utf16")


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: Type
    nullable: bool = True

    @property
    def sql(self) -> str:
        return f"{self.name} {self.type.definition} {'NULL' if self.nullable else 'NOT NULL'}"

    def defined(self, *, mariadb: bool) -> ColumnDefinition:
        return replace(_defined(self.type, mariadb), name=self.name, nullable=self.nullable)


@dataclass(frozen=True, slots=True)
class Alter:
    """One statement: `changes` has each column's name before, and the column. None: the table is only made anew."""

    table: str
    changes: tuple[tuple[str, Column], ...]
    #: behind the definition of the first
    place: str
    ignore: bool
    #: (column, why its values may differ)
    converted: tuple[tuple[str, str], ...]

    @property
    def is_reread(self) -> bool:
        """IGNORE takes rows away where another key has them already; no server says whether it did."""
        return self.ignore or bool(self.converted)

    def sql(self, algorithm: str) -> str:
        actions = [
            (f"MODIFY {column.sql}" if was == column.name else f"CHANGE {was} {column.sql}")
            + (self.place if at == 0 else "")
            for at, (was, column) in enumerate(self.changes)
        ]
        actions = actions or ["FORCE"]
        actions += [f"ALGORITHM={algorithm}"] if algorithm else []
        return f"ALTER{' IGNORE' if self.ignore else ''} TABLE {self.table} {', '.join(actions)}"


@dataclass
class Table:
    name: str
    mariadb: bool
    key: str
    #: binlog_row_image of those who write
    image: str
    mode: Mode
    #: by the table of conversions none of its ALTERs changes a value
    is_lossless: bool
    columns: list[Column]
    #: that a column may have
    types: Sequence[Type]
    #: of each column, by name
    lake_types: dict[str, pa.DataType] = field(default_factory=dict)
    #: statements that the server has taken
    taken: list[tuple[str, Alter]] = field(default_factory=list)
    #: it had no rows when it was altered: nothing bound the lake's columns to earlier types
    was_empty: bool = False
    next_id: int = 0

    def __post_init__(self) -> None:
        self.lake_types = {column.name: _lake_type(column.type, self.mariadb) for column in self.columns}

    @property
    def create(self) -> str:
        listed = ", ".join(column.sql for column in self.columns)
        key = f", PRIMARY KEY ({self.key})" if self.key else ""
        return f"CREATE TABLE {self.name} (id INT NOT NULL, n INT NULL, {listed}{key})"

    def propose(self, dice: Dice) -> Alter | None:
        """What its columns may become; None where nothing was found."""
        changes: dict[str, Column] = {}
        if dice.random() < 0.05:
            return self._alter({}, "")
        for at in dice.sample(range(len(self.columns)), 2 if dice.random() < 0.2 else 1):
            column = self.columns[at]
            is_key = bool(self.key) and column.name in self.key.split(", ")
            after = self._next_type(column, dice, is_key=is_key)
            if after is not None:
                nullable = not is_key and (column.nullable if dice.random() < 0.85 else dice.random() < 0.5)
                name = column.name if is_key or dice.random() < 0.85 else _renamed(column.name)
                changes[column.name] = Column(name, after, nullable)
        return self._alter(changes, dice.choice([""] * 6 + [" FIRST", " AFTER n"])) if changes else None

    def _alter(self, changes: Mapping[str, Column], place: str) -> Alter | None:
        why = self._converted(changes)
        if why and self.is_lossless:
            return None
        return Alter(self.name, tuple(changes.items()), place, self.mode.ignore, why)

    def _next_type(self, column: Column, dice: Dice, *, is_key: bool) -> Type | None:
        fitting = [type_ for type_ in self.types if type_ is not column.type and (not is_key or may_be_key(type_))]
        if self.is_lossless:
            fitting = [type_ for type_ in fitting if is_lossless(column.type, type_, self.mode, self.mariadb)]
        elif dice.random() < 0.6:
            fitting = [type_ for type_ in fitting if _is_near(column.type, type_, self.mariadb)]
        return dice.choice(fitting) if fitting else None

    def _converted(self, changes: Mapping[str, Column]) -> tuple[tuple[str, str], ...]:
        """By the product's own table."""
        before = self._definition(self.columns)
        after = self._definition(self._columns_after(changes))
        old = {column.name: was for was, column in changes.items() if column.name != was}
        restated = frozenset(column.name for column in changes.values())
        session = session_of(self.mode, mariadb=self.mariadb)
        return converted(before, after, old, (), session, changed=restated, copied=True)

    def _columns_after(self, changes: Mapping[str, Column]) -> list[Column]:
        return [changes.get(column.name, column) for column in self.columns]

    def _definition(self, columns: Sequence[Column]) -> TableDefinition:
        return TableDefinition(tuple(column.defined(mariadb=self.mariadb) for column in columns))

    def accept(self, statement: str, alter: Alter) -> None:
        """The server has done it."""
        changes = dict(alter.changes)
        for was, column in changes.items():
            held, landed = self.lake_types.pop(was), _lake_type(column.type, self.mariadb)
            type_ = wider(held, landed)
            self.lake_types[column.name] = landed if type_ is None else type_
        self.columns = self._columns_after(changes)
        self.taken.append((statement, alter))

    def values(self, dice: Dice, count: int) -> list[dict[str, str]]:
        """Rows, as SQL expressions by column: at first each value at most once."""
        drawn = {}
        for column in self.columns:
            all_values = [*_texts_alone(column.type.values), *(["NULL"] if column.nullable else [])]
            rounds = -(-count // len(all_values))
            drawn[column.name] = dice.sample(all_values * rounds, count)
        return [{name: values[at] for name, values in drawn.items()} for at in range(count)]


def tables(flavor: Flavor, version: tuple[int, int], count: int, seed: str, *, of_times: bool = False) -> list[Table]:
    """So many tables, every second one with lossless ALTERs alone. `of_times`: with dates and times alone."""
    dice = Dice(seed)
    types = [type_ for type_ in TYPES if type_.is_on(flavor, version)]
    if of_times:
        types = [type_ for type_ in types if _TIMES.match(type_.definition)]
    return [_table(f"t{number:03}", flavor, types, dice, is_lossless=number % 2 == 0) for number in range(count)]


def _table(name: str, flavor: Flavor, types: Sequence[Type], dice: Dice, *, is_lossless: bool) -> Table:
    mariadb = flavor == "mariadb"
    mode = dice.choice([mode for mode in MODES[flavor] if not (is_lossless and mode.ignore)])
    key, image = dice.choice(KEYS), dice.choice(IMAGES)
    begins = types
    if is_lossless:
        begins = [one for one in types if any(_is_next(one, after, mode, mariadb) for after in types)]
    columns = [Column(f"c{at}", dice.choice(begins)) for at in range(COLUMNS)]
    if key.startswith("c0"):
        columns[0] = Column("c0", dice.choice([type_ for type_ in begins if may_be_key(type_)]), nullable=False)
    return Table(name, mariadb, key, image, mode, is_lossless, columns, types)


def may_be_key(type_: Type) -> bool:
    return type_.definition.split("(")[0].split(" ")[0] in _IN_KEYS and "COMPRESSED" not in type_.definition


@cache
def is_lossless(before: Type, after: Type, mode: Mode, mariadb: bool) -> bool:
    session = session_of(mode, mariadb=mariadb)
    return not lost(_defined(before, mariadb), _defined(after, mariadb), session)


def _is_next(before: Type, after: Type, mode: Mode, mariadb: bool) -> bool:
    return before is not after and is_lossless(before, after, mode, mariadb)


@cache
def _defined(type_: Type, mariadb: bool) -> ColumnDefinition:
    return definition(type_, mariadb)


def _texts_alone(values: Sequence[str]) -> list[str]:
    """Without bytes that are no text: no SELECT shows those of them that the server replaces as it prints."""
    return [value for value in values if not value.startswith("_") or value.startswith(_WITHOUT_INVALID)]


def _lake_type(type_: Type, mariadb: bool) -> pa.DataType:
    return format_type(arrow_format(_defined(type_, mariadb).type))


@cache
def _is_near(before: Type, after: Type, mariadb: bool) -> bool:
    """Whether one column of the lake may take both."""
    formats = [lake_format(arrow_format(_defined(type_, mariadb).type)) for type_ in (before, after)]
    return wider_format(*formats) is not None


def _renamed(name: str) -> str:
    """c1, c1_2, c1_3, ...: never a name that another column has had."""
    column, _, times = name.partition("_")
    return f"{column}_{int(times or 1) + 1}"
