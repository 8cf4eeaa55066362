"""What a server's tables look like at one moment, as far as their rows and this moment's DDL need it.

Immutable values: `ddl.apply` makes a new `Catalog` from one and a statement; `history` keeps them by position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, Flag, StrEnum, auto

from agent.sources.mysql.types import INTEGER_KINDS, ColumnType, Kind

#: as many digits as the value has; the servers' NOT_FIXED_DEC
NOT_FIXED = 31

#: may have ZEROFILL
NUMBER_KINDS = INTEGER_KINDS | {Kind.DECIMAL, Kind.FLOAT, Kind.DOUBLE}

#: (database, table), as the server stores them
Table = tuple[str, str]


class Default(StrEnum):
    """What a column gets where a statement names no value."""

    NONE = "none"
    NULL = "null"
    #: the same for every row: `ColumnDefinition.default_text`
    LITERAL = "literal"
    #: computed for each row, or when the statement runs; or a literal whose text as SELECT prints it is not known
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    name: str
    type: ColumnType
    nullable: bool = True
    default: Default = Default.NULL
    #: of a LITERAL, as SELECT prints the value; BIT: its number in decimal digits; binary kinds: upper-case hex
    default_text: str = ""
    #: computed from other columns; row events hold it all the same, a virtual one too, but for those of some servers
    #: (`schema.unlogged_columns`)
    generated: bool = False
    #: of a generated column: the same where it is certainly computed by the same expression; '': not known
    expression: str = ""
    visible: bool = True
    #: MariaDB: GENERATED ALWAYS AS ROW END of a table with system versioning
    row_end: bool = False
    #: of MariaDB's own: in row events, but not in information_schema (row_start, row_end, DB_ROW_HASH_1)
    hidden: bool = False
    auto_increment: bool = False
    #: char and varchar: in characters; binary, varbinary and vector: in bytes; text and blob: the most bytes;
    #: point: in a key; float and double: digits, as (7,2) says; else 0
    length: int = 0
    #: float and double: digits after the point, as (7,2) says, or `NOT_FIXED`; None: another type, or not known
    decimals: int | None = None
    #: of a geometry, in upper case: the only shape that it takes, or GEOMETRY
    shape: str = ""
    #: shown with zeros in front, which are part of the text that it is converted to; None: no number, or not known
    zerofill: bool | None = None
    #: of a generated column or an EXPRESSION default: what it may read, as lower-cased names and more words than those;
    #: None: has no expression, or it is not known
    reads: tuple[str, ...] | None = None

    @property
    def reads_unknown(self) -> bool:
        """Whether it is computed, or may be, from columns that nobody knows."""
        return self.reads is None and (self.generated or self.default is Default.EXPRESSION)


@dataclass(frozen=True, slots=True)
class KeyDefinition:
    """MariaDB: any key but the primary one."""

    name: str
    #: columns, each with how many of its characters or bytes are in the key; 0: all
    parts: tuple[tuple[str, int], ...]
    unique: bool = True
    #: has a hidden column, being too long for an index, or USING HASH in the statement that made it
    hashed: bool = False


@dataclass(frozen=True, slots=True)
class TableDefinition:
    columns: tuple[ColumnDefinition, ...]
    primary_key: tuple[str, ...] = ()
    #: of columns that are added without one
    charset: str = ""
    #: MariaDB: what decides how many hidden columns there are; without keys that a foreign key has made
    keys: tuple[KeyDefinition, ...] = ()
    #: MariaDB: in upper case; '': the default one of a session, which is not known
    engine: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """A table that is not in `tables` is not there; None: it may be there, but how it looks is not known."""

    tables: Mapping[Table, TableDefinition | None]
    #: database: its default charset
    databases: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Server:
    """What of a server decides how it reads a statement."""

    mariadb: bool
    version: tuple[int, int, int]
    lower_case_table_names: int = 0
    #: MariaDB: old_mode has UTF8_IS_UTF8MB3; MySQL: true unless a session's sql_mode says otherwise
    utf8_is_utf8mb3: bool = True
    #: what a session's SYSTEM stands for, as the server calls it; '': not known
    system_time_zone: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as logged, with what the session had set when it ran (its QUERY event's status variables)."""

    #: decoded from the client's charset; bytes that are no text are lone surrogates
    text: str
    database: str
    error_code: int = 0
    sql_mode: int = 0
    charset_client: str = "utf8mb4"
    charset_connection: str = "utf8mb4"
    #: what a database gets that is created without one
    charset_server: str = "utf8mb4"
    explicit_defaults_for_timestamp: bool = True
    #: '' where the log does not say it
    time_zone: str = ""
    #: MariaDB's START ALTER and ROLLBACK ALTER: changes nothing (yet)
    without_effect: bool = False
    #: not as its user has written it, but from what a SELECT or LIKE found
    may_be_made_by_server: bool = True
    #: MySQL, from 8.0 on: it has changed no table of InnoDB's
    is_without_xid: bool = False


class ChangeKind(Enum):
    """As `menura.v1.TableEvent.Kind`."""

    CREATED = auto()
    ALTERED = auto()
    RENAMED = auto()
    DROPPED = auto()
    TRUNCATED = auto()


class Rows(Flag):
    """What became of the rows under a table's name, without row events."""

    KEPT = 0
    #: all of those from before
    REMOVED = auto()
    PARTLY_REMOVED = auto()
    #: others came in: a rename onto the name, EXCHANGE, IMPORT, CONVERT
    ARRIVED = auto()


class EarlierRows(Enum):
    """What rows from before hold in an added column."""

    NULL = auto()
    #: the same in all: `AddedColumn.text`
    TEXT = auto()
    #: computed, or not known
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class AddedColumn:
    name: str
    earlier_rows: EarlierRows
    #: as `ColumnDefinition.default_text`; of a timestamp: in UTC
    text: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What a statement did to one name; a rename is two: RENAMED for the old, CREATED with ARRIVED for the new."""

    kind: ChangeKind
    table: Table
    #: None: it was not there, or not known
    before: TableDefinition | None = None
    #: RENAMED: under the new name; None: gone, or not known (then it is among `Applied.unsure`)
    after: TableDefinition | None = None
    rows: Rows = Rows.KEPT
    #: RENAMED: the new name
    new_table: Table | None = None
    #: (old, new) of columns with another name
    renamed_columns: tuple[tuple[str, str], ...] = ()
    added_columns: tuple[AddedColumn, ...] = ()
    #: (column, why its values of before may be others now), of those that the statement converted or computed
    converted: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Unsure:
    """From here on it isn't known how the table looks, nor whether it is there: None in the catalog."""

    table: Table
    #: completes "its definition is not known, because ..."
    why: str


@dataclass(frozen=True, slots=True)
class Applied:
    catalog: Catalog
    #: in the order of the statement
    changes: tuple[Change, ...] = ()
    unsure: tuple[Unsure, ...] = ()
