"""Indexes that follow tables of a lake: from the changes that an export would give, without Spark.

Comes in: `Feed`'s steps. Goes out: entries for each table's `SearchOutput`, and a commit with the step's position. An
index begins with the rows at one cut, and has those of a later cut after each step: by key, the last change decides. Of
a row that came without all values, all are read from the current state at the step's cut.

An index is built anew beside the former where the table has other columns, types or key, where the changelog does not
say all that happened since, and where more than `MOST_CHANGES` did: a commit's deletes are in memory until then.
A table without a key is refused: no search engine takes one of two equal rows away. One table's refusal leaves the
others alone. Nothing of the lake is changed; a kill leaves each index at its last commit, from which the next goes on.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN
from menura.instants import now_us

from spark_sink.errors import (
    ChangelogShortened,
    ExportPositionInvalid,
    HistoryImpossible,
    SearchIndexFailed,
    SearchTableRefused,
    SinkError,
)
from spark_sink.export.feed import Feed, TableStep
from spark_sink.export.position import Position, TablePosition
from spark_sink.export.rows import Row, Shape
from spark_sink.lake.delta_table import Layout, quoted, read_layout, scan, schema_of
from spark_sink.lake.logged_changes import TRUNCATE
from spark_sink.reading import list_tables, opened, own_columns, rows_of_versions
from spark_sink.search.columns import Definition, field_of
from spark_sink.search.entries import Entry, Gone, Reached, SearchEngine, SearchOutput, digest
from spark_sink.views.inputs import rows_with_keys
from spark_sink.work import CHANGELOG, CURRENT, TableId

#: of one table in one step
MOST_CHANGES = 500_000
#: of entries, that wait in memory
BATCH_BYTES = 4 << 20
OPEN_OUTPUTS = 4
_TAKES = ("delete", "update_preimage")
_PUTS = "('insert', 'update_postimage', 'snapshot')"
#: whatever it is that the changelog does not say, the current state does
_BUILT_ANEW = (ChangelogShortened, ExportPositionInvalid, HistoryImpossible)


class _Irregular(Exception):
    """The index is better built anew than changed."""


class Follower:
    def __init__(
        self, lake: str, engine: SearchEngine, tables: Collection[TableId], groups: Collection[tuple[str, ...]] = ()
    ) -> None:
        """The engine is taken already (`SearchEngine.taking`). Raises `SearchIndexFailed`."""
        self._lake = lake
        self._engine = engine
        self.feed = Feed(lake, tables, groups, fields=field_of)
        #: tables that are not followed, and why
        self.refused: dict[TableId, SinkError] = {}
        #: why an index is to be built anew, which is refused as well; another version has another reason
        self._unbuilt: dict[TableId, SinkError] = {}
        self._held: dict[TableId, Reached] = {}
        #: the one that was used last is the last
        self._outputs: dict[TableId, SearchOutput] = {}
        for table in filter(self.feed.wants, list_tables(lake)):
            if (found := engine.reached(table)) is not None:
                self._held[table] = found
        self.feed.position = Position({}, {table: held.position for table, held in self._held.items()})

    def turn(self) -> bool:
        """Bring each table to the newest cut; False: there was nothing new.

        Raises `SearchIndexFailed`, `TableNotInLake`; OSError and DeltaError of the lake's store.
        """
        step = self.feed.next()
        is_built = self._build_lost()
        if step is None:
            return self._build_between() or is_built
        for part in itertools.chain.from_iterable(step.sources):
            table = part.envelope.table
            before = self.feed.position.of(table)
            self._tried(table, partial(self._follow, part, step.position.cuts[table.tenant, table.source]))
            if self.feed.position.of(table) == before:  # refused, or without a row yet: until its next version
                self._pass(table, part.after)
        return True

    def _build_lost(self) -> bool:
        """Whether an index was built of a table whose changes can't be followed."""
        is_built = False
        for table, why in list(self.feed.failed.items()):
            if isinstance(why, _BUILT_ANEW) and self._unbuilt.get(table) is not why:
                before = self.feed.position.of(table)
                self._tried(table, partial(self._build, table))
                if self.feed.position.of(table) == before:
                    self._unbuilt[table] = why
                else:
                    is_built = True
                    del self.feed.failed[table]
        return is_built

    def _build_between(self) -> bool:
        """Whether an index was built that is between two cuts, though the lake has nothing later, as an older copy."""
        between = [table for table, held in self._held.items() if held.is_between and table not in self.failed]
        for table in between:
            self._tried(table, partial(self._build, table))
        return any(table not in self.refused for table in between)

    @property
    def failed(self) -> dict[TableId, SinkError]:
        return {**self.feed.failed, **self.refused}

    def close(self) -> None:
        while self._outputs:
            self._outputs.popitem()[1].close()

    def _tried(self, table: TableId, do: Callable[[], None]) -> None:
        """A table that is refused is tried again once it has another version."""
        self.refused.pop(table, None)
        try:
            do()
        except SearchIndexFailed:  # of the folder, which other tables are in
            raise
        except SinkError as failure:
            self.refused[table] = failure
            self._held.pop(table, None)  # the position is behind what is not done: its next version is built anew

    def _pass(self, table: TableId, reached: TablePosition) -> None:
        position = self.feed.position
        self.feed.position = replace(position, tables={**position.tables, table: reached})

    def _follow(self, part: TableStep, cut: int) -> None:
        table = part.envelope.table
        held = self._held.get(table)
        if held is None or part.current_version is None:
            self._build(table)
            return
        shape = self._current_shape(table, part.current_version)
        if {Definition.of(shape), Definition.of(part.envelope.shape)} != {held.definition}:
            self._build(table)
            return
        output = self._output(table, held)
        try:
            self._apply(part, output, held, shape)
        except _Irregular:
            output.roll_back()
            self._build(table)
            return
        reached = replace(held, lake=self._lake, cut=cut, at_us=now_us(), position=part.after, is_between=False)
        self._commit(table, output, reached)

    def _current_shape(self, table: TableId, version: int) -> Shape:
        current = opened(self._lake, table, CURRENT)
        current.load_as_version(version)
        return Shape.of(schema_of(current), read_layout(current), field_of)

    def _build(self, table: TableId) -> None:
        step = Feed(self._lake, [table], fields=field_of).state()
        if step is None:
            return  # it has never had a row
        ((part,),) = step.sources
        definition = Definition.of(part.envelope.shape)
        if not definition.key:
            raise SearchTableRefused(
                "indexing a table",
                f"{table} has no key: where two rows are equal, a search engine can't take one of them away",
                data="Nothing of it is indexed; other tables are",
                remedy="Give it a primary key, or index a view of it that has one",
                **table.where(0),
            )
        self._close(table)
        output = self._engine.output(table, definition, None)
        for entries in _batches(Entry.of(row, definition) for row in part.rows()):
            output.upsert(entries, are_new=True)
        cut = step.position.cuts[table.tenant, table.source]
        self._commit(table, output, Reached(self._lake, cut, now_us(), part.after, definition))
        self._keep(table, output)

    def _commit(self, table: TableId, output: SearchOutput, reached: Reached) -> None:
        output.commit(reached)
        self._held[table] = reached
        self._pass(table, reached.position)

    def _output(self, table: TableId, held: Reached) -> SearchOutput:
        output = self._outputs.pop(table, None)
        if output is None:
            output = self._engine.output(table, held.definition, held)
        self._keep(table, output)
        return output

    def _keep(self, table: TableId, output: SearchOutput) -> None:
        while len(self._outputs) >= OPEN_OUTPUTS:
            self._close(next(iter(self._outputs)))
        self._outputs[table] = output

    def _close(self, table: TableId) -> None:
        output = self._outputs.pop(table, None)
        if output is not None:
            output.close()

    def _apply(self, part: TableStep, output: SearchOutput, held: Reached, shape: Shape) -> None:
        completed = self._completed(part, held, shape)
        waiting: dict[str, Entry | Gone] = {}
        size = 0
        for count, row in enumerate(part.rows()):
            if count >= MOST_CHANGES:
                raise _Irregular
            if row.kind == TRUNCATE:
                waiting.clear()
                output.clear()
                continue
            key = digest(row)
            if key in completed:
                completed[key] = replace(completed[key], gsn=row.gsn)
                continue
            waiting[key] = Gone(key, row.gsn) if row.kind in _TAKES else Entry.of(row, held.definition)
            size += waiting[key].size_bytes
            if size >= BATCH_BYTES:
                _put(output, waiting)
                waiting, size = {}, 0
        _put(output, waiting)
        _put(output, completed)

    def _completed(self, part: TableStep, held: Reached, shape: Shape) -> dict[str, Entry | Gone]:
        """What the current state has of keys of which rows came without all values."""
        assert part.current_version is not None
        table = part.envelope.table
        changelog = opened(self._lake, table, CHANGELOG)
        changelog.load_as_version(part.after.version)
        if ABSENT not in schema_of(changelog).names:
            return {}
        layout: Layout = read_layout(changelog)
        names = {name.lower(): name for name in schema_of(changelog).names}
        key = [names[name.lower()] for name in layout.key]
        query = (
            f"SELECT DISTINCT {', '.join(map(quoted, key))} FROM t WHERE {quoted(GSN)} > {held.position.gsn}"  # noqa: S608
            f" AND {quoted(ABSENT)} IS NOT NULL AND {quoted(CHANGE_TYPE)} IN {_PUTS} LIMIT {MOST_CHANGES}"
        )
        keys = scan(changelog, query).read_all()
        if not keys.num_rows:
            return {}
        if keys.num_rows >= MOST_CHANGES or any(keys[name].null_count for name in key):  # that is what no type holds
            raise _Irregular
        rows = rows_of_versions(self._lake, table, part.after.version, part.current_version)
        keys = keys.cast(pa.schema([rows.schema.field(name) for name in key]))
        of_key = replace(shape, columns=tuple(each for each in shape.columns if each.name in shape.key))
        found: dict[str, Entry | Gone] = {key: Gone(key, 0) for key in map(digest, of_key.rows(keys))}
        for entry in _entries(shape.rows(rows_with_keys(rows, keys, own_columns(rows), key)), held.definition):
            found[entry.key] = entry
        return found


def _entries(rows: Iterable[Row], definition: Definition) -> Iterator[Entry]:
    return (Entry.of(row, definition) for row in rows)


def _put(output: SearchOutput, found: dict[str, Entry | Gone]) -> None:
    output.delete([each for each in found.values() if isinstance(each, Gone)])
    output.upsert([each for each in found.values() if isinstance(each, Entry)])


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    batch, size = list[Entry](), 0
    for entry in entries:
        batch.append(entry)
        size += entry.size_bytes
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch
