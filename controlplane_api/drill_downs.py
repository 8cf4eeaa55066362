"""Verifications that read again what others found to differ, until it is known which rows do.

Comes in: tables that a lake's sink suspects, after which verification and what of them is to be read, with each of its
reports. Goes out: a verification of each with that focus, ordered once: it is the newest of its table then. A table
that is dumped, or whose sync does not run, waits for a later report; one that was verified anew needs none.
"""

from collections.abc import Sequence

from menura.lake_report import LakeSuspect
from sqlalchemy import Connection, func, select

from controlplane_api.dump_lives import VERIFICATION, DumpOptions, create_focused
from controlplane_api.models import AnyRow, Dump, Source, SourceTable, Sync, Tenant
from controlplane_api.states import Desired, DumpEnd
from controlplane_api.syncs import lock_source
from controlplane_api.verdicts import FullName


def order_drill_downs(connection: Connection, suspects: Sequence[LakeSuspect]) -> None:
    """Sources' rows get locked."""
    named = [(each, (each.tenant, each.source, each.database, each.table)) for each in suspects]
    found = [
        (suspect, row)
        for suspect, name in named
        if (row := verification_of(connection, name, suspect.verification)) is not None
    ]
    for suspect, row in sorted(found, key=lambda each: each[1].source_id):
        lock_source(connection, row.source_id)
        if is_newest(connection, row):
            options = DumpOptions(row.priority, row.workers, row.rows_per_second, row.bytes_per_second)
            create_focused(connection, row.source_id, row.table_id, options, VERIFICATION, suspect.focus)


def verification_of(connection: Connection, name: FullName, uuid: str) -> AnyRow | None:
    """That is done, of a table whose sync runs."""
    tenant, source, database, table = name
    return connection.execute(
        select(Dump)
        .join(Source, Source.id == Dump.source_id)
        .join(Tenant, Tenant.id == Source.tenant_id)
        .join(SourceTable, SourceTable.id == Dump.table_id)
        .join(Sync, Sync.table_id == Dump.table_id)
        .where(
            Tenant.name == tenant, Source.name == source, SourceTable.database == database, SourceTable.name == table,
            Dump.uuid == uuid, Dump.cause == VERIFICATION, Dump.state == DumpEnd.DONE,
            Sync.desired == Desired.SYNCING, Sync.failed.is_(False),
        )
    ).first()  # fmt: skip


def is_newest(connection: Connection, row: AnyRow) -> bool:
    """Whether no dump of its table runs, and no verification of it was ordered since."""
    is_later = Dump.id > row.id
    later = select(func.count()).where(
        Dump.table_id == row.table_id, (is_later & (Dump.cause == VERIFICATION)) | (Dump.state == DumpEnd.RUNNING)
    )
    return connection.execute(later).scalar_one() == 0
