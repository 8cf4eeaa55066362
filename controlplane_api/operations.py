"""Operations: what a command about several tables has asked for, so that somebody can see how far each table is.

Comes in: the outcomes of a command, within its transaction. Goes out: a row for the command and one for each table that
it named. How far a table is is read from its sync and its dump (`api.operation_queries`); nothing is written here as it
goes on. Of a source the newest operations are kept, `KEPT` of them and `KEPT_TABLES` tables at most.
"""

from collections.abc import Sequence
from uuid import uuid4

from menura.instants import now_us
from menura.naming import TableName
from sqlalchemy import Connection, delete, insert, select

from controlplane_api.models import Operation, OperationTable, Source
from controlplane_api.syncs import Outcome, sync_rows

KEPT = 50
KEPT_TABLES = 200_000


def record(connection: Connection, source_id: int, kind: str, outcomes: Sequence[Outcome]) -> str:
    """Its name."""
    uuid = str(uuid4())
    generation = connection.execute(select(Source.generation).where(Source.id == source_id)).scalar_one()
    row = {
        "uuid": uuid, "source_id": source_id, "kind": kind, "at_us": now_us(), "generation": generation,
        "tables": len(outcomes),
    }  # fmt: skip
    operation_id = connection.execute(insert(Operation).values(row).returning(Operation.id)).scalar_one()
    ids = _table_ids(connection, source_id, [(outcome.database, outcome.table) for outcome in outcomes])
    rows = [
        {
            "operation_id": operation_id, "number": number, "table_id": ids.get((outcome.database, outcome.table)),
            "database": outcome.database, "name": outcome.table, "changed": outcome.changed, "dump": outcome.dump,
            "refused": "" if outcome.refused is None else outcome.refused.code,
        }
        for number, outcome in enumerate(outcomes)
    ]  # fmt: skip
    if rows:
        connection.execute(insert(OperationTable), rows)
    _forget_old(connection, source_id)
    return uuid


def _table_ids(connection: Connection, source_id: int, names: Sequence[TableName]) -> dict[TableName, int]:
    return {name: row.id for name, row in sync_rows(connection, source_id, names).items()}


def _forget_old(connection: Connection, source_id: int) -> None:
    newest = select(Operation.id, Operation.tables).where(Operation.source_id == source_id)
    kept = 0
    for number, row in enumerate(connection.execute(newest.order_by(Operation.id.desc())).all()):
        kept += row.tables
        if number >= KEPT or (number and kept > KEPT_TABLES):
            connection.execute(delete(OperationTable).where(OperationTable.operation_id == row.id))
            connection.execute(delete(Operation).where(Operation.id == row.id))
