"""`python -m tests.bench.sink_memory`: resident memory of the sink's processes during a dump beside a stream.

A dump's chunks and changes of random keys are landed as the gateway lands them, and `menura sink run` follows, a few
entries behind. Printed is each process's peak in each quarter of the dump: what grows with the table grows from one to
the next.
"""

import argparse
import random
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
from rich.console import Console
from rich.table import Table as Printed

from spark_sink.lake.delta_table import open_table, read_progress, scan
from spark_sink.work import CURRENT
from tests.spark_sink.landing import Batch, Chunk, Event, Table, Values, Writer, altered, insert, table_id, update
from tests.stack import Process, wait_for

ITEMS = Table("items", {"id": pa.int64(), "n": pa.int32(), "at": pa.timestamp("us"), "note": pa.string()})
CHUNK_ROWS = 50_000
QUARTERS = 4
SAMPLE_SECONDS = 0.1
SMALL_BYTES = 16 << 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.sink_memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--ahead", type=int, default=4, help="entries that the landing may be ahead of the lake")
    parser.add_argument("--changes", type=int, default=5_000, help=f"of any keys, beside each {CHUNK_ROWS:,} rows")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="menura-bench-") as name:
        folder = Path(name)
        writer, addresses = Writer(folder / "landing"), ["--landing", name + "/landing", "--lake", name + "/lake"]
        lake = f"{table_id(ITEMS).folder(name + '/lake')}/{CURRENT}"

        def followed(cut: int) -> bool:
            return read_progress(open_table(lake), table_id(ITEMS).application).cut >= cut

        writer.cut(altered(ITEMS), Event(ITEMS, "DUMP_STARTED", dump="dump-1"))
        sink = Process(["sink", "run", *addresses, "--master", "local[2]"], folder / "sink.log")
        with sink, sampled(sink) as samples:
            versions: dict[int, int] = {}
            for first in range(0, chosen.rows, CHUNK_ROWS):
                cut = writer.cut(*batches(writer, versions, chosen.rows, first, chosen.changes))
                wait_for("the sink", lambda cut=cut: followed(cut - chosen.ahead), 600)
                samples.quarter = first * QUARTERS // chosen.rows
            wait_for("the sink to end the dump", lambda: followed(cut), 600)
        delta = open_table(lake)
        assert delta is not None
        found = scan(delta, "SELECT count(*) AS rows, count(DISTINCT id) AS keys FROM t").read_all().to_pylist()
        title = f"{chosen.rows:,} rows dumped, {sum(versions.values()):,} changes beside; in the lake: {found[0]}"
        samples.print(title)


def batches(writer: Writer, versions: dict[int, int], rows: int, first: int, count: int) -> list[Batch]:
    """Changes of any keys, and the chunk with the even keys from twice `first` on, as they are after these changes."""
    chosen = random.Random(first)
    floor = writer.last_gsns["acme", "shop"]
    changes = []
    for key in (chosen.randrange(2 * rows) for _ in range(count)):
        before = versions.get(key, 0)
        versions[key] = before + 1
        is_there = before or key % 2 == 0
        changes.append(update(row(key, before), row(key, before + 1)) if is_there else insert(**row(key, 1)))
    keys = (key for key in range(2 * first, 2 * (first + CHUNK_ROWS)) if key % 2 == 0 or key in versions)
    return [(ITEMS, changes), Chunk(ITEMS, [row(key, versions.get(key, 0)) for key in keys], floor)]


def row(key: int, version: int) -> Values:
    return {"id": key, "n": version, "at": key * 1_000, "note": f"item {key * 7919 % 1_000_003:020d} {version}"}


class Samples:
    """Peaks of resident bytes by process and quarter of the dump."""

    def __init__(self) -> None:
        self.quarter = 0
        self._peaks: defaultdict[tuple[str, int], list[int]] = defaultdict(lambda: [0] * QUARTERS)

    def take(self, process: psutil.Process) -> None:
        peaks = self._peaks[role(process), process.pid]
        peaks[self.quarter] = max(peaks[self.quarter], process.memory_info().rss)

    def print(self, title: str) -> None:
        table = Printed("process", "pid", *(f"MiB in quarter {number + 1}" for number in range(QUARTERS)), title=title)
        for (name, pid), peaks in sorted(self._peaks.items()):
            if max(peaks) < SMALL_BYTES:
                continue  # what started the others
            table.add_row(name, str(pid), *(str(peak >> 20) for peak in peaks))
        Console(width=120).print(table)


def role(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if "org.apache.spark" in command:
        return "Spark's JVM"
    daemons = ("pyspark.daemon", "spark_sink.worker_daemon")
    if not any(name in command for name in daemons):
        return "planner" if "pyspark.sql" in command else "driver"
    parent = process.parent()
    above = "" if parent is None else " ".join(parent.cmdline())
    return "worker" if any(name in above for name in daemons) else "workers' parent"


@contextmanager
def sampled(sink: Process) -> Iterator[Samples]:
    assert sink.running is not None
    root, samples, ending = psutil.Process(sink.running.pid), Samples(), threading.Event()

    def sample() -> None:
        while not ending.wait(SAMPLE_SECONDS):
            for process in [root, *root.children(recursive=True)]:
                try:
                    samples.take(process)
                except psutil.NoSuchProcess:
                    continue  # it has ended meanwhile

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ending.set()
        thread.join()


if __name__ == "__main__":
    main()
