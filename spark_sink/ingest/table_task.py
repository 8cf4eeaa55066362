"""What a Spark task does with its rows of the cut log: one table after the other, an outcome each.

A fault of one table is its outcome, never the task's end, so that other tables go on.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from traceback import extract_tb
from typing import TypeVar

import pyarrow as pa
from deltalake.exceptions import DeltaError, DeltaProtocolError, SchemaMismatchError
from menura.instants import now_us
from menura.stores.options import StorageOptions, use
from menura.stores.reasons import reason_of
from pyspark.sql import Row

from spark_sink.errors import LakeStorageFailed, ParentStopped, TableFolderRefused, TableStopped, TableUnexpected
from spark_sink.ingest.at_work import told_at_work
from spark_sink.ingest.batch_share import BatchShare, behind
from spark_sink.ingest.families import parents_of
from spark_sink.ingest.table_writer import Versions, apply_work, held_cut, merge_waiting
from spark_sink.lake.changelog_retention import KEEP_ALL, KeepRules, shorten
from spark_sink.lake.current_rows import merge_effect
from spark_sink.lake.delta_table import Layout, create_table, open_table
from spark_sink.lake.net_effect import DELETED, keyed_effect
from spark_sink.lake.recorded import NOTHING, Recorded
from spark_sink.lake.retention import KEEP_HOURS, clean, is_due
from spark_sink.lake.schema_policy import EVOLVE_ALL, SchemaRules
from spark_sink.lake.table_folders import Folders, TableFolders, table_folder, told_folders
from spark_sink.lake.table_options import PLAIN_TABLES, OptionRules
from spark_sink.lake.tail import AT_ONCE, Waiting
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import (
    CHANGELOG,
    CURRENT,
    DigestChunk,
    DueChunk,
    Message,
    Outcome,
    ParentsChanged,
    Result,
    TableFile,
    TableId,
    Work,
    encode,
    plain_size,
    split_rows,
)

STORAGE_ATTEMPTS = 3
STORAGE_PAUSE_SECONDS = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskSize:
    """What of one table a task merges at once; a cut beyond it is merged by Spark (`large_merge`).

    Measured with 11 columns: 500,000 changes of a table of 2,000,000 rows take a worker to 1.0 GiB and 3.4 s,
    1,500,000 (57 MiB landed) to 2.1 GiB and 6.9 s. Bytes are those of the rows, not of the files: repeated text of
    385 MB landed as 0.42 MB.
    """

    rows: int = 1_000_000
    plain_bytes: int = 256 << 20

    def holds(self, work: Sequence[Work]) -> bool:
        """Chunks of ranges do not count: they are merged piece by piece."""
        counted = [each for each in work if isinstance(each, TableFile) and not each.is_range]
        plain_bytes = sum(map(plain_size, counted))
        return sum(each.rows for each in counted) <= self.rows and plain_bytes <= self.plain_bytes

    def groups(self, work: Sequence[Work]) -> list[list[Work]]:
        """Whole cuts, as many together as fit; at least one. A group ends with a cut that a verification looks at."""
        groups: list[list[Work]] = []
        for _, found in groupby(work, key=lambda each: each.cut):
            cut = list(found)
            if (
                groups
                and not any(isinstance(each, DigestChunk) for each in groups[-1])
                and self.holds([*groups[-1], *cut])
            ):
                groups[-1].extend(cut)
            else:
                groups.append(cut)
        return groups


@dataclass(frozen=True, slots=True)
class TaskSettings:
    landing: str
    lake: str
    #: tables that wait for somebody; their files and events are left alone
    stopped: frozenset[TableId]
    size: TaskSize
    #: what tables' folders must hold
    recorded: Mapping[TableId, Recorded] = field(default_factory=dict)
    #: how long old versions of a table stay readable
    keep_hours: int = KEEP_HOURS
    #: the driver's, with its secrets
    storage: StorageOptions = field(default_factory=StorageOptions)
    #: how long changes of a large table wait to be merged
    waiting: Waiting = AT_ONCE
    #: how much of their changelogs is kept
    keep_changelogs: KeepRules = KEEP_ALL
    #: what becomes of changes of their definitions
    schema_changes: SchemaRules = EVOLVE_ALL
    #: what their current states have beyond their sources' rows
    table_options: OptionRules = PLAIN_TABLES
    #: where all tables are that have a folder; None: each one's is the default
    folders: Folders | None = None
    #: why tables get none
    refused: Mapping[TableId, str] = field(default_factory=dict)
    #: how much of one table others wait for; None: as much as there is
    share: BatchShare | None = None
    #: whether tables that were stopped before say that there is something of them
    tells_left_out: bool = False
    #: where tasks say which table they are at (`at_work`); '': nowhere
    at_work: str = ""

    def has_folder(self, table: TableId) -> bool:
        return self.folders is None or table in self.folders


def table_task(settings: TaskSettings) -> Callable[[Iterable[Row]], Iterator[str]]:
    """A function for `RDD.mapPartitions`: rows of `cut_log_source.ROW_SCHEMA` in, messages of `work` out.

    Not `mapInArrow`, which does the same but wants pandas installed; the rows are names and numbers.
    """

    def run(rows: Iterable[Row]) -> Iterator[str]:
        use(settings.storage)
        known, tables = split_rows(row.asDict() for row in rows)
        for message in known:
            yield encode(message)
        with told_folders(settings.lake, settings.folders or {}), told_at_work(settings.at_work) as begins:
            for outcome in apply_tables(settings, tables.items(), begins):
                yield encode(outcome)

    return run


def merge_task(settings: TaskSettings) -> Callable[[Iterable[tuple[TableId, int]]], Iterator[str]]:
    """The same for tables whose tail is to be merged, each with the cut that it is at."""

    def run(tables: Iterable[tuple[TableId, int]]) -> Iterator[str]:
        use(settings.storage)
        with told_folders(settings.lake, settings.folders or {}):
            for table, cut in tables:
                merge = partial(merge_waiting, settings.lake, table)
                outcome = attempted(table, Outcome(table, Result.APPLIED, 0, cut), cut, merge)
                recorded = settings.recorded.get(table, NOTHING)
                done = outcome.result is not Result.STOPPED
                yield encode(
                    replace(outcome, unclean=clean_when_due(settings, table, recorded, outcome)) if done else outcome
                )

    return run


def with_folders(
    done: list[Message], settings: TaskSettings, folders: TableFolders, again: Callable[[TaskSettings], list[Message]]
) -> list[Message]:
    """What tasks have said, once new tables among it have their folders, or are refused.

    Where tasks have left tables for that, `again` does all of the batch: what its other tables have they skip.
    """
    unplaced = {each.table for each in done if isinstance(each, Outcome) and each.result is Result.UNPLACED}
    if not unplaced:
        return done
    refused = folders.assign(unplaced)
    said = again(replace(settings, folders=folders.of_tasks, refused=refused))
    outcomes = {each.table: each for each in said if isinstance(each, Outcome)}
    return [outcomes[each.table] if isinstance(each, Outcome) and each.table in unplaced else each for each in done]


def apply_tables(
    settings: TaskSettings,
    tables: Iterable[tuple[TableId, Sequence[Work]]],
    begins: Callable[[TableId], object] = lambda _: None,
) -> Iterator[Outcome]:
    """`begins` is called with each table that is done next."""
    log = LandingLog(settings.landing)
    stopped_now, large, unplaced = set(settings.stopped), set[TableId](), set[TableId]()
    found = list(tables)
    followed = {parent for table, work in found for parent in parents_of(table, work)}
    for table, work in found:
        if table in settings.stopped:
            yield from left_out(settings, table, work)
            continue
        begins(table)
        groups = settings.size.groups(work)
        parents = parents_of(table, work)
        recorded = settings.recorded.get(table, NOTHING)
        if stopping := parents & stopped_now:
            outcome = parent_stopped(table, work[0], min(stopping))
        elif table in settings.refused:
            outcome = stopped(table, work[0], folder_refused(table, work[0].cut, settings.refused[table]))
        elif not settings.has_folder(table) or parents & unplaced:
            outcome = Outcome(table, Result.UNPLACED, work[0].entry, work[-1].cut)
            unplaced.add(table)
        elif not parents and table not in followed and is_more_than_share(settings, table, work):
            outcome = stopped(table, work[0], behind(table, work[0].cut))
        elif all(settings.size.holds(group) for group in groups) and not parents & large:
            outcome = apply_table(table, work, partial(apply_groups, log, settings, table, groups, recorded))
        else:
            rows = sum(each.rows for each in work)
            outcome = Outcome(table, Result.LARGE, work[0].entry, work[-1].cut, rows, work=tuple(work))
        if outcome.result is Result.STOPPED:
            stopped_now.add(table)
        elif outcome.result is Result.LARGE:
            large.add(table)
        if outcome.result is Result.APPLIED:
            if table not in followed:  # others need its changes, perhaps from further back
                outcome = shortened_when_due(settings, table, recorded, outcome)
            outcome = replace(outcome, unclean=outcome.unclean or clean_when_due(settings, table, recorded, outcome))
        has_own = not all(isinstance(each, ParentsChanged) for each in work)
        yield replace(outcome, has_own=has_own)


def left_out(settings: TaskSettings, table: TableId, work: Sequence[Work]) -> Iterator[Outcome]:
    if settings.tells_left_out:
        yield Outcome(table, Result.LEFT_OUT, work[0].entry, work[-1].cut)


def is_more_than_share(settings: TaskSettings, table: TableId, work: Sequence[Work]) -> bool:
    """Whether others are not to wait for what of this the table does not have yet."""
    share = settings.share
    if share is None or share.holds(work):
        return False
    try:
        held = held_cut(settings.lake, table)
    except (OSError, DeltaError):  # writing it meets the same, and says it
        return False
    return not share.holds(each for each in work if each.cut > held)


def shortened_when_due(settings: TaskSettings, table: TableId, recorded: Recorded, outcome: Outcome) -> Outcome:
    """The outcome of a table whose changelog has lost, in its turn, what need not be kept."""
    keep = settings.keep_changelogs.of(table)
    changelog_folder, current_folder = (f"{table_folder(settings.lake, table)}/{kind}" for kind in (CHANGELOG, CURRENT))
    if keep.all or not is_due(changelog_folder, recorded.changelog, outcome.changelog_version):
        return outcome
    try:
        changelog, current = open_table(changelog_folder), open_table(current_folder)
        if changelog is None or current is None:
            return outcome
        begins_gsn = shorten(table, changelog, current, keep, settings.keep_hours, now_us())
    except (OSError, DeltaError) as failure:
        return replace(outcome, unclean=type(failure).__name__)
    return replace(outcome, changelog_begins_gsn=begins_gsn)


def clean_when_due(settings: TaskSettings, table: TableId, recorded: Recorded, outcome: Outcome) -> str:
    """Which failure kept the table from being cleaned: its rows are there all the same, and its turn comes again."""
    versions = (
        (CHANGELOG, recorded.changelog, outcome.changelog_version),
        (CURRENT, recorded.current, outcome.current_version),
    )
    try:
        for kind, before, after in versions:
            folder = f"{table_folder(settings.lake, table)}/{kind}"
            if is_due(folder, before, after):
                clean(folder, settings.keep_hours)
    except (OSError, DeltaError) as failure:
        return type(failure).__name__
    return ""


def parent_stopped(table: TableId, first: Work, parent: TableId) -> Outcome:
    """A child can't go on without the changes of a table that its foreign keys follow."""
    stop = ParentStopped(
        "carrying out a foreign key's actions",
        f"{parent.database}.{parent.table}, to which the table refers, has stopped",
        data="The table stays at its last version; other tables go on",
        remedy="It goes on by itself once that table does",
        **table.where(first.cut),
    )
    return stopped(table, first, stop)


def folder_refused(table: TableId, cut: int, why: str) -> TableFolderRefused:
    return TableFolderRefused(
        "giving the table its folder in the lake",
        why,
        data="Nothing of the table is written; other tables go on",
        remedy="Start the sink with --table-folders that give it another one: then it is tried again by itself",
        **table.where(cut),
    )


def apply_groups(
    log: LandingLog, settings: TaskSettings, table: TableId, groups: Sequence[Sequence[Work]], recorded: Recorded
) -> Versions:
    """One group of cuts after the other, each a version of its own. Raises `TableStopped`."""
    policy, options = settings.schema_changes.of(table), settings.table_options.of(table)
    done = [
        apply_work(log, settings.lake, table, group, recorded, settings.waiting, policy, options) for group in groups
    ]
    due = tuple(
        DueChunk(each, versions.changelog, versions.current)
        for group, versions in zip(groups, done, strict=True)
        for each in group
        if isinstance(each, DigestChunk)
    )
    return replace(done[-1], changed=any(versions.changed for versions in done), due=due)


def apply_table(table: TableId, work: Sequence[Work], apply: Callable[[], Versions]) -> Outcome:
    """One table's outcome, whatever happens to it in `apply`."""
    rows = sum(each.rows for each in work)
    return attempted(table, Outcome(table, Result.APPLIED, work[0].entry, work[-1].cut, rows), work[0].cut, apply)


def attempted(table: TableId, planned: Outcome, first_cut: int, apply: Callable[[], Versions]) -> Outcome:
    """The planned outcome with what came of it."""
    began = time.monotonic()
    versions = tried(table, planned.cut, apply)
    if isinstance(versions, TableStopped):
        return _stopped(table, planned.entry, first_cut, versions)
    return replace(
        planned,
        result=Result.APPLIED if versions.changed else Result.SKIPPED,
        rows=planned.rows if versions.changed else 0,
        seconds=round(time.monotonic() - began, 4),
        changelog_version=versions.changelog,
        current_version=versions.current,
        merged_gsn=versions.waits.merged_gsn,
        merge_at_us=versions.waits.until_us,
        merges_detached=versions.waits.is_detached,
        due=versions.due,
        departure=versions.departure.words,
    )


def tried(table: TableId, cut: int, apply: Callable[[], T]) -> T | TableStopped:
    """What `apply` gives, or why it gives nothing, whatever happens in it."""
    try:
        return with_storage_retries(table, cut, apply)
    except TableStopped as stop:
        return stop
    except BaseException as unexpected:  # the table's top: one table never stops another
        if not isinstance(unexpected, Exception) and not is_panic(unexpected):
            raise
        return unexpected_stop(table, cut, unexpected)


def with_storage_retries(table: TableId, cut: int, apply: Callable[[], T]) -> T:
    """`apply`, again after a pause while the storage fails. Raises `LakeStorageFailed` at the end."""
    attempt = 1
    while True:
        try:
            return apply()
        except (OSError, DeltaError) as failure:
            if isinstance(failure, SchemaMismatchError | DeltaProtocolError):
                raise
            if attempt == STORAGE_ATTEMPTS:
                raise LakeStorageFailed(
                    "writing the table in the lake",
                    f"{type(failure).__name__} ({reason_of(failure)}) in {STORAGE_ATTEMPTS} attempts",
                    data="The table stays at its last version; other tables go on",
                    remedy="It is tried again by itself, more and more slowly; check the lake's storage; where that is"
                    f" well, report this; it is tried at once by: {table.retry}",
                    **table.where(cut),
                ) from failure
        time.sleep(STORAGE_PAUSE_SECONDS * attempt)
        attempt += 1


def is_panic(failure: BaseException) -> bool:
    """Whether Rust code has failed an assertion; its class is no `Exception`, and nobody can import it."""
    return type(failure).__module__ == "pyo3_runtime"


def unexpected_stop(table: TableId, cut: int, unexpected: BaseException) -> TableUnexpected:
    """Names the class and the place alone: the text of an engine's error may hold values."""
    package = str(Path(__file__).parents[1])
    ours = [frame for frame in extract_tb(unexpected.__traceback__) if frame.filename.startswith(package)]
    place = f"{ours[-1].name}, line {ours[-1].lineno}"
    return TableUnexpected(
        "writing the table in the lake",
        f"{type(unexpected).__name__} in {place}",
        data="The table stays at its last version; other tables go on",
        remedy=f"Report this as a bug; the table is tried again when the sink starts, or at once by: {table.retry}",
        **table.where(cut),
    )


def stopped(table: TableId, first: Work, stop: TableStopped) -> Outcome:
    return _stopped(table, first.entry, first.cut, stop)


def _stopped(table: TableId, entry: int, cut: int, stop: TableStopped) -> Outcome:
    return Outcome(
        table,
        Result.STOPPED,
        stop.from_entry or entry,
        cut,
        code=stop.code,
        message=str(stop),
        terminal=stop.terminal,
    )


def warm_up(_: Iterable[object]) -> Iterator[str]:
    """Let a worker meet all that a batch needs, on a table in a scratch folder: the first batch is late without."""
    schema = pa.schema([("id", pa.int64()), (DELETED, pa.bool_())])
    with tempfile.TemporaryDirectory(prefix="menura-warm-up-") as folder:
        table = create_table(folder, pa.schema([schema.field("id")]), Layout("", ("id",), ("id",)))
        for version in (1, 2):
            merge_effect(table, schema.empty_table(), ["id"], [("warm-up", version)])
            rows = pa.Table.from_pylist([{"id": version, DELETED: False}, {"id": 1, DELETED: False}], schema=schema)
            merge_effect(table, keyed_effect(rows, ["id"]), ["id"], [("warm-up/rows", version)])
    return iter(())
