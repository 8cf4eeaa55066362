"""Statements that change definitions: what becomes of the synced tables, and what the gateway hears of it.

Comes in: QUERY events that are DDL, as the stream meets them. Goes out: `TableEvent`s in the cut, in order with the
rows; where rows came, went or were converted without row events, the event says so (`unlogged`). What is durable of it
is the history's.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from menura.v1 import changes_pb2

from agent.capture.cuts import Cuts
from agent.filter import Verdict
from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.converted import converted
from agent.sources.mysql.ddl.derived import unsent, with_derived
from agent.sources.mysql.ddl.model import (
    AddedColumn,
    Applied,
    Catalog,
    Change,
    ChangeKind,
    ColumnDefinition,
    Default,
    EarlierRows,
    Rows,
    Statement,
    Table,
    TableDefinition,
)
from agent.sources.mysql.ddl.online_change import is_put_aside, is_swap
from agent.sources.mysql.ddl.sql_modes import Session
from agent.sources.mysql.ddl.statements import Kind, StatementSummary
from agent.sources.mysql.failures import ignored_renamed
from agent.sources.mysql.read_position import ReadPosition
from agent.sources.mysql.schema.log_scan import Transaction, current_transaction
from agent.sources.mysql.schema.table_planner import TablePlanner
from agent.sources.mysql.schema.versions import Gone, Version
from agent.sources.mysql.stream.context import StreamContext
from agent.sources.mysql.stream.definition_gaps import DefinitionGaps
from agent.sources.mysql.stream.foreign_keys import FollowedKeys
from agent.sources.mysql.stream.table_events import columns_after, new_name, statement_about
from agent.sources.mysql.stream.table_router import TableRouter
from agent.sources.mysql.stream.unlogged import UnloggedRows, converted_columns, unlogged_by
from agent.table_positions import name_message

log = logging.getLogger("menura.binlog")

_KINDS = {
    ChangeKind.CREATED: changes_pb2.TableEvent.CREATED,
    ChangeKind.ALTERED: changes_pb2.TableEvent.ALTERED,
    ChangeKind.RENAMED: changes_pb2.TableEvent.RENAMED,
    ChangeKind.DROPPED: changes_pb2.TableEvent.DROPPED,
    ChangeKind.TRUNCATED: changes_pb2.TableEvent.TRUNCATED,
}
#: of an ALTER that gives a column another name, or another definition
_REVEALING_WORDS = frozenset({"CHANGE", "RENAME", "MODIFY", "DEFAULT"})
_REMOVING = frozenset({ChangeKind.RENAMED, ChangeKind.DROPPED, ChangeKind.TRUNCATED})


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement and what it does."""

    statement: Statement
    words: StatementSummary
    transaction: Transaction
    applied: Applied


class SchemaChanges:
    """Of one stream."""

    def __init__(
        self,
        context: StreamContext,
        planner: TablePlanner,
        router: TableRouter,
        unlogged: UnloggedRows,
        gaps: DefinitionGaps,
        keys: FollowedKeys,
        read: ReadPosition,
        cuts: Cuts,
    ) -> None:
        self._source = context.config.name
        self._filter = context.config.filter
        self._server = context.definitions.server
        self._decoder = context.decoder
        self._definitions = context.definitions
        self._planner = planner
        self._router = router
        self._unlogged = unlogged
        self._gaps = gaps
        self._keys = keys
        self._read = read
        self._cuts = cuts

    def statement(self, statement: Statement, summary: StatementSummary) -> None:
        """A DDL statement; the decoder stands in its transaction."""
        if summary.first.startswith("TRUNCATE"):
            self._empty_united(statement, summary)
        live = self._follow_names(statement, summary)
        if not self._may_concern(summary, live):
            return
        self._read.publish()
        transaction = current_transaction(self._decoder, self._read)
        self._learn_what_is_kept_back(summary, live)
        before = {table: self._definitions.of(table) for table in live}
        applied = self._definitions.apply(statement, transaction, live)
        made = _Statement(statement, summary, transaction, applied)
        self._keys.end_cut(self._unlogged, transaction.name)
        self._keys_changed(summary, transaction, live)
        for table in live:
            if summary.mentions(*table):  # a new MERGE table may hold it
                self._planner.definition_changed(table)
            changes = [change for change in applied.changes if change.table == table]
            if any(unsure.table == table for unsure in applied.unsure):
                changes.append(_unsure(summary, table, changes))
            if changes:
                self._changed(made, table, changes, before[table])
        self._gaps.close_known()
        self._router.forget()

    def _follow_names(self, statement: Statement, summary: StatementSummary) -> list[Table]:
        """The tables that go on; those stop that got rows, by their name, which the filter keeps back."""
        names = self._definitions.renames.names_of(statement, summary, self._server)
        if names is not None:
            self._read.publish()
            transaction = current_transaction(self._decoder, self._read)
            self._definitions.renames.came(names, transaction, self._read.position)
        live = self._router.live_tables()
        denied = [table for table in live if names is not None and not self._filter.verdict(*table).allowed]
        for table in denied:
            self._planner.definition_changed(table)
            self._router.stop_here(table, self._filter.denial(self._source, *table))
        return [table for table in live if table not in denied]

    def _note_dropped(self, table: Table, before: Version) -> None:
        """Ignored columns that are gone: at the next start nobody has misspelt them."""
        verdict = self._filter.verdict(*table)
        ignored = verdict.ignored_columns | verdict.vetoed.ignored
        after = self._definitions.of(table)
        if ignored and isinstance(before, TableDefinition) and isinstance(after, TableDefinition):
            gone = _lowered(before) - _lowered(after)
            self._definitions.renames.columns_dropped(table, ignored & gone)

    def _learn_what_is_kept_back(self, summary: StatementSummary, live: Collection[Table]) -> None:
        """What was computed from an ignored column before the statement has to be known to see whether it shows it."""
        for table in live:
            if summary.mentions(*table) and self._filter.verdict(*table).keeps_columns:
                self._definitions.learn_before(table, self._read.position)

    def _keys_changed(self, summary: StatementSummary, transaction: Transaction, live: Collection[Table]) -> None:
        """The statement may have changed foreign keys of tables, or those to them."""
        named = {table for table in live if summary.mentions(*table)}
        children = {child for table in named for child in self._keys.children_of(table)}
        for table in sorted(named | (children & set(live))):
            if self._keys.changed_by(table, summary, transaction.name) and table in named:
                why = f"{summary.first} changed foreign keys whose actions on earlier rows are not known"
                self._unlogged.changed([table], why, transaction.name)
        if self._keys.may_be_others(summary):
            self._router.forget()

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

    def _empty_united(self, statement: Statement, summary: StatementSummary) -> None:
        """TRUNCATE of a MERGE table empties the tables that hold its rows."""
        live = self._router.live_tables()
        changes = apply(Catalog({}, {}), statement, self._server).changes if live else ()
        united = self._planner.united_in(change.table for change in changes)
        emptied = [table for table in live if (table[0].lower(), table[1].lower()) in united]
        if emptied:
            self._read.publish()
            transaction = current_transaction(self._decoder, self._read)
            self._unlogged.changed(emptied, f"{summary.first} of a MERGE table emptied it", transaction.name)

    def _may_concern(self, summary: StatementSummary, live: Collection[Table]) -> bool:
        if summary.is_about_database() or any(summary.mentions(*table) for table in live):
            return True
        names = ((database or summary.default_database, name) for database, name in summary.names)
        owners = {self._definitions.owner(name) for name in names}
        return not owners.isdisjoint(live)

    def _changed(self, made: _Statement, table: Table, changes: list[Change], before: Version) -> None:
        self._planner.definition_changed(table)
        log.info("definition changed", extra={"fields": {"source": self._source, "table": ".".join(table)}})
        if self._may_reveal(made, table, changes, before):
            self._router.stop_here(table, ignored_renamed(self._read.place(), table, made.words.first))
            return
        self._note_dropped(table, before)
        looked = before
        if isinstance(before, Gone) and before.put_aside:
            looked = self._definitions.of((table[0], before.put_aside))
        was = unsent(self._filter, table, looked if isinstance(looked, TableDefinition) else None)
        renamed = {old.lower(): new for new, old in self._renamed(made, table, changes).items()}
        if not any(self._is_put_aside(change) for change in changes):
            after = self._definitions.of(table)
            self._definitions.unlogged_columns.defined(table, after, renamed, self._read.position)
        swap = self._swap(made, table, changes, before, was)
        if swap is not None:
            events, why = [swap[0]], swap[1]
        else:
            why = self._why_stale(made.words.first, table, changes, was)
            events = [self._event(made, change, before, was) for change in changes]
        if why and self._unlogged.stops(table, why):
            return
        if why:
            self._unlogged.mark(events[-1], why)
        for event in events:
            self._add(event)

    def _renamed(self, made: _Statement, table: Table, changes: Collection[Change]) -> dict[str, str]:
        """Columns with another name now: the new one, in lower case, to the old one; of a copy that comes too."""
        renamed = {new.lower(): old for change in changes for old, new in change.renamed_columns}
        for ghost in [change.table for change in made.applied.changes if change.new_table == table]:
            renamed |= {new.lower(): old for new, old in self._definitions.renames_of(ghost).items()}
        return renamed

    def _why_stale(self, verb: str, table: Table, changes: Collection[Change], was: Verdict) -> str:
        """Why the lake's rows from before may be others than the source's; empty where none may be."""
        after = self._definitions.of(table)
        if not isinstance(after, TableDefinition):
            return unlogged_by(verb, changes, self._filter.verdict(*table))
        verdict = unsent(self._filter, table, after)
        converted = {name for change in changes for name, _ in change.converted}
        shown = [
            _not_sent_before(column)
            for change in changes
            if change.kind is ChangeKind.ALTERED and change.before is not None
            for column in _shown_anew(after, verdict, was, dict(change.renamed_columns), change.added_columns)
            if column.name not in converted
        ]
        return "; ".join(filter(None, (unlogged_by(verb, changes, verdict), *shown)))

    def _event(self, made: _Statement, change: Change, before: Version, was: Verdict) -> changes_pb2.TableEvent:
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
            verdict = unsent(self._filter, change.table, after)
            is_there = change.kind is ChangeKind.ALTERED and change.before is not None
            renames = dict(change.renamed_columns)
            shown = list(_shown_anew(after, verdict, was, renames, change.added_columns)) if is_there else []
            anew = {column.name for column in shown}
            renamed = {new: old for old, new in renames.items() if new not in anew}
            event.columns.extend(columns_after(after, verdict, (*change.added_columns, *shown), renamed))
        return event

    def _named(self, made: _Statement, change: Change) -> changes_pb2.TableEvent:
        return changes_pb2.TableEvent(
            table=name_message(change.table),
            transaction_id=self._decoder.next_transaction_id,
            commit_timestamp_us=self._decoder.commit_timestamp_us,
            position=made.transaction.name,
            statement=statement_about(change, made.statement, self._server, self._filter),
        )

    def _add(self, event: changes_pb2.TableEvent) -> None:
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
        self, made: _Statement, table: Table, changes: list[Change], before: Version, was: Verdict
    ) -> tuple[changes_pb2.TableEvent, str] | None:
        """The table's changed copy takes its place, and why rows from before may be stale; None: it does not.

        The tool fills the copy by statements about another table, which may convert values.
        """
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
        event.kind = changes_pb2.TableEvent.SWAPPED
        after = self._definitions.of(table)
        renames = self._definitions.renames_of(ghost)
        if not isinstance(before, TableDefinition) or not isinstance(after, TableDefinition):
            return event, "how the copy that took its place differs is not known"
        added = _added(before, after, renames)
        verdict = unsent(self._filter, table, after)
        shown = list(_shown_anew(after, verdict, was, {old: new for new, old in renames.items()}))
        anew = {column.name for column in shown}
        told = {new: old for new, old in renames.items() if new not in anew}
        event.columns.extend(columns_after(after, verdict, (*added, *shown), told))
        old_names = {new.lower(): old for new, old in renames.items()}
        found = converted(before, after, old_names, added, Session(self._server.mariadb))
        why = converted_columns([pair for pair in found if pair[0] not in anew], verdict)
        return event, "; ".join([*why, *map(_not_sent_before, shown)])

    def _may_reveal(self, made: _Statement, table: Table, changes: list[Change], before: Version) -> bool:
        """Whether values that the filter kept back may be under a name now that it lets through.

        That is an ignored column with another name, and one that was computed from it and is not any more: its rows
        keep the values.
        """
        verdict = self._filter.verdict(*table)
        if not verdict.keeps_columns:
            return False
        after = self._definitions.of(table)
        ghosts = [change.table for change in made.applied.changes if change.new_table == table]
        renamed = {new.lower(): old for change in changes for old, new in change.renamed_columns}
        for ghost in ghosts:
            renamed |= {new.lower(): old for new, old in self._definitions.renames_of(ghost).items()}
        if any(verdict.ignores(old) and not verdict.ignores(new) for new, old in renamed.items()):
            return True
        was = with_derived(verdict, before if isinstance(before, TableDefinition) else None)
        if any(change.kind is ChangeKind.CREATED and not change.rows for change in changes):
            return False
        if isinstance(after, TableDefinition) and isinstance(before, TableDefinition):
            added = {column.name.lower() for change in changes for column in change.added_columns}
            shown = with_derived(verdict, after)
            # what is generated still is computed anew
            plain = (column for column in after.columns if not column.generated and not shown.ignores(column.name))
            names = (column.name.lower() for column in plain)
            return any(was.ignores(renamed.get(name, name)) for name in names if name not in added)
        names_said = {name.upper() for _, name in made.words.names}
        if not names_said & _REVEALING_WORDS or not any(unsure.table == table for unsure in made.applied.unsure):
            return False
        return not isinstance(before, TableDefinition) or any(was.ignores(name) for name in names_said)


def _unsure(summary: StatementSummary, table: Table, changes: Collection[Change]) -> Change:
    """What stands for a change of the table that can't be told: only a plain CREATE is known to bring no rows."""
    is_gone = any(change.kind in (ChangeKind.RENAMED, ChangeKind.DROPPED) for change in changes)
    is_created = is_gone or summary.first.startswith("CREATE")
    is_empty = summary.first.startswith("CREATE") and summary.kind is Kind.DEFINITION
    rows = Rows.KEPT if is_empty else Rows.ARRIVED
    return Change(ChangeKind.CREATED if is_created else ChangeKind.ALTERED, table, rows=rows)


def _lowered(definition: TableDefinition) -> frozenset[str]:
    return frozenset(column.name.lower() for column in definition.columns)


def _shown_anew(
    after: TableDefinition,
    verdict: Verdict,
    was: Verdict,
    renamed: Mapping[str, str],
    added: Collection[AddedColumn] = (),
) -> Iterator[AddedColumn]:
    """Columns that are sent from here on and were not: the lake has them in no row from before.

    `renamed`: old to new name. One that is added under the name of one that was not sent is another column.
    """
    old_names = {new.lower(): old for old, new in renamed.items()}
    added_names = {column.name.lower() for column in added}
    for column in after.columns:
        if column.name.lower() in added_names:
            continue
        if was.ignores(old_names.get(column.name.lower(), column.name)) and not verdict.ignores(column.name):
            yield AddedColumn(column.name, EarlierRows.UNKNOWN)


def _not_sent_before(column: AddedColumn) -> str:
    return f"column {column.name}: its values from before were not sent"


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
