"""Landing layout: the folders and the cut log that the gateway writes and the lake reads.

::

    LANDING/landing.json                                         which landing it is, written once
    LANDING/log/00000000000000000/00000000000000000001.json      entry 1, then 2, ... without gaps
    LANDING/horizons/ENTRY-FIRST.json                            in place of entries that are removed: `horizon.py`
    LANDING/data/TENANT/SOURCE/DATABASE/TABLE/EPOCH-CUT-SCHEMA.parquet
    LANDING/data/TENANT/SOURCE/DATABASE/TABLE/dump-DUMP/CHUNK-SCHEMA-WORD.parquet

A data file counts only when an entry names it. An entry is written once (put if absent), after the
files that it names are durable; so whoever reads entries 1, 2, 3, ... until one is missing sees each
committed cut once, whole and in order, and never lists a folder. Who begins when the first entries are gone goes on
behind the newest horizon. Paths in an entry are relative to LANDING; where
one file of a table was not enough for a cut, further ones end in `-1`, `-2`, ...

landing.json is `{"format": 13, "landing": "5b0c..."}`: 128 random bits in hex, made when a gateway first opens the
landing. Numbers of entries, cuts and rows count within one landing alone. Whoever keeps any of them keeps the identity
too, and refuses another landing's. Its `format` says where the landing's entries lie, for as long as it is there: entry
N in the folder N // 1000 of `log`; up to format 8, and without landing.json, in `log` itself.

An entry, format 13 (times in microseconds since the epoch, UTC)::

    {"format": 13, "entry": 7, "landing": "5b0c...", "gateway": "gw-1", "committed_at_us": 1700000000000000,
     "fences": [{"tenant": "acme", "source": "crm", "epoch": 4}], "cuts": [
      {"tenant": "acme", "source": "shop", "epoch": 3, "cut": 41, "generation": 5,
       "flavor": "mysql",
       "position": {"kind": "mysql", "text": "3E11...:1-77", "token": "{...}"},
       "ahead": [{"position": {...}, "tables": [["shop", "orders"]]}],
       "started": [{"database": "shop", "table": "items", "position": {...}, "earlier_rows_missing": "",
                    "gsn": 0}],
       "stopped": [{"database": "shop", "table": "notes", "position": {...}, "code": "EVENT_UNKNOWN",
                    "message": "..."}],
       "events": [{"database": "shop", "table": "orders", "kind": "ALTERED", "gsn": 881, "transaction_id": 76,
                   "commit_timestamp_us": 1699999999100000, "position": "3E11...:76",
                   "statement": "ALTER TABLE orders ADD note TEXT", "removes_rows": false,
                   "columns": [{"name": "note", "source_type": "text charset utf8mb4", "arrow_format": "u", "key": 0,
                                "renamed_from": "", "earlier_rows": "null", "earlier_text": ""}],
                   "new_name": [], "dump": "", "removes_rows_before_gsn": 0, "unlogged_changes": "", "reread": false,
                   "most_rereads_per_hour": 0, "foreign_keys": [], "unchecked_from_gsn": 0,
                   "gap_from": "", "gap_to": "", "repaired": null}],
       "chunks": [{"database": "shop", "table": "orders", "dump": "0f8e...", "chunk": 12, "gsn": 871, "range": 2,
                   "lower": "[\\"500\\"]", "upper": "[\\"900\\"]", "last_of_range": false, "rows": 400,
                   "source_bytes": 51200, "read_at_us": 1699999999000000, "read_us": 930000,
                   "position": "3E11...:1-75", "digest": null, "repairs": false}],
       "last_gsn": 900, "last_transaction_id": 77, "transaction_count": 3,
       "first_commit_timestamp_us": 1699999999000000, "last_commit_timestamp_us": 1699999999900000,
       "files": [{"database": "shop", "table": "orders", "schema_id": "00ff...", "path": "data/acme/shop/...",
                  "rows": 12, "bytes": 3456, "first_gsn": 880, "last_gsn": 900, "dump": "", "chunk": 0,
                  "previous_cut": 38, "plain_bytes": 9120}]}]}

`events` are menura.v1.TableEvent: `earlier_rows` is "" for a column that was there before, else "null", "literal" or
"unrepresentable" (then `earlier_text` has it) or "unknown"; `new_name` is [database, table] of a RENAMED one.
A file with a `dump` belongs to one of the cut's `chunks`. It has the table's columns and `_unrepresentable` only: what
the other columns before and after them hold is the same for all its rows and stands in its chunk: `snapshot`, `gsn`
(also the file's `first_gsn` and `last_gsn`), transaction 0, `read_at_us`, `position`; nothing is absent. A chunk's rows
are what the table held at a moment after all changes with `gsn` or a lower number; changes with a higher number decide
over them, wherever in the log those stand.
`previous_cut` of a file is the last cut before this one that has files of the table, 0 where none has, null where the
gateway does not know it: who has not applied that cut lacks rows of the table.
A chunk of a verification has no file, and a `digest` of what its rows were, as in menura.v1.Digest:
`{"columns": [["id", "l"], ["name", "u"]], "key": ["id"], "leaves": [{"upper": [700], "rows": 200, "first_sum": -9,
"second_sum": 8, "key": "", "columns": []}, {"upper": [], ...}], "bits": 0, "within": null, "kinds": ["integer"],
"above": [500], "up_to": [900]}`; it changes no row. Values of keys are those of `menura.key_values`, whose kinds stand
beside them.
A chunk that `repairs` is of ranges that are read again alone: its rows stand over all that the table has up to `gsn`.
The event REPAIRED has `repaired`, as menura.v1.RepairedRanges: `{"before_gsn": 860, "key": ["id"], "ranges":
[{"above": [500], "up_to": [900]}], "kinds": ["integer"]}`.
Format 12 has no `kinds`: all ranges are of integers; nor do its digests have `above` and `up_to`.
Format 11 has neither `repairs` nor `repaired`.
Format 10 has digests of ranges alone, without `bits`, `within`, leaves without `key` and `columns`, and starts without
`gsn`.
Format 9 has no `digest`.
Format 8 differs in where entries lie alone.
Format 7 has no `landing` and no `fences`, and its files neither `previous_cut` nor `plain_bytes`.
Format 6 has `collations` of foreign keys in the words of their source; see `decode_foreign_key`.
Format 5 has values in the text of MySQL and MariaDB: `earlier_rows` "text", and TEXT_DEFAULT in the files' metadata.
Format 4 has positions of MySQL and MariaDB: {"gtid_set", "server_uuid", "file", "offset"}; see `position_from`.
Format 3 is format 4 without what an event has from `unlogged_changes` on. Format 2 is format 3 without dumps.
Format 1 is format 2 without `events`; its files have no `_absent`.

Within a source cuts are numbered from 1 without gaps, and their epochs never fall. Several gateways write one log: a
gateway that takes a source over puts a fence before its first cut. From there on the source has no cut of a lower
`epoch`: an entry is written once, so a former owner's late put collides, and what it reads there refuses its cuts.
A reader MUST refuse a `format` above its own.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from menura.key_values import Key
from menura.landed_digest import LandedDigest, decode_digest
from menura.naming import TableName, path_segment
from menura.stores.address import absolute
from menura.text_comparison import UNKNOWN_COMPARISON, TextComparison

FORMAT = 13
READABLE_FORMATS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
#: from this format of landing.json on, entries lie in folders
FOLDERS_FORMAT = 9
ENTRIES_PER_FOLDER = 1_000
IDENTITY_PATH = "landing.json"
LOG_FOLDER = "log"
DATA_FOLDER = "data"


class LandingFormatError(ValueError):
    """A log entry that this version can't read; says which and why."""


@dataclass(frozen=True, slots=True)
class LandedPosition:
    """A place between two transactions; see menura.v1.Position."""

    kind: str = ""
    text: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class LandedAhead:
    position: LandedPosition
    #: (database, table)
    tables: tuple[TableName, ...]


@dataclass(frozen=True, slots=True)
class LandedStart:
    database: str
    table: str
    position: LandedPosition
    earlier_rows_missing: str = ""
    #: a row number of its own where rows of an earlier sync may come once more: of a table without a key, rows with a
    #: lower number do not exist any more; 0: none comes twice
    gsn: int = 0


@dataclass(frozen=True, slots=True)
class LandedStop:
    database: str
    table: str
    position: LandedPosition
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class LandedColumn:
    """A column after an event."""

    name: str
    source_type: str
    arrow_format: str
    key: int = 0
    renamed_from: str = ""
    #: of an added column: "null", "literal", "unrepresentable" or "unknown", up to format 5 "text"; "" for one that was
    #: there
    earlier_rows: str = ""
    earlier_text: str = ""
    #: see `menura.row_versions`
    row_end: bool = False


@dataclass(frozen=True, slots=True)
class LandedForeignKey:
    """A key of a child whose actions the server does not log; the lake carries them out."""

    name: str
    columns: tuple[str, ...]
    #: (database, table)
    parent: TableName
    parent_columns: tuple[str, ...]
    #: "cascade", "set_null"; "": the child's rows stay
    on_delete: str
    on_update: str
    #: of each column; None where it holds no text
    comparisons: tuple[TextComparison | None, ...]


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """See menura.v1.KeyRange."""

    above: Key
    up_to: Key


@dataclass(frozen=True, slots=True)
class LandedRepair:
    """Rows that do not exist any more; see menura.v1.RepairedRanges."""

    before_gsn: int
    #: landed names
    key: tuple[str, ...]
    ranges: tuple[KeyNumbers, ...]
    #: of the key's columns; none: all are integers, as they were up to format 12
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LandedEvent:
    database: str
    table: str
    #: a name of menura.v1.TableEvent.Kind
    kind: str
    gsn: int
    transaction_id: int
    commit_timestamp_us: int
    position: str
    statement: str
    removes_rows: bool
    columns: tuple[LandedColumn, ...] = ()
    #: (database, table), of a RENAMED one
    new_name: tuple[str, ...] = ()
    #: of events that begin or end a dump, a verification or a repair
    dump: str = ""
    #: rows with a lower number do not exist any more
    removes_rows_before_gsn: int = 0
    #: why rows with a lower number may differ from the source's, which changed them without logging it; "": none did
    unlogged_changes: str = ""
    #: a dump shall bring them; more than so many an hour stop the table. Of a FOREIGN_KEYS event: where a lake asks. Of
    #: VERIFICATION_STARTED: all changes from there on that are not logged are told, as menura.v1 says of `tells_anew`
    reread: bool = False
    most_rereads_per_hour: int = 0
    #: of a FOREIGN_KEYS event
    foreign_keys: tuple[LandedForeignKey, ...] = ()
    #: of a FOREIGN_KEYS_UNCHECKED event
    unchecked_from_gsn: int = 0
    #: of LOG_GAP: up to where the table was read, and from where it goes on; cut off where they are long
    gap_from: str = ""
    gap_to: str = ""
    #: of REPAIRED
    repaired: LandedRepair | None = None


@dataclass(frozen=True, slots=True)
class LandedChunk:
    """What one range of a table's key held at one moment; a whole table where it has no key."""

    database: str
    table: str
    dump: str
    chunk: int
    gsn: int
    range: int
    #: see menura.v1.DumpRange
    lower: str
    upper: str
    last_of_range: bool
    rows: int
    source_bytes: int
    read_at_us: int
    read_us: int
    position: str
    #: of a verification: the chunk brings no rows
    digest: LandedDigest | None = None
    #: its rows stand over all that the table has up to `gsn`
    repairs: bool = False


@dataclass(frozen=True, slots=True)
class LandedFile:
    database: str
    table: str
    schema_id: str
    #: relative to LANDING
    path: str
    rows: int
    bytes: int
    first_gsn: int
    last_gsn: int
    #: of one of the cut's chunks; "" and 0 for changes
    dump: str = ""
    chunk: int = 0
    #: the last cut before this one with files of the table; 0: none has any; None: not known
    previous_cut: int | None = None
    #: of its rows in memory, before they were encoded and compressed; 0: not known
    plain_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LandedCut:
    tenant: str
    source: str
    epoch: int
    cut: int
    generation: int
    flavor: str
    position: LandedPosition
    last_gsn: int
    last_transaction_id: int
    transaction_count: int = 0
    first_commit_timestamp_us: int = 0
    last_commit_timestamp_us: int = 0
    ahead: tuple[LandedAhead, ...] = ()
    started: tuple[LandedStart, ...] = ()
    stopped: tuple[LandedStop, ...] = ()
    files: tuple[LandedFile, ...] = ()
    #: in the order of their numbers
    events: tuple[LandedEvent, ...] = ()
    #: each with its files, or with none where it is empty
    chunks: tuple[LandedChunk, ...] = ()


@dataclass(frozen=True, slots=True)
class LandedFence:
    """From this entry on the source has no cut of a lower epoch."""

    tenant: str
    source: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    entry: int
    gateway: str
    committed_at_us: int
    cuts: tuple[LandedCut, ...]
    fences: tuple[LandedFence, ...] = ()
    #: which landing it stands in; "" up to format 7
    landing: str = ""


def landing_name(url: str) -> str:
    """One name for a landing, however its address was written.

    >>> landing_name("file:///data/landing"), landing_name("s3://bucket/landing/")
    ('/data/landing', 's3://bucket/landing')
    """
    return absolute(url)


def entry_path(entry: int, *, in_folders: bool = True) -> str:
    """Path of a log entry, relative to LANDING; `in_folders` as the landing's identity has it.

    >>> entry_path(1007), entry_path(1007, in_folders=False)
    ('log/00000000000000001/00000000000000001007.json', 'log/00000000000000001007.json')
    """
    folder = f"{LOG_FOLDER}/{entry // ENTRIES_PER_FOLDER:017d}" if in_folders else LOG_FOLDER
    return f"{folder}/{entry:020d}.json"


def later_numbers(entry: int) -> Iterator[int]:
    """Numbers of entries to look for, to tell whether one that is not there is missing or not written yet.

    Each of the next 64, then ever farther ones: a log of millions takes a hundred looks.

    >>> list(later_numbers(10))[62:68]
    [73, 74, 138, 266, 522, 1034]
    """
    yield from range(entry + 1, entry + 65)
    yield from (entry + (1 << power) for power in range(7, 40))


def data_path(tenant: str, source: str, database: str, table: str, epoch: int, cut: int, schema_id: str) -> str:
    """Path of a cut's Parquet file of one table and schema version, relative to LANDING.

    A name with capitals gives the file one more word: a storage that takes capitals for small letters has one folder
    for `Orders` and `orders`.

    >>> orders, other = (data_path("acme", "shop", "shop", name, 1, 1, "00ff") for name in ("orders", "Orders"))
    >>> orders == other.lower()
    False
    """
    names = f"{path_segment(database)}/{path_segment(table)}"
    word = f"-{hashlib.sha256(names.encode()).hexdigest()[:8]}" if names != names.lower() else ""
    return f"{DATA_FOLDER}/{tenant}/{source}/{names}/{epoch:010d}-{cut:020d}-{schema_id}{word}.parquet"


def chunk_path(
    tenant: str, source: str, database: str, table: str, dump: str, chunk: int, schema_id: str, word: str
) -> str:
    """Path of a chunk's Parquet file, relative to LANDING; DUMP is in a form that is safe in paths.

    WORD is random and new with each stream: a chunk's number may be used again when it was not committed.
    """
    folder = f"{DATA_FOLDER}/{tenant}/{source}/{path_segment(database)}/{path_segment(table)}/dump-{dump}"
    return f"{folder}/{chunk:012d}-{schema_id}-{word}.parquet"


@dataclass(frozen=True, slots=True)
class LandingIdentity:
    """What landing.json says; `landing` is '' where there is none."""

    landing: str = ""
    format: int = FOLDERS_FORMAT - 1

    @property
    def in_folders(self) -> bool:
        """Whether entries lie in folders of a thousand."""
        return self.format >= FOLDERS_FORMAT


def encode_identity(identity: LandingIdentity) -> bytes:
    """The JSON document of landing.json."""
    return json.dumps({"format": identity.format, "landing": identity.landing}, separators=(",", ":")).encode()


def decode_identity(document: bytes) -> LandingIdentity:
    """Which landing it is; raises `LandingFormatError` for a document that does not say it.

    >>> decode_identity(encode_identity(LandingIdentity("5b" * 16, 9))).in_folders
    True
    """
    try:
        facts = json.loads(document)
        landing, format_ = facts["landing"], facts["format"]
    except (KeyError, TypeError, ValueError) as broken:
        raise LandingFormatError(f"{IDENTITY_PATH} is no document that says which landing it is") from broken
    if not isinstance(landing, str) or not re.fullmatch(r"[0-9a-f]{32}", landing):
        raise LandingFormatError(f"{IDENTITY_PATH} has no identity of 32 hexadecimal digits")
    if format_ not in READABLE_FORMATS:
        raise LandingFormatError(f"{IDENTITY_PATH} has format {format_!r}, this version reads {FORMAT}: upgrade")
    return LandingIdentity(landing, format_)


def encode_entry(entry: LogEntry) -> bytes:
    """The JSON document of an entry."""
    return json.dumps({"format": FORMAT, **asdict(entry)}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_entry(document: bytes) -> LogEntry:
    """Read an entry back; raises `LandingFormatError` for another format or a broken document."""
    try:
        facts = json.loads(document)
        if facts["format"] not in READABLE_FORMATS:
            raise LandingFormatError(f"log entry has format {facts['format']}, this version reads {FORMAT}: upgrade")
        return LogEntry(
            entry=int(facts["entry"]),
            gateway=str(facts["gateway"]),
            committed_at_us=int(facts["committed_at_us"]),
            cuts=tuple(_decode_cut(cut) for cut in facts["cuts"]),
            fences=tuple(LandedFence(**fence) for fence in facts.get("fences", ())),
            landing=str(facts.get("landing", "")),
        )
    except (KeyError, TypeError, ValueError) as broken:
        if isinstance(broken, LandingFormatError):
            raise
        raise LandingFormatError(f"log entry is not a format {FORMAT} document: {broken!r}") from broken


def _decode_cut(facts: dict[str, Any]) -> LandedCut:
    nested = {
        "position": position_from(facts["position"]),
        "ahead": tuple(map(decode_ahead, facts["ahead"])),
        "started": tuple(LandedStart(**_with_position(start)) for start in facts["started"]),
        "stopped": tuple(LandedStop(**_with_position(stop)) for stop in facts["stopped"]),
        "files": tuple(LandedFile(**file) for file in facts["files"]),
        "events": tuple(decode_event(event) for event in facts.get("events", ())),
        "chunks": tuple(map(decode_chunk, facts.get("chunks", ()))),
    }
    return LandedCut(**{**facts, **nested})


def decode_ahead(facts: Mapping[str, Any]) -> LandedAhead:
    """From its `asdict`; raises KeyError, TypeError or ValueError for another document."""
    return LandedAhead(
        position_from(facts["position"]), tuple((database, table) for database, table in facts["tables"])
    )


def position_from(facts: Mapping[str, Any]) -> LandedPosition:
    """A position from its `asdict`; raises KeyError or TypeError for another document.

    Up to format 4 there were MySQL and MariaDB alone, whose words stood in the landing:

    >>> position_from({"gtid_set": "", "server_uuid": "3e11", "file": "binlog.000002", "offset": 4}).text
    'binlog.000002:4'
    """
    if "gtid_set" not in facts:
        return LandedPosition(**facts)
    # without GTIDs a position had its server's UUID; the beginning of a log with GTIDs had neither
    has_gtids = bool(facts["gtid_set"] or not facts["server_uuid"])
    by_file = f"{facts['file']}:{facts['offset']}"
    text = (str(facts["gtid_set"]) or "the log's beginning") if has_gtids else by_file
    token = {"gtids": has_gtids, **{name: facts[name] for name in ("server_uuid", "file", "offset")}}
    return LandedPosition("mysql", text, json.dumps(token))


def decode_chunk(facts: dict[str, Any]) -> LandedChunk:
    """A chunk from its `asdict`; raises KeyError or TypeError for another document."""
    digest = facts.get("digest")
    return LandedChunk(**{**facts, "digest": None if digest is None else decode_digest(digest)})


def decode_event(facts: dict[str, Any]) -> LandedEvent:
    """An event from its `asdict`; raises KeyError or TypeError for another document."""
    nested = {
        "columns": tuple(LandedColumn(**column) for column in facts["columns"]),
        "new_name": tuple(str(part) for part in facts["new_name"]),
        "foreign_keys": tuple(map(decode_foreign_key, facts.get("foreign_keys", ()))),
        "repaired": _repair(facts["repaired"]) if facts.get("repaired") is not None else None,
    }
    return LandedEvent(**{**facts, **nested})


def _repair(facts: Mapping[str, Any]) -> LandedRepair:
    ranges = tuple(KeyNumbers(tuple(each["above"]), tuple(each["up_to"])) for each in facts["ranges"])
    key, kinds = (tuple(map(str, facts.get(name, ()))) for name in ("key", "kinds"))
    return LandedRepair(int(facts["before_gsn"]), key, ranges, kinds)


def decode_foreign_key(facts: dict[str, Any]) -> LandedForeignKey:
    """A key from its `asdict`; raises KeyError or TypeError for another document.

    Up to format 6 texts had the names of their collations, which only their source can read: unknown.
    """
    former = [UNKNOWN_COMPARISON if name else None for name in facts.get("collations", ())]
    comparisons = [how and TextComparison(**how) for how in facts.get("comparisons", ())]
    database, table = facts["parent"]
    return LandedForeignKey(
        name=facts["name"],
        columns=tuple(map(str, facts["columns"])),
        parent=(str(database), str(table)),
        parent_columns=tuple(map(str, facts["parent_columns"])),
        on_delete=facts["on_delete"],
        on_update=facts["on_update"],
        comparisons=tuple(former or comparisons),
    )


def _with_position(facts: dict[str, Any]) -> dict[str, Any]:
    return {**facts, "position": position_from(facts["position"])}
