"""What benchmarks of every kind of source have in common: arguments, repeated runs, the table and its file."""

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.table import Table

from tests.bench.readers import Measure
from tests.servers import ROOT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RUNS = 3
#: a reader that has run for so long is not run again
ENOUGH_SECONDS = 20


S = TypeVar("S")
C = TypeVar("C")
#: by case and name
Readers = Mapping[str, Mapping[str, Callable[[S, C], Measure]]]


def parser(program: str, description: str | None, readers: Readers[S, C]) -> argparse.ArgumentParser:
    def case(name: str) -> str:
        if name not in readers:
            raise argparse.ArgumentTypeError(f"no such case: {name}; there are {', '.join(readers)}")
        return name

    made = argparse.ArgumentParser(prog=program, description=description)
    made.add_argument("cases", nargs="*", metavar="CASE", type=case, help=f"some of {', '.join(readers)}")
    names = sorted({name for of_case in readers.values() for name in of_case})
    made.add_argument("--readers", nargs="+", choices=names, default=names)
    made.add_argument("--scale", type=float, default=1.0, help="share of the rows, to try the benchmark itself")
    return made


def chosen_readers(chosen: argparse.Namespace, readers: Readers[S, C], usual: Sequence[str]) -> Readers[S, C]:
    """Of the cases that were asked for; without any the usual ones."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: modules are compiled once, not in each run
    return {
        case: {name: read for name, read in readers[case].items() if name in chosen.readers}
        for case in chosen.cases or usual
    }


def measure(
    readers: Readers[S, C],
    server: S,
    version: object,
    make: Callable[[S, str, int], C],
    rows: Mapping[str, int],
    scale: float,
    out: Console,
) -> list[Measure]:
    """Write each case, and have it read by one reader after the other."""
    measures: list[Measure] = []
    for name, of_case in readers.items():
        count = max(1000, int(rows[name] * scale) // 1000 * 1000)
        out.print(f"writing case {name}: {count:,} rows into {version}")
        case = make(server, name, count)
        for reader, read in of_case.items():
            measures.append(median(partial(read, server, case)))
            out.print(f"  {reader}: {measures[-1].cpu_s:.2f} CPU s")
    return measures


def console() -> Console:
    made = Console()
    if not made.is_terminal:
        made.width = 120  # names are not broken
    return made


def median(read: Callable[[], Measure]) -> Measure:
    """The run of median CPU, with the highest memory of all."""
    runs: list[Measure] = []
    while len(runs) < RUNS and sum(run.wall_s for run in runs) < ENOUGH_SECONDS:
        runs.append(read())
    middle = sorted(runs, key=lambda run: run.cpu_s)[len(runs) // 2]
    return replace(middle, peak_rss_bytes=max(run.peak_rss_bytes for run in runs))


def show(title: str, measures: Sequence[Measure], peers: Sequence[str], file: str, out: Console) -> None:
    """Print the table, and write it; `peers`: of each case the first that was measured is what others are beside."""
    out.print(_table(title, measures, peers))
    write_figures(file, measures, out)


def write_figures(file: str, figures: "Sequence[DataclassInstance]", out: Console) -> None:
    """Into the folder build."""
    target = ROOT / "build" / file
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    out.print(f"written to {target.relative_to(ROOT)}")


def _table(title: str, measures: Sequence[Measure], peers: Sequence[str]) -> Table:
    """Beside the figures, how many times the CPU of the peer is that of the reader."""
    table = Table(title=title)
    for heading in ("case", "reader"):
        table.add_column(heading)
    for heading in ("rows/s", "wall s", "CPU s", "CPU s per million rows", "peak MiB", "times less CPU than"):
        table.add_column(heading, justify="right")
    peer_of = {m.case: m for peer in reversed(peers) for m in measures if m.reader == peer}
    for m in measures:
        figures = (f"{m.rows / m.wall_s:,.0f}", f"{m.wall_s:.2f}", f"{m.cpu_s:.2f}", f"{m.cpu_s / m.rows * 1e6:.2f}")
        peer = peer_of.get(m.case)
        ratio = f"{peer.cpu_s / m.cpu_s:.2f} {peer.reader}" if peer else "-"
        table.add_row(m.case, m.reader, *figures, f"{m.peak_rss_bytes / 2**20:.0f}", ratio)
    return table
