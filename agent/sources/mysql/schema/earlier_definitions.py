"""How tables looked before they begin anew with a dump, where the server's answer does not tell how they look there.

A table that begins anew forgets its earlier life, and its definition is that of now with the statements since undone.
Where one of these can't be undone (MODIFY, CHANGE), the definition of the earlier life counts, if it stands the test:
with the statements up to the table's new position, and then those since, it is the definition of now.

Comes in: the schema history, before the stream begins; then statements, and how a table looks behind them. Goes out:
how it looked before them. Nothing is durable.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agent.errors import PositionInvalid, PositionPurged, SourceRebuilt
from agent.sources.mysql.ddl.apply import apply
from agent.sources.mysql.ddl.model import Catalog, Server, Statement, Table, TableDefinition
from agent.sources.mysql.ddl.statements import read as read_statement
from agent.sources.mysql.ddl.undo import shape
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.log_scan import Logged


class StatementReader(Protocol):
    def statements(self, start: BinlogPosition, until: BinlogPosition) -> Iterable[Logged]:
        """What may have changed definitions, in the log's order."""

    def is_near(self, start: BinlogPosition) -> bool:
        """Whether the log's end is so near that reading from there costs next to nothing."""


@dataclass(slots=True)
class EarlierDefinitions:
    """Of one beginning of a stream."""

    server: Server
    reader: StatementReader
    #: with the positions up to which they hold
    found: Mapping[Table, tuple[TableDefinition, BinlogPosition]] = field(default_factory=dict)
    #: of the tables' new lives
    positions: Mapping[Table, BinlogPosition] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        history: SchemaHistory,
        tables: Mapping[Table, BinlogPosition],
        anew: Collection[Table],
        server: Server,
        reader: StatementReader,
    ) -> "EarlierDefinitions":
        """What `history` has of those that begin anew at their positions."""
        earlier = {table: history.earlier(table, tables[table]) for table in anew if table in tables}
        return cls(server, reader, {table: one for table, one in earlier.items() if one is not None}, tables)

    def before(
        self, table: Table, statements: Iterable[Statement], now: TableDefinition, databases: dict[str, str]
    ) -> TableDefinition | None:
        """How the table looked where it begins, before `statements`, which made it look as it does `now`; None: that
        is not known. `databases`: default charsets. Raises a `SourceError`."""
        earlier = self.found.get(table)
        if earlier is None:
            return None
        try:
            missed = self._missed(*earlier[1:], self.positions[table])
        except (PositionPurged, PositionInvalid, SourceRebuilt):
            return None  # nothing tells what stands between the two lives
        there = None if missed is None else self._after(table, earlier[0], missed, databases)
        then = None if there is None else self._after(table, there, statements, databases)
        return there if then is not None and shape(then) == shape(now) else None

    def _missed(self, end: BinlogPosition, begin: BinlogPosition) -> list[Statement] | None:
        """Statements between the two lives; None: these are too far apart."""
        if end.covers(begin):
            return []
        if not self.reader.is_near(end):
            return None
        return [logged.statement for logged in self.reader.statements(end, begin)]

    def _after(
        self, table: Table, before: TableDefinition, statements: Iterable[Statement], databases: dict[str, str]
    ) -> TableDefinition | None:
        """None: one of the statements hides what it makes of the table."""
        definition: TableDefinition | None = before
        for statement in statements:
            summary = read_statement(statement, self.server)
            others = {(database or summary.default_database, name): None for database, name in summary.names}
            applied = apply(Catalog({**others, table: definition}, databases), statement, self.server)
            definition = applied.catalog.tables.get(table)
            if definition is None or any(unsure.table == table for unsure in applied.unsure):
                return None
        return definition
