"""A table's rows as OpenSearch's documents, and the index that takes them.

Comes in: a definition, entries. Goes out: settings and mapping of an index, documents, and rows of what a search gives.
A document is the row and, beside it, what compares exactly::

    {"key_high": 81, "key_low": 7, "sum_high": 5, "sum_low": 9,
     "row": {"id": 1, "title": "Red wine", "price": "9.50"}, "exact": {"id": 1, "title": "Red wine", "price": 950}}

==============================  ============================================================================
lake                            in the index
==============================  ============================================================================
text                            row.NAME: text, of its words; exact.NAME: keyword, of up to `VALUE_CHARS`, else
                                long.NAME: long, a digest for equality
integers, bool                  exact.NAME: long
date, timestamp, time of day    exact.NAME: long, days or microseconds
decimal of up to 18 digits      exact.NAME: long, the number of its smallest unit
decimal of more (uint64 too)    exact.NAME: keyword, digits whose order is that of the numbers
float                           exact.NAME: long, whose order is that of the numbers, with infinities and NaN
binary                          in row alone, which is not searched
==============================  ============================================================================

OpenSearch's own types for these are not exact: its dates end at milliseconds or in 2262, its doubles take neither NaN
nor infinity, its scaled numbers are doubles, and it has no decimals. Digests are divided, so that sums of doubles are
exact. An index takes no field that is not named here. Pure.
"""

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from spark_sink.export.fields import Value
from spark_sink.export.rows import Struct
from spark_sink.search.asking import shown
from spark_sink.search.columns import NUMBERS, Column, Definition, Kind
from spark_sink.search.digests import place_of
from spark_sink.search.entries import Entry, sum_of
from spark_sink.search.index import VALUE_CHARS
from spark_sink.work import TableId

#: the upper 31 and the lower 32 bits of a key's place; the halves of a row's digest
KEY_HIGH, KEY_LOW, SUM_HIGH, SUM_LOW = "key_high", "key_low", "sum_high", "sum_low"
ROW, EXACT, LONG, MORE = "row", "exact", "long", "more"
#: of the document that says how far the index is, which is no row
STATE, POSITION, REACHED = "state", "position", "reached"
#: in the mapping's `_meta`: of which table it is
META = "menura"
#: whose `exact` is a text
KEYWORDS = frozenset({Kind.TEXT, Kind.WIDE})
_LOW = (1 << 32) - 1
#: makes each number of up to 38 digits one of 40 digits
_WIDE_ABOVE = 10**39
_MOST_INT64 = (1 << 63) - 1
_ANALYSIS = {
    "tokenizer": {"menura": {"type": "pattern", "pattern": r"[^\p{IsAlphabetic}\p{N}]+"}},
    "filter": {"menura": {"type": "length", "max": 255}},
    "analyzer": {
        "menura": {"type": "custom", "tokenizer": "menura", "filter": ["menura", "lowercase", "asciifolding"]}
    },
}


def field_name(folder: str, column: Column) -> str:
    """A column's field: other signs than letters, digits and `_-` are as in addresses.

    >>> field_name(ROW, Column("a.b größe", Kind.TEXT))
    'row.a%2Eb%20größe'
    """
    return f"{folder}.{_escaped(column.name)}"


def _escaped(name: str) -> str:
    return re.sub(r"[^\w-]", lambda sign: "".join(f"%{byte:02X}" for byte in _bytes(sign[0])), name)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def index_of(definition: Definition, table: TableId) -> dict[str, Any]:
    """Settings and mapping, which has the table's name: those of indexes are shortened."""
    columns = [(_escaped(each.name), each.kind) for each in definition.columns if each.kind is not Kind.BINARY]
    texts = [name for name, kind in columns if kind is Kind.TEXT]
    exact = {name: {"type": "keyword" if kind in KEYWORDS else "long"} for name, kind in columns}
    words = {name: {"type": "text", "analyzer": "menura"} for name in texts}
    number = {"type": "long", "index": False}
    fields: dict[str, Any] = {
        KEY_HIGH: {"type": "integer"},
        **dict.fromkeys((KEY_LOW, SUM_HIGH, SUM_LOW), number),
        STATE: {"type": "keyword"},
        REACHED: {"type": "object", "enabled": False},
        MORE: {"type": "keyword", "index": False, "doc_values": False},
        ROW: {"type": "object", "dynamic": False, "properties": words},
        EXACT: {"type": "object", "dynamic": "strict", "properties": exact},
        LONG: {"type": "object", "dynamic": "strict", "properties": {name: {"type": "long"} for name in texts}},
    }
    settings = {
        # A search sees one moment of one shard: rows and position together.
        "number_of_shards": 1,
        "auto_expand_replicas": "0-1",
        # Rows are seen with their position, not before.
        "refresh_interval": "-1",
        "translog.durability": "request",
        "gc_deletes": "60s",
        "mapping.total_fields.limit": 50 + 4 * len(definition.columns),
        "analysis": _ANALYSIS,
    }
    mappings = {"_meta": {META: asdict(table)}, "dynamic": "strict", "properties": fields}
    return {"settings": {"index": settings}, "mappings": mappings}


def document_of(entry: Entry, definition: Definition) -> dict[str, Any]:
    place, sum_ = place_of(entry.key), sum_of(entry.text)
    found: dict[str, Any] = {KEY_HIGH: place >> 32, KEY_LOW: place & _LOW}
    found |= {SUM_HIGH: sum_ >> 32 & _LOW, SUM_LOW: sum_ & _LOW}
    found[ROW] = {_escaped(name): value for name, value in entry.values.items()}
    columns = [(each, entry.values[each.name]) for each in definition.columns if each.name in entry.values]
    is_long = {each.name for each, value in columns if each.kind is Kind.TEXT and len(value) > VALUE_CHARS}
    found[EXACT] = {
        _escaped(each.name): exact(each, each.indexed(value))
        for each, value in columns
        if each.kind is not Kind.BINARY and each.name not in is_long
    }
    found[LONG] = {_escaped(name): sum_of(entry.values[name]) for name in is_long}
    if entry.unrepresentable or entry.absent:
        found[MORE] = json.dumps([entry.unrepresentable, entry.absent])
    return found


def exact(column: Column, value: Value) -> int | str:
    """Of a value as `Column.indexed` and `Column.parse` give it, what is compared and counted."""
    if column.kind is Kind.TEXT:
        return str(value)
    if column.kind is Kind.WIDE:
        return f"{value + _WIDE_ABOVE:040d}"
    return ordered(value) if column.kind is Kind.FLOAT else int(value)


def of_exact(column: Column, found: int | str) -> Value:
    """As results show it. Raises ValueError for what is none."""
    if column.kind is Kind.TEXT:
        return str(found)
    number = int(found)
    if column.kind is Kind.WIDE:
        return column.of_number(number - _WIDE_ABOVE)
    if column.kind is Kind.DECIMAL:
        return column.of_number(number)
    if column.kind is Kind.FLOAT:
        return of_ordered(number)
    if column.kind is Kind.BOOLEAN:
        return bool(number)
    return column.shown(number) if column.kind in NUMBERS else number


def ordered(number: float) -> int:
    """A float's bits as a number, in the order of floats: -inf is the least, NaN above inf.

    >>> [of_ordered(each) for each in sorted(map(ordered, [0.1, float("nan"), -2.5, float("-inf"), 1e300]))]
    [-inf, -2.5, 0.1, 1e+300, nan]
    """
    (bits,) = struct.unpack(">q", struct.pack(">d", math.nan if math.isnan(number) else number))
    return int(bits ^ ((bits >> 63) & _MOST_INT64))


def of_ordered(number: int) -> float:
    (found,) = struct.unpack(">d", struct.pack(">q", number ^ ((number >> 63) & _MOST_INT64)))
    return float(found)


def row_of(source: Mapping[str, Any], definition: Definition) -> Struct:
    """As results show it. Raises ValueError, KeyError, TypeError for what is no document of ours."""
    names = {_escaped(each.name): each.name for each in definition.columns}
    values = {names[name]: value for name, value in source[ROW].items()}
    unrepresentable, _ = json.loads(source[MORE]) if MORE in source else ({}, ())
    return shown(definition, values, unrepresentable)
