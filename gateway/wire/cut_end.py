"""From a CutEnd to what of it stands in the log entry; all that an agent may say at a cut's end is bounded here.

Comes in: the message, and what the cut follows. Goes out: positions, starts, stops and events as they land. Pure; every
fault is a `StreamError`. What passes here is committed, so the databases have to take it:

- Numbers leave room to count on from them: below `MAX_NUMBER`, and no further ahead of the rows than `MAX_STEP`.
- Tables are among those of the run, each started or stopped once and ahead at one place: so their number is bounded.
- A position has at most `MAX_POSITION_BYTES`, all different ones of a cut `MAX_POSITIONS_BYTES`.
- All of it together takes at most `MAX_ENTRY_BYTES` of its log entry.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass

from menura.bounds import MAX_INSTANT_US, MAX_NUMBER, MAX_POSITION_BYTES, MAX_STEP
from menura.landing import LandedAhead, LandedEvent, LandedPosition, LandedStart, LandedStop
from menura.naming import TableName
from menura.v1.changes_pb2 import CutEnd, Position

from gateway.errors import NOTHING_LOST, OutOfSequence, PayloadInvalid, TableNotDesired
from gateway.wire.table_events import landed_events
from gateway.wire.translation import landed_ahead, landed_position, landed_starts, landed_stops

DOING = "ending a cut"
MAX_POSITIONS_BYTES = 4 << 20
#: of the log entry that a cut shares with others; a reader takes entries of a limited size
MAX_ENTRY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Before:
    """What a cut follows."""

    #: of the run
    tables: Collection[TableName]
    #: of the cut before, and of the rows that have come since
    last_gsn: int
    highest_gsn: int
    last_transaction_id: int


@dataclass(frozen=True, slots=True)
class CutSaid:
    position: LandedPosition
    ahead: tuple[LandedAhead, ...]
    started: tuple[LandedStart, ...]
    stopped: tuple[LandedStop, ...]
    events: tuple[LandedEvent, ...]


def read_cut_end(end: CutEnd, before: Before, at_us: int) -> CutSaid:
    _check_numbers(end, before)
    _check_positions(end)
    said = CutSaid(
        position=landed_position(end.position),
        ahead=landed_ahead(end.ahead),
        started=landed_starts(end, before.last_gsn),
        stopped=landed_stops(end, at_us),
        events=landed_events(end, before.tables, before.last_gsn),
    )
    _check_tables("ahead of the stream", (table for part in said.ahead for table in part.tables), before.tables)
    _check_tables("started", ((start.database, start.table) for start in said.started), before.tables)
    _check_tables("stopped", ((stop.database, stop.table) for stop in said.stopped), before.tables)
    return said


def entry_bytes(said: CutSaid) -> int:
    """About what it takes of a log entry. Raises `PayloadInvalid` where that is more than any cut's share.

    May take long: for a worker thread.
    """
    lists = [list(map(asdict, part)) for part in (said.events, said.ahead, said.started, said.stopped) if part]
    size_bytes = len(said.position.text) + len(said.position.token)
    size_bytes += sum(len(json.dumps(each, ensure_ascii=False).encode()) for each in lists)
    if size_bytes > MAX_ENTRY_BYTES:
        raise _invalid(f"{size_bytes} bytes of facts in a log entry, at most {MAX_ENTRY_BYTES} are allowed")
    return size_bytes


def _check_numbers(end: CutEnd, before: Before) -> None:
    highest = max(before.last_gsn, before.highest_gsn)
    is_next = highest <= end.last_gsn <= min(highest + MAX_STEP, MAX_NUMBER)
    last = before.last_transaction_id
    if not is_next or not last <= end.last_transaction_id <= min(last + MAX_STEP, MAX_NUMBER):
        raise OutOfSequence(
            DOING,
            f"row number {end.last_gsn} and transaction {end.last_transaction_id} after {highest} and {last}",
            data=NOTHING_LOST,
        )
    for instant_us in (end.first_commit_timestamp_us, end.last_commit_timestamp_us):
        if not 0 <= instant_us <= MAX_INSTANT_US:
            raise _invalid("a commit at a time that no server has")


def _check_positions(end: CutEnd) -> None:
    sizes = {(each.kind, each.text, each.token): each.ByteSize() for each in _positions(end)}
    if max(sizes.values()) > MAX_POSITION_BYTES or sum(sizes.values()) > MAX_POSITIONS_BYTES:
        raise _invalid(
            f"positions of {sum(sizes.values())} bytes, one of {max(sizes.values())}; at most {MAX_POSITIONS_BYTES} and"
            f" {MAX_POSITION_BYTES} are allowed"
        )


def _positions(end: CutEnd) -> Iterator[Position]:
    yield end.position
    for parts in (end.ahead, end.started, end.stopped):
        yield from (part.position for part in parts)


def _check_tables(word: str, named: Iterable[TableName], tables: Collection[TableName]) -> None:
    """Raises `TableNotDesired`, or `PayloadInvalid` for one that comes twice."""
    seen: set[TableName] = set()
    for table in named:
        if table not in tables:
            raise TableNotDesired(
                DOING,
                f"a table {word} that is not among the {len(tables)} of the run",
                data=NOTHING_LOST,
                database=table[0],
                table=table[1],
            )
        if table in seen:
            raise _invalid(f"a table twice among those {word}")
        seen.add(table)


def _invalid(found: str) -> PayloadInvalid:
    return PayloadInvalid(DOING, found, data=NOTHING_LOST)
