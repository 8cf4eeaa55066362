"""What the gateway double knows of a source's dumps: orders, ranges, pending chunks, and what cuts have committed.

It checks what the real ledger relies on: chunks of a range follow each other, a whole table's chunk comes with its
DUMPED, a dump ends when nothing is left of it.
"""

from dataclasses import dataclass, field

import pyarrow as pa
from menura.change_batch import ChangeType
from menura.v1 import changes_pb2, config_pb2, error_pb2, snapshot_pb2

from tests.agent.wire import read_table

Table = tuple[str, str]
Event = changes_pb2.TableEvent


@dataclass
class Pending:
    """A chunk that no cut has named."""

    table: Table
    batches: list[pa.Table] = field(default_factory=list)
    schema_ids: set[str] = field(default_factory=set)
    end: snapshot_pb2.ChunkEnd | None = None


@dataclass
class Committed:
    """A chunk and the cut that named it."""

    dump: str
    number: int
    table: Table
    cut: int
    gsn: int
    end: snapshot_pb2.ChunkEnd
    schema_ids: set[str]
    rows: list[dict[str, object]]


@dataclass
class Dump:
    dump: str
    table: Table
    priority: int = 0
    paused: bool = False
    limits: snapshot_pb2.DumpLimits = field(default_factory=snapshot_pb2.DumpLimits)
    begins_in_seconds: int = 0
    verifies: bool = False
    focus: snapshot_pb2.Focus | None = None
    started_gsn: int = 0
    plan: snapshot_pb2.DumpPlan | None = None
    #: range: where its next chunk begins; a range that is done is not in it
    remaining: dict[int, str] = field(default_factory=dict)
    next_chunk: int = 1
    statuses: list[snapshot_pb2.DumpStatus] = field(default_factory=list)
    failed: error_pb2.Error | None = None
    #: the cut with DUMPED
    dumped_cut: int = 0
    #: of that event
    dumped: Event | None = None
    cancelled: bool = False

    @property
    def is_over(self) -> bool:
        return bool(self.failed or self.dumped_cut or self.cancelled)

    def order(self) -> snapshot_pb2.DumpOrder:
        uppers = {part.number: part.upper for part in self.plan.ranges} if self.plan else {}
        return snapshot_pb2.DumpOrder(
            dump=self.dump,
            table=config_pb2.TableName(database=self.table[0], table=self.table[1]),
            priority=self.priority,
            paused=self.paused,
            limits=self.limits,
            started_gsn=self.started_gsn,
            plan=self.plan if self.plan is not None and self.plan.key else None,
            remaining=[
                snapshot_pb2.DumpRange(number=number, lower=lower, upper=uppers[number])
                for number, lower in sorted(self.remaining.items())
            ],
            next_chunk=self.next_chunk,
            begins_in_seconds=self.begins_in_seconds,
            verifies=self.verifies,
            focus=self.focus,
        )


@dataclass
class DumpLedger:
    """Of one source."""

    generation: int = 1
    dumps: dict[str, Dump] = field(default_factory=dict)
    pending: dict[tuple[str, int], Pending] = field(default_factory=dict)
    chunks: list[Committed] = field(default_factory=list)
    #: references to chunks that were not pending
    ignored: list[changes_pb2.ChunkRef] = field(default_factory=list)
    dropped: list[snapshot_pb2.ChunkDropped] = field(default_factory=list)
    #: of all SnapshotBatches that came
    received_rows: int = 0

    def desired(self) -> snapshot_pb2.DesiredDumps:
        orders = [dump.order() for dump in self.dumps.values() if not dump.is_over]
        return snapshot_pb2.DesiredDumps(generation=self.generation, dumps=orders)

    def planned(self, plan: snapshot_pb2.DumpPlan) -> Dump | None:
        """The dump, if this is its first plan."""
        dump = self.dumps.get(plan.dump)
        if dump is None or dump.is_over or dump.plan is not None:
            return None
        dump.plan = plan
        dump.remaining = {part.number: part.lower for part in plan.ranges}
        assert len(dump.remaining) == len(plan.ranges) and bool(plan.key) == bool(plan.ranges)
        self.generation += 1
        return dump

    def batch(self, message: snapshot_pb2.SnapshotBatch) -> None:
        rows = read_table(message.rows, message.rows_bytes)
        assert rows.num_rows == message.row_count
        self.received_rows += message.row_count
        table = (message.table.database, message.table.table)
        pending = self.pending.setdefault((message.dump, message.chunk), Pending(table))
        assert pending.end is None and pending.table == table
        pending.batches.append(rows)
        pending.schema_ids.add(message.schema_id)

    def ended(self, end: snapshot_pb2.ChunkEnd) -> None:
        table = (end.table.database, end.table.table)
        pending = self.pending.setdefault((end.dump, end.chunk), Pending(table))
        assert pending.end is None
        came = sum(leaf.rows for leaf in end.digest.leaves) if end.HasField("digest") else 0
        assert came + sum(batch.num_rows for batch in pending.batches) == end.row_count
        pending.end = end

    def drop(self, message: snapshot_pb2.ChunkDropped) -> None:
        self.dropped.append(message)
        self.pending.pop((message.dump, message.chunk), None)

    def forget(self) -> None:
        """The client's stream is over."""
        self.pending.clear()

    def commit(self, end: changes_pb2.CutEnd) -> list[snapshot_pb2.ChunkLanded]:
        """What a cut says of dumps; returns the chunks that are committed with it."""
        committed = [landed for ref in end.chunks if (landed := self._chunk(ref, end.cut)) is not None]
        for event in end.events:
            if event.dump:
                self._event(event, end)
        return committed

    def _chunk(self, ref: changes_pb2.ChunkRef, cut: int) -> snapshot_pb2.ChunkLanded | None:
        pending = self.pending.pop((ref.dump, ref.chunk), None)
        dump = self.dumps[ref.dump]
        if pending is None or pending.end is None or dump.is_over:
            self.ignored.append(ref)
            return None
        assert ref.chunk not in {chunk.number for chunk in self.chunks if chunk.dump == ref.dump}, "a number twice"
        dump.next_chunk = max(dump.next_chunk, ref.chunk + 1)
        if dump.plan is not None and dump.plan.key:
            assert ref.gsn >= dump.started_gsn > 0
            assert dump.remaining[pending.end.range] == pending.end.lower, "a gap in a range"
            dump.remaining[pending.end.range] = pending.end.upper
            if pending.end.last_of_range:
                del dump.remaining[pending.end.range]
        rows = [row for batch in pending.batches for row in batch.to_pylist()]
        self.chunks.append(
            Committed(ref.dump, ref.chunk, pending.table, cut, ref.gsn, pending.end, pending.schema_ids, rows)
        )
        return snapshot_pb2.ChunkLanded(dump=ref.dump, chunk=ref.chunk)

    def _event(self, event: Event, end: changes_pb2.CutEnd) -> None:
        dump = self.dumps[event.dump]
        assert not dump.is_over or dump.cancelled or dump.failed
        self.generation += 1
        if event.kind in (Event.DUMP_STARTED, Event.VERIFICATION_STARTED, Event.REPAIR_STARTED):
            assert not dump.started_gsn
            dump.started_gsn = event.gsn
            return
        assert not dump.remaining
        dump.dumped_cut, dump.dumped = end.cut, event
        assert (event.kind == Event.VERIFIED) == dump.verifies
        assert (event.kind == Event.REPAIRED) == event.HasField("repaired") == (not dump.verifies and bool(dump.focus))
        if dump.verifies:
            assert not event.removes_rows and not event.removes_rows_before_gsn
        elif event.HasField("repaired"):
            assert event.repaired.before_gsn == dump.started_gsn > 0
        elif event.removes_rows:
            assert any(chunk.dump == event.dump and chunk.cut == end.cut for chunk in self.chunks), "rows are missing"
        else:
            assert event.removes_rows_before_gsn == dump.started_gsn > 0


def merged(
    changes: list[dict[str, object]], chunks: list[Committed], key: tuple[str, ...], stale_before: int = 0
) -> dict[tuple[object, ...], dict[str, object]]:
    """What chunks and changes leave of a table: a change decides over every chunk with a lower number.

    Rows with a number below `stale_before` do not count.
    """
    newest: dict[tuple[object, ...], tuple[int, dict[str, object] | None]] = {}
    for row in sorted(changes, key=lambda row: int(str(row["_gsn"]))):
        gsn = int(str(row["_gsn"]))
        if gsn < stale_before:
            continue
        gone = row["_change_type"] in (ChangeType.delete, ChangeType.update_preimage)
        newest[tuple(row[name] for name in key)] = (gsn, None if gone else _values(row))
    for chunk in sorted(chunks, key=lambda chunk: chunk.gsn):
        for row in chunk.rows if chunk.gsn >= stale_before else ():
            place = tuple(row[name] for name in key)
            if place not in newest or newest[place][0] <= chunk.gsn:
                newest[place] = (chunk.gsn, _values(row))
    return {place: row for place, (_, row) in newest.items() if row is not None}


def _values(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if not name.startswith("_") or name == "_unrepresentable"}
