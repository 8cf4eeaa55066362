"""What can go wrong in the lake, as an operator sees it.

::

    MenuraError
    └── SinkError
        ├── SinkSettingInvalid      an argument, or an address that nothing can open
        ├── JavaMissing             no Java on this machine
        ├── JarsMissing             Delta's jars are not where the session looks
        ├── JarsNotFetched          the registry did not give them
        ├── LogEntryUnreadable      an entry of the cut log, or one whose cuts do not follow; stops the sink
        ├── LakeRecordsUnwritable   LAKE/_menura could not be read or written; stops the sink
        ├── QueryFailed             Spark ended the query for another reason
        ├── TableNotInLake          asked for a table that was never written
        └── TableStopped            one table stops at its last version, the others go on
            ├── DataFileUnreadable  a landed file that is missing, broken or not in the landing layout
            ├── ColumnTypeChanged   a new type that the lake's column can't hold
            ├── ColumnNameTaken     two columns with one name in the lake
            ├── RowsPartial         rows without all values of a table without a primary key
            ├── ChunkWithoutKey     a dump's range of a table without a primary key
            ├── EventUnreadable     an event whose words for a value can't be read
            ├── ChangeTypeUnknown   a change that this version can't merge
            ├── LakeStorageFailed   the lake's storage refused; tried again
            └── TableUnexpected     a bug: says the class of the error, never its text
"""

from menura.errors import MenuraError


class SinkError(MenuraError):
    code = "SINK"


class SinkSettingInvalid(SinkError):
    code = "SINK_SETTING_INVALID"
    exit_code = 2


class JavaMissing(SinkError):
    code = "JAVA_MISSING"
    exit_code = 2


class JarsMissing(SinkError):
    code = "JARS_MISSING"
    exit_code = 2


class JarsNotFetched(SinkError):
    code = "JARS_NOT_FETCHED"


class LogEntryUnreadable(SinkError):
    code = "LOG_ENTRY_UNREADABLE"
    exit_code = 3


class LakeRecordsUnwritable(SinkError):
    code = "LAKE_RECORDS_UNWRITABLE"
    exit_code = 4
    terminal = False


class QueryFailed(SinkError):
    code = "QUERY_FAILED"
    exit_code = 4
    terminal = False


class TableNotInLake(SinkError):
    code = "TABLE_NOT_IN_LAKE"


class TableStopped(SinkError):
    code = "TABLE_STOPPED"


class DataFileUnreadable(TableStopped):
    code = "DATA_FILE_UNREADABLE"


class ColumnTypeChanged(TableStopped):
    code = "COLUMN_TYPE_CHANGED"


class ColumnNameTaken(TableStopped):
    code = "COLUMN_NAME_TAKEN"


class RowsPartial(TableStopped):
    code = "ROWS_PARTIAL"


class ChunkWithoutKey(TableStopped):
    code = "CHUNK_WITHOUT_KEY"


class EventUnreadable(TableStopped):
    code = "EVENT_UNREADABLE"


class ChangeTypeUnknown(TableStopped):
    code = "CHANGE_TYPE_UNKNOWN"


class LakeStorageFailed(TableStopped):
    code = "LAKE_STORAGE_FAILED"
    terminal = False


class TableUnexpected(TableStopped):
    code = "TABLE_UNEXPECTED"
