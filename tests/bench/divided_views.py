"""`python -m tests.bench.divided_views [--rows N]`: what it takes to build a view by one task, and by two.

The views of N orders with N customers and 1,000 products, and of N orders by product. CPU seconds and wall time of one
task that builds all; then of a turn that is divided into two, each in a process of its own at the same time. What is
done before and after them and the longer one of the two are the least that it can take where each has a core. Without
stores, which the turns after it make. Into build/bench-divided-views.json.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from menura.instants import now_us
from menura.views.definition import ViewCut, ViewDefinition

from spark_sink.views.division import GROUP_COST, ROW_COST, Dividing, Division
from spark_sink.views.division_end import end_division
from spark_sink.views.maintain import ViewWork, follow, view_table_id
from spark_sink.views.range_task import Part, compute_range
from tests.bench.report import console, write_figures
from tests.bench.views import SQL, WAITS, Source, sources

PARTS = 2
VIEWS = {
    "joined with customers and products": SQL,
    "grouped by product": (
        "SELECT o.product, count(*) AS n, sum(o.total) AS total, max(p.title) AS title"
        " FROM shop.app.orders o JOIN shop.app.products p ON p.id = o.product GROUP BY o.product"
    ),
}
#: of the CPU seconds that one task takes, those on the longest way through two
GOAL = 0.7


@dataclass(frozen=True, slots=True)
class Figure:
    """`ours`: CPU seconds on the longest way through two tasks; `peer`: of one task."""

    case: str
    ours: float
    peer: float
    ratio: float
    goal: str
    met: bool
    #: of all of them together
    cpu_seconds: float
    wall_seconds: float
    peer_wall_seconds: float


def in_process(lake: str, work: ViewWork, division: Division, place: int) -> tuple[Part, float]:
    began = time.process_time()
    return compute_range(lake, work, division, place), time.process_time() - began


def built(lake: str, tables: list[Source], case: str, pool: ProcessPoolExecutor) -> Figure:
    named = [each for each in tables if f"shop.app.{each.name}" in VIEWS[case]]
    work = ViewWork(
        ViewDefinition("acme", "bench", VIEWS[case]),
        tuple(each.at() for each in named),
        (ViewCut("shop", 1, 0),),
        now_us(),
    )
    folder = view_table_id("acme", "bench").folder(lake)

    def turn(parts: int) -> tuple[list[float], float, object]:
        """CPU seconds before and after tasks, and of each; of one without parts these alone; wall time; rows."""
        shutil.rmtree(folder, ignore_errors=True)
        wall, began = time.monotonic(), time.process_time()
        found = follow(lake, work, WAITS, None, Dividing(parts, least_rows=0, least_gain=0))
        if not isinstance(found, Division):
            return [time.process_time() - began], time.monotonic() - wall, found.rows
        computed = [pool.submit(in_process, lake, work, found, place) for place in range(len(found.ranges))]
        done = [each.result() for each in computed]
        version = end_division(lake, work, found, [part for part, _ in done], WAITS)
        own = time.process_time() - began
        return [own, *(seconds for _, seconds in done)], time.monotonic() - wall, version.rows

    for parts in (1, PARTS):  # the first turn of each process imports and reads what others find
        turn(parts)
    (alone,), alone_wall, rows = turn(1)
    (own, *parts_of), wall, divided_rows = turn(PARTS)
    assert (len(parts_of), divided_rows) == (PARTS, rows)
    ours = own + max(parts_of)
    cost = GROUP_COST if "GROUP BY" in VIEWS[case] else ROW_COST
    would = Dividing(PARTS).of(tables[0].rows, sum(each.rows for each in named[1:]), cost) > 1
    goal, met = (f"<= {GOAL}", ours <= GOAL * alone) if would else ("none: it would not be divided", True)
    return Figure(case, ours, alone, ours / alone, goal, met, own + sum(parts_of), wall, alone_wall)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench-divided-views", description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    chosen = parser.parse_args()
    choose = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="menura-bench-views-", dir=os.environ.get("MENURA_BENCH_FOLDER")) as folder:
        lake = f"{folder}/lake"
        tables = sources(lake, chosen.rows)
        for each in tables:
            each.load(choose)
        with ProcessPoolExecutor(PARTS, multiprocessing.get_context("spawn")) as pool:
            figures = [built(lake, tables, case, pool) for case in VIEWS]
    write_figures("bench-divided-views.json", figures, console())
    for each in figures:
        sys.stdout.write(
            f"{each.case}: one task {each.peer:.2f} CPU s in {each.peer_wall_seconds:.1f} s;"
            f" {PARTS} tasks {each.ours:.2f} on the longest way, {each.cpu_seconds:.2f} together,"
            f" in {each.wall_seconds:.1f} s; {each.ratio:.2f}, goal {each.goal}\n"
        )
    sys.stdout.write(f"of {chosen.rows} rows\n")
    return 0 if all(each.met for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
