"""Transactions that were read, by which the log that was read is told from another one with the same numbers.

Comes in: at each cut's end, its last transaction. Goes out, when a stream begins: three of those that the committed
position has. One alone may be like another log's by chance, and the oldest may be older than the day on which two logs
parted. A MariaDB's GTID names no server for certain: people choose server ids, and a copy of a server goes on
under the same ones. When a statement began is in the log of each replica that has applied it, and hardly in another
log. Durable, as a fact in the schema history; the older they are, the fewer are kept. When it is lost, nothing is
claimed.
"""

import json
from dataclasses import dataclass, field

from agent.sources.mysql.positions import BinlogPosition, Gtids, MariadbGtids
from agent.sources.mysql.schema.history import SchemaHistory
from agent.sources.mysql.server.server_log import ReadTransaction

FACT = "read_transactions"
#: when there are more, every other one is dropped: the newest are close together, the oldest far apart
MOST = 20


@dataclass(slots=True)
class ReadTransactions:
    """Of the source's log, whichever server it was read from."""

    history: SchemaHistory
    #: the oldest first
    _kept: list[ReadTransaction] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            self._kept = [
                ReadTransaction(str(key), int(number), int(begun))
                for key, number, begun in json.loads(self.history.fact(FACT))
            ]
        except (ValueError, TypeError):  # none were kept, or other ones
            self._kept = []

    def add(self, read: ReadTransaction) -> None:
        if self._kept and self._kept[-1] == read:
            return
        if len(self._kept) >= MOST:
            del self._kept[1::2]
        self._kept.append(read)
        self._keep()

    def compared_in(self, gtids: Gtids) -> tuple[ReadTransaction, ...]:
        """The newest one of a position, the middle one and the oldest one that is kept; fewer where fewer are known."""
        known = [read for read in reversed(self._kept) if _has(gtids, read)]
        return tuple(dict.fromkeys((known[0], known[len(known) // 2], known[-1]))) if known else ()

    def begin(self, start: BinlogPosition, *, goes_on: bool) -> None:
        """A stream begins at `start`; `goes_on`: of the log that was read before. What comes later is read again."""
        gtids = start.gtids
        kept = [read for read in self._kept if goes_on and gtids is not None and _has(gtids, read)]
        if kept != self._kept:
            self._kept = kept
            self._keep()

    def _keep(self) -> None:
        self.history.keep_fact(FACT, json.dumps([[read.key, read.number, read.begun] for read in self._kept]))


def _has(gtids: Gtids, read: ReadTransaction) -> bool:
    return isinstance(gtids, MariadbGtids) == read.is_of_mariadb and gtids.has(read.gtid)
