"""A table's columns at one moment, and their digest.

Built by the agent for every version that it meets; the gateway and the lake see the digest
(`schema_id`) and the Arrow schema that carries the same facts.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from menura.change_batch import landed_column
from menura.types import ColumnType


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: ColumnType
    nullable: bool = True
    #: place in the primary key from 1; 0 outside of it
    key: int = 0
    #: as `menura.change_batch.METADATA_DEFAULT`; '' where it is not known or not the same for all rows
    default: str = ""
    #: MariaDB: says until when a row was current; see `menura.row_versions`
    row_end: bool = False


def schema_id(columns: tuple[Column, ...]) -> str:
    """Digest of the columns that are sent: 16 hex digits, equal for equal columns.

    >>> from menura.types import Kind
    >>> len(schema_id((Column("id", ColumnType(Kind.INT), nullable=False, key=1),)))
    16
    """
    return digest((landed_column(c.name), str(c.type), c.key, c.default) for c in columns)


def digest(facts: Iterable[tuple[str, str, int, str]]) -> str:
    """`schema_id` from each column's name as it lands, its type's text, key and default."""
    return hashlib.sha256(json.dumps(list(facts), ensure_ascii=False).encode()).hexdigest()[:16]
