"""Positions in the write-ahead log of a PostgreSQL server, as a database of it is read.

Pure values, no I/O. Of one server all positions are ordered. Whether the server's timeline has a position of an older
one is nothing that the two numbers tell: who begins to read asks for the timeline's history.
"""

import json
import re
from dataclasses import astuple, dataclass, field, replace

from menura.v1 import changes_pb2

from agent.positions import PositionKind, PositionsUnordered, PositionSyntaxError

#: of all positions here
KIND = "postgresql-lsn"

_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SYSTEM = re.compile(r"[1-9][0-9]{0,19}")


class WalPositionKind(PositionKind):
    LSN = "lsn"


def lsn_text(lsn: int) -> str:
    """As a server writes it.

    >>> lsn_text(0x16B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The number of a server's text; raises `PositionSyntaxError`.

    >>> parse_lsn("16/B374D848") == 0x16B374D848
    True
    """
    found = _LSN.fullmatch(text.strip())
    if found is None:
        raise PositionSyntaxError(f"{text!r} is no LSN like 16/B374D848")
    return int(found[1], 16) << 32 | int(found[2], 16)


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """The last one that the server sent before a position: by it a server's log is known again."""

    #: where its commit record begins, and where it ends
    commit_lsn: int
    end_lsn: int
    xid: int
    #: since 1970; 0: not known
    commit_us: int


@dataclass(frozen=True, slots=True)
class WalPosition:
    """A place between two transactions, in the order of their commits."""

    lsn: int
    #: the server's system identifier, decimal; a standby has that of its primary
    system: str
    timeline: int
    #: its oid
    database: int
    #: none came between its end and `lsn`; None: not known
    last: LastTransaction | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return lsn_text(self.lsn)

    def covers(self, other: "WalPosition") -> bool:
        """Whether all that `other` has read is read here too; raises `PositionsUnordered` for different logs."""
        if not self.is_comparable(other):
            raise PositionsUnordered(f"{self} of server {self.system} and {other} of server {other.system}")
        return self.lsn >= other.lsn

    def is_comparable(self, other: "WalPosition") -> bool:
        """Whether `covers` can answer: both of one database of one server."""
        return self.system == other.system and self.database == other.database

    def same_place(self, other: "WalPosition") -> bool:
        return self.covers(other) and other.covers(self)

    def meet(self, other: "WalPosition") -> "WalPosition":
        """The earlier one; raises `PositionsUnordered`."""
        return other if self.covers(other) else self

    def is_of(self, kind: PositionKind) -> bool:
        return kind is WalPositionKind.LSN

    def at(self, lsn: int) -> "WalPosition":
        """Another place in the same log; of what was sent before it nothing is known."""
        return WalPosition(lsn, self.system, self.timeline, self.database)

    def behind(self, last: LastTransaction | None) -> "WalPosition":
        return replace(self, last=last)

    def to_proto(self) -> changes_pb2.Position:
        """The text is the LSN; the token says of which log."""
        token: dict[str, object] = {"system": self.system, "timeline": self.timeline, "database": self.database}
        if self.last is not None:
            token["last"] = astuple(self.last)
        return changes_pb2.Position(kind=KIND, text=str(self), token=json.dumps(token))


def parse(text: str, like: WalPosition) -> WalPosition:
    """A position in a user's words, in the log of `like`; raises `PositionSyntaxError`."""
    return like.at(parse_lsn(text))


def from_proto(position: changes_pb2.Position) -> WalPosition:
    """Raises `PositionSyntaxError`.

    >>> position = WalPosition(24023128, "7300000000000000001", 1, 16384)
    >>> from_proto(position.to_proto()) == position
    True
    """
    if position.kind != KIND:
        raise PositionSyntaxError(f"it is a position of a source of kind {position.kind or 'unknown'}")
    try:
        facts = json.loads(position.token)
        system, timeline, database = str(facts["system"]), int(facts["timeline"]), int(facts["database"])
        last = LastTransaction(*map(int, facts["last"])) if "last" in facts else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as broken:
        raise PositionSyntaxError(f"its token can't be read ({type(broken).__name__})") from broken
    if _SYSTEM.fullmatch(system) is None or not 0 < timeline < 1 << 32 or not 0 < database < 1 << 32:
        raise PositionSyntaxError("its token names no log")
    lsn = parse_lsn(position.text)
    if last is not None and not 0 <= last.commit_lsn < last.end_lsn <= lsn:
        raise PositionSyntaxError("its token names a last transaction that is not before it")
    return WalPosition(lsn, system, timeline, database, last)
