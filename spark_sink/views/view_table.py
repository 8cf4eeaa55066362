"""A view's own two Delta tables: its changelog and its current state, which readers take for those of a table.

Comes in: changes, and how far the view's inputs are. Goes out: one commit of the changelog, which carries as Delta's
`txn` the version, the number, and of each input its number, state and versions: the vector of cuts. Then the current
state. A kill between leaves a tail (`spark_sink.lake.tail`), which readers add and the next version merges; of a view
that was never built, a changelog that the current state is copied from. Where more changes wait than a MERGE has in
memory, all rows are written anew (`current_rewrite`). Nothing else is kept: what is lost here is
computed again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from deltalake import write_deltalake
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    POSITION,
    TRANSACTION_ID,
    UNREPRESENTABLE,
)
from menura.stores.options import delta_options
from menura.views.definition import InputName, ViewCut

from spark_sink.lake.delta_table import (
    WRITER,
    Layout,
    Transactions,
    append,
    commit_properties,
    compact_when_due,
    create_table,
    open_table,
    progress_transactions,
    read_layout,
    read_progress,
    scan,
    schema_of,
    size_bytes,
    write_layout,
)
from spark_sink.lake.logged_changes import TRUNCATE
from spark_sink.lake.tail import Rows, Waiting, merge_tail, read_tail, rows_of, tail_transactions
from spark_sink.lake.uncommitted_files import DataFile, commit_files, missing_files
from spark_sink.landed.lake_schema import METADATA_TYPES
from spark_sink.views.current_rewrite import is_large, rewrite_with
from spark_sink.views.inputs import Mark
from spark_sink.views.queries import KIND, NUMBER
from spark_sink.work import CHANGELOG, CURRENT, TableId

#: rows that a current state is copied by at once
_COPIED_ROWS = 65_536
#: of changes that are gathered for one commit; beyond it they are written as they come
MOST_GATHERED_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ViewShape:
    """The columns of a view's tables: its own, with those of the sink, and its key."""

    columns: pa.Schema
    key: tuple[str, ...]

    @property
    def current(self) -> pa.Schema:
        own = [
            pa.field(name, type_)
            for name, type_ in ((UNREPRESENTABLE, pa.string()), (ABSENT, pa.string()), (GSN, pa.int64()))
        ]
        return pa.schema([*self.columns, *own])

    @property
    def changelog(self) -> pa.Schema:
        facts = [pa.field(name, type_) for name, type_ in METADATA_TYPES.items()]
        own = [pa.field(name, pa.string()) for name in (UNREPRESENTABLE, ABSENT)]
        return pa.schema([*facts, *self.columns, *own])

    @property
    def layout(self) -> Layout:
        return Layout("view", tuple(self.columns.names), self.key)


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a view is."""

    version: int
    gsn: int
    #: of its definition
    digest: int
    inputs: Mapping[InputName, Mark]
    cuts: tuple[ViewCut, ...]


class ViewTable:
    """Opened at its last version."""

    def __init__(self, lake: str, table: TableId, at_us: int, versions: tuple[int, int] | None = None) -> None:
        """`at_us`: when it is, by the clock that all turns have; `versions`: of both tables, if not the last ones."""
        self.table = table
        self._at_us = at_us
        self._folders = {kind: f"{table.folder(lake)}/{kind}" for kind in (CHANGELOG, CURRENT)}
        self.changelog, self.current = (open_table(self._folders[kind]) for kind in (CHANGELOG, CURRENT))
        for delta, version in zip((self.changelog, self.current), versions or (), strict=False):
            assert delta is not None
            delta.load_as_version(version)

    def reached(self, inputs: Iterable[InputName], sources: Iterable[str]) -> Reached | None:
        """None before the first version. Of an input that the last version did not have the mark is zeros."""
        log = self.changelog
        if log is None or self.current is None:
            return None
        progress = read_progress(log, self.table.application)
        held = read_progress(self.current, self.table.application)
        digest = log.transaction_version("view/digest")
        if not digest or held.gsn > progress.gsn:  # never built, or the changelog is an older copy: it is computed anew
            return None

        def said(name: str) -> int:
            return log.transaction_version(name) or 0

        marks = {
            name: Mark(*(said(f"view/{word}/{name.source}/{name.database}/{name.table}") for word in _MARK_WORDS))
            for name in inputs
        }
        cuts = tuple(
            ViewCut(source, said(f"view/cut/{source}"), said(f"view/committed/{source}")) for source in sources
        )
        return Reached(progress.cut, progress.gsn, digest, marks, cuts)

    def rows(self) -> Rows:
        assert self.current is not None
        return rows_of(self.table, self.current, self.changelog)

    @property
    def versions(self) -> tuple[int, int]:
        """Of changelog and current state; -1: there is none."""
        log, held = (-1 if delta is None else int(delta.version()) for delta in (self.changelog, self.current))
        return log, held

    def lost_files(self) -> list[str]:
        """Those that its tables name and their folders do not have. Raises OSError, DeltaError."""
        held = [(kind, delta) for kind, delta in ((CHANGELOG, self.changelog), (CURRENT, self.current)) if delta]
        return [f"{kind}/{name}" for kind, delta in held for name in missing_files(self._folders[kind], delta)]

    @property
    def merged_gsn(self) -> int:
        return read_progress(self.current, self.table.application).gsn

    @property
    def highest_gsn(self) -> int:
        held = [read_progress(delta, self.table.application).gsn for delta in (self.changelog, self.current)]
        return max(held)

    @property
    def last_version(self) -> int:
        return max(read_progress(delta, self.table.application).cut for delta in (self.changelog, self.current))

    def is_of(self, shape: ViewShape) -> bool:
        """Whether both tables have these columns, and this key, by which the current state is merged."""
        if self.changelog is None or self.current is None:
            return False
        held = (schema_of(self.changelog), schema_of(self.current))
        keys = {read_layout(delta).key for delta in (self.changelog, self.current)}
        return bool(held == (shape.changelog, shape.current) and keys == {shape.layout.key})

    def begin(self, shape: ViewShape) -> None:
        """Give both tables these columns, and no row; what read the view sees that it was emptied."""
        if self.changelog is None:
            self.changelog = create_table(self._folders[CHANGELOG], shape.changelog, shape.layout)
        if self.current is None:
            self.current = create_table(self._folders[CURRENT], shape.current, shape.layout)
        gsn, version = self.highest_gsn, self.last_version
        if gsn or not self.is_of(shape):
            rows = _truncated(shape, gsn + 1, version + 1)
            said = progress_transactions(self.table.application, version + 1, gsn + 1)
            for delta, content, wanted in (
                (self.changelog, rows, shape.changelog),
                (self.current, shape.current.empty_table(), shape.current),
            ):
                write_deltalake(
                    delta,
                    content.cast(wanted),
                    mode="overwrite",
                    schema_mode="overwrite",
                    writer_properties=WRITER,
                    commit_properties=commit_properties(*said, ("view/digest", 0)),
                )
                write_layout(delta, shape.layout)

    def commit(
        self,
        shape: ViewShape,
        changes: Iterable[pa.Table],
        reached: Reached,
        *,
        is_small: bool,
        more: Transactions = (),
    ) -> int:
        """Append a version to the changelog, in one commit; gives how many rows it has.

        `changes` have `KIND`, `NUMBER` and the view's columns. `is_small`: they are gathered before, up to
        `MOST_GATHERED_BYTES`. `more`: that the commit says.
        """
        assert self.changelog is not None
        transactions = [*self._transactions(reached), *more]
        counted = _Counted()
        rows = (logged(each, shape, reached) for each in counted.over(changes))
        gathered = [shape.changelog.empty_table()]
        if is_small:
            gathered += _first(rows)
        left = next(rows, None)
        if is_small and left is None:
            append(self.changelog, pa.concat_tables(gathered), transactions)
        else:
            others = [left] if left is not None else []
            batches = (batch for each in chain(gathered, others, rows) for batch in each.to_batches())
            append(self.changelog, pa.RecordBatchReader.from_batches(shape.changelog, batches), transactions)
        compact_when_due(self.changelog)
        return counted.rows

    def commit_files(self, files: Sequence[DataFile], reached: Reached, more: Transactions) -> None:
        """The same of changes that are in the changelog's folder, as `logged` has them."""
        assert self.changelog is not None
        commit_files(self.changelog, files, [*self._transactions(reached), *more])
        compact_when_due(self.changelog)

    def put_files(self, files: Sequence[DataFile], reached: Reached, more: Transactions) -> None:
        """Put rows in place of all of the current state's, in whose folder they are."""
        assert self.current is not None
        said = progress_transactions(self.table.application, reached.version, reached.gsn)
        commit_files(self.current, files, [*said, *more], replaces=True)

    def folder(self, kind: str) -> str:
        return self._folders[kind]

    def _transactions(self, reached: Reached) -> list[tuple[str, int]]:
        assert self.changelog is not None
        held = read_progress(self.current, self.table.application)
        said = list(progress_transactions(self.table.application, reached.version, reached.gsn))
        if held.gsn:
            tail = read_tail(self.changelog, self.table.application, held)
            since_us = tail.since_us if tail is not None else self._at_us
            said += tail_transactions(self.table.application, reached.version, reached.gsn, held.gsn, since_us)
        said.append(("view/digest", reached.digest))
        for name, mark in reached.inputs.items():
            values = (mark.gsn, mark.state, mark.changelog_version, mark.current_version)
            said += [
                (f"view/{word}/{name.source}/{name.database}/{name.table}", value)
                for word, value in zip(_MARK_WORDS, values, strict=True)
            ]
        for cut in reached.cuts:
            said += [(f"view/cut/{cut.source}", cut.cut), (f"view/committed/{cut.source}", cut.committed_us)]
        return said

    def settle(self, waiting: Waiting) -> int:
        """Bring the current state to the changelog where that is due; gives when it will be, 0 for it is there."""
        assert self.changelog is not None
        assert self.current is not None
        logged = read_progress(self.changelog, self.table.application)
        held = read_progress(self.current, self.table.application)
        if held.gsn >= logged.gsn:
            return 0
        tail = read_tail(self.changelog, self.table.application, held)
        if tail is None:
            self._copy()
            return 0
        size = size_bytes(self.current)
        until_us = tail.since_us + int(waiting.seconds_of(size) * 1e6) if waiting.seconds else 0
        many = tail.gsn - held.gsn > waiting.most_rows or size <= waiting.small_bytes
        if many or not 0 <= self._at_us - tail.since_us < until_us - tail.since_us:
            if is_large(self.changelog, tail):
                key = read_layout(self.current).key
                rewrite_with(self.table, self.current, self.changelog, tail, key)
            else:
                merge_tail(self.table, self.current, self.changelog, tail)
                compact_when_due(self.current)
            return 0
        return until_us

    def _copy(self) -> None:
        """Write the first rows of the current state: the changelog has nothing but inserts above its beginning."""
        assert self.changelog is not None
        assert self.current is not None
        logged = read_progress(self.changelog, self.table.application)
        schema = schema_of(self.current)
        names = ", ".join('"' + name.replace('"', '""') + '"' for name in schema.names)
        query = f"SELECT {names} FROM t WHERE \"{CHANGE_TYPE}\" <> '{TRUNCATE}'"  # noqa: S608  (quoted names)
        batches = (batch for each in scan(self.changelog, query) for batch in pa.table(each).cast(schema).to_batches())
        write_deltalake(
            self.current,
            pa.RecordBatchReader.from_batches(schema, batches),
            mode="overwrite",
            writer_properties=WRITER,
            commit_properties=commit_properties(*progress_transactions(self.table.application, logged.cut, logged.gsn)),
            storage_options=delta_options(self._folders[CURRENT]),
        )


_MARK_WORDS = ("gsn", "state", "changelog", "current")


def _first(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Those that may be held at once."""
    left_bytes = MOST_GATHERED_BYTES
    while left_bytes > 0 and (found := next(tables, None)) is not None:
        left_bytes -= found.nbytes
        yield found


class _Counted:
    def __init__(self) -> None:
        self.rows = 0

    def over(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for each in tables:
            self.rows += each.num_rows
            yield each


def logged(changes: pa.Table, shape: ViewShape, reached: Reached) -> pa.Table:
    """Rows with `KIND`, `NUMBER` and the view's columns, as its changelog has them."""
    count = changes.num_rows
    committed_us = max((cut.committed_us for cut in reached.cuts), default=0)
    position = " ".join(f"{cut.source}:{cut.cut}" for cut in reached.cuts)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        CHANGE_TYPE: changes[KIND],
        GSN: changes[NUMBER],
        TRANSACTION_ID: pa.repeat(pa.scalar(reached.version, pa.int64()), count),
        COMMIT_TIMESTAMP_US: pa.repeat(pa.scalar(committed_us, pa.int64()), count),
        POSITION: pa.repeat(pa.scalar(position), count),
        **{name: changes[name] for name in shape.columns.names},
        UNREPRESENTABLE: pa.nulls(count, pa.string()),
        ABSENT: pa.nulls(count, pa.string()),
    }
    return pa.table(list(columns.values()), list(columns)).cast(shape.changelog)


def _truncated(shape: ViewShape, gsn: int, version: int) -> pa.Table:
    facts = {CHANGE_TYPE: TRUNCATE, GSN: gsn, TRANSACTION_ID: version, COMMIT_TIMESTAMP_US: 0, POSITION: ""}
    return pa.Table.from_pylist([facts], schema=shape.changelog)
