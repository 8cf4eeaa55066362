"""A source's cartography as its tables' rows: only what changed since the last one is written.

Comes in: some of the tables that an agent sees on a server at a time, which may be hundreds of thousands in all: all of
them, or those that differ from a cartography that is recorded. What differs from the rows is found in a transaction
that only reads, and written in pieces of `PIECE_TABLES`, each in a transaction of its own. After each piece the
database is left to others for as long as it was taken, so that one tenant's large server keeps no other tenant's
commits waiting.

Durable: the digest of a cartography that is recorded whole, taken away before the first table is written, and written
after the last one. A kill between two pieces leaves the tables that were written; the agent then tells all of them.

Tables that are gone stay as long as something names them: a sync, a dump, a ledger. Of the others the newest
`KEPT_GONE` of a source stay, and a cartography of a source with `MAX_KEPT` rows is refused: servers make and drop
tables each day, and a hostile agent names others in each cartography. Tables of cartographies that have not ended stay,
so that a large one whose stream broke has them when it comes again. Where a source then has more than one cartography
may tell, those that no ended cartography has had are gone before the next one begins.
"""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from menura.bounds import clean_int64, clean_text
from menura.instants import now_us
from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, exists, func, select, update

from controlplane_api.documents import Document, insert_into
from controlplane_api.lookups import among
from controlplane_api.models import Base, Source, SourceTable, TableDefinition
from controlplane_api.registry import definitions
from controlplane_api.registry.definitions import Seen
from gateway.registry import CartographyEnd, RegistryRefused, TableSeen, table_hash

PIECE_TABLES = 1_000
#: of a source, that are gone and that nothing names
KEPT_GONE = 10_000
#: of a source, before another cartography; two of the largest
MAX_KEPT = 1_000_000
#: of a source, there, before another cartography; as many as one may tell (`gateway.streams.cartography`)
MAX_THERE = 500_000

T = TypeVar("T")
Write = Callable[[], AbstractContextManager[Connection]]
Clock = Callable[[], float]
Pause = Callable[[float], None]


def digest(connection: Connection, source_id: int) -> bytes:
    """Of what is recorded; empty: none."""
    kept: str = connection.execute(select(Source.cartography_digest).where(Source.id == source_id)).scalar_one()
    return bytes.fromhex(kept)


def is_full(connection: Connection, source_id: int) -> bool:
    """Whether no further cartography is taken before tables are forgotten."""
    rows = select(func.count()).select_from(SourceTable).where(SourceTable.source_id == source_id)
    return connection.execute(rows).scalar_one() >= MAX_KEPT


def begin(connection: Connection, source_id: int, base: bytes) -> bool:
    """False: `base` is not recorded. Raises `RegistryRefused` where too many tables are there already."""
    if is_full(connection, source_id):
        raise RegistryRefused(
            f"a cartography of source {source_id}: {MAX_KEPT} tables are recorded of it, and no more may be. What is"
            " recorded stays; give the source another name in the agent's configuration, where its tables begin anew"
        )
    if base and base != digest(connection, source_id):
        return False
    connection.execute(update(Source).where(Source.id == source_id).values(cartography_digest=""))
    return True


def unended(connection: Connection, source_id: int) -> list[int]:
    """Tables that no ended cartography has had, where the source has more than one may tell."""
    there = select(func.count()).select_from(_there(source_id).subquery())
    if connection.execute(there).scalar_one() <= MAX_THERE:
        return []
    ended = select(Source.ended_table_id).where(Source.id == source_id).scalar_subquery()
    return list(connection.execute(_there(source_id).where(SourceTable.id > ended)).scalars())


def end(connection: Connection, source_id: int, told: CartographyEnd, at_us: int) -> None:
    connection.execute(
        update(Source)
        .where(Source.id == source_id)
        .values(
            flavor=clean_text(told.flavor),
            server_version=clean_text(told.server_version),
            server_identity=clean_text(told.server_identity),
            cartography_at_us=at_us,
            cartography_digest=told.digest.hex(),
            ended_table_id=select(func.coalesce(func.max(SourceTable.id), 0))
            .where(SourceTable.source_id == source_id)
            .scalar_subquery(),
        )
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A row to write, and what becomes of its table's definition where that is another one."""

    row: Document
    seen: Seen | None = None


def changed(connection: Connection, source_id: int, tables: Sequence[TableSeen]) -> list[Change]:
    """New ones and others, in the order of their names."""
    found = []
    told = {(table.database, table.table): table for table in tables}
    for piece in _pieces([told[name] for name in sorted(told)]):
        names = [(table.database, table.table) for table in piece]
        kept = {
            (row.database, row.name): row
            for row in connection.execute(
                select(
                    SourceTable.id, SourceTable.database, SourceTable.name, SourceTable.digest, SourceTable.gone
                ).where(
                    SourceTable.source_id == source_id, among((SourceTable.database, SourceTable.name), names)
                )
            )
        }  # fmt: skip
        rows = [
            {"source_id": source_id, "database": database, "name": name, **card}
            for (database, name), card in zip(names, map(_card, piece), strict=True)
            if (row := kept.get((database, name))) is None or row.gone or row.digest != card["digest"]
        ]
        there = {kept[name].id: row for row in rows if (name := (row["database"], row["name"])) in kept}
        seen = _redefined(connection, there)
        found += [Change(row, seen.get((row["database"], row["name"]))) for row in rows]
    return found


def _redefined(connection: Connection, there: Mapping[int, Document]) -> dict[tuple[str, str], Seen]:
    """Of tables that have a row, by its id, those with another definition; also of one that was gone."""
    if not there:
        return {}
    found, at_us = {}, now_us()
    columns = select(SourceTable.id, SourceTable.columns, SourceTable.keys).where(SourceTable.id.in_(list(there)))
    for row in connection.execute(columns):
        now = there[row.id]
        # One that only the cut log knew has neither columns nor keys.
        former = definitions.of_look(row.id, row.columns, row.keys, None)
        told = definitions.of_look(row.id, now["columns"], now["keys"], at_us)
        if former.columns and former.digest != told.digest:
            found[now["database"], now["name"]] = Seen(row.id, former, told)
    return found


def ids_of(connection: Connection, source_id: int, names: Sequence[tuple[str, str]]) -> list[int]:
    """Of these tables, as far as they are there."""
    columns = SourceTable.database, SourceTable.name
    return [row.id for row in connection.execute(_there(source_id).where(among(columns, names)))] if names else []


def ids_but(connection: Connection, source_id: int, names: Collection[int]) -> list[int]:
    """Of all tables that are there but these, by their `table_hash`."""
    rows = connection.execute(_there(source_id))
    return [row.id for row in rows if table_hash(row.database, row.name) not in names]


def _there(source_id: int) -> Select[int, str, str]:
    return select(SourceTable.id, SourceTable.database, SourceTable.name).where(
        SourceTable.source_id == source_id, SourceTable.gone.is_(False)
    )


def store(write: Write, changed: Sequence[Change], *, clock: Clock = time.monotonic, pause: Pause = time.sleep) -> None:
    """Write rows; `write` begins a transaction. Raises what that raises."""
    for piece in _pieces(changed):
        began = clock()
        with write() as connection:
            statement = insert_into(connection, SourceTable)
            rows = [change.row for change in piece]
            card = {name: statement.excluded[name] for name in rows[0]}
            keys = [SourceTable.source_id, SourceTable.database, SourceTable.name]
            connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=card), rows)
            definitions.record_seen(connection, rows[0]["source_id"], [one.seen for one in piece if one.seen])
        pause(clock() - began)


def mark_gone(write: Write, ids: Sequence[int], *, clock: Clock = time.monotonic, pause: Pause = time.sleep) -> None:
    """They keep their syncs."""
    for piece in _pieces([{"of_table": table} for table in ids]):
        began = clock()
        with write() as connection:
            this = update(SourceTable).where(SourceTable.id == bindparam("of_table"))
            connection.execute(this.values(gone=True), piece)
        pause(clock() - began)


def forgettable(connection: Connection, source_id: int) -> list[int]:
    """Tables that are gone and that nothing names but their definitions, without the newest."""
    gone = select(SourceTable.id).where(SourceTable.source_id == source_id, *_unnamed())
    return list(connection.execute(gone.order_by(SourceTable.id.desc()).offset(KEPT_GONE)).scalars())


def forget(write: Write, ids: Sequence[int], *, clock: Clock = time.monotonic, pause: Pause = time.sleep) -> None:
    """With their definitions, those that are still so."""
    for piece in _pieces(ids):
        began = clock()
        with write() as connection:
            still = select(SourceTable.id).where(SourceTable.id.in_(piece), *_unnamed()).with_for_update()
            found = list(connection.execute(still).scalars())
            connection.execute(delete(TableDefinition).where(TableDefinition.table_id.in_(found)))
            connection.execute(delete(SourceTable).where(SourceTable.id.in_(found)))
        pause(clock() - began)


def _unnamed() -> list[ColumnElement[bool]]:
    """Of a table that is gone and that no other row names but its definitions."""
    tables = [table for table in Base.metadata.tables.values() if table is not TableDefinition.__table__]
    naming = [key.parent for table in tables for key in table.foreign_keys if key.column is SourceTable.__table__.c.id]
    return [SourceTable.gone.is_(True), *(~exists().where(column == SourceTable.id) for column in naming)]


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
        "foreign_keys": [
            {
                "name": key.name,
                "columns": list(key.columns),
                "parent": list(key.parent),
                "parent_columns": list(key.parent_columns),
            }
            for key in table.foreign_keys
        ],
        "more_foreign_keys": table.more_foreign_keys,
        "denied": table.denied,
        "gone": False,
    }
    return {**card, "digest": hashlib.sha256(json.dumps(card).encode()).hexdigest()[:32]}
