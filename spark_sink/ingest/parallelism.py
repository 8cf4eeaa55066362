"""How many tasks a batch may have: as many as the cluster has cores now, and some more.

The driver knows how many executors there are; the log is read by a process of its own, which Spark starts and tells
nothing. So the driver writes the number into a file of its machine, before the query begins and after each batch. A
kill leaves the file among the machine's temporary files.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

PARTITIONS_PER_CORE = 4


class Parallelism:
    def __init__(self, cores: Callable[[], int]) -> None:
        self._cores = cores
        folder = Path(tempfile.mkdtemp(prefix="menura-parallelism-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.file = folder / "partitions"

    def note(self) -> int:
        """Write it down; the number of cores."""
        cores = self._cores()
        draft = self.file.with_suffix(".part")
        draft.write_text(str(cores * PARTITIONS_PER_CORE))
        draft.rename(self.file)
        return cores


def read_partitions(file: Path) -> int:
    return int(file.read_text())
