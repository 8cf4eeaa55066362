"""What can go wrong at MySQL and MariaDB servers alone; see `agent.errors`."""

from agent.errors import SourceError


class BinlogDisabled(SourceError):
    exit_code = 25


class BinlogFormatNotRow(SourceError):
    exit_code = 26


class BinlogRowValuePartial(SourceError):
    exit_code = 28


class ServerIdDuplicate(SourceError):
    exit_code = 32
