"""Generated columns whose new values a server leaves out of its log: stream and dumps read their tables without them.

Comes in: from the stream, generated columns that an update lacks. Goes out, to the filter's findings: the same, until
the table begins anew. Durable, as a fact in the schema history, before the log is read again without them; where it is
lost, the next update says the same again.

::

    [[database, table, [columns in lower case], position behind which an update lacked them], ...]
"""

import json
import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from agent.filter import Filter
from agent.sources.mysql.ddl.model import Table, TableDefinition
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.versions import RecordUnreadable, Unknown, Version, position_of, position_text

log = logging.getLogger("menura.history")

FACT = "unlogged_columns"


@dataclass(slots=True)
class UnloggedColumns:
    """Of one source."""

    source: str
    history: SchemaHistory
    filter: Filter
    _kept: dict[Table, tuple[frozenset[str], BinlogPosition]] = field(default_factory=dict)
    #: tables of which no cut tells yet that the columns are not sent
    _untold: set[Table] = field(default_factory=set)

    def __post_init__(self) -> None:
        text = self.history.fact(FACT)
        try:
            for database, table, columns, since in json.loads(text) if text else ():
                self._kept[str(database), str(table)] = frozenset(map(str, columns)), position_of(since)
        except (RecordUnreadable, ValueError, TypeError) as broken:
            fields = {"source": self.source, "found": type(broken).__name__}
            log.warning("what is known of unlogged columns can't be read: updates tell it", extra={"fields": fields})
            self._kept = {}
        self._tell()

    def begin(self, start: BinlogPosition, tables: Collection[Table], anew: Collection[Table]) -> None:
        """A stream of `tables` begins at `start`; of those in `anew` nothing older counts."""
        kept = {table: found for table, found in self._kept.items() if table in tables and table not in anew}
        if kept != self._kept:
            self._kept = kept
            self._keep()
        self._untold = {table for table, (columns, since) in kept.items() if columns and not _is_past(start, since)}

    def found(self, table: Table, columns: Collection[str], position: BinlogPosition) -> None:
        """An update behind `position` lacks these; none: that is not known, so the table is read by its definition."""
        before = self._kept.get(table, (frozenset(), position))[0]
        self._kept[table] = before | {column.lower() for column in columns}, position
        self._keep()
        fields: dict[str, object] = {"source": self.source, "table": ".".join(table)}
        if columns:
            fields["columns"] = ", ".join(sorted(columns))
            log.warning("the log lacks new values of generated columns: they are not sent", extra={"fields": fields})
        else:
            log.info(
                "an update lacks columns: the table's definition says which are generated", extra={"fields": fields}
            )

    def defined(self, table: Table, version: Version, position: BinlogPosition) -> None:
        """From a statement behind `position` on the table looks so: what is no generated column any more is sent.

        A statement from before the update that lacked the columns says nothing: its table may not have had them yet.
        """
        known = self._kept.get(table)
        if known is None or isinstance(version, Unknown) or not _is_past(position, known[1]):
            return
        columns, since = known
        names = version.columns if isinstance(version, TableDefinition) else ()
        left = columns & {column.name.lower() for column in names if column.generated}
        if left == columns:
            return
        if left:
            self._kept[table] = left, since
        else:
            del self._kept[table]
        self._keep()

    def is_untold(self, table: Table) -> bool:
        """Whether a cut has to tell that columns of the table are not sent."""
        return table in self._untold

    def told(self, table: Table) -> None:
        """The cut that is being made tells it; if it is lost, the next stream begins before it."""
        self._untold.discard(table)

    def _keep(self) -> None:
        kept = [[*table, sorted(columns), position_text(since)] for table, (columns, since) in self._kept.items()]
        self.history.keep_fact(FACT, json.dumps(kept))
        self._tell()

    def _tell(self) -> None:
        self.filter.findings.unlogged = {table: columns for table, (columns, _) in self._kept.items()}


def _is_past(start: BinlogPosition, since: BinlogPosition) -> bool:
    return start.is_comparable(since) and start.covers(since) and not since.covers(start)
