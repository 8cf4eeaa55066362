"""`python -m tests.bench [bulk] [single] [update] [dump] [giant]`: measure, print a table, write build/bench.json.

All readers of a case read the same bytes of the same server in the same run, without TLS, one after the other. Each
runs three times (a slow one until it has run for 20 s): the table has the run of median CPU, and the highest memory.
`giant`, one transaction of 5 GB, takes minutes and 20 GB of disk: only where it is named.
"""

import argparse
import os
import tempfile
from functools import partial
from pathlib import Path

from tests.bench.readers import READERS, TABLE_READERS, Measure, Reader, install_peers
from tests.bench.report import console, median, show
from tests.bench.workload import make, prepare
from tests.servers import server

ROWS = {"bulk": 2_000_000, "single": 500_000, "update": 500_000, "dump": 2_500_000, "giant": 10_000_000}
USUAL = ("bulk", "single", "update", "dump")
#: that readers are compared with: of a case's, the first that was measured
PEERS = ("go-mysql-tuned", "mysql-replication", "connectorx")
SETTINGS = {"max_binlog_size": "1073741824", "innodb_flush_log_at_trx_commit": "0", "innodb_buffer_pool_size": "1G"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"some of {', '.join(ROWS)}; without any {', '.join(USUAL)}"
    )
    every = list(READERS | TABLE_READERS)
    parser.add_argument("--readers", nargs="+", choices=every, default=every)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, to try the benchmark itself")
    chosen = parser.parse_args()
    unknown = set(chosen.cases) - set(ROWS)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: modules are compiled once, not in each run
    readers_of = {
        name: {reader: read for reader, read in _readers_of(name).items() if reader in chosen.readers}
        for name in chosen.cases or USUAL
    }
    install_peers({reader for readers in readers_of.values() for reader in readers})
    out = console()
    measures: list[Measure] = []
    with (
        tempfile.TemporaryDirectory(prefix="menura-bench-") as folder,
        server("mysql", Path(folder), **SETTINGS) as mysql,
    ):
        mysql.create_replication_user()
        prepare(mysql)
        for name, readers in readers_of.items():
            rows = max(1000, int(ROWS[name] * chosen.scale) // 1000 * 1000)
            out.print(f"writing case {name}: {rows:,} rows into MySQL {mysql.run('SELECT VERSION()')[0][0]}")
            case = make(mysql, name, rows)
            for reader, read in readers.items():
                measures.append(median(partial(read, mysql, case)))
                out.print(f"  {reader}: {measures[-1].cpu_s:.2f} CPU s")
    show("Reading a binary log, and a table (dump)", measures, PEERS, "bench.json", out)


def _readers_of(case: str) -> dict[str, Reader]:
    return TABLE_READERS if case == "dump" else READERS


if __name__ == "__main__":
    main()
