"""What is in a server's log, by python-mysql-replication: which transaction inserted which row."""

import warnings
from contextlib import closing

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent, XidEvent
from pymysqlreplication.row_event import WriteRowsEvent

from agent.sources.mysql.positions import BinlogPosition, MariadbGtids, MysqlGtids
from tests.servers import Server


def inserts(server: Server, database: str, table: str, column: str) -> dict[int, BinlogPosition]:
    """Each value of `column` that was inserted: the position of its transaction, or of that and those before."""
    uuid = str(server.run("SELECT @@server_uuid")[0][0]) if server.flavor == "mysql" else ""
    found: dict[int, BinlogPosition] = {}
    open_values: list[int] = []
    gtid = ""
    stream = BinLogStreamReader(
        {"host": server.host, "port": server.port, "user": server.user, "password": server.password},
        server_id=77002,
        only_events=[WriteRowsEvent, XidEvent, GtidEvent],
        log_file=str(server.run("SHOW BINARY LOGS")[0][0]),
        log_pos=4,
        resume_stream=True,
    )
    with warnings.catch_warnings(), closing(stream):
        warnings.simplefilter("ignore", DeprecationWarning)
        for event in stream:
            if isinstance(event, GtidEvent):
                gtid = str(event.gtid)
            elif isinstance(event, WriteRowsEvent):
                if (event.schema, event.table) == (database, table):
                    open_values += [int(row["values"][column]) for row in event.rows]
            elif open_values:
                end = BinlogPosition(None, uuid, str(stream.log_file), int(stream.log_pos))
                is_by_gtid = gtid and server.settings.get("gtid_mode") != "OFF"
                position = BinlogPosition(MysqlGtids.parse(gtid), uuid) if is_by_gtid else end
                found |= dict.fromkeys(open_values, position)
                open_values = []
    return _with_gtids(server, found) if server.flavor == "mariadb" else found


def _with_gtids(server: Server, found: dict[int, BinlogPosition]) -> dict[int, BinlogPosition]:
    """MariaDB tells the oracle no GTIDs."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        told: dict[int, BinlogPosition] = {}
        for value, at in found.items():
            cursor.execute("SELECT BINLOG_GTID_POS(%s, %s)", (at.file, at.offset))
            ((text,),) = cursor.fetchall()
            told[value] = BinlogPosition(MariadbGtids.parse(text.decode() if isinstance(text, bytes) else text))
        return told
