"""What can go wrong in the lake, as an operator sees it."""

from threading import Thread

from menura.errors import MenuraError


class SinkError(MenuraError):
    """Base of all that the lake reports."""


class SinkSettingInvalid(SinkError):
    """An argument, or an address that nothing can open."""

    exit_code = 2


class JavaMissing(SinkError):
    """There is no Java on this machine."""

    exit_code = 2


class JarsMissing(SinkError):
    """Delta's jars are not where the session looks."""

    exit_code = 2


class JarsNotFetched(SinkError):
    """The registry did not give them."""


class ClassArchiveFailed(SinkError):
    """Java wrote none."""


class LogEntryUnreadable(SinkError):
    """An entry of the cut log, or one whose cuts do not follow; it stops the sink."""

    exit_code = 3


class LogEntryMissing(LogEntryUnreadable):
    """An entry that is gone, though it or a later one was written; it stops the sink."""


class OtherLanding(SinkError):
    """The lake, or its checkpoint, belongs to another landing; the sink does not start, or stops."""

    exit_code = 5


class LakeLost(SinkError):
    """The checkpoint says that entries are in a lake that holds nothing."""

    exit_code = 5


class LakeTaken(SinkError):
    """A newer sink writes the lake; this one ends."""

    exit_code = 5


class LakeRecordsUnwritable(SinkError):
    """LAKE/_menura could not be read or written; it stops the sink."""

    exit_code = 4
    terminal = False


class QueryFailed(SinkError):
    """Spark ended the query for another reason."""

    exit_code = 4
    terminal = False


class StoreAway(SinkError):
    """The store of landing, lake or checkpoint refuses or gives no answer; the sink waits for it."""

    exit_code = 4
    terminal = False


class TableNotInLake(SinkError):
    """Asked for a table that was never written."""


class CutBeforeHorizon(SinkError):
    """Versions of tables as of then may be removed, or never were in this lake."""


class CutNotComplete(SinkError):
    """Nothing later has come into the lake, so something of then may be missing; asked again later."""

    terminal = False


class TableNotAtCut(SinkError):
    """A table that is not what its source's was at the cut: it had stopped, or a dump of it was not done."""


class ShardsDiffer(SinkError):
    """Tables that are to be read as one, and have other keys, or columns of types that no type holds."""


class TableStopped(SinkError):
    """One table stops at its last version; the others go on."""

    #: the log's entry from which on the table lacks rows; 0: the one at which it stopped
    from_entry = 0


class PredecessorMissing(TableStopped):
    """Rows that follow a cut which the table does not have."""


class EntriesGone(TableStopped):
    """A stopped table can't be given what it missed: the landing has lost it."""


class DataFileUnreadable(TableStopped):
    """A landed file that is missing, broken or not in the landing layout."""


class ColumnNameTaken(TableStopped):
    """Two columns of one name, which no server has."""


class RowsPartial(TableStopped):
    """Rows without all values of a table without a primary key."""


class ChunkWithoutKey(TableStopped):
    """A dump's range of a table without a primary key."""


class ChunkTooLate(TableStopped):
    """A dump's chunk that was read before changes which the changelog does not keep any more."""


class EventUnreadable(TableStopped):
    """An event whose words for a type or a value can't be read."""


class HistoryImpossible(SinkError):
    """Asked for the versions of rows that no key tells apart."""


class SchemaChanged(TableStopped):
    """A change of the definition of a table that shall have none."""


class SchemaNotFollowed(TableStopped):
    """A table whose rows are told apart by a column that the lake does not follow."""


class TableOptionsChanged(TableStopped):
    """A table whose rows were written with other options than it is to have."""


class TableOptionImpossible(TableStopped):
    """A table that can't have an option that its name's rule asks for."""


class TableFolderRefused(TableStopped):
    """A new table that can't have the folder of its name's rule."""


class ChangeTypeUnknown(TableStopped):
    """A change that this version can't merge."""


class ChangelogShortened(SinkError):
    """A reader asks for changes that a changelog does not keep any more."""


class ExportPositionInvalid(SinkError):
    """An export's position can't be read, or is of another lake, or of a version that is removed."""


class ExportOutputFailed(SinkError):
    """Where an export goes can't be written."""

    exit_code = 4
    terminal = False


class ExportTaken(ExportOutputFailed):
    """A newer export has this one's name, and writes in its place; this one ends."""


class ExportSchemaRefused(SinkError):
    """A schema registry, or Avro itself, takes no such schema of a table; the others go on."""


class ExportValueRefused(SinkError):
    """A change that its table's Avro schema can't hold; the other tables go on."""


class PluginInvalid(SinkError):
    """A plug-in that can't be loaded, or the file that names it."""

    exit_code = 2


class PluginFailed(SinkError):
    """A call of a plug-in raised."""

    exit_code = 4
    terminal = False


class SearchRefused(SinkError):
    """A search that can't be answered as it is written, or not within its time."""

    exit_code = 2


class SearchTooLong(SearchRefused):
    """A search that took longer than it may."""

    #: what of it goes on nevertheless, since nothing can stop it
    running: Thread | None = None


class SearchBusy(SinkError):
    """As many searches run as may at once, those included which took too long and go on."""

    terminal = False


class SearchCallerRefused(SinkError):
    """A question to the search service without its token, or from a name that is none of its own."""


class SearchTableRefused(SinkError):
    """A table that no search index can follow."""


class SearchIndexMissing(SinkError):
    """There is no index of the table in the folder, or none that was completed."""


class SearchIndexFailed(SinkError):
    """An index's folder or cluster could not be read or written, or another process writes in the folder."""

    exit_code = 4
    terminal = False


class SearchIndexTaken(SearchIndexFailed):
    """Another process writes the index now; this one ends."""

    terminal = True


class SearchDocumentRefused(SinkError):
    """A row that the search engine does not take; its table is left out."""


class CascadeUncertain(TableStopped):
    """What a foreign key did to the table can't be told."""


class ParentStopped(TableStopped):
    """A table that its foreign keys follow has stopped; tried again."""

    terminal = False


class ParentBegunAnew(TableStopped):
    """A table that its foreign keys follow has begun anew: what its actions did meanwhile is not known."""


class LakeTableLost(TableStopped):
    """A folder of the table is lost, or an older copy; written anew from the landing."""

    terminal = False
    from_entry = 1


class TableBehind(TableStopped):
    """More of a table landed at once than others wait for: it catches up in parts."""

    terminal = False


class LakeStorageFailed(TableStopped):
    """The lake's storage refused; tried again."""

    terminal = False


class WorkerKilled(TableStopped):
    """Each process that wrote the table ended before it was done."""


class TableUnexpected(TableStopped):
    """A bug: says the class of the error, never its text."""


class ViewStopped(SinkError):
    """One view stays at its last version; tables and other views go on, and it is tried again."""

    terminal = False


class ViewInputsNotReady(ViewStopped):
    """What the view reads is not there, not whole, or not at one cut of a source."""


class ViewNotComputed(ViewStopped):
    """A value of the view is beyond its type, or its query needs more memory, disk or time than it has."""


class ViewKeyMissing(ViewStopped):
    """A row of the view's first table has a key that its type can't hold."""


class ViewRowsEqual(ViewStopped):
    """Rows of a view that is recomputed on a schedule are the same in all columns of its key."""


class ViewStorageFailed(ViewStopped):
    """The lake's storage refused."""


class ViewTaskLost(ViewStopped):
    """Spark gave up the tasks that computed the view's rows, or their process beside it ended, e.g. killed."""


class ViewUnexpected(ViewStopped):
    """A bug: says the class of the error, never its text."""
