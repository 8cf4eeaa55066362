"""The second oracle: what python-mysql-replication reads in a server's binary log.

An oracle for tests only: it moves its position before it filters events that it does not know.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, RowsEvent, UpdateRowsEvent, WriteRowsEvent

from tests.servers import Server


def count_changes(server: Server, database: str) -> dict[str, Counter[str]]:
    """Per table, how many changes of each type (in the changelog's words) the whole binary log holds."""
    stream = BinLogStreamReader(
        {"host": server.host, "port": server.port, "user": "menura", "password": "menura-secret"},
        server_id=77001,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=[database],
        log_file=str(server.run("SHOW BINARY LOGS")[0][0]),
        log_pos=4,
        resume_stream=True,
    )
    changes: dict[str, Counter[str]] = defaultdict(Counter)
    try:
        for event in _quietly(stream):
            counted = changes[event.table]
            if isinstance(event, WriteRowsEvent):
                counted["insert"] += len(event.rows)
            elif isinstance(event, DeleteRowsEvent):
                counted["delete"] += len(event.rows)
            else:
                counted["update_preimage"] += len(event.rows)
                counted["update_postimage"] += len(event.rows)
    finally:
        stream.close()
    return dict(changes)


def _quietly(stream: BinLogStreamReader) -> Iterator[RowsEvent]:
    """The oracle connects in ways that PyMySQL calls deprecated; that is no failure of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield from stream
