"""Status variables of a QUERY event: what its session had set, as far as a DDL means something else by it.

Pure: the bytes between a QUERY event's head and its database in, values out. Both servers end a list at a code that
they don't know; so does this reader, and what was not reached keeps its default.
"""

import struct
from dataclasses import dataclass
from typing import Any

from agent.sources.mysql.log.events import EventBodyError

#: bytes of a variable's value; the names are the servers'
_FIXED_BYTES = {
    0: 4,  # Q_FLAGS2_CODE
    1: 8,  # Q_SQL_MODE_CODE
    3: 4,  # Q_AUTO_INCREMENT
    4: 6,  # Q_CHARSET_CODE
    7: 2,  # Q_LC_TIME_NAMES_CODE
    8: 2,  # Q_CHARSET_DATABASE_CODE
    9: 8,  # Q_TABLE_MAP_FOR_UPDATE_CODE
    10: 4,  # Q_SOURCE_DATA_WRITTEN_CODE
    13: 3,  # Q_MICROSECONDS
    16: 1,  # Q_EXPLICIT_DEFAULTS_FOR_TIMESTAMP
    17: 8,  # Q_DDL_LOGGED_WITH_XID
    18: 2,  # Q_DEFAULT_COLLATION_FOR_UTF8MB4
    19: 1,  # Q_SQL_REQUIRE_PRIMARY_KEY
    20: 1,  # Q_DEFAULT_TABLE_ENCRYPTION
    128: 3,  # Q_HRNOW
    129: 8,  # Q_XID
}
_FLAGS2, _SQL_MODE, _CATALOG, _CHARSET, _TIME_ZONE, _CATALOG_NZ = 0, 1, 2, 4, 5, 6
_INVOKER, _UPDATED_DB_NAMES, _EXPLICIT_DEFAULTS_FOR_TIMESTAMP, _DDL_XID, _XID, _GTID_FLAGS3 = 11, 12, 16, 17, 129, 130
_OVER_MAX_DBS = 254
#: of client, connection and server
_COLLATIONS = struct.Struct("<HHH")
#: of MariaDB's FLAGS2
_OPTION_EXPLICIT_DEF_TIMESTAMP = 1 << 24
#: of MariaDB's Q_GTID_FLAGS3: START ALTER, COMMIT ALTER, ROLLBACK ALTER; the last two are followed by a sequence number
_FL_START_ALTER, _FL_COMMIT_ALTER, _FL_ROLLBACK_ALTER = 2, 4, 8


@dataclass(frozen=True, slots=True)
class QueryStatus:
    #: bits as in the server's sql_mode
    sql_mode: int = 0
    #: ids of collations; 0: not said
    collation_client: int = 0
    collation_connection: int = 0
    collation_server: int = 0
    time_zone: str = ""
    #: None: not said
    explicit_defaults_for_timestamp: bool | None = None
    #: MariaDB's two-phase ALTER: it only begins here, or is taken back
    is_without_effect: bool = False
    #: MariaDB: of a DDL that its user has written (from 10.6 on); MySQL: of one that has changed InnoDB (from 8.0 on)
    has_xid: bool = False


def parse_status(status: bytes, *, mariadb: bool) -> QueryStatus:
    """The variables; raises `EventBodyError` where one is cut off.

    >>> parse_status(bytes([1, 4, 0, 0, 0, 0, 0, 0, 0]), mariadb=False).sql_mode
    4
    """
    read: dict[str, Any] = {}
    at = 0
    while at < len(status):
        code = status[at]
        end = _end(status, at + 1, code)
        if end is None:
            break
        if end > len(status):
            raise EventBodyError(f"status variable {code} of a query event is cut off")
        _take(read, code, status[at + 1 : end], mariadb)
        at = end
    return QueryStatus(**read)


def _end(status: bytes, at: int, code: int) -> int | None:
    """Where the variable's value ends, which may be past the end; None: nobody knows."""
    if code in _FIXED_BYTES:
        return at + _FIXED_BYTES[code]
    if at >= len(status):
        return at + 1
    length = status[at]
    if code in (_TIME_ZONE, _CATALOG_NZ):
        return at + 1 + length
    if code == _CATALOG:
        return at + 2 + length
    if code == _INVOKER:
        host_at = at + 1 + length
        return host_at + 1 + status[host_at] if host_at < len(status) else host_at + 1
    if code == _UPDATED_DB_NAMES:
        return _end_of_names(status, at + 1, 0 if length == _OVER_MAX_DBS else length)
    if code == _GTID_FLAGS3:
        return at + (9 if length & (_FL_COMMIT_ALTER | _FL_ROLLBACK_ALTER) else 1)
    return None


def _end_of_names(status: bytes, at: int, names: int) -> int:
    for _ in range(names):
        zero = status.find(0, at)
        if zero < 0:
            return len(status) + 1
        at = zero + 1
    return at


def _take(read: dict[str, Any], code: int, value: bytes, mariadb: bool) -> None:
    """What the variable says, under the names of `QueryStatus`."""
    number = int.from_bytes(value, "little")
    if code == _SQL_MODE:
        read["sql_mode"] = number
    elif code == _CHARSET:
        read["collation_client"], read["collation_connection"], read["collation_server"] = _COLLATIONS.unpack(value)
    elif code == _TIME_ZONE:
        read["time_zone"] = value[1:].decode("utf-8", "replace")
    elif code == _FLAGS2 and mariadb:
        read["explicit_defaults_for_timestamp"] = bool(number & _OPTION_EXPLICIT_DEF_TIMESTAMP)
    elif code == _EXPLICIT_DEFAULTS_FOR_TIMESTAMP:
        read["explicit_defaults_for_timestamp"] = bool(number)
    elif code == (_XID if mariadb else _DDL_XID):
        read["has_xid"] = True
    elif code == _GTID_FLAGS3:
        read["is_without_effect"] = bool(value[0] & (_FL_START_ALTER | _FL_ROLLBACK_ALTER))
