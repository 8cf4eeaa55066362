"""`python -m tests.bench.merges [--rows 2000000] [--changes 200000]`: small tables wait while another is merged.

Fifty small tables get a row each second, each time in one cut. Another table has so many rows, and so many random
changes of it wait in its changelog; with one more they are more than may wait. Measured is from when a cut of the small
tables stands in the log until the sink has it, from that last change until all are merged: with the merge beside
batches, and, in the same run, as it is where none is. Before that, what they wait for with nothing else to do. Seconds
are of a clock: their ratio counts. Into build/bench-merges.json.
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.table import Table as Printed

from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.lake.delta_table import append, open_table, read_progress, schema_of
from spark_sink.lake.tail import DETACHED_BYTES, Waiting
from spark_sink.reading import row_count
from spark_sink.running import run
from spark_sink.spark import start_session
from spark_sink.work import CURRENT
from tests.bench.lake import COLUMNS, FIRST_ROWS, ORDERS, PART_ROWS, changed, columns, values
from tests.bench.report import console, write_figures
from tests.spark_sink.landing import Table, Writer, insert, table_id
from tests.stack import wait_for

SMALL = [Table(f"t{number}", COLUMNS) for number in range(50)]
CUTS, LEAST_WAITS = 10, 5
BIG = table_id(ORDERS, source="big")


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that the small tables have waited, alone and in the merge, and until that was there."""

    alone: float
    median: float
    longest: float
    merge: float


@dataclass(frozen=True, slots=True)
class Figure:
    case: str
    ours: float
    peer: float
    ratio: float
    goal: str
    met: bool


def fill(folder: str, rows: int) -> None:
    """Rows written past the sink."""
    current = open_table(folder)
    assert current is not None
    for first in range(FIRST_ROWS, rows, PART_ROWS // 2):
        append(current, columns(first, min(rows, first + PART_ROWS // 2), schema_of(current)), [])


def measure(session: SparkSession, folder: Path, detached_bytes: int | None, rows: int, changes: int) -> Waits:
    writer, lake = Writer(folder / "landing"), folder / "lake"
    # Each change has two rows in the changelog.
    waiting = Waiting(1e6, most_rows=2 * changes, part_of_table=1e9)
    settings = SinkSettings(
        str(writer.folder),
        str(lake),
        str(folder / "checkpoint"),
        share=BatchShare(rows=1 << 40, plain_bytes=1 << 60),
        waiting=waiting,
        detached_bytes=detached_bytes,
    )
    stop, status = threading.Event(), SinkStatus()
    sink = threading.Thread(target=run, args=(session, settings, stop, status))
    writer.cut((ORDERS, [insert(**values(key)) for key in range(FIRST_ROWS)]), source="big")
    writer.cut(*((table, [insert(**values(0))]) for table in SMALL))

    def applied() -> None:
        wait_for("a batch", lambda: status.now().entry >= writer.entry or None, seconds=3600)

    def is_merged() -> bool:
        current = open_table(current_folder)
        return current is not None and read_progress(current, BIG.application).cut >= CUTS + 2

    sink.start()
    applied()
    current_folder = f"{BIG.folder(str(lake))}/{CURRENT}"
    fill(current_folder, rows)
    keys = random.Random(7).sample(range(rows), changes + 1)
    for first in range(0, changes, changes // CUTS):
        writer.cut((ORDERS, [changed(key, 3) for key in keys[first : first + changes // CUTS]]), source="big")
        applied()
    cuts = 0

    def wait() -> float:
        nonlocal cuts
        cuts += 1
        writer.cut(*((table, [insert(**values(cuts))]) for table in SMALL))
        landed = time.monotonic()
        applied()
        seconds = time.monotonic() - landed
        time.sleep(max(0.0, landed + 1 - time.monotonic()))
        return seconds

    alone = [wait() for _ in range(LEAST_WAITS)]
    assert not is_merged()
    writer.cut((ORDERS, [changed(keys[-1], 3)]), source="big")
    waits: list[float] = []
    began, merge = time.monotonic(), 0.0
    while not merge or len(waits) < LEAST_WAITS:
        waits.append(wait())
        if not merge and is_merged():
            merge = time.monotonic() - began
    stop.set()
    sink.join()
    assert row_count(str(lake), BIG) == rows
    assert {row_count(str(lake), table_id(table)) for table in SMALL} == {cuts + 1}
    return Waits(statistics.median(alone), statistics.median(waits), max(waits), merge)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.merges", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, default=200_000)
    chosen = parser.parse_args()
    session, found = start_session("local[2]"), []
    for detached_bytes in (DETACHED_BYTES, None):
        with tempfile.TemporaryDirectory(prefix="menura-bench-") as folder:
            found.append(measure(session, Path(folder), detached_bytes, chosen.rows, chosen.changes))
    session.stop()
    ours, peer = found
    name = f"{chosen.changes:,} changes merged into {chosen.rows:,} rows"
    figures = [
        Figure("median wait of small tables, alone", ours.alone, peer.alone, 0, "none", met=True),
        Figure(f"longest wait of small tables, {name}", ours.longest, peer.longest, 0, "2 s", ours.longest <= 2),
        Figure(f"median wait of small tables, {name}", ours.median, peer.median, 0, "2 s", ours.median <= 2),
        Figure(f"until it was merged, {name}", ours.merge, peer.merge, 0, "none", met=True),
    ]
    figures = [Figure(**{**asdict(each), "ratio": each.ours / each.peer}) for each in figures]
    out, printed = console(), Printed(title="seconds")
    for heading in ("", "beside batches", "with a batch", "ratio", "goal", "met"):
        printed.add_column(heading)
    for each in figures:
        cells = (f"{each.ours:.2f}", f"{each.peer:.2f}", f"{each.ratio:.2f}")
        printed.add_row(each.case, *cells, each.goal, "yes" if each.met else "no")
    out.print(printed)
    write_figures("bench-merges.json", figures, out)


if __name__ == "__main__":
    main()
