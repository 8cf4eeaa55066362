"""A table's changes above a number, read back from its changelog for the keys of a dump's chunk.

Comes in: the changelog, and the current state's columns. Goes out: rows with those columns' names and types. Whole
files are left out by their numbers and keys; rows of chunks, which have the transaction 0, and former versions of rows
(`row_versions`) are no changes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    TRANSACTION_ID,
    UNREPRESENTABLE,
    ChangeType,
)
from menura.naming import name_before

from spark_sink.lake.delta_table import Layout, quoted, scan, schema_of
from spark_sink.lake.key_bounds import KeyBounds
from spark_sink.lake.net_effect import KEY_TEXT, key_text
from spark_sink.lake.row_versions import current_versions
from spark_sink.lake.steps import fit_current
from spark_sink.landed.lake_schema import wider

#: the change type of an event that removes all rows
TRUNCATE = "truncate"
GATHERED_ROWS = 1_000_000

_ROW_END = "_menura_row_end"


@dataclass(frozen=True, slots=True)
class LoggedChanges:
    changelog: DeltaTable
    layout: Layout
    #: the current state's columns
    held: pa.Schema
    #: what is above is not in the current state yet
    end_gsn: int

    def of_keys(self, rows: pa.Table, match: Sequence[str], above_gsn: int, bounds: KeyBounds) -> pa.Table:
        """Key, `_change_type`, `_gsn` and `_absent` of changes whose key begins as one of these rows' does, and of
        removals of all rows.
        """
        condition = f"({quoted(CHANGE_TYPE)} = '{TRUNCATE}' OR ({bounds.condition(self._fields())}))"
        found = []
        for changes in gathered(self._read(match, above_gsn, condition)):
            is_near = pc.is_in(changes[match[0]], rows[match[0]].combine_chunks())
            found.append(changes.filter(pc.or_(is_near, pc.equal(changes[CHANGE_TYPE], TRUNCATE))))
        return pa.concat_tables(found)

    def in_order(self, match: Sequence[str], above_gsn: int) -> pa.Table:
        """The same of all changes, by number."""
        return pa.concat_tables(self._read(match, above_gsn, "TRUE")).sort_by(GSN)

    def rows(self, gsns: pa.Array) -> pa.Table:
        """The changes with these numbers, as `steps.fit_current` gives them."""
        low, high = pc.min(gsns).as_py(), pc.max(gsns).as_py()
        whole = self._whole(f"{self._above(low - 1)} AND {quoted(GSN)} <= {high}")
        return self._fitted(whole.filter(pc.is_in(whole[GSN], gsns)))

    def all_rows(self, above_gsn: int) -> pa.Table:
        """All changes above this number, likewise."""
        return self._fitted(self._whole(self._above(above_gsn)))

    def _whole(self, condition: str) -> pa.Table:
        found = scan(self.changelog, f"SELECT * FROM t WHERE {condition}")  # noqa: S608  (numbers)
        return pa.concat_tables([schema_of(self.changelog).empty_table(), *map(pa.table, found)])

    def _fitted(self, whole: pa.Table) -> pa.Table:
        own = {name: self._column(whole, name) for name in self._sources()}
        facts = {name: whole[name] for name in (CHANGE_TYPE, COMMIT_TIMESTAMP_US)}
        return fit_current(pa.table({**own, **facts}), self.layout, self.held)

    def _above(self, gsn: int) -> str:
        return (
            f"{quoted(GSN)} > {gsn} AND {quoted(GSN)} <= {self.end_gsn} AND {quoted(TRANSACTION_ID)} > 0"
            f" AND {quoted(CHANGE_TYPE)} <> '{ChangeType.snapshot.name}'"
        )

    def _sources(self) -> dict[str, list[pa.Field]]:
        """By the current state's names the changelog's columns that may hold their values.

        More than one where a column's type has changed (`changelog`): of one row at most one of them has a value. Those
        that could not hold the current state's type were not written under its definition.
        """
        sources: dict[str, list[pa.Field]] = {found.name: [] for found in self.held}
        names = {name.lower(): name for name in sources}
        for logged in schema_of(self.changelog):
            name = names.get(name_before(logged.name).lower())
            if name is not None and wider(logged.type, self.held.field(name).type) is not None:
                sources[name].append(logged)
        return {name: found for name, found in sources.items() if found}

    def _fields(self) -> dict[str, pa.Field]:
        """Of those the ones that certainly hold all values."""
        return {name: found[0] for name, found in self._sources().items() if len(found) == 1}

    def _column(self, rows: pa.Table, name: str) -> pa.ChunkedArray:
        type_ = self.held.field(name).type
        return pc.coalesce(*(rows[found.name].cast(type_) for found in self._sources()[name]))

    def _read(self, match: Sequence[str], above_gsn: int, condition: str) -> Iterator[pa.Table]:
        sources = self._sources()
        row_end = [name for name in sources if name.lower() == self.layout.row_end.lower()]
        names = [found.name for name in (*match, *row_end) if name != KEY_TEXT for found in sources[name]]
        wanted = [*names, CHANGE_TYPE, GSN, ABSENT, *([UNREPRESENTABLE] if KEY_TEXT in match else [])]
        chosen = ", ".join(map(quoted, wanted))
        query = f"SELECT {chosen} FROM t WHERE {self._above(above_gsn)} AND {condition}"  # noqa: S608  (quoted names)
        yield self._named(schema_of(self.changelog).empty_table().select(wanted), match)
        for batch in scan(self.changelog, query):
            rows = pa.table(batch)
            if row_end:
                rows = current_versions(rows.append_column(_ROW_END, self._column(rows, row_end[0])), _ROW_END)
            yield self._named(rows, match)

    def _named(self, rows: pa.Table, match: Sequence[str]) -> pa.Table:
        columns = {}
        for name in match:
            if name == KEY_TEXT:
                columns[name] = pa.chunked_array([key_text(rows[UNREPRESENTABLE], list(self.layout.key))])
            else:
                columns[name] = self._column(rows, name)
        return pa.table({**columns, **{name: rows[name] for name in (CHANGE_TYPE, GSN, ABSENT)}})


def gathered(batches: Iterable[pa.Table], most_bytes: int | None = None) -> Iterator[pa.Table]:
    """Fewer and larger ones, since a look-up in many values is made anew for each."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHERED_ROWS or (most_bytes is not None and size >= most_bytes):
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)
