"""A source's cartography as its tables' rows: only what changed since the last one is written.

Comes in: all tables that an agent sees on a server, which may be hundreds of thousands, or those that differ from a
cartography that is recorded. What differs from the rows is found in a transaction that only reads, and written in
pieces of `PIECE_TABLES`, each in a transaction of its own. After each piece the database is left to others for as long
as it was taken, so that one tenant's large server keeps no other tenant's commits waiting. The cartography's digest is
written last: a kill between two pieces leaves the tables that were written, and the former digest, which the agent
answers with all tables.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from menura.bounds import clean_int64, clean_text
from sqlalchemy import Connection, bindparam, select, tuple_, update

from controlplane_api.documents import Document, insert_into
from controlplane_api.models import AnyRow, Source, SourceTable
from gateway.registry import TableSeen

PIECE_TABLES = 1_000

T = TypeVar("T")
#: database and table
Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Differences:
    """Between what is stored of a source and what its agent sees."""

    #: rows to write, new ones and others
    changed: Sequence[Document]
    #: ids of tables that are no longer there; they keep their syncs
    gone: Sequence[int]


def digest(connection: Connection, source_id: int) -> bytes:
    """Of what is recorded; empty: none."""
    kept: str = connection.execute(select(Source.cartography_digest).where(Source.id == source_id)).scalar_one()
    return bytes.fromhex(kept)


def differences(
    connection: Connection, source_id: int, tables: Sequence[TableSeen], told_gone: Collection[Name] | None = None
) -> Differences:
    """`told_gone` None: the tables are all that there are. Else others stay as they are, but for these."""
    seen = {(table.database, table.table): table for table in tables}
    stored = _stored(connection, source_id, None if told_gone is None else [*seen, *told_gone])
    changed = []
    for (database, name), table in seen.items():
        card = _card(table)
        row = stored.get((database, name))
        if row is None or row.gone or row.digest != card["digest"]:
            changed.append({"source_id": source_id, "database": database, "name": name, **card})
    return Differences(changed, [row.id for named, row in stored.items() if named not in seen and not row.gone])


def _stored(connection: Connection, source_id: int, names: Sequence[Name] | None) -> dict[Name, AnyRow]:
    """Of these tables, or of all."""
    rows = select(SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.digest, SourceTable.gone).where(
        SourceTable.source_id == source_id
    )
    name = tuple_(SourceTable.database, SourceTable.name)
    asked = [rows] if names is None else [rows.where(name.in_(piece)) for piece in _pieces(names)]
    return {(row.database, row.name): row for one in asked for row in connection.execute(one)}


def store(
    write: Callable[[], AbstractContextManager[Connection]],
    found: Differences,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Write what differs; `write` begins a transaction. Raises what that raises."""
    for changed in _pieces(found.changed):
        began = clock()
        with write() as connection:
            statement = insert_into(connection, SourceTable)
            card = {name: statement.excluded[name] for name in changed[0]}
            keys = [SourceTable.source_id, SourceTable.database, SourceTable.name]
            connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=card), changed)
        pause(clock() - began)
    for gone in _pieces([{"of_table": table} for table in found.gone]):
        began = clock()
        with write() as connection:
            this = update(SourceTable).where(SourceTable.id == bindparam("of_table"))
            connection.execute(this.values(gone=True), gone)
        pause(clock() - began)


def _pieces(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    return (rows[begin : begin + PIECE_TABLES] for begin in range(0, len(rows), PIECE_TABLES))


def _card(table: TableSeen) -> dict[str, Any]:
    card = {
        "engine": clean_text(table.engine),
        "table_collation": clean_text(table.collation),
        "estimated_rows": None if table.estimated_rows is None else clean_int64(table.estimated_rows),
        "size_bytes": None if table.size_bytes is None else clean_int64(table.size_bytes),
        "columns": [asdict(column) for column in table.columns],
        "keys": [{**asdict(key), "columns": list(key.columns)} for key in table.keys],
        "denied": table.denied,
        "gone": False,
    }
    return {**card, "digest": hashlib.sha256(json.dumps(card).encode()).hexdigest()[:32]}
