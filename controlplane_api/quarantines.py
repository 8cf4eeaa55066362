"""The commands that end a source's quarantine: have its held cuts applied again, or move the source past them.

Comes in: a source of which the cut log has cuts that the database refuses (`registry.quarantine`). Goes out: one
transaction. A kill leaves all of it or nothing.

To try again is the gateway's, which has the log: the command only asks. To skip is final. The lake has the rows of the
skipped cuts, or will; what they say of tables is lost here: starts, stops, dumps, notes that rows are stale. So the
position goes behind the last of them, and the tables that they name begin anew, each with a dump.
"""

from typing import Any

from sqlalchemy import Connection, delete, select, update

from controlplane_api.documents import insert_into
from controlplane_api.dump_lives import DEFAULT_OPTIONS, grow_dump_generation
from controlplane_api.errors import SourceNotQuarantined
from controlplane_api.models import AnyRow, CommittedPosition, Quarantine, Source
from controlplane_api.recovery import resync_tables
from controlplane_api.syncs import Outcome, is_syncing, lock_source, sync_rows


def held_row(connection: Connection, source_id: int, source: str) -> AnyRow:
    """Its row; raises `SourceNotQuarantined`."""
    row = connection.execute(select(Quarantine).where(Quarantine.source_id == source_id)).first()
    if row is None:
        raise SourceNotQuarantined(
            "looking for a source's quarantine",
            "every cut of it that is committed is applied",
            data="Nothing was changed.",
            remedy="See how the source is: menura sources",
            source=source,
        )
    return row


def retry(connection: Connection, source_id: int, source: str) -> None:
    """Ask the gateway to apply what is held. Raises `SourceNotQuarantined`."""
    lock_source(connection, source_id)
    held_row(connection, source_id, source)
    connection.execute(update(Quarantine).where(Quarantine.source_id == source_id).values(retry=True))


def skip(connection: Connection, source_id: int, source: str) -> list[Outcome]:
    """Go on behind what is held; what became of the tables that it names. Raises `SourceNotQuarantined`."""
    generation = lock_source(connection, source_id)
    row = held_row(connection, source_id, source)
    after: dict[str, Any] = dict(row.after)
    told = after.pop("generation")
    counted = {"rows": 0, "bytes": 0, "transactions": 0}
    statement = insert_into(connection, CommittedPosition).values(source_id=source_id, **after, **counted)
    connection.execute(statement.on_conflict_do_update(index_elements=[CommittedPosition.source_id], set_=after))
    connection.execute(update(Source).where(Source.id == source_id).values(generation=max(generation, told)))
    connection.execute(delete(Quarantine).where(Quarantine.source_id == source_id))
    grow_dump_generation(connection, source_id)
    rows = sync_rows(connection, source_id, None if row.tables is None else [tuple(name) for name in row.tables])
    names = [name for name, sync in rows.items() if is_syncing(sync)]
    return resync_tables(connection, source_id, names, DEFAULT_OPTIONS)


def held_tables(row: AnyRow) -> int | None:
    """Of how many tables the held cuts say something; None: of very many."""
    return None if row.tables is None else len(row.tables)
