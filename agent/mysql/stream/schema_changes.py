"""Statements that change definitions: what becomes of the synced tables, and what the gateway hears of it.

Comes in: QUERY events that are DDL, as the stream meets them. Goes out: `TableEvent`s in the cut, in order with the
rows; tables stop where rows came or went without row events. What is durable of it is the history's.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from menura.v1 import mysql_binlog_pb2

from agent.config import SourceConfig
from agent.errors import TableError
from agent.mysql.ddl.apply import apply
from agent.mysql.ddl.model import (
    AddedColumn,
    Applied,
    Catalog,
    Change,
    ChangeKind,
    ColumnDefinition,
    Default,
    EarlierRows,
    Rows,
    Server,
    Statement,
    Table,
    TableDefinition,
)
from agent.mysql.ddl.statements import Kind, Words
from agent.mysql.failures import ignored_renamed, rows_removed
from agent.mysql.progress import name_message
from agent.mysql.read_position import ReadPosition
from agent.mysql.schema.definitions import Definitions
from agent.mysql.schema.log_scan import Transaction, current_transaction
from agent.mysql.schema.online_change import is_put_aside, is_swap
from agent.mysql.schema.table_planner import TablePlanner
from agent.mysql.schema.versions import Gone, Version
from agent.mysql.stream.cuts import Cuts
from agent.mysql.stream.delivery import Delivery
from agent.mysql.stream.table_events import columns_after, new_name, statement_about
from agent.native.decoder import BinlogDecoder

log = logging.getLogger("menura.binlog")

_KINDS = {
    ChangeKind.CREATED: mysql_binlog_pb2.TableEvent.CREATED,
    ChangeKind.ALTERED: mysql_binlog_pb2.TableEvent.ALTERED,
    ChangeKind.RENAMED: mysql_binlog_pb2.TableEvent.RENAMED,
    ChangeKind.DROPPED: mysql_binlog_pb2.TableEvent.DROPPED,
    ChangeKind.TRUNCATED: mysql_binlog_pb2.TableEvent.TRUNCATED,
}
_RENAMING_WORDS = frozenset({"CHANGE", "RENAME"})
_REMOVING = frozenset({ChangeKind.RENAMED, ChangeKind.DROPPED, ChangeKind.TRUNCATED})


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement and what it does."""

    statement: Statement
    words: Words
    transaction: Transaction
    applied: Applied


class SchemaChanges:
    """Of one stream."""

    def __init__(
        self,
        config: SourceConfig,
        server: Server,
        decoder: BinlogDecoder,
        definitions: Definitions,
        planner: TablePlanner,
        delivery: Delivery,
        read: ReadPosition,
        cuts: Cuts,
    ) -> None:
        self._source = config.name
        self._filter = config.filter
        self._server = server
        self._decoder = decoder
        self._definitions = definitions
        self._planner = planner
        self._delivery = delivery
        self._read = read
        self._cuts = cuts

    def statement(self, statement: Statement, words: Words) -> None:
        """A DDL statement; the decoder stands in its transaction."""
        if words.first.startswith("TRUNCATE"):
            self._empty_united(statement, words)
        live = self._delivery.live_tables()
        if not self._may_concern(words, live):
            return
        self._read.publish()
        transaction = current_transaction(self._decoder, self._read)
        before = {table: self._definitions.of(table) for table in live}
        applied = self._definitions.apply(statement, transaction, live)
        made = _Statement(statement, words, transaction, applied)
        for table in live:
            if words.mentions(*table):  # a new MERGE table may hold it
                self._planner.definition_changed(table)
            changes = [change for change in applied.changes if change.table == table]
            is_unsure = any(unsure.table == table for unsure in applied.unsure)
            if changes or is_unsure:
                self._changed(made, table, changes, before[table])
        self._delivery.forget()

    def settle(self) -> None:
        """The statement's transaction may be over: then its effect becomes durable."""
        if not self._definitions.has_changed:
            return
        if self._decoder.in_transaction:
            self._decoder.stop_at_transaction_end = True
        else:
            self._read.publish()
            self._definitions.settled(self._read.position)

    # ---

    def _empty_united(self, statement: Statement, words: Words) -> None:
        """TRUNCATE of a MERGE table empties the tables that hold its rows."""
        live = self._delivery.live_tables()
        changes = apply(Catalog({}, {}), statement, self._server).changes if live else ()
        united = self._planner.united_in(change.table for change in changes)
        for table in live:
            if (table[0].lower(), table[1].lower()) in united:
                self._delivery.stop_here(table, rows_removed(self._read.place(), table, words.first))

    def _may_concern(self, words: Words, live: Collection[Table]) -> bool:
        if words.is_about_database() or any(words.mentions(*table) for table in live):
            return True
        names = ((database or words.default_database, name) for database, name in words.names)
        owners = {self._definitions.owner(name) for name in names}
        return not owners.isdisjoint(live)

    def _changed(self, made: _Statement, table: Table, changes: list[Change], before: Version) -> None:
        self._planner.definition_changed(table)
        log.info("definition changed", extra={"fields": {"source": self._source, "table": ".".join(table)}})
        if self._may_reveal(made, table, changes):
            self._delivery.stop_here(table, ignored_renamed(self._read.place(), table, made.words.first))
            return
        if _moves_rows(made, table, changes):
            swap = self._swap(made, table, changes, before)
            if swap is None:
                self._delivery.stop_here(table, rows_removed(self._read.place(), table, made.words.first))
            else:
                self._add(swap)
            return
        if not changes:  # nobody knows how it looks now
            created = made.words.first.startswith("CREATE")
            changes = [Change(ChangeKind.CREATED if created else ChangeKind.ALTERED, table)]
        events = [self._event(made, change, before) for change in changes]
        try:
            self._planner.check_names(table, [column.name for event in events for column in event.columns])
        except TableError as error:
            self._delivery.stop_here(table, error)
            return
        for event in events:
            self._add(event)

    def _event(self, made: _Statement, change: Change, before: Version) -> mysql_binlog_pb2.TableEvent:
        event = self._named(made, change)
        event.kind = _KINDS[change.kind]
        event.removes_rows = bool(change.rows & Rows.REMOVED) or change.kind in _REMOVING
        if change.kind is ChangeKind.RENAMED:
            if self._is_put_aside(change):
                self._definitions.put_aside(change.table, change.new_table[1] if change.new_table else "")
                event.removes_rows = False
            told = new_name(change.new_table, self._filter)
            if told is not None:
                event.new_name.CopyFrom(told)
        elif change.kind is ChangeKind.CREATED and isinstance(before, Gone) and before.put_aside:
            event.removes_rows = True  # the copy that was awaited is not what came
        after = self._definitions.of(change.table)
        if isinstance(after, TableDefinition) and change.kind in (ChangeKind.CREATED, ChangeKind.ALTERED):
            verdict = self._filter.verdict(*change.table)
            renamed = {new: old for old, new in change.renamed_columns}
            event.columns.extend(columns_after(after, verdict, change.added_columns, renamed))
        return event

    def _named(self, made: _Statement, change: Change) -> mysql_binlog_pb2.TableEvent:
        return mysql_binlog_pb2.TableEvent(
            table=name_message(change.table),
            transaction_id=self._decoder.next_transaction_id,
            commit_timestamp_us=self._decoder.commit_timestamp_us,
            position=made.transaction.name,
            statement=statement_about(change, made.statement, self._server, self._filter),
        )

    def _add(self, event: mysql_binlog_pb2.TableEvent) -> None:
        event.gsn = self._decoder.take_gsn()
        self._cuts.add_event(event)

    # --- online schema changes

    def _is_put_aside(self, change: Change) -> bool:
        """gh-ost's swap in two statements: the first of them, while its copy is there."""
        database, table = change.table
        if change.new_table is None or change.new_table[0] != database or not is_put_aside(table, change.new_table[1]):
            return False
        return self._definitions.has_ghost(change.table)

    def _swap(
        self, made: _Statement, table: Table, changes: list[Change], before: Version
    ) -> mysql_binlog_pb2.TableEvent | None:
        """The table's changed copy takes its place; None: that is not what the statement does."""
        database, name = table
        ghost = next((change.table for change in made.applied.changes if change.new_table == table), None)
        aside = next((change.new_table for change in changes if change.new_table is not None), None)
        if aside is None and isinstance(before, Gone) and before.put_aside:
            aside = (database, before.put_aside)
            before = self._definitions.of(aside)
        if ghost is None or aside is None or {ghost[0], aside[0]} != {database}:
            return None
        if not is_swap(name, aside[1], ghost[1]):
            return None
        event = self._named(made, Change(ChangeKind.ALTERED, table))
        event.statement = f"RENAME TABLE `{name}` TO `{aside[1]}`, `{ghost[1]}` TO `{name}`"
        event.kind = mysql_binlog_pb2.TableEvent.SWAPPED
        after = self._definitions.of(table)
        renames = self._definitions.renames_of(ghost)
        if isinstance(before, TableDefinition) and isinstance(after, TableDefinition):
            added = _added(before, after, renames)
            event.columns.extend(columns_after(after, self._filter.verdict(*table), added, renames))
        return event

    def _may_reveal(self, made: _Statement, table: Table, changes: list[Change]) -> bool:
        """Whether a column that the filter ignores may have a name now that it lets through."""
        verdict = self._filter.verdict(*table)
        if not verdict.ignored_columns:
            return False
        renamed = [pair for change in changes for pair in change.renamed_columns]
        ghosts = [change.table for change in made.applied.changes if change.new_table == table]
        renamed += [(old, new) for ghost in ghosts for new, old in self._definitions.renames_of(ghost).items()]
        if any(verdict.ignores(old) and not verdict.ignores(new) for old, new in renamed):
            return True
        names = {name.upper() for _, name in made.words.names}
        is_unsure = any(unsure.table == table for unsure in made.applied.unsure)
        return is_unsure and bool(names & _RENAMING_WORDS) and any(verdict.ignores(name) for name in names)


def _moves_rows(made: _Statement, table: Table, changes: list[Change]) -> bool:
    """Whether rows of the table come or go that can't be followed."""
    if any(change.rows & (Rows.ARRIVED | Rows.PARTLY_REMOVED) for change in changes):
        return True
    if any(change.new_table == table for change in made.applied.changes):
        return True
    return not changes and made.words.kind is Kind.ROWS_REMOVED


def _added(before: TableDefinition, after: TableDefinition, renames: Mapping[str, str]) -> list[AddedColumn]:
    """Columns of a copy that its table lacks: the tool fills the copy without naming them."""
    there = {column.name.lower() for column in before.columns}
    return [
        _by_default(column)
        for column in after.columns
        if column.name.lower() not in there and column.name not in renames and not column.generated
    ]


def _by_default(column: ColumnDefinition) -> AddedColumn:
    if column.default is Default.NULL:
        return AddedColumn(column.name, EarlierRows.NULL)
    if column.default is Default.LITERAL:
        return AddedColumn(column.name, EarlierRows.TEXT, column.default_text)
    return AddedColumn(column.name, EarlierRows.UNKNOWN)
