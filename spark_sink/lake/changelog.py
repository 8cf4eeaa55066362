"""A table's changelog: every landed row, and one row `truncate` for each event that removes all rows.

Comes in: the table's `Stage`s. Goes out: one append, which carries Delta's `txn` {TENANT/SOURCE: cut} and
{TENANT/SOURCE/gsn: number}; and one of chunks' rows, so that files hold either these or changes and a reader of changes
leaves them out by statistics. Columns are only ever added here; a renamed column is one more, and the old one keeps the
rows from before. Whoever replays the rows by `_gsn` gets the current state: insert, update_postimage and snapshot put a
row, delete and update_preimage take one away, truncate takes all. Of one number a snapshot comes last, since it shows
what is up to that number; an event DUMPED (`records`) takes away what then still has a number below the dump's first,
an event REPAIRED the same in its ranges of the key.

Where a column comes under a name with a type that the one so far can't take (an ALTER changed its type, or the column
is another), the older values move to a column NAME~1 (NAME~2, ...), which no column of the source can be called: the
table is then written anew once, and the rows before are appended first.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    POSITION,
    TRANSACTION_ID,
)
from menura.naming import set_aside

from spark_sink.lake.current_rows import SMALL_ROWS
from spark_sink.lake.delta_table import (
    Layout,
    Progress,
    Transactions,
    add_columns,
    append,
    compact_when_due,
    create_table,
    layout_of,
    progress_transactions,
    read_layout,
    rewrite,
    schema_of,
    write_layout,
)
from spark_sink.lake.derived_rows import FollowedRange
from spark_sink.lake.logged_changes import TRUNCATE
from spark_sink.lake.steps import part_layout
from spark_sink.landed.event_columns import event_columns
from spark_sink.landed.lake_schema import fit, grown
from spark_sink.landed.landed_file import LandedPart
from spark_sink.landed.stages import Stage
from spark_sink.work import CutEvent, TableId


class Changelog:
    """One table's changelog while a batch is appended."""

    def __init__(self, delta: DeltaTable | None, folder: str, table: TableId, logged: Progress) -> None:
        self.delta = delta
        self._folder = folder
        self._table = table
        self._logged = logged
        #: what is not appended yet, and the columns and the layout that it needs
        self._pending: list[Stage] = []
        self._schema = schema_of(delta) if delta is not None else pa.schema([])
        self._layout = read_layout(delta) if delta is not None else None
        #: what the commit carries where the changes wait (`tail`): there is one then
        self._tail: Transactions = ()

    def append(self, found: Sequence[Stage], end_cut: int, tail: Transactions = ()) -> None:
        """Append what is new of these stages; `tail`: what the commit carries beside. Raises `TableStopped`."""
        self._tail = tail
        new = [
            stage for stage in found if stage.last_gsn > self._logged.gsn or any(map(self._is_new_chunk, stage.parts))
        ]
        for stage in new:
            self._take(stage)
        if new:
            self._flush(end_cut)

    def _take(self, stage: Stage) -> None:
        if stage.event is not None:
            logged = Stage(stage.event, (), stage.event.last_gsn)
            columns = event_columns(self._table, stage.event)
            if stage.removes_rows:
                self._pending.append(logged)
            if columns is not None:
                self._grow(columns.shape.schema, layout_of("", columns.shape))
            if not stage.removes_rows:  # only once its columns are there, so that a replay makes them
                self._pending.append(logged)
        for chunk_cut, run in groupby(stage.parts, key=lambda part: part.file.cut if part.file.is_range else None):
            parts = [part for part in run if chunk_cut is None or self._is_new_chunk(part)]
            # A cut's chunks are appended together: its number says that they are there.
            for together in [parts] if chunk_cut is not None else [[part] for part in parts]:
                for part in together:
                    self._grow(part.shape.schema, part_layout(part))
                self._pending.extend(Stage(None, (part,), part.file.last_gsn) for part in together)

    def _is_new_chunk(self, part: LandedPart) -> bool:
        return part.file.is_range and part.file.cut > self._logged.chunk_cut

    def _grow(self, wanted: pa.Schema, layout: Layout) -> None:
        """Take columns in; where one so far can't take a column's type, its values get another name."""
        if layout == self._layout and ABSENT in self._schema.names:
            return
        schema, refused = grown(self._schema, wanted)
        while refused is not None:
            self._flush(None)
            self._set_aside(refused)
            schema, refused = grown(self._schema, wanted)
        self._schema, self._layout = schema, layout

    def _set_aside(self, name: str) -> None:
        """Give the column's values from before another name."""
        assert self.delta is not None
        held = schema_of(self.delta)
        names = {found.lower(): found for found in held.names}
        before, number = names[name.lower()], 1
        while set_aside(name, number).lower() in names:
            number += 1
        after = [set_aside(name, number) if found == before else found for found in held.names]
        schema = pa.schema([pa.field(new, found.type) for new, found in zip(after, held, strict=True)])
        rewrite(self.delta, schema, lambda rows: rows.rename_columns(after))
        self._schema = schema

    def _flush(self, cut: int | None) -> None:
        """Append what is pending; `cut` where it is all that the batch has."""
        if self._layout is None:
            self._pending.clear()
            return  # events of a table of which nobody has said a column yet
        if self.delta is None:
            self.delta = create_table(self._folder, self._schema, self._layout)
        held = schema_of(self.delta)
        if any(found.name in held.names and held.field(found.name).type != found.type for found in self._schema):
            wide = self._schema
            rewrite(self.delta, wide, lambda rows: fit(rows, wide))
        else:
            add_columns(self.delta, self._schema)
        if read_layout(self.delta) != self._layout:
            write_layout(self.delta, self._layout)
        if not self._pending:
            return
        gsn = max(self._logged.gsn, *(stage.last_gsn for stage in self._pending))
        chunks = [stage for stage in self._pending if any(part.file.is_range for part in stage.parts)]
        changes = [stage for stage in self._pending if stage not in chunks]
        application = self._table.application
        if changes:
            self._write(changes, [*self._tail, *progress_transactions(application, None if chunks else cut, gsn)])
        if chunks:
            chunk_cut = max(part.file.cut for stage in chunks for part in stage.parts)
            self._write(chunks, progress_transactions(application, cut, gsn, chunk_cut))
        self._pending.clear()

    def _write(self, found: Sequence[Stage], transactions: Transactions) -> None:
        assert self.delta is not None
        schema = schema_of(self.delta)
        batches = self._batches(found, schema)
        is_small = sum(part.file.rows for stage in found for part in stage.parts) <= SMALL_ROWS
        rows = (
            pa.Table.from_batches(batches, schema) if is_small else pa.RecordBatchReader.from_batches(schema, batches)
        )
        append(self.delta, rows, transactions)
        compact_when_due(self.delta)

    def _batches(self, found: Sequence[Stage], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for stage in found:
            if stage.removes_rows and stage.event is not None and stage.last_gsn > self._logged.gsn:
                yield from fit(_truncate_row(stage.event), schema).to_batches()
            for part in stage.parts:
                for rows in part.tables():
                    is_new = part.file.is_range or part.file.first_gsn > self._logged.gsn
                    new = rows if is_new else rows.filter(pc.field(GSN) > self._logged.gsn)
                    yield from fit(new, schema).to_batches()
                if isinstance(part, FollowedRange):
                    yield from fit(part.changes, schema).to_batches()


def _truncate_row(seen: CutEvent) -> pa.Table:
    event = seen.event
    return pa.table(
        {
            CHANGE_TYPE: [TRUNCATE],
            GSN: pa.array([event.gsn], pa.int64()),
            TRANSACTION_ID: pa.array([event.transaction_id], pa.int64()),
            COMMIT_TIMESTAMP_US: pa.array([event.commit_timestamp_us], pa.int64()),
            POSITION: [event.position],
        }
    )
