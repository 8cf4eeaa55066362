"""Which tables get the rows that go by: their plans, and who is ahead of the stream, skipped, stopped or about to stop.

Comes in: TABLE_MAP events and the begin of each transaction while some tables are not where the stream is. Goes
out: plans in the decoder, active or not, and stops in the cut. Nothing is durable here.
"""

import logging
from collections.abc import Callable, Collection

from menura.errors import MenuraError
from menura.v1 import changes_pb2

from agent.capture.cuts import Cuts
from agent.errors import TableError
from agent.sources.mysql.ddl.model import TableDefinition
from agent.sources.mysql.failures import Place, row_unreadable, rows_missing, rows_unlogged
from agent.sources.mysql.log.table_map import table_of
from agent.sources.mysql.native.decoder import DecodeError, GeneratedMissing, RowsMissing, TablePlan
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.schema.log_scan import current_transaction
from agent.sources.mysql.schema.table_planner import Moment, TablePlanner
from agent.sources.mysql.stream.context import StreamContext, Undone
from agent.sources.mysql.stream.definition_gaps import DefinitionGaps
from agent.sources.mysql.stream.foreign_keys import FollowedKeys
from agent.sources.mysql.stream.prepared import Group
from agent.sources.mysql.stream.table_events import columns_after
from agent.table_positions import Stop, Table, name_message

log = logging.getLogger("menura.binlog")

#: while tables are ahead: transactions between two looks at whether the stream has passed them
AHEAD_CHECK_TRANSACTIONS = 256
#: in place of a statement
UNLOGGED_COLUMNS = "(generated columns whose new values the server's log lacks are not sent from here on)"


class TableFailed(Exception):
    """Tables can't be read inside a transaction that was partly sent: read again, and stop them before that."""

    def __init__(self, *stops: Stop[BinlogPosition]) -> None:
        self.stops = stops
        super().__init__(str(stops[0].error))


class RowsUndone(Exception):
    """Rows that were partly sent don't count: read again, and step over them."""

    def __init__(self, undone: Undone) -> None:
        self.undone = undone
        super().__init__("a transaction took rows back")


class ColumnsUnlogged(Exception):
    """An update lacks generated columns: read again, without what is known now to be generated and left out."""


class TableRouter:
    """The tables of one stream."""

    def __init__(
        self,
        context: StreamContext,
        planner: TablePlanner,
        gaps: DefinitionGaps,
        keys: FollowedKeys,
        read: ReadPosition,
        cuts: Cuts,
    ) -> None:
        self._source = context.config.name
        self._gaps = gaps
        self._decoder = context.decoder
        self._planner = planner
        self._definitions = context.definitions
        self._table_positions = context.table_positions
        self._pending_stops = dict(context.pending_stops)
        self._read = read
        self._cuts = cuts
        self._sink = context.sink
        self._keys = keys
        #: a table has stopped: keys to it are not followed from the next transaction on
        self._are_keys_stale = False
        self._tables_by_id: dict[int, Table] = {}
        self._plans: dict[Table, list[TablePlan]] = {}
        self._skipped: set[Table] = set()
        self._undone = list(context.undone)
        #: of the current transaction
        self._undone_here: list[Undone] = []
        #: its rows here are taken back later
        self._is_undone = False
        #: a table map has to be planned again when its table gets rows
        self._deferred = False
        self._begins = 0
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()

    def live_tables(self) -> list[Table]:
        """The tables that get the rows of the current transaction."""
        return [table for table in self._table_positions.synced() if table not in self._skipped]

    def group(self) -> Group:
        """The current transaction."""
        return Group(
            self._decoder.gtid, self._read.server_uuid, self._read.file, self._decoder.transaction_begin_offset
        )

    def _gets_rows(self, table: Table) -> bool:
        return self._table_positions.is_synced(table) and table not in self._skipped and not self._is_undone

    # --- table maps

    def define(self, body: bytes) -> None:
        """A TABLE_MAP that the decoder does not know."""
        table_id, *names = table_of(body)
        table = (names[0], names[1])
        self._tables_by_id[table_id] = table
        plan: TablePlan | None = None
        if self._table_positions.is_synced(table):
            try:
                plan = self._planner.plan(table, body, None if table in self._skipped else self._moment())
            except TableError as error:
                if table in self._skipped:
                    self._deferred = True
                elif not self._gaps.opens(table, error):
                    self.stop_here(table, error)
        if plan is not None:
            plan.active = self._gets_rows(table)
            if self._definitions.unlogged_columns.is_untold(table):
                self._tell_unlogged_columns(table, plan)
            known = self._plans.setdefault(table, [])
            if not any(plan is other for other in known):
                known.append(plan)
            self._keys.announced(table, plan, self._gets_rows, self._decoder.transaction_position)
        followed = self._keys.parent_announced(table, self._gets_rows, self._decoder.transaction_position)
        self._decoder.define_table(table_id, body, plan, followed)

    def _moment(self) -> Moment:
        self._read.publish()
        return Moment(self._read.position, current_transaction(self._decoder, self._read))

    def forget(self) -> None:
        """Table ids may be used anew."""
        self._decoder.forget_tables()
        self._tables_by_id.clear()
        self._plans.clear()
        self._deferred = False

    # --- tables that are not where the stream is

    def _decides_per_transaction(self) -> bool:
        is_undone = bool(self._undone or self._undone_here)
        return self._table_positions.any_ahead or is_undone or bool(self._pending_stops) or self._are_keys_stale

    def choose(self) -> None:
        """A transaction begins while some tables are ahead or have pending stops: which of them get its rows?"""
        begin = self._read.offset
        gtid = self._decoder.gtid
        for table, stop in list(self._pending_stops.items()):
            if not stop.position.has_transaction(gtid, self._read.file, begin):
                del self._pending_stops[table]
                self._stop(stop)
        if self._are_keys_stale:
            self._are_keys_stale = False
            self.forget()
        self._begins += 1
        if self._begins % AHEAD_CHECK_TRANSACTIONS == 0:
            self._read.publish()
            self.note_passed()
        file = self._read.file
        skipped = self._table_positions.skipped(lambda position: position.has_transaction(gtid, file, begin))
        is_undone = self._find_undone()
        if skipped != self._skipped or is_undone != self._is_undone:
            self._skipped, self._is_undone = skipped, is_undone
            self._activate()
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()

    def _find_undone(self) -> bool:
        """Whether the rows of the transaction that begins are taken back from its begin on."""
        here = self.group()
        self._undone_here = [undone for undone in self._undone if undone.group.is_same(here)]
        self._undone = [undone for undone in self._undone if not undone.group.is_same(here)]
        return any(undone.after == 0 for undone in self._undone_here)

    def savepoint(self, number: int) -> None:
        """The transaction's statement of this number is a SAVEPOINT."""
        if any(undone.after == number for undone in self._undone_here):
            self._is_undone = True
            self._activate()

    def rolled_back(self, number: int) -> None:
        """The transaction's statement of this number is a ROLLBACK TO."""
        if any(undone.until == number for undone in self._undone_here):
            self._is_undone = any(undone.after < number < undone.until for undone in self._undone_here)
            self._activate()

    def note_passed(self) -> None:
        """The position was published: is somebody no longer ahead of it?"""
        if not self._table_positions.passed(self._read.position):
            return
        if not self._table_positions.any_ahead:
            self._skipped = set()
            self._activate()
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()
        self._sink.tables_are(())

    def _activate(self) -> None:
        for table, plans in self._plans.items():
            for plan in plans:
                plan.active = self._gets_rows(table)
        if self._deferred or self._keys.are_there:  # such a table map comes again
            self.forget()

    def keys_changed(self) -> None:
        """Which keys are followed has to be asked again at the next table maps; no transaction is open."""
        if self._keys.are_there:
            self.forget()

    # --- stops

    def stop_here(self, table: Table, error: MenuraError) -> None:
        """The table is complete up to the transaction before this one, and goes no further."""
        self._read.publish()
        stop = Stop(table, self._read.position, error)
        if self._has_rows_since(table, self._decoder.transaction_first_gsn):
            raise self._failed(stop)
        self._stop(stop)

    def fail_since(self, first_gsn: int, error: Callable[[Place, Table, str], MenuraError], found: str) -> None:
        """Stop the tables that have rows from this number on before the current transaction."""
        self._read.publish()
        place = self._read.place()
        tables = [table for table in self._plans if self._has_rows_since(table, first_gsn)]
        if tables:
            raise self._failed(*[Stop(table, place.position, error(place, table, found)) for table in tables])

    def _has_rows_since(self, table: Table, first_gsn: int) -> bool:
        return any(plan.last_gsn >= first_gsn for plan in self._plans.get(table, ()))

    def _stop(self, stop: Stop[BinlogPosition]) -> None:
        log.warning("table stopped", extra={"fields": {"source": self._source, "error": str(stop.error)}})
        self._table_positions.stop(stop.table)
        self._definitions.ended(stop.table, stop.position)
        for plan in self._plans.get(stop.table, ()):
            plan.active = False
        if self._keys.stopped(stop.table, self._gets_rows):
            self._are_keys_stale = self._decoder.stop_at_transaction_begin = True
        self._cuts.add_stop(stop)
        self._sink.tables_are((stop,))

    def failed(self, broken: DecodeError) -> TableFailed | ColumnsUnlogged | MenuraError | None:
        """What a row that can't be read does to its table; None where the event belongs to no synced table."""
        table = self._tables_by_id.get(broken.table_id)
        if table is not None and isinstance(broken, RowsMissing):
            place = self._read.place()
            stopping = self._keys.stopping_below(table, self._gets_rows)
            if stopping:
                return self._failed(
                    *(Stop(child, place.position, rows_unlogged(place, child, why)) for child, why in stopping)
                )
        if table is None or not self._table_positions.is_synced(table):
            return None
        place = self._read.place()
        if isinstance(broken, RowsMissing):
            error = rows_missing(place, table, str(broken))
            return self._failed(Stop(table, place.position, error))
        if isinstance(broken, GeneratedMissing) and self._find_unlogged_columns(table, broken.columns):
            return ColumnsUnlogged()
        return self._failed(Stop(table, place.position, row_unreadable(place, table, broken.log_pos, str(broken))))

    # --- generated columns that the log lacks

    def _find_unlogged_columns(self, table: Table, columns: Collection[str]) -> bool:
        """Of the columns that an update lacks, those that are generated; none where the definition is not known.

        Whether that is new: else the log would be read again in vain.
        """
        transaction = current_transaction(self._decoder, self._read)
        lacking = {column.lower() for column in columns}
        version = self._definitions.learned_generated(table, lacking, self._read.position, transaction)
        known = version.columns if isinstance(version, TableDefinition) else ()
        generated = {column.name for column in known if column.generated and column.name.lower() in lacking}
        return self._definitions.unlogged_columns.found(table, generated, self._read.position)

    def _tell_unlogged_columns(self, table: Table, plan: TablePlan) -> None:
        """Before the first row without them; a table that gets no rows here has its table map planned again."""
        if not plan.active:
            self._deferred = True
            return
        self._definitions.unlogged_columns.told(table, self._read.position)
        definition = self._definitions.of(table)
        assert isinstance(definition, TableDefinition)  # else there is no plan
        self._cuts.add_event(
            changes_pb2.TableEvent(
                table=name_message(table),
                kind=changes_pb2.TableEvent.ALTERED,
                transaction_id=self._decoder.next_transaction_id,
                commit_timestamp_us=self._decoder.commit_timestamp_us,
                position=current_transaction(self._decoder, self._read).name,
                statement=UNLOGGED_COLUMNS,
                columns=columns_after(definition, self._planner.verdict(table)),
                gsn=self._decoder.take_gsn(),
            )
        )

    def _failed(self, *stops: Stop[BinlogPosition]) -> TableFailed | MenuraError:
        """What ends the reading. A table that was to stop here already did not: no transaction begins in the log here.

        Then it is the source that can't be read on, which would else be read again and again.
        """
        for stop in stops:
            pending = self._pending_stops.get(stop.table)
            if pending is not None and pending.position.same_place(stop.position):
                return stop.error
        return TableFailed(*stops)
