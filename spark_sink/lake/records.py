"""What the sink itself records in the lake: small Delta tables under LAKE/_menura, written by the driver.

``cuts``    one row per (source, boundary, table that changed since the boundary before). A boundary is the
            last cut of a source in a micro-batch: the only cuts at which every table has a version. A table's
            versions at boundary B are those of its last row with `cut` <= B; null there means that the table is
            not readable at B (it had stopped, or an earlier run had brought it further). `whole`: a batch's, so that
            all tables have everything up to this cut; else the row is of one table that was tried again, or merged, and
            others may lack what this cut has. A batch that changes no table of a source has a row without a table.
            Where `merged_gsn` is not null, the rows at B are those of the current state's version and, over them, the
            changes with a higher number of the changelog's version (`tail`; `spark_sink.reading` reads both). When
            these are merged, B gets another row, with the version that has them.
            `changelog_begins_gsn` is there once the changelog has been shortened with the boundary: from that number on
            it has all changes.
``tables``  one row per table that the sink has written or tried to write, or more, with its folder (`table_folders`); a
            lake of an earlier version gets it with the next start. Who lists tables reads this one.
``errors``  one row per change of a table's state: `code` says why it stopped, '' that it goes on (then `message` says
            which changes its changelog lacks, if any); those from before the hours that versions are kept go, but each
            table's last. `begins_at_gsn`: its lake table begins anew with the event of
            that number, and nothing before is followed; null: it goes on where it stopped. A table that goes on has it
            while nothing of it is written since then: once something is, `cuts` has a version of its changelog at
            this entry or a later one. A lake of an earlier version
            gets the columns that it lacks with the next row; they are null in its rows.
``events``  one row per event of a table (its definition changed, it was truncated, a dump of it ended, its sync was
            started or stopped, the source's log had a gap, ...), in order with rows by `_gsn`; SYNC_STARTED has the
            number of its cut's first row and comes before it, and `statement` says which earlier rows are missing;
            one after which rows may come once more has a number of its own, and empties a table without a key;
            SYNC_STOPPED has its cut's last number, and its error as `statement`; `columns` is a JSON array of
            `menura.landing.LandedColumn`, `foreign_keys` one of `LandedForeignKey`. Its commits carry Delta's `txn`
            {TENANT/SOURCE: cut}, so each event is there once. A lake of an earlier version gets the columns that it
            lacks (from `dump` on) with the next event; its rows have null.
``landing`` no rows; its property `menura.landing` is the identity of the landing whose rows the lake has.

The batch's events are written before its `cuts`: who reads tables at a boundary finds all events up to it. A table's
last version shows them a moment earlier. All are written after the batch's tables and before Spark's checkpoint moves.
A kill between leaves the batch to be replayed; its rows then carry the same `txn` and are left out, or say the same
again, and a reader takes the last of equal (source, cut, table). The last row is the one with the highest `number`: a
clock may go back.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from menura.change_batch import COMMIT_TIMESTAMP_US, GSN, POSITION, TRANSACTION_ID
from menura.instants import now_us
from menura.stores.options import delta_options

from spark_sink.errors import CascadeUncertain, EntriesGone, ParentBegunAnew
from spark_sink.lake.delta_table import (
    add_columns,
    commit_properties,
    make_folder,
    open_table,
    quoted,
    scan,
)
from spark_sink.lake.folder_rules import DEFAULT_FOLDERS, FolderRules
from spark_sink.lake.record_rows import FOLDER, NUMBER, append_rows, number_of, recording, table_facts
from spark_sink.lake.retention import KEEP_HOURS, clean, is_due
from spark_sink.lake.table_folders import TABLE, TableFolders
from spark_sink.work import CutSeen, EventSeen, Outcome, Result, TableId

#: of `cuts`
MERGED_GSN = "merged_gsn"
WHOLE = "whole"
DEPARTURE = "departure"
CUTS_SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("source", pa.string()),
        ("cut", pa.int64()),
        ("entry", pa.int64()),
        ("last_commit_timestamp_us", pa.int64()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("changelog_version", pa.int64()),
        ("current_version", pa.int64()),
        ("applied_at_us", pa.int64()),
        (NUMBER, pa.int64()),
        (MERGED_GSN, pa.int64()),
        ("changelog_begins_gsn", pa.int64()),
        (WHOLE, pa.bool_()),
        (DEPARTURE, pa.string()),
    ]
)
EVENTS_SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("source", pa.string()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("kind", pa.string()),
        (GSN, pa.int64()),
        ("cut", pa.int64()),
        (TRANSACTION_ID, pa.int64()),
        (COMMIT_TIMESTAMP_US, pa.int64()),
        (POSITION, pa.string()),
        ("statement", pa.string()),
        ("removes_rows", pa.bool_()),
        ("new_database", pa.string()),
        ("new_table", pa.string()),
        ("columns", pa.string()),
        ("dump", pa.string()),
        ("removes_rows_before_gsn", pa.int64()),
        ("unlogged_changes", pa.string()),
        ("foreign_keys", pa.string()),
        ("unchecked_from_gsn", pa.int64()),
        ("gap_from", pa.string()),
        ("gap_to", pa.string()),
        ("repaired", pa.string()),
    ]
)
ERRORS_SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("source", pa.string()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("entry", pa.int64()),
        ("cut", pa.int64()),
        ("code", pa.string()),
        ("message", pa.string()),
        ("terminal", pa.bool_()),
        ("at_us", pa.int64()),
        ("last_commit_timestamp_us", pa.int64()),
        ("begins_at_gsn", pa.int64()),
        (NUMBER, pa.int64()),
    ]
)
LANDING_PROPERTY = "menura.landing"
LANDING_SCHEMA = pa.schema([("at_us", pa.int64())])
SHORTEN_EVERY_VERSIONS = 512
HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class StoppedTable:
    """A table that waits: its files from `entry` on are not in the lake."""

    table: TableId
    entry: int
    cut: int
    code: str
    message: str
    terminal: bool
    at_us: int
    #: of the newest transaction of its source that the lake had when it stopped; 0: not known
    last_commit_timestamp_us: int = 0
    #: number of the event with which it begins anew; 0: it goes on where it stopped
    begins_at_gsn: int = 0

    @property
    def is_bereft(self) -> bool:
        """A table above it has begun anew: it can only begin anew itself, above `begins_at_gsn`."""
        return self.code == ParentBegunAnew.code

    @property
    def waits_for_dump(self) -> bool:
        """Entries that it lacks are gone, so that it can only begin anew, and the log has shown no dump yet."""
        return self.code == EntriesGone.code and not self.begins_at_gsn

    @property
    def is_healed_by_dump(self) -> bool:
        """A machine may order it: what a key did is not known, and nothing else is wrong."""
        return self.code in (ParentBegunAnew.code, CascadeUncertain.code)


@dataclass(frozen=True, slots=True)
class BegunAnew:
    """A table that went on from a dump's beginning, before anything of it was written."""

    #: number of the event with which it did
    gsn: int
    #: the cut log's, that has the event
    entry: int


NONE_BEGUN: Mapping[TableId, BegunAnew] = {}


class Records:
    def __init__(
        self,
        lake: str,
        keep_hours: int = KEEP_HOURS,
        folder_rules: FolderRules = DEFAULT_FOLDERS,
        check_owned: Callable[[], object] = lambda: None,
    ) -> None:
        """`check_owned` raises a `SinkError` where another sink has the lake."""
        self._keep_hours = keep_hours
        self.lake = lake
        #: by folder, the versions at which they were cleaned and shortened last
        self._cleaned: dict[str, int | None] = {}
        self._shortened: dict[str, int | None] = {}
        self.cuts_folder = f"{lake}/{FOLDER}/cuts"
        self.events_folder = f"{lake}/{FOLDER}/events"
        self.errors_folder = f"{lake}/{FOLDER}/errors"
        self.landing_folder = f"{lake}/{FOLDER}/landing"
        self.table_folders = TableFolders(lake, self.cuts_folder, folder_rules, check_owned)

    def landing(self) -> str:
        """The identity of the landing that the lake belongs to; '' for none yet."""
        held = open_table(self.landing_folder)
        return held.metadata().configuration[LANDING_PROPERTY] if held is not None else ""

    def belongs_to(self, landing: str) -> str:
        """From now on to this one, unless another sink was first; gives the one that counts."""
        with recording(self.landing_folder):
            make_folder(self.landing_folder)
            DeltaTable.create(
                self.landing_folder,
                LANDING_SCHEMA,
                mode="ignore",
                configuration={LANDING_PROPERTY: landing},
                raise_if_key_not_exists=False,
                storage_options=delta_options(self.landing_folder),
            )
        return self.landing()

    def record_batch(self, cuts: Sequence[CutSeen], outcomes: Iterable[Outcome], *, whole: bool = False) -> None:
        """Rows of `cuts` for the tables that this batch changed or left behind; `whole`: other tables have all, too."""
        last = last_cuts(cuts)
        at_us = now_us()
        rows = []
        found = list(outcomes)
        stopped = {outcome.table for outcome in found if outcome.result in (Result.STOPPED, Result.LEFT_OUT)}
        self.table_folders.note({outcome.table for outcome in found}, stopped)
        for outcome in found:
            boundary = last[outcome.table.tenant, outcome.table.source]
            rows.append(
                {
                    **table_facts(outcome.table),
                    **_boundary_facts(boundary, at_us, whole=whole),
                    "changelog_version": outcome.changelog_version,
                    "current_version": outcome.current_version,
                    MERGED_GSN: outcome.merged_gsn or None,
                    "changelog_begins_gsn": outcome.changelog_begins_gsn or None,
                    DEPARTURE: outcome.departure or None,
                }
            )
        if whole:
            named = {(row["tenant"], row["source"]) for row in rows}
            quiet = [boundary for source, boundary in last.items() if source not in named]
            rows += [
                {"tenant": each.tenant, "source": each.source, **_boundary_facts(each, at_us, whole=True)}
                for each in quiet
            ]
        version = append_rows(self.cuts_folder, rows, CUTS_SCHEMA)
        self._clean(self.cuts_folder, version)
        self._leave_old_out(self.cuts_folder, version, CUTS_SCHEMA, "applied_at_us", _LAST_BOUNDARIES)

    def record_events(self, events: Iterable[EventSeen]) -> None:
        """Rows of `events` for those of cuts that are not recorded yet."""
        found = list(events)
        if not found:
            return
        recorded = open_table(self.events_folder)
        last: dict[str, int] = {}
        if recorded is not None:  # each answer is a look through the table's log
            last = {
                name: recorded.transaction_version(name) or 0 for name in {each.table.application for each in found}
            }
        new = [event for event in found if event.seen.cut > last.get(event.table.application, -1)]
        cuts: dict[str, int] = {}
        for event in new:
            application = event.table.application
            cuts[application] = max(event.seen.cut, cuts.get(application, 0))
        rows = sorted(map(_event_row, new), key=lambda row: (row["tenant"], row["source"], row[GSN]))
        version = append_rows(self.events_folder, rows, EVENTS_SCHEMA, commit_properties(*cuts.items()))
        self._clean(self.events_folder, version)

    def record_stops(self, stops: Iterable[StoppedTable]) -> None:
        """Rows of `errors` for tables that stopped, or that begin anew elsewhere than where they stopped."""
        rows = [
            {
                **table_facts(stop.table),
                "entry": stop.entry,
                "cut": stop.cut,
                "code": stop.code,
                "message": stop.message,
                "terminal": stop.terminal,
                "at_us": stop.at_us,
                "last_commit_timestamp_us": stop.last_commit_timestamp_us or None,
                "begins_at_gsn": stop.begins_at_gsn or None,
            }
            for stop in stops
        ]
        version = append_rows(self.errors_folder, rows, ERRORS_SCHEMA)
        self._clean(self.errors_folder, version)
        self._leave_old_out(self.errors_folder, version, ERRORS_SCHEMA, "at_us", _LAST_STOPS)

    def record_resumed(self, resumed: Iterable[tuple[Outcome, str, int]]) -> None:
        """Rows of `errors` for tables that go on, each with what its changelog lacks ('': nothing), and with the number
        of the event with which it has begun anew, where nothing of it is written yet (0: it is, or has not)."""
        at_us = now_us()
        self.record_stops(
            StoppedTable(
                outcome.table, outcome.entry, outcome.cut, "", lacking, terminal=False, at_us=at_us, begins_at_gsn=gsn
            )
            for outcome, lacking, gsn in resumed
        )

    def _clean(self, folder: str, version: int | None) -> None:
        """Where it is due at `version`, which was just written; None: nothing was."""
        if version is None:
            return
        before = self._cleaned.setdefault(folder, version)
        if is_due(folder, before, version):
            with recording(folder):
                clean(folder, self._keep_hours)
            self._cleaned[folder] = version

    def _leave_old_out(
        self, folder: str, version: int | None, schema: pa.Schema, at_us: str, last: Sequence[str]
    ) -> None:
        """Rows of before the hours, at which no table's version is readable any more, but each table's last.

        `last`: numbers of SQL, of which each table's highest are kept; so is its last old cut, at which it may be read
        still. Only files with old rows are written anew.
        """
        if version is None:
            return
        before = self._shortened.setdefault(folder, version)
        if not is_due(folder, before, version, SHORTEN_EVERY_VERSIONS):
            return
        self._shortened[folder] = version
        since_us = now_us() - self._keep_hours * HOUR_US
        with recording(folder):
            held = DeltaTable(folder, storage_options=delta_options(folder))
            add_columns(held, schema)
            is_old = f"{at_us} < {since_us}"
            last = [*last, f"CASE WHEN {is_old} THEN cut END"]
            kept = scan(held, last_rows(schema, is_old, last)).read_all()
            write_deltalake(held, kept.cast(schema), mode="overwrite", predicate=is_old)

    def last_entry(self) -> int:
        """The last one of which a batch is recorded, and with it all before it; 0 for none."""
        cuts = open_table(self.cuts_folder)
        if cuts is None:
            return 0
        (row,) = scan(cuts, "SELECT max(entry) AS entry FROM t").read_all().to_pylist()
        return int(row["entry"] or 0)

    def stopped_tables(self) -> dict[TableId, StoppedTable]:
        return stopped_tables(open_table(self.errors_folder))

    def begun_anew(self) -> dict[TableId, BegunAnew]:
        """Tables that have begun anew before anything of them was written; something may be since."""
        goes_on = (row for row in _state_changes(open_table(self.errors_folder)) if not row.code)
        last = {row.table: BegunAnew(row.begins_at_gsn, row.entry) for row in goes_on}
        return {table: begun for table, begun in last.items() if begun.gsn}


def stopped_tables(errors: DeltaTable | None) -> dict[TableId, StoppedTable]:
    """The tables whose last row in `errors` has a code."""
    last = {row.table: row for row in _state_changes(errors)}
    return {table: stop for table, stop in last.items() if stop.code}


def _state_changes(errors: DeltaTable | None) -> Iterator[StoppedTable]:
    """All rows of `errors`, in order; one without a code says that the table goes on."""
    if errors is None:
        return
    query = f"SELECT * FROM t ORDER BY {in_order(errors, 'at_us')}"  # noqa: S608  (constants)
    for row in scan(errors, query).read_all().to_pylist():
        table = TableId(row["tenant"], row["source"], row["database"], row["table"])
        yield StoppedTable(
            table,
            row["entry"],
            row["cut"],
            row["code"],
            row["message"],
            row["terminal"],
            row["at_us"],
            row.get("last_commit_timestamp_us") or 0,
            row.get("begins_at_gsn") or 0,
        )


_LAST_BOUNDARIES = (
    "CASE WHEN changelog_version IS NULL THEN cut END",
    "CASE WHEN changelog_version IS NOT NULL THEN cut END",
    "CASE WHEN current_version IS NULL THEN cut END",
    "CASE WHEN current_version IS NOT NULL THEN cut END",
)
_LAST_STOPS = (f"coalesce({NUMBER}, -1)",)


def last_rows(schema: pa.Schema, condition: str, last: Sequence[str]) -> str:
    """SQL for rows of which the condition holds and one of the expressions has its table's highest value.

    Of rows that are equal in it all are kept: so many as a batch has been done again.
    """
    of_table = ", ".join(map(quoted, TABLE))
    highest = ", ".join(f"max({each}) AS highest_{place}" for place, each in enumerate(last))
    grouped = f"SELECT {of_table}, {highest} FROM t GROUP BY {of_table}"  # noqa: S608  (constants)
    columns = ", ".join(f"t.{quoted(name)}" for name in schema.names)
    same_table = " AND ".join(f"t.{quoted(name)} = g.{quoted(name)}" for name in TABLE)
    is_last = " OR ".join(f"({each}) = g.highest_{place}" for place, each in enumerate(last))
    return f"SELECT {columns} FROM t JOIN ({grouped}) g ON {same_table} WHERE {condition} AND ({is_last})"  # noqa: S608


def in_order(records: DeltaTable, at_us: str) -> str:
    """What to order rows by, from the first written to the last: those of an earlier version have their time alone."""
    return f"{number_of(records)}, {at_us}"


def last_cuts(cuts: Iterable[CutSeen]) -> dict[tuple[str, str], CutSeen]:
    """Each source's last cut."""
    last: dict[tuple[str, str], CutSeen] = {}
    for cut in cuts:
        held = last.get((cut.tenant, cut.source))
        if held is None or held.cut < cut.cut:
            last[cut.tenant, cut.source] = cut
    return last


def _boundary_facts(boundary: CutSeen, at_us: int, *, whole: bool) -> dict[str, Any]:
    return {
        "cut": boundary.cut,
        "entry": boundary.entry,
        "last_commit_timestamp_us": boundary.last_commit_timestamp_us,
        "applied_at_us": at_us,
        WHOLE: whole,
    }


def _event_row(seen: EventSeen) -> dict[str, Any]:
    event = seen.seen.event
    new_database, new_table = event.new_name or (None, None)
    return {
        **table_facts(seen.table),
        "kind": event.kind,
        GSN: event.gsn,
        "cut": seen.seen.cut,
        TRANSACTION_ID: event.transaction_id,
        COMMIT_TIMESTAMP_US: event.commit_timestamp_us,
        POSITION: event.position,
        "statement": event.statement,
        "removes_rows": event.removes_rows,
        "new_database": new_database,
        "new_table": new_table,
        "columns": json.dumps([asdict(column) for column in event.columns], ensure_ascii=False),
        "dump": event.dump or None,
        "removes_rows_before_gsn": event.removes_rows_before_gsn or None,
        "unlogged_changes": event.unlogged_changes or None,
        "foreign_keys": json.dumps([asdict(key) for key in event.foreign_keys], ensure_ascii=False),
        "unchecked_from_gsn": event.unchecked_from_gsn or None,
        "gap_from": event.gap_from or None,
        "gap_to": event.gap_to or None,
        "repaired": json.dumps(asdict(event.repaired)) if event.repaired is not None else None,
    }
