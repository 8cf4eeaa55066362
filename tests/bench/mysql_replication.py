"""Peer of the benchmark: python-mysql-replication reads one case to the end of its file.

`python -m tests.bench.mysql_replication HOST PORT FILE ROWS`
"""

import sys

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import UpdateRowsEvent, WriteRowsEvent


def main() -> None:
    host, port, file, rows = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    stream = BinLogStreamReader(
        {"host": host, "port": port, "user": "menura", "password": "menura-secret", "ssl_disabled": True},
        server_id=77002,
        only_events=[WriteRowsEvent, UpdateRowsEvent],
        log_file=file,
        log_pos=4,
        resume_stream=True,
    )
    seen = 0
    for event in stream:
        seen += len(event.rows)
        if seen >= rows:
            break
    stream.close()
    if seen != rows:
        raise SystemExit(f"{seen} rows read, {rows} expected")


if __name__ == "__main__":
    main()
