"""A place in a log in memory: so many of its transactions."""

from dataclasses import dataclass

from menura.v1 import changes_pb2

from agent.positions import PositionKind, PositionsUnordered, PositionSyntaxError

KIND = "memory"


class MemoryPositionKind(PositionKind):
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class MemoryPosition:
    log: str
    offset: int

    def __str__(self) -> str:
        return f"{self.log}:{self.offset}"

    def covers(self, other: "MemoryPosition") -> bool:
        if not self.is_comparable(other):
            raise PositionsUnordered(f"{self} and {other}")
        return self.offset >= other.offset

    def is_comparable(self, other: "MemoryPosition") -> bool:
        return self.log == other.log

    def same_place(self, other: "MemoryPosition") -> bool:
        return self.covers(other) and other.covers(self)

    def meet(self, other: "MemoryPosition") -> "MemoryPosition":
        return other if self.covers(other) else self

    def is_of(self, kind: PositionKind) -> bool:
        return kind is MemoryPositionKind.OFFSET

    def to_proto(self) -> changes_pb2.Position:
        return changes_pb2.Position(kind=KIND, text=str(self))


def parse(text: str) -> MemoryPosition:
    """Raises `PositionSyntaxError`."""
    log, _, offset = text.partition(":")
    if not log or not (offset.isascii() and offset.isdigit()):
        raise PositionSyntaxError(f"{text!r} is not LOG:OFFSET")
    return MemoryPosition(log, int(offset))


def from_proto(position: changes_pb2.Position) -> MemoryPosition:
    """Raises `PositionSyntaxError`."""
    if position.kind != KIND:
        raise PositionSyntaxError(f"it is a position of a source of kind {position.kind or 'unknown'}")
    return parse(position.text)
