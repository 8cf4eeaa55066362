"""A dump's reader alone: one SELECT over one connection, to Arrow columns, to these as they travel, or to digests.

`python -m tests.bench.dump [--encode | --digest] HOST PORT TABLE ROWS` ('menura-dump', 'menura-digest', and without
either 'menura-select')
"""

import sys

from menura.change_batch import Compression

from agent.columnar.encode import encode_snapshot
from agent.config_entries import Secret
from agent.filter import Filter
from agent.snapshot.digest import ChunkDigest
from agent.sources.mysql.config import MysqlConfig, ServerConfig, ServerTls, TlsMode
from agent.sources.mysql.ddl.model import Server as DefinitionServer
from agent.sources.mysql.ddl.model import TableDefinition
from agent.sources.mysql.server.connection import connect, facts_of
from agent.sources.mysql.server.information_schema import read_definitions
from agent.sources.mysql.snapshot.results import plan_for, read_rows
from agent.sources.mysql.snapshot.statements import prepare, unchunked_statement


def main() -> None:
    *option, host, port, name, rows = sys.argv[1:]
    digest = ChunkDigest(("id",), ("integer",), ()) if option == ["--digest"] else None
    table = ("bench", name)
    # without TLS, as the peer reads
    at = ServerConfig(host, "menura", int(port), Secret("menura-secret"), ServerTls(TlsMode.DISABLED))
    connection = connect(at, "bench")
    facts = facts_of(connection, "bench")
    definition = read_definitions(connection, [table], DefinitionServer(mariadb=False, version=(9, 7, 0)))[table]
    assert isinstance(definition, TableDefinition)
    prepare(connection, facts)
    plan = plan_for(
        MysqlConfig(name="bench", kind="mysql", client=at, binlog=at, filter=Filter()), table, definition, mariadb=False
    )
    reading = read_rows(connection, unchunked_statement(table, plan.expressions), plan)
    seen = 0
    for batch in reading:
        seen += batch.row_count
        if option == ["--encode"]:
            encode_snapshot(batch, Compression.LZ4)
        elif digest is not None:
            digest.add(batch)
    if seen != int(rows) or reading.result.rows != seen:
        raise SystemExit(f"{seen} rows read, {rows} expected")


if __name__ == "__main__":
    main()
