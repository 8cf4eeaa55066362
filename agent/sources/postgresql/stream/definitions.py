"""How the synced tables look where the stream is, and what the gateway hears when that changes.

Comes in: Relation and Truncate messages, as the stream meets them, and looks at the catalog that it has passed. Goes
out: `TableEvent`s in the cut, in order with the rows, and the definition by which rows are read. Durable, in the
`definition_store`: what is known, with the cut that tells it.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace

from menura.v1 import changes_pb2

from agent.capture.cuts import Cuts
from agent.errors import TableError
from agent.filter import Verdict
from agent.sources.postgresql.failures import ignored_renamed, rows_unlogged
from agent.sources.postgresql.positions import lsn_text
from agent.sources.postgresql.read_position import ReadPosition
from agent.sources.postgresql.server.definitions import TableDefinition
from agent.sources.postgresql.stream.catalog_reader import Answer
from agent.sources.postgresql.stream.column_numbers import may_have_been_others
from agent.sources.postgresql.stream.context import StreamContext
from agent.sources.postgresql.stream.definition_changes import (
    altered,
    columns_after,
    emptied,
    is_told,
    keeps_files,
    replaced_columns,
    rewritten,
    told_by,
)
from agent.sources.postgresql.stream.definition_store import UNCERTAIN, Known
from agent.sources.postgresql.stream.looks import Look, is_named, published_alike
from agent.sources.postgresql.stream.relations import Relation
from agent.sources.postgresql.stream.stops import Stops
from agent.sources.postgresql.stream.unlogged import UnloggedRows
from agent.table_positions import Table, name_message

log = logging.getLogger("menura.wal")

_Kind = changes_pb2.TableEvent
_UNPROVEN = "columns were dropped, added or renamed one after the other, and which ones they are was seen late"
_OTHER_TABLE = "another table has its name now, with rows of its own"
_RENAMED_VETOED = "keeps back a column of it, which may have another name now"
_UNPUBLISHED = "its publication was altered, and may have left out changes of it meanwhile"


class StreamDefinitions:
    """Of one stream."""

    def __init__(self, context: StreamContext, stops: Stops, read: ReadPosition, cuts: Cuts) -> None:
        self._source = context.config.name
        self._filter = context.config.filter
        self._decoder = context.decoder
        self._store = context.store
        self._shared = context.shared
        self._catalog = context.catalog
        self._look_soon = context.look_soon
        self._stops = stops
        self._read = read
        self._cuts = cuts
        self._unlogged = UnloggedRows(context.config)
        self._known = dict(context.known)
        self._tables = {known.definition.oid: table for table, known in self._known.items() if known.definition}
        #: what was committed until here is known to be in what is known of a table
        self._covered_lsn: dict[Table, int] = {}
        #: when the catalog was asked for a table last
        self._asked_at: dict[Table, float] = {}
        #: tables whose last message had no ignored column: the publication leaves them out, whatever they are called
        self._left_out: set[Table] = set()
        self._shared.are({table: known.definition for table, known in self._known.items()})

    @property
    def oids(self) -> tuple[int, ...]:
        """Of the tables that are known to be there."""
        return tuple(self._tables)

    def begin(self, lost: Iterable[tuple[Table, str]]) -> None:
        """In the first cut: what is known is durable with it; tables of which it was lost are to be read again."""
        for table, known in self._known.items():
            self._store.put(table, known, self._cuts.number)
        for table, why in lost:
            self._rows_unlogged(table, why)

    def save(self) -> None:
        """Before the end of a cut is sent."""
        self._store.save()

    def owner(self, oid: int) -> Table | None:
        """The synced table that had this number when it was told last."""
        return self._tables.get(oid)

    # --- messages

    def relation(self, relation: Relation) -> TableDefinition | None:
        """How rows are read from here on; None: the table has stopped. May raise `TableFailed`.

        The table is synced, and gets the rows of this transaction.
        """
        table, lsn, verdict = relation.table, self._decoder.transaction_lsn, self._filter.verdict(*relation.table)
        known = self._known.get(table, Known(None))
        before = known.definition
        were_left_out = table in self._left_out
        self._note_left_out(relation, verdict)
        if lsn < known.since_lsn:
            return self._adopt(relation)
        if before is None or before.oid != relation.oid:
            return self._replaced(relation, known)
        if is_told(relation, before, verdict) and lsn <= self._covered_lsn.get(table, 0):
            return before
        answer = self._ask(table, relation.oid)
        told = told_by(relation, before, answer.definition, verdict)
        is_same = answer.definition is not None and keeps_files(before, answer.definition)
        change = altered(before, told.definition, verdict, has_same_files=is_same)
        if told.is_now and told.definition == before:
            self._covered_lsn[table] = answer.before_lsn
            return before
        revealed = change.revealed if change is not None else ()
        if revealed or (told.revealed and not were_left_out):
            self._stop_revealed(table, dict.fromkeys([*revealed, *told.revealed]))
            return None
        reason = change.why if change is not None else ""
        if reason and not self._may_go_on(table, reason):
            return None
        if change is not None:
            self._tell(table, _Kind.ALTERED, columns=change.columns, why=reason)
        is_unproven = known.is_unproven or told.is_unfollowed
        is_unproven = is_unproven or (told.is_now and may_have_been_others(before, told.definition))
        is_retyped = known.is_retyped or (change is not None and change.is_retyped)
        self._look_soon()
        self._is(table, replace(known, definition=told.definition, is_unproven=is_unproven, is_retyped=is_retyped))
        return told.definition

    def _note_left_out(self, relation: Relation, verdict: Verdict) -> None:
        if any(verdict.ignores(column.name) for column in relation.columns):
            self._left_out.discard(relation.table)
        else:
            self._left_out.add(relation.table)

    def resumed(self, relation: Relation) -> TableDefinition:
        """How rows of a table are read that has had the transactions up to here, when its last message was older.

        Had the table changed since that message, another one would come before its next row.
        """
        known, verdict = self._known.get(relation.table, Known(None)), self._filter.verdict(*relation.table)
        before = known.definition
        if before is not None and is_told(relation, before, verdict):
            return before
        if known.since_lsn > self._decoder.transaction_lsn:
            return self._adopt(relation)
        of_it = before if before is not None and before.oid == relation.oid else None
        return told_by(relation, of_it, self._ask(relation.table, relation.oid).definition, verdict).definition

    def _adopt(self, relation: Relation) -> TableDefinition:
        """The first that is heard of the table, older than what is known: the lake has no row of before."""
        answer = self._ask(relation.table, relation.oid)
        told = told_by(relation, None, answer.definition, self._filter.verdict(*relation.table))
        definition = told.definition if told.is_now else emptied(told.definition)
        known = self._known[relation.table]
        self._is(relation.table, replace(known, definition=definition, since_lsn=0))
        return definition

    def denied_part_came(self, relation: Relation, before: Table | None) -> None:
        """The log has rows of a table that the host's policy denies: they are those of the table that it is a part of.

        `before`: whose message came before this one. Of a part the server sends the whole table's right before; that
        counts where the catalog has no such part any more.
        """
        of_it = self._catalog.above(relation.oid)
        known = self._known.get(before, Known(None)).definition if before is not None else None
        if not of_it and before is not None and known is not None and known.kind == "p":
            of_it = [before]
        for table in of_it:
            self._filter.veto.part_came(table, relation.table)
            if self._stops.may_stop(table):
                self._stops.stop_here(table, self._filter.veto.denial(table))

    def renamed_away(self, relation: Relation, table: Table) -> None:
        """Rows of a synced table come under another name now."""
        known = self._known[table]
        assert known.definition is not None
        if self._decoder.transaction_lsn < known.since_lsn:
            return
        self._gone(table, known, relation.table)

    def truncated(self, table: Table) -> None:
        known = self._known.get(table, Known(None))
        self._tell(table, _Kind.TRUNCATED, removes_rows=True)
        if known.definition is not None:
            self._is(table, replace(known, definition=emptied(known.definition)))

    # --- looks

    def look(self, look: Look, tables: Collection[Table]) -> None:
        """A look that the stream has passed, at these tables; the decoder stands between two transactions."""
        for table in tables:
            known = self._known.get(table)
            if known is None or self._asked_at.get(table, 0.0) >= look.began_at:
                continue
            if not self._filter.verdict(*table).allowed:  # a finding, or the host's policy, denies it since it began
                self._read.publish()
                self._stops.stop_here(table, self._filter.denial(self._source, *table))
                continue
            if table in look.denied:  # and lets it go on by now: the next look shows it
                continue
            if table in look.errors:
                self._read.publish()
                self._stops.stop_here(table, look.errors[table])
                continue
            self._compare(table, known, look)

    def _compare(self, table: Table, known: Known, look: Look) -> None:
        before, now = known.definition, look.definitions.get(table)
        if before is not None and (now is None or now.oid != before.oid):
            later = look.by_oid.get(before.oid)
            self._gone(table, known, later.table if later is not None else None)
            before = None
        if now is None or table in look.unsettled:
            return
        published = look.published.get(table, "")
        if before is None:
            if self._may_go_on(table, _OTHER_TABLE):
                columns = columns_after(now, self._filter.verdict(*table))
                self._tell(table, _Kind.CREATED, columns=columns, removes_rows=True, why=_OTHER_TABLE)
                self._is(table, Known(now, published=published))
            return
        change = altered(before, now, self._filter.verdict(*table), has_same_files=keeps_files(before, now))
        if change is not None and change.revealed:
            self._stop_revealed(table, change.revealed)
            return
        is_retyped = known.is_retyped or (change is not None and change.is_retyped)
        why = [
            change.why if change is not None else "",
            replaced_columns(before, now),
            rewritten(before, now, is_retyped=is_retyped, born=look.born, may_be_unlogged=not is_named(published)),
            _UNPROVEN if known.is_unproven else "",
            "" if not known.published or published_alike(known.published, published) else _UNPUBLISHED,
        ]
        reason = "; ".join(filter(None, why))
        if reason and not self._may_go_on(table, reason):
            return
        if change is not None:
            self._tell(table, _Kind.ALTERED, columns=change.columns, why=reason)
        elif reason:
            self._rows_unlogged(table, reason)
        self._covered_lsn[table] = look.before_lsn
        self._is(table, Known(now, published=published))

    # ---

    def _replaced(self, relation: Relation, known: Known) -> TableDefinition | None:
        """Another table has the name: its earlier rows are not in the log under it."""
        table = relation.table
        answer = self._ask(table, relation.oid)
        verdict = self._filter.verdict(*table)
        definition = told_by(relation, None, answer.definition, verdict).definition
        if not self._may_go_on(table, _OTHER_TABLE):
            return None
        columns = columns_after(definition, verdict)
        self._tell(table, _Kind.CREATED, columns=columns, removes_rows=True, why=_OTHER_TABLE)
        published = UNCERTAIN if is_named(known.published) or not known.published else known.published
        self._is(table, Known(definition, published=published))
        self._look_soon()
        return definition

    def _stop_revealed(self, table: Table, columns: Iterable[str]) -> None:
        """Where the host's policy may keep them back, no gateway hears how they are called now."""
        self._read.publish()
        error: TableError = ignored_renamed(self._read.place(), table, ", ".join(columns))
        if self._filter.verdict(*table).vetoed:
            error = self._filter.veto.denial(table, _RENAMED_VETOED)
        self._stops.stop_here(table, error)

    def _gone(self, table: Table, known: Known, new_name: Table | None) -> None:
        is_renamed = new_name is not None and new_name != table
        event = self._event(table, _Kind.RENAMED if is_renamed else _Kind.DROPPED)
        event.removes_rows = True
        if new_name is not None and is_renamed and self._filter.verdict(*new_name).allowed:
            event.new_name.CopyFrom(name_message(new_name))
        self._add(event)
        self._is(table, Known(None, published=known.published))
        self._look_soon()

    def _ask(self, table: Table, oid: int) -> Answer:
        answer = self._catalog.ask(oid)
        self._asked_at[table] = answer.asked_at
        return answer

    def _is(self, table: Table, known: Known) -> None:
        before = self._known.get(table)
        if known == before:
            return
        if before is not None and before.definition is not None:
            self._tables.pop(before.definition.oid, None)
        if known.definition is not None:
            self._tables[known.definition.oid] = table
        self._known[table] = known
        self._store.put(table, known, self._cuts.number)
        self._shared.tell(table, known.definition)

    def _may_go_on(self, table: Table, why: str) -> bool:
        """False: by the table's policy it has stopped. May raise `TableFailed`."""
        if not self._unlogged.stops(table):
            return True
        self._read.publish()
        self._stops.stop_here(table, rows_unlogged(self._read.place(), table, why))
        return False

    def _rows_unlogged(self, table: Table, why: str) -> None:
        self._tell(table, _Kind.ROWS_UNLOGGED, why=why)

    def _tell(
        self,
        table: Table,
        kind: changes_pb2.TableEvent.Kind,
        *,
        columns: Collection[changes_pb2.ColumnAfter] = (),
        removes_rows: bool = False,
        why: str = "",
    ) -> None:
        event = self._event(table, kind)
        event.removes_rows = removes_rows
        event.columns.extend(columns)
        if why:
            self._unlogged.mark(event, why)
        self._add(event)

    def _event(self, table: Table, kind: changes_pb2.TableEvent.Kind) -> changes_pb2.TableEvent:
        decoder = self._decoder
        is_open = decoder.in_transaction
        lsn = decoder.transaction_lsn if is_open else self._read.finished_lsn
        return changes_pb2.TableEvent(
            table=name_message(table),
            kind=kind,
            transaction_id=decoder.next_transaction_id if is_open else 0,
            commit_timestamp_us=decoder.commit_timestamp_us,
            position=lsn_text(lsn),
        )

    def _add(self, event: changes_pb2.TableEvent) -> None:
        event.gsn = self._decoder.take_gsn()
        self._cuts.add_event(event)
        fields = {
            "source": self._source,
            "table": f"{event.table.database}.{event.table.table}",
            "event": _Kind.Kind.Name(event.kind),
        }
        log.info("table event", extra={"fields": fields})
