"""One changed table's part of a batch: append to its changelog, merge into its current state.

Comes in: the table's landed files and events, in cut order, and what `cascades` derives from its parents' changes. Goes
out: two Delta commits (more only where the batch
has events or dumps, or the columns or the key changed). Both tables carry Delta's `txn` {TENANT/SOURCE: cut} and
{TENANT/SOURCE/gsn: number}; what is of a cut, or has a number, at or below it is skipped. So a kill leaves each table
between two commits, and the replay, also one from a lost checkpoint with other batch bounds, completes what is
missing. A kill between the two tables leaves the current state behind the changelog until then.

Changes alone of a large table may wait in the changelog (`tail`): then the batch is the changelog's commit alone. What
can't wait merges the tail first, in a commit of its own, but where it takes all rows away.

A commit that meets another writer of the same cut (a task whose driver was killed lives on for a moment) fails, is
read anew, and finds its work done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from menura.instants import now_us

from spark_sink.ingest.cut_log_source import SYNC_STARTED
from spark_sink.lake import merge
from spark_sink.lake.cascades import Child
from spark_sink.lake.changelog import Changelog
from spark_sink.lake.current_rows import SMALL_BYTES
from spark_sink.lake.delta_table import (
    commit_nothing,
    open_again,
    open_table,
    read_cut,
    read_layout,
    read_progress,
    remember_table,
    size_bytes,
)
from spark_sink.lake.merge import MergeRows, merge_segment
from spark_sink.lake.recorded import Recorded, check_held, check_predecessors
from spark_sink.lake.schema_policy import (
    Departure,
    Pending,
    SchemaPolicy,
    begins_anew,
    check_unchanged,
    following,
    read_departure,
)
from spark_sink.lake.steps import EventStep, Step, check_change_types, check_keys, check_steps, steps
from spark_sink.lake.table_folders import table_folder
from spark_sink.lake.table_options import NO_OPTIONS, TableOptions, check_options, set_change_feed
from spark_sink.lake.tail import (
    AT_ONCE,
    NO_WAIT,
    Tail,
    Wait,
    Waiting,
    may_wait,
    merge_tail,
    read_tail,
    tail_transactions,
    wait_of,
)
from spark_sink.landed.landed_file import LandedPart, open_landed, read_landed
from spark_sink.landed.landing_log import LandingLog
from spark_sink.landed.stages import Stage, stages
from spark_sink.work import (
    CHANGELOG,
    CURRENT,
    CutEvent,
    DigestChunk,
    DueChunk,
    ParentsChanged,
    TableFile,
    TableId,
    Work,
)

COMMIT_ATTEMPTS = 5

#: the last says whether columns of unknown types are left out
ReadFile = Callable[[LandingLog, TableId, TableFile, bool], LandedPart]

NO_DEPARTURE = Departure()


@dataclass(frozen=True, slots=True)
class Versions:
    """Where the two tables stand; None where an earlier run has brought one beyond the batch's last cut."""

    changelog: int | None
    current: int | None
    changed: bool
    waits: Wait = NO_WAIT
    #: chunks of verifications whose cuts end with versions of these
    due: tuple[DueChunk, ...] = ()
    #: in what the current state is not its source's table
    departure: Departure = NO_DEPARTURE


def apply_work(
    log: LandingLog,
    lake: str,
    table: TableId,
    work: Sequence[Work],
    recorded: Recorded,
    waiting: Waiting = AT_ONCE,
    policy: SchemaPolicy = SchemaPolicy.EVOLVE,
    options: TableOptions = NO_OPTIONS,
) -> Versions:
    """Bring both tables to the last of `work`. Raises `TableStopped`; OSError when the lake's storage fails."""
    for attempt in range(1, COMMIT_ATTEMPTS + 1):
        try:
            merge_rows = partial(merge_segment, table)
            return apply_once(log, lake, table, work, recorded, _read_checked, merge_rows, waiting, policy, options)
        except CommitFailedError:
            if attempt == COMMIT_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def held_cut(lake: str, table: TableId) -> int:
    """Up to which both tables have everything; 0: nothing."""
    log_table, current = (
        open_again(f"{table_folder(lake, table)}/{kind}", table.application) for kind in (CHANGELOG, CURRENT)
    )
    logged, merged = (read_progress(delta, table.application) for delta in (log_table, current))
    tail = read_tail(log_table, table.application, merged) if current is not None else None
    return min(logged.cut, tail.progress.cut if tail is not None else merged.cut)


def _read_checked(log: LandingLog, table: TableId, file: TableFile, leaves_out: bool) -> LandedPart:
    if file.is_range:
        return open_landed(log, table, file, leaves_out)  # merged in pieces
    landed = read_landed(log, table, file, leaves_out)
    check_change_types(table, file, landed.rows)
    return landed


def apply_once(
    log: LandingLog,
    lake: str,
    table: TableId,
    work: Sequence[Work],
    recorded: Recorded,
    read: ReadFile,
    merge_rows: MergeRows,
    waiting: Waiting = AT_ONCE,
    policy: SchemaPolicy = SchemaPolicy.EVOLVE,
    options: TableOptions = NO_OPTIONS,
) -> Versions:
    """`apply_work` with other ways to read a file and to merge rows. Raises CommitFailedError where another wrote."""
    changelog_folder, current_folder = (f"{table_folder(lake, table)}/{kind}" for kind in (CHANGELOG, CURRENT))
    log_table, current = (open_again(folder, table.application) for folder in (changelog_folder, current_folder))
    check_held(table, work[0].cut, recorded, log_table, current)
    logged, merged = (read_progress(delta, table.application) for delta in (log_table, current))
    tail = read_tail(log_table, table.application, merged) if current is not None else None
    reached = tail.progress if tail is not None else merged
    held_cut = min(logged.cut, reached.cut)
    if not recorded.begins_at_gsn:
        check_predecessors(table, work, held_cut)
    elif not (work := [each for each in work if each.last_gsn >= recorded.begins_at_gsn]):
        return Versions(None, None, changed=False)  # a replay of what it has left out
    pending = [
        (each.cut, each if isinstance(each, CutEvent) else read(log, table, each, policy is SchemaPolicy.TRY_EVOLVE))
        for each in work
        if each.cut > held_cut and not isinstance(each, ParentsChanged | DigestChunk)
    ]
    pending = without_former_rows(pending, current or log_table)
    if current is not None and pending:
        _take_options(table, options, current, pending, reached.gsn)
    if policy is SchemaPolicy.EXCEPTION:
        check_unchanged(table, pending, current or log_table, reached.gsn)
    marks = [each for each in work if isinstance(each, ParentsChanged) and each.cut > held_cut]
    if marks:
        _merge_tail(table, current, log_table, tail)
        pending = Child(lake, table, current, log_table, reached, logged, pending, marks).followed()

    followed = following(table, policy, pending, options)
    todo = steps(table, _stages(followed.pending, reached.cut), reached)
    check_steps(table, todo)
    if options.soft_delete:
        check_keys(table, todo)
    end_cut, end_gsn = work[-1].cut, max(each.last_gsn for each in work)
    now = now_us()
    waits = (
        (reached.cut, reached.gsn) == (logged.cut, logged.gsn)
        and not marks
        and may_wait(waiting, current, log_table, todo, tail, now)
    )
    changelog = Changelog(log_table, changelog_folder, table, logged)
    if waits:
        since_us = tail.since_us if tail is not None and not tail.is_rest else now
        ends = todo[-1].last_gsn
        changelog.append(
            _stages(followed.logged, logged.cut),
            end_cut,
            tail_transactions(table.application, end_cut, ends, merged.gsn, since_us),
        )
    else:
        if todo and not _removes_rows(todo[0]):
            _merge_tail(table, current, log_table, tail)
        changelog.append(_stages(followed.logged, logged.cut), end_cut)
        current = merge.follow(current, current_folder, followed, todo, reached, end_cut, merge_rows, changelog.delta)
    own_cut = max((each.cut for each in work if isinstance(each, TableFile)), default=0)
    for delta in (changelog.delta, *([] if waits else [current])):
        _reach(delta, table.application, own_cut)
    if current is not None and size_bytes(current) <= SMALL_BYTES:
        remember_table(changelog_folder, changelog.delta, table.application)
        remember_table(current_folder, current, table.application)
    is_at_end = reached.cut <= end_cut and reached.gsn <= end_gsn
    return Versions(
        _version_at(changelog.delta, logged.cut <= end_cut and logged.gsn <= end_gsn),
        _version_at(current, is_at_end),
        bool(pending),
        wait_of(waiting, table, changelog.delta, current, now) if waits or tail is not None else NO_WAIT,
        departure=read_departure(current) if current is not None else NO_DEPARTURE,
    )


def _stages(pending: Pending, above_cut: int) -> list[Stage]:
    return stages([each for cut, each in pending if cut > above_cut])


def _take_options(
    table: TableId, options: TableOptions, current: DeltaTable, pending: Pending, merged_gsn: int
) -> None:
    """Have the table's options be its rule's, or stop it. Raises `TableOptionsChanged`."""
    is_new = [isinstance(each, CutEvent) and begins_anew(each) and each.first_gsn > merged_gsn for _, each in pending]
    check_options(table, options, current, pending[0][0], begins_anew=any(is_new))
    set_change_feed(current, options)


def without_former_rows(pending: Pending, held: DeltaTable | None) -> list[tuple[int, LandedPart | CutEvent]]:
    """The same, but where a table without a key begins again its event removes all rows: they may come once more."""
    if not any(isinstance(each, CutEvent) and each.event.kind == SYNC_STARTED for _, each in pending):
        return list(pending)
    has_key = held is not None and bool(read_layout(held).key)
    found: list[tuple[int, LandedPart | CutEvent]] = []
    for cut, each in pending:
        new = each
        if not isinstance(each, CutEvent):
            has_key = bool(each.shape.key)
        elif each.event.columns:
            has_key = any(column.key for column in each.event.columns)
        elif each.event.kind == SYNC_STARTED and not has_key:
            new = replace(each, event=replace(each.event, removes_rows=True))
        found.append((cut, new))
    return found


def merge_waiting(lake: str, table: TableId) -> Versions:
    """Merge the table's tail, if it has one. Raises `TableStopped`; OSError when the lake's storage fails."""
    log_table, current = (open_table(f"{table_folder(lake, table)}/{kind}") for kind in (CHANGELOG, CURRENT))
    if log_table is None or current is None:
        return Versions(None, None, changed=False)
    tail = read_tail(log_table, table.application, read_progress(current, table.application))
    if tail is None or tail.gsn < read_progress(log_table, table.application).gsn:
        return Versions(None, None, changed=False)  # a killed run has begun what merges it
    _merge_tail(table, current, log_table, tail)
    return Versions(log_table.version(), current.version(), changed=True, departure=read_departure(current))


def _removes_rows(step: Step) -> bool:
    return isinstance(step, EventStep) and step.seen.event.removes_rows


def _merge_tail(table: TableId, current: DeltaTable | None, changelog: DeltaTable | None, tail: Tail | None) -> None:
    if tail is None or current is None or changelog is None:
        return
    if read_progress(current, table.application).gsn < tail.gsn:  # once
        merge_tail(table, current, changelog, tail)


def _reach(delta: DeltaTable | None, application: str, cut: int) -> None:
    """Commit the cut of files that left nothing to write, e.g. after a kill, so that later ones find it held."""
    if delta is not None and read_cut(delta, application) < cut:
        commit_nothing(delta, [(application, cut)])


def _version_at(delta: DeltaTable | None, is_at_end: bool) -> int | None:
    return int(delta.version()) if delta is not None and is_at_end else None
