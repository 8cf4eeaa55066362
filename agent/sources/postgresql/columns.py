"""A table's columns at one moment, as they are sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from menura import schema
from menura.change_batch import landed_column
from menura.naming import lake_column

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


def distinct_names(names: Sequence[str]) -> list[str]:
    """What a table's columns are called on their way, oldest first: by their names, but where case alone tells two
    apart, which the lake does not see. There the oldest keeps its name, and the others get a number.

    >>> distinct_names(["id", "Id", "createdAt", "ID", "Id#2"])
    ['id', 'Id#3', 'createdAt', 'ID#4', 'Id#2']
    """
    folded = [lake_column(name).lower() for name in names]
    taken = set(folded)
    if len(taken) == len(names):
        return list(names)
    seen: set[str] = set()
    distinct = []
    for name, found in zip(names, folded, strict=True):
        given = name
        if found in seen:
            given = next(one for n in count(2) if lake_column(one := f"{name}#{n}").lower() not in taken)
            taken.add(lake_column(given).lower())
        seen.add(found)
        distinct.append(given)
    return distinct
