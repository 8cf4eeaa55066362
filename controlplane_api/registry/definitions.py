"""How each table's definition has changed: versions, as the log tells them and as looks at the server show them.

Comes in: what was told, inside the transaction that applies a log entry or stores a piece of a cartography. Goes out: a
row for each definition that differs from the last one of the same teller. The log tells the position and the time of a
change, and the columns that leave the host. A look shows all columns and keys, and when they were seen. A table that
has not changed since its first cartography has no row: `source_table` has its definition. With its first change that
one becomes version 1.

Durable: the newest `KEPT_OF_TABLE` of a table, and of a source the newest `KEPT_OF_SOURCE` rows and
`MAX_BYTES_OF_SOURCE`, whichever tables they are of. A version's number counts all that were recorded, so whoever reads
them sees how many were dropped. A row of `source_table` is locked before its versions are read: two tellers take turns,
in the order of the tables' names.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from typing import Any

from menura.bounds import MAX_NAME_CHARS, clean_int64, clean_text
from menura.landing import LandedEvent
from sqlalchemy import Connection, bindparam, delete, func, insert, select, tuple_, update

from controlplane_api.documents import Document
from controlplane_api.models import SourceTable, TableDefinition

KEPT_OF_TABLE = 100
KEPT_OF_SOURCE = 10_000
MAX_BYTES_OF_SOURCE = 32 << 20
#: of a column's type, as it is shown; all of it counts where definitions are compared
MAX_TYPE_CHARS = 4_096
#: a position that is longer is cut off
MAX_POSITION_CHARS = 4_096
_PIECE = 1_000


class Teller(StrEnum):
    LOG = "log"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Told:
    """A definition of a table, and since when it is so."""

    table_id: int
    teller: Teller
    #: as `DefinitionColumnView` and `KeyView` have them
    columns: list[Document]
    keys: list[Document]
    #: none: not known
    at_us: int | None
    #: of the event; none: no event told it
    gsn: int | None = None
    position: str = ""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        document = json.dumps([self.columns, self.keys]).encode()
        object.__setattr__(self, "digest", sha256(document).hexdigest()[:32])


@dataclass(frozen=True, slots=True)
class Seen:
    """A table whose look at the server shows another definition than `source_table` had."""

    table_id: int
    former: Told
    now: Told


def of_look(table_id: int, columns: Sequence[Document], keys: Sequence[Document], at_us: int | None) -> Told:
    """Of a row of `source_table`."""
    shown = ("name", "column_type", "nullable", "ignored", "generated")
    return Told(table_id, Teller.SERVER, [{name: one[name] for name in shown} for one in columns], list(keys), at_us)


def record_seen(connection: Connection, source_id: int, seen: Sequence[Seen]) -> None:
    """What looks have shown, after their rows were written. Tables come in the order of their names."""
    ids = [one.table_id for one in seen]
    if not ids:
        return
    _lock(connection, ids)
    known = _newest(connection, ids, Teller.SERVER)
    told = [each for one in seen for each in ((one.now,) if one.table_id in known else (one.former, one.now))]
    _record(connection, source_id, told)


def record_events(connection: Connection, events: Iterable[tuple[int, int, LandedEvent]]) -> None:
    """Source, table and event of each, in the order of their numbers."""
    found = [each for each in events if each[2].columns]
    if not found:
        return
    tables = {(source, event.database, event.table): table for source, table, event in found}
    ids = [tables[name] for name in sorted(tables)]
    _lock(connection, ids)
    digests = _newest(connection, ids, Teller.LOG)
    of_sources: dict[int, list[Told]] = {}
    for source_id, table_id, event in found:
        told = _of_event(table_id, event)
        if digests.get(table_id) != told.digest:
            digests[table_id] = told.digest
            of_sources.setdefault(source_id, []).append(told)
    for source_id in sorted(of_sources):
        _record(connection, source_id, of_sources[source_id])


def _of_event(table_id: int, event: LandedEvent) -> Told:
    columns = [
        {"name": clean_text(one.name, MAX_NAME_CHARS), "column_type": clean_text(one.source_type)}
        for one in event.columns
    ]
    key = [one.name for one in sorted(event.columns, key=lambda one: one.key) if one.key]
    keys = [{"name": "", "unique": True, "columns": [clean_text(name, MAX_NAME_CHARS) for name in key]}] if key else []
    position = _cut(clean_text(event.position), MAX_POSITION_CHARS)
    at_us, gsn = clean_int64(event.commit_timestamp_us), clean_int64(event.gsn)
    return Told(table_id, Teller.LOG, columns, keys, at_us, gsn, position)


def _lock(connection: Connection, ids: Sequence[int]) -> None:
    """By an update of each, one after the other."""
    this = update(SourceTable).where(SourceTable.id == bindparam("of_table"))
    connection.execute(this.values(definitions=SourceTable.definitions), [{"of_table": id_} for id_ in ids])


def _newest(connection: Connection, ids: Sequence[int], teller: Teller) -> dict[int, str]:
    """Digests of what the teller has told last of these tables."""
    found: dict[int, str] = {}
    for piece in _pieces(ids):
        last = select(TableDefinition.table_id, func.max(TableDefinition.number)).where(
            TableDefinition.table_id.in_(piece), TableDefinition.teller == teller
        )
        newest = tuple_(TableDefinition.table_id, TableDefinition.number).in_(last.group_by(TableDefinition.table_id))
        rows = connection.execute(select(TableDefinition.table_id, TableDefinition.digest).where(newest))
        found |= {row.table_id: row.digest for row in rows}
    return found


def _record(connection: Connection, source_id: int, told: Sequence[Told]) -> None:
    """New versions of tables that are locked; older ones go."""
    grown = Counter(one.table_id for one in told)
    before: dict[int, int] = {}
    for piece in _pieces(list(grown)):
        counts = select(SourceTable.id, SourceTable.definitions).where(SourceTable.id.in_(piece))
        before |= {row.id: row.definitions for row in connection.execute(counts)}
    after = dict(before)
    rows = []
    for one in told:
        after[one.table_id] += 1
        rows.append(_row(source_id, after[one.table_id], one))
    connection.execute(insert(TableDefinition), rows)
    this = update(SourceTable).where(SourceTable.id == bindparam("of_table"))
    counted = [{"of_table": id_, "to_number": number} for id_, number in after.items()]
    connection.execute(this.values(definitions=bindparam("to_number")), counted)
    connection.execute(
        delete(TableDefinition).where(
            TableDefinition.table_id == bindparam("of_table"), TableDefinition.number <= bindparam("to_number")
        ),
        [{"of_table": id_, "to_number": number - KEPT_OF_TABLE} for id_, number in after.items()],
    )
    _trim(connection, source_id)


def _trim(connection: Connection, source_id: int) -> None:
    of_source = TableDefinition.source_id == source_id
    newest = TableDefinition.id.desc()
    running = select(
        TableDefinition.id,
        func.row_number().over(order_by=newest).label("place"),
        func.sum(TableDefinition.bytes).over(order_by=newest).label("total"),
    ).where(of_source).subquery()  # fmt: skip
    over = (running.c.place > KEPT_OF_SOURCE) | (running.c.total > MAX_BYTES_OF_SOURCE)
    last = connection.execute(select(func.max(running.c.id)).where(over)).scalar()
    if last is not None:
        connection.execute(delete(TableDefinition).where(of_source, TableDefinition.id <= last))


def _row(source_id: int, number: int, one: Told) -> dict[str, Any]:
    columns = [column | {"column_type": _cut(column["column_type"], MAX_TYPE_CHARS)} for column in one.columns]
    return {
        "source_id": source_id,
        "table_id": one.table_id,
        "number": number,
        "teller": one.teller,
        "at_us": one.at_us,
        "gsn": one.gsn,
        "position": one.position,
        "digest": one.digest,
        "columns": columns,
        "keys": one.keys,
        "bytes": len(json.dumps([columns, one.keys])) + len(one.position),
    }


def _cut(text: str, most_chars: int) -> str:
    return text if len(text) <= most_chars else f"{text[:most_chars]}..."


def _pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (ids[begin : begin + _PIECE] for begin in range(0, len(ids), _PIECE))
