"""What a statement says, before it is known what it does: small immutable values, as `parse` makes them.

Names are as written. What can't change a column, a key or the rows is not in here.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from agent.sources.mysql.ddl.model import Rows


@dataclass(frozen=True, slots=True)
class TableName:
    #: '': the default database
    database: str
    table: str


class LiteralKind(Enum):
    STRING = auto()
    NUMBER = auto()
    HEX = auto()
    BITS = auto()


@dataclass(frozen=True, slots=True)
class Literal:
    kind: LiteralKind
    #: a number with its sign
    text: str
    #: of _latin1'x'; '' without
    charset: str = ""


class DefaultKind(Enum):
    NULL = auto()
    #: an expression to MySQL
    NULL_IN_PARENTHESES = auto()
    LITERAL = auto()
    #: with `literal` where it is nothing but one
    EXPRESSION = auto()
    NOW = auto()


@dataclass(frozen=True, slots=True)
class DefaultSpec:
    kind: DefaultKind
    literal: Literal | None = None
    #: of an expression: its names and keywords, in lower case
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TypeSpec:
    #: in upper case, e.g. "INT", "LONG VARCHAR", "NATIONAL CHAR VARYING"
    name: str
    arguments: tuple[str, ...] = ()
    labels: tuple[Literal, ...] = ()
    unsigned: bool = False
    zerofill: bool = False
    #: '' without; ASCII, UNICODE and BYTE are latin1, ucs2 and binary
    charset: str = ""
    collation: str = ""
    #: MariaDB
    compressed: bool = False


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    name: str
    type: TypeSpec
    #: None: not said
    nullable: bool | None = None
    default: DefaultSpec | None = None
    on_update_now: bool = False
    generated: bool = False
    #: GENERATED ALWAYS AS (...): as `expressions.written` has it
    expression: str = ""
    #: GENERATED ALWAYS AS (...): its names and keywords, in lower case
    reads: tuple[str, ...] = ()
    #: GENERATED ALWAYS AS ROW START or END: "START" or "END"
    period: str = ""
    #: WITH SYSTEM VERSIONING: with one such column the table has it
    versioned: bool = False
    auto_increment: bool = False
    visible: bool = True
    primary: bool = False
    unique: bool = False


@dataclass(frozen=True, slots=True)
class KeyPart:
    #: '' of an expression
    column: str
    #: of its characters or bytes; 0: all of them
    length: int = 0
    #: MariaDB: p WITHOUT OVERLAPS: a period's name
    is_period: bool = False


@dataclass(frozen=True, slots=True)
class KeySpec:
    primary: bool
    #: '': the server's to make
    name: str
    parts: tuple[KeyPart, ...]
    unique: bool = True
    #: CREATE INDEX IF NOT EXISTS and the like
    if_not_exists: bool = False
    uses_hash: bool = False


@dataclass(frozen=True, slots=True)
class PeriodSpec:
    """MariaDB: PERIOD FOR name (start, end), but SYSTEM_TIME; its columns are NOT NULL."""

    name: str
    start: str
    end: str


@dataclass(frozen=True, slots=True)
class Place:
    """FIRST, or after a column."""

    after: str = ""


@dataclass(frozen=True, slots=True)
class AddColumn:
    column: ColumnSpec
    place: Place | None = None
    if_not_exists: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """CHANGE and MODIFY."""

    old_name: str
    column: ColumnSpec
    place: Place | None = None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old_name: str
    new_name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    name: str
    #: None: DROP DEFAULT
    default: DefaultSpec | None
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetVisible:
    name: str
    visible: bool


@dataclass(frozen=True, slots=True)
class AddKey:
    key: KeySpec


@dataclass(frozen=True, slots=True)
class AddPeriod:
    period: PeriodSpec


@dataclass(frozen=True, slots=True)
class DropKey:
    #: 'PRIMARY' for the primary key; a constraint may be anything
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameKey:
    old_name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class RenameTo:
    table: TableName


@dataclass(frozen=True, slots=True)
class ConvertCharset:
    #: '' for DEFAULT
    charset: str
    collation: str = ""


@dataclass(frozen=True, slots=True)
class TableOptions:
    charset: str = ""
    #: CHARACTER SET DEFAULT: the database's
    charset_is_default: bool = False
    collation: str = ""
    engine: str = ""
    #: CREATE TABLE: WITH SYSTEM VERSIONING
    is_versioned: bool = False
    #: CREATE TABLE: its rows and its commit follow in the log
    starts_transaction: bool = False

    @property
    def names_charset(self) -> bool:
        return bool(self.charset or self.collation or self.charset_is_default)


class OtherTable(Enum):
    """What ALTER TABLE ... PARTITION does to a second table."""

    EXCHANGED = auto()
    #: CONVERT PARTITION p TO TABLE it
    CREATED = auto()
    #: CONVERT TABLE it TO PARTITION p
    DROPPED = auto()


@dataclass(frozen=True, slots=True)
class MoveRows:
    """Of partitions and tablespaces."""

    rows: Rows
    other: TableName | None = None
    other_does: OtherTable | None = None


@dataclass(frozen=True, slots=True)
class SetVersioning:
    on: bool


Action = (
    AddColumn
    | ChangeColumn
    | DropColumn
    | RenameColumn
    | SetDefault
    | SetVisible
    | AddKey
    | AddPeriod
    | DropKey
    | RenameKey
    | RenameTo
    | ConvertCharset
    | TableOptions
    | MoveRows
    | SetVersioning
)


@dataclass(frozen=True, slots=True)
class CreateTable:
    table: TableName
    if_not_exists: bool = False
    or_replace: bool = False
    columns: tuple[ColumnSpec, ...] = ()
    keys: tuple[KeySpec, ...] = ()
    periods: tuple[PeriodSpec, ...] = ()
    options: TableOptions = field(default_factory=TableOptions)
    like: TableName | None = None
    #: AS SELECT: its columns are more than those
    has_select: bool = False


@dataclass(frozen=True, slots=True)
class CreateSequence:
    table: TableName
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True, slots=True)
class AlterTable:
    table: TableName
    actions: tuple[Action, ...]
    if_exists: bool = False
    #: MariaDB: rows in the way of a unique key are deleted
    ignore: bool = False


@dataclass(frozen=True, slots=True)
class RenameTables:
    pairs: tuple[tuple[TableName, TableName], ...]


@dataclass(frozen=True, slots=True)
class DropTables:
    tables: tuple[TableName, ...]
    #: MariaDB: DROP SEQUENCE leaves other tables where they are
    only_sequences: bool = False


@dataclass(frozen=True, slots=True)
class TruncateTable:
    table: TableName


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    name: str
    if_not_exists: bool = False
    or_replace: bool = False
    options: TableOptions = field(default_factory=TableOptions)


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    #: '': the default database
    name: str
    options: TableOptions


@dataclass(frozen=True, slots=True)
class DropDatabase:
    name: str


@dataclass(frozen=True, slots=True)
class Irrelevant:
    """No table's columns or rows change: views, routines, users, transactions, temporary tables."""


Parsed = (
    CreateTable
    | CreateSequence
    | AlterTable
    | RenameTables
    | DropTables
    | TruncateTable
    | CreateDatabase
    | AlterDatabase
    | DropDatabase
    | Irrelevant
)
