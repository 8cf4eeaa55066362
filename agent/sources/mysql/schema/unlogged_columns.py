"""Generated columns whose new values a server leaves out of its log: stream and dumps read their tables without them.

Comes in: from the stream, generated columns that an update lacks, and what statements make of them. Goes out, to the
filter's findings: which are not sent. Durable, as a fact in the schema history: found columns before the log is read
again without them; columns that a statement made plain or took away only once its cut is committed, since it may be
read again. Where the fact is lost, the next update of the table says the same again.

::

    [[database, table, [columns in lower case], position behind which an update lacked them,
      position behind which an event told that, where one did], ...]
"""

import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from agent.filter import Filter
from agent.sources.mysql.ddl.model import Table, TableDefinition
from agent.sources.mysql.positions import BinlogPosition
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.schema.versions import RecordUnreadable, Unknown, Version, position_of, position_text

log = logging.getLogger("menura.history")

FACT = "unlogged_columns"


@dataclass(frozen=True, slots=True)
class _Found:
    #: in lower case; none: which of them are generated was not known, and the table is read by its definition
    columns: frozenset[str]
    since: BinlogPosition
    #: a stream that begins later begins with a cut that has the event
    told: BinlogPosition | None = None


@dataclass(slots=True)
class UnloggedColumns:
    """Of one source."""

    source: str
    history: SchemaHistory
    filter: Filter
    #: as it is durable
    _kept: dict[Table, _Found] = field(default_factory=dict)
    #: what statements have made of it that are in no committed cut: the cut that has them, or 0 for the open one
    _changed: dict[Table, tuple[int, frozenset[str]]] = field(default_factory=dict)
    #: tables of which no cut tells yet that the columns are not sent
    _untold: set[Table] = field(default_factory=set)

    def __post_init__(self) -> None:
        text = self.history.fact(FACT)
        try:
            for database, table, columns, since, *told in json.loads(text) if text else ():
                self._kept[str(database), str(table)] = _Found(
                    frozenset(map(str, columns)), position_of(since), position_of(told[0]) if told else None
                )
        except (RecordUnreadable, ValueError, TypeError) as broken:
            fields = {"source": self.source, "found": type(broken).__name__}
            log.warning("what is known of unlogged columns can't be read: updates tell it", extra={"fields": fields})
            self._kept = {}
        self._tell()

    def begin(self, tables: Mapping[Table, BinlogPosition], anew: Collection[Table]) -> None:
        """A stream begins, each table at its position; of those in `anew` nothing counts from before that."""
        self._kept = {
            table: replace(found, told=None) if table in anew else found
            for table, found in self._kept.items()
            if table in tables and (table not in anew or _covers(found.since, tables[table]))
        }
        self._changed = {}
        self._untold = {
            table
            for table, found in self._kept.items()
            if found.columns
            and not _is_behind(tables[table], found.since)
            and not (found.told is not None and _is_behind(tables[table], found.told))
        }
        self.keep()

    def found(self, table: Table, columns: Collection[str], position: BinlogPosition) -> bool:
        """An update behind `position` lacks these generated columns. Whether that is new.

        None: which are generated is not known; from now on the table is read by its definition.
        """
        lowered = frozenset(column.lower() for column in columns)
        before = self._kept.get(table)
        if before is not None and lowered <= self._columns(table):
            return False
        self._kept[table] = _Found(lowered | (before.columns if before is not None else lowered), position)
        self._changed.pop(table, None)
        self.keep()
        fields: dict[str, object] = {"source": self.source, "table": ".".join(table)}
        if columns:
            fields["columns"] = ", ".join(sorted(columns))
            log.warning("the log lacks new values of generated columns: they are not sent", extra={"fields": fields})
        else:
            log.info("an update lacks columns: which are generated is looked up", extra={"fields": fields})
        return True

    def defined(self, table: Table, version: Version, renamed: Mapping[str, str], position: BinlogPosition) -> None:
        """From a statement behind `position` on the table looks so; `renamed`: old to new name, in lower case.

        What is no generated column any more is sent. A statement from before the update that lacked the columns says
        nothing of that: its table may not have had them yet.
        """
        known = self._kept.get(table)
        if known is None or isinstance(version, Unknown):
            return
        columns = frozenset(renamed.get(column, column) for column in self._columns(table))
        if _is_behind(position, known.since):
            names = version.columns if isinstance(version, TableDefinition) else ()
            columns &= {column.name.lower() for column in names if column.generated}
        if columns != self._columns(table):
            self._changed[table] = 0, columns
            self._tell()

    def followed(self, cut: int) -> None:
        """This cut ends here."""
        self._changed = {table: (number or cut, columns) for table, (number, columns) in self._changed.items()}

    def committed(self, cut: int) -> None:
        """What statements of this cut, or an earlier one, have made of the columns is not read again."""
        done = {table: columns for table, (number, columns) in self._changed.items() if 0 < number <= cut}
        for table, columns in done.items():
            del self._changed[table]
            found = self._kept.pop(table)
            if columns:
                self._kept[table] = replace(found, columns=columns)
            else:
                self._untold.discard(table)
        if done:
            self.keep()

    def is_untold(self, table: Table) -> bool:
        """Whether a cut has to tell that columns of the table are not sent."""
        return table in self._untold and bool(self._columns(table))

    def told(self, table: Table, position: BinlogPosition) -> None:
        """The cut that is being made tells it behind `position`; if it is lost, the next stream begins before that."""
        self._untold.discard(table)
        self._kept[table] = replace(self._kept[table], told=position)
        self.keep()

    def keep(self) -> None:
        """Durably, where it is not yet."""
        kept = [_record(table, self._kept[table]) for table in sorted(self._kept)]
        text = json.dumps(kept) if kept else ""
        if text != self.history.fact(FACT):
            self.history.keep_fact(FACT, text)
        self._tell()

    def _columns(self, table: Table) -> frozenset[str]:
        """As the stream stands."""
        changed = self._changed.get(table)
        return changed[1] if changed is not None else self._kept[table].columns

    def _tell(self) -> None:
        self.filter.findings.unlogged = {table: self._columns(table) for table in self._kept}


def _record(table: Table, found: _Found) -> list[object]:
    record: list[object] = [*table, sorted(found.columns), position_text(found.since)]
    return record if found.told is None else [*record, position_text(found.told)]


def _covers(position: BinlogPosition, other: BinlogPosition) -> bool:
    return position.is_comparable(other) and position.covers(other)


def _is_behind(position: BinlogPosition, other: BinlogPosition) -> bool:
    """Whether `position` has all of `other` and more."""
    return _covers(position, other) and not _covers(other, position)
