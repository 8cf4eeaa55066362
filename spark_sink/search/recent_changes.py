"""The newest changes of one table, as its changelog in the lake has them, each with the row before and after.

Comes in: a lake, a table, how many. Goes out: changes in the order of the source's log, as `export.feed` reads them,
their values as texts. Nothing is changed. Rows that a dump's or a repair's end has taken away are not among them: no
change of the source says so.
"""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from spark_sink.errors import TableNotInLake
from spark_sink.export.envelope import Message
from spark_sink.export.feed import Feed
from spark_sink.export.fields import readable
from spark_sink.export.rows import Struct
from spark_sink.work import TableId

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
    feed = Feed(lake, [table], fields=readable, removals=False)
    feed.position = feed.newest(2 * most)  # an update has two rows
    if table not in feed.position.tables:
        raise TableNotInLake(
            "reading recent changes",
            f"{lake} has no changes of {table} that can be read",
            remedy="Check the table's name, and that its sync has brought rows to this lake",
            **table.names(),
        )
    step = feed.next()
    if table in feed.failed:
        raise feed.failed[table]
    messages = () if step is None else (message for _, message in step.messages() if message.value is not None)
    position = feed.position if step is None else step.position
    return RecentChanges(position.cuts[table.tenant, table.source], [*map(_change, deque(messages, maxlen=most))])


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
