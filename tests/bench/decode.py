"""The compiled core alone: receive, check CRC32, decode into Arrow columns, drop them ('menura-decode').

`python -m tests.bench.decode HOST PORT FILE ROWS`
"""

import sys

import pymysql
from pymysql.connections import Connection
from pymysql.constants import COMMAND

from agent.sources.mysql.columns import Column
from agent.sources.mysql.log import constants as binlog
from agent.sources.mysql.log.table_map import parse_table_map
from agent.sources.mysql.native.decoder import BinlogDecoder, Event, PlannedColumn, Reason, TablePlan
from agent.sources.mysql.schema.column_types import column_type


def read_log(connection: Connection, file: str, server_id: int = 77003) -> int:
    """Read the whole of one log file; how many images its rows events held."""
    with connection.cursor() as cursor:
        cursor.execute("SET @source_binlog_checksum = 'CRC32'")
    request = (4).to_bytes(4, "little") + bytes(2) + server_id.to_bytes(4, "little") + file.encode()
    connection._execute_command(COMMAND.COM_BINLOG_DUMP, request)
    decoder = BinlogDecoder(mariadb=False, checksum=True, next_gsn=1, next_transaction_id=1)
    while True:
        size = connection._sock.recv_into(decoder.writable())
        if not size:
            raise SystemExit(f"the server closed the connection after {decoder.rows} rows")
        decoder.received(size)
        while (reason := decoder.decode()) is not Reason.NEED_BYTES:
            if reason is Reason.EVENT:
                if (
                    decoder.event.type == binlog.ROTATE_EVENT
                    and not decoder.event.flags & binlog.LOG_EVENT_ARTIFICIAL_F
                ):
                    return decoder.rows
                _handle(decoder, decoder.event)
            elif reason is Reason.BATCH_FULL:
                decoder.take_batches()
            else:
                raise SystemExit(f"{reason.name} after {decoder.rows} rows")


def _handle(decoder: BinlogDecoder, event: Event) -> None:
    if event.type == binlog.TABLE_MAP_EVENT:
        mapped = parse_table_map(event.body, mariadb=False)
        planned = [
            PlannedColumn(
                Column(str(column.name), column_type(column, mariadb=False)), column.type, column.metadata, sent=True
            )
            for column in mapped.columns
        ]
        decoder.define_table(mapped.table_id, event.body, TablePlan(mapped.database, mapped.table, "", planned))
    elif event.type == binlog.FORMAT_DESCRIPTION_EVENT:
        decoder.checksum = event.body[-1] == 1


def main() -> None:
    host, port, file, rows = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    connection = pymysql.connect(host=host, port=port, user="menura", password="menura-secret", ssl_disabled=True)
    seen = read_log(connection, file)
    if seen not in (rows, 2 * rows):  # an update has two images
        raise SystemExit(f"{seen} rows read, {rows} expected")


if __name__ == "__main__":
    main()
