"""What a server's tables look like at one moment, as far as their rows and this moment's DDL need it.

Immutable values: `ddl.apply` makes a new `Catalog` from one and a statement; `history` keeps them by position.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from menura.types import ColumnType

#: (database, table), as the server stores them
Table = tuple[str, str]


class Default(StrEnum):
    """What a column gets where a statement names no value."""

    NONE = "none"
    NULL = "null"
    #: the same for every row: `ColumnDefinition.default_text`
    LITERAL = "literal"
    #: computed for each row, or when the statement runs
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    name: str
    type: ColumnType
    nullable: bool = True
    default: Default = Default.NULL
    #: in the server's text, as SELECT prints the value
    default_text: str = ""
    #: computed from other columns; a virtual one is in row events all the same where it is stored there
    generated: bool = False
    #: False: a generated column that no row event holds
    logged: bool = True
    visible: bool = True
    auto_increment: bool = False


@dataclass(frozen=True, slots=True)
class TableDefinition:
    columns: tuple[ColumnDefinition, ...]
    primary_key: tuple[str, ...] = ()
    #: of columns that are added without one
    charset: str = ""
    collation: str = ""


@dataclass(frozen=True, slots=True)
class Catalog:
    """Tables that are not in `tables` are not there, or nobody asked for them."""

    tables: Mapping[Table, TableDefinition]
    #: database: its default collation
    databases: Mapping[str, str]
