"""Spark streaming source over the gateway's cut log: entries in, one row per cut, landed file and table event out.

An offset is an entry's number and the landing that it counts in: `{"entry": 7, "landing": "5b0c..."}` means that
entries up to 7 are behind. Entries are read upward until one is missing, so a batch costs as many small reads as it has
entries, however old the log is. One that is gone while a later one is there, or of another landing, is a problem.
A batch ends before the entry with which it would exceed a limit in cuts, files or bytes; one entry always fits.

All rows of one table, and of those that foreign keys join it with (`families`), stand in one partition, each table's
in the order of the log, so that the partition's task can apply them. An entry that can't be read is delivered alone, as
a row with `problem`: the batch that holds it then fails in the driver with the reason, and again after a restart, until
the entry can be read.
Nothing here is durable; the checkpoint holds the offset.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from menura.landing import LandedChunk, LandedCut, LandedEvent, LandedFile, LandedStart, LandedStop, LogEntry
from menura.stores.options import parse, use
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from spark_sink.errors import LogEntryUnreadable
from spark_sink.ingest.families import Families
from spark_sink.ingest.parallelism import read_partitions
from spark_sink.lake.records import Records
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import ChunkFacts, TableId, is_cut, row_table

FORMAT_NAME = "menura_cut_log"
#: one row per landed file or event (then `path` or `event`, a JSON document, is there); without `table`, of a cut, or
#: an event that says what became of a table's sync, and which its table does not follow (one that begins again does);
#: `digest`, a JSON document of `LandedChunk`, is there for a chunk of a verification;
#: `chunk`, a JSON document of `ChunkFacts`, is there for a file of a dump; a row with `parents`, one of
#: `ParentsChanged`, says that a table's foreign keys may have changed it
ROW_SCHEMA = pa.schema(
    [
        ("entry", pa.int64()),
        ("committed_at_us", pa.int64()),
        ("tenant", pa.string()),
        ("source", pa.string()),
        ("epoch", pa.int64()),
        ("cut", pa.int64()),
        ("first_commit_timestamp_us", pa.int64()),
        ("last_commit_timestamp_us", pa.int64()),
        ("database", pa.string()),
        ("table", pa.string()),
        ("schema_id", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("first_gsn", pa.int64()),
        ("last_gsn", pa.int64()),
        ("previous_cut", pa.int64()),
        ("plain_bytes", pa.int64()),
        ("chunk", pa.string()),
        ("event", pa.string()),
        ("digest", pa.string()),
        ("parents", pa.string()),
        ("problem", pa.string()),
        ("is_missing", pa.bool_()),
    ]
)
_DDL_TYPES = {pa.int64(): "BIGINT", pa.string(): "STRING", pa.bool_(): "BOOLEAN"}
ROW_DDL = ", ".join(f"`{field.name}` {_DDL_TYPES[field.type]}" for field in ROW_SCHEMA)

Row = dict[str, Any]

#: a table's rows follow one with a number of its own alone
SYNC_STARTED = "SYNC_STARTED"
SYNC_STOPPED = "SYNC_STOPPED"

#: between two looks for entries behind one that is not there
LOOK_SECONDS = 10.0


#: a byte of a dump's chunk is about as much work as so many of changes: for each key the table is asked what it has
CHUNK_WEIGHT = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a batch may take; more makes other tables wait for it."""

    cuts: int = 10_000
    files: int = 50_000
    #: of changes; a chunk's bytes count `CHUNK_WEIGHT` times
    bytes: int = 1 << 30


@dataclass
class RowsPartition(InputPartition):
    """The rows themselves: names and numbers, some hundred bytes a file."""

    rows: list[Row]


class CutLogSource(DataSource):
    """Options: landing, lake, storage (words of storage options), beginsBehind (an entry), three limits.

    `partitions` is a file with the number of tasks that a batch may have.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> str:
        return ROW_DDL

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: ANN401  (Spark's signature)
        default = Limits()
        limits = Limits(
            cuts=int(self.options.get("maxCuts", default.cuts)),
            files=int(self.options.get("maxFiles", default.files)),
            bytes=int(self.options.get("maxBytes", default.bytes)),
        )
        if "storage" in self.options:  # this is a process of its own, with the driver's environment
            use(parse(json.loads(self.options["storage"])))
        log = LandingLog(str(self.options["landing"]))
        events = Records(str(self.options["lake"])).events_folder if "lake" in self.options else ""
        partitions = partial(read_partitions, Path(str(self.options["partitions"])))
        return CutLogReader(log, partitions, limits, events, int(self.options.get("beginsBehind", 0)))


class CutLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(
        self,
        log: LandingLog,
        partitions: Callable[[], int],
        limits: Limits,
        events_folder: str = "",
        begins_behind: int = 0,
    ) -> None:
        self.log = log
        self._begins_behind = begins_behind
        self._partitions = partitions
        self.limits = limits
        #: nothing behind what was there at the first batch
        self._is_bounded = False
        self._last_entry: int | None = None
        #: entries between `latestOffset` and `partitions`
        self._read: dict[int, LogEntry] = {}
        #: of each source the highest epoch and the last cut's number, as far as this reader has come
        self._last_cuts: dict[tuple[str, str], tuple[int, int]] = {}
        self._checked_entry = 0
        self._events_folder = events_folder
        self._landing = ""
        #: entries that are gone, and how that is known
        self._missing: dict[int, str] = {}
        self._next_look = 0.0
        self._families: Families | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"entry": self._begins_behind}

    def getDefaultReadLimit(self) -> ReadLimit:
        # One limit is all that Spark can carry; `latestOffset` applies all three.
        return ReadMaxFiles(self.limits.files)

    def prepareForTriggerAvailableNow(self) -> None:
        self._is_bounded = True

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The last entry of the next batch; `start` itself when nothing new is there."""
        first = last = int(start["entry"])
        self._landing = self._landing or str(start.get("landing", ""))
        if self._is_bounded and self._last_entry is None:
            last_entry = self.log.last_entry(after=first)
            # What is gone is there now, as a problem.
            self._last_entry = last_entry + bool(self.log.missing(last_entry + 1))
        cuts = files = size_bytes = 0
        limited = not isinstance(limit, ReadAllAvailable)
        while (self._last_entry is None or last < self._last_entry) and (entry := self._entry(last + 1)) is not None:
            if isinstance(entry, str):
                last += last == first
                break
            cuts += len(entry.cuts)
            files += sum(len(cut.files) for cut in entry.cuts)
            size_bytes += sum(
                file.bytes * (CHUNK_WEIGHT if file.dump else 1) for cut in entry.cuts for file in cut.files
            )
            too_much = cuts > self.limits.cuts or files > self.limits.files or size_bytes > self.limits.bytes
            if limited and too_much and last > first:
                break
            last += 1
        if last == first:
            return dict(start)
        return {"entry": last, "landing": self._landing} if self._landing else {"entry": last}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        first, last = int(start["entry"]) + 1, int(end["entry"])
        families = self._known_families()
        rows: list[Row] = []
        problems: list[Row] = []
        for number in range(first, last + 1):
            entry = self._entry(number)
            if isinstance(entry, str | None):
                problems.extend(problem_row(number, entry, is_missing=number in self._missing))
            else:
                families.note(entry)
                rows.extend(entry_rows(entry))
        self._read = {number: entry for number, entry in self._read.items() if number > last}
        rows = [*problems, *families.arranged(rows)]
        return [RowsPartition(part) for part in divide(rows, self._partitions(), families.family)]

    def _known_families(self) -> Families:
        if self._families is None:
            self._families = Families()
            if self._events_folder:
                self._families.read(self._events_folder)
        return self._families

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowsPartition)
        yield pa.RecordBatch.from_pylist(partition.rows, schema=ROW_SCHEMA)

    def _entry(self, number: int) -> LogEntry | str | None:
        """The entry, why it can't be read, or None when it is not there."""
        if number not in self._read:
            try:
                entry = self.log.read_entry(number)
            except LogEntryUnreadable as unreadable:
                return unreadable.found
            if entry is None:
                return self._why_missing(number)
            problem = self._check_landing(entry) or self._check_sequence(entry)
            if problem:
                return problem
            self._read[number] = entry
        return self._read[number]

    def _why_missing(self, number: int) -> str | None:
        """Looked for again only after a while, as most often nothing new has landed."""
        if number not in self._missing and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            if found := self.log.missing(number):
                self._missing[number] = found
        return self._missing.get(number)

    def _check_landing(self, entry: LogEntry) -> str:
        """Why an entry is another landing's; '' where it is not."""
        if not entry.landing:
            return ""
        self._landing = self._landing or entry.landing
        if entry.landing == self._landing:
            return ""
        return f"it is of landing {entry.landing}, and those before it are of landing {self._landing}"

    def _check_sequence(self, entry: LogEntry) -> str:
        """Why an entry's cuts do not follow those before it; '' when they do."""
        if entry.entry <= self._checked_entry:
            return ""
        last = dict(self._last_cuts)
        for fence in entry.fences:
            if (fence.tenant, fence.source) in last:
                epoch, number = last[fence.tenant, fence.source]
                last[fence.tenant, fence.source] = (max(epoch, fence.epoch), number)
        for cut in entry.cuts:
            epoch, number = last.get((cut.tenant, cut.source), (cut.epoch, cut.cut - 1))
            if cut.cut != number + 1 or cut.epoch < epoch:
                return (
                    f"source {cut.tenant}/{cut.source} goes from cut {number} of epoch {epoch} "
                    f"to cut {cut.cut} of epoch {cut.epoch}"
                )
            last[cut.tenant, cut.source] = (cut.epoch, cut.cut)
        self._last_cuts, self._checked_entry = last, entry.entry
        return ""


def problem_row(number: int, problem: str | None, *, is_missing: bool) -> list[Row]:
    missing = "it is gone, though a batch that holds it had begun"
    return [{"entry": number, "problem": problem or missing, "is_missing": is_missing or not problem}]


def entry_rows(entry: LogEntry) -> list[Row]:
    """Rows of `ROW_SCHEMA`: each cut, then its files and events in the order of their numbers; before it its syncs'."""
    rows: list[Row] = []
    for cut in entry.cuts:
        facts = _cut_facts(entry, cut)
        rows.extend(facts | {"event": _document(event)} for event in sync_events(cut))
        rows.append(facts)
        chunks = {(chunk.dump, chunk.chunk): _chunk_facts(cut, chunk) for chunk in cut.chunks}
        files = [_file_facts(file, cut, chunks[file.dump, file.chunk] if file.dump else None) for file in cut.files]
        events = map(_event_facts, [*starts_again(cut), *cut.events])
        rows.extend(facts | row for row in sorted([*files, *events], key=_place))
        rows.extend(facts | _digest_facts(cut, chunk) for chunk in cut.chunks if chunk.digest is not None)
    return rows


def sync_events(cut: LandedCut) -> list[LandedEvent]:
    """What a cut says of syncs, as events: a start comes before the cut's first row, a stop after its last.

    `statement` of a start says whether earlier rows are missing, and why; of a stop, its error.
    """
    numbers = [each.first_gsn for each in cut.files if not each.dump] + [each.gsn for each in cut.events]
    first_gsn = min(numbers, default=cut.last_gsn)
    started = [
        _sync_event(cut, each, SYNC_STARTED, first_gsn, each.earlier_rows_missing)
        for each in cut.started
        if not each.gsn
    ]
    stops = [_sync_event(cut, each, SYNC_STOPPED, cut.last_gsn, f"{each.code}: {each.message}") for each in cut.stopped]
    return started + stops


def starts_again(cut: LandedCut) -> list[LandedEvent]:
    """Starts that have a number of their own, which their tables follow."""
    return [
        _sync_event(cut, each, SYNC_STARTED, each.gsn, each.earlier_rows_missing) for each in cut.started if each.gsn
    ]


def _sync_event(cut: LandedCut, of: LandedStart | LandedStop, kind: str, gsn: int, statement: str) -> LandedEvent:
    return LandedEvent(
        of.database,
        of.table,
        kind,
        gsn,
        cut.last_transaction_id,
        cut.last_commit_timestamp_us,
        of.position.text,
        statement,
        removes_rows=False,
    )


def _document(event: LandedEvent) -> str:
    return json.dumps(asdict(event), ensure_ascii=False)


def _place(row: Row) -> int:
    return int(row["first_gsn"])


def _chunk_facts(cut: LandedCut, chunk: LandedChunk) -> ChunkFacts:
    """Right after an event DUMPED that removes all rows, a chunk is the whole table."""
    ended = {(event.dump, event.gsn + 1) for event in cut.events if event.dump and event.removes_rows}
    is_whole = (chunk.dump, chunk.gsn) in ended
    return ChunkFacts(chunk.range, chunk.gsn, chunk.read_at_us, chunk.position, is_whole, chunk.repairs)


def _file_facts(file: LandedFile, cut: LandedCut, chunk: ChunkFacts | None) -> Row:
    is_range = chunk is not None and not chunk.is_whole
    return {
        "database": file.database,
        "table": file.table,
        "schema_id": file.schema_id,
        "path": file.path,
        "rows": file.rows,
        "bytes": file.bytes,
        "previous_cut": file.previous_cut,
        "plain_bytes": file.plain_bytes,
        "first_gsn": cut.last_gsn if is_range else file.first_gsn,
        "last_gsn": cut.last_gsn if is_range else file.last_gsn,
        "chunk": json.dumps(asdict(chunk)) if chunk is not None else None,
    }


def _digest_facts(cut: LandedCut, chunk: LandedChunk) -> Row:
    return {
        "database": chunk.database,
        "table": chunk.table,
        "rows": 0,
        "bytes": 0,
        "first_gsn": cut.last_gsn,
        "last_gsn": cut.last_gsn,
        "digest": json.dumps(asdict(chunk), ensure_ascii=False),
    }


def _event_facts(event: LandedEvent) -> Row:
    return {
        "database": event.database,
        "table": event.table,
        "rows": 0,
        "bytes": 0,
        "first_gsn": event.gsn,
        "last_gsn": event.gsn,
        "event": _document(event),
    }


def _cut_facts(entry: LogEntry, cut: LandedCut) -> Row:
    return {
        "entry": entry.entry,
        "committed_at_us": entry.committed_at_us,
        "tenant": cut.tenant,
        "source": cut.source,
        "epoch": cut.epoch,
        "cut": cut.cut,
        "first_commit_timestamp_us": cut.first_commit_timestamp_us,
        "last_commit_timestamp_us": cut.last_commit_timestamp_us,
    }


#: what opening and committing a table costs, in bytes of landed rows that could be merged meanwhile
TABLE_COST_BYTES = 256 << 10


def divide(
    rows: Sequence[Row], parts: int, family: Callable[[TableId], TableId] = lambda table: table
) -> list[list[Row]]:
    """Rows in at most `parts` lists of about equal work: those of a family's tables stay together and in order.

    The heaviest first, each to the lightest list. Rows of cuts stand in the first list.
    """
    cuts = [row for row in rows if is_cut(row)]
    families: dict[TableId, list[Row]] = {}
    costs: dict[TableId, int] = {}
    of_table: dict[TableId, TableId] = {}
    for row in rows:
        if not is_cut(row):
            table = row_table(row)
            if table not in of_table:
                of_table[table] = family(table)
                costs[of_table[table]] = costs.get(of_table[table], 0) + TABLE_COST_BYTES
            families.setdefault(of_table[table], []).append(row)
            costs[of_table[table]] += row["bytes"]
    lists: list[list[Row]] = [[] for _ in range(max(1, min(parts, len(families))))]
    lists[0].extend(cuts)
    loads = [0] * len(lists)
    for found in sorted(families, key=lambda found: -costs[found]):
        lightest = loads.index(min(loads))
        lists[lightest].extend(families[found])
        loads[lightest] += costs[found]
    return [part for part in lists if part]
