"""Tables that shall be synced and that no cartography had yet: their syncs begin when one has them.

Comes in: names with how each shall begin, and the news that a source's cartography was stored. Goes out: rows that
wait, and then syncs, each in one transaction with the end of its row. A kill between a cartography and that leaves the
rows; the next cartography that is stored, and each `apply`, begins what is there.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from menura.instants import now_us
from menura.naming import TableName
from sqlalchemy import Connection, and_, delete, select, update

from controlplane_api.documents import insert_into, problem_document
from controlplane_api.dump_lives import DumpOptions
from controlplane_api.lookups import among
from controlplane_api.models import AnyRow, SourceTable, Sync, WantedTable
from controlplane_api.states import StartKind
from controlplane_api.syncs import Outcome, Start, start_tables
from gateway.registry import Problem


@dataclass(frozen=True, slots=True)
class Wanted:
    start: StartKind
    options: DumpOptions


def wanted_of(connection: Connection, source_id: int) -> dict[TableName, Wanted]:
    rows = connection.execute(select(WantedTable).where(WantedTable.source_id == source_id))
    return {(row.database, row.name): _wanted(row) for row in rows}


def want(connection: Connection, source_id: int, tables: Mapping[TableName, Wanted]) -> None:
    if not tables:
        return
    statement = insert_into(connection, WantedTable)
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=[WantedTable.source_id, WantedTable.database, WantedTable.name],
            set_={name: statement.excluded[name] for name in ("start", "options", "problem")},
        ),
        [
            {"source_id": source_id, "database": database, "name": name, "start": wanted.start,
             "options": asdict(wanted.options), "problem": None}
            for (database, name), wanted in tables.items()
        ],
    )  # fmt: skip


def forget(connection: Connection, source_id: int, tables: list[TableName]) -> None:
    if not tables:
        return
    named = among((WantedTable.database, WantedTable.name), tables)
    connection.execute(delete(WantedTable).where(WantedTable.source_id == source_id, named))


def begin_known(connection: Connection, source_id: int) -> None:
    """Begin the syncs of those that the cartography has now; why one can't begin stays in its row."""
    known = and_(
        SourceTable.source_id == WantedTable.source_id,
        SourceTable.database == WantedTable.database,
        SourceTable.name == WantedTable.name,
        SourceTable.gone.is_(False),
    )
    rows = connection.execute(
        select(WantedTable, Sync.desired)
        .join(SourceTable, known)
        .outerjoin(Sync, Sync.table_id == SourceTable.id)
        .where(WantedTable.source_id == source_id)
    ).all()
    outcomes = begin(connection, source_id, {(row.database, row.name): (_wanted(row), row.desired) for row in rows})
    forget(connection, source_id, [(one.database, one.table) for one in outcomes if one.refused is None])
    for one in outcomes:
        if one.refused is not None:
            why = Problem(one.refused.code, str(one.refused), one.refused.terminal, now_us())
            this = (
                WantedTable.source_id == source_id,
                WantedTable.database == one.database,
                WantedTable.name == one.table,
            )
            connection.execute(update(WantedTable).where(*this).values(problem=problem_document(why)))


def begin(
    connection: Connection, source_id: int, tables: Mapping[TableName, tuple[Wanted, str | None]]
) -> list[Outcome]:
    """Start them; one that had a sync before, as the second half of a value says, goes on where that stopped."""
    alike: dict[tuple[StartKind, DumpOptions], list[TableName]] = defaultdict(list)
    for name, (wanted, desired) in tables.items():
        alike[StartKind.RESUME if desired is not None else wanted.start, wanted.options].append(name)
    return [
        outcome
        for (start, options), names in alike.items()
        for outcome in start_tables(connection, source_id, names, Start(start), options)
    ]


def _wanted(row: AnyRow) -> Wanted:
    return Wanted(StartKind(row.start), DumpOptions(**row.options))
