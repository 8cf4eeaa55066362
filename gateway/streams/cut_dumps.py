"""What a source's cuts say of its dumps: their beginning, the chunks that become visible, their end.

Comes in: a CutEnd's events and chunk references. Goes out: the events that count, and the chunks with their number.
What a cut may say is checked against the registry and against what is pending, since the lake believes it:

- A dump begins once, and only one that is desired; else its DUMP_STARTED is left out.
- A chunk's number is not below its dump's start, nor above what was committed before: a chunk that claimed a later
  number would hide changes. One that is not pending, or out of turn in its range, is left out: the ledger then does
  not move, and its range is read again.
- A dump ends (DUMPED) when the ledger has all its ranges. So the cuts before are committed first, then the ledger is
  asked. An end that comes too early would remove rows that were not read.
- A verification begins and ends like a dump, by VERIFICATION_STARTED and VERIFIED; neither removes a row.
- A repair by REPAIR_STARTED and REPAIRED; what that removes are rows of the ranges that were ordered.
- A whole table's DUMPED and its chunk come together or not at all: alone, it would empty the table.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from menura.change_batch import landed_column
from menura.landing import LandedChunk, LandedEvent, LandedFile, LandedRepair
from menura.naming import TableName
from menura.v1.changes_pb2 import ChunkRef, CutEnd

from gateway.errors import NOTHING_LOST, ChunksLost, GatewayError, OutOfSequence, PayloadInvalid, TableNotDesired
from gateway.landing.chunks import PendingChunk
from gateway.landing_parts import LandingParts
from gateway.registry import DumpDesired, SourceKey
from gateway.wire.translation import table_name

logger = logging.getLogger(__name__)

DUMP_STARTED, DUMPED = "DUMP_STARTED", "DUMPED"
VERIFICATION_STARTED, VERIFIED = "VERIFICATION_STARTED", "VERIFIED"
REPAIR_STARTED, REPAIRED = "REPAIR_STARTED", "REPAIRED"
_BEGINS = (DUMP_STARTED, VERIFICATION_STARTED, REPAIR_STARTED)
_ENDS = (DUMPED, VERIFIED, REPAIRED)
#: of one cut; more than can be pending
MAX_REFS = 4096
#: of a log entry, about, for each file and each chunk
FILE_ENTRY_BYTES = 500
#: for each leaf and each column of a digest
LEAF_ENTRY_BYTES = 200
NAME_ENTRY_BYTES = 100
#: ... and of a leaf's column
HASH_ENTRY_BYTES = 11
DOING = "reading a cut's dumps"


@dataclass(frozen=True, slots=True)
class NamedChunks:
    """Of one cut; `settle` is owed to `landing.chunks` for them."""

    pending: tuple[PendingChunk, ...] = ()
    landed: tuple[LandedChunk, ...] = ()
    files: tuple[LandedFile, ...] = ()

    def entry_bytes(self) -> int:
        """About what they take of a log entry."""
        bounds = sum(len(chunk.lower) + len(chunk.upper) + len(chunk.position) for chunk in self.landed)
        digests = [chunk.digest for chunk in self.landed if chunk.digest is not None]
        bounds += sum(LEAF_ENTRY_BYTES * len(each.leaves) + NAME_ENTRY_BYTES * len(each.columns) for each in digests)
        bounds += sum(len(leaf.key) + HASH_ENTRY_BYTES * len(leaf.columns) for each in digests for leaf in each.leaves)
        return bounds + FILE_ENTRY_BYTES * (len(self.landed) + len(self.files))


@dataclass(slots=True)
class CutDumps:
    """For the cuts of one run of a source."""

    key: SourceKey
    #: of the agent, for its log lines
    owner: str
    session: str
    parts: LandingParts
    tables: Collection[TableName]
    #: as the registry said last
    _desired: dict[str, DumpDesired] = field(default_factory=dict)
    #: by dump, of events that passed here
    _started: dict[str, int] = field(default_factory=dict)

    async def admit(
        self, end: CutEnd, events: tuple[LandedEvent, ...], settle: Callable[[], Awaitable[None]]
    ) -> tuple[LandedEvent, ...]:
        """The events that count; `settle` returns when all cuts before are committed."""
        if len(end.chunks) > MAX_REFS:
            raise PayloadInvalid(DOING, f"{len(end.chunks)} chunks", data=NOTHING_LOST, source=str(self.key))
        of_dumps = [event for event in events if event.dump]
        if any(event.kind in _ENDS for event in of_dumps):
            await settle()
        if of_dumps or any(not self._start_of(ref.dump) for ref in end.chunks):
            desired = await self.parts.ask((self.key.tenant, self.key.source), self.parts.registry.dumps, self.key)
            self._desired = {order.dump: order for order in desired.dumps}
        left_out = [event for event in of_dumps if not self._counts(event)]
        for event in left_out:
            words = "event of a dump ignored: source=%s dump=%s kind=%s: it is over, or has begun before"
            self._log(words, self.key, event.dump, event.kind)
        return tuple(event for event in events if event not in left_out)

    def name(self, end: CutEnd, events: Sequence[LandedEvent], after_gsn: int) -> NamedChunks:
        """Take the chunks that the cut names; never waits. `after_gsn` is where the cut before ended."""
        wholes = {event.dump: event for event in events if event.kind == DUMPED and event.removes_rows}
        found = [(ref, self._find(ref, wholes.get(ref.dump), after_gsn, end.last_gsn)) for ref in end.chunks]
        here = {chunk.landed.dump for _, chunk in found if chunk is not None and chunk.is_whole}
        for dump, event in wholes.items():
            if dump not in here:
                self.parts.pending_chunks.begin_again(self.key)
                raise self._at(
                    (event.database, event.table),
                    ChunksLost(DOING, "a table's whole dump ends, and its rows are not here", data=NOTHING_LOST),
                )
        named: list[PendingChunk] = []
        landed: list[LandedChunk] = []
        files: list[LandedFile] = []
        for ref, chunk in found:
            if chunk is None or not self.parts.pending_chunks.name(self.key, chunk):
                self.parts.metrics.menura_dump_unknown_chunks_total += 1
                self._log("chunk ignored, it is not pending: source=%s dump=%s chunk=%s", self.key, ref.dump, ref.chunk)
                continue
            named.append(chunk)
            landed.append(replace(chunk.landed, gsn=ref.gsn))
            files += [replace(file, first_gsn=ref.gsn, last_gsn=ref.gsn) for file in chunk.files]
        return NamedChunks(tuple(named), tuple(landed), tuple(files))

    def _log(self, message: str, *values: object) -> None:
        self.parts.log_lines.write(logger, logging.WARNING, self.owner, message, *values)

    def _counts(self, event: LandedEvent) -> bool:
        order = self._desired.get(event.dump)
        table = event.database, event.table
        if order is not None and (order.database, order.table) != table:
            raise self._at(table, PayloadInvalid(DOING, "an event of another table's dump", data=NOTHING_LOST))
        if order is not None and event.kind not in _kinds_of(order):
            found = f"{event.kind} of a dump, a verification or a repair that has no such event"
            raise self._at(table, PayloadInvalid(DOING, found, data=NOTHING_LOST))
        if event.kind in _BEGINS:
            if order is None or self._start_of(event.dump):
                return False
            self._started[event.dump] = event.gsn
            return True
        if event.removes_rows:  # whether its chunk is here decides
            return True
        if order is None:
            return False
        if event.repaired is not None and not _is_ordered(event.repaired, order):
            raise self._at(table, PayloadInvalid(DOING, "a repair of other ranges than its own", data=NOTHING_LOST))
        removes_before = event.repaired.before_gsn if event.repaired is not None else event.removes_rows_before_gsn
        started = order.started_gsn if order.verifies else removes_before
        if order.plan is None or order.remaining or not 0 < order.started_gsn == started:
            found = f"a dump that ends with {len(order.remaining)} ranges left, rows before"
            found += f" {removes_before} gone, begun at {order.started_gsn}"
            self.parts.pending_chunks.begin_again(self.key)
            raise self._at(table, OutOfSequence(DOING, found, data=NOTHING_LOST))
        return True

    def _find(self, ref: ChunkRef, whole: LandedEvent | None, after_gsn: int, last_gsn: int) -> PendingChunk | None:
        table = table_name(ref.table)
        if table not in self.tables:
            raise self._at(table, TableNotDesired(DOING, f"a table that is not among the {len(self.tables)}"))
        chunk = self.parts.pending_chunks.find(self.key, self.session, ref.dump, ref.chunk)
        if chunk is None:
            return None
        if (chunk.landed.database, chunk.landed.table) != table:
            raise self._at(table, PayloadInvalid(DOING, "a chunk of another table", data=NOTHING_LOST))
        if chunk.is_whole:
            low, high = (whole.gsn + 1, last_gsn) if whole is not None else (1, 0)
        else:
            low, high = self._start_of(ref.dump), after_gsn
        if not 0 < low <= ref.gsn <= high:
            found = f"chunk {ref.chunk} with number {ref.gsn}, which may be {low} to {high}"
            raise self._at(table, OutOfSequence(DOING, found, data=NOTHING_LOST))
        return chunk

    def _start_of(self, dump: str) -> int:
        """Number of its DUMP_STARTED; 0 where there is none yet, as far as is known here."""
        order = self._desired.get(dump)
        return order.started_gsn if order is not None and order.started_gsn else self._started.get(dump, 0)

    def _at(self, table: TableName, error: GatewayError) -> GatewayError:
        error.source, error.database, error.table = str(self.key), *table
        return error


def _kinds_of(order: DumpDesired) -> tuple[str, str]:
    """Of the events that begin it and end it."""
    if order.verifies:
        return VERIFICATION_STARTED, VERIFIED
    return (REPAIR_STARTED, REPAIRED) if order.repairs else (DUMP_STARTED, DUMPED)


def _is_ordered(repaired: LandedRepair, order: DumpDesired) -> bool:
    """Whether it removes rows of the order's ranges, by the key of its plan, and of no others."""
    if order.focus is None or order.plan is None or not order.plan.key:
        return False
    key = tuple(map(landed_column, order.plan.key[: len(repaired.kinds)]))
    wanted = [(each.above, each.up_to) for each in order.focus.ranges]
    is_of_key = repaired.key == key and repaired.kinds == order.focus.kinds
    return is_of_key and [(each.above, each.up_to) for each in repaired.ranges] == wanted
