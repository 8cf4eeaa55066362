"""What the synced tables look like where the stream stands.

Comes in: what the history knows where the stream begins, statements as they go by, and what table maps say that
describe themselves. Goes out: a table's definition at this moment, or why it is not known, and the statements' changes.

::

    known        from the history, a statement (`ddl.apply`), a table map, or learned
    learned      information_schema says how the table looks at a later position, under a lock that keeps DDL out; the
                 log from here up to there is looked through for statements about it. None: it looks like that now.
                 Else it looks like that after the last of them; before the first it is not there if that makes it,
                 as before it began anew if that stands the test (`earlier_definitions`), and otherwise not known
    not known    rows of the table can be read only if their table map describes itself

A table that is ahead of the stream has its definition at its own position, which statements before that don't change.
Durable: what `history` keeps; it is written before the cut that it belongs to is sent.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from agent.errors import PositionInvalid, PositionPurged, SourceRebuilt
from agent.filter import Filter
from agent.positions import least
from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.derived import lacks_expressions, may_be_generated
from agent.sources.mysql.ddl.model import Applied, Catalog, ChangeKind, Server, Statement, Table, TableDefinition
from agent.sources.mysql.ddl.online_change import is_ghost
from agent.sources.mysql.ddl.statements import StatementSummary
from agent.sources.mysql.ddl.statements import read as read_statement
from agent.sources.mysql.ddl.undo import undo
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.earlier_definitions import EarlierDefinitions
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.log_scan import Logged, Transaction
from agent.sources.mysql.schema.renames import Renames
from agent.sources.mysql.schema.shadow_tables import ShadowTables
from agent.sources.mysql.schema.unlogged_columns import UnloggedColumns
from agent.sources.mysql.schema.versions import Gone, Unknown, Version
from agent.sources.mysql.server.transaction_precise import PreciseTable

log = logging.getLogger("menura.definitions")


class SchemaReader(Protocol):
    """A server that can be asked; each call raises a `SourceError` where it can't answer."""

    def tables(self, tables: Collection[Table]) -> tuple[Mapping[Table, TableDefinition | Unknown], BinlogPosition]:
        """How those that are there look, and a position where all of them look so."""

    def databases(self) -> Mapping[str, str]:
        """Default charsets."""

    def precise_tables(self, names: Collection[str]) -> Sequence[PreciseTable]:
        """Those of any database with one of these names whose changes are logged as statements."""

    def statements(self, start: BinlogPosition, until: BinlogPosition) -> Iterable[Logged]:
        """What may have changed definitions, in the log's order."""

    def is_near(self, start: BinlogPosition) -> bool:
        """Whether the log's end is so near that learning from there costs next to nothing."""


class Definitions:
    """Of one stream."""

    def __init__(
        self,
        source: str,
        server: Server,
        history: SchemaHistory,
        schema_reader: SchemaReader,
        filter_: Filter | None = None,
        renames: Renames | None = None,
        unlogged_columns: UnloggedColumns | None = None,
    ) -> None:
        self._source = source
        self._filter = filter_ or Filter()
        #: under which names tables were before
        self.renames = renames or Renames(source, history, self._filter)
        self.unlogged_columns = unlogged_columns or UnloggedColumns(source, history, self._filter)
        self.server = server
        self._history = history
        self._schema_reader = schema_reader
        self._synced: frozenset[Table] = frozenset()
        self._versions: dict[Table, Version] = {}
        #: how tables look after a statement that is still to come
        self._anchors: dict[Table, tuple[Transaction, Version]] = {}
        self._databases: frozenset[str] = frozenset()
        #: changed since the last `settled`
        self._changed: set[Table] = set()
        self._shadow_tables = ShadowTables(())
        #: cuts with changes, and where they end
        self._uncommitted: deque[tuple[int, BinlogPosition]] = deque()
        self._has_recorded = False

    def begin(self, start: BinlogPosition, tables: Mapping[Table, BinlogPosition], anew: Collection[Table]) -> None:
        """The stream begins at `start`, and each table at its own position."""
        self._synced = frozenset(tables)
        self.renames.begin(start)
        self._shadow_tables = self._history.shadow_tables(tables)
        self._databases = frozenset(database for database, _ in tables)
        positions = dict(tables) | {_database_key(database): start for database in self._databases}
        for table in self._history.tables():
            owner = self._shadow_tables.owner(table)
            if owner is not None:
                positions[table] = tables[owner]
        earlier = EarlierDefinitions.of(self._history, positions, anew, self.server, self._schema_reader)
        begun = self._history.begin(start, positions, anew)
        self.unlogged_columns.keep()  # it may be another file now
        self._versions = begun.versions
        if not tables:
            return
        self._catch_up(begun.behind, positions)
        self._forget_without_expressions()
        for group, position in _by_position(self._unknown(), positions):
            if self._schema_reader.is_near(position):
                self._learn(group, position, "", earlier)

    def of(self, table: Table) -> Version:
        return self._versions.get(table, Gone())

    def learned(self, table: Table, position: BinlogPosition, transaction: Transaction) -> Version:
        """The same, after finding out what is not known; the stream stands in `transaction`, behind `position`."""
        if isinstance(self.of(table), Unknown) and table not in self._anchors:
            self._learn([table], position, transaction.name)
        return self.of(table)

    def learned_generated(
        self, table: Table, columns: Collection[str], position: BinlogPosition, transaction: Transaction
    ) -> Version:
        """The same, where it is asked which of these columns (in lower case) are generated: no table map says that."""
        version = self.of(table)
        if isinstance(version, TableDefinition) and may_be_generated(version, columns):
            self._put(table, Unknown("which of its columns are generated is not known"))
        return self.learned(table, position, transaction)

    def learn_before(self, table: Table, position: BinlogPosition) -> None:
        """Find out how the table looks at `position`, if nobody knows, before a statement behind that changes it."""
        if isinstance(self.of(table), Unknown) and table not in self._anchors:
            self._learn([table], position, "")

    def is_known_later(self, table: Table) -> bool:
        """Whether the table is known from a statement on that is still to come."""
        return isinstance(self.of(table), Unknown) and table in self._anchors

    def doubted(self, table: Table, why: str) -> None:
        """A table map contradicts what is known."""
        fields = {"source": self._source, "table": ".".join(table), "found": why}
        log.warning("definition contradicts the log", extra={"fields": fields})
        self._anchors.pop(table, None)
        self._put(table, Unknown(why))

    def described(self, table: Table, definition: TableDefinition, position: BinlogPosition) -> None:
        """A table map that stands behind `position` has described the table."""
        known = self.of(table)
        if not isinstance(known, TableDefinition) or _names(known) != _names(definition):
            self._put(table, definition)
            self.settled(position)

    def renames_of(self, ghost: Table) -> Mapping[str, str]:
        """New names of columns of an online schema change's copy, each with its name in the table."""
        return self._shadow_tables.columns_of(ghost)

    def owner(self, table: Table) -> Table | None:
        """The synced table for whose sake this one is followed."""
        return self._shadow_tables.owner(table)

    def has_ghost(self, table: Table) -> bool:
        """Whether a copy of the table is known to be there."""
        return any(
            isinstance(version, TableDefinition) and name[0] == table[0] and is_ghost(table[1], name[1])
            for name, version in self._versions.items()
        )

    def precise_tables(self, summary: StatementSummary) -> list[PreciseTable]:
        """Those that the statement names, and whose changes are always logged as statements, as the server says now."""
        found = self._schema_reader.precise_tables({name for _, name in summary.names})
        return [each for each in found if summary.mentions(*each.table)]

    def apply(self, statement: Statement, transaction: Transaction, live: Collection[Table]) -> Applied:
        """What a statement changes; tables of `live` and their copies then look so."""
        applied = apply(self._catalog(statement, live), statement, self.server)
        for database in self._databases_of(statement):
            self._put(_database_key(database), self._database_after(database, applied, transaction))
        self._shadow_tables.note(change for change in applied.changes if self.owner(change.table) in live)
        for table in sorted(_touched(applied)):
            if self.owner(table) in live:
                self._put(table, self._after(table, applied, transaction))
        return applied

    def put_aside(self, table: Table, name: str) -> None:
        """An online schema change has given the table this name for as long as its copy is not in its place."""
        self._put(table, Gone(name))

    @property
    def has_changed(self) -> bool:
        """Whether something waits for `settled`."""
        return bool(self._changed)

    def settled(self, position: BinlogPosition) -> None:
        """What has changed holds from `position` on; now it is durable."""
        if self._changed:
            self._history.keep_shadow_tables(self._shadow_tables)
            self._history.record(position, {table: self.of(table) for table in sorted(self._changed)})
            self._changed.clear()
            self._has_recorded = True

    def followed(self, position: BinlogPosition, cut: int) -> None:
        """This cut ends here."""
        self.settled(position)
        self._history.followed(position)
        self.unlogged_columns.followed(cut)
        if self._has_recorded:
            self._uncommitted.append((cut, position))
            self._has_recorded = False

    def committed(self, cut: int) -> None:
        """No stream will ask for what was before this cut's end."""
        self.unlogged_columns.committed(cut)
        position: BinlogPosition | None = None
        while self._uncommitted and self._uncommitted[0][0] <= cut:
            position = self._uncommitted.popleft()[1]
        if position is not None:
            self._history.compact(position)

    def ended(self, table: Table, position: BinlogPosition) -> None:
        self._history.ended(table, position)

    # ---

    def _put(self, table: Table, version: Version) -> None:
        if self._versions.get(table) != version:
            self._versions[table] = version
            self._changed.add(table)

    def _forget_without_expressions(self) -> None:
        """Table maps do not say what columns are computed from: what is kept back of a table needs that.

        Of columns that the log leaves out it is enough to know that they are generated.
        """
        for table in self._synced:
            version = self.of(table)
            if isinstance(version, TableDefinition) and self._lacks_expressions(table, version):
                self._put(table, Unknown("what its columns are computed from was not kept"))

    def _lacks_expressions(self, table: Table, definition: TableDefinition) -> bool:
        unlogged = self._filter.findings.unlogged.get(table)
        is_open = unlogged is not None and not unlogged  # which columns these are is to be looked up
        if self._filter.verdict(*table).keeps_columns or is_open:
            return lacks_expressions(definition)
        return may_be_generated(definition, unlogged or ())

    def _unknown(self) -> list[Table]:
        followed = [*map(_database_key, sorted(self._databases)), *sorted(self._synced)]
        return [table for table in followed if isinstance(self.of(table), Unknown)]

    def _charsets(self) -> dict[str, str]:
        """Default charsets of databases; '' where it is not known."""
        versions = {database: self.of(_database_key(database)) for database in self._databases}
        return {
            database: version.charset if isinstance(version, TableDefinition) else ""
            for database, version in versions.items()
            if not isinstance(version, Gone)
        }

    def _databases_of(self, statement: Statement) -> list[str]:
        """Databases that the statement itself is about."""
        summary = read_statement(statement, self.server)
        if statement.without_effect or not summary.is_about_database():
            return []
        return [name for name in self._databases if summary.mentions(name, "") or summary.default_database == name]

    def _database_after(self, database: str, applied: Applied, transaction: Transaction) -> Version:
        anchor = self._taken_anchor(_database_key(database), transaction)
        if anchor is not None:
            return anchor
        charset = applied.catalog.databases.get(database)
        if charset is None:
            return Gone()
        return TableDefinition((), charset=charset) if charset else Unknown("its default charset is not known")

    def _catalog(self, statement: Statement, live: Collection[Table]) -> Catalog:
        """What is known, as `apply` takes it; other tables that the statement may name may be there."""
        summary = read_statement(statement, self.server)
        tables: dict[Table, TableDefinition | None] = dict.fromkeys(_written(summary))
        for table, version in self._versions.items():
            if self.owner(table) not in live:
                continue
            if isinstance(version, Gone):
                tables.pop(table, None)
            else:
                tables[table] = version if isinstance(version, TableDefinition) else None
        return Catalog(tables, self._charsets())

    def _after(self, table: Table, applied: Applied, transaction: Transaction) -> Version:
        anchor = self._taken_anchor(table, transaction)
        if anchor is not None:
            return anchor
        if table not in applied.catalog.tables:
            return Gone()
        definition = applied.catalog.tables[table]
        if definition is not None:
            return definition
        return Unknown(next((unsure.why for unsure in applied.unsure if unsure.table == table), "a statement hides it"))

    def _taken_anchor(self, table: Table, transaction: Transaction) -> Version | None:
        """What is known to hold from this transaction on, because it was looked up ahead."""
        anchor = self._anchors.get(table)
        if anchor is None or anchor[0] != transaction:
            return None
        del self._anchors[table]
        return anchor[1]

    # --- finding out

    def _learn(
        self, tables: Collection[Table], position: BinlogPosition, done: str, earlier: EarlierDefinitions | None = None
    ) -> None:
        """What these tables look like at `position`, or behind the transaction `done`, from what they look like now.

        `earlier`: of those that begin there.
        """
        found, until = self._look(tables)
        between: dict[Table, list[Logged]] = {table: [] for table in tables}
        if not position.covers(until):
            for logged in self._schema_reader.statements(position, until):
                if logged.transaction.name != done:
                    for table in self._concerned(logged.statement, between):
                        between[table].append(logged)
        for table, statements in between.items():
            now: Version = found.get(table) or Gone()
            self._put(table, self._before(table, statements, now, earlier))
        self.settled(position)
        fields = {"source": self._source, "tables": len(between), "position": position}
        log.info("definitions learned", extra={"fields": fields})

    def _look(self, tables: Collection[Table]) -> tuple[Mapping[Table, TableDefinition | Unknown], BinlogPosition]:
        """How tables and databases look now, and where that is."""
        charsets = self._schema_reader.databases()
        while True:
            found, until = self._schema_reader.tables([table for table in tables if table[1]])
            again = self._schema_reader.databases()
            if again == charsets:
                break
            charsets = again
        databases = {_database_key(name): TableDefinition((), charset=charset) for name, charset in charsets.items()}
        return {**databases, **found}, until

    def _concerned(self, statement: Statement, tables: Collection[Table]) -> list[Table]:
        """Tables whose definition the statement may change, whatever it was."""
        summary = read_statement(statement, self.server)
        if not summary.is_about_database() and not any(summary.mentions(*table) for table in tables):
            return []
        names = _written(summary)
        catalog = Catalog(dict.fromkeys([*names, *tables]), self._charsets())
        touched = _touched(apply(catalog, statement, self.server))
        touched |= {_database_key(name) for name in self._databases_of(statement)}
        return [table for table in tables if table in touched]

    def _before(
        self, table: Table, statements: list[Logged], now: Version, earlier: EarlierDefinitions | None
    ) -> Version:
        """How a table looked before `statements`, which made it look as it does `now`."""
        if isinstance(now, Unknown):
            return now
        while statements:
            last = statements[-1]
            before = self._undone(table, last.statement, now)
            if before is None and earlier is not None and isinstance(now, TableDefinition):
                undone = [logged.statement for logged in statements]
                recalled = earlier.before(table, undone, now, self._charsets())
                if recalled is not None and not self._lacks_expressions(table, recalled):
                    return recalled
            if before is None:
                self._anchors[table] = (last.transaction, now)
                return self._before_first(table, statements)
            now = before
            statements = statements[:-1]
        return now

    def _undone(self, table: Table, statement: Statement, after: Version) -> TableDefinition | None:
        return (
            undo(table, after, statement, self._charsets(), self.server) if isinstance(after, TableDefinition) else None
        )

    def _before_first(self, table: Table, statements: list[Logged]) -> Version:
        """A statement that makes a table tells that it was not there."""
        statement, transaction = statements[0].statement, statements[0].transaction
        # Whatever its charset, only whether the statement makes the table is asked.
        applied = apply(Catalog({}, {table[0]: "utf8mb4"}), statement, self.server)
        summary = read_statement(statement, self.server)
        is_made = any(change.kind is ChangeKind.CREATED and change.table == table for change in applied.changes)
        if not table[1]:
            is_made = summary.first.startswith("CREATE")
        if is_made and not _may_be_there(summary):
            return Gone()
        last = statements[-1]
        verb = read_statement(last.statement, self.server).first
        return Unknown(
            f"{verb} of transaction {last.transaction.name} stands between {transaction.name} and the definition that"
            " the server shows now"
        )

    def _catch_up(self, behind: Mapping[Table, BinlogPosition], positions: Mapping[Table, BinlogPosition]) -> None:
        """The history ends before the tables' positions: apply what stands between."""
        for group, position in _by_position(behind, positions):
            self._catch_up_to({table: behind[table] for table in group}, position)
            self.settled(position)

    def _catch_up_to(self, behind: Mapping[Table, BinlogPosition], until: BinlogPosition) -> None:
        try:
            for logged in self._schema_reader.statements(least(behind.values()), until):
                live = [table for table, end in behind.items() if not logged.transaction.is_in(end)]
                self.apply(logged.statement, logged.transaction, live)
        except (PositionPurged, PositionInvalid, SourceRebuilt) as lost:
            log.warning("schema history has a gap", extra={"fields": {"source": self._source, "error": str(lost)}})
            for table in behind:
                self._put(table, Unknown("the log since the schema history's end can't be read"))


def _by_position(
    tables: Iterable[Table], positions: Mapping[Table, BinlogPosition]
) -> list[tuple[list[Table], BinlogPosition]]:
    groups: dict[str, list[Table]] = {}
    for table in tables:
        groups.setdefault(str(positions[table]), []).append(table)
    return [(group, positions[group[0]]) for group in groups.values()]


def _names(definition: TableDefinition) -> list[str]:
    return [column.name.lower() for column in definition.columns]


def _database_key(database: str) -> Table:
    """A database's default charset is followed as that of a table without a name."""
    return database, ""


def _written(summary: StatementSummary) -> set[Table]:
    """All that may be a table in the statement, also as a server stores it that knows no case."""
    written = {(database or summary.default_database, name) for database, name in summary.names}
    return written | {(database.lower(), name.lower()) for database, name in written}


def _touched(applied: Applied) -> set[Table]:
    """Tables that may look otherwise afterwards."""
    changed = {change.table for change in applied.changes if change.kind is not ChangeKind.TRUNCATED}
    renamed = {change.new_table for change in applied.changes if change.new_table is not None}
    return changed | renamed | {unsure.table for unsure in applied.unsure}


def _may_be_there(summary: StatementSummary) -> bool:
    """IF NOT EXISTS, OR REPLACE: the table may have been there before."""
    names = {name.upper() for _, name in summary.names}
    return {"IF", "EXISTS"} <= names or "REPLACE" in names
