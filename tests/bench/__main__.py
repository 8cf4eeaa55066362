"""`python -m tests.bench [bulk] [single] [update] [dump] [giant]`: measure, print a table, write build/bench.json.

All readers of a case read the same bytes of the same server in the same run, without TLS, one after the other. Each
runs three times (a slow one until it has run for 20 s): the table has the run of median CPU, and the highest memory.
`giant`, one transaction of 5 GB, takes minutes and 20 GB of disk: only where it is named.
"""

import tempfile
from pathlib import Path

from tests.bench.readers import READERS, TABLE_READERS, install_peers
from tests.bench.report import chosen_readers, console, measure, parser, show
from tests.bench.workload import make, prepare
from tests.servers import server

ROWS = {"bulk": 2_000_000, "single": 500_000, "update": 500_000, "dump": 2_500_000, "giant": 10_000_000}
USUAL = ("bulk", "single", "update", "dump")
#: that readers are compared with: of a case's, the first that was measured
PEERS = ("go-mysql-tuned", "mysql-replication", "connectorx")
SETTINGS = {"max_binlog_size": "1073741824", "innodb_flush_log_at_trx_commit": "0", "innodb_buffer_pool_size": "1G"}


def main() -> None:
    every = {case: TABLE_READERS if case == "dump" else READERS for case in ROWS}
    chosen = parser("tests.bench", __doc__, every).parse_args()
    readers = chosen_readers(chosen, every, USUAL)
    install_peers({name for of_case in readers.values() for name in of_case})
    out = console()
    with (
        tempfile.TemporaryDirectory(prefix="menura-bench-") as folder,
        server("mysql", Path(folder), **SETTINGS) as mysql,
    ):
        mysql.create_replication_user()
        prepare(mysql)
        version = f"MySQL {mysql.run('SELECT VERSION()')[0][0]}"
        measures = measure(readers, mysql, version, make, ROWS, chosen.scale, out)
    show("Reading a binary log, and a table (dump)", measures, PEERS, "bench.json", out)


if __name__ == "__main__":
    main()
