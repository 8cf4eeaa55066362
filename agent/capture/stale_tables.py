"""Tables of which rows in the lake may differ from their source: those that a dump is to bring, or brings, or that the
lake has never had.

Pure. Comes in: what the gateway knows of each table when a stream begins, and the events that the stream tells. Goes
out: whether a table's rows are what they are at the source, for the keys of tables that refer to it. Nothing is
durable here: the gateway says it anew with the next stream.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from menura.v1 import changes_pb2

from agent.table_positions import Table, names

_Kind = changes_pb2.TableEvent


@dataclass(slots=True)
class _Stale:
    #: number of the newest event whose earlier rows may differ
    unlogged_gsn: int = 0
    #: of its dump's DUMP_STARTED; 0: it has not begun
    dump_gsn: int = 0
    #: it begins with a dump
    is_new: bool = False
    #: rows of before its start have not come
    lacks_rows: bool = False
    #: of the newest VERIFICATION_STARTED since rows became stale that tells anew: what is equal by it may stand for the
    #: dump. What a dump heals does not depend on it
    compared_gsn: int = 0

    def __bool__(self) -> bool:
        return self.lacks_rows or self.has_dump

    @property
    def has_dump(self) -> bool:
        """One that is to begin, or runs."""
        return bool(self.unlogged_gsn or self.dump_gsn or self.is_new)

    @property
    def waits(self) -> bool:
        begun_gsn = max(self.dump_gsn, self.compared_gsn)
        return self.has_dump and (not begun_gsn or self.unlogged_gsn > begun_gsn)


class StaleTables:
    """Of one stream."""

    def __init__(
        self,
        tables: Iterable[changes_pb2.TableSync],
        started: Iterable[changes_pb2.TableStarted] = (),
    ) -> None:
        self._tables: dict[Table, _Stale] = {}
        #: of which this stream has told that rows may be stale, and of no dump or verification since
        self._told: set[Table] = set()
        self._has_changed = False
        lacking = set(names(start.table for start in started if start.earlier_rows_missing))
        for sync in tables:
            table = (sync.table.database, sync.table.table)
            lacks_rows = sync.earlier_rows_missing or table in lacking
            is_new = sync.WhichOneof("start") == "dump"
            stale = _Stale(sync.unlogged_gsn, sync.dump_gsn, is_new, lacks_rows, sync.compared_gsn)
            if stale:
                self._tables[table] = stale

    def __contains__(self, table: object) -> bool:
        return table in self._tables

    def waits(self, table: Table) -> bool:
        """Whether a dump that has not begun yet is to bring its rows, and no verification has begun that may stand for
        it."""
        stale = self._tables.get(table)
        return stale is not None and stale.waits

    def lacks_rows(self, table: Table) -> bool:
        """Whether the lake lacks rows of before its start, and no dump that brings them is known of."""
        stale = self._tables.get(table)
        return stale is not None and stale.lacks_rows and not stale.has_dump

    def is_told(self, table: Table) -> bool:
        """Whether this stream has told that its rows may be stale, so that what begins to read them now heals it all.

        Narrower than `waits`: what was known at the stream's start does not count, since a dump that was begun then and
        goes on later brings rows of before.
        """
        return table in self._told

    def heard(self, event: changes_pb2.TableEvent) -> None:
        """The stream tells an event, in the order of their numbers."""
        table = (event.table.database, event.table.table)
        if event.kind in (_Kind.DUMPED, _Kind.DUMP_STARTED) or event.removes_rows or event.tells_anew:
            self._told.discard(table)
        if event.unlogged_changes:
            self._told.add(table)
        before = stale = self._tables.get(table, _Stale())
        if event.kind == _Kind.DUMPED:
            is_healed = event.removes_rows or stale.unlogged_gsn <= stale.dump_gsn
            stale = _Stale() if is_healed else _Stale(stale.unlogged_gsn, compared_gsn=stale.compared_gsn)
        elif event.kind == _Kind.DUMP_STARTED:
            stale = _Stale(stale.unlogged_gsn, event.gsn, lacks_rows=stale.lacks_rows)
        elif event.removes_rows:
            stale = _Stale(0, stale.dump_gsn, stale.is_new)
        elif event.tells_anew and stale.unlogged_gsn:
            stale = replace(stale, compared_gsn=event.gsn)
        if event.unlogged_changes:
            stale = replace(stale, unlogged_gsn=event.gsn)
        if (bool(stale), stale.waits) != (bool(before), before.waits):
            self._has_changed = True
        if stale:
            self._tables[table] = stale
        else:
            self._tables.pop(table, None)

    def take_changed(self) -> bool:
        """Whether a table has become stale, or is no longer, or its dump has begun, since this was asked last."""
        changed, self._has_changed = self._has_changed, False
        return changed
