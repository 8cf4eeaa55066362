"""How positions are kept on the server of a Replicate, and its log when tables begin in it.

Comes in: the gateway's Replicate, and a log that was looked into (`continuity`). Goes out: what `agent.capture.starts`
asks of a log. Its two ends are asked for once.
"""

from contextlib import suppress
from functools import cache

from menura.v1 import changes_pb2

from agent.capture.source import Oldest, Reason
from agent.errors import PositionInvalid
from agent.positions import PositionSyntaxError
from agent.sources.mysql.positions import (
    BinlogPosition,
    BinlogPositionKind,
    from_proto,
    has_file,
    is_file_only,
    no_gtids,
    parse_file_offset,
)
from agent.sources.mysql.server.continuity import Continuity


def position_kind_of(replicate: changes_pb2.Replicate, natural: BinlogPositionKind) -> BinlogPositionKind:
    """By file and offset where some position knows no GTIDs, else the server's natural kind."""
    if natural is not BinlogPositionKind.MYSQL_GTID:
        return natural
    stored = [ahead.position for ahead in replicate.ahead]
    stored += [replicate.position] if replicate.HasField("position") else []
    stored += [sync.position for sync in replicate.tables if sync.WhichOneof("start") == "position"]
    stored += [sync.altered_from for sync in replicate.tables if sync.HasField("altered_from")]
    texts = [sync.position_text for sync in replicate.tables if sync.WhichOneof("start") == "position_text"]
    wants_file = any(parse_file_offset(text) for text in texts)
    can_file = all(has_file(position) for position in stored)
    is_needed = any(is_file_only(position) for position in stored)
    return BinlogPositionKind.FILE if is_needed or (wants_file and can_file) else natural


class BinlogStart:
    """The log of one source's server."""

    def __init__(self, continuity: Continuity, position_kind: BinlogPositionKind, source: str) -> None:
        self._continuity = continuity
        self._position_kind = position_kind
        self._source = source
        self._end, self._oldest = cache(continuity.log.end), cache(continuity.log.oldest)

    def end(self) -> BinlogPosition:
        return self._end()

    def oldest(self) -> Oldest[BinlogPosition]:
        return self._oldest()

    def parse(self, text: str) -> BinlogPosition:
        return self._continuity.log.parse(text)

    def check(self, position: BinlogPosition, *, was_read: bool = True) -> None:
        self._continuity.check(position, was_read=was_read)

    def after(self, position: BinlogPosition, why: Reason) -> BinlogPosition:
        return self._continuity.after(position, why)

    def place_of(self, position: changes_pb2.Position) -> BinlogPosition:
        try:
            return from_proto(position, self._position_kind)
        except PositionSyntaxError:  # none was named
            return BinlogPosition(no_gtids(self._position_kind))

    def stored(self, position: changes_pb2.Position) -> BinlogPosition:
        """Of another flavour's server too: `Continuity.check` says what that means."""
        source = self._source
        other = (
            BinlogPositionKind.MYSQL_GTID
            if self._position_kind is BinlogPositionKind.MARIADB_GTID
            else BinlogPositionKind.MARIADB_GTID
        )
        try:
            if self._position_kind is BinlogPositionKind.MARIADB_GTID and is_file_only(position):
                return from_proto(position, BinlogPositionKind.FILE)
            return from_proto(position, self._position_kind)
        except PositionSyntaxError as wrong:
            with suppress(PositionSyntaxError):
                return from_proto(position, other)
            raise PositionInvalid(
                "reading a committed position",
                f"it can't be used on this server: {wrong}",
                data="Nothing was read",
                remedy=f"Name the server that it was read from in sources.{source} of the agent's configuration and"
                " restart the agent; where there is none, let the source's tables begin anew:"
                f" menura sync resync {source} --all",
                source=source,
            ) from wrong
