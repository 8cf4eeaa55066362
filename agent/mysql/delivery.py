"""Which tables get the rows that go by: their plans, and who is ahead of the stream, skipped, stopped or doomed.

Comes in: TABLE_MAP events and the begin of each transaction while some tables are not where the stream is. Goes
out: plans in the decoder, active or not, and stops in the cut. Nothing is durable here.
"""

import logging
from collections.abc import Mapping

from menura.errors import MenuraError

from agent.errors import TableError
from agent.mysql.cuts import Cuts
from agent.mysql.failures import row_unreadable
from agent.mysql.progress import Progress, Stop, Table
from agent.mysql.read_position import ReadPosition
from agent.mysql.schema import TablePlanner
from agent.mysql.sink import Sink
from agent.mysql.table_map import table_of
from agent.native.decoder import BinlogDecoder, DecodeError, TablePlan

log = logging.getLogger("menura.binlog")

#: while tables are ahead: transactions between two looks at whether the stream has passed them
AHEAD_CHECK_TRANSACTIONS = 256


class TableFailed(Exception):
    """A table can't be read inside a transaction that was partly sent: read again, and stop it before that."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop
        super().__init__(str(stop.error))


class Delivery:
    """The tables of one stream."""

    def __init__(
        self,
        source: str,
        decoder: BinlogDecoder,
        planner: TablePlanner,
        progress: Progress,
        doomed: Mapping[Table, Stop],
        read: ReadPosition,
        cuts: Cuts,
        sink: Sink,
    ) -> None:
        self._source = source
        self._decoder = decoder
        self._planner = planner
        self._progress = progress
        self._doomed = dict(doomed)
        self._read = read
        self._cuts = cuts
        self._sink = sink
        self._tables_by_id: dict[int, Table] = {}
        self._plans: dict[Table, list[TablePlan]] = {}
        self._skipped: set[Table] = set()
        #: a table map could not be planned while its table was skipped
        self._deferred = False
        self._begins = 0
        decoder.stop_at_transaction_begin = self._decides_per_transaction()

    def live_tables(self) -> list[Table]:
        """The tables that get the rows of the current transaction."""
        return [table for table in self._progress.synced() if table not in self._skipped]

    # --- table maps

    def define(self, body: bytes) -> None:
        """A TABLE_MAP that the decoder does not know."""
        table_id, *names = table_of(body)
        table = (names[0], names[1])
        self._tables_by_id[table_id] = table
        plan: TablePlan | None = None
        if self._progress.is_synced(table):
            try:
                plan = self._planner.plan(table, body)
            except TableError as error:
                if table in self._skipped:
                    self._deferred = True
                else:
                    self.stop_here(table, error)
        if plan is not None:
            plan.active = table not in self._skipped
            known = self._plans.setdefault(table, [])
            if not any(plan is other for other in known):
                known.append(plan)
        self._decoder.define_table(table_id, body, plan)

    def forget(self) -> None:
        """Table ids may be used anew."""
        self._decoder.forget_tables()
        self._tables_by_id.clear()
        self._plans.clear()
        self._deferred = False

    # --- tables that are not where the stream is

    def _decides_per_transaction(self) -> bool:
        return self._progress.any_ahead or bool(self._doomed)

    def choose(self) -> None:
        """A transaction begins while some tables are ahead or doomed: which of them get its rows?"""
        begin = self._read.offset
        gtid = self._decoder.gtid
        for table, stop in list(self._doomed.items()):
            if not stop.position.has_transaction(gtid, self._read.file, begin):
                del self._doomed[table]
                self._stop(stop)
        self._begins += 1
        if self._begins % AHEAD_CHECK_TRANSACTIONS == 0:
            self._read.publish()
            self.note_passed()
        skipped = self._progress.skipped(gtid, self._read.file, begin)
        if skipped != self._skipped:
            self._skipped = skipped
            self._activate()
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()

    def note_passed(self) -> None:
        """The position was published: is somebody no longer ahead of it?"""
        if not self._progress.passed(self._read.position):
            return
        if not self._progress.any_ahead:
            self._skipped = set()
            self._activate()
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()
        self._sink.tables_are(())

    def _activate(self) -> None:
        for table, plans in self._plans.items():
            for plan in plans:
                plan.active = self._progress.is_synced(table) and table not in self._skipped
        if self._deferred:  # such a table map comes again
            self.forget()

    # --- stops

    def stop_here(self, table: Table, error: MenuraError) -> None:
        """The table is complete up to the transaction before this one, and goes no further."""
        self._read.publish()
        self._stop(Stop(table, self._read.position, error))

    def _stop(self, stop: Stop) -> None:
        log.warning("table stopped", extra={"fields": {"source": self._source, "error": str(stop.error)}})
        self._progress.stop(stop.table)
        for plan in self._plans.get(stop.table, ()):
            plan.active = False
        self._cuts.add_stop(stop)
        self._sink.tables_are((stop,))

    def failed(self, broken: DecodeError) -> TableFailed | None:
        """What a row that can't be read does to its table; None where the event belongs to no synced table."""
        table = self._tables_by_id.get(broken.table_id)
        if table is None or not self._progress.is_synced(table):
            return None
        place = self._read.place()
        return TableFailed(Stop(table, place.position, row_unreadable(place, table, broken.log_pos, str(broken))))
