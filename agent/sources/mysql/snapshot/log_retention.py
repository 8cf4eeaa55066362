"""Log retention: does the server keep its log for as long as a dump needs it?

Comes in: a connection to the server whose log is streamed, and what a dump has to read. Goes out: how long the log from
now on is kept, how long the dump may take, and a warning. Only a table that is read in one snapshot needs
the log from there on until all of it is read; a dump by chunks needs just a stream that keeps up. Reads settings and
the list of log files, changes nothing. Estimates are rough and lean towards a warning.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.connections import Connection

from agent.settings import DumpConfig
from agent.snapshot.throttle import Limits
from agent.sources.mysql.server.connection import is_grant_missing, rows, variable

#: what one connection reads from a server that others use too
ASSUMED_BYTES_PER_SECOND = 20_000_000
ASSUMED_ROWS_PER_SECOND = 200_000
#: a need beyond this part of the log retention is warned of
_WARNED_PART = 0.5
#: Amazon's servers ignore the expiry and have a setting of their own
_MANAGED_SETTING = "binlog retention hours"
#: that they take
_MOST_MANAGED_HOURS = 168
#: what a server that keeps its log for too short a time is to keep it at least: a week
_KEPT_SECONDS = 604_800
#: the log's size that the server keeps: MariaDB since 11.4, Percona
_SIZE_SETTINGS = ("max_binlog_total_size", "binlog_space_limit")


@dataclass(frozen=True, slots=True)
class LogRetention:
    #: for which the log from now on is kept; None: until somebody purges it, or not known
    seconds: int | None
    #: what decides that: a setting and its value; empty: no setting does
    by: str = ""
    #: what makes the server keep it for so many seconds, with some to spare; '': nothing is known that does
    longer: Callable[[int], str] = field(default=lambda seconds: "", compare=False)

    @property
    def is_unlimited(self) -> bool:
        """It is kept until somebody purges it."""
        return self.seconds is None and not self.by


@dataclass(frozen=True, slots=True)
class _Log:
    #: None: this user may not see it
    size_bytes: int | None
    #: the server has removed files before
    is_purged: bool


@dataclass(frozen=True, slots=True)
class _Growth:
    """Of the log: neither is 0."""

    size_bytes: int
    seconds: int


def read_log_retention(connection: "Connection[Any]") -> LogRetention:
    """Of the server as it is set now; inside `server_errors`."""
    managed = _managed(connection)
    if managed is not None:
        return managed
    expiry = _expiry(connection)
    by_size = _by_size(connection, expiry)
    known = [retention for retention in (expiry, by_size) if retention.seconds is not None]
    return min(known, key=lambda retention: retention.seconds or 0, default=by_size)


def needed_seconds(
    rows_count: int | None, size_bytes: int | None, config: DumpConfig, limits: Limits, *, workers: int = 1
) -> int | None:
    """How long reading may take; None: the size is not known."""
    if rows_count is None or size_bytes is None:
        return None
    rates = (
        (rows_count, ASSUMED_ROWS_PER_SECOND * workers, config.max_rows_per_second, limits.rows_per_second),
        (size_bytes, ASSUMED_BYTES_PER_SECOND * workers, config.max_bytes_per_second, limits.bytes_per_second),
    )
    return max(round(count / min(rate for rate in allowed if rate)) for count, *allowed in rates)


def unchunked_warning(retention: LogRetention, needed: int | None) -> str:
    """Of a table that is read in one snapshot; usually empty. Where it needs more than there is, the control plane
    refuses the dump, unless somebody wants it all the same."""
    if retention.seconds is None:
        return f"How long the server keeps its log is not known ({retention.by})" if retention.by else ""
    kept = f"the server keeps its log for {_told(retention.seconds)} ({retention.by})"
    if needed is None:
        return f"How long the dump takes is not known; {kept}"
    longer = retention.longer(needed)
    if needed > retention.seconds and longer:
        return f"It may take {_told(needed)}; {kept}, and for longer with: {longer}"
    if needed > retention.seconds * _WARNED_PART:
        return f"It may take {_told(needed)}; {kept}"
    return ""


def lag_warning(retention: LogRetention, lag_seconds: float) -> str:
    """Of a dump by chunks, while the stream is so far behind; usually empty."""
    if retention.seconds is None or lag_seconds <= retention.seconds * _WARNED_PART:
        return ""
    return (
        f"The stream is {_told(round(lag_seconds))} behind, and the server keeps its log for {_told(retention.seconds)}"
        f" ({retention.by}): slow the dump down, or keep the log longer"
    )


def _managed(connection: "Connection[Any]") -> LogRetention | None:
    """None: no server of Amazon's."""
    found = rows(
        connection,
        "SELECT 1 FROM information_schema.tables WHERE table_schema = 'mysql' AND table_name = 'rds_configuration'",
    )
    if not found:
        return None
    set_ = rows(connection, "SELECT value FROM mysql.rds_configuration WHERE name = %s", (_MANAGED_SETTING,))
    hours = int(set_[0][0] or 0) if set_ else 0
    by = f"{_MANAGED_SETTING} is {hours or 'not set: as soon as possible'}"
    return LogRetention(hours * 3600, by, lambda needed: _managed_statement(hours, needed))


def _managed_statement(hours: int, needed: int) -> str:
    """
    >>> _managed_statement(0, 7200), _managed_statement(168, 700_000)
    ("CALL mysql.rds_set_configuration('binlog retention hours', 168)", '')
    """
    wanted = min(math.ceil(_with_some_to_spare(needed) / 3600), _MOST_MANAGED_HOURS)
    if wanted <= hours or wanted * 3600 < needed:
        return ""
    return f"CALL mysql.rds_set_configuration('{_MANAGED_SETTING}', {wanted})"


def _with_some_to_spare(needed: int) -> int:
    return max(2 * needed, _KEPT_SECONDS)


def _expiry(connection: "Connection[Any]") -> LogRetention:
    if (variable(connection, "binlog_expire_logs_auto_purge") or "ON").upper() == "OFF":
        return LogRetention(None)
    seconds = int(float(variable(connection, "binlog_expire_logs_seconds") or 0))
    if seconds:
        return LogRetention(
            seconds,
            f"binlog_expire_logs_seconds is {seconds}",
            lambda needed: f"SET GLOBAL binlog_expire_logs_seconds = {_with_some_to_spare(needed)}",
        )
    days = float(variable(connection, "expire_logs_days") or "0")
    if not days:
        return LogRetention(None)
    return LogRetention(
        int(days * 86_400),
        f"expire_logs_days is {days:g}",
        lambda needed: f"SET GLOBAL expire_logs_days = {math.ceil(_with_some_to_spare(needed) / 86_400)}",
    )


def _by_size(connection: "Connection[Any]", expiry: LogRetention) -> LogRetention:
    """At the rate at which the log has grown."""
    for name in _SIZE_SETTINGS:
        limit = int(variable(connection, name) or 0)
        if not limit:
            continue
        growth = _growth(connection, expiry)
        seconds = round(limit * growth.seconds / growth.size_bytes) if growth is not None else None
        return LogRetention(seconds, f"{name} is {limit}")
    return LogRetention(None)


def _growth(connection: "Connection[Any]", expiry: LogRetention) -> _Growth | None:
    """None: nothing was written yet, or it is not known."""
    # in whole seconds: a server that has just started says 0
    uptime = max(1, _status(connection, "Uptime") or 0)
    written = _status(connection, "Binlog_bytes_written")
    if written is not None:  # MariaDB counts what it has written since it was started
        return _Growth(written, uptime) if written else None
    log = _log(connection)
    # files that have expired are gone: what is left was written since then
    seconds = min(uptime, expiry.seconds or 0) if log.is_purged else uptime
    return _Growth(log.size_bytes, seconds) if log.size_bytes and seconds else None


def _status(connection: "Connection[Any]", name: str) -> int | None:
    """None: the server has no such counter."""
    found = rows(connection, "SHOW GLOBAL STATUS LIKE %s", (name,))
    return int(found[0][1]) if found else None


def _log(connection: "Connection[Any]") -> _Log:
    try:
        files = rows(connection, "SHOW BINARY LOGS")
    except pymysql.err.MySQLError as refused:
        if not is_grant_missing(refused):
            raise
        return _Log(None, is_purged=False)
    first = str(files[0][0]).rpartition(".")[2] if files else ""
    return _Log(sum(int(file[1]) for file in files), is_purged=first.isdigit() and int(first) > 1)


def _told(seconds: int) -> str:
    """
    >>> _told(90), _told(7200), _told(259200)
    ('90 s', '2 h', '3 days')
    """
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds} s"
