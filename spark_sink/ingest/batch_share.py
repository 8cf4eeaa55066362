"""How much of one table a batch does. All other tables wait for a batch's end, so what takes longer is left out of it.

Comes in: a table's work in a batch, and the size of what would be written anew. Goes out: nothing, or a `TableBehind`
before anything is written. The driver then leaves the table out of its batches, gives it what it missed beside them
(`query.Sink.catch_up_due`), and has it join again. Durable is the stop, as with any table that has stopped; a kill
anywhere has the table tried again with the next start.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from spark_sink.errors import TableBehind
from spark_sink.ingest.cut_log_source import CHUNK_WEIGHT
from spark_sink.ingest.task_size import plain_size
from spark_sink.work import TableFile, TableId, Work


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Each bound is a second or two of a slow core."""

    rows: int = 100_000
    plain_bytes: int = 32 << 20
    #: of a current state's files, that a batch may write anew
    rewritten_bytes: int = 32 << 20

    def check(self, table: TableId, work: Sequence[Work]) -> None:
        """Whether what the table does not have yet is within it. Raises `TableBehind`."""
        files = [each for each in work if isinstance(each, TableFile)]
        weights = [CHUNK_WEIGHT if each.is_range else 1 for each in files]
        rows = sum(each.rows * weight for each, weight in zip(files, weights, strict=True))
        plain_bytes = sum(plain_size(each) * weight for each, weight in zip(files, weights, strict=True))
        if rows > self.rows or plain_bytes > self.plain_bytes:
            raise behind(table, work[0].cut, f"{sum(each.rows for each in files)} rows of it landed at once")


def behind(table: TableId, cut: int, found: str) -> TableBehind:
    return TableBehind(
        "writing the table in the lake",
        f"{found}, and other tables do not wait for that",
        data="The table stays at its last version until it has caught up; other tables go on",
        remedy="It catches up by itself, beside the others",
        **table.where(cut),
    )
