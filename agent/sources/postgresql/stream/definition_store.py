"""The durable memory of how tables looked where the stream is, so that a later start sees what has changed since.

Comes in: what is known of each table, with the number of the cut that tells it. Goes out, when a stream begins: what is
known as of the last committed cut. Knows no server.

Durable: one JSON file per source in the agent's state folder, written whole: a temporary file, fsync, rename, fsync of
the folder. It is written before the end of the cut that it belongs to is sent, so a kill leaves versions of cuts that
were never committed: `begin` drops them, and reading the log again makes them again. A lost or broken file costs a
re-read of the tables, by their policy; nothing that it held is needed to be right.

::

    {"format": 2, "system": "7300...", "database": 16384, "tables": [{"schema": "shop", "name": "orders", "versions":
     [{"cut": 7, "since": "0/16B3748", "unproven": false, "retyped": false, "published": "16390 16402 by 741",
      "definition": {"oid": 16385, "kind": "r", ..., "attributes": [{"number": 1, "name": "id", ...}]}}]}]}

`definition` null: there was no such table.
"""

import fcntl
import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from agent.errors import StateFolderInUse
from agent.positions import PositionSyntaxError
from agent.runtime.state_folder import make_state_folder, state_unusable, write_whole
from agent.sources.postgresql.positions import lsn_text, parse_lsn
from agent.sources.postgresql.server.definitions import Attribute, TableDefinition
from agent.sources.postgresql.server.missing_values import Missing, MissingValue, Unrepresentable
from agent.sources.postgresql.types import ColumnType, Form
from agent.table_positions import Table

log = logging.getLogger("menura.definitions")

FORMAT = 2
#: of tables that are not read now, e.g. since they have stopped and somebody is to have them tried again
MOST_OTHERS = 1_000
#: in place of what publishes a table of which changes or columns may have been left out
UNCERTAIN = "?"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a table where the stream is."""

    #: None: there is no such table
    definition: TableDefinition | None
    #: the definition was seen when the log ended here, which the stream may not have reached: until then the table may
    #: look otherwise, and has no row yet in the lake
    since_lsn: int = 0
    #: columns got their numbers by what was seen later, and others may have had their names for a while
    is_unproven: bool = False
    #: columns have changed since the files were looked at
    is_retyped: bool = False
    #: what publishes it, as `stream.looks` tells them apart; '' not known
    published: str = ""


class RecordUnreadable(ValueError):
    """A record that is none of these; says why."""


class DefinitionStore:
    """One source's file, locked for as long as it is open; used by one thread."""

    def __init__(self, folder: Path, source: str) -> None:
        """Raises `StateFolderInUse` or `StateFolderUnusable`."""
        self._path = folder / f"{source}.definitions.json"
        self._source = source
        self._system, self._database = "", 0
        #: of each table the versions by cut, oldest first
        self._versions: dict[Table, list[tuple[int, Known]]] = {}
        self._committed_cut = 0
        self._has_changed = False
        make_state_folder(folder, source)
        self._lock = self._locked(folder / f"{source}.definitions.lock")

    def close(self) -> None:
        self._lock.close()

    def begin(
        self, system: str, database: int, next_cut: int, tables: Collection[Table], anew: Collection[Table]
    ) -> dict[Table, Known]:
        """A stream begins with `next_cut`: what is known of those of `tables` that are not in `anew`."""
        read = self._read()
        self._versions = {}
        if (self._system, self._database) == (system, database):
            others = sorted(read.keys() - set(tables), key=lambda table: read[table][-1][0])[-MOST_OTHERS:]
            for table in {*tables, *others} - set(anew):
                kept = [(cut, known) for cut, known in read.get(table, ()) if cut < next_cut]
                if kept:
                    self._versions[table] = kept[-1:]
        self._has_changed = self._versions != read or (self._system, self._database) != (system, database)
        self._system, self._database = system, database
        self._committed_cut = next_cut - 1
        return {table: versions[-1][1] for table, versions in self._versions.items() if table in tables}

    def put(self, table: Table, known: Known, cut: int) -> None:
        """From this cut on it is known so."""
        versions = self._versions.setdefault(table, [])
        if versions and versions[-1][1] == known:
            return
        if versions and versions[-1][0] == cut:
            versions.pop()
        versions.append((cut, known))
        self._has_changed = True

    def committed(self, cut: int) -> None:
        """All cuts up to this one are committed."""
        self._committed_cut = max(self._committed_cut, cut)

    def save(self) -> None:
        """Make what was put durable; raises `StateFolderUnusable`."""
        if not self._has_changed:
            return
        for table, versions in self._versions.items():
            first = max((at for at, (cut, _) in enumerate(versions) if cut <= self._committed_cut), default=0)
            self._versions[table] = versions[first:]
        self._in_folder(self._write)
        self._has_changed = False

    # ---

    def _locked(self, path: Path) -> IO[bytes]:
        lock = self._in_folder(lambda: path.open("ab"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            lock.close()
            raise StateFolderInUse(
                f"opening {self._path}, where the agent keeps its state",
                "another process has it open",
                data="Nothing was read",
                remedy="Stop the other agent, or give this one a state_folder of its own",
                source=self._source,
            ) from taken
        return lock

    def _read(self) -> Mapping[Table, list[tuple[int, Known]]]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused
        try:
            return self._decoded(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as broken:
            fields = {"source": self._source, "path": str(self._path), "found": type(broken).__name__}
            log.warning("what was known of tables can't be read: they are read again", extra={"fields": fields})
            self._system, self._database = "", 0
            return {}

    def _decoded(self, record: dict[str, Any]) -> Mapping[Table, list[tuple[int, Known]]]:
        if record["format"] != FORMAT:
            raise RecordUnreadable(f"its format is {record['format']!r}")
        found: dict[Table, list[tuple[int, Known]]] = {}
        for one in record["tables"]:
            table = (str(one["schema"]), str(one["name"]))
            versions = [(int(version["cut"]), known_of(version, table)) for version in one["versions"]]
            if versions:
                found[table] = versions
        self._system, self._database = str(record["system"]), int(record["database"])
        return found

    def _write(self) -> None:
        tables = [
            {"schema": table[0], "name": table[1], "versions": [record_of(known, cut) for cut, known in versions]}
            for table, versions in sorted(self._versions.items())
        ]
        record = {"format": FORMAT, "system": self._system, "database": self._database, "tables": tables}
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        write_whole(self._path, text)

    def _in_folder(self, doing: Callable[[], T]) -> T:
        try:
            return doing()
        except OSError as refused:
            raise state_unusable(self._path, refused.strerror or type(refused).__name__, self._source) from refused


def record_of(known: Known, cut: int) -> dict[str, Any]:
    """A version as it is stored."""
    return {
        "cut": cut,
        "since": lsn_text(known.since_lsn),
        "unproven": known.is_unproven,
        "retyped": known.is_retyped,
        "published": known.published,
        "definition": None if known.definition is None else _definition_record(known.definition),
    }


def known_of(record: Mapping[str, Any], table: Table) -> Known:
    """What `record_of` has written; raises ValueError, KeyError or TypeError."""
    definition = record["definition"]
    try:
        since = parse_lsn(record["since"])
    except PositionSyntaxError as wrong:
        raise RecordUnreadable(str(wrong)) from wrong
    return Known(
        None if definition is None else _definition(definition, table),
        since,
        bool(record["unproven"]),
        bool(record["retyped"]),
        str(record["published"]),
    )


def _definition_record(definition: TableDefinition) -> dict[str, Any]:
    record = asdict(definition)
    del record["schema"], record["name"]
    record["attributes"] = [
        record | {"type": _type_record(one.type), "missing": _missing_record(one.missing)}
        for one, record in zip(definition.attributes, record["attributes"], strict=True)
    ]
    return record


def _definition(record: Mapping[str, Any], table: Table) -> TableDefinition:
    return TableDefinition(
        oid=int(record["oid"]),
        schema=table[0],
        name=table[1],
        kind=str(record["kind"]),
        file_node=int(record["file_node"]),
        replica_identity=str(record["replica_identity"]),
        attributes=tuple(map(_attribute, record["attributes"])),
        primary_key=_names(record["primary_key"]),
        identity=_names(record["identity"]),
        storage=tuple((int(oid), int(file)) for oid, file in record["storage"]),
        labels=tuple((int(oid), str(label), int(by)) for oid, label, by in record["labels"]),
        composites=tuple(
            (int(oid), tuple(map(int, numbers)), int(last)) for oid, numbers, last in record["composites"]
        ),
        weak_partitions=tuple((str(schema), str(name)) for schema, name in record["weak_partitions"]),
        unlogged=tuple((str(schema), str(name)) for schema, name in record["unlogged"]),
        is_partition=bool(record["is_partition"]),
        last_number=int(record["last_number"]),
        written_by=tuple((int(number), int(by)) for number, by in record.get("written_by", ())),
        toast=None if record.get("toast") is None else int(record["toast"]),
    )


def _attribute(record: Mapping[str, Any]) -> Attribute:
    type_ = record["type"]
    return Attribute(
        number=int(record["number"]),
        name=str(record["name"]),
        type=ColumnType(str(type_["name"]), Form[type_["form"]], int(type_["precision"]), int(type_["scale"])),
        type_oid=int(record["type_oid"]),
        modifier=int(record["modifier"]),
        not_null=bool(record["not_null"]),
        generated=bool(record["generated"]),
        missing=_missing(record["missing"]),
        collation=str(record["collation"]),
    )


def _names(names: Collection[str]) -> tuple[str, ...]:
    return tuple(map(str, names))


def _type_record(type_: ColumnType) -> dict[str, Any]:
    return {"name": type_.name, "form": type_.form.name, "precision": type_.precision, "scale": type_.scale}


def _missing_record(missing: MissingValue) -> dict[str, str] | None:
    match missing:
        case None:
            return None
        case Missing.UNKNOWN:
            return {}
        case Unrepresentable(text):
            return {"unrepresentable": text}
        case text:
            return {"text": str(text)}


def _missing(record: Mapping[str, str] | None) -> MissingValue:
    if record is None:
        return None
    if "unrepresentable" in record:
        return Unrepresentable(str(record["unrepresentable"]))
    return str(record["text"]) if "text" in record else Missing.UNKNOWN
