"""How much of one table others wait for: what is more is left out of a batch, and done in parts between batches.

Comes in: what a batch has of a table that the table does not hold yet. Goes out: whether it is within a share, else the
stop `TableBehind`, before anything of it is written. The driver then gives the table what it missed, one part after the
other, with a batch between two where one waits (`catching_up`). Durable is the stop with the entry
from which on the table lacks rows, moved after each part; a kill between has that part done again, of which the table
skips what it holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from spark_sink.errors import TableBehind
from spark_sink.work import TableFile, TableId, Work, plain_size


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Each bound is about a second of a core, of changes as of a dump's rows."""

    rows: int = 200_000
    plain_bytes: int = 64 << 20

    def shares(self, file: TableFile) -> float:
        return max(file.rows / self.rows, plain_size(file) / self.plain_bytes)

    def holds(self, work: Iterable[Work]) -> bool:
        return sum(self.shares(each) for each in work if isinstance(each, TableFile)) <= 1


#: why a table catches up in parts
MUCH_LANDED = "more of it landed at once than other tables are to wait for"
STORE_IS_BACK = "the store that had failed takes it again, and other tables do not wait for what it has missed"


def behind(table: TableId, cut: int, found: str = MUCH_LANDED) -> TableBehind:
    return TableBehind(
        "writing the table in the lake",
        found,
        data="The table stays at its last version until it has caught up; nothing is lost, and other tables go on",
        remedy="Wait: it catches up by itself, in parts between the batches of the others",
        **table.where(cut),
    )
