"""Dumps on a catalog stream: orders out, chunks of tables in, under a credit of their own.

Goes out: DesiredDumps when the stream opens and whenever they change, Credit, ChunkLanded, ChunksCommitted. Comes in:
a dump's plan, its chunks' batches and ends, its state, its failure. What is recorded of a plan or a failure is in the
registry before anything after it is read; a state is told anew and may be dropped.

Chunks of a verification have no batches: what lands of them is the digest in their end.

Every message passes one queue and one task, `_land`, which alone changes what is open; blocking work goes to threads,
one call at a time. The credit that a sender was not granted bounds the queue and what is in memory, `gateway.backlog`
that of all streams; while too many chunks wait for a cut, no credit comes back.

A chunk whose files are durable is *pending* (`landing.chunks`), where the stream of changes finds it when a cut names
it. Durable is what such a cut has committed. Everything else of this stream is deleted: when it ends, when its
dump is over, when the agent gives it up or reads it anew. A kill leaves files that no entry names. Whatever happens,
the agent reads again what the ledger does not have: where both sides no longer agree (a chunk out of turn, a cut that
named chunks and failed) the stream ends, and the next one begins at the ledger.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from menura.error_message import as_message
from menura.instants import now_us
from menura.landing import LandedChunk
from menura.naming import dump_anew
from menura.v1.snapshot_pb2 import (
    ChunkDropped,
    ChunkEnd,
    ChunkLanded,
    ChunksCommitted,
    DumpFailed,
    DumpPlan,
    DumpStatus,
    SnapshotBatch,
)
from menura.v1.stream_pb2 import StreamRequest

from gateway.backlog import StreamQueue
from gateway.errors import NOTHING_LOST, ChunksLost, DumpPlanChanged, LandingFailed, PayloadInvalid
from gateway.landing.chunk_files import ChunkFiles, discard_files
from gateway.landing.chunks import ClientChunks, PendingChunk
from gateway.landing.committer import blocked
from gateway.landing_parts import LandingJobs, LandingParts
from gateway.registry import DumpSeen, Problem, SourceKey
from gateway.stream import AgentStream
from gateway.stream_fence import superseded
from gateway.streams.dump_messages import desired_dumps, dump_planned, dump_seen, landed_chunk
from gateway.tasks import finish, run_until_first
from gateway.wire.message import Frames, Received
from gateway.wire.snapshot_batch import check_sizes, read_rows
from gateway.wire.translation import problem_from, table_name

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: chunks whose batches come side by side
MAX_OPEN_CHUNKS = 64
STATUS_SECONDS = 0.5
HEALTH_PART = "dump"


@dataclass(slots=True)
class Dumps:
    stream: AgentStream
    key: SourceKey
    session: str
    parts: LandingParts
    superseded: asyncio.Event = field(default_factory=asyncio.Event)
    _jobs: LandingJobs = field(init=False)
    _files: ChunkFiles = field(init=False)
    _chunks: ClientChunks = field(init=False)
    _queue: StreamQueue = field(init=False)
    _generation: int = 0
    _withheld_bytes: int = 0
    #: states that the registry does not have yet, and that there are some
    _states: dict[str, DumpSeen] = field(default_factory=dict)
    _told: asyncio.Event = field(default_factory=asyncio.Event)
    #: set when what is desired has another generation
    _desired_moved: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        parts = self.parts
        assert self.stream.key is not None
        owner = self.stream.key.of_agent
        self._queue = StreamQueue(parts.backlog.rows, owner, self.key, "receiving rows of a dump")
        self._jobs = LandingJobs(parts.landing, parts.metrics, self.key, owner, "writing a dump's files")
        self._files = ChunkFiles(parts.storage, self.key, parts.config.dump_credit_window_bytes // 2, parts.gathered)

    async def serve(self) -> None:
        """Land until the stream ends, a newer one comes, or something fails."""
        try:
            await self._serve_fenced()
        finally:
            self._queue.close()

    async def _serve_fenced(self) -> None:
        await self.parts.client_fence.enter(self.key, self)
        try:
            await run_until_first(self._serve_alone(), self._leave_when_superseded())
        except LandingFailed as failed:
            self.parts.health.fails(self.key, HEALTH_PART)
            await self._record_problem(problem_from(as_message(failed), now_us()))
            raise
        finally:
            self.parts.client_fence.leave(self.key, self)

    async def _ask(self, call: Callable[..., T], *arguments: object) -> T:
        """A registry call about the source."""
        return await self.parts.ask((self.key.tenant, self.key.source), call, self.key, *arguments)

    async def receive(self, received: Received) -> None:
        """A message of this source's dumps; waits as the queue does."""
        message = received.message
        if message.WhichOneof("payload") != "snapshot_batch":
            await self._queue.put(received)
            return
        check_sizes(message.snapshot_batch)
        await self._queue.put_batch(received)

    async def _serve_alone(self) -> None:
        await self.parts.pending_chunks.settled(self.key)
        self._chunks = self.parts.pending_chunks.open(self.key, self.session)
        try:
            with self.parts.dump_generations.following(self.key, self._desired_moved):
                await run_until_first(self._land(), self._answer(), self._follow_desired(), self._report_states())
        finally:
            await finish(self._close())

    async def _land(self) -> None:
        await self._send_desired()
        self._grant(self.parts.config.dump_credit_window_bytes)
        while True:
            await self._land_next(await self._queue.get())

    async def _land_next(self, received: Received | int) -> None:
        if isinstance(received, int):
            if received != self._generation:
                await self._send_desired()
            return
        message = received.message
        match message.WhichOneof("payload"):
            case "snapshot_batch":
                self._grant(await self._land_batch(message.snapshot_batch, received.frames))
            case "chunk_end":
                await self._end_chunk(message.chunk_end)
            case "chunk_dropped":
                await self._drop_chunk(message.chunk_dropped)
            case "dump_plan":
                await self._record_plan(message.dump_plan)
            case "dump_status":
                self._take_state(message.dump_status)
            case "dump_failed":
                await self._record_failed(message.dump_failed)
        self._queue.landed(received)

    async def _send_desired(self) -> None:
        if (await self._ask(self.parts.registry.committed)).is_blocked:
            raise blocked(self.key, "before its dumps go on")
        desired = await self._ask(self.parts.registry.dumps)
        self._generation = desired.generation
        over = self._chunks.desire(desired.dumps)
        await self._discard(over)
        wanted = self._chunks.dumps()
        self._grant(await self._jobs.run(lambda: self._files.discard_others(wanted)))
        self.stream.post(StreamRequest(desired_dumps=desired_dumps(desired, self._chunks.next_chunk)))
        said = "command sent: %s: desired_dumps: generation %s, %s dumps"
        owner, count = self.stream.owner, len(desired.dumps)
        self.parts.log_lines.write(logger, logging.INFO, owner, said, self.stream.key, desired.generation, count)
        if not desired.dumps:
            await self._lands_again()

    async def _land_batch(self, batch: SnapshotBatch, frames: Frames) -> int:
        """Returns the credit that is free again."""
        credit_bytes = frames.credit_bytes
        self.parts.metrics.menura_dump_batches_total += 1
        self.parts.metrics.menura_dump_received_bytes_total += frames.size_bytes
        order = self._chunks.order(batch.dump)
        if order is None:
            return credit_bytes
        if table_name(batch.table) != (order.database, order.table):
            raise PayloadInvalid(
                "reading rows of a dump", "a table other than its dump's", data=NOTHING_LOST, source=str(self.key)
            )
        if order.verifies:
            raise PayloadInvalid(
                "reading rows of a dump", "rows of a verification", data=NOTHING_LOST, source=str(self.key)
            )
        self._chunks.receive(batch.dump, batch.chunk)
        if self._chunks.open > MAX_OPEN_CHUNKS:
            raise PayloadInvalid(
                "reading rows of a dump",
                f"more than {MAX_OPEN_CHUNKS} chunks side by side",
                data=NOTHING_LOST,
                source=str(self.key),
            )

        def land() -> int:
            return self._files.add(read_rows(batch, frames), credit_bytes)

        return await self._jobs.run_batch(self.parts.backlog.landing, frames, land)

    async def _end_chunk(self, end: ChunkEnd) -> None:
        order = self._chunks.order(end.dump)
        if order is None:
            return
        landed = landed_chunk(end, order)
        self._chunks.end(landed)
        if landed.digest is None and self._files.rows(end.dump, end.chunk) != landed.rows:
            raise PayloadInvalid(
                "landing a chunk of a dump",
                f"{self._files.rows(end.dump, end.chunk)} rows came, announced {landed.rows}",
                data=NOTHING_LOST,
                source=str(self.key),
                database=landed.database,
                table=landed.table,
            )
        await self._add(landed)
        self.stream.post(StreamRequest(chunk_landed=ChunkLanded(dump=end.dump, chunk=end.chunk)))
        await self._lands_again()

    async def _add(self, landed: LandedChunk) -> None:
        files, released = await self._jobs.run(lambda: self._files.finish(landed.dump, landed.chunk))
        replaced = self._chunks.add(landed, files)
        self._files.release(landed.dump, landed.chunk)
        await self._discard(replaced)
        self._grant(released)

    async def _drop_chunk(self, dropped: ChunkDropped) -> None:
        if self._chunks.order(dropped.dump) is None:
            return
        await self._discard(self._chunks.drop(dropped.dump, dropped.chunk))
        self._grant(await self._jobs.run(lambda: self._files.discard(dropped.dump, dropped.chunk)))

    async def _discard(self, chunks: list[PendingChunk]) -> None:
        """Delete the files of chunks that nobody can name any more."""
        if chunks:
            self.parts.metrics.menura_dump_discarded_chunks_total += len(chunks)
            await self._jobs.run(lambda: discard_files(self.parts.storage, [f for c in chunks for f in c.files]))

    async def _record_plan(self, message: DumpPlan) -> None:
        """The first plan of a dump counts; the agent goes by the one in its order."""
        order = self._chunks.order(message.dump)
        if order is None or order.plan is not None:
            return
        plan = dump_planned(message, order)
        await self._ask(self.parts.registry.record_dump_plan, message.dump, plan, now_us())
        await self._send_desired()
        order = self._chunks.order(message.dump)
        if order is None or order.plan is not None:
            return
        if not plan.key and not order.repairs:
            self._chunks.read_whole(message.dump)
            return
        changed = DumpPlanChanged(
            "reading a table by its key",
            "it had no key when the dump was planned",
            data="Nothing of it was committed",
            remedy=f"Start the dump again: {dump_anew(self.key.source, order.database, order.table)}",
            source=str(self.key),
            database=order.database,
            table=order.table,
        )
        problem = problem_from(as_message(changed), now_us())
        await self._ask(self.parts.registry.record_dump_failed, message.dump, problem, problem.at_us)
        await self._send_desired()

    async def _record_failed(self, failed: DumpFailed) -> None:
        if self._chunks.order(failed.dump) is None:
            return
        problem = problem_from(failed.error, now_us())
        words = "dump failed: source=%s dump=%s: %s"
        lines = self.parts.log_lines
        lines.write(logger, logging.WARNING, self.stream.owner, words, self.key, failed.dump, problem.message)
        await self._ask(self.parts.registry.record_dump_failed, failed.dump, problem, problem.at_us)
        await self._send_desired()

    def _take_state(self, status: DumpStatus) -> None:
        if self._chunks.order(status.dump) is not None:
            self._states[status.dump] = dump_seen(status)
            self._told.set()

    async def _report_states(self) -> None:
        while True:
            await self._told.wait()
            await asyncio.sleep(STATUS_SECONDS)
            self._told.clear()
            states, self._states = list(self._states.values()), {}
            await self._record_states(states)

    async def _record_states(self, states: list[DumpSeen]) -> None:
        await self.parts.reports.tell(
            (self.key.tenant, self.key.source),
            lambda: self.parts.registry.record_dump_status(self.key, states, now_us()),
        )

    async def _answer(self) -> None:
        """Say which chunks cuts have committed; leave when one was lost."""
        while True:
            await self._chunks.changed.wait()
            self._chunks.changed.clear()
            committed, self._chunks.committed = self._chunks.committed, []
            if committed:
                landed = [ChunkLanded(dump=chunk.landed.dump, chunk=chunk.landed.chunk) for chunk in committed]
                await self.stream.send(StreamRequest(chunks_committed=ChunksCommitted(chunks=landed)))
            if self._chunks.is_lost:
                raise ChunksLost(
                    "landing a source's dumps",
                    "a cut that named chunks of them, or their end, was not committed",
                    data="What the ledger does not have is read again",
                    source=str(self.key),
                )
            if self._withheld_bytes:
                self._grant(0)

    async def _follow_desired(self) -> None:
        while True:
            await self._desired_moved.wait()
            self._desired_moved.clear()
            if (current := self.parts.dump_generations.current(self.key)) is not None:
                await self._queue.notice(current)

    async def _leave_when_superseded(self) -> None:
        await self.superseded.wait()
        raise superseded(self.key)

    def _grant(self, credit_bytes: int) -> None:
        """Give credit back, unless so many chunks wait for their cut that the agent had better wait too."""
        self._withheld_bytes += credit_bytes
        if self._withheld_bytes and not self._chunks.is_crowded:
            granted, self._withheld_bytes = self._withheld_bytes, 0
            self._queue.granted(granted)
            self.stream.grant(granted)

    async def _lands_again(self) -> None:
        if self.parts.health.recovered(self.key, HEALTH_PART):
            await self._record_problem(None)

    async def _record_problem(self, problem: Problem | None) -> None:
        at_us = now_us()
        await self.parts.reports.tell(
            (self.key.tenant, self.key.source),
            lambda: self.parts.registry.record_source_problem(self.key, problem, at_us),
        )

    async def _close(self) -> None:
        """Leave nothing behind but what cuts have named: the thread ends, dropped files go."""
        pending = self.parts.pending_chunks.close(self.key, self._chunks)
        try:
            await self._jobs.settle()
            await self._discard(pending)
            await self._jobs.run(lambda: self._files.discard_others(()))
        except LandingFailed as failed:  # orphans are harmless
            logger.warning("dumps not left tidily: source=%s: %s", self.key, failed.found)
