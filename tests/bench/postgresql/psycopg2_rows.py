"""Peer of the benchmark: psycopg2's replication loop, and each row as Python objects.

`python -m tests.bench.postgresql.psycopg2_rows HOST PORT SLOT ROWS`

Values stay texts, as the server sends them: a reader that made numbers and times of them would be slower.
"""

import struct
import sys

import psycopg2
from psycopg2.extras import LogicalReplicationConnection

from tests.bench.postgresql.workload import DATABASE, PUBLICATION

_TUPLE_AT = {b"I": 6, b"U": 6, b"D": 6}


class Done(Exception):
    """All rows have come."""


class Counter:
    def __init__(self, expected: int) -> None:
        self.rows: list[list[str | None]] = []
        self.seen = 0
        self._expected = expected

    def __call__(self, message: "psycopg2.extras.ReplicationMessage") -> None:
        payload: bytes = message.payload
        if payload[:1] not in _TUPLE_AT:
            return
        self.rows.append(_row(payload, _TUPLE_AT[payload[:1]]))
        self.seen += 1
        if len(self.rows) >= 1000:
            self.rows.clear()
        if self.seen == self._expected:
            raise Done


def _row(payload: bytes, at: int) -> list[str | None]:
    (columns,) = struct.unpack_from("!H", payload, at)
    at += 2
    row: list[str | None] = []
    for _ in range(columns):
        kind = payload[at]
        at += 1
        if kind != 0x74:  # t
            row.append(None)
            continue
        (size,) = struct.unpack_from("!I", payload, at)
        row.append(payload[at + 4 : at + 4 + size].decode())
        at += 4 + size
    return row


def main() -> None:
    host, port, slot, rows = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    connection = psycopg2.connect(
        host=host,
        port=port,
        user="menura",
        password="menura-secret",
        dbname=DATABASE,
        sslmode="disable",
        connection_factory=LogicalReplicationConnection,
    )
    cursor = connection.cursor()
    cursor.start_replication(slot, options={"proto_version": "1", "publication_names": PUBLICATION}, decode=False)
    try:
        cursor.consume_stream(Counter(rows))
    except Done:
        return
    raise SystemExit("the stream ended before its rows")


if __name__ == "__main__":
    main()
