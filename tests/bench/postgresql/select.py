"""A dump's reader alone: one SELECT over one connection into Arrow columns, or as they travel.

`python -m tests.bench.postgresql.select [--encode] HOST PORT TABLE ROWS` ('menura-dump', without it 'menura-select')
"""

import sys

from menura.change_batch import Compression

from agent.columnar.encode import encode_snapshot
from agent.config_entries import Secret
from agent.sources.postgresql.columns import Column
from agent.sources.postgresql.config import ServerConfig, ServerTls, TlsMode
from agent.sources.postgresql.server.definitions import read_definitions
from agent.sources.postgresql.snapshot.results import RowsReading, TablePlan
from agent.sources.postgresql.snapshot.session import Session
from agent.sources.postgresql.snapshot.statements import whole_statement
from tests.bench.postgresql.workload import DATABASE


def main() -> None:
    encode = sys.argv[1] == "--encode"
    host, port, name, rows = sys.argv[1 + encode :]
    at = ServerConfig(host, "menura", DATABASE, int(port), Secret("menura-secret"), ServerTls(TlsMode.DISABLE))
    session = Session(at, "bench")
    table, seen = ("public", name), 0
    with session.transaction():
        definition = read_definitions(session.connection, [table], in_transaction=True)[table]
        columns = tuple(Column(one.name, one.type) for one in definition.attributes)
        statement = whole_statement(definition, [column.name for column in columns])
        for batch in RowsReading(session, statement, TablePlan("bench", table, columns, 0), lambda size: None):
            seen += batch.row_count
            if encode:
                encode_snapshot(batch, Compression.LZ4)
    session.close()
    if seen != int(rows):
        raise SystemExit(f"{seen} rows read, {rows} expected")


if __name__ == "__main__":
    main()
