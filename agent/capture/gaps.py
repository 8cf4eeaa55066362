"""Tables that can't go on where they are, since the source's log from there on is gone: where they go on instead.

Comes in: such tables, or those that somebody has moved ahead (`Altered`), why they can't go on, and the policy for rows
that a server changed without logging them.
Goes out: for each table an event of the gap, which has a dump ordered that brings its rows as they are now; by the
policy `note` one that has none ordered; by `stop` the table's stop. All of it is durable with the start cut, which is
the first one behind the gap.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic

from menura.change_batch import MAX_EVENTS_BYTES
from menura.errors import printable
from menura.naming import command_table
from menura.v1 import changes_pb2

from agent.capture.source import Reason
from agent.errors import PositionInvalid, PositionPurged, SourceRebuilt
from agent.positions import P
from agent.settings import SourceConfig
from agent.table_positions import P_co, Stop, Table, name_message
from agent.unlogged import UnloggedChanges

#: of a position in an event
MOST_POSITION_CHARS = 1_000
#: of the words that say why
MOST_CHARS = 4_000
#: of the start cut's events; the rest is for those of dumps
MOST_BYTES = MAX_EVENTS_BYTES // 2


@dataclass(frozen=True, slots=True)
class Altered:
    """Somebody has altered a table's position."""

    #: in their words
    why: str

    @property
    def found(self) -> str:
        return f"the table's position was altered: {printable(self.why)}"


@dataclass(frozen=True, slots=True)
class Gap(Generic[P_co]):
    """What a table has not got."""

    table: Table
    #: up to where it was read
    before: P_co
    #: from where it goes on
    after: P_co
    why: Reason | Altered


@dataclass(slots=True)
class Closed(Generic[P]):
    """What becomes of gaps."""

    positions: dict[Table, P] = field(default_factory=dict)
    started: list[changes_pb2.TableStarted] = field(default_factory=list)
    #: without numbers
    events: list[changes_pb2.TableEvent] = field(default_factory=list)
    stopped: list[Stop[P]] = field(default_factory=list)


def close(gaps: Iterable[Gap[P]], config: SourceConfig) -> Closed[P]:
    """By the policy; where somebody has accepted another server, every table is to be read again.

    No policy stops a table whose position was altered. More tables than a cut has room for stop, and say so.
    """
    closed: Closed[P] = Closed()
    size_bytes = 0
    for gap in gaps:
        policy = config.unlogged.of(*gap.table)
        is_wanted = isinstance(gap.why, Altered)
        is_accepted = isinstance(gap.why, SourceRebuilt) or (is_wanted and policy is UnloggedChanges.STOP)
        texts = GapTexts(str(gap.before), str(gap.after), gap.why.found)
        event = gap_event(gap.table, texts, config, always_rereads=is_accepted)
        size_bytes += event.ByteSize()
        stops = policy is UnloggedChanges.STOP and not is_accepted
        if stops or size_bytes > MOST_BYTES:
            closed.stopped.append(Stop(gap.table, gap.before, stop_of(gap.why, config, gap.table)))
            continue
        closed.positions[gap.table] = gap.after
        closed.events.append(event)
        closed.started.append(changes_pb2.TableStarted(table=name_message(gap.table), position=gap.after.to_proto()))
    return closed


@dataclass(frozen=True, slots=True)
class GapTexts:
    """Of an event; positions in the server's words."""

    before: str
    #: '' where it is not known yet
    after: str
    why: str


def gap_event(
    table: Table, texts: GapTexts, config: SourceConfig, *, always_rereads: bool = False
) -> changes_pb2.TableEvent:
    """Without a number; by the table's policy a dump is ordered for it."""
    before, after = shortened(texts.before), shortened(texts.after)
    until = f"between {before} and {after}" if after else f"after {before}"
    rereads = always_rereads or config.unlogged.of(*table) is UnloggedChanges.REREAD
    rereads = rereads and config.has_snapshots  # else somebody has to know for ever
    return changes_pb2.TableEvent(
        table=name_message(table),
        kind=changes_pb2.TableEvent.LOG_GAP,
        commit_timestamp_us=time.time_ns() // 1000,
        position=after or before,
        gap_from=before,
        gap_to=after,
        unlogged_changes=shortened(f"the source's log {until} is not in the lake: {texts.why}", MOST_CHARS),
        reread=rereads,
        most_rereads_per_hour=config.dump.max_rereads_per_hour if rereads else 0,
    )


def shortened(text: str, most: int = MOST_POSITION_CHARS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def stop_of(why: Reason | Altered, config: SourceConfig, table: Table) -> Reason | PositionInvalid:
    """The same as the table's own error."""
    if isinstance(why, Altered):
        return PositionInvalid(
            "going on behind a gap",
            "the positions of more tables were altered than one cut can tell of",
            data="The table's position is what it was",
            remedy=f"Alter it again: menura offset set {config.name} {command_table(*table)}",
            source=config.name,
            database=table[0],
            table=table[1],
        )
    start = f"menura sync start {config.name} {command_table(*table)} --from"
    again = f"Bring its rows as they are now: {start} dump"
    if not config.has_snapshots:
        again = f"Begin it anew with what the log still has: {start} oldest"
    return type(why)(
        why.doing,
        why.found,
        data="The lake holds the table as it was at this position",
        remedy=f"{again}. {why.remedy}" if isinstance(why, PositionPurged) and why.remedy else again,
        source=config.name,
        database=table[0],
        table=table[1],
        position=why.position,
    )
