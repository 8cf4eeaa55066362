"""For users: any set of the lake's tables as of one cut of each source, from Python and Spark.

Comes in: tables, and for when: nothing (each source's newest cut), a cut of each source, or one time for all sources.
Goes out: a `LakeCut`, which says the cut of each source and gives each table's rows at exactly that cut, as Arrow, as a
Spark DataFrame, or as views for SQL. Nothing is written, and what is read stays as it is while the sink goes on.

A cut that can be read is the last one of a batch of the sink. Asked for one between, or for a time, the answer is the
newest before it. Where a table was not what its source's was, or the time may still lack something, the error says
why; with `allow_incomplete` it is a note of the answer.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from menura.instants import instant_text, now_us

from spark_sink.errors import CutBeforeHorizon, CutNotComplete, SinkSettingInvalid, TableNotAtCut, TableNotInLake
from spark_sink.lake.boundaries import (
    Boundaries,
    Boundary,
    Condition,
    TableState,
    conditions_at,
    keep_hours,
    read_boundaries,
    states_at,
    stops_at,
)
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.net_effect import IS_DELETED
from spark_sink.lake.records import Records
from spark_sink.lake.table_folders import Folders, folders_by_rule, table_folder
from spark_sink.lake.tail import Rows
from spark_sink.lake.validation_records import ValidationRecords
from spark_sink.reading import arrow_of, frame_of, own_columns, rows_of_versions
from spark_sink.work import CURRENT, TableId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: (tenant, source)
SourceName = tuple[str, str]
HOUR_US = 3_600_000_000
_READING = "reading tables at a cut"
_LACKS = "it lacks rows of before its sync"


@dataclass(frozen=True, slots=True)
class SourceCut:
    """Up to where a source's tables are read."""

    tenant: str
    source: str
    cut: int
    #: no transaction of the cut or before committed later, by the source's clock; 0: not known
    committed_us: int
    #: why something may be missing; '': nothing is
    note: str = ""


@dataclass(frozen=True, slots=True)
class TableAt:
    """Versions of a table's two Delta tables at its source's cut."""

    table: TableId
    changelog_version: int
    current_version: int
    #: why it may differ from its source's table; '': it does not
    note: str = ""


@dataclass(frozen=True, slots=True)
class LakeCut:
    """Tables of a lake as of one cut of each of their sources."""

    lake: str
    sources: tuple[SourceCut, ...]
    tables: tuple[TableAt, ...]

    def rows(self, table: TableId) -> Rows:
        """The table's rows, to be read in batches. Raises `CutBeforeHorizon` where its version is removed."""
        found = next((each for each in self.tables if each.table == table), None)
        if found is None:
            raise TableNotInLake(_READING, f"{table} is not among those that this cut was asked for")
        with _kept(table):
            return rows_of_versions(self.lake, table, found.changelog_version, found.current_version)

    def arrow(self, table: TableId, *, with_deleted: bool = False) -> pa.Table:
        """The table's rows, in the source's columns with `_unrepresentable` and `_gsn`."""
        with _kept(table):
            return arrow_of(self.rows(table), with_deleted=with_deleted)

    def frame(self, session: "SparkSession", table: TableId, *, with_deleted: bool = False) -> "DataFrame":
        """The same as a Spark DataFrame."""
        return frame_of(session, self.lake, table, self.rows(table), with_deleted=with_deleted)

    def create_views(self, session: "SparkSession", names: Mapping[TableId, str] | None = None) -> dict[TableId, str]:
        """Temporary views of the session for SQL, one for each table; gives their names, by default `view_names`."""
        found = dict(names) if names is not None else self._view_names()
        for table, name in found.items():
            self.frame(session, table).createOrReplaceTempView(_ticked(name))
        return found

    def _view_names(self) -> dict[TableId, str]:
        return view_names((each.table for each in self.tables), folders_by_rule(self.lake))

    def statements(self) -> Iterator[str]:
        """Statements of Spark SQL that make the same views, in any session that has Delta."""
        names = self._view_names()
        for each in self.tables:
            columns = ", ".join(map(_ticked, own_columns(self.rows(each.table))))
            yield f"CREATE OR REPLACE TEMPORARY VIEW {_ticked(names[each.table])} AS {self.select(each, columns)};"

    def select(self, each: TableAt, chosen: str) -> str:
        """Spark SQL for columns of a table's rows. Raises `TableNotAtCut` where not all of them are merged."""
        rows = self.rows(each.table)
        if rows.effect is not None and rows.effect.num_rows:
            raise TableNotAtCut(
                "writing a statement for a view",
                f"newest changes of {each.table} stand in its changelog alone",
                remedy="Make the views from Python: LakeCut.create_views of spark_sink.reading_at, or"
                " Shards.create_view of spark_sink.shards",
            )
        folder = _ticked(f"{table_folder(self.lake, each.table)}/{CURRENT}")
        living = f" WHERE {_ticked(IS_DELETED)} IS NOT TRUE" if rows.keeps_deleted else ""
        return f"SELECT {chosen} FROM delta.{folder} VERSION AS OF {each.current_version}{living}"  # noqa: S608


def view_names(tables: Iterable[TableId], folders: Folders = MappingProxyType({})) -> dict[TableId, str]:
    """The table's name where it is the only one, else with its database, its source, or its tenant before it.

    Of tables that have a folder by a rule it is that folder's last names.

    >>> tables = [TableId("acme", source, "bank", "accounts") for source in ("east", "west")]
    >>> list(view_names([*tables, TableId("acme", "east", "bank", "rates")]).values())
    ['east_bank_accounts', 'west_bank_accounts', 'rates']
    >>> list(view_names(tables, {tables[0]: "bank/accounts-1", tables[1]: "bank/accounts-2"}).values())
    ['accounts-1', 'accounts-2']
    """
    wanted = list(tables)
    names: dict[TableId, str] = {}
    words = {table: folders[table].split("/") if table in folders else _parts(table) for table in wanted}
    for parts in range(1, max(map(len, words.values()), default=0) + 1):
        left = [table for table in wanted if table not in names]
        tried = {table: "_".join(words[table][-parts:]).lower() for table in left}
        taken = [*tried.values(), *names.values()]
        names |= {table: name for table, name in tried.items() if taken.count(name) == 1}
    for table in wanted:
        if table not in names:
            raise TableNotAtCut(
                "naming views", f"{table} has the name of another table", remedy="Name the views yourself"
            )
    return {table: names[table] for table in wanted}


def _parts(table: TableId) -> tuple[str, ...]:
    return table.tenant, table.source, table.database, table.table


def lake_at(
    lake: str,
    tables: Iterable[TableId] = (),
    groups: Iterable[tuple[str, ...]] = (),
    *,
    cuts: Mapping[SourceName, int] | None = None,
    at_us: int | None = None,
    allow_incomplete: bool = False,
) -> LakeCut:
    """Tables at a cut of each of their sources: that of `cuts`, or the newest up to the time `at_us`, or the newest.

    `groups`: (tenant, source) or (tenant, source, database), of which all tables are read that were synced then.
    Raises `CutBeforeHorizon`, `CutNotComplete`, `TableNotAtCut`, `TableNotInLake`.
    """
    records = _Records.opened(lake)
    named, grouped = list(tables), list(groups)
    sources: list[SourceCut] = []
    found: list[TableAt] = []
    for name in sorted({(each.tenant, each.source) for each in named} | {(each[0], each[1]) for each in grouped}):
        cut = None if cuts is None else _cut_of(cuts, name)
        source = records.choose(name, cut, at_us, allow_incomplete=allow_incomplete)
        of_name = [table for table in named if (table.tenant, table.source) == name]
        of_groups = [group for group in grouped if group[:2] == name]
        sources.append(source)
        found.extend(records.tables(source, of_name, of_groups, allow_incomplete=allow_incomplete))
    return LakeCut(lake, tuple(sources), tuple(found))


def _cut_of(cuts: Mapping[SourceName, int], name: SourceName) -> int:
    if name not in cuts:
        raise SinkSettingInvalid(_READING, f"no cut of {'/'.join(name)} is given", remedy="Give one of each source")
    return cuts[name]


@dataclass(frozen=True, slots=True)
class _Records:
    """The lake's records at one moment."""

    cuts: DeltaTable
    events: DeltaTable | None
    errors: DeltaTable | None
    validation: DeltaTable | None

    @classmethod
    def opened(cls, lake: str) -> "_Records":
        records = Records(lake)
        cuts = open_table(records.cuts_folder)  # before the others: an event is there before its boundary
        if cuts is None:
            raise TableNotInLake(_READING, f"{lake} has no table", remedy="Check the lake's address")
        folders = (records.events_folder, records.errors_folder, ValidationRecords(lake).folder)
        return cls(cuts, *map(open_table, folders))

    def choose(self, name: SourceName, cut: int | None, at_us: int | None, *, allow_incomplete: bool) -> SourceCut:
        found = read_boundaries(self.cuts, *name)
        where = {"source": "/".join(name)}
        if not found.found:
            raise CutBeforeHorizon(
                _READING,
                "the lake has no cut of the source that can be read",
                remedy="Check the source's name. A lake of an earlier version has one with its sink's next batch",
                **where,
            )
        note = ""
        if cut is not None and cut > found.newest.cut:
            note = f"cut {cut} is not in the lake yet, whose newest one is {found.newest.cut}"
        elif cut is None and at_us is not None and not found.is_complete(at_us):
            note = (
                f"nothing later than {instant_text(at_us)} has come into the lake, whose newest transaction is of"
                f" {instant_text(found.newest.committed_us)}: something of before may still come"
            )
        if note and not allow_incomplete:
            raise CutNotComplete(
                _READING, note, remedy="Ask again later, for an earlier one, or allow it to be incomplete", **where
            )
        boundary = _chosen(found, cut, at_us)
        hours = keep_hours(self.cuts)
        if boundary is None or (hours is not None and not found.is_kept(boundary, now_us() - hours * HOUR_US)):
            raise _before_horizon(found, hours, where)
        return SourceCut(*name, boundary.cut, boundary.committed_us, note)

    def tables(
        self, at: SourceCut, named: Iterable[TableId], groups: Iterable[tuple[str, ...]], *, allow_incomplete: bool
    ) -> Iterator[TableAt]:
        """Raises for the first one that can't be read."""
        of_source = (at.tenant, at.source, at.cut)
        states = states_at(self.cuts, *of_source)
        conditions = conditions_at(self.events, self.validation, *of_source)
        stops = stops_at(self.errors, *of_source)
        synced = [table for table in states if not conditions.get(table, Condition()).sync_stopped]
        of_groups = [table for table in synced if any(_parts(table)[: len(group)] == group for group in groups)]
        for table in dict.fromkeys([*named, *sorted(of_groups)]):
            condition, state = conditions.get(table, Condition()), states.get(table)
            differs = _differs(condition)
            why = _unreadable(state, stops.get(table, "")) or ("" if allow_incomplete else differs)
            if why or state is None or state.changelog_version is None or state.current_version is None:
                raise _not_at_cut(table, at.cut, why, may_differ=why == differs)
            note = differs or (condition.earlier_rows_missing and f"{_LACKS}: {condition.earlier_rows_missing}")
            yield TableAt(table, state.changelog_version, state.current_version, note)


def _chosen(found: Boundaries, cut: int | None, at_us: int | None) -> Boundary | None:
    if cut is not None:
        return found.at_cut(cut)
    return found.newest if at_us is None else found.at_time(at_us)


def _before_horizon(found: Boundaries, hours: int | None, where: Mapping[str, str]) -> CutBeforeHorizon:
    since_us = now_us() - (hours or 0) * HOUR_US
    first = next(each for each in found.found if hours is None or found.is_kept(each, since_us))
    kept = f"old versions stay for {hours} hours" if hours is not None else "nothing before it was recorded"
    return CutBeforeHorizon(
        _READING,
        f"the first cut that can be read is {first.cut}, of {instant_text(first.committed_us)}: {kept}",
        remedy="Ask for a later one; a sink with more --keep-hours keeps versions for longer from then on",
        source=where["source"],
    )


def _unreadable(state: TableState | None, stopped: str) -> str:
    if state is None:
        return "the lake had no row of it then"
    if state.is_lost:
        return "its folder was lost since then, and made anew from the landing"
    if state.changelog_version is None or state.current_version is None:
        return f"it had stopped with {stopped}" if stopped else "an earlier run of the sink had brought it further"
    return ""


def _differs(condition: Condition) -> str:
    """Why its rows may not be the source's then; '' also where it never had its earlier rows."""
    if condition.sync_stopped:
        return f"its sync had ended: {condition.sync_stopped}"
    if condition.dump:
        return f"dump {condition.dump} of it had begun and not ended"
    if condition.stale:
        return f"it was to be read again: {'; '.join(condition.stale.values())}"
    return ""


def _not_at_cut(table: TableId, cut: int, why: str, *, may_differ: bool) -> TableNotAtCut:
    remedy = "Ask for another cut, or for other tables"
    return TableNotAtCut(
        _READING,
        why,
        data="Nothing was read",
        remedy=f"{remedy}, or allow it to be incomplete" if may_differ else remedy,
        **table.where(cut),
    )


@contextmanager
def _kept(table: TableId) -> Iterator[None]:
    """What is removed while it is read, or was since the cut was found."""
    try:
        yield
    except (OSError, DeltaError) as failure:
        raise CutBeforeHorizon(
            _READING,
            f"the table's version can't be read ({type(failure).__name__}): it is removed, or the store fails",
            data="Nothing was changed",
            remedy="Ask for a later cut; else check the lake's storage",
            source=table.application,
            database=table.database,
            table=table.table,
        ) from failure


def folder_path(table: TableId) -> str:
    """Where the table is below the lake, and how commands name it."""
    return table.default_folder


def _ticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
