"""What an error of the server in the middle of a SELECT speaks of. Pure: an error in, its meaning out.

What neither passes nor is about the definition is taken to be about the rows. A wrong guess does no harm: a chunk whose
rows can't be read is read again in smaller parts, and only one row that can't be read alone ends its dump.
"""

from enum import Enum, auto

import pymysql
from pymysql.constants import ER

from agent.sources.mysql.server.connection import is_connection_lost, is_grant_missing, server_code

# Server codes that PyMySQL has no name for.
_ER_TABLE_DEF_CHANGED = 1412
_ER_NEED_REPREPARE = 1615
_ER_TEMP_FILE_WRITE_FAILURE = 1878
#: MariaDB
_ER_CONNECTION_KILLED = 1927
_ER_STATEMENT_TIMEOUT = 1969
#: MySQL
_ER_QUERY_TIMEOUT = 3024
_ER_SERVER_OFFLINE_MODE = 3032
_ER_LOCK_NOWAIT = 3572
_ER_SESSION_WAS_KILLED = 3169
_ER_CLIENT_INTERACTION_TIMEOUT = 4031

_MOVED = frozenset(
    {
        *(ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR, ER.KEY_DOES_NOT_EXITS),
        *(_ER_TABLE_DEF_CHANGED, _ER_NEED_REPREPARE),
    }
)
_PASSING = frozenset(
    {
        *(ER.QUERY_INTERRUPTED, _ER_QUERY_TIMEOUT, _ER_STATEMENT_TIMEOUT),
        *(_ER_CONNECTION_KILLED, _ER_SESSION_WAS_KILLED, _ER_CLIENT_INTERACTION_TIMEOUT),
        *(ER.SERVER_SHUTDOWN, ER.NORMAL_SHUTDOWN, ER.FORCING_CLOSE, _ER_SERVER_OFFLINE_MODE),
        *(ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.LOCK_TABLE_FULL, ER.CANT_LOCK, _ER_LOCK_NOWAIT),
        *(ER.OUTOFMEMORY, ER.OUT_OF_SORTMEMORY, ER.OUT_OF_RESOURCES, ER.CANT_CREATE_THREAD),
        *(ER.DISK_FULL, _ER_TEMP_FILE_WRITE_FAILURE),
        *(ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED),
        *(ER.ABORTING_CONNECTION, ER.NEW_ABORTING_CONNECTION, ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED),
        *(ER.NET_ERROR_ON_WRITE, ER.NET_WRITE_INTERRUPTED),
    }
)


class Subject(Enum):
    #: the server, the connection or the user's rights, as they are now
    MOMENT = auto()
    #: the table is not as its definition was read
    DEFINITION = auto()
    ROWS = auto()


def subject_of(failed: pymysql.err.MySQLError) -> Subject:
    """
    >>> subject_of(pymysql.err.OperationalError(1317, "")), subject_of(pymysql.err.OperationalError(3141, ""))
    (<Subject.MOMENT: 1>, <Subject.ROWS: 3>)
    """
    code = server_code(failed)
    if code in _MOVED:
        return Subject.DEFINITION
    if code in _PASSING or is_connection_lost(failed) or is_grant_missing(failed):
        return Subject.MOMENT
    return Subject.ROWS
