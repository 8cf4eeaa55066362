"""A table's columns at one moment, as they are sent."""

from dataclasses import dataclass

from menura import schema
from menura.change_batch import landed_column

from agent.sources.postgresql.types import ColumnType


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    nullable: bool = True
    #: place in the lake's key from 1; 0 outside of it
    key: int = 0
    #: as `menura.change_batch.METADATA_DEFAULT`; '' where it is not known or not the same for all rows
    default: str = ""


def schema_id(columns: tuple[Column, ...]) -> str:
    """`menura.schema.schema_id` of these.

    >>> from agent.sources.postgresql.types import builtin_type
    >>> len(schema_id((Column("id", builtin_type(23, -1), nullable=False, key=1),)))
    16
    """
    return schema.schema_id((landed_column(c.name), str(c.type), c.key, c.default) for c in columns)
