"""Where each table of a Replicate begins.

Comes in: the gateway's Replicate and what the server says about its log. Goes out: a `Plan`: the progress to
read with, and what the start cut says. A table whose start can't be had stops alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from menura.v1 import mysql_binlog_pb2

from agent.errors import GatewayRefused, PositionInvalid, PositionPurged, SourceRebuilt
from agent.filter import Filter
from agent.mysql.dump.desk import TableStart
from agent.mysql.positions import Position, PositionSyntaxError, Scheme, from_proto, is_file_only, parse_file_offset
from agent.mysql.progress import Progress, Stop, Table, name_message, names
from agent.mysql.server.server_log import ServerLog
from agent.state import denied

MISSING_FROM_NOW = "the sync began at the log's end: rows that were not changed since then need a dump"
MISSING_FROM_POSITION = (
    "the sync began at the position that was asked for: rows that were not changed since then need a dump"
)


#: where the stream of a table begins whose sync waits for a dump
StartOf = Callable[[str, Scheme], Position | TableStart]


@dataclass(slots=True)
class Starts:
    """Every table that takes part has an entry in `positions`."""

    positions: dict[Table, Position] = field(default_factory=dict)
    started: list[mysql_binlog_pb2.TableStarted] = field(default_factory=list)
    stopped: list[Stop] = field(default_factory=list)
    #: dumps that tables begin with, or wait for
    awaited: dict[str, Table] = field(default_factory=dict)
    #: of those, whose tables can't begin yet
    undecided: set[str] = field(default_factory=set)

    def progress(self, otherwise: Position) -> Progress:
        return Progress(self.positions, otherwise)


class _Log:
    """A server's log whose two ends are asked for once: all tables that begin there begin at the same place."""

    def __init__(self, log: ServerLog) -> None:
        self.end, self.oldest = cache(log.end), cache(log.oldest)
        self.parse, self.check_readable = log.parse, log.check_readable


def scheme_of(replicate: mysql_binlog_pb2.Replicate, natural: Scheme) -> Scheme:
    """By file and offset where some position knows no GTIDs, else the server's natural scheme."""
    if natural is not Scheme.MYSQL_GTID:
        return natural
    stored = [ahead.position for ahead in replicate.ahead]
    stored += [replicate.position] if replicate.HasField("position") else []
    stored += [sync.position for sync in replicate.tables if sync.WhichOneof("start") == "position"]
    texts = [sync.position_text for sync in replicate.tables if sync.WhichOneof("start") == "position_text"]
    wants_file = any(parse_file_offset(text) for text in texts)
    can_file = all(position.file and position.server_uuid for position in stored)
    is_needed = any(is_file_only(position) for position in stored)
    return Scheme.FILE if is_needed or (wants_file and can_file) else natural


def resolve(
    replicate: mysql_binlog_pb2.Replicate,
    log: ServerLog,
    scheme: Scheme,
    filter_: Filter,
    source: str,
    start_of: StartOf,
) -> Starts:
    """Raises a `SourceError` where the whole source can't begin."""
    starts = Starts()
    ends = _Log(log)
    ahead = {table: group.position for group in replicate.ahead for table in names(group.tables)}
    for sync in replicate.tables:
        table = (sync.table.database, sync.table.table)
        begins = sync.WhichOneof("start") is not None
        if not begins and table not in ahead and not replicate.HasField("position"):
            raise GatewayRefused(
                "reading the gateway's Replicate",
                "a table has neither a start nor a committed position",
                data="Nothing was read",
                remedy="Upgrade the gateway: this is against the protocol",
                source=source,
                database=table[0],
                table=table[1],
            )
        if not filter_.verdict(*table).allowed:
            if not begins:  # the gap begins here; a table that has not begun waits for a wider policy
                place = _stored(ahead.get(table, replicate.position), scheme, source)
                starts.stopped.append(Stop(table, place, denied(source, *table)))
        elif sync.WhichOneof("start") == "dump":
            starts.awaited[sync.dump] = table
            start = start_of(sync.dump, scheme)
            if start is TableStart.UNDECIDED:
                starts.undecided.add(sync.dump)
            else:
                _begin(starts, table, sync, ends, scheme, source, start)
        elif begins:
            _begin(starts, table, sync, ends, scheme, source)
        else:
            starts.positions[table] = _stored(ahead.get(table, replicate.position), scheme, source)
    return starts


def _begin(
    starts: Starts,
    table: Table,
    sync: mysql_binlog_pb2.TableSync,
    log: _Log,
    scheme: Scheme,
    source: str,
    with_dump: Position | TableStart = TableStart.KEYED,
) -> None:
    missing = ""
    try:
        match sync.WhichOneof("start"):
            case "oldest":
                oldest = log.oldest()
                position, missing = oldest.position, oldest.earlier_rows_missing
            case "now":
                position, missing = log.end(), MISSING_FROM_NOW
            case "dump" if isinstance(with_dump, Position):
                position = with_dump
                log.check_readable(position)
            case "dump":
                position = log.end()
            case "position_text":
                position, missing = log.parse(sync.position_text), MISSING_FROM_POSITION
                log.check_readable(position)
            case _:
                position = _stored(sync.position, scheme, source)
                log.check_readable(position)
    except (PositionInvalid, PositionPurged, SourceRebuilt) as error:
        error.database, error.table = table
        starts.stopped.append(Stop(table, _nowhere(sync, scheme), error))
        return
    starts.positions[table] = position
    starts.started.append(
        mysql_binlog_pb2.TableStarted(
            table=name_message(table), position=position.to_proto(), earlier_rows_missing=missing
        )
    )


def _nowhere(sync: mysql_binlog_pb2.TableSync, scheme: Scheme) -> Position:
    """What is told as the place of a table that could not begin: what was asked for, where it can be read."""
    try:
        return from_proto(sync.position, scheme)
    except PositionSyntaxError:
        return Position()


def _stored(position: mysql_binlog_pb2.Position, scheme: Scheme, source: str) -> Position:
    try:
        return from_proto(position, scheme)
    except PositionSyntaxError as wrong:
        raise PositionInvalid(
            "reading a committed position",
            f"it can't be used on this server: {wrong}",
            data="Nothing was read",
            remedy="Start the sync of the source's tables anew, or name the server that it was read from",
            source=source,
        ) from wrong
