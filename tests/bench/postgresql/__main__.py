"""`python -m tests.bench.postgresql [bulk] [single] [update] [dump]`: measure, print a table, and write
build/bench-postgresql.json.

All readers of a case read the same WAL of the same server in the same run, without TLS, one after the other; see
`tests.bench`.
"""

from tests.bench.postgresql.readers import READERS, TABLE_READERS, install_peers
from tests.bench.postgresql.workload import make, prepare
from tests.bench.report import chosen_readers, console, measure, parser, show
from tests.postgres import source_server

ROWS = {"bulk": 2_000_000, "single": 500_000, "update": 2_000_000, "dump": 2_500_000}
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
    every = {case: TABLE_READERS if case == "dump" else READERS for case in ROWS}
    arguments = parser("tests.bench.postgresql", __doc__, every)
    arguments.add_argument("--release", default="", help="of the server, as MENURA_TEST_POSTGRESQL_RELEASE")
    chosen = arguments.parse_args()
    readers = chosen_readers(chosen, every, tuple(ROWS))
    install_peers({name for of_case in readers.values() for name in of_case})
    out = console()
    with source_server(chosen.release, **SETTINGS) as server:
        prepare(server)
        version = f"PostgreSQL {server.run('SHOW server_version')[0][0]}"
        measures = measure(readers, server, version, make, ROWS, chosen.scale, out)
    show("Reading a PostgreSQL's changes, and a table (dump)", measures, PEERS, "bench-postgresql.json", out)


if __name__ == "__main__":
    main()
