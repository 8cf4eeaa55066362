"""Rows that the server changed without logging them: what the gateway hears, or the table's stop.

Comes in: what a statement did to a table's rows, and the policy of the table. Goes out: an event in the cut that says
why earlier rows may be stale, marked with whether a dump shall bring them; or, by the policy `stop`, the table stops
before the statement. Durable with its cut; a cut that is lost is read again.
"""

from collections.abc import Collection

from menura.v1 import changes_pb2

from agent.capture.cuts import Cuts
from agent.filter import Verdict
from agent.sources.mysql.config import MysqlConfig
from agent.sources.mysql.ddl.model import Change, Rows
from agent.sources.mysql.failures import rows_unlogged
from agent.sources.mysql.native.decoder import BinlogDecoder
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.stream.table_router import TableRouter
from agent.table_positions import Table, TablePositions, name_message
from agent.unlogged import UnloggedChanges

#: what a gateway takes
MOST_CHARS = 4_000


class UnloggedRows:
    """Of one stream."""

    def __init__(
        self,
        config: MysqlConfig,
        decoder: BinlogDecoder,
        router: TableRouter,
        read: ReadPosition,
        cuts: Cuts,
        table_positions: TablePositions[BinlogPosition],
    ) -> None:
        self._policy = config.unlogged
        self._most_per_hour = config.dump.max_rereads_per_hour
        self._decoder = decoder
        self._router = router
        self._read = read
        self._cuts = cuts
        self._table_positions = table_positions
        #: of the transaction that is being read: why, and which it is
        self._by_statement: dict[Table, tuple[str, str]] = {}

    def stops(self, table: Table, why: str) -> bool:
        """Whether the table's policy is to stop; then it has stopped. May raise `TableFailed`."""
        if self._policy.of(*table) is not UnloggedChanges.STOP:
            return False
        self._router.stop_here(table, rows_unlogged(self._read.place(), table, why))
        return True

    def mark(self, event: changes_pb2.TableEvent, why: str) -> None:
        """Rows with a lower number than the event's may be stale."""
        event.unlogged_changes = why if len(why) <= MOST_CHARS else f"{why[: MOST_CHARS - 1]}…"
        if self._policy.of(event.table.database, event.table.table) is UnloggedChanges.REREAD:
            event.reread = True
            event.most_rereads_per_hour = self._most_per_hour

    def may_stream_on(self, table: Table) -> bool:
        return self._policy.of(*table) is not UnloggedChanges.STOP

    def by_statement(self, tables: Collection[Table], why: str, transaction: str) -> None:
        """A statement of this transaction may have changed rows of these; told at its end, which ends the cut."""
        for table in tables:
            self._by_statement.setdefault(table, (why, transaction))

    @property
    def has_pending(self) -> bool:
        return bool(self._by_statement)

    def end_cut(self) -> None:
        """Tell what a statement of the transaction that has just ended may have changed."""
        pending, self._by_statement = self._by_statement, {}
        for table, (why, transaction) in pending.items():
            if self._table_positions.is_synced(table):
                self.changed([table], why, transaction)

    def changed(self, tables: Collection[Table], why: str, transaction: str) -> None:
        """Rows of these tables changed, and their definitions did not: an event each, in order with the rows."""
        for table in tables:
            if self.stops(table, why):
                continue
            event = changes_pb2.TableEvent(
                table=name_message(table),
                kind=changes_pb2.TableEvent.ROWS_UNLOGGED,
                transaction_id=self._decoder.next_transaction_id if self._decoder.in_transaction else 0,
                commit_timestamp_us=self._decoder.commit_timestamp_us,
                position=transaction,
            )
            self.mark(event, why)
            event.gsn = self._decoder.take_gsn()
            self._cuts.add_event(event)


def unlogged_by(verb: str, changes: Collection[Change], verdict: Verdict) -> str:
    """Why rows from before may be stale, of what a statement did to a table; empty where none may be.

    Columns that the filter ignores are left out.

    >>> from agent.sources.mysql.ddl.model import ChangeKind
    >>> moved = Change(ChangeKind.ALTERED, ("shop", "t"), rows=Rows.PARTLY_REMOVED)
    >>> unlogged_by("ALTER TABLE", [moved], Verdict(allowed=True))
    'ALTER TABLE took rows away that the log does not name'
    """
    rows = Rows.KEPT
    for change in changes:
        rows |= change.rows
    found = [f"{verb} put rows into it that the log does not hold"] if rows & Rows.ARRIVED else []
    if rows & Rows.PARTLY_REMOVED and not found:
        found.append(f"{verb} took rows away that the log does not name")
    return "; ".join([*found, *converted_columns([pair for change in changes for pair in change.converted], verdict)])


def converted_columns(converted: Collection[tuple[str, str]], verdict: Verdict) -> list[str]:
    """What is told of columns whose earlier values may be others now."""
    return [f"column {name}: {why}" for name, why in converted if not verdict.ignores(name)]
