"""Writes landing folders as the gateway does, from changes given as plain rows."""

import itertools
import json
import random
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    LANDED_COLUMNS,
    METADATA_KEY,
    METADATA_SOURCE_TYPE,
    METADATA_WHOLE_ROWS,
    UNREPRESENTABLE,
)
from menura.key_values import BINARY, TEXT, Key, KeyValue, kind_of, scale_of
from menura.landed_digest import LandedFocus
from menura.landing import (
    FOLDERS_FORMAT,
    FORMAT,
    IDENTITY_PATH,
    LandedChunk,
    LandedColumn,
    LandedCut,
    LandedEvent,
    LandedFence,
    LandedFile,
    LandedForeignKey,
    LandedPosition,
    LandedRepair,
    LandedStart,
    LandingIdentity,
    LogEntry,
    chunk_path,
    data_path,
    encode_entry,
    encode_identity,
    entry_path,
)
from menura.naming import lake_column
from menura.v1 import snapshot_pb2

from agent.columnar.encode import SnapshotRows
from agent.snapshot.digest import BucketDigest, ChunkDigest, FocusDigest
from gateway.wire.digest import focus_message, landed_digest
from spark_sink.ingest.cut_log_source import entry_rows
from spark_sink.ingest.families import Families
from spark_sink.ingest.table_task import TaskSettings, TaskSize, apply_tables, with_folders
from spark_sink.lake.changelog_retention import KEEP_ALL, KeepRules
from spark_sink.lake.recorded import Recorded
from spark_sink.lake.retention import KEEP_HOURS
from spark_sink.lake.schema_policy import EVOLVE_ALL, SchemaRules
from spark_sink.lake.table_folders import TableFolders, told_folders
from spark_sink.lake.table_options import PLAIN_TABLES, OptionRules
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.landed.lake_schema import format_of
from spark_sink.landed.landing_log import LandingLog
from spark_sink.reading import current_state
from spark_sink.work import Message, Outcome, TableId, split_rows

Values = Mapping[str, object]
Change = tuple[str, Values]
COMMIT_US = 1_700_000_000_000_000


def insert(**values: object) -> list[Change]:
    return [("insert", values)]


def delete(**values: object) -> list[Change]:
    return [("delete", values)]


def update(before: Values, after: Values) -> list[Change]:
    return [("update_preimage", before), ("update_postimage", after)]


@dataclass(frozen=True)
class Table:
    """A table at one schema version: columns in order, and its key's."""

    name: str
    columns: Mapping[str, pa.DataType]
    key: Sequence[str] = ("id",)
    database: str = "shop"
    #: what its source says of rows that lack values
    whole_rows: str = ""
    #: in its source's words
    source_types: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema_id(self) -> str:
        return f"{abs(hash((tuple(self.columns.items()), tuple(self.key)))) % 16**16:016x}"

    def landed_schema(self) -> pa.Schema:
        text = pa.dictionary(pa.int32(), pa.string())
        meta = [text, pa.int64(), pa.int64(), pa.int64(), text]
        places = {name: str(place) for place, name in enumerate(self.key, 1)}
        metadata = [
            {
                key: told[name]
                for key, told in ((METADATA_KEY, places), (METADATA_SOURCE_TYPE, self.source_types))
                if name in told
            }
            for name in self.columns
        ]
        own = [pa.field(*column, metadata=found) for column, found in zip(self.columns.items(), metadata, strict=True)]
        tail = [pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, pa.dictionary(pa.int32(), pa.binary()))]
        facts = {METADATA_WHOLE_ROWS: self.whole_rows} if self.whole_rows else None
        return pa.schema([*map(pa.field, LANDED_COLUMNS, meta), *own, *tail], metadata=facts)


@dataclass(frozen=True)
class Event:
    """An event among a cut's batches."""

    table: Table
    kind: str
    removes_rows: bool = False
    columns: tuple[LandedColumn, ...] = ()
    statement: str = ""
    removes_rows_before_gsn: int = 0
    dump: str = ""
    foreign_keys: tuple[LandedForeignKey, ...] = ()
    unlogged_changes: str = ""
    #: how many rows just before it nobody has checked
    unchecked_rows: int = 0
    repaired: LandedRepair | None = None
    #: of VERIFICATION_STARTED: the agent tells anew
    reread: bool = False


@dataclass(frozen=True)
class Chunk:
    """Rows that a dump read; without a number the whole table, right after the event that ends its dump."""

    table: Table
    rows: Sequence[Values]
    gsn: int | None = None
    range: int = 0
    dump: str = "dump-1"
    repairs: bool = False


def _key(key: int | Key | None) -> Key:
    return (key,) if isinstance(key, int) else key or ()


def _bound(key: int | Key | None) -> str:
    return json.dumps([*map(str, _key(key)), "#order"]) if _key(key) else ""


def key_kinds(table: Table) -> tuple[str, ...]:
    """Of the key's first columns, where texts have none."""
    return tuple(takewhile(bool, (kind_of(format_of(table.columns[name])) for name in table.key)))


def key_values(table: Table, row: Values, kinds: Sequence[str]) -> Key:
    """Of a row's key, by Python's own values."""
    return tuple(key_value(kind, row[name]) for name, kind in zip(table.key, kinds, strict=False))


def key_value(kind: str, value: object) -> KeyValue:
    if isinstance(value, bytes | str):
        return (value.encode() if isinstance(value, str) else value).hex() if kind in (BINARY, TEXT) else int(value)
    if isinstance(value, datetime):
        return (value.replace(tzinfo=None) - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001  (a database's own)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, Decimal):
        return int(value.scaleb(scale_of(kind) or 0, Context(prec=76)))
    return int(str(value))


@dataclass(frozen=True)
class Verified:
    """A chunk of a verification: the source's rows of a range of keys above `lower` up to `upper`, as it read them."""

    table: Table
    rows: Sequence[Values]
    gsn: int
    lower: int | Key | None = None
    upper: int | Key | None = None
    dump: str = "verification-1"
    leaf_rows: int = 1 << 14
    #: rows of a table that is read in one snapshot
    in_buckets: bool = False
    focus: LandedFocus | None = None
    #: of the key's first columns; none: as their types have them
    kinds: Sequence[str] = ()

    def landed(self, number: int) -> LandedChunk:
        message = self._digest()
        rows = [None] * sum(leaf.rows for leaf in message.leaves)
        made = landed_digest(message, len(rows), self.focus)
        lower, upper = map(_bound, (self.lower, self.upper))
        facts = (number, self.gsn, 0, lower, upper, self.upper is None, len(rows), 0, COMMIT_US + 7, 1, "gtid:read")
        return LandedChunk(self.table.database, self.table.name, self.dump, *facts, digest=made)

    def _digest(self) -> snapshot_pb2.Digest:
        if self.focus is not None:
            focus = focus_message(self.focus)
            again = FocusDigest(self.table.key, focus)
            for part in focus.ranges or [None]:
                again.add(self._batch(self.rows), part)
            return again.message()
        if self.in_buckets:
            buckets = BucketDigest(self.table.key)
            buckets.add(self._batch(self.rows))
            return buckets.message()
        kinds = tuple(self.kinds) or key_kinds(self.table)
        digest = ChunkDigest(self.table.key, kinds, _key(self.lower), self.leaf_rows)
        digest.add(self._batch(sorted(self.rows, key=lambda row: key_values(self.table, row, kinds))))
        return digest.message(_key(self.upper))

    def _batch(self, rows: Sequence[Values]) -> SnapshotRows:
        names = [*self.table.columns, UNREPRESENTABLE]
        types = [*self.table.columns.values(), pa.string()]
        arrays = [pa.array([row.get(name) for row in rows], type_) for name, type_ in zip(names, types, strict=True)]
        return SnapshotRows(len(rows), "", pa.RecordBatch.from_arrays(arrays, names=names))


def truncate(table: Table) -> Event:
    return Event(table, "TRUNCATED", removes_rows=True, statement=f"TRUNCATE {table.name}")


class Unrepresentable(str):
    """A source's own text of a value that its column's type can't hold."""

    __slots__ = ()


def altered(
    table: Table,
    renamed: Mapping[str, str] | None = None,
    added: Mapping[str, object] | None = None,
    types: Mapping[str, str] | None = None,
    kind: str = "ALTERED",
    removes_rows: bool = False,
    literals: str = "literal",
) -> Event:
    """The table has these columns now; `added` says what earlier rows hold: a literal, what can't be represented, None,
    or ... for unknown."""

    def column(name: str) -> LandedColumn:
        earlier = (added or {}).get(name, "")
        words = {None: "null", ...: "unknown"}
        form = "unrepresentable" if isinstance(earlier, Unrepresentable) else literals
        return LandedColumn(
            name,
            (types or {}).get(name, "int"),
            format_of(table.columns[name]),
            list(table.key).index(name) + 1 if name in table.key else 0,
            (renamed or {}).get(name, ""),
            words.get(earlier, form) if name in (added or {}) else "",
            str(earlier) if name in (added or {}) and earlier not in words else "",
        )

    return Event(table, kind, removes_rows, tuple(map(column, table.columns)), f"ALTER TABLE {table.name} ...")


@dataclass(frozen=True)
class Started:
    """The table's sync begins: once more, with rows that may have come before, or for the first time."""

    table: Table
    again: bool = True


Batch = tuple[Table, Iterable[list[Change]]] | Event | Chunk | Verified | Started


@dataclass
class Writer:
    """One gateway's landing; each source has its own cuts and row numbers."""

    folder: Path
    entry: int = 0
    #: of a data file
    row_group_rows: int = 1 << 20
    cuts: dict[tuple[str, str], int] = field(default_factory=dict)
    gsns: dict[tuple[str, str], itertools.count] = field(default_factory=dict)
    #: of each source's last cut
    last_gsns: dict[tuple[str, str], int] = field(default_factory=dict)
    chunks: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    #: its identity; "": as of a gateway of before format 8
    landing: str = field(default_factory=lambda: secrets.token_hex(16))
    #: of landing.json, which says where entries lie
    landing_format: int = FORMAT
    #: of its cuts' transactions
    commit_us: int = COMMIT_US
    #: of each table the last cut with files of it
    last_cuts: dict[tuple[str, str, str, str], int] = field(default_factory=dict)

    def entry_path(self, entry: int) -> str:
        return entry_path(entry, in_folders=bool(self.landing) and self.landing_format >= FOLDERS_FORMAT)

    def cut(self, *batches: Batch, tenant: str = "acme", source: str = "shop") -> int:
        """An entry with one cut of these changes; its cut's number."""
        return self.write_entry([self.make_cut(batches, tenant, source)]).cuts[0].cut

    def fence(self, epoch: int, tenant: str = "acme", source: str = "shop") -> None:
        """Another gateway takes the source over."""
        self.write_entry([], [LandedFence(tenant, source, epoch)])

    def write_entry(self, cuts: Sequence[LandedCut], fences: Sequence[LandedFence] = ()) -> LogEntry:
        self.entry += 1
        entry = LogEntry(self.entry, "gw-1", COMMIT_US + self.entry, tuple(cuts), tuple(fences), self.landing)
        path = self.folder / self.entry_path(self.entry)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".draft")
        if self.landing:
            # At once whole: a sink may be reading.
            draft.write_bytes(encode_identity(LandingIdentity(self.landing, self.landing_format)))
            draft.rename(self.folder / IDENTITY_PATH)
        draft.write_bytes(encode_entry(entry))
        draft.rename(path)
        return entry

    def make_cut(self, batches: Iterable[Batch], tenant: str = "acme", source: str = "shop") -> LandedCut:
        """A cut whose rows and events are numbered in this order; a table's rows of one schema share a file."""
        key = (tenant, source)
        number = self.cuts[key] = self.cuts.get(key, 0) + 1
        gsns = self.gsns.setdefault(key, itertools.count(1))
        rows: dict[tuple[str, str, str], tuple[Table, list[dict[str, object]]]] = {}
        events: list[LandedEvent] = []
        chunks: list[LandedChunk] = []
        chunk_files: list[LandedFile] = []
        started: list[LandedStart] = []
        for batch in batches:
            if isinstance(batch, Chunk):
                gsn = next(gsns) if batch.gsn is None else batch.gsn
                chunks.append(self._chunk(batch, gsn))
                chunk_files.extend(self._chunk_files(batch, chunks[-1], tenant, source))
                continue
            if isinstance(batch, Started):
                gsn = next(gsns) if batch.again else 0
                started.append(LandedStart(batch.table.database, batch.table.name, LandedPosition(), "", gsn))
                continue
            if isinstance(batch, Verified):
                chunks.append(batch.landed(next(self.chunks)))
                continue
            if isinstance(batch, Event):
                events.append(_landed_event(batch, next(gsns), number, self.commit_us))
                continue
            table, changes = batch
            _, of_file = rows.setdefault((table.database, table.name, table.schema_id), (table, []))
            of_file.extend(
                _row(table, kind, values, next(gsns), number, self.commit_us)
                for change in changes
                for kind, values in change
            )
        last_gsn = self.last_gsns[key] = next(gsns)
        files = (
            *(self._file(table, of_file, tenant, source, number) for table, of_file in rows.values() if of_file),
            *chunk_files,
        )
        return LandedCut(
            tenant,
            source,
            1,
            number,
            1,
            "mysql",
            LandedPosition(),
            last_gsn,
            number,
            1,
            self.commit_us,
            self.commit_us,
            started=tuple(started),
            files=tuple(self._following(files, key, number)),
            events=tuple(events),
            chunks=tuple(chunks),
        )

    def _following(self, files: Sequence[LandedFile], source: tuple[str, str], cut: int) -> Iterator[LandedFile]:
        names = {(*source, file.database, file.table) for file in files}
        before = {name: self.last_cuts.get(name, 0) for name in names}
        self.last_cuts.update(dict.fromkeys(names, cut))
        for file in files:
            yield replace(file, previous_cut=before[*source, file.database, file.table]) if self.landing else file

    def _chunk(self, chunk: Chunk, gsn: int) -> LandedChunk:
        table, rows = chunk.table, len(chunk.rows)
        facts = (next(self.chunks), gsn, chunk.range, "", "", False, rows, rows, COMMIT_US + 7, 1, "gtid:read")
        return LandedChunk(table.database, table.name, chunk.dump, *facts, repairs=chunk.repairs)

    def _chunk_files(self, chunk: Chunk, landed: LandedChunk, tenant: str, source: str) -> Iterator[LandedFile]:
        if not chunk.rows:
            return
        table = chunk.table
        path = chunk_path(tenant, source, table.database, table.name, chunk.dump, landed.chunk, table.schema_id, "w")
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = table.landed_schema()
        schema = pa.schema([field for field in whole if field.name not in (*LANDED_COLUMNS, ABSENT)])
        rows = pa.Table.from_pylist([dict(row) for row in chunk.rows], schema=schema)
        pq.write_table(rows, target, row_group_size=self.row_group_rows, compression="zstd", write_page_checksum=True)
        facts = (len(rows), target.stat().st_size, landed.gsn, landed.gsn, chunk.dump, landed.chunk)
        yield LandedFile(table.database, table.name, table.schema_id, path, *facts)

    def _file(self, table: Table, rows: list[dict[str, object]], tenant: str, source: str, cut: int) -> LandedFile:
        path = data_path(tenant, source, table.database, table.name, 1, cut, table.schema_id)
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        landed = pa.Table.from_pylist(rows, schema=table.landed_schema())
        pq.write_table(
            landed,
            target,
            row_group_size=self.row_group_rows,
            compression="zstd",
            write_page_checksum=True,
        )
        first, last = rows[0]["_gsn"], rows[-1]["_gsn"]
        assert isinstance(first, int) and isinstance(last, int)
        facts = (len(rows), target.stat().st_size, first, last)
        return LandedFile(
            table.database, table.name, table.schema_id, path, *facts, plain_bytes=landed.nbytes if self.landing else 0
        )


def _row(table: Table, kind: str, values: Values, gsn: int, cut: int, commit_us: int) -> dict[str, object]:
    """A landed row; the columns that `values` names under `_absent` are not in the log."""
    row = {CHANGE_TYPE: kind, "_gsn": gsn, "_transaction_id": cut, "_commit_timestamp_us": commit_us,
           "_position": f"gtid:{cut}", **values}  # fmt: skip
    if ABSENT in values:
        absent = values[ABSENT]
        assert isinstance(absent, tuple)
        bits = sum(1 << list(table.columns).index(name) for name in absent)
        row[ABSENT] = bits.to_bytes((len(table.columns) + 7) // 8, "little")
    return row


def _landed_event(event: Event, gsn: int, cut: int, commit_us: int) -> LandedEvent:
    return LandedEvent(
        event.table.database,
        event.table.name,
        event.kind,
        gsn,
        cut,
        commit_us,
        f"gtid:{cut}",
        event.statement,
        event.removes_rows,
        event.columns,
        ("shop", "elsewhere") if event.kind == "RENAMED" else (),
        event.dump,
        event.removes_rows_before_gsn,
        unlogged_changes=event.unlogged_changes,
        reread=event.reread,
        foreign_keys=event.foreign_keys,
        unchecked_from_gsn=gsn - event.unchecked_rows if event.unchecked_rows else 0,
        repaired=event.repaired,
    )


def apply_entries(
    landing: Path,
    lake: Path,
    size: TaskSize | None = None,
    first: int = 1,
    last: int | None = None,
    recorded: Mapping[TableId, Recorded] | None = None,
    keep_hours: int = KEEP_HOURS,
    waiting: Waiting = AT_ONCE,
    keep_changelogs: KeepRules = KEEP_ALL,
    schema_changes: SchemaRules = EVOLVE_ALL,
    table_options: OptionRules = PLAIN_TABLES,
    folders: TableFolders | None = None,
) -> list[Outcome]:
    """Do without Spark what a task does with the log from entry `first` to `last` (its end), as one batch."""
    log = LandingLog(str(landing))
    families, rows = Families(), []
    for number in range(1, (last or log.last_entry()) + 1):
        entry = log.read_entry(number)
        families.note(entry)
        rows += entry_rows(entry) if number >= first else []
    rows = families.arranged(rows)
    settings = TaskSettings(
        str(landing),
        str(lake),
        frozenset(),
        size or TaskSize(),
        recorded or {},
        keep_hours,
        waiting=waiting,
        keep_changelogs=keep_changelogs,
        schema_changes=schema_changes,
        table_options=table_options,
        folders=folders.of_tasks if folders is not None else None,
    )

    def run(settings: TaskSettings) -> list[Message]:
        with told_folders(settings.lake, settings.folders or {}):  # as each task of a sink is
            return list(apply_tables(settings, split_rows(rows)[1].items()))

    done = with_folders(run(settings), settings, folders, run) if folders is not None else run(settings)
    return [outcome for outcome in done if isinstance(outcome, Outcome)]


def table_id(table: Table, tenant: str = "acme", source: str = "shop") -> TableId:
    return TableId(tenant, source, table.database, table.name)


def lake_rows(lake: Path, table: Table, tenant: str = "acme", source: str = "shop") -> list[dict[str, object]]:
    """The current state's rows in the table's own columns, in a stable order."""
    rows = current_state(str(lake), table_id(table, tenant, source)).to_pylist()
    names = [lake_column(name) for name in table.columns]
    return sorted(({name: row[name] for name in names} for row in rows), key=repr)


class Model:
    """What a table must hold after a run of changes."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.values: dict[str, Values] = {}

    def follow(self, changes: Iterable[list[Change]]) -> list[list[Change]]:
        """Apply the changes; gives them back as they are."""
        kept = list(changes)
        for kind, values in itertools.chain.from_iterable(kept):
            self.values[repr(values)] = values
            self.rows[repr(values)] += 1 if kind in ("insert", "update_postimage") else -1
        return kept

    def expected(self) -> list[Values]:
        return sorted((self.values[row] for row in self.rows.elements()), key=repr)


class Workload:
    """Random changes of a keyed table `orders` and a keyless table `events`, with a model of each."""

    ORDERS = Table("orders", {"id": pa.int32(), "amount": pa.uint64(), "note": pa.string()})
    EVENTS = Table("events", {"kind": pa.string(), "value": pa.float64()}, key=())

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.orders, self.events = Model(), Model()
        self.changes = 0

    def cut(self, writer: Writer, tenant: str = "acme") -> None:
        orders = self.orders.follow(self._order_changes())
        events = self.events.follow(self._event_changes())
        batches = [(table, changes) for table, changes in ((self.ORDERS, orders), (self.EVENTS, events)) if changes]
        self.changes += sum(len(change) for _, changes in batches for change in changes)
        writer.cut(*batches, tenant=tenant)

    def _order_changes(self) -> list[list[Change]]:
        held = {values["id"]: values for values in self.orders.expected()}
        changes: list[list[Change]] = []
        for _ in range(self.random.randrange(12)):
            identity = self.random.randrange(60)
            row = {"id": identity, "amount": 2**64 - 1 - self.random.randrange(5), "note": self.random.choice("ab")}
            if identity not in held:
                changes.append(insert(**row))
            elif self.random.random() < 0.3:
                changes.append(delete(**held.pop(identity)))
                continue
            else:
                moved = self.random.choice([identity, *(set(range(60)) - set(held))])
                row["id"] = moved
                changes.append(update(held.pop(identity), row))
            held[row["id"]] = row
        return changes

    def _event_changes(self) -> list[list[Change]]:
        held = list(self.events.expected())
        changes: list[list[Change]] = []
        for _ in range(self.random.randrange(12)):
            row = {"kind": self.random.choice(["x", "", None]), "value": self.random.choice([None, 0.0, -0.0, 1.5])}
            if held and self.random.random() < 0.45:
                gone = held.pop(self.random.randrange(len(held)))
                if self.random.random() < 0.5:
                    changes.append(delete(**gone))
                    continue
                changes.append(update(gone, row))
            else:
                changes.append(insert(**row))
            held.append(row)
        return changes
