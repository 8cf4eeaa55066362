"""MariaDB's hidden columns: in a table's row events, but not in information_schema.

A table with system versioning and no period columns of its own has row_start and row_end. Each unique key that is too
long for an index, as on a TEXT, or says USING HASH, has a DB_ROW_HASH_n, of a number that no
column of the user has. They stand last, in this order. A hash is never sent: no statement can read it.
"""

import re

from agent.sources.mysql.ddl.model import ColumnDefinition, Default
from agent.sources.mysql.types import ColumnType, Kind

ROW_START, ROW_END = "row_start", "row_end"
_HASH = "DB_ROW_HASH_"
_HASH_NAME = re.compile(_HASH + r"[0-9]+", re.IGNORECASE)


def period_columns(*, precise: bool = False) -> tuple[ColumnDefinition, ...]:
    """`precise`: they count transactions, as where the columns that did were dropped and the versioning was not."""
    kind = ColumnType(Kind.BIGINT, unsigned=True) if precise else ColumnType(Kind.TIMESTAMP, precision=6)
    return tuple(
        ColumnDefinition(
            name,
            kind,
            nullable=False,
            default=Default.NONE,
            generated=True,
            visible=False,
            hidden=True,
            reads=(),
            row_end=name == ROW_END,
        )
        for name in (ROW_START, ROW_END)
    )


def hash_columns(count: int) -> tuple[ColumnDefinition, ...]:
    return tuple(
        ColumnDefinition(
            f"{_HASH}{number}",
            ColumnType(Kind.BIGINT, unsigned=True),
            default=Default.NONE,
            generated=True,
            visible=False,
            hidden=True,
            reads=(),
        )
        for number in range(1, count + 1)
    )


def has_period(columns: tuple[ColumnDefinition, ...]) -> bool:
    return any(column.hidden and column.name == ROW_START for column in columns)


def may_be_period(column: ColumnDefinition) -> bool:
    """Whether it can be GENERATED ALWAYS AS ROW START or END."""
    return column.generated and not column.nullable and column.type.kind in (Kind.TIMESTAMP, Kind.BIGINT)


def is_hash(column: ColumnDefinition) -> bool:
    return column.hidden and column.name.startswith(_HASH)


def may_be_hash(name: str) -> bool:
    """Whether a column of this name, in a table map, is one, unless a user has named it so."""
    return _HASH_NAME.fullmatch(name) is not None
