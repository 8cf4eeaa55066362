"""Under which names tables were before, as far as the filter kept them back there: it still does.

Comes in: the log's statements, each once, and what was kept of earlier ones. Goes out: `Origins`, which the filter
asks.
What was in the log before this agent first saw it counts by the names of then. Durable: a fact in the schema history;
where that is lost, so is what it said of statements that this agent does not read again.

::

    {"position": behind the newest statement's predecessor or where the log was looked through to, "applied": names of
     transactions behind that, "origins": [[database, name, database of before, name of before], ...],
     "dropped": [[database, name, [ignored columns that a statement has dropped]], ...]}

A stream that begins before that position meets statements again. They are not applied to what is kept, but to what
counts for this stream's rows; the filter asks both.
"""

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent.errors import PositionInvalid, PositionPurged, SourceRebuilt
from agent.filter import Filter
from agent.positions import PositionsUnordered
from agent.sources.mysql.ddl.model import Server, Statement, Table
from agent.sources.mysql.ddl.online_change import bases, is_ghost
from agent.sources.mysql.ddl.renames import Names, names_of
from agent.sources.mysql.ddl.statements import StatementSummary
from agent.sources.mysql.ddl.statements import read as read_statement
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.log_scan import Logged, Transaction
from agent.sources.mysql.schema.versions import RecordUnreadable, position_of, position_text

log = logging.getLogger("menura.filter")

#: tables that were let through and are under a name that is not: these alone may be forgotten
MOST_AWAY = 4096


class Renames:
    """Of one stream."""

    def __init__(self, source: str, history: SchemaHistory, filter_: Filter) -> None:
        self._source = source
        self._history = history
        self._filter = filter_
        self._position: BinlogPosition | None = None
        self._applied: list[str] = []
        #: the log since the last look can't be read
        self._is_behind_gap = False
        self._kept: dict[Table, Table] = {}
        #: ignored columns that statements dropped
        self._dropped: dict[Table, frozenset[str]] = {}
        #: of a stream that has begun before `position`
        self._passing: dict[Table, Table] = {}
        try:
            self._load(history.fact("renames"))
        except (RecordUnreadable, ValueError, TypeError, KeyError) as broken:
            fields = {"source": source, "found": type(broken).__name__}
            log.warning(
                "what is known of renamed tables can't be read: names count as they are", extra={"fields": fields}
            )
        self._tell()

    def catch_up(
        self,
        end: BinlogPosition,
        statements: Callable[[BinlogPosition, BinlogPosition], Iterable[Logged]],
        server: Server,
    ) -> None:
        """Look through the log since the last look, up to its `end`; raises a `SourceError`."""
        if not self._filter.keeps_back:
            return
        try:
            if self._position is not None and not self._position.covers(end):
                for logged in statements(self._position, end):
                    self._apply(logged.statement, read_statement(logged.statement, server), logged.transaction, server)
        except (PositionPurged, PositionInvalid, SourceRebuilt, PositionsUnordered) as lost:
            fields = {"source": self._source, "error": str(lost)}
            log.warning(
                "tables may have been renamed in log that is gone: their names count as they are",
                extra={"fields": fields},
            )
            self._is_behind_gap = True
        else:
            self._position, self._applied = end, []
            self._save()
        self._tell()

    def accepted(self, end: BinlogPosition) -> None:
        """The server's log goes on where the source's was read, or behind a gap: from here on it is followed."""
        if self._is_behind_gap:
            self._position, self._applied, self._is_behind_gap = end, [], False
            self._save()

    def begin(self, start: BinlogPosition) -> None:
        """The stream begins at `start`."""
        known = self._position
        is_older = known is not None and start.is_comparable(known) and not start.covers(known)
        self._passing = {} if is_older else dict(self._kept)
        self._tell()

    def columns_dropped(self, table: Table, columns: frozenset[str]) -> None:
        """A statement has dropped ignored columns."""
        if not columns <= self._dropped.get(table, frozenset()):
            self._dropped[table] = self._dropped.get(table, frozenset()) | columns
            self._save()
            self._tell()

    def names_of(self, statement: Statement, summary: StatementSummary, server: Server) -> Names | None:
        """What a statement that the stream has come to does to names; None: nothing that matters."""
        names = names_of(statement, summary, server) if self._filter.keeps_back else Names()
        return names if names != Names() else None

    def came(self, names: Names, transaction: Transaction, position: BinlogPosition) -> None:
        """The stream stands in the transaction of such a statement, behind `position`."""
        self._passing = self._moved(self._passing, names)
        others = {*names.anew, *names.unread, *(table for pair in names.renamed for table in pair)}
        self._dropped = {table: columns for table, columns in self._dropped.items() if table not in others}
        if not self._is_applied(transaction):
            self._kept = self._moved(self._kept, names)
            if self._position is None or position.covers(self._position):
                self._position, self._applied = position, []
            self._applied.append(transaction.name)
            self._save()
        self._tell()

    # ---

    def _is_applied(self, transaction: Transaction) -> bool:
        return transaction.name in self._applied or (self._position is not None and transaction.is_in(self._position))

    def _apply(self, statement: Statement, summary: StatementSummary, transaction: Transaction, server: Server) -> None:
        if transaction.name not in self._applied:
            self._kept = self._moved(self._kept, names_of(statement, summary, server))

    def _moved(self, origins: Mapping[Table, Table], names: Names) -> dict[Table, Table]:
        after = dict(origins)
        for table in list(after):
            if table in names.anew or table[0] == names.dropped_database:
                del after[table]
        for old, new in names.renamed:
            origin = after.pop(old, None) or self._origin(old)
            after.pop(new, None)
            if origin != new:
                after[new] = origin
        hidden = [after.get(table, table) for table in names.unread if self._restricts(after.get(table, table))]
        for table in names.unread if hidden else ():
            if not self._restricts(table):
                after[table] = hidden[0]
        return self._bounded(after)

    def _origin(self, table: Table) -> Table:
        """A copy that an online schema change works on is the table that it is of."""
        found = (base for base in bases(table[1]) if is_ghost(base, table[1]))
        return next(((table[0], base) for base in found), table)

    def _restricts(self, table: Table) -> bool:
        verdict = self._filter.by_name(*table)
        return not verdict.allowed or verdict.keeps_columns

    def _bounded(self, origins: dict[Table, Table]) -> dict[Table, Table]:
        """Those that matter: tables that are kept back under one of both names."""
        kept = {new: old for new, old in origins.items() if self._restricts(old) or self._restricts(new)}
        away = [new for new, old in kept.items() if not self._restricts(old)]
        for table in away[: max(0, len(away) - MOST_AWAY)]:
            del kept[table]
        return kept

    def _tell(self) -> None:
        self._filter.origins.are(self._kept, self._passing)
        self._filter.findings.dropped = dict(self._dropped)

    def _load(self, text: str) -> None:
        if not text:
            return
        facts: dict[str, Any] = json.loads(text)
        position = position_of(facts["position"]) if facts["position"] else None
        self._kept = {(str(a), str(b)): (str(c), str(d)) for a, b, c, d in facts["origins"]}
        self._position, self._applied = position, [str(name) for name in facts["applied"]]
        self._dropped = {(str(a), str(b)): frozenset(map(str, names)) for a, b, names in facts["dropped"]}

    def _save(self) -> None:
        facts = {
            "position": position_text(self._position) if self._position is not None else "",
            "applied": self._applied,
            "origins": [[*new, *old] for new, old in self._kept.items()],
            "dropped": [[*table, sorted(columns)] for table, columns in self._dropped.items()],
        }
        self._history.keep_fact("renames", json.dumps(facts))
