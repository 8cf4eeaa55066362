"""What can go wrong at PostgreSQL servers alone; see `agent.errors`."""

from agent.errors import PositionPurged, SourceError, SourceFailed, TableError


class WalLevelNotLogical(SourceError):
    exit_code = 72


class SourceDatabaseMissing(SourceError):
    exit_code = 73


class SlotsExhausted(SourceError):
    """The server has no room for one more replication slot."""

    exit_code = 74


class SlotForeign(SourceError):
    """A slot of the configured name is there, and it is of another database or plugin."""

    exit_code = 75


class SlotInUse(SourceFailed):
    """Another session reads the slot."""

    exit_code = 76


class SlotMissing(PositionPurged):
    """What the slot would have kept is no longer certain to be there."""

    exit_code = 77


class SlotInvalidated(PositionPurged):
    """The server has removed WAL that the slot still needed."""

    exit_code = 78


class PublicationGone(PositionPurged):
    """Changes from a time when the publication was not there can't be decoded."""

    exit_code = 79


class SlotRetentionShort(SourceError):
    """A warning: the server will soon remove WAL that the slot still needs."""

    exit_code = 80
    terminal = False


class TableUnpublished(TableError):
    """The publication lacks the table, or some of its rows, columns or kinds of changes."""

    exit_code = 81


class TableIdentityMissing(TableError):
    """Once it is published, its server refuses UPDATE and DELETE."""

    exit_code = 82


class TablesUnidentified(SourceError):
    """A warning: tables can't be synced as they are, since nothing identifies their rows."""

    exit_code = 83
    terminal = False


class PublicationLacking(SourceError):
    """A warning: tables can't be synced before somebody has them published."""

    exit_code = 84


class PublicationUnfiltered(SourceError):
    """A warning: ignored columns or dropped tables reach the agent, though the server is to leave them out."""

    exit_code = 85
