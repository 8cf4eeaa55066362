"""The compiled core alone: receive a slot's changes, decode them into Arrow columns, drop them ('menura-decode').

`python -m tests.bench.postgresql.decode HOST PORT SLOT ROWS`
"""

import sys
from contextlib import closing

from agent.config_entries import Secret
from agent.sources.postgresql.columns import Column
from agent.sources.postgresql.config import ServerConfig, ServerTls, TlsMode
from agent.sources.postgresql.native.decoder import PgoutputDecoder, PlannedColumn, Reason, TablePlan
from agent.sources.postgresql.server.wire import open_wal_stream
from agent.sources.postgresql.stream.relations import parse_relation
from agent.sources.postgresql.types import builtin_type
from tests.bench.postgresql.workload import DATABASE, PUBLICATION

WAIT_SECONDS = 60.0


def main() -> None:
    host, port, slot, rows = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    at = ServerConfig(host, "menura", DATABASE, port, Secret("menura-secret"), ServerTls(TlsMode.DISABLE))
    decoder = PgoutputDecoder(next_gsn=1, next_transaction_id=1)
    with closing(open_wal_stream(at, "bench", slot, PUBLICATION, 0)) as stream:
        while decoder.rows < rows:
            size = stream.receive_into(decoder.writable(), WAIT_SECONDS)
            if not size:
                raise SystemExit(f"the server closed the connection after {decoder.rows} rows")
            decoder.received(size)
            _decode(decoder)
    if decoder.rows != rows:
        raise SystemExit(f"{decoder.rows} rows read, {rows} expected")


def _decode(decoder: PgoutputDecoder) -> None:
    while (reason := decoder.decode()) is not Reason.NEED_BYTES:
        if reason is Reason.BATCH_FULL:
            decoder.take_batches()
        elif reason is Reason.MESSAGE and decoder.message.kind == "R":
            _define(decoder)
        elif reason is Reason.ERROR:
            raise SystemExit(f"the server ended the stream: {decoder.error}")


def _define(decoder: PgoutputDecoder) -> None:
    relation = parse_relation(decoder.message.body)
    planned = []
    for column in relation.columns:
        type_ = builtin_type(column.type_oid, column.modifier)
        assert type_ is not None
        planned.append(PlannedColumn(Column(column.name, type_), sent=True, identity=column.identity))
    decoder.define(relation.oid, TablePlan(relation.schema, relation.name, "", planned))


if __name__ == "__main__":
    main()
