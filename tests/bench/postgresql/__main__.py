"""`python -m tests.bench.postgresql [bulk] [single] [update] [dump]`: measure, print a table, and write
build/bench-postgresql.json.

All readers of a case read the same WAL of the same server in the same run, without TLS, one after the other; see
`tests.bench`.
"""

import argparse
import os
from functools import partial

from tests.bench.postgresql.readers import READERS, TABLE_READERS, Reader, install_peers
from tests.bench.postgresql.workload import make, prepare
from tests.bench.readers import Measure
from tests.bench.report import console, median, show
from tests.postgres import source_server

ROWS = {"bulk": 2_000_000, "single": 500_000, "update": 500_000, "dump": 2_500_000}
#: that readers are compared with: of a case's, the first that was measured
PEERS = ("pglogrepl", "psycopg2", "connectorx")
SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "logical_decoding_work_mem": "1GB",
    "max_replication_slots": "50",
    "synchronous_commit": "off",
    "autovacuum": "off",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.postgresql", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(ROWS)}; without any all")
    every = list(READERS | TABLE_READERS)
    parser.add_argument("--readers", nargs="+", choices=every, default=every)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows, to try the benchmark itself")
    parser.add_argument("--release", default="", help="of the server, as MENURA_TEST_POSTGRESQL_RELEASE")
    chosen = parser.parse_args()
    unknown = set(chosen.cases) - set(ROWS)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: modules are compiled once, not in each run
    readers_of = {
        name: {reader: read for reader, read in _readers_of(name).items() if reader in chosen.readers}
        for name in chosen.cases or ROWS
    }
    install_peers({reader for readers in readers_of.values() for reader in readers})
    out = console()
    measures: list[Measure] = []
    with source_server(chosen.release, **SETTINGS) as server:
        prepare(server)
        for name, readers in readers_of.items():
            rows = max(1000, int(ROWS[name] * chosen.scale) // 1000 * 1000)
            out.print(f"writing case {name}: {rows:,} rows into PostgreSQL {server.run('SHOW server_version')[0][0]}")
            case = make(server, name, rows)
            for reader, read in readers.items():
                measures.append(median(partial(read, server, case)))
                out.print(f"  {reader}: {measures[-1].cpu_s:.2f} CPU s")
    show("Reading a PostgreSQL's changes, and a table (dump)", measures, PEERS, "bench-postgresql.json", out)


def _readers_of(case: str) -> dict[str, Reader]:
    return TABLE_READERS if case == "dump" else READERS


if __name__ == "__main__":
    main()
