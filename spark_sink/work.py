"""Values that travel between the driver and its tasks: which table, which files and events, what came of it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, TypeVar
from urllib.parse import unquote

from menura.landing import LandedChunk, LandedEvent, LandedForeignKey, decode_chunk, decode_event, decode_foreign_key
from menura.naming import TableName, path_segment, sync_resync, sync_retry

T = TypeVar("T")

CHANGELOG = "changelog"
CURRENT = "current"


def lake_segment(name: str) -> str:
    """A path segment without '%', which delta-rs decodes once too often; different names stay different.

    >>> lake_segment("order lines"), lake_segment("a~20")
    ('order~20lines', 'a~7E20')
    """
    return path_segment(name).replace("~", "~7E").replace("%", "~")


def name_of_segment(segment: str) -> str:
    """The name whose lake segment it is; a long name's segment ends with a digest, and is the name's beginning alone.

    >>> name_of_segment("order~20lines"), name_of_segment(lake_segment("a~20"))
    ('order lines', 'a~20')
    """
    return unquote(segment.replace("~", "%"))


@dataclass(frozen=True, slots=True, order=True)
class TableId:
    tenant: str
    source: str
    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.source}: {self.database}.{self.table}"

    def where(self, cut: int) -> dict[str, str]:
        """Arguments of a `MenuraError`."""
        return {**self.names(), "position": f"cut {cut}"}

    def names(self) -> dict[str, str]:
        """The same without a position."""
        return {"source": f"{self.tenant}/{self.source}", "database": self.database, "table": self.table}

    @property
    def default_folder(self) -> str:
        """TENANT/SOURCE/DATABASE/TABLE, below the lake: where the table is unless a rule says otherwise."""
        return f"{self.tenant}/{self.source}/{lake_segment(self.database)}/{lake_segment(self.table)}"

    def folder(self, lake: str) -> str:
        """By default: see `spark_sink.lake.table_folders` for where a table is."""
        return f"{lake}/{self.default_folder}"

    def fits(self, pattern: str) -> bool:
        """Whether TENANT/SOURCE/DATABASE.TABLE does, with * and ?."""
        return fnmatchcase(f"{self.tenant}/{self.source}/{self.database}.{self.table}", pattern)

    @property
    def resync(self) -> str:
        """The command that begins the table anew, its rows as they are."""
        return sync_resync(self.source, self.database, self.table)

    @property
    def retry(self) -> str:
        """The command that tries the table again at once."""
        return sync_retry(self.source, self.database, self.table)

    @property
    def application(self) -> str:
        """Delta's transaction application: its version is the source's cut."""
        return f"{self.tenant}/{self.source}"


def last_rule(rules: Sequence[tuple[str, T]], table: TableId, default: T) -> T:
    """Of patterns with what they say, the last one that the table's name fits."""
    return next((said for pattern, said in reversed(rules) if table.fits(pattern)), default)


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """What all rows of a dump's chunk have in common."""

    range: int
    #: `_gsn` of its rows
    gsn: int
    read_at_us: int
    position: str
    #: the whole table in one snapshot, which an event before it has emptied: then `gsn` is a place of its own
    is_whole: bool
    #: of a repair: its rows stand over all that the table has up to `gsn`
    repairs: bool = False


@dataclass(frozen=True, slots=True)
class TableFile:
    """A landed file of a table."""

    entry: int
    cut: int
    schema_id: str
    path: str
    rows: int
    bytes: int
    #: of a chunk that is not whole both are the number at its cut's end: there it is merged, whatever its rows' number
    first_gsn: int
    last_gsn: int
    chunk: ChunkFacts | None = None
    #: see `menura.landing.LandedFile`
    previous_cut: int | None = None
    #: of its rows in memory; 0: not known
    plain_bytes: int = 0

    @property
    def is_range(self) -> bool:
        """Whether its rows say what a range of the key held, and have no place among the changes."""
        return self.chunk is not None and not self.chunk.is_whole


#: of files up to format 7, which do not say how much their rows are
PLAIN_PER_BYTE = 4


def plain_size(file: TableFile) -> int:
    """Bytes of its rows in memory."""
    return file.plain_bytes or file.bytes * PLAIN_PER_BYTE


class Rowless:
    """Work that brings no row."""

    __slots__ = ()

    @property
    def rows(self) -> int:
        return 0

    @property
    def bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class CutEvent(Rowless):
    """An event of a table; it stands among the table's files by its row number."""

    entry: int
    cut: int
    event: LandedEvent

    @property
    def first_gsn(self) -> int:
        return self.event.gsn

    @property
    def last_gsn(self) -> int:
        return self.event.gsn


@dataclass(frozen=True, slots=True)
class KeysAt:
    """The foreign keys of a table that hold from a number on."""

    gsn: int
    keys: tuple[LandedForeignKey, ...]


@dataclass(frozen=True, slots=True)
class UncheckedRows:
    """Changes of a table that were made while keys were not checked."""

    database: str
    table: str
    first_gsn: int
    last_gsn: int


@dataclass(frozen=True, slots=True)
class MovingColumns:
    """Columns of a parent that its own keys may change."""

    #: (database, table)
    parent: TableName
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParentsChanged(Rowless):
    """In this cut a table has changed that this one follows by foreign keys, or this one, which has such keys."""

    entry: int
    cut: int
    #: of the cut's changes
    first_gsn: int
    last_gsn: int
    #: all that was told of this table's keys
    keys: tuple[KeysAt, ...]
    #: in this cut
    unchecked: tuple[UncheckedRows, ...] = ()
    moving: tuple[MovingColumns, ...] = ()


@dataclass(frozen=True, slots=True)
class DigestChunk(Rowless):
    """A chunk of a verification: with its cut the table is to be looked at. It changes nothing."""

    entry: int
    cut: int
    #: of the cut
    last_gsn: int
    chunk: LandedChunk

    @property
    def first_gsn(self) -> int:
        return self.last_gsn


@dataclass(frozen=True, slots=True)
class DueChunk:
    """A chunk of a verification whose cut the table has: what is to be compared with it."""

    digest: DigestChunk
    #: that end with its cut; None where they are not exactly there: an earlier run had brought one further
    changelog_version: int | None
    current_version: int | None


#: what a table has to follow
Work = TableFile | CutEvent | ParentsChanged | DigestChunk
#: kinds of events that change nothing of a table
OF_VERIFICATIONS = ("VERIFICATION_STARTED", "VERIFIED")


class Result(StrEnum):
    APPLIED = "applied"
    #: nothing to do: a replay of what the table already holds
    SKIPPED = "skipped"
    STOPPED = "stopped"
    #: stopped before, and there is something of it in a batch
    LEFT_OUT = "left_out"
    #: too large for a worker: the driver merges it with Spark
    LARGE = "large"
    #: new, and by rules: the driver gives it a folder first
    UNPLACED = "unplaced"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one table's part of a batch."""

    table: TableId
    result: Result
    #: first entry and last cut of the batch's work; of a stopped table the first of both
    entry: int
    cut: int
    rows: int = 0
    seconds: float = 0.0
    #: None where the table is not exactly at `cut`: it stopped before, or an earlier run brought it further
    changelog_version: int | None = None
    current_version: int | None = None
    code: str = ""
    message: str = ""
    terminal: bool = True
    #: of a large one
    work: tuple[Work, ...] = ()
    #: where changes wait (`tail`): up to which number the current state has all, and when they must be merged
    merged_gsn: int = 0
    merge_at_us: int = 0
    #: whether they are merged beside batches
    merges_detached: bool = False
    #: which failure kept the table from being cleaned
    unclean: str = ""
    #: where its changelog was shortened: the number from which on all changes are there
    changelog_begins_gsn: int = 0
    #: False: nothing of the work was its own, only its parents'
    has_own: bool = True
    due: tuple[DueChunk, ...] = ()
    #: in what its current state is not its source's table; "" where it is
    departure: str = ""

    @property
    def says_nothing(self) -> bool:
        """Of a child whose parents changed in other ways than its keys follow."""
        return self.result is Result.SKIPPED and not self.has_own


@dataclass(frozen=True, slots=True)
class CutSeen:
    """A cut of the batch, with or without files."""

    tenant: str
    source: str
    epoch: int
    cut: int
    entry: int
    committed_at_us: int
    first_commit_timestamp_us: int
    last_commit_timestamp_us: int


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """An entry of the log that can't be read, and why."""

    entry: int
    problem: str
    #: it is gone
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class EventSeen:
    """An event of the batch, whatever becomes of its table."""

    table: TableId
    seen: CutEvent


Message = Outcome | CutSeen | EntryProblem | EventSeen


def encode(value: Message) -> str:
    return json.dumps(asdict(value), ensure_ascii=False)


def decode(document: str) -> Message:
    facts: dict[str, Any] = json.loads(document)
    if "problem" in facts:
        return EntryProblem(**facts)
    if "seen" in facts:
        return EventSeen(TableId(**facts["table"]), _decode_cut_event(facts["seen"]))
    if "result" not in facts:
        return CutSeen(**facts)
    work = tuple(map(_decode_work, facts["work"]))
    table = TableId(**facts["table"])
    due = tuple(map(decode_due, facts["due"]))
    return Outcome(**{**facts, "table": table, "result": Result(facts["result"]), "work": work, "due": due})


def _decode_work(facts: dict[str, Any]) -> Work:
    if "event" in facts:
        return _decode_cut_event(facts)
    if "last_gsn" in facts and "first_gsn" not in facts:
        return _decode_digest(facts)
    return decode_parents(facts) if "keys" in facts else _decode_file(facts)


def decode_parents(facts: dict[str, Any]) -> ParentsChanged:
    """From its `asdict`."""
    keys = tuple(KeysAt(step["gsn"], tuple(map(decode_foreign_key, step["keys"]))) for step in facts["keys"])
    unchecked = tuple(UncheckedRows(**rows) for rows in facts["unchecked"])
    moving = tuple(
        MovingColumns((each["parent"][0], each["parent"][1]), tuple(each["columns"])) for each in facts["moving"]
    )
    return ParentsChanged(**{**facts, "keys": keys, "unchecked": unchecked, "moving": moving})


def _decode_file(facts: dict[str, Any]) -> TableFile:
    return TableFile(**{**facts, "chunk": ChunkFacts(**facts["chunk"]) if facts["chunk"] is not None else None})


def decode_due(facts: dict[str, Any]) -> DueChunk:
    """From its `asdict`."""
    return DueChunk(**{**facts, "digest": _decode_digest(facts["digest"])})


def _decode_digest(facts: dict[str, Any]) -> DigestChunk:
    return DigestChunk(facts["entry"], facts["cut"], facts["last_gsn"], decode_chunk(facts["chunk"]))


def _decode_cut_event(facts: dict[str, Any]) -> CutEvent:
    return CutEvent(facts["entry"], facts["cut"], decode_event(facts["event"]))


def is_cut(row: Mapping[str, Any]) -> bool:
    """Whether a row of `cut_log_source.ROW_SCHEMA` stands for its cut, or a sync, not for a file or an event of it."""
    return row.get("table") is None


def row_table(row: Mapping[str, Any]) -> TableId:
    return TableId(row["tenant"], row["source"], row["database"], row["table"])


def split_rows(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[list[CutSeen | EntryProblem | EventSeen], dict[TableId, list[Work]]]:
    """Rows of `cut_log_source.ROW_SCHEMA` as what the driver must know, and as tables with their work, in order."""
    known: list[CutSeen | EntryProblem | EventSeen] = []
    tables: dict[TableId, list[Work]] = {}
    for row in rows:
        if row.get("problem") is not None:
            known.append(EntryProblem(row["entry"], row["problem"], bool(row["is_missing"])))
            continue
        if is_cut(row) and row.get("event") is not None:
            told = decode_event(json.loads(row["event"]))
            of_sync = TableId(row["tenant"], row["source"], told.database, told.table)
            known.append(EventSeen(of_sync, CutEvent(row["entry"], row["cut"], told)))
            continue
        if is_cut(row):
            known.append(CutSeen(**{name: row[name] for name in CutSeen.__slots__}))
            continue
        table = row_table(row)
        if row.get("event") is not None:
            seen = CutEvent(row["entry"], row["cut"], decode_event(json.loads(row["event"])))
            known.append(EventSeen(table, seen))
            if seen.event.kind not in OF_VERIFICATIONS:
                tables.setdefault(table, []).append(seen)
            continue
        work = tables.setdefault(table, [])
        if row.get("digest") is not None:
            digest = decode_chunk(json.loads(row["digest"]))
            work.append(DigestChunk(row["entry"], row["cut"], row["last_gsn"], digest))
            continue
        if row.get("parents") is not None:
            work.append(decode_parents(json.loads(row["parents"])))
            continue
        chunk = json.loads(row["chunk"]) if row.get("chunk") is not None else None
        work.append(_decode_file({**{name: row[name] for name in TableFile.__slots__}, "chunk": chunk}))
    return known, tables
