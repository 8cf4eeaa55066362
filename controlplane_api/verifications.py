"""The command to verify tables: what the lake holds is compared with the source, without its rows.

Comes in: tables of a source. Goes out: one transaction with a dump of each that `verifies`: the agent reads its rows
and sends their digests, the ledger follows its chunks as those of any dump, and so do pause, limit and cancel. What a
verification has found is said by the lake.
"""

from collections.abc import Sequence

from menura.errors import MenuraError
from menura.naming import TableName
from sqlalchemy import Connection

from controlplane_api.dump_lives import VERIFICATION, DumpOptions, create_dumps
from controlplane_api.dumps import refusal, running_dumps, synced_tables
from controlplane_api.errors import VerificationImpossible
from controlplane_api.models import AnyRow
from controlplane_api.syncs import Outcome, is_syncing, lock_source


def start_verifications(
    connection: Connection, source_id: int, tables: Sequence[TableName] | None, options: DumpOptions
) -> list[Outcome]:
    """Verify tables that are synced; None means all of those that no dump runs of. The source's row gets locked."""
    lock_source(connection, source_id)
    rows = synced_tables(connection, source_id, tables)
    running = running_dumps(connection, source_id)
    if tables is None:
        tables = [name for name, row in rows.items() if is_syncing(row) and row.id not in running]
    names = list(dict.fromkeys(tables))
    refused = {
        name: why
        for name in names
        if (why := refusal(name, rows.get(name), running) or _impossible(name, rows[name])) is not None
    }
    begun = [rows[name].id for name in names if name not in refused]
    made = create_dumps(connection, source_id, begun, options, VERIFICATION)
    return [
        Outcome(*name, changed=False, refused=refused[name])
        if name in refused
        else Outcome(*name, changed=True, dump=made[rows[name].id])
        for name in names
    ]


def _impossible(name: TableName, row: AnyRow) -> MenuraError | None:
    database, table = name
    if row.earlier_rows_missing:
        why = f"the lake lacks rows of it: {row.earlier_rows_missing}"
        remedy = "Dump it first."
    elif row.start is not None:
        why = "its sync has not begun"
        remedy = "Repeat this once it streams."
    else:
        return None
    return VerificationImpossible(
        "verifying a table", why, data="Nothing was compared.", remedy=remedy, database=database, table=table
    )
