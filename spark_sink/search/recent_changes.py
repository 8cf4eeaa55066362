"""The newest changes of one table, as its changelog in the lake has them, each with the row before and after.

Comes in: a lake, a table, how many. Goes out: changes in the order of the source's log, their values as texts. What
is read is bounded by that number, however many rows share a number or a file. Nothing is changed. Rows that a dump's
or a repair's end has taken away are not among them: no change of the source says so.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from menura.change_batch import GSN
from menura.instants import now_us

from spark_sink.errors import TableNotInLake
from spark_sink.export.envelope import Envelope, Message
from spark_sink.export.feed import Feed
from spark_sink.export.fields import readable
from spark_sink.export.rows import PLACES, Shape, Struct
from spark_sink.lake.changelog_retention import files_by_number, read_kept
from spark_sink.lake.delta_table import quoted, read_layout, scan, schema_of
from spark_sink.reading import opened
from spark_sink.work import CHANGELOG, TableId

MOST_CHANGES = 50


@dataclass(frozen=True, slots=True)
class Change:
    #: c, u, d, r (a dump's), t (all rows), as Debezium has them
    op: str
    gsn: int
    transaction_id: int
    #: of the commit at the source
    committed_us: int
    #: behind the transaction, in the source's words
    position: str
    #: None: the table has no key, or the change is of all rows
    key: Struct | None
    before: Struct | None
    after: Struct | None
    #: columns of which the source's log did not carry the value
    absent_before: tuple[str, ...]
    absent_after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecentChanges:
    #: of the source, up to which the lake has the table
    cut: int
    changes: Sequence[Change]


def recent_changes(lake: str, table: TableId, most: int) -> RecentChanges:
    """Up to `most`, the newest last. Raises `TableNotInLake`, other `SinkError`s, and what the lake's store raises."""
    at = Feed(lake, [table]).at_cut(None, whole=False)
    if table not in at.tables:
        raise TableNotInLake(
            "reading recent changes",
            f"{lake} has no changes of {table} that can be read",
            remedy="Check the table's name, and that its sync has brought rows to this lake",
            **table.names(),
        )
    changelog = opened(lake, table, CHANGELOG)
    shape = Shape.of(schema_of(changelog), read_layout(changelog), readable)
    rows = [row for found in _newest(changelog, at.tables[table].gsn, 2 * most) for row in shape.rows(found)]
    rows.sort(key=lambda row: (row.gsn, PLACES.index(row.kind)))
    messages = [each for each in Envelope(table, shape, now_us()).messages(rows) if each.value is not None]
    return RecentChanges(at.cuts[table.tenant, table.source], [*map(_change, messages[-most:])])


def _newest(changelog: DeltaTable, up_to_gsn: int, most: int) -> Iterator[pa.Table]:
    """So many rows at least, where there are: an update has two. Of rows that share the lowest number, which a dump's
    do by the million, as many as are missing."""
    least = max(_low_of_newest(changelog, most), read_kept(changelog).begins_gsn)
    among = f"{quoted(GSN)} >= {least} AND {quoted(GSN)} <= {up_to_gsn}"
    order = f"ORDER BY {quoted(GSN)} DESC LIMIT {most}"
    numbers = scan(changelog, f"SELECT {quoted(GSN)} AS gsn FROM t WHERE {among} {order}").read_all()["gsn"].to_pylist()  # noqa: S608
    if not numbers:
        return
    lowest = numbers[-1]
    for condition in (
        f"{quoted(GSN)} > {lowest} AND {quoted(GSN)} <= {up_to_gsn}",
        f"{quoted(GSN)} = {lowest} LIMIT {numbers.count(lowest)}",
    ):
        yield scan(changelog, f"SELECT * FROM t WHERE {condition}").read_all()  # noqa: S608


def _low_of_newest(changelog: DeltaTable, most: int) -> int:
    """A number at or above which the newest rows are, by what the files' statistics say."""
    rows, low = 0, 0
    for file in reversed(files_by_number(changelog)):
        rows, low = rows + file.rows, file.low if not rows else min(low, file.low)
        if rows >= most:
            return low
    return 0


def _change(message: Message) -> Change:
    assert message.value is not None
    source = message.value["source"]
    absent = json.loads(source["unavailable"] or "{}")
    return Change(
        message.op,
        message.gsn,
        source["transaction_id"],
        source["ts_us"],
        source["position"],
        message.key,
        message.value["before"],
        message.value["after"],
        tuple(absent.get("before", ())),
        tuple(absent.get("after", ())),
    )
