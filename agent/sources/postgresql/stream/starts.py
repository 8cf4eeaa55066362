"""The log of a server's slot when tables begin in it, and whether it goes on where it was read before; if not, why.

Comes in: a position, what the server says of its log, its timelines and the slot. Goes out: what `agent.capture.starts`
asks of a log; nothing, or a `SourceError`, by comparing, never by a text:

::

    PositionPurged   the slot is behind the position, is gone, or has lost WAL: changes may be missing between
    SourceDiverged   what was read is on a timeline that the server has left before it, or behind the server's end
    SourceRebuilt    the server is another one, or the database is: its log says nothing of the tables that were read

After the first the server is certainly the right one; whether it is after the others, only its operator knows. A slot
that is asked to begin before its own position begins later without a word, so nothing is asked that is not checked.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from menura.v1 import changes_pb2, config_pb2

from agent.capture.source import Oldest, Reason
from agent.errors import PositionInvalid, PositionPurged, SourceDiverged, SourceRebuilt
from agent.positions import PositionSyntaxError
from agent.sources.postgresql.positions import WalPosition, from_proto, lsn_text, parse
from agent.sources.postgresql.server.connection import Facts

DOING = "going on from a position"
EARLIER_ROWS_MISSING = "the log goes back to the making of the replication slot: rows of before need a dump"
_GONE = "The changes between are not in the lake"
_UNREAD = "Nothing was read from it; the lake keeps what it has"

#: of each timeline before the server's own: where it ended
Switches = Mapping[int, int]


class Diverged(SourceDiverged):
    """With what is known of it."""

    code = SourceDiverged.code
    #: up to where both logs are the same; None: not known
    common: WalPosition | None = None


def parse_history(text: str) -> dict[int, int]:
    """Of the answer to TIMELINE_HISTORY: a line for each timeline before, with where it ended.

    >>> parse_history("1\\t0/3000158\\tno recovery target specified\\n")
    {1: 50331992}
    """
    found = {}
    for line in text.splitlines():
        words = line.split("\t")
        if len(words) > 1 and words[0].strip().isdigit():
            high, _, low = words[1].strip().partition("/")
            found[int(words[0])] = int(high, 16) << 32 | int(low, 16)
    return found


class WalStart:
    """The log of one source's server."""

    def __init__(
        self,
        source: str,
        facts: Facts,
        end_lsn: int,
        confirmed_lsn: int | None,
        switches: Callable[[], Switches],
        lost: PositionPurged | None = None,
        other_history: Callable[[WalPosition], str] = lambda _: "",
        is_read_from: Callable[[WalPosition, int], bool] = lambda *_: False,
    ) -> None:
        """`confirmed_lsn`: the slot's, None while there is none; `lost`: why it was made anew; `other_history`: how the
        log before a position of its timeline is known to be another one than was read, or empty. `is_read_from`:
        whether it is known that a position of a former timeline was read from this server's log, behind where that
        timeline ended."""
        self._source = source
        self._facts = facts
        self._end_lsn = end_lsn
        self.confirmed_lsn = confirmed_lsn
        self._switches = switches
        self._lost = lost
        self._other_history = other_history
        self._is_read_from = is_read_from

    def begins(self, end_lsn: int, confirmed_lsn: int, lost: PositionPurged | None) -> None:
        """The slot is there; tables that begin now begin at `end_lsn`, where what runs before they do is over."""
        self._end_lsn = max(end_lsn, confirmed_lsn)
        self.confirmed_lsn = confirmed_lsn
        self._lost = lost

    # --- as `agent.capture.starts` asks

    def end(self) -> WalPosition:
        return self._facts.position(self._end_lsn)

    def oldest(self) -> Oldest[WalPosition]:
        return Oldest(self._facts.position(self._confirmed()), EARLIER_ROWS_MISSING)

    def parse(self, text: str) -> WalPosition:
        try:
            return parse(text, self.end())
        except PositionSyntaxError as wrong:
            raise PositionInvalid(
                "reading a start position",
                str(wrong),
                data="Nothing was read",
                remedy=f"Name an LSN, e.g. {lsn_text(self._end_lsn)}, which is the log's end now",
                source=self._source,
            ) from wrong

    def check(self, position: WalPosition, *, was_read: bool = True) -> None:
        self.check_server(position, was_read=was_read)
        confirmed = self._confirmed()
        if position.lsn < confirmed:
            lost = self._lost
            raise type(lost or PositionPurged(DOING, ""))(
                DOING,
                f"{lost.found}; a new one begins at {lsn_text(confirmed)}"
                if lost is not None
                else f"the replication slot is at {lsn_text(confirmed)} already",
                data=_GONE,
                remedy=lost.remedy if lost is not None else "Let nobody else read or advance the slot",
                source=self._source,
                position=str(position),
            )

    def after(self, position: WalPosition, why: Reason) -> WalPosition:
        """As early as no change comes that was read before, and none that the server can't give."""
        oldest = self._facts.position(self._confirmed())
        if isinstance(why, PositionPurged):
            return oldest
        if isinstance(why, Diverged) and why.common is not None:
            return why.common if why.common.lsn > oldest.lsn else oldest
        return self.end()

    def stored(self, position: changes_pb2.Position) -> WalPosition:
        """On the server's own timeline, where that is known to go on from there."""
        try:
            return self._here(from_proto(position))
        except PositionSyntaxError as wrong:
            raise PositionInvalid(
                "reading a committed position",
                f"it can't be used on this server: {wrong}",
                data="Nothing was read",
                remedy=f"Let the source's tables begin anew: menura sync resync {self._source} --all",
                source=self._source,
            ) from wrong

    def place_of(self, position: changes_pb2.Position) -> WalPosition:
        try:
            return from_proto(position)
        except PositionSyntaxError:  # none was named
            return self.end()

    def _here(self, position: WalPosition) -> WalPosition:
        """A server that is promoted sends on, and what it sends is read as of its former timeline until that is seen.

        Where nothing was read behind the end of that timeline, its end is as good a place.
        """
        facts = self._facts
        if (position.system, position.database) != (facts.system, facts.database_oid):
            return position
        ended = self._switches().get(position.timeline) if position.timeline < facts.timeline else None
        if ended is None:
            return position
        if position.lsn <= ended or self._is_read_from(position, ended):
            return replace(position, timeline=facts.timeline)
        if position.last is not None and position.last.end_lsn <= ended:
            return replace(position, timeline=facts.timeline, lsn=ended)
        return position

    def timeline_of(self, lsn: int) -> int:
        """That of the server's own that has the place."""
        switches = self._switches() if self._facts.timeline > 1 else {}
        return min((timeline for timeline, ended in switches.items() if lsn < ended), default=self._facts.timeline)

    # --- the server

    def check_server(self, position: WalPosition, *, was_read: bool = True) -> None:
        """Whether the position is in this server's log, without regard to the slot. Raises `SourceRebuilt`."""
        facts = self._facts
        if position.system != facts.system:
            raise self._rebuilt(position, f"the server's system identifier is {facts.system}, not {position.system}")
        if position.database != facts.database_oid:
            raise self._rebuilt(position, f"the database is another one under its name (oid {facts.database_oid})")
        if position.timeline > facts.timeline:
            found = f"the server is on timeline {facts.timeline}, what was read is of {position.timeline}"
            raise self._diverged(position, found, None)
        if position.timeline < facts.timeline:
            ended = self._switches().get(position.timeline)
            found = f"timeline {position.timeline}, of which it is,"
            if ended is None:
                raise self._diverged(position, f"{found} is none that the server comes from", None)
            if position.lsn > ended:
                common = facts.position(ended)
                raise self._diverged(position, f"{found} ends at {common} for the server", common)
        elif position.lsn > self._end_lsn:
            found = f"the server's log ends at {lsn_text(self._end_lsn)}"
            if was_read:
                raise self._diverged(position, found, self.end())
            raise PositionInvalid(
                DOING,
                found,
                data="Nothing was read",
                remedy="Name an earlier position",
                source=self._source,
                position=str(position),
            )
        elif other := self._other_history(position):
            raise self._diverged(position, other, None)

    def offer(self, position: WalPosition, why: SourceRebuilt) -> config_pb2.OtherServer:
        """The server that is there, as an operator sees it who may accept it."""
        facts = self._facts
        names = f"system {facts.system}, database {facts.database_oid}, timeline {facts.timeline}"
        offered = config_pb2.OtherServer(
            identity=hashlib.sha256("\n".join((names, str(position), type(why).code)).encode()).hexdigest(),
            server=f"{names}, PostgreSQL {facts.version_text}",
            former_server=f"system {position.system}, database {position.database}, timeline {position.timeline}",
            lake_position=str(position),
            oldest_position=lsn_text(self.confirmed_lsn) if self.confirmed_lsn is not None else str(self.end()),
            end_position=str(self.end()),
            goes_on_at=str(self.after(position, why)) if self.confirmed_lsn is not None else str(self.end()),
        )
        if isinstance(why, Diverged) and why.common is not None:
            offered.lacking = f"changes after {why.common} up to {position}"
        return offered

    def _confirmed(self) -> int:
        return self.confirmed_lsn if self.confirmed_lsn is not None else self._end_lsn

    def _rebuilt(self, position: WalPosition, found: str) -> SourceRebuilt:
        return SourceRebuilt(
            DOING,
            f"{found}: the server was made anew, or is another one",
            data=_UNREAD,
            remedy=self._accept(),
            source=self._source,
            position=str(position),
        )

    def _diverged(self, position: WalPosition, found: str, common: WalPosition | None) -> Diverged:
        error = Diverged(
            DOING,
            f"{found}: it was restored from an older copy, or took the place of another one before it had all changes",
            data=f"{_UNREAD}, also of the changes that the server lacks",
            remedy=self._accept(),
            source=self._source,
            position=str(position),
        )
        error.common = common
        return error

    def _accept(self) -> str:
        return (
            f"If it is the right server, see what following it would change: menura sources accept {self._source}; if"
            f" not, name the right one in sources.{self._source} of the agent's configuration and restart the agent"
        )
