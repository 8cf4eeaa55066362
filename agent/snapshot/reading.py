"""The tasks of a dump: its plan, a chunk of a range, an unchunked snapshot, and the position at which it can end.

Comes in: a task and a source's `TableReader`. Goes out: messages on the catalog's stream, and to `scheduler` what was
read. Nothing is durable.

Of a verification the rows go no further than `digest`. It goes by ranges of the key's first columns, as far as the lake
orders them as the source does; a chunk then ends with all rows that are equal in them. A table without such a column is
read in one snapshot, as a chunk that is the whole table. So is one of which a chunk has shown rows without a place in
the lake's order, as a date of no calendar, from the next verification on, until the agent ends.

The table is looked at behind the low watermark. Had an ALTER come between the two, its event in the stream has a number
above the chunk's, and the chunk does not count; so it does not matter which of both definitions was found.
"""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from menura.key_values import Key
from menura.v1 import snapshot_pb2, stream_pb2

from agent.columnar.encode import SnapshotRows, encode_snapshot
from agent.positions import Position
from agent.runtime.credit import Credit
from agent.settings import SourceConfig
from agent.snapshot.chunk_size import ChunkSize
from agent.snapshot.coordinator import SnapshotCoordinator
from agent.snapshot.digest import (
    BucketDigest,
    ChunkDigest,
    FocusDigest,
    KeyUnordered,
    is_in_one_snapshot,
    key_in_one_snapshot,
)
from agent.snapshot.failures import ranges_unverifiable, unrepairable, unverifiable
from agent.snapshot.progress import ONLY_RANGE, Losses, SentChunk, SnapshotProgress
from agent.snapshot.reader import Rows, TableReader
from agent.snapshot.repair import RangesUnreadable, beginning, bounds_of, check_ranges, restrict
from agent.snapshot.scheduler import SnapshotScheduler
from agent.snapshot.tasks import SnapshotTask, TaskKind
from agent.snapshot.throttles import Throttles
from agent.table_positions import Table, name_message
from agent.veto.policy import Request

#: of the server, while the same rows are read: a third read could end it again
MOST_RESTARTS = 2
#: its clock and ours, and a wait for the answer
CLOCK_SECONDS = 3.0
#: of a range that is read again: all of them
MOST_FOCUS_ROWS = 1 << 40
#: that are equal in the columns by which a verification's ranges go: they are in one chunk
MOST_EQUAL_ROWS = 1_000_000

#: a digest, bytes as the server sent them, what is shown at least and at most, and the watermark's number
_Digested = tuple[snapshot_pb2.Digest, int, Position, Position, int]


class NotYet(Exception):
    """The task has to wait; says for what."""


class ServerEnds(Exception):
    """The server has ended each time that these rows were read, or the plan was made."""


class SnapshotReading:
    """Does tasks with one `TableReader`, in one thread."""

    def __init__(
        self,
        tables: TableReader[Any],
        config: SourceConfig,
        coordinator: SnapshotCoordinator,
        scheduler: SnapshotScheduler,
        credit: Credit,
        throttles: Throttles,
    ) -> None:
        self.tables = tables
        self._config = config
        self._coordinator = coordinator
        self._scheduler = scheduler
        self._credit = credit
        self._throttles = throttles
        self._sizes: dict[str, ChunkSize] = {}
        #: how long the task waited for credit
        self._credit_seconds = 0.0
        self._tasks: dict[TaskKind, Callable[[SnapshotTask], None]] = {
            TaskKind.PLAN: self._plan,
            TaskKind.CHUNK: self._chunk,
            TaskKind.UNCHUNKED: self._unchunked,
            TaskKind.END: self._end,
        }

    def do(self, task: SnapshotTask) -> None:
        """Raises what keeps it from being done."""
        self._credit_seconds = 0.0
        self._tasks[task.kind](task)

    def give_up(self, task: SnapshotTask) -> None:
        """The gateway forgets what came of the chunk."""
        if task.sent_batches:
            dropped = snapshot_pb2.ChunkDropped(dump=task.progress.dump, chunk=task.number)
            task.writer.send(stream_pb2.StreamResponse(chunk_dropped=dropped))

    # --- tasks

    def _plan(self, task: SnapshotTask) -> None:
        progress = task.progress
        self._check_restarts(progress.losses, MOST_RESTARTS + 1)
        self._check_allowed(progress.table)
        # a chunk that meets the same damage names its rows
        looks_at_rows = not progress.losses.restarts
        is_repeated = progress.is_repeated and progress.is_copy
        plan = self.tables.plan(progress.order, looks_at_rows=looks_at_rows, is_repeated=is_repeated)
        if progress.order.verifies:
            self._plan_verification(progress, plan)
        elif progress.repairs:
            self._plan_repair(progress, plan)
        task.writer.send(stream_pb2.StreamResponse(dump_plan=plan))
        self._scheduler.planned(task, by_key=bool(plan.key), above=self.tables.above(progress.table))

    def _plan_verification(self, progress: SnapshotProgress, plan: snapshot_pb2.DumpPlan) -> None:
        """By ranges of the key's columns that the lake orders as the source does; else in one snapshot. A focus has one
        range, and is read as it was found: by ranges, or by buckets."""
        table, order = progress.table, progress.order
        kinds = self.tables.key_kinds(table, tuple(plan.key)) if plan.key else ()
        if order.focus.ranges:
            try:
                check_ranges(order.focus, kinds)
            except RangesUnreadable as why:
                raise ranges_unverifiable(self._config.name, table, str(why)) from why
        elif not kinds or order.HasField("focus") or self._scheduler.is_unordered(table):
            plan.key[:] = key_in_one_snapshot(plan.key)
        if is_in_one_snapshot(plan.key) or order.HasField("focus"):
            del plan.ranges[:]
            plan.ranges.add()
        elif len(kinds) < len(plan.key):
            bounds = list(dict.fromkeys(beginning(part.upper, len(kinds)) for part in plan.ranges))
            del plan.ranges[:]
            for number, (lower, upper) in enumerate(pairwise(["", *bounds])):
                plan.ranges.add(number=number, lower=lower, upper=upper)

    def _plan_repair(self, progress: SnapshotProgress, plan: snapshot_pb2.DumpPlan) -> None:
        table, key = progress.table, tuple(plan.key)
        try:
            check_ranges(progress.order.focus, self.tables.key_kinds(table, key) if key else ())
        except RangesUnreadable as why:
            raise unrepairable(self._config.name, table, str(why)) from why
        restrict(plan, progress.order.focus, lambda values: self.tables.bounds(table, key, values))

    def _chunk(self, task: SnapshotTask) -> None:
        progress, part, tables = task.progress, task.part, self.tables
        assert part is not None
        self._check_allowed(progress.table)
        if not self._coordinator.is_streamed(progress.table):
            raise NotYet("the table's stream does not run")
        if not self._coordinator.has_watermark(progress.order.started_gsn):
            raise NotYet("no cut is committed since the stream began: the gateway is behind")
        self._check_restarts(part.losses, MOST_RESTARTS)
        throttle = self._throttles.of_task(task, tables.read_load)
        throttle.before_chunk()
        if progress.order.verifies and (
            is_in_one_snapshot(progress.order.plan.key) or progress.order.HasField("focus")
        ):
            self._whole_digest(task)
            return
        size = self._size_of(progress)
        allowed = throttle.most_rows(self._config.dump.chunk_seconds, size.row_bytes)
        most = max(1, int(min(size.rows, allowed)))
        limit = task.most_rows = part.narrowed(most)
        key = tuple(progress.order.plan.key)
        began = time.monotonic()
        with tables.chunk(progress.table) as low:
            gsn = self._watermark(task, low)
            rows = tables.read_chunk(progress.table, key, part.cursor, part.upper, limit, self._received(task))
            if progress.order.verifies:
                digest, count, upper, source_bytes = self._digest(task, rows, limit)
            else:
                digest, count = None, self._send(task, rows)
                upper, source_bytes = rows.upper, rows.source_bytes
            high = tables.high()
        seconds = time.monotonic() - began
        if limit == most:
            size.took(count, source_bytes, max(0.0, seconds - throttle.held_seconds - self._credit_seconds))
        is_last = count < limit or (part.upper != "" and upper == part.upper)
        end = part.upper if is_last else upper
        sent = SentChunk(task.number, part.number, part.cursor, end, is_last, count)
        message = _chunk_end(task, sent, source_bytes, low, seconds)
        if digest is not None:
            message.digest.CopyFrom(digest)
        if not self._scheduler.chunk_read(task, sent, gsn, tables.in_the_log(high), message):
            self.give_up(task)

    def _whole_digest(self, task: SnapshotTask) -> None:
        """The only chunk of a verification that reads its table in one snapshot, or the ranges of a focus."""
        progress, tables = task.progress, self.tables
        assert task.part is not None
        began = time.monotonic()
        reading = self._one_snapshot if is_in_one_snapshot(progress.order.plan.key) else self._focus_ranges
        try:
            message, source_bytes, low, high, gsn = reading(task)
        except KeyUnordered as unordered:
            self._scheduler.found_unordered(progress.table)
            raise unverifiable(self._config.name, progress.table, str(unordered)) from unordered
        rows = sum(leaf.rows for leaf in message.leaves)
        sent = SentChunk(task.number, task.part.number, task.part.cursor, "", True, rows)
        end = _chunk_end(task, sent, source_bytes, low, time.monotonic() - began)
        end.digest.CopyFrom(message)
        if not self._scheduler.chunk_read(task, sent, gsn, tables.in_the_log(high), end):
            self.give_up(task)

    def _one_snapshot(self, task: SnapshotTask) -> _Digested:
        table, order = task.progress.table, task.progress.order
        key = order.plan.key[1:]
        digest = FocusDigest(key, order.focus) if order.HasField("focus") else BucketDigest(key)
        with self.tables.snapshot(table) as shown:
            gsn = self._watermark(task, shown)
            rows = self.tables.read_table(table, self._received(task))
            for batch in self._metered(task, rows):
                digest.add(batch)
        return digest.message(), rows.source_bytes, shown, shown, gsn

    def _focus_ranges(self, task: SnapshotTask) -> _Digested:
        table, order = task.progress.table, task.progress.order
        key, source_bytes = tuple(order.plan.key), 0
        digest = FocusDigest(key, order.focus)
        with self.tables.chunk(table) as low:
            gsn = self._watermark(task, low)
            bounds = bounds_of(order.focus, lambda values: self.tables.bounds(table, key, values))
            for part, (lower, upper) in zip(order.focus.ranges, bounds, strict=True):
                rows = self.tables.read_chunk(table, key, lower, upper, MOST_FOCUS_ROWS, self._received(task))
                for batch in self._metered(task, rows):
                    digest.add(batch, part)
                source_bytes += rows.source_bytes
            high = self.tables.high()
        return digest.message(), source_bytes, low, high, gsn

    def _unchunked(self, task: SnapshotTask) -> None:
        progress, tables = task.progress, self.tables
        assert task.part is not None
        self._check_allowed(progress.table)
        self._check_restarts(task.part.losses, MOST_RESTARTS)
        self._throttles.of_task(task, tables.read_load).before_chunk()
        began = time.monotonic()
        with tables.snapshot(progress.table) as shown:
            rows = tables.read_table(progress.table, self._received(task))
            count = self._send(task, rows)
        sent = SentChunk(task.number, ONLY_RANGE, "", "", True, count)
        message = _chunk_end(task, sent, rows.source_bytes, shown, time.monotonic() - began)
        if not self._scheduler.unchunked_read(task, sent, tables.in_the_log(shown), message):
            self.give_up(task)

    def _end(self, task: SnapshotTask) -> None:
        if not self._coordinator.is_streamed(task.progress.table):
            raise NotYet("all is read, and the table's stream does not run")
        self._scheduler.all_read(task, self.tables.in_the_log(self.tables.high()))

    # --- what they have in common

    def _check_restarts(self, losses: Losses, most: int) -> None:
        """A damaged page may make a server end itself: no dump may do that to it again and again."""
        if losses.lost_on is not None and self.tables.started > losses.lost_on + CLOCK_SECONDS:
            losses.restarts += 1
        losses.lost_on = None
        if losses.restarts >= most:
            raise ServerEnds

    def _check_allowed(self, table: Table) -> None:
        """A rename may have brought other rows under the name, or the host another policy."""
        refusal = self._config.filter.veto.refusal(Request.DUMPS)
        if refusal is not None:
            raise refusal
        if not self._config.filter.verdict(*table).allowed:
            raise self._config.filter.denial(self._config.name, *table)

    def _size_of(self, progress: SnapshotProgress) -> ChunkSize:
        """Of the dump that is being read; another one begins anew."""
        size = self._sizes.get(progress.dump)
        if size is None:
            plan = progress.order.plan
            row_bytes = plan.estimated_bytes // plan.estimated_rows if plan.estimated_rows else None
            settings = self._config.dump
            size = ChunkSize(settings.chunk_seconds, settings.max_chunk_rows, row_bytes or None)
            self._sizes = {progress.dump: size}
        return size

    def _watermark(self, task: SnapshotTask, low: Position) -> int:
        """The number of a cut that the server is past; raises `NotYet`."""
        started = task.progress.order.started_gsn
        watermark = self._coordinator.watermark(task.progress.table, low, started)
        if watermark is not None:
            return watermark
        raise NotYet("the dump's server has not executed yet what the stream has committed: it lags behind")

    def _received(self, task: SnapshotTask) -> Callable[[int], None]:
        def received(size: int) -> None:
            task.progress.meter.add(0, size)
            self._throttles.of_task(task, self.tables.read_load).received(size)

        return received

    def _digest(self, task: SnapshotTask, rows: Rows, limit: int) -> tuple[snapshot_pb2.Digest, int, str, int]:
        """Of a verification's chunk; how many rows it has, where it ends and how many bytes came. It has all rows that
        are equal to the last one in the columns by which ranges go: it may end with its range, whose bound it then has.
        Raises `VerificationImpossible`."""
        progress, part, tables = task.progress, task.part, self.tables
        assert part is not None
        table, key = progress.table, tuple(progress.order.plan.key)
        try:
            kinds = tables.key_kinds(table, key)
            if not kinds:
                raise KeyUnordered("its key begins with another type now")  # noqa: TRY301  (told as the others are)
            digest = ChunkDigest(key, kinds, self._values(table, key, part.cursor))
            read_rows = sum(digest.add(batch) for batch in self._metered(task, rows))
            upper, source_bytes, is_full = rows.upper, rows.source_bytes, read_rows == limit
            if is_full and len(kinds) < len(key):
                upper = beginning(rows.upper, len(kinds))
                equal = tables.read_chunk(table, key, rows.upper, upper, MOST_EQUAL_ROWS, self._received(task))
                more = sum(digest.add(batch) for batch in self._metered(task, equal))
                if more == MOST_EQUAL_ROWS:
                    raise KeyUnordered(f"more than {more} rows are equal in {', '.join(key[: len(kinds)])}")  # noqa: TRY301
                read_rows, source_bytes = read_rows + more, source_bytes + equal.source_bytes
            end_of_range = self._values(table, key, part.upper)
            up_to = self._values(table, key, upper) if is_full else end_of_range
            message = digest.message(up_to)
        except KeyUnordered as unordered:
            self._scheduler.found_unordered(table)
            raise unverifiable(self._config.name, table, str(unordered)) from unordered
        return message, read_rows, part.upper if up_to == end_of_range else upper, source_bytes

    def _values(self, table: Table, key: tuple[str, ...], bound: str) -> Key:
        try:
            return self.tables.values(table, key, bound) if bound else ()
        except ValueError as wrong:
            raise KeyUnordered("a chunk of it ends with a value that no range can end with") from wrong

    def _metered(self, task: SnapshotTask, rows: Rows) -> Iterator[SnapshotRows]:
        for batch in rows:
            yield batch
            task.progress.meter.add(batch.row_count, 0)
            self._throttles.of_task(task, self.tables.read_load).rows(batch.row_count)

    def _send(self, task: SnapshotTask, rows: Rows) -> int:
        """How many they were."""
        count = 0
        for batch in self._metered(task, rows):
            self._send_batch(task, batch)
            count += batch.row_count
        return count

    def _send_batch(self, task: SnapshotTask, rows: SnapshotRows) -> None:
        encoded = encode_snapshot(rows, task.writer.compression)
        batch = snapshot_pb2.SnapshotBatch(
            dump=task.progress.dump,
            chunk=task.number,
            table=name_message(task.progress.table),
            schema_id=rows.schema_id,
            row_count=rows.row_count,
            rows_bytes=encoded.rows_bytes,
        )
        began = time.monotonic()
        task.sending_since_us = time.time_ns() // 1000
        self._credit.take(encoded.rows_bytes, task.cancelled)
        task.sent_batches += 1
        task.writer.send(stream_pb2.StreamResponse(snapshot_batch=batch), encoded.rows)
        task.sending_since_us = 0
        self._credit_seconds += time.monotonic() - began


def _chunk_end(
    task: SnapshotTask, sent: SentChunk, source_bytes: int, shown: Position, seconds: float
) -> snapshot_pb2.ChunkEnd:
    return snapshot_pb2.ChunkEnd(
        dump=task.progress.dump,
        chunk=sent.number,
        table=name_message(task.progress.table),
        range=sent.range,
        lower=sent.lower,
        upper=sent.upper,
        last_of_range=sent.last_of_range,
        row_count=sent.rows,
        source_bytes=source_bytes,
        read_at_us=time.time_ns() // 1000 - int(seconds * 1_000_000),
        read_us=int(seconds * 1_000_000),
        position=str(shown),
    )
