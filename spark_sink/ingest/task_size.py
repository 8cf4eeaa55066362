"""How much of one table is written at once.

Comes in: a table's work. Goes out: whether it fits, and in which parts. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from spark_sink.work import DigestChunk, TableFile, Work

#: of files up to format 7, which do not say how much their rows are
PLAIN_PER_BYTE = 4


def plain_size(file: TableFile) -> int:
    """Bytes of its rows in memory."""
    return file.plain_bytes or file.bytes * PLAIN_PER_BYTE


@dataclass(frozen=True, slots=True)
class TaskSize:
    """What of one table a task merges at once; a cut beyond it is merged by Spark (`large_merge`).

    Measured with 11 columns: 500,000 changes of a table of 2,000,000 rows take a worker to 1.0 GiB and 3.4 s,
    1,500,000 (57 MiB landed) to 2.1 GiB and 6.9 s. Bytes are those of the rows, not of the files: repeated text of
    385 MB landed as 0.42 MB.
    """

    rows: int = 1_000_000
    plain_bytes: int = 256 << 20

    def holds(self, work: Sequence[Work]) -> bool:
        """Chunks of ranges do not count: they are merged piece by piece."""
        counted = [each for each in work if isinstance(each, TableFile) and not each.is_range]
        plain_bytes = sum(map(plain_size, counted))
        return sum(each.rows for each in counted) <= self.rows and plain_bytes <= self.plain_bytes

    def groups(self, work: Sequence[Work]) -> list[list[Work]]:
        """Whole cuts, as many together as fit; at least one. A group ends with a cut that a verification looks at."""
        groups: list[list[Work]] = []
        for _, found in groupby(work, key=lambda each: each.cut):
            cut = list(found)
            if (
                groups
                and not any(isinstance(each, DigestChunk) for each in groups[-1])
                and self.holds([*groups[-1], *cut])
            ):
                groups[-1].extend(cut)
            else:
                groups.append(cut)
        return groups
