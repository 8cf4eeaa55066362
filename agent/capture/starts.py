"""Where each table of a Replicate begins.

Comes in: the gateway's Replicate and what the source says about its log. Goes out: `Starts`: the positions to read
from, and what the start cut says. Tables whose log is gone go on behind the gap (`gaps`). A table whose start can't
be had stops alone. A table whose position somebody has altered begins at that one: what is before it and was read comes
again, what it skips is a gap. To the coordinator: which dumps these tables wait for, or begin with.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from menura.v1 import changes_pb2

from agent.capture.gaps import Altered, Gap, close, stop_of
from agent.capture.source import Reason, StartLog
from agent.errors import GatewayRefused, PositionInvalid, PositionPurged, SourceRebuilt
from agent.positions import P, PositionKind, PositionsUnordered
from agent.settings import SourceConfig
from agent.snapshot.coordinator import SnapshotCoordinator, TableStart, TaskTables
from agent.snapshot.watermarks import Watermark
from agent.table_positions import Stop, Table, name_message, names

MISSING_FROM_NOW = "the sync began at the log's end: rows that were not changed since then need a dump"
MISSING_FROM_POSITION = (
    "the sync began at the position that was asked for: rows that were not changed since then need a dump"
)
#: of a table that was synced before
FORMER_ROWS_STAY = "; rows of its former sync stay in the lake, also those that the source has deleted since"
FORMER_ROWS_WITHOUT_KEY = f"{FORMER_ROWS_STAY}, if the table has a key"


@dataclass(slots=True)
class Starts(Generic[P]):
    """Every table that takes part has an entry in `positions`."""

    positions: dict[Table, P] = field(default_factory=dict)
    started: list[changes_pb2.TableStarted] = field(default_factory=list)
    #: those of them that may bring rows once more; without numbers
    again: list[changes_pb2.TableStarted] = field(default_factory=list)
    stopped: list[Stop[P]] = field(default_factory=list)
    #: of tables whose log is gone; without numbers
    gaps: list[changes_pb2.TableEvent] = field(default_factory=list)
    #: tables that are read on from where they were
    kept: frozenset[Table] = frozenset()
    #: dumps that tables begin with, or wait for
    awaited: dict[str, Table] = field(default_factory=dict)
    #: of those, whose tables can't begin yet
    undecided: set[str] = field(default_factory=set)


def resolve(
    replicate: changes_pb2.Replicate,
    log: StartLog[P],
    config: SourceConfig,
    start_of: Callable[[str], P | TableStart],
    accepts: Callable[[P, SourceRebuilt], bool],
) -> Starts[P]:
    """`start_of`: where the stream of a table begins whose sync waits for a dump; `accepts`: whether somebody has
    accepted the server that is there instead.

    Raises a `SourceError` where the whole source can't begin, so `SourceRebuilt` unless `accepts` says otherwise.
    """
    starts: Starts[P] = Starts()
    gaps: list[Gap[P]] = []
    source = config.name
    stored: dict[Table, P] = {}
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
        if not config.filter.verdict(*table).allowed:
            if not begins:  # the gap begins here; a table that has not begun waits for a wider policy
                place = log.stored(ahead.get(table, replicate.position))
                starts.stopped.append(Stop(table, place, config.filter.denial(source, *table)))
        elif sync.WhichOneof("start") == "dump":
            starts.awaited[sync.dump] = table
            start = start_of(sync.dump)
            if start is TableStart.UNDECIDED:
                starts.undecided.add(sync.dump)
            else:
                _begin(starts, table, sync, log, config, start)
        elif sync.HasField("altered_from"):
            _go_on_elsewhere(starts, gaps, table, sync, log, config)
        elif begins:
            _begin(starts, table, sync, log, config)
        else:
            stored[table] = log.stored(ahead.get(table, replicate.position))
    _go_on(starts, gaps, stored, log, config, accepts)
    return starts


def begin_dumps(
    coordinator: SnapshotCoordinator,
    replicate: changes_pb2.Replicate,
    starts: Starts[P],
    position_kind: PositionKind,
    committed: P | None,
) -> None:
    """Before the start cut. `committed`: where the last cut ended; None: there is none, or it is of another kind."""
    for stop in starts.stopped:
        for dump in [dump for dump, table in starts.awaited.items() if table == stop.table]:
            coordinator.refuse(dump, stop.error)
    begun = [dump for dump, table in starts.awaited.items() if table in starts.positions]
    unchunked = [coordinator.unchunked(dump) for dump in begun]
    end = Watermark(replicate.next_cut - 1, replicate.next_gsn - 1, committed, {}) if committed is not None else None
    coordinator.begin(
        TaskTables(
            position_kind,
            replicate.next_cut,
            end,
            starts.kept,
            starts.awaited,
            frozenset(starts.undecided),
            bool(starts.positions),
            tuple(snapshot for snapshot in unchunked if snapshot is not None),
        )
    )


def _go_on(
    starts: Starts[P],
    gaps: list[Gap[P]],
    stored: dict[Table, P],
    log: StartLog[P],
    config: SourceConfig,
    accepts: Callable[[P, SourceRebuilt], bool],
) -> None:
    """Tables that have begun are read on from where they are, or behind what is gone or skipped (`gaps`)."""
    whys: dict[P, tuple[Reason, P] | None] = {}
    for table, position in stored.items():
        if position not in whys:
            why = _why_not(log, position, accepts)
            whys[position] = (why, log.after(position, why)) if why is not None else None
        found = whys[position]
        if found is None:
            starts.positions[table] = position
        else:
            gaps.append(Gap(table, position, after=found[1], why=found[0]))
    starts.kept = frozenset(starts.positions.keys() & stored.keys())
    closed = close(gaps, config)
    starts.positions |= closed.positions
    starts.started += closed.started
    starts.gaps += closed.events
    starts.stopped += closed.stopped


def _go_on_elsewhere(
    starts: Starts[P],
    gaps: list[Gap[P]],
    table: Table,
    sync: changes_pb2.TableSync,
    log: StartLog[P],
    config: SourceConfig,
) -> None:
    """A table whose position somebody has altered; what it had read is no matter for the server's log."""
    try:
        before = log.stored(sync.altered_from)
        position = log.parse(sync.position_text)
        log.check(position, was_read=False)
    except (PositionInvalid, PositionPurged, SourceRebuilt) as error:
        starts.stopped.append(Stop(table, log.place_of(sync.altered_from), _of_table(error, config, table)))
        return
    if _covers(before, position):
        starts.positions[table] = position
        starts.started.append(changes_pb2.TableStarted(table=name_message(table), position=position.to_proto()))
    else:
        gaps.append(Gap(table, before, position, Altered(sync.altered_why)))


def _covers(position: P, other: P) -> bool:
    """Whether it is certain that all of `other` was read."""
    try:
        return position.covers(other)
    except PositionsUnordered:
        return False


def _of_table(
    error: PositionInvalid | PositionPurged | SourceRebuilt, config: SourceConfig, table: Table
) -> PositionInvalid | Reason:
    error.database, error.table = table
    return error if isinstance(error, PositionInvalid) else stop_of(error, config, table)


def _why_not(log: StartLog[P], position: P, accepts: Callable[[P, SourceRebuilt], bool]) -> Reason | None:
    """None: the server can go on from there."""
    try:
        log.check(position)
    except PositionPurged as purged:
        return purged
    except SourceRebuilt as rebuilt:
        if not accepts(position, rebuilt):
            raise
        return rebuilt
    return None


def _begin(
    starts: Starts[P],
    table: Table,
    sync: changes_pb2.TableSync,
    log: StartLog[P],
    config: SourceConfig,
    with_dump: P | TableStart = TableStart.KEYED,
) -> None:
    missing, kind = "", sync.WhichOneof("start")
    try:
        match kind:
            case "oldest":
                oldest = log.oldest()
                position, missing = oldest.position, oldest.earlier_rows_missing
            case "now":
                position, missing = log.end(), MISSING_FROM_NOW
            case "dump" if not isinstance(with_dump, TableStart):
                position = with_dump
                log.check(position, was_read=False)
            case "dump":
                position = log.end()
            case "position_text":
                position, missing = log.parse(sync.position_text), MISSING_FROM_POSITION
                log.check(position, was_read=False)
            case _:
                position = log.stored(sync.position)
                log.check(position)
    except (PositionInvalid, PositionPurged, SourceRebuilt) as error:
        starts.stopped.append(Stop(table, log.place_of(sync.position), _of_table(error, config, table)))
        return
    may_repeat = sync.was_synced and kind in ("oldest", "position_text")
    if missing and sync.was_synced:
        missing += FORMER_ROWS_WITHOUT_KEY if may_repeat else FORMER_ROWS_STAY
    starts.positions[table] = position
    started = changes_pb2.TableStarted(
        table=name_message(table), position=position.to_proto(), earlier_rows_missing=missing
    )
    starts.started.append(started)
    if may_repeat:
        starts.again.append(started)
