"""The cut that is being filled: what was sent in it, when it is due, and its end.

Comes in: the decoder's batches, what the coordinator has of dumps, and the clock. Goes out, through the `Sink`: batches
with their cut's number, and the cut's end. A cut ends only between two transactions. Nothing is durable here: a cut
that was not committed is made again from the log, with the same numbers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from menura.change_batch import MAX_EVENTS_BYTES
from menura.error_message import as_message
from menura.v1 import changes_pb2

from agent.capture.sink import Sink
from agent.capture.source import Decoder, ReadPosition
from agent.capture.stale_tables import StaleTables
from agent.capture.starts import Starts
from agent.positions import P, Position
from agent.runtime.requests import interval_seconds
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.table_positions import Stop, TablePositions, name_message

#: a cut without rows, when only the position has moved
POSITION_CUT_SECONDS = 10.0
#: rows that come together leave together: a cut with its first row ends no sooner
GATHER_SECONDS = 0.02
#: how old the position that heartbeats report may be
PUBLISH_SECONDS = 0.2
#: a wait for bytes is never longer, so that silence and interruptions are noticed
LONGEST_WAIT_SECONDS = 1.0
#: the same while a dump waits for its place in a cut
DUMP_WAIT_SECONDS = 0.05
SHORTEST_WAIT_SECONDS = 0.001


_OF_KEYS = (changes_pb2.TableEvent.FOREIGN_KEYS, changes_pb2.TableEvent.FOREIGN_KEYS_UNCHECKED)


#: whatever the gateway asks for
MOST_CUT_SECONDS, MOST_CUT_BYTES = 600.0, 4 << 30


@dataclass(frozen=True, slots=True)
class CutSettings:
    first_cut: int
    interval_seconds: float
    most_bytes: int
    #: without a byte for so long the connection counts as lost
    silence_seconds: float

    @classmethod
    def of(cls, replicate: changes_pb2.Replicate, silence_seconds: float) -> "CutSettings":
        """As the gateway asks, within bounds."""
        interval = interval_seconds(replicate.cut_interval_ms, 0.0, MOST_CUT_SECONDS)
        return cls(replicate.next_cut, interval, min(replicate.cut_bytes, MOST_CUT_BYTES), silence_seconds)


@dataclass(slots=True)
class _Cut:
    """The cut that is being filled."""

    number: int
    began_at: float
    first_row_at: float | None = None
    sent_rows: int = 0
    sent_bytes: int = 0
    stopped: list[Stop[Position]] = field(default_factory=list)
    events: list[changes_pb2.TableEvent] = field(default_factory=list)
    events_bytes: int = 0


class Cuts:
    """The cuts of one stream, one after the other."""

    def __init__(
        self,
        decoder: Decoder,
        table_positions: TablePositions[Position],
        read: ReadPosition,
        sink: Sink,
        coordinator: SnapshotCoordinator,
        stale: StaleTables,
        settings: CutSettings,
        clock: Callable[[], float],
    ) -> None:
        self._decoder = decoder
        self._table_positions = table_positions
        self._read = read
        self._sink = sink
        self._coordinator = coordinator
        self._stale = stale
        self._settings = settings
        self._clock = clock
        self._ended_at = read.position
        self._cut = _Cut(settings.first_cut, clock())
        #: when a cut last ended for its age, not for its size
        self._timed_at = -math.inf
        #: the cut before ended for its size: this one may be the rest of a backlog
        self._follows_full = False
        #: rows of the cut when they were last looked at, and since when they are so many
        self._rows, self._rows_since = 0, clock()

    @property
    def number(self) -> int:
        """Of the cut that is being filled."""
        return self._cut.number

    def wait_seconds(self) -> float:
        """How long the stream may wait for bytes."""
        longest = DUMP_WAIT_SECONDS if self._coordinator.is_busy else LONGEST_WAIT_SECONDS
        due_at = self._due_at()
        if due_at is None or self._decoder.stop_at_transaction_end:  # or the decoder itself says when
            return longest
        left = due_at - self._clock()
        return min(longest, max(SHORTEST_WAIT_SECONDS, left))

    def is_due(self) -> bool:
        """After each portion of bytes and each silence: is it time to end the cut?"""
        now = self._clock()
        cut = self._cut
        if cut.first_row_at is None and (
            self._decoder.pending_rows
            or cut.sent_rows
            or cut.events
            or (self._coordinator.is_busy and self._has_dumps())
        ):
            cut.first_row_at = now
        rows = self._decoder.pending_rows + cut.sent_rows
        if rows != self._rows:
            self._rows, self._rows_since = rows, now
        due_at = self._due_at()
        is_due = bool(cut.stopped) or (due_at is not None and now >= due_at)
        is_due = is_due or cut.sent_bytes + self._decoder.pending_bytes >= self._settings.most_bytes
        if not is_due and now - cut.began_at >= POSITION_CUT_SECONDS:
            self._read.publish()
            is_due = not self._read.position.same_place(self._ended_at)
            cut.began_at = now
        if not is_due and now - self._read.published_at >= PUBLISH_SECONDS:
            self._read.publish()
        return is_due

    def _has_dumps(self) -> bool:
        """Whether the cut would have something to say of dumps if it ended here."""
        self._read.publish()
        return self._coordinator.is_ready(self._read.position, self._table_positions)

    def _due_at(self) -> float | None:
        """At most one cut an interval ends for its age; after a calm, or a backlog, what is there leaves at once."""
        if self._cut.first_row_at is None:
            return None
        interval = self._settings.interval_seconds
        due_at = max(self._cut.first_row_at + min(GATHER_SECONDS, interval), self._timed_at + interval)
        return min(due_at, self._rows_since + GATHER_SECONDS) if self._follows_full else due_at

    def send_batches(self) -> None:
        cut = self._cut
        cut.sent_bytes += self._decoder.pending_bytes
        for batch in self._decoder.take_batches():
            cut.sent_rows += batch.row_count
            self._sink.send_batch(batch, cut.number)

    def begin(self, starts: Starts[P]) -> None:
        """The start cut: gaps of the log, and tables that could not begin. It has rows only of tables that begin with
        their unchunked dump; the resolved positions come with its `end`."""
        for event in starts.gaps:
            event.gsn = self._decoder.take_gsn()
            self.add_event(event)
        for start in starts.again:
            start.gsn = self._decoder.take_gsn()
        self.add_stop(*starts.stopped)
        for stop in starts.stopped:
            self._table_positions.stop(stop.table)

    def add_stop(self, *stops: Stop[Position]) -> None:
        """Tables that stop in this cut, which is then due at once."""
        self._cut.stopped.extend(stops)

    def add_event(self, event: changes_pb2.TableEvent) -> None:
        """Something that happened to a table other than a change of its rows."""
        self._cut.events.append(event)
        self._stale.heard(event)
        self._cut.events_bytes += event.ByteSize()
        if event.kind not in _OF_KEYS:  # neither rows nor columns changed
            self._coordinator.table_event(event)

    @property
    def has_many_events(self) -> bool:
        """Whether the cut has to end before the next statement: one more may not fit."""
        return self._cut.events_bytes > MAX_EVENTS_BYTES // 2

    def has_event_since(self, first_gsn: int) -> bool:
        return any(event.gsn >= first_gsn for event in self._cut.events)

    def end(self, started: Sequence[changes_pb2.TableStarted] = ()) -> None:
        """Send the cut's end, at the published position; its batches have been sent."""
        decoder = self._decoder
        decoder.stop_at_transaction_end = False
        due_at, now = self._due_at(), self._clock()
        is_full = self._cut.sent_bytes >= self._settings.most_bytes
        if not is_full and due_at is not None and now >= due_at:
            self._timed_at = now
        self._follows_full = is_full
        transactions, first_us, last_us = decoder.take_times()
        dumps = self._coordinator.end_cut(self._cut.number, self._read.position, self._table_positions, decoder)
        for event in dumps.events:
            self._stale.heard(event)
        end = changes_pb2.CutEnd(
            cut=self._cut.number,
            position=self._read.position.to_proto(),
            ahead=self._table_positions.ahead_messages(),
            started=started,
            stopped=[_stopped_message(stop) for stop in self._cut.stopped],
            last_gsn=decoder.next_gsn - 1,
            last_transaction_id=decoder.next_transaction_id - 1,
            transaction_count=transactions,
            first_commit_timestamp_us=first_us,
            last_commit_timestamp_us=last_us,
            events=[*sorted(self._cut.events, key=lambda event: event.gsn), *dumps.events],
            chunks=dumps.chunks,
        )
        self._sink.send_cut(end)
        self._read.last_commit_us = last_us or self._read.last_commit_us
        self._ended_at = self._read.position
        self._cut = _Cut(self._cut.number + 1, now)


def _stopped_message(stop: Stop[Position]) -> changes_pb2.TableStopped:
    return changes_pb2.TableStopped(
        table=name_message(stop.table), position=stop.position.to_proto(), error=as_message(stop.error)
    )
