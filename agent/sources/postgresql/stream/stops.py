"""Tables that stop in a stream: at once between two transactions, else the stream is read again up to there."""

import logging

from menura.errors import MenuraError

from agent.capture.cuts import Cuts
from agent.sources.postgresql.native.decoder import TablePlan
from agent.sources.postgresql.positions import WalPosition
from agent.sources.postgresql.read_position import ReadPosition
from agent.sources.postgresql.stream.context import StreamContext
from agent.table_positions import Stop, Table

log = logging.getLogger("menura.wal")


class TableFailed(Exception):
    """A table can't be read inside a transaction that was partly sent: read again, and stop it before that."""

    def __init__(self, stop: Stop[WalPosition]) -> None:
        self.stop = stop
        super().__init__(str(stop.error))


class Stops:
    """Of one stream."""

    def __init__(self, context: StreamContext, read: ReadPosition, cuts: Cuts) -> None:
        self._source = context.config.name
        self._decoder = context.decoder
        self._table_positions = context.table_positions
        self._sink = context.sink
        self._read = read
        self._cuts = cuts
        self._pending = dict(context.pending_stops)
        self._plans: dict[Table, list[TablePlan]] = {}

    @property
    def are_pending(self) -> bool:
        return bool(self._pending)

    def may_stop(self, table: Table) -> bool:
        """Whether it has not stopped."""
        return self._table_positions.is_synced(table)

    def planned(self, table: Table, plan: TablePlan) -> None:
        """Rows come by it from here on; older ones count while they have rows of the current transaction."""
        first_gsn = self._decoder.transaction_first_gsn
        used = [one for one in self._plans.get(table, ()) if one.last_gsn >= first_gsn]
        self._plans[table] = [*used, plan]

    def stop_here(self, table: Table, error: MenuraError) -> None:
        """The table is complete up to the transaction before this one, and goes no further. May raise `TableFailed`."""
        self._read.publish()
        stop = Stop(table, self._read.position, error)
        first_gsn = self._decoder.transaction_first_gsn
        is_begun = self._decoder.in_transaction and (
            self._cuts.has_event_since(first_gsn)
            or any(plan.last_gsn >= first_gsn for plan in self._plans.get(table, ()))
        )
        if is_begun:
            raise self.failed(stop)
        self.stop(stop)

    def failed(self, stop: Stop[WalPosition]) -> TableFailed | MenuraError:
        """What ends the reading. A table that was to stop here already did not: then it is the source that can't be
        read on, which would else be read again and again."""
        pending = self._pending.get(stop.table)
        if pending is not None and pending.position.same_place(stop.position):
            return stop.error
        return TableFailed(stop)

    def stop_pending(self, transaction_lsn: int) -> None:
        """A transaction begins: tables stop that could not be read on from before it."""
        for table, stop in list(self._pending.items()):
            if transaction_lsn >= stop.position.lsn:
                del self._pending[table]
                self.stop(stop)

    def stop(self, stop: Stop[WalPosition]) -> None:
        log.warning("table stopped", extra={"fields": {"source": self._source, "error": str(stop.error)}})
        self._table_positions.stop(stop.table)
        for plan in self._plans.get(stop.table, ()):
            plan.active = False
        self._cuts.add_stop(stop)
        self._sink.tables_are((stop,))
