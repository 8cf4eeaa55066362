"""Peer of the benchmark: connectorx reads a table into Arrow over one connection, by the binary protocol.

`python -m tests.bench.postgresql.connectorx_select HOST PORT TABLE ROWS`
"""

import sys

import connectorx

from tests.bench.postgresql.workload import DATABASE


def main() -> None:
    host, port, table, rows = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    address = f"postgresql://menura:menura-secret@{host}:{port}/{DATABASE}?sslmode=disable"
    read = connectorx.read_sql(address, f"SELECT * FROM {table}", return_type="arrow", protocol="binary")
    if read.num_rows != rows:
        raise SystemExit(f"{read.num_rows} rows read, {rows} expected")


if __name__ == "__main__":
    main()
