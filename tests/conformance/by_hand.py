"""Events that no server here writes: why none does, and what is made of one that is put together by hand."""

import struct
import tempfile
import zlib
from pathlib import Path

from agent.errors import SourceConnectionLost
from agent.sources.mysql.log import constants as binlog
from tests.agent.native import mutation
from tests.agent.native.capture import decode_all
from tests.agent.test_rare_events import anonymous, event, query, read
from tests.conformance.run import DECODED, NO_ROW, WRONG

_VERSION_1 = "MariaDB writes rows events of version 1 alone"
WHY = {
    binlog.SLAVE_EVENT: "of servers before 5.0",
    binlog.IGNORABLE_LOG_EVENT: "a flag of other events; no server gives one this type",
    binlog.TRANSACTION_CONTEXT_EVENT: "goes from member to member of a replication group, into no log",
    binlog.VIEW_CHANGE_EVENT: "logged while a replication group has a member older than 8.3",
    binlog.WRITE_ROWS_COMPRESSED_EVENT: _VERSION_1,
    binlog.UPDATE_ROWS_COMPRESSED_EVENT: _VERSION_1,
    binlog.DELETE_ROWS_COMPRESSED_EVENT: _VERSION_1,
}
_END = 900
_ONE_AND_TWO = (struct.pack("<BI", 0, 1), struct.pack("<BI", 0, 2))


def outcome(number: int) -> str:
    """What is made of an event of this type, in a transaction if it belongs into one."""
    if binlog.WRITE_ROWS_COMPRESSED_EVENT <= number <= binlog.DELETE_ROWS_COMPRESSED_EVENT:
        return _rows(number)
    with tempfile.TemporaryDirectory() as folder:
        sink, error = read(Path(folder), *_events(number))
    is_passed = isinstance(error, SourceConnectionLost) and sink.position.offset == _END
    return NO_ROW if is_passed else str(error.code)


def _events(number: int) -> tuple[bytes, ...]:
    if number == binlog.VIEW_CHANGE_EVENT:
        view = b"16127:4".ljust(40, b"\0") + struct.pack("<QI", 4, 1) + struct.pack("<HI", 1, 3) + b"kset"
        return (anonymous(end=200), query("BEGIN", end=300), event(number, view, end=400), query("COMMIT", end=_END))
    if number == binlog.TRANSACTION_CONTEXT_EVENT:
        return (event(number, struct.pack("<BIBIII", 36, 9, 1, 0, 0, 0) + b"a" * 36, end=_END),)
    flags = binlog.LOG_EVENT_IGNORABLE_F if number == binlog.IGNORABLE_LOG_EVENT else 0
    return (event(number, bytes(30), end=_END, flags=flags),)


def _rows(number: int) -> str:
    """Of a table (id INT NOT NULL), in a transaction of MariaDB's; its head is that of MySQL's version 2."""
    one, two = _ONE_AND_TWO
    is_update = number == binlog.UPDATE_ROWS_COMPRESSED_EVENT
    rows = one + two
    head = struct.pack("<IHHHB", 7, 0, 1, 2, 1) + (b"\1\1" if is_update else b"\1")
    body = head + bytes([0x81, len(rows)]) + zlib.compress(rows)
    table_map = struct.pack("<IHH", 7, 0, 1) + b"\1t\0\1a\0\1" + bytes([binlog.MYSQL_TYPE_LONG]) + b"\0\0"
    table_map += b"\1\1\0" + b"\4\3\2id"  # signed; the column's name
    data = mutation.event(binlog.GTID_EVENT, struct.pack("<QIB", 7, 0, 0) + bytes(6))
    data += mutation.event(binlog.TABLE_MAP_EVENT, table_map) + mutation.event(number, body)
    data += mutation.event(binlog.XID_EVENT, bytes(8))
    changes = [(row["_change_type"], row["id"]) for row in decode_all(data, mariadb=True).table("a").to_pylist()]
    kinds = {binlog.WRITE_ROWS_COMPRESSED_EVENT: (0, 0), binlog.DELETE_ROWS_COMPRESSED_EVENT: (3, 3)}
    return DECODED if changes == list(zip(kinds.get(number, (1, 2)), (1, 2), strict=True)) else WRONG
