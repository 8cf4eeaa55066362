"""`python -m tests.bench.neighbours`: how long small tables wait for a table that is huge, kills its worker, or fails.

A sink with Spark on two cores follows a landing in which fifty small tables get a row each every second, in one cut,
by another process. One phase follows the other: nothing else; random updates of a table of --rows rows, in one cut; a
table that kills the Python process at it, each time, while somebody asks each second that it is tried again; a table
whose files are lost, with the same. Measured is from when a cut stands in the log until the commits of the small
tables that have it, by the files of their Delta logs. Into build/bench-neighbours.json.
"""

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import Row
from rich.table import Table as Printed

from spark_sink.cli import run
from spark_sink.ingest import batch_jobs, table_task
from spark_sink.ingest.settings import SinkSettings
from spark_sink.ingest.status import SinkStatus
from spark_sink.ingest.table_task import TaskSettings
from spark_sink.lake.delta_table import append, open_table, schema_of
from spark_sink.reading import stopped_tables
from spark_sink.spark import start_session
from spark_sink.work import CURRENT, TableId
from tests.bench.lake import COLUMNS, ORDERS, PART_ROWS, changed, columns, random_keys, values
from tests.bench.report import console
from tests.servers import ROOT
from tests.spark_sink.landing import Table, Writer, insert, table_id
from tests.stack import wait_for

SMALL = [Table(f"t{number}", COLUMNS) for number in range(50)]
KILLER, LOST = Table("killer", COLUMNS), Table("lost", COLUMNS)
FIRST_ROWS = 1000
PHASES = ("nothing else", "huge", "kills", "lost")
MOST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds from the log to the tables: the median of all, and the longest."""

    case: str
    median: float
    longest: float
    deaths: int
    goal: str
    met: bool


class Asking:
    """What the sink tells the control plane's reporter, and asks of it: here somebody who does not give up."""

    def start(self, retry: Callable[[Iterable[TableId]], None], *_: object) -> None:
        self.ask = retry

    def fail(self, _: object) -> None:
        """The sink's thread says it."""

    def stop(self) -> None:
        """Nothing runs."""


def of(table: Table, source: str) -> TableId:
    return TableId("acme", source, table.database, table.name)


def killing(deaths: str, settings: TaskSettings) -> Callable[[Iterable[Row]], Iterator[str]]:
    """`table_task`, in whose process one table kills it; each time is a file."""
    task, apply_work = table_task.table_task(settings), table_task.apply_work

    def run_task(rows: Iterable[Row]) -> Iterator[str]:
        def work(log: object, lake: object, table: TableId, *others: object) -> object:
            if table.table == KILLER.name:
                Path(deaths, f"{time.time_ns()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return apply_work(log, lake, table, *others)

        table_task.apply_work = work
        try:
            yield from task(rows)
        finally:
            table_task.apply_work = apply_work

    return run_task


def write(writer: Writer, huge: object, seconds: int, said: str) -> None:
    """In a process of its own; `said`: a file with a line for each cut: its phase, its number, and when it stood."""
    number = 0
    with Path(said).open("a", buffering=1) as file:
        for phase in PHASES:
            if phase == "huge":
                writer.write_entry([huge])
            for _ in range(seconds):
                began = time.time()
                number += 1
                cuts = [writer.make_cut([(table, [insert(**values(number))]) for table in SMALL])]
                if phase == "kills":
                    cuts.append(writer.make_cut([(KILLER, [insert(**values(number))])], source="bad"))
                if phase == "lost":
                    cuts.append(writer.make_cut([(LOST, [insert(**values(number))])], source="bad"))
                    for path in (writer.folder / "data/acme/bad/shop/lost").glob("*"):
                        path.unlink()
                writer.write_entry(cuts)
                file.write(json.dumps([phase, cuts[0].cut, time.time()]) + "\n")
                time.sleep(max(0.0, began + 1 - time.time()))


def delays(lake: Path, cuts: list[tuple[str, int, float]]) -> dict[str, list[float]]:
    """Of each phase, from each cut to each small table."""
    found: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for table in SMALL:
        commits = []
        for file in sorted(Path(table_id(table).folder(str(lake)), CURRENT, "_delta_log").glob("*.json")):
            for line in file.read_text().splitlines():
                transaction = json.loads(line).get("txn", {})
                if transaction.get("appId") == table_id(table).application:
                    commits.append((transaction["version"], file.stat().st_mtime))
        for phase, cut, at in cuts:
            found[phase].append(min(moment for version, moment in commits if version >= cut) - at)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.neighbours", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--updates", type=int, default=400_000)
    parser.add_argument("--seconds", type=int, default=30, help="of a phase")
    chosen = parser.parse_args()
    session = start_session("local[2]")
    with tempfile.TemporaryDirectory(prefix="menura-bench-") as name:
        folder = Path(name)
        lake, deaths, said = folder / "lake", folder / "deaths", folder / "said"
        deaths.mkdir()
        writer = Writer(folder / "landing")
        settings = SinkSettings(str(writer.folder), str(lake), str(lake / "_menura/checkpoint"))
        stop, status = threading.Event(), SinkStatus()
        batch_jobs.table_task = lambda settings: killing(str(deaths), settings)
        asked = Asking()
        thread = threading.Thread(target=run, args=(session, settings, stop, status, asked))
        writer.cut((ORDERS, [insert(**values(key)) for key in range(FIRST_ROWS)]), source="big")
        writer.cut(*((table, [insert(**values(0))]) for table in SMALL))
        thread.start()
        wait_for("the first batch", lambda: status.now().entry >= writer.entry or None)
        current = open_table(f"{of(ORDERS, 'big').folder(str(lake))}/{CURRENT}")
        assert current is not None
        for first in range(FIRST_ROWS, chosen.rows, PART_ROWS):
            append(current, columns(first, min(chosen.rows, first + PART_ROWS), schema_of(current)), [])
        updates = [changed(key, 3) for key in random_keys(chosen.rows, chosen.updates, 1)]
        huge = writer.make_cut([(ORDERS, updates)], source="big")
        del updates
        child = multiprocessing.get_context("spawn").Process(
            target=write, args=(writer, huge, chosen.seconds, str(said))
        )
        child.start()
        while child.is_alive():  # somebody who does not give up
            child.join(1.0)
            asked.ask([of(KILLER, "bad"), of(LOST, "bad")])
        lines = [json.loads(line) for line in said.read_text().splitlines()]
        cuts = [(str(phase), int(cut), float(at)) for phase, cut, at in lines]
        wait_for("all rows", lambda: status.now().sources["acme", "shop"].cut >= cuts[-1][1] or None)
        current = open_table(f"{of(ORDERS, 'big').folder(str(lake))}/{CURRENT}")
        wait_for("the huge table", lambda: of(ORDERS, "big") not in status.now().stopped or None)
        stops = {stop.table.table: stop.code for stop in stopped_tables(str(lake))}
        stop.set()
        thread.join()
        found = delays(lake, cuts)
        died = len(list(deaths.iterdir()))
        figures = [
            Figure(
                phase,
                statistics.median(each),
                max(each),
                died if phase == "kills" else 0,
                f"{MOST_SECONDS} s",
                max(each) <= MOST_SECONDS,
            )
            for phase, each in found.items()
        ]
    session.stop()
    show(figures, stops)


def show(figures: list[Figure], stops: dict[str, str]) -> None:
    out = console()
    printed = Printed(title=f"seconds from the cut log to fifty small tables; stopped at the end: {stops}")
    for heading in ("meanwhile", "median", "longest", "goal", "met"):
        printed.add_column(heading)
    for each in figures:
        numbers = (f"{each.median:.2f}", f"{each.longest:.2f}")
        printed.add_row(each.case, *numbers, each.goal, "yes" if each.met else "no")
    out.print(printed)
    out.print(f"processes that were killed: {sum(each.deaths for each in figures)}")
    target = ROOT / "build" / "bench-neighbours.json"
    target.parent.mkdir(exist_ok=True)
    facts = [asdict(each) | {"ours": each.longest, "peer": None, "ratio": None} for each in figures]
    target.write_text(json.dumps(facts, indent=1) + "\n")
    out.print(f"written to {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
