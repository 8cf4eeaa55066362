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

A verification whose agent tells anew of all that is not logged from its beginning on can stand for a dump. Its verdict
says from which number on (`since_gsn`), or of which ranges it is not known that they are equal (`unproven`): these are
read again then, and verified.
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
from menura.lake_report import MAX_REASON_CHARS, LakeVerdict, clipped
from menura.landed_digest import LandedFocus, decode_focus
from menura.stores.options import delta_options

from spark_sink.errors import SinkError
from spark_sink.ingest.conclusions import (
    conclusion,
    focus_of,
    is_of_one_moment,
    since_gsn_of,
    told_since,
    unproven_of,
)
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
BY_POLICY = "the table's policy for schema changes lets it differ from its source"
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
    #: from this number on all that is not logged is told; 0: that is not known
    since_gsn: int = 0


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
        since_gsn = seen.gsn if seen.reread else 0
        with self._moved:
            self._of[event.table] = _Verification(seen.dump, seen.gsn, since_gsn=since_gsn)
        yield table_row(event.table, seen.dump, seen.gsn, event.seen.cut, "", None, None, since_gsn=since_gsn)

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
            asked = (held.name, held.gsn, event.seen.cut, seen.position, None, None)
            self.records.record([table_row(event.table, *asked, since_gsn=held.since_gsn)])
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
        unproven = unproven_of(found, table_id, held.since_gsn) if finding.verdict is Verdict.UNKNOWN else None
        if finding.verdict is Verdict.EQUAL and not is_of_one_moment(found):
            unsure = self._why_unsure(table, since_gsn_of(found, held.gsn))
            finding = Finding(Verdict.UNKNOWN, unsure, finding.lake_rows) if unsure else finding
        held.since_gsn = told_since(found, held.since_gsn)
        self._over(table, held, cut, position, rows, finding, unproven)
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
        self,
        table: TableId,
        held: _Verification,
        cut: int,
        position: str,
        rows: int | None,
        finding: Finding,
        unproven: LandedFocus | None = None,
    ) -> None:
        if held.is_over:  # given up while its changes were looked at
            return
        since_gsn = held.since_gsn if finding.verdict is Verdict.EQUAL else 0
        row = table_row(table, held.name, held.gsn, cut, position, rows, finding, held.focus, unproven, since_gsn)
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
                held.since_gsn = row.get("since_gsn") or 0
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
