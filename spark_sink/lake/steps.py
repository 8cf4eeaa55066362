"""What a batch has to do to a table's current state, one after the other.

Comes in: the table's `Stage`s and how far it is. Goes out: `Segment`s (changes of rows), `ChunkStep`s (rows of dumps)
and `EventStep`s. What stands before an event that removes all rows is left out. Pure but for reading the files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
from menura.change_batch import ABSENT, CHANGE_TYPE, GSN, UNREPRESENTABLE

from spark_sink.errors import ChangeTypeUnknown, ChunkWithoutKey, RowsPartial
from spark_sink.lake.delta_table import Layout, Progress, layout_of
from spark_sink.lake.net_effect import KEPT_NUMBER, unknown_change_type, with_deleted
from spark_sink.lake.partial_rows import absent_columns, has_partial
from spark_sink.lake.row_versions import current_versions
from spark_sink.lake.schema_change import Definition, current_schema, derive, event_definition
from spark_sink.lake.table_options import with_option_columns, without_key
from spark_sink.landed.event_columns import event_columns
from spark_sink.landed.lake_schema import METADATA_TYPES, fit, grown
from spark_sink.landed.landed_file import LandedPart
from spark_sink.landed.stages import Stage
from spark_sink.work import CutEvent, TableFile, TableId

#: where the source has said nothing of its own
WHOLE_ROWS = "Have the source's log hold all values of each row"


@dataclass(frozen=True, slots=True)
class Segment:
    """Files of one key, to be merged at once."""

    parts: tuple[LandedPart, ...]
    #: of the last file
    layout: Layout
    #: every number up to here is done once it is merged
    last_gsn: int

    @property
    def cut(self) -> int:
        return self.parts[-1].file.cut

    @property
    def may_be_partial(self) -> bool:
        """Whether rows may lack values; False is certain."""
        return any(part.may_have(ABSENT) for part in self.parts)

    @property
    def keeps_numbers(self) -> bool:
        """Whether rows stay below a running dump, which has not confirmed them."""
        return any(part.may_have(KEPT_NUMBER) for part in self.parts)


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """Chunks of ranges, whose rows stand below all changes with a higher number."""

    segment: Segment

    @property
    def last_gsn(self) -> int:
        return self.segment.last_gsn


@dataclass(frozen=True, slots=True)
class EventStep:
    """An event of a table, and the columns after it; None where nothing tells them."""

    seen: CutEvent
    definition: Definition | None

    @property
    def last_gsn(self) -> int:
        return self.seen.last_gsn


Step = Segment | ChunkStep | EventStep


def steps(table: TableId, found: Sequence[Stage], merged: Progress) -> list[Step]:
    """What is still to do, from the last event that removes all rows on."""
    pending = [stage for stage in found if stage.last_gsn > merged.gsn or _new_chunks(stage, merged)]
    removals = [place for place, stage in enumerate(pending) if stage.removes_rows and _is_new(stage, merged)]
    first = removals[-1] if removals else 0
    todo: list[Step] = []
    for place, stage in enumerate(pending[first:], first):
        if stage.event is not None and _is_new(stage, merged):
            # What is not merged before a removal still says which columns the table has.
            until = pending[: place + 1] if removals and place == first else [stage]
            todo.append(EventStep(stage.event, _last_definition(table, until)))
        for run in by_definition(stage):
            todo.extend(segment for segment in segments(_changes(run)) if segment.last_gsn > merged.gsn)
            todo.extend(map(ChunkStep, segments(Stage(None, _new_chunks(run, merged), run.last_gsn))))
    return todo


def by_definition(stage: Stage) -> list[Stage]:
    """The stage in runs of files whose columns have types in common.

    An event parts them, but where a table's sync ended and began anew after an ALTER.
    """
    if not stage.parts:
        return []
    runs: list[list[LandedPart]] = []
    schema = pa.schema([])
    for part in stage.parts:
        schema, refused = grown(schema, current_schema(part.shape))
        if refused is not None or not runs:
            runs.append([])
            schema = current_schema(part.shape)
        runs[-1].append(part)
    lasts = [max(part.file.last_gsn for part in run) for run in runs[:-1]]
    return [Stage(None, tuple(run), last) for run, last in zip(runs, [*lasts, stage.last_gsn], strict=True)]


def _is_new(stage: Stage, merged: Progress) -> bool:
    return stage.event is not None and stage.event.first_gsn > merged.gsn


def _changes(stage: Stage) -> Stage:
    return Stage(stage.event, tuple(part for part in stage.parts if not part.file.is_range), stage.last_gsn)


def _new_chunks(stage: Stage, merged: Progress) -> tuple[LandedPart, ...]:
    return tuple(part for part in stage.parts if part.file.is_range and part.file.cut > merged.chunk_cut)


def _last_definition(table: TableId, found: Sequence[Stage]) -> Definition | None:
    """The columns at the last stage's event, as far as these stages tell them."""
    for place, stage in enumerate(reversed(found)):
        if place and stage.parts:
            last = stage.parts[-1]
            return Definition(part_layout(last), current_schema(last.shape))
        if stage.event is not None and (columns := event_columns(table, stage.event)) is not None:
            return event_definition(columns)
    return None


def segments(stage: Stage) -> list[Segment]:
    """Runs of files with one key; a dump's are apart from changes."""
    runs = [tuple(run) for _, run in groupby(stage.parts, key=lambda part: (part.shape.key, part.file.chunk is None))]
    lasts = [max(part.file.last_gsn for part in run) for run in runs]
    return [
        Segment(run, part_layout(run[-1]), stage.last_gsn if place == len(runs) else last)
        for place, (run, last) in enumerate(zip(runs, lasts, strict=True), 1)
    ]


def part_layout(part: LandedPart) -> Layout:
    return layout_of(part.file.schema_id, part.shape)


def check_steps(table: TableId, todo: Sequence[Step]) -> None:
    """Before anything is written: whether all can be merged. Raises `RowsPartial`, `ChunkWithoutKey`."""
    for step in todo:
        if isinstance(step, ChunkStep) and not step.segment.layout.key:
            raise ChunkWithoutKey(
                "merging a dump's chunk",
                f"{step.segment.parts[0].file.path} holds a range of the table, which has no primary key in its rows",
                data="The table stays at its last version; other tables go on",
                remedy=f"Have the table read whole: {table.resync}",
                **table.where(step.segment.parts[0].file.cut),
            )
        if isinstance(step, Segment):
            for part in step.parts:
                if part.may_have(ABSENT):
                    for rows in part.tables():
                        check_partial(table, part, step.layout, rows)


def check_keys(table: TableId, todo: Sequence[Step]) -> None:
    """Of a table that keeps deleted rows, likewise. Raises `TableOptionImpossible`."""
    for step in todo:
        if isinstance(step, EventStep):
            layout, cut = step.definition.layout if step.definition is not None else None, step.seen.cut
        else:
            segment = step.segment if isinstance(step, ChunkStep) else step
            layout, cut = segment.layout, segment.cut
        if layout is not None and not layout.key:
            raise without_key(table, cut)


def check_partial(table: TableId, part: LandedPart, layout: Layout, rows: pa.Table) -> None:
    """A row that lacks values must have a key, and the key."""
    if not has_partial(rows):
        return
    if not layout.key or absent_columns(rows) & {name.lower() for name in layout.key}:
        raise RowsPartial(
            "merging a landed file",
            f"{part.file.path} has rows without all of their values, and "
            + ("without the primary key's" if layout.key else "the table has no primary key to find them by"),
            data="The table stays at its last version; other tables go on",
            remedy=f"{part.shape.whole_rows or WHOLE_ROWS}; then run: {table.resync}",
            **table.where(part.file.cut),
        )


def check_change_types(table: TableId, file: TableFile, rows: pa.Table) -> None:
    if file.chunk is None and unknown_change_type(rows):
        raise ChangeTypeUnknown(
            "merging a landed file",
            f"{file.path} has a _change_type that this version can't merge",
            data="The table stays at its last version; other tables go on",
            remedy="Upgrade the sink to at least the gateway's version, then start it again",
            **table.where(file.cut),
        )


def segment_tables(table: TableId, segment: Segment, held: pa.Schema, merged_gsn: int = 0) -> Iterator[pa.Table]:
    """Rows above `merged_gsn` with the current state's columns and `_menura_deleted`, `_change_type` if any is partial.

    With `_menura_kept_gsn` where they have it. Raises `TableStopped`.
    """
    may_be_partial = segment.may_be_partial
    for part in segment.parts:
        for rows in part.tables():
            check_change_types(table, part.file, rows)
            # A range's rows are new whatever their number.
            new = rows if part.file.is_range else rows.filter(pc.field(GSN) > merged_gsn)
            fitted = fit_current(new, segment.layout, held)
            if KEPT_NUMBER in new.column_names:
                fitted = fitted.append_column(KEPT_NUMBER, new[KEPT_NUMBER])
            yield fitted if may_be_partial else fitted.drop_columns([CHANGE_TYPE])


def fit_current(rows: pa.Table, layout: Layout, held: pa.Schema) -> pa.Table:
    """Landed or logged rows with the current state's columns, `_change_type`, `_menura_deleted`; no former versions."""
    live = {name.lower() for name in (*layout.columns, *METADATA_TYPES, UNREPRESENTABLE, ABSENT)}
    dropped = frozenset(name.lower() for name in held.names) - live
    schema = pa.schema([*held, pa.field(CHANGE_TYPE, pa.string())])
    current = current_versions(rows, layout.row_end) if layout.row_end else rows
    fitted = with_option_columns(with_deleted(fit(current, schema, dropped)), current)
    return derive(fitted, layout)
