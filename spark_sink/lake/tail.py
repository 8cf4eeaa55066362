"""A table's tail: changes that its changelog has, and its current state has not yet.

A MERGE costs what the table is, not what changed. So a large table's current state is merged once in a while, and
between two merges its changes wait in the changelog alone. Comes in: the two Delta tables. Goes out: whether a batch's
changes may wait, the merge of those that waited, and a table's rows as of both (`Rows`), for whoever reads them.

A batch that waits is one commit of the changelog, which carries beside its cut and number the tail's own: up to which
number and cut it is, from which number on (where the current state was) and since when. The tail is the changes above
the current state's number, up to the tail's. It has neither events nor rows of dumps: these are done to a current state
that has its tail. So a kill leaves either nothing of a batch or all of it, and a merge that was killed is done again
from the same changes. Where the current state's number is below that from which the tail began, it is another copy;
where it is not below the tail's end, there is no tail.

A rewrite of all files of a table is paid for by `BYTES_PER_SECOND`: the larger the table, the longer its changes wait,
so that merging costs any table the same in the long run; a table of few bytes never waits. A tail that is long beside
the table, or near to what a task takes at once, is merged sooner.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, UNREPRESENTABLE, ChangeType

from spark_sink.lake.current_rows import living, match_columns, merge_effect
from spark_sink.lake.delta_table import (
    Progress,
    Transactions,
    progress_transactions,
    quoted,
    read_layout,
    read_progress,
    scan,
    schema_of,
    size_bytes,
)
from spark_sink.lake.logged_changes import LoggedChanges, gathered
from spark_sink.lake.merge import effect_on
from spark_sink.lake.net_effect import DELETED, IS_DELETED, KEY_TEXT
from spark_sink.lake.partial_rows import has_partial, row_keys
from spark_sink.lake.steps import Segment, Step
from spark_sink.landed.landed_file import LandedPart
from spark_sink.work import TableId

MERGE_SECONDS = 60
#: of a table's files, that may be written anew for its changes' sake
BYTES_PER_SECOND = 1 << 19
#: a current state up to this is merged with each batch
SMALL_BYTES = 4 << 20
#: a tail of more than this part of the current state's bytes is merged
PART_OF_TABLE = 1 / 8
#: a tail of more rows is merged; a reader has them in memory
MOST_ROWS = 250_000
MOST_BYTES = 64 << 20
#: a current state of more bytes, or rows, is merged beside batches (`file_merge`), unless the sink runs to an end: a
#: merge of 500,000 rows takes a second
DETACHED_BYTES, DETACHED_ROWS = 16 << 20, 500_000
#: its tail has that many times the rows and bytes that make it due before a batch merges it by itself
PATIENCE = 2


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long changes may wait; `seconds` 0: never."""

    seconds: float = MERGE_SECONDS
    small_bytes: int = SMALL_BYTES
    most_rows: int = MOST_ROWS
    part_of_table: float = PART_OF_TABLE
    #: a table of more bytes, or of many rows, is merged beside batches; None: none is
    detached_bytes: int | None = None

    def is_detached(self, current: DeltaTable) -> bool:
        """Whether a table's waiting changes are merged beside batches."""
        if not self.seconds or self.detached_bytes is None:
            return False
        rows = pc.sum(pa.table(current.get_add_actions())["num_records"]).as_py() or 0
        return bool(size_bytes(current) > self.detached_bytes or rows > DETACHED_ROWS)

    def most_bytes(self, table_bytes: int) -> int:
        return min(MOST_BYTES, int(table_bytes * self.part_of_table))

    def seconds_of(self, table_bytes: int) -> float:
        """Of a table whose files have so many bytes."""
        return max(self.seconds, table_bytes / BYTES_PER_SECOND)


AT_ONCE = Waiting(seconds=0)


@dataclass(frozen=True, slots=True)
class Tail:
    cut: int
    gsn: int
    #: the current state's
    merged: Progress
    since_us: int
    #: whether some of what began to wait then is merged since
    is_rest: bool = False

    @property
    def progress(self) -> Progress:
        """Of the current state with its tail."""
        cut = max(self.cut, self.merged.cut)
        return Progress(cut, self.gsn, max(cut, self.merged.chunk_cut))


def read_tail(changelog: DeltaTable | None, application: str, merged: Progress) -> Tail | None:
    """The tail above a current state that is merged so far; None where there is none."""
    if changelog is None or not merged.gsn:
        return None
    cut, gsn, from_gsn, since_us = _applications(application)
    last = changelog.transaction_version(gsn) or 0
    if last <= merged.gsn:
        return None  # the rest is not asked of a table that is remembered, which would be opened for it
    first, end_cut, since = (changelog.transaction_version(name) or 0 for name in (from_gsn, cut, since_us))
    return Tail(end_cut, last, merged, since, is_rest=first < merged.gsn) if first <= merged.gsn else None


def _applications(application: str) -> tuple[str, str, str, str]:
    return tuple(f"{application}/tail/{name}" for name in ("cut", "gsn", "from", "since"))  # type: ignore[return-value]


def tail_transactions(application: str, cut: int, gsn: int, from_gsn: int, since_us: int) -> list[tuple[str, int]]:
    """What the changelog's commit carries of changes that wait."""
    return list(zip(_applications(application), (cut, gsn, from_gsn, since_us), strict=True))


def may_wait(
    waiting: Waiting,
    current: DeltaTable | None,
    changelog: DeltaTable | None,
    todo: Sequence[Step],
    tail: Tail | None,
    now_us: int,
) -> bool:
    """Whether these steps are changes alone, of the columns that both tables have, and need not be merged yet."""
    if current is None or changelog is None or not waiting.seconds or not todo:
        return False
    table_bytes = size_bytes(current)
    if table_bytes <= waiting.small_bytes:
        return False
    segments = [step for step in todo if isinstance(step, Segment)]
    layouts = (read_layout(current), read_layout(changelog))
    names = schema_of(current).names
    if len(segments) < len(todo) or ABSENT not in names or ABSENT not in schema_of(changelog).names:
        return False
    if any(segment.layout != layout for segment in segments for layout in layouts):
        return False
    parts = [part for segment in segments for part in segment.parts]
    if any(part.file.chunk is not None for part in parts) or any(segment.keeps_numbers for segment in segments):
        return False
    if KEY_TEXT not in names and any(part.may_have(UNREPRESENTABLE) for part in parts):
        return False  # the current state may need that column
    if any(
        pa.types.is_floating(schema_of(current).field(name).type)
        for name in match_columns(schema_of(current), layouts[0].key)
    ):
        return False  # there is more than one zero, and what is no number equals itself nowhere but in a MERGE
    if tail is None and not layouts[0].key and _inserts_alone(parts):
        return False  # that is an append
    rows, size = sum(part.file.rows for part in parts), sum(part.file.bytes for part in parts)
    is_detached = waiting.is_detached(current)
    if tail is not None:
        # A clock may go back. What is merged beside batches has its time there.
        is_late = not 0 <= now_us - tail.since_us < waiting.seconds_of(table_bytes) * 1e6
        if is_late and not is_detached:
            return False
        more_rows, more_bytes = size_above(changelog, tail.merged.gsn)
        rows, size = rows + more_rows, size + more_bytes
    patience = PATIENCE if is_detached else 1
    return rows <= patience * waiting.most_rows and size <= patience * waiting.most_bytes(table_bytes)


def _inserts_alone(parts: Sequence[LandedPart]) -> bool:
    inserts = pa.array([ChangeType.insert.name])
    return all(pc.all(pc.is_in(rows[CHANGE_TYPE], inserts)).as_py() for part in parts for rows in part.tables())


@dataclass(frozen=True, slots=True)
class Wait:
    """Of a table: up to which number its current state is, and when its tail must be merged; zeros: without a tail."""

    merged_gsn: int = 0
    until_us: int = 0
    #: beside batches
    is_detached: bool = False


NO_WAIT = Wait()


def wait_of(
    waiting: Waiting, table: TableId, changelog: DeltaTable | None, current: DeltaTable | None, now_us: int
) -> Wait:
    if current is None:
        return NO_WAIT
    tail = read_tail(changelog, table.application, read_progress(current, table.application))
    if tail is None:
        return NO_WAIT
    table_bytes = size_bytes(current)
    seconds = waiting.seconds_of(table_bytes) if waiting.seconds else 0
    is_detached = waiting.is_detached(current)
    if is_detached and changelog is not None and not tail.is_rest:
        rows, size = size_above(changelog, tail.merged.gsn)
        if rows > waiting.most_rows or size > waiting.most_bytes(table_bytes):
            seconds = 0
    since_us = min(tail.since_us, now_us)  # a clock may go back
    return Wait(tail.merged.gsn, since_us + int(seconds * 1e6), is_detached)


def size_above(changelog: DeltaTable, above_gsn: int) -> tuple[int, int]:
    """At most how many rows and bytes the changelog has above a number."""
    rows, size = 0, 0
    for file in _files(changelog):
        low, high, count = file[f"min.{GSN}"], file[f"max.{GSN}"], file["num_records"]
        if count is None or low is None or high is None:
            return MOST_ROWS + 1, 0  # without statistics nobody knows
        if high > above_gsn:
            above = min(count, high - max(low - 1, above_gsn))  # each row has a number of its own
            rows += above
            size += file["size_bytes"] * above // max(1, count)
    return rows, size


def _files(changelog: DeltaTable) -> list[dict[str, Any]]:
    found = pa.table(changelog.get_add_actions(flatten=True))
    names = (f"min.{GSN}", f"max.{GSN}", "num_records", "size_bytes")
    columns = {name: found[name] if name in found.column_names else pa.nulls(len(found)) for name in names}
    rows: list[dict[str, Any]] = pa.table(columns).to_pylist()
    return rows


def merge_tail(table: TableId, current: DeltaTable, changelog: DeltaTable, tail: Tail) -> None:
    """One commit, after which the current state is where the tail ends. Raises `TableStopped`."""
    effect, match = tail_effect(table, current, changelog, tail)
    reached = tail.progress
    transactions: Transactions = progress_transactions(table.application, reached.cut, reached.gsn)
    merge_effect(current, effect, match, transactions)


def tail_effect(table: TableId, current: DeltaTable, changelog: DeltaTable, tail: Tail) -> tuple[pa.Table, list[str]]:
    """What the tail does to the current state's rows, and the columns that tell these apart. Raises `TableStopped`."""
    held, layout = schema_of(current), read_layout(current)
    rows = LoggedChanges(changelog, layout, held, tail.gsn).all_rows(tail.merged.gsn)
    if not has_partial(rows):
        rows = rows.drop_columns([CHANGE_TYPE])
    return effect_on(table, current, layout, [rows])


@dataclass(frozen=True, slots=True)
class Rows:
    """A table's rows at one moment: those of its current state, and what its tail does to them."""

    current: DeltaTable
    #: the source's cut, and the number, up to which they are
    progress: Progress
    #: rows to put and to take away, as `merge_effect` has them; None without a tail
    effect: pa.Table | None
    #: the columns that tell rows apart
    match: Sequence[str]

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.current)

    @property
    def keeps_deleted(self) -> bool:
        """Whether rows stay that their source has deleted (`table_options`)."""
        return IS_DELETED in self.schema.names

    def tables(
        self,
        names: Sequence[str],
        skipping: str = "TRUE",
        *,
        with_deleted: bool = False,
        only: Callable[[pa.Table], pa.Table] | None = None,
    ) -> Iterator[pa.Table]:
        """The rows' columns of these names, without deleted rows or with those that the table keeps.

        `skipping`: a condition in delta-rs's SQL that may leave rows out; those of the tail come all the same.
        `only` leaves rows out, of each table.
        """
        rows_there = "TRUE" if with_deleted else living(self.schema)
        effect, match = self.effect, list(self.match)
        read = [*names, *(name for name in match if effect is not None and name not in names)]
        schema = pa.schema([self.schema.field(name) for name in read])
        chosen = ", ".join(map(quoted, read))
        changed = set(row_keys(effect, match)) if effect is not None else set()
        first = effect[match[0]].combine_chunks().unique() if effect is not None else None
        condition = f"({skipping}) AND {rows_there}"
        batches = map(pa.table, scan(self.current, f"SELECT {chosen} FROM t WHERE {condition}"))  # noqa: S608  (quoted)
        for batch in batches if only is None else map(only, gathered(batches)):  # few are left for what follows
            rows = batch.cast(schema)
            if first is not None:
                rows = _without(rows, match, first, changed)
            yield rows.select(list(names))
        if effect is not None:
            is_gone = effect[IS_DELETED] if self.keeps_deleted and not with_deleted else effect[DELETED]
            puts = effect.filter(pc.invert(is_gone)).select(list(names))
            rows = puts.cast(pa.schema([self.schema.field(name) for name in names]))
            yield rows if only is None else only(rows)

    def count(self) -> int:
        if self.effect is None and not self.keeps_deleted:
            return int(pc.sum(pa.table(self.current.get_add_actions())["num_records"]).as_py() or 0)
        return sum(rows.num_rows for rows in self.tables(self.match[:1] or [GSN]))


def _without(rows: pa.Table, match: Sequence[str], first: pa.Array, changed: set[tuple[object, ...]]) -> pa.Table:
    """Rows that the tail leaves as they are; few others have one of these values in the first column."""
    near = pc.is_in(rows[match[0]], first)
    if not pc.any(near).as_py():
        return rows
    places = pc.indices_nonzero(near)
    gone = pa.array([key in changed for key in row_keys(rows.take(places), match)], pa.bool_())
    kept = pa.repeat(pa.scalar(True), rows.num_rows)
    return rows.filter(pc.replace_with_mask(kept, near.combine_chunks(), pc.invert(gone)))


def progress_of(table: TableId, current: DeltaTable, changelog: DeltaTable | None) -> Progress:
    """That of `rows_of`, without its rows."""
    merged = read_progress(current, table.application)
    tail = read_tail(changelog, table.application, merged)
    return merged if tail is None else tail.progress


def rows_of(table: TableId, current: DeltaTable, changelog: DeltaTable | None) -> Rows:
    """Of a changelog that was opened before the current state, or of versions that belong together."""
    merged = read_progress(current, table.application)
    tail = read_tail(changelog, table.application, merged)
    if tail is None or changelog is None:
        return Rows(current, merged, None, ())
    effect, match = tail_effect(table, current, changelog, tail)
    return Rows(current, tail.progress, effect, match)
