"""Chunks of dumps between their landing and the cut that names them: who has which files, and in what order.

A chunk is *open* while its batches come, *pending* when its files are durable, *named* when a complete cut has it, and
then committed or lost with that cut. Open ones are `chunk_files`'s; everything from there on is here, in the process
and nowhere else: the ledger of committed chunks is the cut log's.

Two streams of a source meet here: the catalog stream adds, the stream of changes names and settles. All calls come from
the event loop and none waits, so each of these steps is whole:

- `add` puts a chunk at the end of its range. A chunk of a range begins where the last one ended; one that begins
  where a pending one began is a reading anew, and what was pending from there on is handed back to be deleted. Named
  ones are not read anew: the ledger would go on from where they end.
- `name` takes the first pending chunk of its range from the catalog stream, so that nobody else can delete it. Named
  ones so follow each other without a hole, which the ledger relies on: it keeps how far a range is.
- `settle` says what became of a named one. When it is lost, the chunks after it have a hole before them: none of the
  catalog stream is found any more, it ends, and both sides begin again at the ledger.
- `close` hands back what is pending when the catalog stream ends; named ones are their cuts'.

A catalog stream opens only when no named chunk of its source is unsettled (`settled`): what the registry says is left
of a dump is final then. A cut of another session of the agent names nothing: numbers mean something within one.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from menura.landing import LandedChunk, LandedFile

from gateway.errors import NOTHING_LOST, DumpNotDesired, OutOfSequence, PayloadInvalid
from gateway.registry import DumpDesired, SourceKey

#: of one source; its sender gets no new credit when half as many wait for a cut
MAX_PENDING_CHUNKS = 2048
#: of these, of the texts that say where they begin, end and were read
MAX_PENDING_BYTES = 64 << 20
#: numbers of a dump that were passed over and may still come
MAX_SKIPPED_NUMBERS = 4096
#: the range of a dump without a key: its one chunk is the whole table
WHOLE = 0


@dataclass(frozen=True, slots=True, eq=False)
class PendingChunk:
    #: its gsn is 0 before a cut names it
    landed: LandedChunk
    files: tuple[LandedFile, ...]
    #: the whole table
    is_whole: bool
    stream: "ClientChunks"


@dataclass(slots=True)
class _Range:
    #: where its next chunk begins
    lower: str
    is_read: bool = False
    #: in order; the ledger, or the last named one, ends where the first begins
    pending: list[PendingChunk] = field(default_factory=list)

    def replaced_by(self, lower: str) -> list[PendingChunk] | None:
        """What a chunk that begins there takes the place of; None when it can't begin there."""
        for place, chunk in enumerate(self.pending):
            if chunk.landed.lower == lower:
                return self.pending[place:]
        return [] if lower == self.lower and not self.is_read else None


@dataclass(slots=True)
class _Numbers:
    """Which numbers of a dump's chunks were used."""

    next: int
    skipped: set[int] = field(default_factory=set)

    def use(self, number: int) -> bool:
        """False when it can't be used any more."""
        if number in self.skipped:
            self.skipped.remove(number)
            return True
        if number < self.next:
            return False
        self.skipped.update(range(max(self.next, number - MAX_SKIPPED_NUMBERS), number))
        while len(self.skipped) > MAX_SKIPPED_NUMBERS:
            self.skipped.remove(min(self.skipped))
        self.next = number + 1
        return True


@dataclass(slots=True)
class _Dump:
    order: DumpDesired
    numbers: _Numbers
    #: by number; None before it is planned
    ranges: dict[int, _Range] | None = None


class ClientChunks:
    """The chunks and the dumps of one catalog stream."""

    def __init__(self, key: SourceKey, session: str, next_numbers: dict[str, int]) -> None:
        self.session = session
        #: set when the stream has to say or do something
        self.changed = asyncio.Event()
        self.committed: list[PendingChunk] = []
        self.is_lost = False
        self._key = key
        self._next_numbers = next_numbers
        self._dumps: dict[str, _Dump] = {}
        self._over: set[str] = set()
        self._open: set[tuple[str, int]] = set()
        self._pending: dict[tuple[str, int], PendingChunk] = {}
        self._pending_bytes = 0

    def __len__(self) -> int:
        """Pending ones."""
        return len(self._pending)

    @property
    def is_crowded(self) -> bool:
        """Whether so many wait for their cut that the agent had better wait too."""
        return len(self._pending) >= MAX_PENDING_CHUNKS // 2 or self._pending_bytes >= MAX_PENDING_BYTES // 2

    @property
    def open(self) -> int:
        """How many chunks' batches come side by side."""
        return len(self._open)

    def desire(self, orders: Sequence[DumpDesired]) -> list[PendingChunk]:
        """From now on these are all dumps; returns the pending chunks of those that are over."""
        wanted = {order.dump: order for order in orders}
        self._over |= self._dumps.keys() - wanted.keys()
        self._dumps = {dump: known for dump, known in self._dumps.items() if dump in wanted}
        for dump in self._next_numbers.keys() - wanted.keys():
            del self._next_numbers[dump]
        for dump, order in wanted.items():
            known = self._dumps.setdefault(dump, _Dump(order, _Numbers(self.next_chunk(order))))
            known.order = order
            if known.ranges is None and order.plan is not None:
                known.ranges = {part.number: _Range(part.lower) for part in order.remaining}
        self._open = {chunk for chunk in self._open if chunk[0] in wanted}
        return self._hand_back([chunk for chunk in self._pending.values() if chunk.landed.dump not in wanted])

    def read_whole(self, dump: str) -> None:
        """The agent's plan is to read the table in one chunk. Orders do not tell: nothing of it can be gone on with."""
        known = self._dumps[dump]
        if known.ranges is None:
            known.ranges = {WHOLE: _Range("")}

    def next_chunk(self, order: DumpDesired) -> int:
        """The first number that new chunks may have: above every one that this process has seen, committed or not."""
        return max(order.next_chunk, self._next_numbers.get(order.dump, 1), 1)

    def dumps(self) -> Collection[str]:
        return self._dumps.keys()

    def order(self, dump: str) -> DumpDesired | None:
        """None when it was desired and is over; raises `DumpNotDesired` when this stream never heard of it."""
        if dump in self._over:
            return None
        if dump not in self._dumps:
            raise DumpNotDesired(
                "reading a message about a dump",
                f"a dump that is not among the {len(self._dumps)} of the source",
                data=NOTHING_LOST,
                source=str(self._key),
            )
        return self._dumps[dump].order

    def receive(self, dump: str, chunk: int) -> None:
        """Rows of a chunk come. Raises `OutOfSequence` for a number that was used before."""
        if (dump, chunk) not in self._open:
            self._use(dump, chunk)
            self._open.add((dump, chunk))

    def end(self, landed: LandedChunk) -> None:
        """No more rows of it come, and what its end says fits; raises where it does not."""
        key = (landed.dump, landed.chunk)
        if key in self._open:
            self._open.remove(key)
        else:  # an empty one
            self._use(*key)
        self._replaced(landed)
        if len(self._pending) >= MAX_PENDING_CHUNKS or self._pending_bytes >= MAX_PENDING_BYTES:
            raise PayloadInvalid(
                "landing a chunk of a dump",
                f"{len(self._pending)} chunks that no cut names, with bounds of {self._pending_bytes} bytes",
                data=NOTHING_LOST,
                source=str(self._key),
            )

    def add(self, landed: LandedChunk, files: tuple[LandedFile, ...]) -> list[PendingChunk]:
        """Its files are durable; returns the chunks that it replaces."""
        replaced = self._replaced(landed)
        known = self._dumps[landed.dump]
        assert known.ranges is not None
        chunk = PendingChunk(landed, files, known.order.plan is None, self)
        self._hand_back(replaced)
        range_ = known.ranges[landed.range]
        range_.pending.append(chunk)
        range_.lower, range_.is_read = landed.upper, landed.last_of_range
        self._pending[landed.dump, landed.chunk] = chunk
        self._pending_bytes += _text_bytes(landed)
        return replaced

    def drop(self, dump: str, chunk: int) -> list[PendingChunk]:
        """The agent has given it up; returns what is pending of it and of the later ones of its range."""
        self._open.discard((dump, chunk))
        pending = self._pending.get((dump, chunk))
        if pending is None:
            return []
        return self._hand_back(self._replaced(pending.landed))

    def find(self, dump: str, chunk: int) -> PendingChunk | None:
        """None also once a named one was lost: those after it have a hole before them."""
        return None if self.is_lost else self._pending.get((dump, chunk))

    def name(self, chunk: PendingChunk) -> bool:
        """Take it out; False where it is not pending, or not the first of its range."""
        landed = chunk.landed
        known = self._dumps.get(landed.dump)
        if known is None or known.ranges is None:
            return False
        range_ = known.ranges[landed.range]
        if not range_.pending or range_.pending[0] is not chunk:
            return False
        del range_.pending[0]
        del self._pending[landed.dump, landed.chunk]
        self._pending_bytes -= _text_bytes(landed)
        self.changed.set()
        return True

    def close(self) -> list[PendingChunk]:
        """Nothing can be named any more; returns what was pending."""
        return self._hand_back(list(self._pending.values()))

    def _use(self, dump: str, chunk: int) -> None:
        numbers = self._dumps[dump].numbers
        if not numbers.use(chunk):
            raise OutOfSequence(
                "landing a chunk of a dump",
                f"chunk {chunk} again, or one below {numbers.next} that was passed over long ago",
                data=NOTHING_LOST,
                source=str(self._key),
            )
        self._next_numbers[dump] = numbers.next

    def _replaced(self, landed: LandedChunk) -> list[PendingChunk]:
        known = self._dumps[landed.dump]
        if known.ranges is None:
            raise self._out_of_sequence(landed, "of a dump that has no plan yet")
        range_ = known.ranges.get(landed.range)
        if range_ is None:
            raise self._out_of_sequence(landed, f"of range {landed.range}, of which nothing is left to read")
        replaced = range_.replaced_by(landed.lower)
        if replaced is None:
            raise self._out_of_sequence(landed, f"of range {landed.range} that does not begin where one before it ends")
        return replaced

    def _hand_back(self, chunks: Sequence[PendingChunk]) -> list[PendingChunk]:
        """They are pending no more; those of a range are its last ones, in order."""
        for chunk in reversed(chunks):
            landed = chunk.landed
            del self._pending[landed.dump, landed.chunk]
            self._pending_bytes -= _text_bytes(landed)
            known = self._dumps.get(landed.dump)
            if known is not None and known.ranges is not None:
                range_ = known.ranges[landed.range]
                range_.pending.remove(chunk)
                range_.lower, range_.is_read = landed.lower, False
        return list(chunks)

    def _out_of_sequence(self, landed: LandedChunk, found: str) -> OutOfSequence:
        return OutOfSequence(
            "landing a chunk of a dump",
            f"chunk {landed.chunk} {found}",
            data=NOTHING_LOST,
            source=str(self._key),
            database=landed.database,
            table=landed.table,
        )


def _text_bytes(chunk: LandedChunk) -> int:
    digest = chunk.digest
    of_digest = 0
    if digest is not None:
        of_digest = sum(len(name) + 100 for name, _ in digest.columns)
        of_digest += sum(100 + len(leaf.key) + 11 * len(leaf.columns) for leaf in digest.leaves)
    return len(chunk.lower) + len(chunk.upper) + len(chunk.position) + of_digest


class PendingChunks:
    """Of all sources of a gateway."""

    def __init__(self) -> None:
        self._streams: dict[SourceKey, ClientChunks] = {}
        self._next_numbers: dict[SourceKey, dict[str, int]] = {}
        self._unsettled: Counter[SourceKey] = Counter()
        self._moved = asyncio.Event()

    async def settled(self, key: SourceKey) -> None:
        """Wait until it is known of each named chunk whether it is committed."""
        while self._unsettled[key]:
            await self._moved.wait()

    def open(self, key: SourceKey, session: str) -> ClientChunks:
        """A catalog stream begins. The one before it has been closed."""
        assert key not in self._streams
        stream = ClientChunks(key, session, self._next_numbers.setdefault(key, {}))
        self._streams[key] = stream
        return stream

    def close(self, key: SourceKey, stream: ClientChunks) -> list[PendingChunk]:
        """It ends; returns the chunks that no cut has named."""
        del self._streams[key]
        if not self._next_numbers[key]:
            del self._next_numbers[key]
        return stream.close()

    def find(self, key: SourceKey, session: str, dump: str, chunk: int) -> PendingChunk | None:
        """A pending chunk as a cut of that session would name it."""
        stream = self._streams.get(key)
        return stream.find(dump, chunk) if stream is not None and stream.session == session else None

    def name(self, key: SourceKey, chunk: PendingChunk) -> bool:
        """A cut takes it, if it is the next of its range; from then on `settle` is owed."""
        if not chunk.stream.name(chunk):
            return False
        self._unsettled[key] += 1
        return True

    def begin_again(self, key: SourceKey) -> None:
        """Its catalog stream ends, and the next one begins at the ledger."""
        stream = self._streams.get(key)
        if stream is not None:
            stream.is_lost = True
            stream.changed.set()

    def settle(self, key: SourceKey, chunks: Sequence[PendingChunk], *, is_committed: bool) -> None:
        """A cut that named them is committed, or is not."""
        for chunk in chunks:
            if is_committed:
                chunk.stream.committed.append(chunk)
            else:
                chunk.stream.is_lost = True
            chunk.stream.changed.set()
        self._unsettled[key] -= len(chunks)
        if not self._unsettled[key]:
            del self._unsettled[key]
        self._moved.set()
        self._moved = asyncio.Event()
