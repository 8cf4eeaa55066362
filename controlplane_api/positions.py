"""Positions of tables, each stored once for all tables of a source that are there.

Comes in: positions as documents, within a transaction that holds their source's row. Goes out: the ids by which syncs
name them. A position may have 256 KiB, and thousands of tables move to the same one with each cut. One that no sync
names any more is deleted by whoever moved the last one away.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import Connection, delete, select

from controlplane_api.database import LOOKUP_ROWS
from controlplane_api.documents import Document, insert_into
from controlplane_api.lookups import among
from controlplane_api.models import SourcePosition, Sync

#: positions looked up or written in one statement: each may be large
_AT_ONCE = 500


class KeptPositions:
    """What an id stands for, of the positions that were handed in."""

    def __init__(self, ids: dict[tuple[int, str], int]) -> None:
        self._ids = ids

    def id_of(self, source_id: int, position: Document | None) -> int | None:
        return None if position is None else self._ids[source_id, _digest(position)]


def keep(connection: Connection, positions: Iterable[tuple[int, Document]]) -> KeptPositions:
    """Store positions of sources where they are new."""
    wanted = {(source_id, _digest(position)): position for source_id, position in positions}
    ids: dict[tuple[int, str], int] = {}
    names = sorted(wanted)
    for begin in range(0, len(names), _AT_ONCE):
        some = names[begin : begin + _AT_ONCE]
        found = _ids(connection, some)
        new = [name for name in some if name not in found]
        if new:
            connection.execute(
                insert_into(connection, SourcePosition).on_conflict_do_nothing(),
                [{"source_id": name[0], "digest": name[1], "position": wanted[name]} for name in new],
            )
            found |= _ids(connection, new)
        ids |= found
    return KeptPositions(ids)


def drop_unused(connection: Connection, ids: Collection[int]) -> None:
    """Delete those that no sync names any more."""
    ordered = sorted(ids)
    for begin in range(0, len(ordered), LOOKUP_ROWS):
        some = ordered[begin : begin + LOOKUP_ROWS]
        named = select(Sync.table_id).where(Sync.position_id == SourcePosition.id).exists()
        connection.execute(delete(SourcePosition).where(SourcePosition.id.in_(some), ~named))


def tidy(connection: Connection, source_id: int) -> None:
    """The same of all that a source has."""
    named = select(Sync.table_id).where(Sync.position_id == SourcePosition.id).exists()
    connection.execute(delete(SourcePosition).where(SourcePosition.source_id == source_id, ~named))


def documents(connection: Connection, ids: Collection[int]) -> dict[int, Document]:
    """Positions by id."""
    found: dict[int, Document] = {}
    ordered = sorted(ids)
    for begin in range(0, len(ordered), LOOKUP_ROWS):
        some = SourcePosition.id.in_(ordered[begin : begin + LOOKUP_ROWS])
        found |= {
            row.id: row.position
            for row in connection.execute(select(SourcePosition.id, SourcePosition.position).where(some))
        }
    return found


def _ids(connection: Connection, names: Sequence[tuple[int, str]]) -> dict[tuple[int, str], int]:
    rows = connection.execute(
        select(SourcePosition.source_id, SourcePosition.digest, SourcePosition.id).where(
            among((SourcePosition.source_id, SourcePosition.digest), names)
        )
    )
    return {(row.source_id, row.digest): row.id for row in rows}


def _digest(position: Document) -> str:
    return hashlib.sha256(json.dumps(position, sort_keys=True).encode()).hexdigest()
