"""Verifications in the driver: which chunks are to be compared with the lake, and what they make of their tables.

Comes in: from each batch the chunks whose cuts its tables have, and events: that a verification begins or ends, that a
table's sync begins or stops. Goes out: rows of LAKE/_menura/validation, and tables' verdicts for the control plane.

Chunks are compared by a thread of its own, one after the other: it holds no lock of the batches, and what it fails at
is a verdict, never the sink's end. What is due is recorded before the batch is checkpointed. A kill leaves it due, and
the next start compares it, as long as the version that the chunk belongs to is kept. A kill before leaves a batch to be
done again, whose tables may be further then: such chunks are unknown.

A table is equal when its chunks follow each other from the key's beginning to its end, and each is equal. It is void
when its sync began anew or stopped, or another verification of it began; unknown when a chunk is, or is missing.

A table with leaves that differ is unknown: its verdict has the focus with which they are to be read again, in another
verification (`suspected`, which the control plane hears). That one's leaves are smaller, until they are rows. Only if
rows differ then the table does; where nothing does any more, nothing is known. But where a repair has read them again
in between, and all other leaves of this lake's table were equal, the table is, as of when those were read.

No table is equal where a change that lacks values gave a row another key (`moved_rows`) since its verification began,
or behind a repair since the one began by which the other leaves were equal.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from menura.key_values import Key, travelling
from menura.lake_report import MAX_FOCUS_PARTS, MAX_REASON_CHARS, LakeVerdict, clipped
from menura.landed_digest import LandedFocus, LandedRange, decode_focus, united
from menura.landing import LandedChunk
from menura.stores.options import delta_options

from spark_sink.errors import SinkError
from spark_sink.ingest.verdicts import kept, tally, verdict_of
from spark_sink.lake.delta_table import open_table
from spark_sink.lake.digests import Finding, Verdict, compare
from spark_sink.lake.moved_rows import why_unsure
from spark_sink.lake.schema_policy import read_departure, told
from spark_sink.lake.table_folders import table_folder
from spark_sink.lake.validation_records import DUE, ValidationRecords, chunk_row, due_row, table_row
from spark_sink.work import CHANGELOG, CURRENT, DueChunk, EventSeen, Outcome, TableId, decode_due

logger = logging.getLogger("menura.sink")

#: where what was found could not be recorded
RETRY_SECONDS = 30.0
FINISH_SECONDS = 600.0

STARTED, ENDED = "VERIFICATION_STARTED", "VERIFIED"
#: of those that differ, which are read again: for some millions of rows, and as many ranges as are told
MOST_LEAVES = 256
MOST_PARTS = MAX_FOCUS_PARTS
BY_POLICY = "the table's policy for schema changes lets it differ from its source"
REST_EQUAL = "all rows but those of ranges were equal when they were read, and these are since repair"
HEALED = "leaves of it differed, and did not when their rows were read again: verify it once more"
SINCE_UNKNOWN = (
    "from when on the rest of it was equal was not told, and a change without all values may have moved a row"
)
UNREAD = "the lake's changes of the meantime could not be read"
_GIVEN_UP_BY = {
    "SYNC_STARTED": "the table's sync began anew",
    "SYNC_STOPPED": "the table's sync stopped",
    "DUMP_STARTED": "a dump of the table began",
    "RENAMED": "the table was renamed",
    "DROPPED": "the table was dropped",
}


@dataclass(slots=True)
class _Verification:
    """The newest of a table."""

    name: str
    #: number of the event that began it
    gsn: int
    #: by number, in the order of their cuts
    found: dict[int, tuple[DueChunk, Finding | None]] = field(default_factory=dict)
    #: position and cut of its end
    ended: tuple[str, int] | None = None
    is_over: bool = False
    #: what is to be read again; with the verdict that it is suspected
    focus: LandedFocus | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    table: TableId
    verification: str
    #: None: the verification may be over
    due: DueChunk | None = None
    #: Delta's, of the current state
    table_id: str = ""


class Verifications:
    """Of one sink."""

    def __init__(
        self, lake: str, tell: Callable[[Mapping[TableId, tuple[LakeVerdict, ...]]], None] = lambda _verdicts: None
    ) -> None:
        """`tell` is called with tables' verdicts (`verdicts.kept`), from any thread."""
        self._lake = lake
        self._tell = tell
        self._verdicts: dict[TableId, tuple[LakeVerdict, ...]] = {}
        self.records = ValidationRecords(lake)
        self._of: dict[TableId, _Verification] = {}
        self._tasks: deque[_Task] = deque()
        self._moved = threading.Condition()
        self._is_idle = True
        self._stopping = False
        self._thread: threading.Thread | None = None
        #: tables of which batches bring chunks late
        self._late: frozenset[TableId] = frozenset()

    def late_are(self, tables: Iterable[TableId]) -> None:
        """Of these chunks are still to come, whatever event says that their verification has ended. Raises nothing."""
        with self._moved:
            before, self._late = self._late, frozenset(tables)
            in_time = [(table, held) for table in before - self._late if (held := self._of.get(table)) is not None]
            self._tasks.extend(_Task(table, held.name) for table, held in in_time)
            self._moved.notify_all()

    def start(self) -> None:
        """Go on with what the lake says is due; once."""
        if self._thread is not None:
            return
        try:
            self._read()
        except (SinkError, OSError, DeltaError) as failed:
            logger.warning("verifications of before are not known error=%s", type(failed).__name__)
        self._thread = threading.Thread(target=self._run, name="verifications", daemon=True)
        self._thread.start()

    def suspected(self) -> Mapping[TableId, tuple[str, LandedFocus]]:
        """Tables of which leaves are to be read again, after which verification."""
        with self._moved:
            return {table: (held.name, held.focus) for table, held in self._of.items() if held.focus is not None}

    def stop(self, seconds: float, *, finish: bool = False) -> None:
        """Leave what is due to the next start; `finish`: wait for it first, as long as that makes sense."""
        with self._moved:
            if finish:
                self._moved.wait_for(lambda: self._is_idle and not self._tasks, FINISH_SECONDS)
            self._stopping = True
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)

    def note(self, outcomes: Iterable[Outcome], events: Sequence[EventSeen]) -> None:
        """What a batch brought, before it is checkpointed. Raises nothing: what can't be recorded is not compared."""
        try:
            self._note(list(outcomes), events)
        except (SinkError, OSError, DeltaError) as failed:
            logger.warning("verification not recorded error=%s", type(failed).__name__)

    def _note(self, outcomes: Sequence[Outcome], events: Sequence[EventSeen]) -> None:
        rows = [row for event in events if event.seen.event.kind == STARTED for row in self._begin(event)]
        found = [
            (outcome.table, due, self._table_id(outcome.table))
            for outcome in outcomes
            for due in outcome.due
            if self._awaits(outcome.table, due)
        ]
        rows += [due_row(table, due, table_id) for table, due, table_id in found]
        for row in self.records.record(rows):
            self._note_verdict(row)
        with self._moved:
            for table, due, table_id in found:
                self._of[table].found[due.digest.chunk.chunk] = (due, None)
                self._tasks.append(_Task(table, due.digest.chunk.dump, due, table_id))
            self._moved.notify_all()
        for event in events:
            self._follow(event)

    def _begin(self, event: EventSeen) -> Iterable[dict[str, object]]:
        seen, held = event.seen.event, self._of.get(event.table)
        if held is not None and seen.gsn <= held.gsn:
            return  # of a batch that is done again
        if held is not None and not held.is_over:
            finding = Finding(Verdict.VOID, "another one of the table began")
            row = table_row(event.table, held.name, held.gsn, event.seen.cut, "", None, finding)
            yield {**row, **tally(held.found.values())}
        with self._moved:
            self._of[event.table] = _Verification(seen.dump, seen.gsn)
        yield table_row(event.table, seen.dump, seen.gsn, event.seen.cut, "", None, None)

    def _awaits(self, table: TableId, due: DueChunk) -> bool:
        held, chunk = self._of.get(table), due.digest.chunk
        return held is not None and held.name == chunk.dump and not held.is_over and chunk.chunk not in held.found

    def _table_id(self, table: TableId) -> str:
        held = open_table(f"{table_folder(self._lake, table)}/{CURRENT}")
        return str(held.metadata().id) if held is not None else ""

    def _follow(self, event: EventSeen) -> None:
        seen, held = event.seen.event, self._of.get(event.table)
        if held is None or held.is_over or seen.gsn <= held.gsn:
            return
        if seen.kind == ENDED and seen.dump == held.name:
            self.records.record(
                [table_row(event.table, held.name, held.gsn, event.seen.cut, seen.position, None, None)]
            )
            with self._moved:
                held.ended = seen.position, event.seen.cut
                self._tasks.append(_Task(event.table, held.name))
                self._moved.notify_all()
        elif seen.kind in _GIVEN_UP_BY:
            given_up = Finding(Verdict.VOID, _GIVEN_UP_BY[seen.kind])
            self._over(event.table, held, event.seen.cut, "", None, given_up)

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._moved:
                self._is_idle = not self._tasks
                self._moved.notify_all()
                self._moved.wait_for(lambda: self._stopping or self._tasks)
                if self._stopping:
                    return
                self._is_idle = False
                task = self._tasks.popleft()
            try:
                self._do(task)
            except Exception as failed:  # noqa: BLE001  (the thread's top: no verification may end the sink)
                logger.warning("verification not recorded table=%s error=%s", task.table, type(failed).__name__)
                with self._moved:
                    self._tasks.appendleft(task)
                    self._moved.wait_for(lambda: self._stopping, RETRY_SECONDS)

    def _do(self, task: _Task) -> None:
        held = self._of[task.table]
        if held.name != task.verification or held.is_over:
            return
        if task.due is not None:
            self._verify(held, task, task.due)
        self._conclude(task.table, held)

    def _verify(self, held: _Verification, task: _Task, due: DueChunk) -> None:
        began = time.monotonic()
        finding = self._compared(task, due)
        self.records.record([chunk_row(task.table, due, finding)])
        with self._moved:
            held.found[due.digest.chunk.chunk] = (due, finding)
        seconds = time.monotonic() - began
        chunk, rows = due.digest.chunk, finding.lake_rows
        words = "chunk verified table=%s chunk=%d verdict=%s rows=%d seconds=%.3f"
        logger.info(words, task.table, chunk.chunk, finding.verdict.value, rows, seconds)

    def _compared(self, task: _Task, due: DueChunk) -> Finding:
        try:
            if not task.table_id:  # the table has no row yet, nor ever had one
                return compare(task.table, due.digest.chunk, due.digest.last_gsn, None, None)
            if due.current_version is None or due.changelog_version is None:
                return Finding(Verdict.UNKNOWN, "the lake was further than the chunk when it was to be compared")
            folder = table_folder(self._lake, task.table)
            options = delta_options(folder)
            current = DeltaTable(f"{folder}/{CURRENT}", version=due.current_version, storage_options=options)
            if str(current.metadata().id) != task.table_id:
                return Finding(Verdict.VOID, "the lake's table was made anew")
            departure = read_departure(current)
            if departure.is_any:  # whatever the rows are like
                return Finding(
                    Verdict.UNKNOWN,
                    clipped(f"{BY_POLICY}, {told(departure.policy, departure.words)}", MAX_REASON_CHARS),
                )
            changelog = DeltaTable(f"{folder}/{CHANGELOG}", version=due.changelog_version, storage_options=options)
            return compare(task.table, due.digest.chunk, due.digest.last_gsn, current, changelog)
        except Exception as failed:  # noqa: BLE001  (whatever it is, the rows were not compared)
            return Finding(Verdict.UNKNOWN, f"the lake could not be read at that version: {type(failed).__name__}")

    def _conclude(self, table: TableId, held: _Verification) -> None:
        """Once it has ended and all that was due is compared."""
        with self._moved:
            waits = held.ended is None or any(finding is None for _, finding in held.found.values())
            if waits or held.is_over or table in self._late:
                return
        table_id = self._table_id(table)
        with self._moved:
            found = [(due, finding) for due, finding in held.found.values() if finding is not None]
            finding, rows = conclusion(found, table_id)
            assert held.ended is not None
            position, cut = held.ended
            if finding.verdict is Verdict.UNKNOWN and finding.leaves:
                held.focus = focus_of(found, table_id, held.gsn)
        if finding.verdict is Verdict.EQUAL and not is_of_one_moment(found):
            unsure = self._why_unsure(table, since_gsn_of(found, held.gsn))
            finding = Finding(Verdict.UNKNOWN, unsure, finding.lake_rows) if unsure else finding
        self._over(table, held, cut, position, rows, finding)
        words = "table verified table=%s verdict=%s rows=%d reason=%s"
        logger.info(words, table, finding.verdict.value, rows, finding.reason or "none")

    def _why_unsure(self, table: TableId, since_gsn: int) -> str:
        """See `moved_rows`."""
        try:
            changelog = open_table(f"{table_folder(self._lake, table)}/{CHANGELOG}")
            return why_unsure(changelog, since_gsn) if changelog is not None else ""
        except Exception as failed:  # noqa: BLE001  (whatever it is, the changes were not looked at)
            return f"{UNREAD}: {type(failed).__name__}"

    def _over(
        self, table: TableId, held: _Verification, cut: int, position: str, rows: int | None, finding: Finding
    ) -> None:
        if held.is_over:  # given up while its changes were looked at
            return
        row = table_row(table, held.name, held.gsn, cut, position, rows, finding, held.focus)
        with self._moved:
            tallied = tally(held.found.values())
        (row,) = self.records.record([{**row, **tallied}])
        held.is_over = True
        self._note_verdict(row)
        self.records.forget_chunks(held.name)

    def _note_verdict(self, row: Mapping[str, Any], *, tell: bool = True) -> None:
        """Of a table, if the row is one."""
        if row.get("chunk") is None and row["verdict"] != DUE:
            table = TableId(row["tenant"], row["source"], row["database"], row["table"])
            with self._moved:
                self._verdicts[table] = kept([*self._verdicts.get(table, ()), verdict_of(table, row)])
                if tell:
                    self._tell({table: self._verdicts[table]})

    def _read(self) -> None:
        """What was due when a sink last ran."""
        tasks: dict[tuple[str, int], _Task] = {}
        for row in self.records.rows():
            table = TableId(row["tenant"], row["source"], row["database"], row["table"])
            held = self._of.get(table)
            if row["chunk"] is None:
                if held is None or held.name != row["verification"]:
                    held = self._of[table] = _Verification(row["verification"], row["gsn"])
                held.is_over = row["verdict"] != DUE
                held.focus = decode_focus(json.loads(row["focus"])) if row.get("focus") else None
                self._note_verdict(row, tell=False)
                held.ended = (row["position"], row["cut"]) if row["position"] else held.ended
                continue
            if held is None or held.name != row["verification"]:
                continue
            name = (row["verification"], row["chunk"])
            if row["verdict"] == DUE:
                facts = json.loads(row["due"])
                due = decode_due(facts["due"])
                tasks.setdefault(name, _Task(table, row["verification"], due, facts["table_id"]))
                held.found.setdefault(row["chunk"], (due, None))
            elif name in tasks:
                equal = row["leaves_equal"] or 0
                finding = Finding(Verdict(row["verdict"]), row["reason"], row["lake_rows"], equal_leaves=equal)
                due, _ = held.found[row["chunk"]]
                del tasks[name]
                held.found[row["chunk"]] = (due, finding)
        self._tasks.extend(task for task in tasks.values() if not self._of[task.table].is_over)
        self._tasks.extend(_Task(table, held.name) for table, held in self._of.items() if not held.is_over)
        self._tell(self._verdicts)


def conclusion(found: Sequence[tuple[DueChunk, Finding]], table_id: str = "") -> tuple[Finding, int]:
    """A table's verdict by those of its chunks, and how many rows of the source these had.

    `table_id`: Delta's, of the current state.
    """
    chain, is_whole = _in_order(found)
    rows, lake_rows = sum(chunk.rows for chunk, _ in chain), sum(finding.lake_rows for _, finding in chain)
    verdicts = [_of_table(chunk, finding, table_id) for chunk, finding in chain]
    if not is_whole:
        verdicts.append(Finding(Verdict.UNKNOWN, "a part of the table was not compared", lake_rows))
    return _worst(verdicts, lake_rows), rows


def _in_order(found: Sequence[tuple[DueChunk, Finding]]) -> tuple[list[tuple[LandedChunk, Finding]], bool]:
    """Chunks that follow each other from the key's beginning, and whether they come to its end."""
    by_lower = {}
    for due, finding in sorted(found, key=lambda each: (each[0].digest.cut, each[0].digest.chunk.chunk)):
        chunk = due.digest.chunk
        if not chunk.lower or chunk.lower != chunk.upper:  # of no keys: the next one begins there too
            by_lower[chunk.lower] = chunk, finding  # the last reading of a range counts
    chain: list[tuple[LandedChunk, Finding]] = []
    lower = ""
    values: Key | None = ()  # None: not told, as up to format 12 of the landing
    while lower in by_lower:
        chunk, finding = by_lower.pop(lower)
        digest = chunk.digest
        told = digest if digest is not None and (digest.kinds or digest.bits) else None
        if told is not None and values is not None and told.above != values:
            return chain, False
        chain.append((chunk, finding))
        lower, values = chunk.upper, told.up_to if told is not None else None
        if not lower:
            return chain, True
    return chain, False


def _of_table(chunk: LandedChunk, finding: Finding, table_id: str) -> Finding:
    """What a chunk says of its table. One of a part that is equal says nothing, but behind a repair if the rest was."""
    within = chunk.digest.within if chunk.digest is not None else None
    if finding.verdict is not Verdict.EQUAL or within is None:
        return finding
    if within.repaired_by and within.rest_equal_at_us and within.rest_equal_in == table_id:
        if not within.since_gsn:  # an older gateway or control plane has not kept it, or an older sink not told it
            return Finding(Verdict.UNKNOWN, SINCE_UNKNOWN, finding.lake_rows)
        reason = f"{REST_EQUAL} {within.repaired_by}"
        return Finding(Verdict.EQUAL, reason, finding.lake_rows, equal_leaves=finding.equal_leaves)
    return Finding(Verdict.UNKNOWN, HEALED, finding.lake_rows)


def _worst(verdicts: Sequence[Finding], lake_rows: int) -> Finding:
    """The least certain one, but for differences: these are looked for before what is not known."""
    for verdict in (Verdict.DIFFERS, Verdict.VOID, Verdict.UNKNOWN):
        of_kind = [finding for finding in verdicts if finding.verdict is verdict]
        if of_kind:
            of_kind.sort(key=lambda finding: not finding.leaves)
            leaves = tuple(leaf for finding in of_kind for leaf in finding.leaves)
            rows = tuple(row for finding in of_kind for row in finding.rows)
            return Finding(verdict, of_kind[0].reason, lake_rows, leaves, rows)
    return Finding(Verdict.EQUAL, next((found.reason for found in verdicts if found.reason), ""), lake_rows)


def focus_of(found: Iterable[tuple[DueChunk, Finding | None]], table_id: str = "", gsn: int = 0) -> LandedFocus:
    """What is to be read again: the first of the leaves that differ; of ranges those that touch are one.

    `gsn`: of the verification's beginning.
    """
    known = [(due, finding) for due, finding in found if finding is not None]
    chunks = [(due.digest.chunk, finding) for due, finding in known if finding.leaves]
    leaves = [leaf for _, finding in chunks for leaf in finding.leaves]
    chunk, first = chunks[0][0], leaves[0]
    within = chunk.digest.within if chunk.digest is not None else None
    rest = (within.rest_equal_at_us, within.rest_equal_in) if within is not None else (0, "")
    since_gsn = within.since_gsn if within is not None else 0
    if first.bits:
        buckets = tuple(leaf.bucket for leaf in leaves[:MOST_PARTS])
        ranges, kinds = (within.ranges, within.kinds) if within is not None else ((), ())
        return LandedFocus(ranges, first.bits, buckets, kinds, *rest, since_gsn=since_gsn)
    kinds = first.kinds
    ranges = united(
        [
            LandedRange("", "", *travelling(kinds, leaf.lower, leaf.upper), leaf.source_rows)
            for leaf in leaves[:MOST_LEAVES]
            if leaf.kinds == kinds
        ]
    )
    is_all = len(leaves) <= MOST_LEAVES and len(ranges) <= MOST_PARTS and {leaf.kinds for leaf in leaves} == {kinds}
    if within is None and is_all:
        at_us = rest_equal_at_us(known)
        rest, since_gsn = (at_us, table_id if at_us else ""), gsn if at_us else 0
    return LandedFocus(ranges[:MOST_PARTS], 0, (), kinds, *rest, since_gsn=since_gsn)


def is_of_one_moment(found: Sequence[tuple[DueChunk, Finding]]) -> bool:
    """Whether the whole table was read as one chunk."""
    digest = found[0][0].digest.chunk.digest if len(found) == 1 else None
    return digest is not None and digest.within is None


def since_gsn_of(found: Iterable[tuple[DueChunk, Finding]], gsn: int) -> int:
    """At which number all that a verdict is of began to be looked at; `gsn`: of the verification's own beginning."""
    digests = [due.digest.chunk.digest for due, _ in found]
    return min([gsn, *(each.within.since_gsn for each in digests if each and each.within and each.within.since_gsn)])


def rest_equal_at_us(found: Sequence[tuple[DueChunk, Finding]]) -> int:
    """When the source was read, of whose leaves all were equal but those that differ; 0 where one is not known."""
    chain, is_whole = _in_order(found)
    for chunk, finding in chain:
        leaves = len(chunk.digest.leaves) if chunk.digest is not None else 0
        is_whole = is_whole and finding.equal_leaves + len(finding.leaves) == leaves
    return max(chunk.read_at_us for chunk, _ in chain) if chain and is_whole else 0
