"""One row from its source's log to what readers of the lake see, for whoever asks where it is, or why it is not there.

Comes in: a lake, a table, a primary key, and the landing where it can be reached. Goes out: a `Trace`: each change of
the row that is known, with its place at the source, in the landing, in the changelog and in the current state, and
their times; what the lake has of the table at all; and the last proof. Nothing is written.

What has gone with time is said to be gone: entries of the cut log and landed files below the landing's horizon, and the
entries of Delta's logs, by which a change is found in a version. The changelog's own rows stay for as long as its rule
says. A table's former name, and values of the key that the lake has set aside when its type changed, are not followed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

from deltalake import DeltaTable
from menura.bounds import MAX_INT64
from menura.change_batch import CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN, POSITION, TRANSACTION_ID, ChangeType

from spark_sink.errors import SinkSettingInvalid, TableNotInLake, TableStopped
from spark_sink.lake.boundaries import Condition, proofs_at
from spark_sink.lake.changelog_retention import read_kept
from spark_sink.lake.commits import Commits
from spark_sink.lake.delta_table import open_table, read_layout, schema_of
from spark_sink.lake.key_history import (
    NoSuchKey,
    RowKey,
    boundary_entries,
    changes_of,
    events_of,
    files_of,
    first_keys_gsn,
    read_key,
    removes,
    rows_now,
    said_of,
    verdicts_of,
)
from spark_sink.lake.records import Records, StoppedTable
from spark_sink.lake.table_folders import table_folder
from spark_sink.lake.tail import rows_of
from spark_sink.lake.validation_records import ValidationRecords
from spark_sink.landed.cut_search import CutSearch, LandedPlace, SearchedLongEnough
from spark_sink.landed.cut_search import files_of as landed_files_of
from spark_sink.landed.landed_file import open_landed
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import CHANGELOG, CURRENT, ChunkFacts, TableFile, TableId

#: of a key, the newest
MOST_CHANGES = 1000
#: behind the lake, that are looked through
MOST_ENTRIES, MOST_FILES = 1000, 1000

_UPDATE = (ChangeType.update_preimage.name, ChangeType.update_postimage.name)
MOVED_AWAY, MOVED_HERE, DUMPED_ROW = "update, to another key", "update, from another key", ChangeType.snapshot.name


@dataclass(frozen=True, slots=True)
class LandedAt:
    entry: int
    committed_at_us: int
    gateway: str
    cut: int
    epoch: int
    #: with each, whether it is still there
    files: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class VersionAt:
    """Of a Delta table: the first that has a change."""

    version: int
    at_us: int
    #: False: an earlier one may have it, whose entry of Delta's log is gone
    is_first: bool


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the row, or an event that took it away."""

    kind: str
    gsn: int
    transaction_id: int
    #: in the source's words
    position: str
    #: at the source; of a dump's row when it was read
    committed_us: int
    landed: LandedAt | None = None
    changelog: VersionAt | None = None
    current: VersionAt | None = None
    #: it is what readers see
    is_shown: bool = False
    #: why something of it is not known
    note: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """A verdict of the table."""

    verification: str
    verdict: str
    reason: str
    position: str
    #: changes up to this number were there when it began
    gsn: int
    cut: int
    at_us: int
    #: see `key_history.said_of`
    says_of_key: str


@dataclass(frozen=True, slots=True)
class Looked:
    """What was looked through: a key of which nothing is known has no change in it."""

    changelog_files: int
    #: that may have the key
    changelog_files_read: int
    #: the changelog has all changes from this number on; 0: all that there were
    begins_gsn: int
    #: up to which cut and number of its source the lake is
    cut: int
    gsn: int
    #: entries of the cut log that are there; 0: the landing was not looked at
    first_entry: int
    last_entry: int


@dataclass(frozen=True, slots=True)
class Trace:
    lake: str
    table: TableId
    #: name and value of each column
    key: tuple[tuple[str, str], ...]
    #: how many readers see; two are a fault
    rows: int
    #: in order; the newest `MOST_CHANGES`
    changes: tuple[Change, ...]
    is_cut_off: bool
    #: landed, and not in the lake yet
    waiting: tuple[Change, ...]
    #: the table's starts, stops, gaps, dumps and repairs, in order
    events: tuple[Mapping[str, Any], ...]
    #: why the lake may lack changes of the table
    notes: tuple[str, ...]
    newest: Proof | None
    equal: Proof | None
    looked: Looked


def trace(lake: str, table: TableId, words: Sequence[str], landing: str | None = None) -> Trace:
    """Raises `TableNotInLake`, `SinkSettingInvalid`; OSError and DeltaError of stores."""
    changelog, current = _opened(lake, table)
    key = _key(table, current if current is not None else changelog, words)
    now = rows_now(rows_of(table, current, changelog), key) if current is not None else []
    records = Records(lake)
    events = events_of(records.events_folder, table)
    stop = records.stopped_tables().get(table)
    places = _Places.opened(table, lake, landing, changelog, current)
    rows = changes_of(changelog, key, MOST_CHANGES + 1)
    is_cut_off = len(rows) > MOST_CHANGES
    changes = [places.placed(change) for change in _changes(rows[-MOST_CHANGES:])]
    if now and changes:
        changes = [replace(each, is_shown=each.gsn in now and each.kind != MOVED_AWAY) for each in changes]
    waiting, unread = places.waiting(key, stop)
    removals = _removals(events, key, changes, is_gone=not now)
    validation = ValidationRecords(lake).folder
    newest, equal = (_proof(found, key) for found in verdicts_of(validation, table))
    since_gsn = proofs_at(open_table(validation), table.tenant, table.source, MAX_INT64).get(table, 0)
    keys_gsn = first_keys_gsn(records.events_folder, table)
    return Trace(
        lake,
        table,
        tuple((name, str(column[0])) for name, column in zip(key.names, key.row.columns, strict=True)),
        len(now),
        tuple(sorted([*changes, *removals], key=lambda each: each.gsn)),
        is_cut_off,
        waiting,
        tuple(events),
        tuple(_notes(events, Condition(keys_gsn=keys_gsn), since_gsn, stop, unread)),
        newest,
        equal,
        places.looked(key),
    )


def _opened(lake: str, table: TableId) -> tuple[DeltaTable, DeltaTable | None]:
    changelog = open_table(f"{table_folder(lake, table)}/{CHANGELOG}")  # first: see `reading.open_rows`
    if changelog is None:
        raise TableNotInLake(
            "tracing a row",
            f"{table} has no changelog in {lake}: no change of it has come, or it is not synced",
            remedy=f"See what its source and its agent say: menura table show {table.source}"
            f" {table.database}.{table.table}; a table that a filter or the host's policy keeps has no changes here",
        )
    return changelog, open_table(f"{table_folder(lake, table)}/{CURRENT}")


def _key(table: TableId, held: DeltaTable, words: Sequence[str]) -> RowKey:
    names = read_layout(held).key
    if not names:
        raise SinkSettingInvalid(
            "tracing a row",
            f"{table} has no primary key, so nothing tells its rows apart",
            remedy="Read its changelog: spark_sink.reading.changelog",
        )
    try:
        return read_key(schema_of(held), names, words)
    except NoSuchKey as wrong:
        raise SinkSettingInvalid(
            "tracing a row", str(wrong), remedy=f"Give a value for each of: {', '.join(names)}"
        ) from wrong


def _changes(rows: Sequence[Mapping[str, Any]]) -> Iterator[Change]:
    """Both images of an update that leaves the key as it is are one change, with the later one's number."""
    kinds = [row[CHANGE_TYPE] for row in rows]
    joined = {
        place
        for place, (row, later) in enumerate(pairwise(rows))
        if (row[CHANGE_TYPE], later[CHANGE_TYPE]) == _UPDATE and later[GSN] - row[GSN] in (0, 1)
    }
    words = {ChangeType.update_preimage.name: MOVED_AWAY, ChangeType.update_postimage.name: MOVED_HERE}
    for place, (row, kind) in enumerate(zip(rows, kinds, strict=True)):
        if place in joined:
            continue
        word = "update" if place - 1 in joined else words.get(kind, kind)
        facts = (row[TRANSACTION_ID], row[POSITION], row[COMMIT_TIMESTAMP_US])
        yield Change(word, row[GSN], *facts)


def _removals(
    events: Sequence[Mapping[str, Any]], key: RowKey, changes: Sequence[Change], *, is_gone: bool
) -> Iterator[Change]:
    """Events that took the row away: all that emptied the table, and after the last change the one that did."""
    if not changes:
        return
    last = changes[-1]
    for event in events:
        is_later = is_gone and last.kind not in ("delete", MOVED_AWAY) and event[GSN] > last.gsn
        if (event["removes_rows"] and event[GSN] > changes[0].gsn) or (is_later and removes(event, key, last.gsn)):
            yield Change(f"removed by {event['kind']}", event[GSN], 0, event[POSITION], event[COMMIT_TIMESTAMP_US])


def _notes(
    events: Sequence[Mapping[str, Any]], condition: Condition, since_gsn: int, stop: StoppedTable | None, unread: str
) -> Iterator[str]:
    """`since_gsn`: where the newest verification began by which the table was equal; 0: there is none."""
    for event in events:
        condition.follow(event)
        if event["kind"] == "LOG_GAP":
            yield f"its source's log had a gap, from {event['gap_from']} to {event['gap_to']}"
    condition.proven(since_gsn)
    if condition.sync_stopped:
        yield f"its sync had ended: {condition.sync_stopped}"
    if condition.earlier_rows_missing:
        yield f"it lacks rows of before its sync: {condition.earlier_rows_missing}"
    if condition.dump:
        yield f"dump {condition.dump} of it has begun and not ended"
    yield from (f"rows below gsn {gsn} may be stale: {why}" for gsn, why in condition.stale.items())
    if stop is not None:
        yield f"the lake stopped it at cut {stop.cut}, {stop.code}: {stop.message}"
    if unread:
        yield unread


def _proof(row: Mapping[str, Any] | None, key: RowKey) -> Proof | None:
    if row is None:
        return None
    facts = (row["verification"], row["verdict"], row["reason"] or "", row["position"] or "")
    return Proof(*facts, row["gsn"] or 0, row["cut"] or 0, row["at_us"], said_of(row, key))


@dataclass(frozen=True, slots=True)
class _Places:
    """Where changes of a table are, beside their rows in the changelog."""

    table: TableId
    changelog: DeltaTable
    current: DeltaTable | None
    of_changelog: Commits
    of_current: Commits | None
    log: LandingLog | None
    search: CutSearch | None
    #: of the cut log, up to which all tables of the source have what is theirs, but those that have stopped
    last_entry: int

    @classmethod
    def opened(
        cls, table: TableId, lake: str, landing: str | None, changelog: DeltaTable, current: DeltaTable | None
    ) -> "_Places":
        entries, last_entry = boundary_entries(Records(lake).cuts_folder, table.tenant, table.source)
        log = LandingLog(landing) if landing is not None else None
        search = CutSearch(log, table.tenant, table.source, entries) if log is not None else None
        folder = table_folder(lake, table)
        of_current = Commits(f"{folder}/{CURRENT}", current.version()) if current is not None else None
        of_changelog = Commits(f"{folder}/{CHANGELOG}", changelog.version())
        return cls(table, changelog, current, of_changelog, of_current, log, search, last_entry)

    def placed(self, change: Change) -> Change:
        landed, note = self._landed(change)
        application = self.table.application
        least = {f"{application}/gsn": change.gsn}
        if change.kind == DUMPED_ROW:  # its number is that of a change; its cut says when it came
            if landed is None:
                return replace(change, note=note or "the landing alone says with which cut a dump's row came")
            least = {f"{application}/chunks": landed.cut, application: landed.cut}
        versions = [_version(commits, least) for commits in (self.of_changelog, self.of_current)]
        return replace(change, landed=landed, changelog=versions[0], current=versions[1], note=note)

    def _landed(self, change: Change) -> tuple[LandedAt | None, str]:
        if self.search is None:
            return None, ""
        names = (self.table.database, self.table.table, change.gsn)
        try:
            if change.kind == DUMPED_ROW:
                place = self.search.of_chunk(*names, change.committed_us)
            else:
                place = self.search.of_change(*names)
        except SearchedLongEnough:
            return None, "its entry is not among those of the cut log that were searched"
        if place is None:
            return (
                None,
                f"its entry is below the landing's horizon: entries from {self.search.first_entry} on are there",
            )
        return self._at(place), "" if place.files else "a parent's change made it, by a foreign key: it has no file"

    def _at(self, place: LandedPlace) -> LandedAt:
        assert self.log is not None
        files = tuple((file.path, self.log.has_data(file.path)) for file in place.files)
        entry, cut = place.entry, place.cut
        return LandedAt(entry.entry, entry.committed_at_us, entry.gateway, cut.cut, cut.epoch, files)

    def waiting(self, key: RowKey, stop: StoppedTable | None) -> tuple[tuple[Change, ...], str]:
        """The row's changes in landed files that the lake does not have yet; and what was not looked through."""
        if self.search is None:
            return (), ""
        first = stop.entry if stop is not None else self.last_entry + 1
        held_cut = self.changelog.transaction_version(self.table.application) or 0
        found: list[Change] = []
        files = 0
        for entry, cut in self.search.cuts(first, first + MOST_ENTRIES - 1):
            chunks = {(chunk.dump, chunk.chunk): chunk for chunk in cut.chunks}
            for file in landed_files_of(cut, self.table.database, self.table.table) if cut.cut > held_cut else ():
                files += 1
                if files > MOST_FILES:
                    return tuple(found), f"of landed entries from {first} on {MOST_FILES} files were looked through"
                chunk = chunks.get((file.dump, file.chunk)) if file.dump else None
                facts = ChunkFacts(chunk.range, chunk.gsn, chunk.read_at_us, chunk.position, False) if chunk else None
                sizes = (file.rows, file.bytes, file.first_gsn, file.last_gsn)
                named = TableFile(entry.entry, cut.cut, file.schema_id, file.path, *sizes, chunk=facts)
                try:
                    rows = _rows_in(self.log, self.table, named, key)
                except TableStopped as unreadable:
                    return tuple(found), f"a landed file is not looked through: {unreadable}"
                place = self._at(LandedPlace(entry, cut, (file,)))
                found.extend(replace(change, landed=place) for change in _changes(rows))
        if first + MOST_ENTRIES <= self.search.last_entry:
            return tuple(found), f"of landed entries from {first} on {MOST_ENTRIES} were looked through"
        return tuple(found), ""

    def looked(self, key: RowKey) -> Looked:
        files, read = files_of(self.changelog, key)
        application = self.table.application
        cut, gsn = (self.changelog.transaction_version(name) or 0 for name in (application, f"{application}/gsn"))
        entries = (self.search.first_entry, self.search.last_entry) if self.search is not None else (0, 0)
        return Looked(files, read, read_kept(self.changelog).begins_gsn, cut, gsn, *entries)


def _version(commits: Commits | None, least: Mapping[str, int]) -> VersionAt | None:
    found = commits.first_reaching(least) if commits is not None else None
    return VersionAt(found.commit.version, found.commit.at_us, found.is_first) if found is not None else None


def _rows_in(log: LandingLog | None, table: TableId, file: TableFile, key: RowKey) -> list[dict[str, Any]]:
    """Of the key, in a landed file. Raises `TableStopped`."""
    assert log is not None
    found: list[dict[str, Any]] = []
    for rows in open_landed(log, table, file).tables():
        if all(name in rows.column_names for name in key.names):
            typed = rows.select(list(dict.fromkeys([*rows.column_names[:5], *key.names])))
            found.extend(islice(key.of(typed).to_pylist(), MOST_CHANGES))
    return found
