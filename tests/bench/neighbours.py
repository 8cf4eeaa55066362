"""`python -m tests.bench.neighbours [--cuts 20] [--rows 50000]`: how long small tables wait while another's rows land.

Fifty small tables get a row each second, each time in one cut. With the first of these cuts a backlog of another table
stands in the log: so many cuts of so many rows. Measured is from when a cut of the small tables stands in the log until
the sink has it: with the share of a batch that the sink has, and without one, in the same run. Seconds are of a clock:
their ratio counts. Into build/bench-neighbours.json.
"""

import argparse
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from rich.table import Table as Printed

from spark_sink.ingest.batch_share import BatchShare
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.reading import row_count
from spark_sink.running import run
from spark_sink.spark import start_session
from tests.bench.lake import COLUMNS, ORDERS, values
from tests.bench.report import console, write_figures
from tests.spark_sink.landing import Table, Writer, insert, table_id
from tests.stack import wait_for

SMALL = [Table(f"t{number}", COLUMNS) for number in range(50)]
LEAST_CUTS = 10
WITHOUT = BatchShare(rows=1 << 40, plain_bytes=1 << 60)


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds that the small tables have waited, and until all of the backlog was there."""

    case: str
    median: float
    longest: float
    backlog: float


def measure(session: SparkSession, folder: Path, case: str, share: BatchShare, cuts: int, rows: int) -> Figure:
    writer, lake = Writer(folder / "landing"), folder / "lake"
    settings = SinkSettings(str(writer.folder), str(lake), str(folder / "checkpoint"), share=share)
    stop, status = threading.Event(), SinkStatus()
    sink = threading.Thread(target=run, args=(session, settings, stop, status))
    writer.cut((ORDERS, [insert(**values(0))]), *((table, [insert(**values(0))]) for table in SMALL))
    sink.start()
    wait_for("the first batch", lambda: status.now().entry >= 1 or None, seconds=300)
    backlog = [
        writer.make_cut([(ORDERS, [insert(**values(key)) for key in range(first, first + rows)])], source="big")
        for first in range(0, cuts * rows, rows)
    ]
    began, waits = time.monotonic(), []
    for cut in backlog:
        writer.write_entry([cut])
    orders = table_id(ORDERS, source="big")
    done = 0.0
    while not done or len(waits) < LEAST_CUTS:
        writer.cut(*((table, [insert(**values(len(waits) + 1))]) for table in SMALL))
        landed = time.monotonic()
        wait_for("the small tables", lambda: status.now().entry >= writer.entry or None, seconds=3600)
        waits.append(time.monotonic() - landed)
        if not done and orders not in status.now().stopped:
            done = time.monotonic() - began
        time.sleep(max(0.0, landed + 1 - time.monotonic()))
    stop.set()
    sink.join()
    assert row_count(str(lake), orders) == cuts * rows
    assert {row_count(str(lake), table_id(table)) for table in SMALL} == {len(waits) + 1}
    return Figure(case, statistics.median(waits), max(waits), done)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.neighbours", description=__doc__)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--rows", type=int, default=50_000)
    chosen = parser.parse_args()
    session, figures = start_session("local[2]"), []
    for case, share in (("with a share", BatchShare()), ("without", WITHOUT)):
        with tempfile.TemporaryDirectory(prefix="menura-bench-") as folder:
            figures.append(measure(session, Path(folder), case, share, chosen.cuts, chosen.rows))
    session.stop()
    ours, peer = figures
    out = console()
    printed = Printed(title=f"seconds that small tables wait for {chosen.cuts * chosen.rows:,} rows of another")
    for heading in ("", "median", "longest", "backlog done"):
        printed.add_column(heading)
    for each in figures:
        printed.add_row(each.case, f"{each.median:.2f}", f"{each.longest:.2f}", f"{each.backlog:.1f}")
    out.print(printed)
    out.print(f"the longest wait is {peer.longest / ours.longest:.1f} times shorter with a share")
    write_figures("bench-neighbours.json", figures, out)


if __name__ == "__main__":
    main()
