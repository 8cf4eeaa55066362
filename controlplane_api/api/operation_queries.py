"""What the API shows of operations: how far each table is, read from its sync and its dump."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, case, func, or_, select

from controlplane_api.api.pages import page_of, read_cursor
from controlplane_api.api.views import OperationDetail, Operations, OperationTableView, OperationView
from controlplane_api.errors import OperationUnknown
from controlplane_api.models import AnyRow, Dump, Operation, OperationTable, Sync
from controlplane_api.states import DumpEnd, Progress, State

_FAILED = (State.FAILED, State.DENIED)
_ENDED = (DumpEnd.FAILED, DumpEnd.REFUSED, DumpEnd.CANCELLED, DumpEnd.LOST)
#: A later command has the table, unless what moved its sync was the error that stopped it.
_IS_LATER = and_(Sync.changed_generation > Operation.generation, Sync.failed.is_(False))
PROGRESS: ColumnElement[str] = case(
    (OperationTable.refused != "", Progress.REFUSED.value),
    (or_(OperationTable.changed.is_(False), Operation.kind == "stop"), Progress.DONE.value),
    (Dump.state == DumpEnd.DONE, Progress.DONE.value),
    (or_(Sync.table_id.is_(None), _IS_LATER), Progress.SUPERSEDED.value),
    (or_(Sync.failed.is_(True), Sync.state.in_(_FAILED), Dump.state.in_(_ENDED)), Progress.FAILED.value),
    (and_(Sync.state == State.STREAMING, OperationTable.dump == ""), Progress.DONE.value),
    (Sync.state.in_((State.STREAMING, State.CATCHING_UP, State.DUMPING)), Progress.RUNNING.value),
    else_=Progress.WAITING.value,
)


def operations(connection: Connection, source_id: int, *, cursor: str, limit: int) -> Operations:
    """One page, the newest first."""
    statement = select(Operation).where(Operation.source_id == source_id).order_by(Operation.id.desc())
    after = read_cursor(cursor, int)
    if after is not None:
        statement = statement.where(Operation.id < after[0])
    rows, following = page_of(connection.execute(statement.limit(limit + 1)).all(), limit, lambda row: (row.id,))
    counts = _counts(connection, [row.id for row in rows])
    return Operations(operations=[_view(row, counts.get(row.id, {})) for row in rows], next_cursor=following)


def operation(connection: Connection, source_id: int, uuid: str, *, cursor: str, limit: int) -> OperationDetail:
    """One operation with a page of its tables. Raises `OperationUnknown`."""
    row = connection.execute(select(Operation).where(Operation.source_id == source_id, Operation.uuid == uuid)).first()
    if row is None:
        raise OperationUnknown(
            "looking for an operation",
            "the source has none of this name",
            remedy="The list of the source's operations has those that are kept.",
        )
    statement = _joined(
        select(
            OperationTable.number, OperationTable.database, OperationTable.name, OperationTable.refused,
            OperationTable.dump, PROGRESS.label("progress"),
        )
    ).where(Operation.id == row.id)  # fmt: skip
    after = read_cursor(cursor, int)
    if after is not None:
        statement = statement.where(OperationTable.number > after[0])
    found = connection.execute(statement.order_by(OperationTable.number).limit(limit + 1)).all()
    rows, following = page_of(found, limit, lambda table: (table.number,))
    tables = [
        OperationTableView(
            database=each.database, table=each.name, progress=each.progress, refused=each.refused, dump=each.dump
        )
        for each in rows
    ]
    view = _view(row, _counts(connection, [row.id]).get(row.id, {}))
    return OperationDetail(**view.model_dump(), of_tables=tables, next_cursor=following)


def _view(row: AnyRow, counts: dict[Progress, int]) -> OperationView:
    open_ = counts.get(Progress.WAITING, 0) + counts.get(Progress.RUNNING, 0)
    return OperationView(operation=row.uuid, kind=row.kind, at_us=row.at_us, done=open_ == 0, tables=counts)


def _counts(connection: Connection, ids: list[int]) -> dict[int, dict[Progress, int]]:
    statement = _joined(select(Operation.id, PROGRESS.label("progress"), func.count().label("tables")))
    counts: dict[int, dict[Progress, int]] = {}
    for row in connection.execute(statement.where(Operation.id.in_(ids)).group_by(Operation.id, PROGRESS)):
        counts.setdefault(row.id, {})[Progress(row.progress)] = row.tables
    return counts


def _joined(statement: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return (
        statement.join_from(Operation, OperationTable, OperationTable.operation_id == Operation.id)
        .outerjoin(Sync, Sync.table_id == OperationTable.table_id)
        .outerjoin(Dump, and_(Dump.uuid == OperationTable.dump, Dump.source_id == Operation.source_id))
    )
