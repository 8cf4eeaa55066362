"""What the search service is asked, and what it answers, as JSON.

Comes in: bodies of at most `MAX_BODY_BYTES`; what a search found. Goes out: questions of the right types; documents.
Pure. A question names its tenant, by which alone it is decided which indexes it reaches: see `TableId.default_folder`,
into which tenant and source go as they are, so that they must be identities here.

    POST /v1/indexes  {"tenant": "acme", "limit": 100, "after": []}   "after": SOURCE, DATABASE, TABLE of a page's last
    POST /v1/search   {"tenant": "acme", "source": "shop", "database": "shop", "table": "orders",
                       "text": "red bicy*", "filters": ["total>=9.50"], "facets": ["status"], "limit": 10}
    POST /v1/changes  {"tenant": "acme", "source": "shop", "database": "shop", "table": "orders", "limit": 20}

Values are those of `menura search query --output json`; an integer beyond 2^53, which readers of JSON round, is a text.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from menura.naming import is_identity
from menura.views.definition import VIEW_SOURCE

from spark_sink.errors import SearchIndexFailed, SearchRefused
from spark_sink.export.fields import Value
from spark_sink.search.asking import Found, Search
from spark_sink.search.entries import Reached
from spark_sink.search.lag import Lag
from spark_sink.search.recent_changes import MOST_CHANGES, Change, RecentChanges
from spark_sink.work import TableId

MAX_BODY_BYTES = 256 << 10
MOST_INDEXES = 1_000
#: of an answer's rows, and of a text in them
MOST_ROW_BYTES = 4 << 20
MOST_VALUE_CHARS = 65_536
#: RFC 7493, 2.2
_EXACT = (1 << 53) - 1


@dataclass(frozen=True, slots=True)
class Listing:
    tenant: str
    limit: int
    #: source, database, table of the last one before; empty: from the beginning
    after: tuple[str, ...]

    @classmethod
    def read(cls, body: bytes) -> "Listing":
        """Raises `SearchRefused`."""
        held = _Body.read(body)
        after = held.texts("after")
        limit = held.integer("limit", 100)
        _check(len(after) in (0, 3) and 1 <= limit <= MOST_INDEXES, "limit or after")
        return cls(held.tenant(), limit, after)


@dataclass(frozen=True, slots=True)
class Question:
    table: TableId
    search: Search

    @classmethod
    def read(cls, body: bytes, timeout_seconds: float) -> "Question":
        """Raises `SearchRefused`."""
        held = _Body.read(body)
        return cls(
            held.table(),
            Search(
                held.text("text"),
                held.texts("filters"),
                held.texts("facets"),
                held.integer("limit", 10),
                timeout_seconds=timeout_seconds,
            ),
        )


@dataclass(frozen=True, slots=True)
class OfChanges:
    table: TableId
    limit: int

    @classmethod
    def read(cls, body: bytes) -> "OfChanges":
        """Raises `SearchRefused`."""
        held = _Body.read(body)
        limit = held.integer("limit", 20)
        _check(1 <= limit <= MOST_CHANGES, "limit")
        return cls(held.table(), limit)


@dataclass(frozen=True, slots=True)
class _Body:
    held: Mapping[str, Any]

    @classmethod
    def read(cls, body: bytes) -> "_Body":
        try:
            held = json.loads(body)
        except (ValueError, RecursionError):
            held = None
        _check(isinstance(held, dict), "the body")
        return cls(held)

    def text(self, name: str) -> str:
        said = self.held.get(name, "")
        _check(isinstance(said, str) and _is_whole(said), name)
        return str(said)

    def texts(self, name: str) -> tuple[str, ...]:
        said = self.held.get(name, [])
        _check(isinstance(said, list) and all(isinstance(each, str) and _is_whole(each) for each in said), name)
        return tuple(said)

    def integer(self, name: str, default: int) -> int:
        said = self.held.get(name, default)
        _check(type(said) is int, name)
        return int(said)

    def tenant(self) -> str:
        tenant = self.text("tenant")
        _check(is_identity(tenant), "tenant")
        return tenant

    def table(self) -> TableId:
        source = self.text("source")
        _check(is_identity(source) or source == VIEW_SOURCE, "source")
        table = TableId(self.tenant(), source, self.text("database"), self.text("table"))
        _check(bool(table.database and table.table), "database or table")
        return table


def _is_whole(text: str) -> bool:
    """Without half of a character."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _check(is_well: bool, what: str) -> None:
    if not is_well:
        raise SearchRefused("reading a question", f"{what} is not what it may be", remedy="See docs/search.md")


def answer(found: Found, reached: Reached, lag: Lag | str) -> dict[str, Any]:
    rows, left_out, shortened = _rows(found.rows)
    return {
        **_of_index(reached, lag),
        "columns": [{"name": column.name, "kind": str(column.kind)} for column in reached.definition.columns],
        "key": list(reached.definition.key),
        "total": found.total,
        "rows": rows,
        "facets": [
            {
                "column": name,
                "counts": [{"value": _value(each.value), "rows": each.rows} for each in facet.counts],
                "other_rows": facet.other_rows,
            }
            for name, facet in found.facets.items()
        ],
        "left_out": found.left_out + left_out,
        "shortened": shortened,
        "clipped": found.clipped,
    }


def encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def index(table: TableId, rows: int, reached: Reached, lag: Lag | str) -> dict[str, Any]:
    return {**_names(table), "rows": rows, **_of_index(reached, lag)}


def unusable_index(table: TableId, failure: SearchIndexFailed) -> dict[str, Any]:
    """Of an index that can't be read: null is what is not known."""
    unknown = dict.fromkeys(("rows", "cut", "at_us", "lake_cut", "behind_us"))
    return {**_names(table), **unknown, "unknown": failure.found}


def _names(table: TableId) -> dict[str, str]:
    return {"source": table.source, "database": table.database, "table": table.table}


def _of_index(reached: Reached, lag: Lag | str) -> dict[str, Any]:
    if isinstance(lag, str):
        return {"cut": reached.cut, "at_us": reached.at_us, "lake_cut": None, "behind_us": None, "unknown": lag}
    known = {"lake_cut": lag.lake_cut, "behind_us": int(lag.seconds * 1e6)}
    return {"cut": lag.index_cut, "at_us": reached.at_us, **known, "unknown": ""}


def changes_answer(found: RecentChanges) -> dict[str, Any]:
    """The newest first, as many as are not too many bytes."""
    changes, size, shortened = list[dict[str, Any]](), 0, 0
    for change in reversed(found.changes):
        there = [(name, row) for name, row in (("before", change.before), ("after", change.after)) if row is not None]
        images = {name: _shortened(row) for name, row in there}
        shown = _of_change(change) | {name: image for name, (image, _) in images.items()}
        size += _size(shown)
        if size > MOST_ROW_BYTES:
            break
        changes.append(shown)
        shortened += sum(cut_off for _, cut_off in images.values())
    return {
        "cut": found.cut, "changes": changes, "left_out": len(found.changes) - len(changes), "shortened": shortened,
    }  # fmt: skip


def _of_change(change: Change) -> dict[str, Any]:
    return {
        "op": change.op,
        "gsn": str(change.gsn),
        "transaction_id": str(change.transaction_id),
        "at_us": change.committed_us,
        "position": change.position,
        "key": None if change.key is None else _shortened(change.key)[0],
        "before": None,
        "after": None,
        "absent_before": list(change.absent_before),
        "absent_after": list(change.absent_after),
    }


def _rows(found: Sequence[Mapping[str, Value]]) -> tuple[list[dict[str, Value]], int, int]:
    """Those that are not too many bytes, how many are, and how many values are shortened."""
    rows, size, shortened = list[dict[str, Value]](), 0, 0
    for row in found:
        shown, cut_off = _shortened(row)
        size += _size(shown)
        if size > MOST_ROW_BYTES:
            break
        rows.append(shown)
        shortened += cut_off
    return rows, len(found) - len(rows), shortened


def _shortened(row: Mapping[str, Value]) -> tuple[dict[str, Value], int]:
    """As an answer has it, and how many of its values are cut off."""
    long = {name for name, value in row.items() if isinstance(value, str) and len(value) > MOST_VALUE_CHARS}
    return {name: _value(value[:MOST_VALUE_CHARS] if name in long else value) for name, value in row.items()}, len(long)


def _size(shown: Mapping[str, Any]) -> int:
    return len(json.dumps(shown, ensure_ascii=False).encode())


def _value(value: Value) -> Value:
    r"""
    >>> _value(2**53 - 1), _value(2**53), _value(float("inf")), _value(True)
    (9007199254740991, '9007199254740992', 'inf', True)
    >>> print(ascii(_value("half \ud800")))
    'half \ufffd'
    """
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if abs(value) <= _EXACT else str(value)
