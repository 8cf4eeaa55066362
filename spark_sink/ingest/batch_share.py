"""How much of one table others wait for: what is more is left out of a batch, and done in parts between batches.

Comes in: a table's work in a batch. Goes out: whether it is within a share of the batch, else the stop `TableBehind`,
before anything of it is written. The driver then gives the table what it missed, one part after the other, each no more
than a share for each core, with a batch between two where one waits (`catching_up`). Durable is the stop with the entry
from which on the table lacks rows, moved after each part; a kill between has that part done again, of which the table
skips what it holds.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from spark_sink.errors import TableBehind
from spark_sink.ingest.cut_log_source import CHUNK_WEIGHT
from spark_sink.work import TableFile, TableId, Work, plain_size


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Each bound is about a second of a core."""

    rows: int = 200_000
    plain_bytes: int = 64 << 20

    def parts(self, rows: int, plain_bytes: int, *, is_range: bool) -> float:
        """How many shares a file is."""
        weight = CHUNK_WEIGHT if is_range else 1
        return weight * max(rows / self.rows, plain_bytes / self.plain_bytes)

    def holds(self, work: Iterable[Work]) -> bool:
        files = (each for each in work if isinstance(each, TableFile))
        return sum(self.parts(file.rows, plain_size(file), is_range=file.is_range) for file in files) <= 1


def behind(table: TableId, first: Work) -> TableBehind:
    return TableBehind(
        "writing the table in the lake",
        "more of it landed at once than other tables are to wait for",
        data="The table stays at its last version until it has caught up; nothing is lost, and other tables go on",
        remedy="Wait: it catches up by itself, in parts between the batches of the others",
        **table.where(first.cut),
    )
