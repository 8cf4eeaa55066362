"""What benchmarks of every kind of source have in common: repeated runs, the table, and its file under build/."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table

from tests.bench.readers import Measure
from tests.servers import ROOT

RUNS = 3
#: a reader that has run for so long is not run again
ENOUGH_SECONDS = 20


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
    target = ROOT / "build" / file
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([asdict(measure) for measure in measures], indent=1) + "\n")
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
