"""What a lake has of one primary key: its changes, its row now, what took rows of its table away, and its proofs.

Comes in: a table's Delta tables, the lake's records, and the key's values as words. Goes out: rows of each. Nothing is
written. Of the changelog and the current state only files, row groups and pages are read whose statistics may have the
key (`key_bounds`), and of these the key and the sink's own columns; of the rows the newest `most` are kept.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import CHANGE_TYPE, COMMIT_TIMESTAMP_US, GSN, LANDED_COLUMNS, POSITION, source_column
from menura.key_texts import key_text
from menura.naming import lake_column
from menura.row_hash import HashedRows

from spark_sink.lake.delta_table import open_table, quoted, scan, schema_of, text
from spark_sink.lake.digests import Verdict
from spark_sink.lake.key_bounds import key_bounds
from spark_sink.lake.record_rows import NUMBER
from spark_sink.lake.records import WHOLE
from spark_sink.lake.table_folders import TABLE
from spark_sink.lake.tail import Rows
from spark_sink.lake.validation_records import DUE
from spark_sink.work import TableId

#: of a table, the newest
MOST_EVENTS = 1000
_EVENT_COLUMNS = (
    "kind",
    GSN,
    "cut",
    COMMIT_TIMESTAMP_US,
    POSITION,
    "statement",
    "removes_rows",
    "dump",
    "removes_rows_before_gsn",
    "unlogged_changes",
    "gap_from",
    "gap_to",
    "repaired",
)
_OF_CONTINUITY = ("SYNC_STARTED", "SYNC_STOPPED", "LOG_GAP", "DUMP_STARTED", "DUMPED", "REPAIR_STARTED", "REPAIRED")
#: of one number, what comes after what
_PLACES = {"update_preimage": 0, "delete": 0, "insert": 1, "update_postimage": 1, "snapshot": 2}


class NoSuchKey(ValueError):
    """Words that are no key of the table; says why."""


@dataclass(frozen=True, slots=True)
class RowKey:
    """One key, as a row of its columns alone."""

    row: pa.Table

    @property
    def names(self) -> list[str]:
        return list(self.row.column_names)

    @property
    def texts(self) -> str:
        """As verdicts have it: a JSON array."""
        (batch,) = self.row.to_batches()
        return key_text(HashedRows(batch), range(self.row.num_columns), 0)

    @property
    def numbers(self) -> tuple[int, ...] | None:
        """None where a column of it is no integer."""
        values = [column[0].as_py() for column in self.row.columns]
        if not all(isinstance(value, int | Decimal) and value == int(value) for value in values):
            return None
        return tuple(map(int, values))

    def of(self, rows: pa.Table) -> pa.Table:
        """Those of the rows that have this key."""
        for name in self.names:
            try:
                wanted = self.row[name][0].cast(rows.schema.field(name).type)
            except pa.ArrowException:  # a column of another type has no such value
                return rows.slice(0, 0)
            rows = rows.filter(pc.equal(rows[name], wanted))
        return rows

    def condition(self, schema: pa.Schema) -> str:
        """SQL that may let other keys' rows through."""
        return key_bounds(self.row, self.names).condition({field.name: field for field in schema})


def read_key(schema: pa.Schema, names: Sequence[str], words: Sequence[str]) -> RowKey:
    """The key of these words, one for each column, or all as a JSON array, as verdicts have them.

    >>> schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    >>> read_key(schema, ["id", "day"], ['["7", "2026-01-31"]']).texts
    '["7", "2026-01-31"]'

    Raises `NoSuchKey`.
    """
    found = _array_of(words, len(names))
    if len(found) != len(names):
        raise NoSuchKey(f"{len(found)} values are given, and the key is ({', '.join(names)})")
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise NoSuchKey(f"the lake's table has no column {missing[0]}, of the key")
    fields = [schema.field(name) for name in names]
    values = [_value(word, field) for word, field in zip(found, fields, strict=True)]
    return RowKey(pa.table([pa.array([value], field.type) for value, field in zip(values, fields, strict=True)], names))


def _array_of(words: Sequence[str], columns: int) -> Sequence[str]:
    if len(words) == 1 and words[0].startswith("["):
        try:
            found = json.loads(words[0])
        except ValueError:
            return words
        if isinstance(found, list) and len(found) == columns and all(isinstance(each, str) for each in found):
            return found
    return words


def _value(word: str, field: pa.Field) -> object:
    """A literal of `menura.types` as a value of the column's type."""
    type_ = field.type
    try:
        if pa.types.is_binary(type_):
            return bytes.fromhex(word.removeprefix("0x"))
        if pa.types.is_timestamp(type_):
            return pa.scalar(word.removesuffix("Z")).cast(pa.timestamp("us")).cast(pa.int64()).cast(type_).as_py()
        return pa.scalar(word).cast(type_).as_py()
    except (pa.ArrowException, ValueError) as wrong:
        raise NoSuchKey(f"{word!r} is no value of column {field.name}, a {type_}") from wrong


def changes_of(changelog: DeltaTable, key: RowKey, most: int) -> list[dict[str, Any]]:
    """The newest changes, from the oldest of them on, in the order in which a replay takes them."""
    wanted = [*LANDED_COLUMNS, *key.names]
    chosen = ", ".join(map(quoted, wanted))
    query = f"SELECT {chosen} FROM t WHERE {key.condition(schema_of(changelog))}"  # noqa: S608  (quoted names, literals)
    held: list[pa.Table] = []
    rows = 0
    for batch in scan(changelog, query):
        found = key.of(pa.Table.from_batches([batch])).select(LANDED_COLUMNS)
        held, rows = [*held, found] if found.num_rows else held, rows + found.num_rows
        if rows > 4 * most:
            held = [_newest(pa.concat_tables(held), most)]
            rows = most
    found_rows: list[dict[str, Any]] = _newest(pa.concat_tables(held), most).to_pylist() if held else []
    return sorted(found_rows, key=lambda row: (row[GSN], _PLACES.get(row[CHANGE_TYPE], 0)))


def _newest(rows: pa.Table, most: int) -> pa.Table:
    return rows.sort_by([(GSN, "descending")]).slice(0, most)


def rows_now(rows: Rows, key: RowKey) -> list[int]:
    """The number of each row with this key that readers see: one, or none."""
    found = rows.tables([*key.names, GSN], key.condition(rows.schema))
    return sorted(gsn for each in found for gsn in key.of(each)[GSN].to_pylist())


def files_of(table: DeltaTable, key: RowKey) -> tuple[int, int]:
    """How many files a table has, and how many of them may have the key by what its log says of them."""
    facts = pa.table(table.get_add_actions(flatten=True))
    name = key.names[0]
    low, high = f"min.{name}", f"max.{name}"
    value = key.row[name][0]
    if low not in facts.column_names or facts[low].type != value.type or pa.types.is_timestamp(value.type):
        return facts.num_rows, facts.num_rows
    outside = pc.or_(pc.greater(facts[low], value), pc.less(facts[high], value)).fill_null(False)
    return facts.num_rows, facts.num_rows - int(pc.sum(outside).as_py() or 0)


def events_of(folder: str, table: TableId) -> list[dict[str, Any]]:
    """The newest events that say what of the table's log the lake has, or that took rows away, in their order."""
    held = open_table(folder)
    if held is None:
        return []
    names = schema_of(held).names
    chosen = ", ".join(quoted(name) if name in names else f"NULL AS {quoted(name)}" for name in _EVENT_COLUMNS)
    kinds = ", ".join(map(text, _OF_CONTINUITY))
    unlogged = " OR unlogged_changes IS NOT NULL" if "unlogged_changes" in names else ""
    query = (
        f"SELECT {chosen} FROM t WHERE {_of_table(table)} AND (removes_rows OR kind IN ({kinds}){unlogged}) "  # noqa: S608
        f"ORDER BY cut DESC, {quoted(GSN)} DESC LIMIT {MOST_EVENTS}"
    )
    rows: list[dict[str, Any]] = scan(held, query).read_all().to_pylist()
    return rows[::-1]


def first_keys_gsn(folder: str, table: TableId) -> int:
    """Number of the first event that told of the table's foreign keys; 0: none has."""
    held = open_table(folder)
    if held is None:
        return 0
    query = f"SELECT min({quoted(GSN)}) AS gsn FROM t WHERE {_of_table(table)} AND kind = 'FOREIGN_KEYS'"  # noqa: S608
    (row,) = scan(held, query).read_all().to_pylist()
    return row["gsn"] or 0


def removes(event: Mapping[str, Any], key: RowKey, gsn: int) -> bool:
    """Whether the event, which comes after a row of the key with this number, takes it away."""
    if event["removes_rows"] or (event["removes_rows_before_gsn"] or 0) > gsn:
        return True
    if not event["repaired"]:
        return False
    repaired = json.loads(event["repaired"])
    names = [lake_column(source_column(name)) for name in repaired["key"]]
    return (
        names == key.names
        and repaired["before_gsn"] > gsn
        and any(is_between(key.numbers, each["above"], each["up_to"]) for each in repaired["ranges"])
    )


def is_between(numbers: tuple[int, ...] | None, above: Iterable[int], up_to: Iterable[int]) -> bool:
    """Empty bounds are none.

    >>> is_between((7,), (), (7,)), is_between((7,), (7,), ()), is_between(None, (), ())
    (True, False, False)
    """
    lower, upper = tuple(above), tuple(up_to)
    return numbers is not None and (not lower or numbers > lower) and (not upper or numbers <= upper)


def verdicts_of(folder: str, table: TableId) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Of the table: its newest verdict, and the newest that is equal."""
    held = open_table(folder)
    if held is None:
        return None, None
    said = f"{_of_table(table)} AND chunk IS NULL"
    found = [
        scan(held, f"SELECT * FROM t WHERE {said} AND {of} ORDER BY {NUMBER} DESC LIMIT 1").read_all().to_pylist()  # noqa: S608
        for of in (f"verdict <> {text(DUE)}", f"verdict = {text(Verdict.EQUAL)}")
    ]
    newest, equal = (rows[0] if rows else None for rows in found)
    return newest, equal


def said_of(verdict: Mapping[str, Any], key: RowKey) -> str:
    """What a verdict says of the key: 'row', it differs; 'leaf', rows beside it differ, or it does; '': neither."""
    if any(row["key"] == key.texts for row in json.loads(verdict["rows"] or "[]")):
        return "row"
    leaves = json.loads(verdict["leaves"] or "[]")
    is_in = any(each.get("bits") or is_between(key.numbers, each["lower"], each["upper"]) for each in leaves)
    return "leaf" if is_in else ""


def boundary_entries(folder: str, tenant: str, source: str) -> tuple[list[int], int]:
    """Entries of the cut log at which the lake has a cut of the source, and the last one up to which all tables do."""
    held = open_table(folder)
    if held is None:
        return [], 0
    whole = f"max(CASE WHEN {WHOLE} THEN entry END)" if WHOLE in schema_of(held).names else "max(entry)"
    where = f"tenant = {text(tenant)} AND source = {text(source)}"
    query = f"SELECT entry, {whole} AS whole FROM t WHERE {where} GROUP BY entry ORDER BY entry"  # noqa: S608  (own literals)
    rows = scan(held, query).read_all().to_pylist()
    return [row["entry"] for row in rows], max((row["whole"] or 0 for row in rows), default=0)


def _of_table(table: TableId) -> str:
    return " AND ".join(f"{quoted(name)} = {text(getattr(table, name))}" for name in TABLE)
