"""One stream of changes: change batches in, durable cuts out, under credit.

Comes in: ChangeBatch and CutEnd of a source, in order. Goes out: Replicate, Credit, CutCommitted.

The stream is a sequence of *runs*. A run begins with a Replicate, made from what is committed and desired, under an
epoch of its own, and ends when the desired generation moves, when a newer stream of the source comes, or with the
stream. Messages of an older run are dropped. What a run has not committed is dropped with it: the agent reads it
again. Durable is only what `Committer` has committed; a kill at any place leaves files that no log entry names.

Every message passes one queue and one task, `_land`, which alone changes the run; blocking work goes to threads,
one call at a time. It waits for the store and the database, never for its agent. The credit that a sender was not
granted bounds the queue and what is in memory; what all streams hold together is bounded by `gateway.backlog`, and
nothing is read behind a large batch before that has landed.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from menura.bounds import MAX_NUMBER
from menura.error_message import as_message
from menura.instants import now_us
from menura.landing import LandedCut, LandedFile
from menura.naming import TableName
from menura.v1.changes_pb2 import ChangeBatch, CutCommitted, CutEnd
from menura.v1.error_pb2 import Error
from menura.v1.stream_pb2 import StreamRequest

from gateway.backlog import StreamQueue
from gateway.errors import (
    NOTHING_LOST,
    CutStalled,
    GatewayStopping,
    LandingFailed,
    NumbersSpent,
    OutOfSequence,
    SourceQuarantined,
    StreamError,
    TableNotDesired,
)
from gateway.landing.chunk_files import discard_files
from gateway.landing.committer import CompleteCut, blocked
from gateway.landing.parquet import CutFiles
from gateway.landing_parts import LandingJobs, LandingParts
from gateway.quotas import ERROR_ROWS
from gateway.registry import RegistryRefused, RegistryUnavailable, SourceCommitted, SourceKey
from gateway.stream import AgentStream
from gateway.stream_fence import superseded
from gateway.streams.cut_dumps import FILE_ENTRY_BYTES, CutDumps, NamedChunks
from gateway.tasks import ask_registry, finish, run_until_first
from gateway.wire.change_batch import check_sizes, read_batch
from gateway.wire.cut_end import Before, CutSaid, entry_bytes, read_cut_end
from gateway.wire.message import Frames, Received
from gateway.wire.translation import problem_from, replicate

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: complete cuts of one source that may wait for their commit; CutEnd costs no credit
MAX_UNCOMMITTED_CUTS = 64
#: committed cuts whose log entry is remembered for an agent that ends one again
MAX_REMEMBERED_CUTS = 1024

#: of a CutEnd that is read in a thread
LARGE_END_BYTES = 64 << 10

#: of `LandingHealth`
HEALTH_PART = "cut"


@dataclass(slots=True)
class _Run:
    generation: int
    epoch: int
    tables: frozenset[TableName]
    #: the cut that batches belong to now
    cut: int
    last_gsn: int
    last_transaction_id: int
    files: CutFiles
    dumps: CutDumps
    #: of each table the last cut with files of it, committed or of this run
    last_cuts: dict[TableName, int | None]
    #: of the open cut
    has_rows: bool = False


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A cut on its way into the log, and what it holds until it is known to be there."""

    cut: CompleteCut
    files: CutFiles
    chunks: NamedChunks


@dataclass(slots=True)
class Replication:
    stream: AgentStream
    key: SourceKey
    session: str
    #: asked at each cut, since the agent may learn it later
    flavor: Callable[[], str]
    parts: LandingParts
    superseded: asyncio.Event = field(default_factory=asyncio.Event)
    #: set when what is desired has another generation
    _desired_moved: asyncio.Event = field(default_factory=asyncio.Event)
    _jobs: LandingJobs = field(init=False)
    _run: _Run | None = None
    _queue: StreamQueue = field(init=False)
    _uncommitted: "deque[_Submitted]" = field(default_factory=deque)
    _moved: asyncio.Condition = field(default_factory=asyncio.Condition)
    _entries: "OrderedDict[int, int]" = field(default_factory=OrderedDict)
    #: the stream's `ready_seconds` when it was the agent's turn: it had said something, that was landed, or credit came
    _ready_before: float = 0.0

    def __post_init__(self) -> None:
        assert self.stream.key is not None
        owner, rows = self.stream.key.of_agent, self.parts.backlog.rows
        self._queue = StreamQueue(rows, owner, self.key, "receiving a change batch")
        self._jobs = LandingJobs(self.parts.landing, self.parts.metrics, self.key, owner, "writing a cut's files")

    async def serve(self) -> None:
        """Land until the agent leaves, a newer stream comes, or something fails."""
        await self.parts.fence.enter(self.key, self)
        self.parts.committer.watch(self.key)
        try:
            with self.parts.generations.following(self.key, self._desired_moved):
                await run_until_first(
                    self._receive(),
                    self._land(),
                    self._acknowledge(),
                    self.parts.lease.lost(self.key),
                    self._follow_desired(),
                    self._leave_when_superseded(),
                    self._leave_when_stalled(),
                )
        except LandingFailed as failed:
            self.parts.health.fails(self.key, HEALTH_PART)
            await self._record_problem(as_message(failed))
            raise
        finally:
            await finish(self._close())

    async def _receive(self) -> None:
        """From the network into the queue, as far as credit and the process's memory reach."""
        while await self._receive_next():
            continue

    async def _receive_next(self) -> bool:
        """False when the agent has ended the stream."""
        received = await self.stream.receive()
        self._begin_turn()
        if received is None:
            return False
        if received.message.WhichOneof("payload") != "change_batch":
            await self._queue.put(received)
            return True
        check_sizes(received.message.change_batch)
        await self._queue.put_batch(received)
        return True

    async def _land(self) -> None:
        await self._begin_run()
        self._grant(self.parts.config.credit_window_bytes)
        while True:
            await self._land_next(await self._queue.get())

    async def _land_next(self, received: Received | int) -> None:
        if isinstance(received, int):
            # What was noticed may be older than the run, as it is lower behind a database that was put back.
            if received != self._current().generation and await self._generation() != self._current().generation:
                await self._begin_run()
            return
        message = received.message
        payload = message.WhichOneof("payload")
        if payload == "change_batch":
            self._grant(await self._land_batch(message.change_batch, received.frames))
        elif payload == "cut_end":
            await self._end_cut(message.cut_end)
        else:
            self.stream.quota.rows.owe(ERROR_ROWS)
            await self._record_problem(message.error)
        self._queue.landed(received)
        self._begin_turn()

    async def _generation(self) -> int | None:
        """The desired one of now."""
        return (await self._ask(self.parts.registry.generations, [self.key])).get(self.key)

    async def _ask(self, call: Callable[..., T], *arguments: object) -> T:
        return await ask_registry(self.parts.runs, (self.key.tenant, self.key.source), call, *arguments)

    async def _begin_run(self) -> None:
        """Settle the run before, then tell the agent where to go on."""
        await self._wait_until_committed(0)
        if self._run is not None:
            self._grant(await self._jobs.run(self._run.files.discard))
            self._run = None
        config, registry, committer = self.parts.config, self.parts.registry, self.parts.committer
        self._check_goes_on(await self._ask(registry.committed, self.key))
        assigned = await self.parts.lease.take(self.key, self.session)
        epoch = assigned.epoch
        if assigned.needs_fence:
            await committer.fence(self.key, epoch)
        committed = await self._ask(registry.committed, self.key)
        self._check_goes_on(committed)  # so that what is desired is of where the log ends
        desired = await self._ask(registry.desired, self.key)
        last_cuts = await self._ask(registry.last_cuts, self.key)
        committer.begin(self.key, epoch, committed.cut, committed.last_gsn)
        tables = frozenset((table.database, table.table) for table in desired.tables)
        self._run = _Run(
            generation=desired.generation,
            epoch=epoch,
            tables=tables,
            cut=committed.cut + 1,
            last_gsn=committed.last_gsn,
            last_transaction_id=committed.last_transaction_id,
            files=self._new_files(epoch, committed.cut + 1),
            dumps=CutDumps(self.key, self.stream.owner, self.session, self.parts, tables),
            last_cuts=last_cuts,
        )
        self.stream.post(
            StreamRequest(replicate=replicate(desired, committed, epoch, config.cut_interval_ms, config.cut_bytes))
        )
        self.parts.log_lines.write(
            logger, logging.INFO, self.stream.owner,
            "command sent: %s: replicate: generation %s, epoch %s, cut %s, %s tables",
            self.stream.key, desired.generation, epoch, committed.cut + 1, len(desired.tables),
        )  # fmt: skip

    def _check_goes_on(self, committed: SourceCommitted) -> None:
        if committed.quarantine is not None:
            raise SourceQuarantined("beginning to replicate", committed.quarantine.message, source=str(self.key))
        if committed.is_blocked:
            raise blocked(self.key, "before it begins")
        if max(committed.last_gsn, committed.last_transaction_id) >= MAX_NUMBER:
            raise NumbersSpent(
                "beginning to replicate",
                f"row number {committed.last_gsn} and transaction {committed.last_transaction_id} are committed, and"
                " nothing can be counted on from there",
                data="What is committed stays",
                remedy="Give the source another name in the agent's configuration, and begin its tables there",
                source=str(self.key),
            )

    async def _land_batch(self, batch: ChangeBatch, frames: Frames) -> int:
        """Returns the credit that is free again."""
        run, metrics = self._current(), self.parts.metrics
        credit_bytes = frames.credit_bytes
        metrics.menura_landing_batches_total += 1
        metrics.menura_landing_received_bytes_total += frames.size_bytes
        if (batch.generation, batch.lease_epoch) != (run.generation, run.epoch) or batch.cut < run.cut:
            metrics.menura_landing_fenced_batches_total += 1
            return credit_bytes
        if batch.cut > run.cut:
            raise self._out_of_sequence("landing a change batch", f"cut {batch.cut}, cut {run.cut} is open")
        table = (batch.table.database, batch.table.table)
        if table not in run.tables:
            raise TableNotDesired(
                "landing a change batch",
                f"a table that is not among the {len(run.tables)} of generation {run.generation}",
                data=NOTHING_LOST,
                source=str(self.key),
                database=table[0],
                table=table[1],
            )
        run.has_rows = True
        work = partial(_land_in_files, batch, frames, run.last_gsn, run.files)
        resent_rows, released = await self._jobs.run_batch(self.parts.backlog.landing, frames, work)
        metrics.menura_landing_resent_rows_total += resent_rows
        return released

    async def _end_cut(self, end: CutEnd) -> None:
        run = self._current()
        if (end.generation, end.lease_epoch) != (run.generation, run.epoch):
            return
        if end.cut < run.cut:
            self._acknowledge_again(end.cut)
            return
        if end.cut > run.cut:
            raise self._out_of_sequence("ending a cut", f"cut {end.cut}, cut {run.cut} is open")
        said, size_bytes = await self._read_end(end, run)
        events = await run.dumps.admit(end, said.events, lambda: self._wait_until_committed(0))
        await self._wait_until_committed(MAX_UNCOMMITTED_CUTS - 1)
        files, released = await self._jobs.run(run.files.finish)
        async with self._moved:
            # From here to the end of the block nothing waits: what the cut holds is always somebody's.
            chunks = run.dumps.name(end, events, run.last_gsn)
            cut = CompleteCut(
                self.key,
                LandedCut(
                    tenant=self.key.tenant,
                    source=self.key.source,
                    epoch=run.epoch,
                    cut=run.cut,
                    generation=run.generation,
                    flavor=self.flavor(),
                    position=said.position,
                    last_gsn=end.last_gsn,
                    last_transaction_id=end.last_transaction_id,
                    transaction_count=end.transaction_count,
                    first_commit_timestamp_us=end.first_commit_timestamp_us,
                    last_commit_timestamp_us=end.last_commit_timestamp_us,
                    ahead=said.ahead,
                    started=said.started,
                    stopped=said.stopped,
                    files=_following((*files, *chunks.files), run),
                    events=events,
                    chunks=chunks.landed,
                ),
                size_bytes + FILE_ENTRY_BYTES * len(files) + chunks.entry_bytes(),
                asyncio.get_running_loop().create_future(),
            )
            self._uncommitted.append(_Submitted(cut, run.files, chunks))
            run.cut += 1
            run.last_gsn, run.last_transaction_id = end.last_gsn, end.last_transaction_id
            run.files, run.has_rows = self._new_files(run.epoch, run.cut), False
            self.parts.committer.submit(cut)
            self._moved.notify_all()
        self._grant(released)

    async def _read_end(self, end: CutEnd, run: _Run) -> tuple[CutSaid, int]:
        """What it says, and what that takes of a log entry."""
        before = Before(run.tables, run.last_gsn, run.files.last_gsn(), run.last_transaction_id)

        def read() -> tuple[CutSaid, int]:
            said = read_cut_end(end, before, now_us())
            return said, entry_bytes(said)

        try:
            return read() if end.ByteSize() < LARGE_END_BYTES else await self._jobs.run(read)
        except StreamError as refused:
            refused.source = str(self.key)
            raise

    async def _acknowledge(self) -> None:
        """Tell the agent of each committed cut, in order; raises why a commit failed."""
        while True:
            async with self._moved:
                await self._moved.wait_for(lambda: self._uncommitted)
            submitted = self._uncommitted[0]
            cut = submitted.cut
            await asyncio.wait({cut.outcome})
            if cut.outcome.cancelled():
                raise GatewayStopping("committing a cut", "the gateway is stopping", data=NOTHING_LOST)
            entry = cut.outcome.result()
            self._entries[cut.landed.cut] = entry
            if len(self._entries) > MAX_REMEMBERED_CUTS:
                self._entries.popitem(last=False)
            self.stream.post(StreamRequest(cut_committed=CutCommitted(cut=cut.landed.cut, log_entry=entry)))
            async with self._moved:
                self._settle(self._uncommitted.popleft(), is_committed=True)
                self._moved.notify_all()
            if self.parts.health.recovered(self.key, HEALTH_PART):
                await self._record_problem(None)

    def _acknowledge_again(self, cut: int) -> None:
        """A cut that was committed before; one that is still on its way is acknowledged when it is."""
        if any(waiting.cut.landed.cut == cut for waiting in self._uncommitted):
            return
        # 0: committed before this stream, and no reader asks which entry it was
        self.stream.post(StreamRequest(cut_committed=CutCommitted(cut=cut, log_entry=self._entries.get(cut, 0))))

    async def _wait_until_committed(self, at_most: int) -> None:
        async with self._moved:
            await self._moved.wait_for(lambda: len(self._uncommitted) <= at_most)

    async def _follow_desired(self) -> None:
        while True:
            await self._desired_moved.wait()
            self._desired_moved.clear()
            if (current := self.parts.generations.current(self.key)) is not None:
                await self._queue.notice(current)

    async def _leave_when_superseded(self) -> None:
        await self.superseded.wait()
        raise superseded(self.key)

    def _begin_turn(self) -> None:
        """From now on the agent is waited for, whenever it is read."""
        self._ready_before = self.stream.ready_seconds

    async def _leave_when_stalled(self) -> None:
        """Rows of a cut that nobody ends would stay in memory for ever.

        What counts is how long the agent could have been heard. It is looked at twice: where this process stood still,
        what has come meanwhile is read first.
        """
        most_seconds, was_late = self.parts.config.open_cut_seconds, False
        while True:
            silent_seconds = self.stream.ready_seconds - self._ready_before
            is_open = self._run is not None and self._run.has_rows
            is_late = is_open and self._queue.is_waiting and silent_seconds >= most_seconds
            if is_late and was_late:
                raise CutStalled(
                    "landing a cut",
                    f"it is open, and its agent has said nothing for {silent_seconds:.0f} s",
                    data=NOTHING_LOST,
                    remedy="The agent begins again at the last committed position",
                    source=str(self.key),
                )
            was_late = is_late
            await asyncio.sleep(max(most_seconds - silent_seconds, most_seconds / 10))

    def _grant(self, credit_bytes: int) -> None:
        if credit_bytes:
            self._queue.granted(credit_bytes)
            self.stream.grant(credit_bytes)
            self._begin_turn()

    async def _record_problem(self, error: Error | None) -> None:
        """What an operator reads of this source; None takes it back."""
        at_us = now_us()

        def record() -> None:
            problem = None if error is None else problem_from(error, at_us)
            self.parts.registry.record_source_problem(self.key, problem, at_us)

        await self.parts.reports.tell((self.key.tenant, self.key.source), record)

    async def _close(self) -> None:
        """Leave nothing behind: the thread ends, commits settle, dropped files go, the lease is free."""
        try:
            await self._jobs.settle()
            await self.parts.committer.withdraw(self.key)
            dropped: list[Callable[[], object]] = [self._run.files.discard] if self._run is not None else []
            for submitted in self._uncommitted:
                self._settle(submitted, is_committed=submitted.cut.is_committed())
                if submitted.cut.is_dropped():
                    dropped += [
                        submitted.files.discard,
                        partial(discard_files, self.parts.storage, submitted.chunks.files),
                    ]
            for discard in dropped:
                await (await self.parts.landing.start(self._jobs.owner, discard))
            await self.parts.lease.release(self.key)
        except (OSError, RegistryRefused, RegistryUnavailable) as failed:
            # Orphans are harmless and the lease ends by itself.
            logger.warning("source not left tidily: source=%s: %s", self.key, type(failed).__name__)
        finally:
            self._queue.close()
            self.parts.fence.leave(self.key, self)

    def _settle(self, submitted: _Submitted, *, is_committed: bool) -> None:
        """What became of the chunks that a cut named."""
        chunks = submitted.chunks
        self.parts.pending_chunks.settle(self.key, chunks.pending, is_committed=is_committed)
        if is_committed:
            self.parts.metrics.menura_dump_chunks_total += len(chunks.landed)
            self.parts.metrics.menura_dump_rows_total += sum(chunk.rows for chunk in chunks.landed)

    def _current(self) -> _Run:
        assert self._run is not None
        return self._run

    def _new_files(self, epoch: int, cut: int) -> CutFiles:
        max_credit_bytes = self.parts.config.credit_window_bytes // 2
        return CutFiles(self.parts.storage, self.key, epoch, cut, max_credit_bytes, self.parts.gathered)

    def _out_of_sequence(self, doing: str, found: str) -> OutOfSequence:
        return OutOfSequence(doing, found, data=NOTHING_LOST, source=str(self.key))


def _following(files: Sequence[LandedFile], run: _Run) -> tuple[LandedFile, ...]:
    """The open cut's files, each with its table's predecessor, which the cut then is to the next one."""
    found = tuple(replace(file, previous_cut=run.last_cuts.get((file.database, file.table), 0)) for file in files)
    run.last_cuts.update(((file.database, file.table), run.cut) for file in files)
    return found


def _land_in_files(batch: ChangeBatch, frames: Frames, after_gsn: int, files: CutFiles) -> tuple[int, int]:
    """In a worker thread: rows left out as resent, bytes of credit that are free again."""
    landed = read_batch(batch, frames, after_gsn)
    if landed is None:
        return batch.row_count, frames.credit_bytes
    return landed.resent_rows, files.add(landed, frames.credit_bytes)
