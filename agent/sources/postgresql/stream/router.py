"""Which tables get the rows that go by: their plans, and who is ahead of the stream, skipped, stopped or about to stop.

Comes in: Relation and Truncate messages, and the begin of each transaction while some tables are not where the stream
is. Goes out: plans in the decoder, active or not. Nothing is durable here.
"""

from agent.capture.cuts import Cuts
from agent.filter import Verdict
from agent.sources.postgresql.columns import Column, schema_id
from agent.sources.postgresql.failures import TABLE_COMPLETE, columns_unsupported, row_unreadable
from agent.sources.postgresql.native.decoder import DecodeError, PlannedColumn, TablePlan
from agent.sources.postgresql.read_position import ReadPosition
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.sources.postgresql.stream.context import StreamContext
from agent.sources.postgresql.stream.definition_changes import columns_of
from agent.sources.postgresql.stream.definitions import StreamDefinitions
from agent.sources.postgresql.stream.relations import Relation, Truncate, parse_relation
from agent.sources.postgresql.stream.stops import Stops, TableFailed
from agent.sources.postgresql.types import named_type
from agent.table_positions import Stop, Table

#: while tables are ahead: transactions between two looks at whether the stream has passed them
AHEAD_CHECK_TRANSACTIONS = 256
_DOING = "reading a table's definition"


class TableRouter:
    """The tables of one stream."""

    def __init__(
        self, context: StreamContext, definitions: StreamDefinitions, stops: Stops, read: ReadPosition, cuts: Cuts
    ) -> None:
        self._source = context.config.name
        self._filter = context.config.filter
        self._names = context.names
        self._decoder = context.decoder
        self._table_positions = context.table_positions
        self._sink = context.sink
        self._definitions = definitions
        self._stops = stops
        self._read = read
        self._cuts = cuts
        #: of synced tables by number, as this session has told them
        self._relations: dict[int, Relation] = {}
        #: the newest plan of each table, and what it was made of
        self._shapes: dict[Table, tuple[object, TablePlan]] = {}
        #: of tables that were skipped then
        self._deferred: dict[int, Relation] = {}
        self._skipped: set[Table] = set()
        #: whose Relation message was the last one
        self._before: Table | None = None
        self._begins = 0
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()

    def _gets_rows(self, table: Table) -> bool:
        return self._table_positions.is_synced(table) and table not in self._skipped

    # --- messages

    def relation(self, body: bytes) -> None:
        """How rows look from here on."""
        relation = parse_relation(body)
        table = relation.table
        self._names.came(relation.oid, table)
        before, self._before = self._before, table
        if not self._table_positions.is_synced(table) and self._filter.veto.denies_by_name(table):
            self._definitions.denied_part_came(relation, before)
        self._relations.pop(relation.oid, None)
        if self._table_positions.is_synced(table):
            self._relations[relation.oid] = relation
        self._deferred.pop(relation.oid, None)
        owner = self._definitions.owner(relation.oid)
        if owner is not None and owner != table and self._gets_rows(owner):
            self._definitions.renamed_away(relation, owner)
        plan: TablePlan | None = None
        if self._gets_rows(table):
            definition = self._definitions.relation(relation) if self._may_come(table) else None
            plan = self._plan(relation, definition) if definition is not None else None
        elif self._table_positions.is_synced(table):
            self._deferred[relation.oid] = relation
        self._decoder.define(relation.oid, plan)

    def truncate(self, truncate: Truncate) -> None:
        for oid in truncate.oids:
            relation = self._relations.get(oid)
            if relation is not None and self._gets_rows(relation.table):
                self._definitions.truncated(relation.table)

    def _may_come(self, table: Table) -> bool:
        """False: its rows are those of a table that the filter denies under a former name, and it has stopped."""
        if not self._names.is_renamed(table) or self._filter.verdict(*table).allowed:
            return True
        self._stops.stop_here(table, self._filter.denial(self._source, *table))
        return False

    def _plan(self, relation: Relation, definition: TableDefinition) -> TablePlan | None:
        """None: the table has stopped."""
        table = relation.table
        verdict = self._filter.verdict(*table)
        hidden = [name for name in definition.key if verdict.ignores(name)]
        if hidden:
            error = self._filter.ignored_key(self._source, table, hidden[0], _DOING, TABLE_COMPLETE)
            self._stops.stop_here(table, error)
            return None
        columns = _planned(relation, definition, verdict)
        shape = tuple((one.column, one.sent, one.identity) for one in columns)
        known = self._shapes.get(table)
        if known is not None and known[0] == shape and known[1].active:  # it is often told without any change
            return known[1]
        try:
            plan = TablePlan(*table, schema_id(columns_of(definition, verdict)), columns)
        except ValueError as wrong:
            self._stops.stop_here(table, columns_unsupported(self._read.place(), table, str(wrong)))
            return None
        self._shapes[table] = (shape, plan)
        self._stops.planned(table, plan)
        return plan

    # --- tables that are not where the stream is

    def _decides_per_transaction(self) -> bool:
        return self._table_positions.any_ahead or bool(self._deferred) or self._stops.are_pending

    def choose(self) -> None:
        """A transaction begins while some tables are ahead or have pending stops: which of them get its rows?"""
        lsn = self._decoder.transaction_lsn
        self._stops.stop_pending(lsn)
        self._begins += 1
        if self._begins % AHEAD_CHECK_TRANSACTIONS == 0:
            self._read.publish()
            self.note_passed()
        self._skipped = self._table_positions.skipped(lambda position: lsn < position.lsn)
        for oid, relation in list(self._deferred.items()):
            if self._gets_rows(relation.table):
                del self._deferred[oid]
                self._decoder.define(oid, self._resumed(relation))
            elif not self._table_positions.is_synced(relation.table):
                del self._deferred[oid]
        self._decoder.stop_at_transaction_begin = self._decides_per_transaction()

    def _resumed(self, relation: Relation) -> TablePlan | None:
        if not self._may_come(relation.table):
            return None
        return self._plan(relation, self._definitions.resumed(relation))

    def note_passed(self) -> None:
        """The position was published: is somebody no longer ahead of it?"""
        if self._table_positions.passed(self._read.position):
            self._sink.tables_are(())

    # --- failures

    def failed(self, broken: DecodeError) -> TableFailed | Exception | None:
        """What a row that can't be read does to its table; None where the message belongs to no synced table."""
        relation = self._relations.get(broken.relation_oid)
        if relation is None or not self._table_positions.is_synced(relation.table):
            return None
        place = self._read.place()
        stop = Stop(relation.table, place.position, row_unreadable(place, relation.table, str(broken)))
        return self._stops.failed(stop)


def _planned(relation: Relation, definition: TableDefinition, verdict: Verdict) -> list[PlannedColumn]:
    """In the order of the message; of ignored and of generated columns the values are stepped over."""
    held = {one.name: column for one, column in zip(definition.sent, definition.columns, strict=True)}
    return [
        PlannedColumn(
            held.get(column.name) or Column(column.name, named_type(f"type {column.type_oid}")),
            column.name in held and not verdict.ignores(column.name),
            column.name in definition.identity,
        )
        for column in relation.columns
    ]
