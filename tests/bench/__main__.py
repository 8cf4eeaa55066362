"""`python -m tests.bench [bulk] [single] [update] [dump] [giant]`: measure, print a table, write build/bench.json.

`giant`, one transaction of 5 GB, takes minutes and 20 GB of disk: only where it is named.
"""

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.readers import READERS, TABLE_READERS, Measure
from tests.bench.workload import make, prepare
from tests.servers import ROOT, server

ROWS = {"bulk": 2_000_000, "single": 500_000, "update": 500_000, "dump": 2_500_000, "giant": 10_000_000}
USUAL = ("bulk", "single", "update", "dump")
PEERS = ("mysql-replication", "connectorx")
SETTINGS = {"max_binlog_size": "1073741824", "innodb_flush_log_at_trx_commit": "0", "innodb_buffer_pool_size": "1G"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"some of {', '.join(ROWS)}; without any {', '.join(USUAL)}"
    )
    readers = list(READERS | TABLE_READERS)
    parser.add_argument("--readers", nargs="+", choices=readers, default=readers)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, to try the benchmark itself")
    chosen = parser.parse_args()
    unknown = set(chosen.cases) - set(ROWS)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    console = Console()
    if not console.is_terminal:
        console.width = 120  # names are not broken
    measures: list[Measure] = []
    with (
        tempfile.TemporaryDirectory(prefix="menura-bench-") as folder,
        server("mysql", Path(folder), **SETTINGS) as mysql,
    ):
        mysql.create_replication_user()
        prepare(mysql)
        for name in chosen.cases or USUAL:
            rows = max(1000, int(ROWS[name] * chosen.scale) // 1000 * 1000)
            console.print(f"writing case {name}: {rows:,} rows into MySQL {mysql.run('SELECT VERSION()')[0][0]}")
            case = make(mysql, name, rows)
            of_case = TABLE_READERS if name == "dump" else READERS
            for reader in (reader for reader in chosen.readers if reader in of_case):
                measures.append(of_case[reader](mysql, case))
                console.print(f"  {reader}: {measures[-1].cpu_s:.2f} CPU s")
    console.print(_table(measures))
    target = ROOT / "build" / "bench.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([asdict(measure) for measure in measures], indent=1) + "\n")
    console.print(f"written to {target.relative_to(ROOT)}")


def _table(measures: list[Measure]) -> Table:
    table = Table(title="Reading a binary log, and a table (dump)")
    for heading in ("case", "reader"):
        table.add_column(heading)
    for heading in ("rows/s", "wall s", "CPU s", "CPU s per million rows", "peak MiB", "CPU, peer = 1"):
        table.add_column(heading, justify="right")
    peers = {measure.case: measure.cpu_s for measure in measures if measure.reader in PEERS}
    for m in measures:
        share = m.cpu_s / peers[m.case] if m.case in peers else 0.0
        ratio = f"{share:.2f}" if share >= 0.1 else f"1/{1 / share:.0f}" if share else "-"
        figures = (f"{m.rows / m.wall_s:,.0f}", f"{m.wall_s:.2f}", f"{m.cpu_s:.2f}", f"{m.cpu_s / m.rows * 1e6:.2f}")
        table.add_row(m.case, m.reader, *figures, f"{m.peak_rss_bytes / 2**20:.0f}", ratio)
    return table


if __name__ == "__main__":
    main()
