"""What a follower hands to a search engine: rows to put, keys to take away, and how far that is.

`SearchEngine` and `SearchOutput` are all that an engine of indexes has to have. What was handed to an output since its
last commit is there for searches with that commit, together with the position. Where a kill can leave a part of it, the
index says so (`Reached.is_between`), and the same changes, handed to it again, end at the same rows.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from spark_sink.errors import SearchIndexFailed
from spark_sink.export.position import TablePosition
from spark_sink.export.rows import Row, Struct
from spark_sink.search.columns import Definition
from spark_sink.work import TableId

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A row."""

    #: a digest of the row's key
    key: str
    #: by the source's names, as `columns.field_of` has them; without nulls
    values: Struct
    #: texts of values that their type can't hold
    unrepresentable: Struct
    #: columns whose value nobody knows
    absent: tuple[str, ...] = ()
    #: of the change that made it so: of a key's rows, the later one has no lower number
    gsn: int = 0

    @classmethod
    def of(cls, row: Row, definition: Definition) -> "Entry":
        values = {each.name: row.values[each.name] for each in definition.columns
                  if row.values.get(each.name) is not None}  # fmt: skip
        return cls(digest(row), values, row.unrepresentable, row.absent, row.gsn or 0)

    @property
    def text(self) -> str:
        """Equal for equal rows."""
        more = [self.unrepresentable, self.absent] if self.unrepresentable or self.absent else []
        held = [self.values, *more]
        return json.dumps(held, ensure_ascii=False, separators=(",", ":"))

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return 200 + sum(len(value) if isinstance(value, str) else 32 for value in self.values.values())


@dataclass(frozen=True, slots=True)
class Gone:
    """A key that has no row any more."""

    key: str
    #: of the change that took it away
    gsn: int

    @property
    def size_bytes(self) -> int:
        return 100


def digest(row: Row) -> str:
    """Of a key."""
    key = {name: value + 0.0 if isinstance(value, float) else value for name, value in (row.key or {}).items()}
    return hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()


def sum_of(text: str) -> int:
    """A signed 64-bit digest, to be summed up."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big", signed=True
    )


@dataclass(frozen=True, slots=True)
class Reached:
    """How far an index is: it has the rows that the lake's table had at this cut of its source.

    As a document, in the index itself::

        {"format": 1, "lake": "/lake", "cut": 41, "at_us": 1795000000000000,
         "position": {"gsn": 900, "chunk_cut": 12, "version": 37, "id": "5b0c..."},
         "definition": {"columns": [{"name": "id", "kind": "integer", "scale": 0}], "key": ["id"]}}
    """

    lake: str
    cut: int
    #: of the commit
    at_us: int
    position: TablePosition
    definition: Definition
    #: a part of what came later may be there too: a process was ended in its midst, and the next one completes it
    is_between: bool = False

    def document(self) -> dict[str, Any]:
        at = self.position
        position = {"gsn": at.gsn, "chunk_cut": at.chunk_cut, "version": at.version, "id": at.id}
        definition = self.definition.document()
        held = {"lake": self.lake, "cut": self.cut, "at_us": self.at_us, "position": position}
        between = {"is_between": True} if self.is_between else {}
        return {"format": FORMAT, **held, "definition": definition, **between}

    @classmethod
    def read(cls, text: str, where: str) -> "Reached":
        """Raises `SearchIndexFailed`."""
        try:
            held: Mapping[str, Any] = json.loads(text)
            if held["format"] == FORMAT:
                at, definition = held["position"], Definition.read(held["definition"])
                position = TablePosition(int(at["gsn"]), int(at["chunk_cut"]), int(at["version"]), str(at["id"]))
                is_between = bool(held.get("is_between"))
                return cls(str(held["lake"]), int(held["cut"]), int(held["at_us"]), position, definition, is_between)
            found = f"its format is {held['format']}"
        except (KeyError, TypeError, ValueError) as wrong:
            found = type(wrong).__name__
        raise SearchIndexFailed(
            "reading a search index",
            f"{where}: the position in it can't be read ({found})",
            remedy="Remove it; the next `menura search index` builds it anew",
        )


class SearchOutput(Protocol):
    """One table's index, which one process writes. Each raises `SearchIndexFailed`."""

    def upsert(self, entries: Iterable[Entry], *, are_new: bool = False) -> None:
        """Rows in place of those of their keys; `are_new`: none of their keys is there."""

    def delete(self, keys: Iterable[Gone]) -> None:
        """Of keys that may not be there."""

    def clear(self) -> None:
        """No row is left."""

    def commit(self, reached: Reached) -> None:
        """All since the last commit, with the position."""

    def roll_back(self) -> None:
        """Forget what came since the last commit, as far as it is not there yet. Before `close` alone."""

    def close(self) -> None:
        """What was not committed is lost, or handed over again by who begins at the last commit."""


class SearchEngine(Protocol):
    """Where indexes are. Each raises `SearchIndexFailed`."""

    def taking(self) -> AbstractContextManager[None]:
        """To write there."""

    def reached(self, table: TableId) -> Reached | None:
        """None: there is no index of the table that was completed."""

    def output(self, table: TableId, definition: Definition, held: Reached | None) -> SearchOutput:
        """Goes on at this position; None: an empty index beside the one that answers, whose place it has from its
        first commit on."""
