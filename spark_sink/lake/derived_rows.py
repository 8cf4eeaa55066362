"""Changes that keys' actions made of a child's rows, as landed parts.

Comes in: `Image`s from a replay, and the whole rows that they are images of. Goes out: the child's work with more
parts: one for each cut and shape, and chunks with what became of their rows. Pure.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
from menura.change_batch import (
    ABSENT,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP_US,
    GSN,
    POSITION,
    TRANSACTION_ID,
    UNREPRESENTABLE,
    ChangeType,
)

from spark_sink.lake.cascade_replay import UNKNOWN, Facts, Image
from spark_sink.lake.child_rows import Columns
from spark_sink.lake.delta_table import Layout, layout_of
from spark_sink.lake.net_effect import KEPT_NUMBER, KEY_TEXT
from spark_sink.landed.lake_schema import METADATA_TYPES, fit
from spark_sink.landed.landed_file import LandedPart, LandedRows, LandedShape
from spark_sink.work import CutEvent, ParentsChanged, TableFile

Pending = list[tuple[int, LandedPart | CutEvent]]

#: stands for a file in errors
PATH = "(derived from foreign keys)"


@dataclass(frozen=True, slots=True)
class FollowedRange:
    """A chunk of a range, and what its rows' parents have done to them since."""

    part: LandedPart
    #: as landed rows, by number
    changes: pa.Table

    @property
    def file(self) -> TableFile:
        return self.part.file

    @property
    def shape(self) -> LandedShape:
        return self.part.shape

    def tables(self) -> Iterator[pa.Table]:
        yield from self.part.tables()

    def may_have(self, column: str) -> bool:
        return self.part.may_have(column)


@dataclass(frozen=True, slots=True)
class ShapeAt:
    """Columns of a table's rows from a number on."""

    gsn: int
    schema_id: str
    shape: LandedShape

    @property
    def layout(self) -> Layout:
        return layout_of(self.schema_id, self.shape)


@dataclass(frozen=True, slots=True)
class Shapes:
    """All of one batch."""

    found: list[ShapeAt] = field(default_factory=list)

    def add(self, gsn: int, schema_id: str, shape: LandedShape) -> None:
        self.found.append(ShapeAt(gsn, schema_id, shape))
        self.found.sort(key=lambda each: each.gsn)

    def add_layout(self, layout: Layout, held: pa.Schema) -> None:
        """Of the current state."""
        fields = {found.name.lower(): found for found in held}
        own = [pa.field(name, fields[name.lower()].type) for name in layout.columns]
        meta = [pa.field(name, type_) for name, type_ in METADATA_TYPES.items()]
        tail = [pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, pa.string())]
        self.add(
            0,
            layout.schema_id,
            LandedShape(
                pa.schema([*meta, *own, *tail]),
                layout.columns,
                layout.key,
                {},
                layout.row_end,
                source_types=layout.source_types,
            ),
        )

    @property
    def last(self) -> ShapeAt:
        return self.found[-1]

    def at(self, gsn: int) -> int:
        """Place of what holds at a number."""
        places = [place for place, each in enumerate(self.found) if each.gsn <= gsn]
        return places[-1] if places else 0


def derived_parts(
    pending: Pending,
    images: Sequence[Image],
    pool: pa.Table,
    columns: Columns,
    shapes: Shapes,
    marks: Sequence[ParentsChanged],
    began_at: Callable[[int], int],
) -> Pending:
    """`pending` and what the images tell. `began_at`: the last dump's begin before a number."""
    if not images:
        return pending
    rows = _Rows(pool, columns, began_at)
    streamed = sorted((image for image in images if image.chunk is None), key=lambda image: image.gsn)
    found = list(pending)
    for (mark, place), run in groupby(streamed, key=lambda image: (_mark(marks, image.gsn), shapes.at(image.gsn))):
        shape, cut = shapes.found[place], marks[mark].cut
        table = rows.of(list(run), shape.shape)
        first, last = table[GSN][0].as_py(), table[GSN][-1].as_py()
        file = TableFile(marks[mark].entry, cut, shape.schema_id, PATH, table.num_rows, 0, first, last)
        found.append((cut, LandedRows(file, shape.shape, table)))
    of_chunks = [image for image in images if image.chunk is not None]
    if of_chunks:
        found = [(cut, _followed(each, of_chunks, rows)) for cut, each in found]
    return sorted(found, key=lambda each: each[0])


def _mark(marks: Sequence[ParentsChanged], gsn: int) -> int:
    """Place of the cut that has this number."""
    return next((place for place, mark in enumerate(marks) if gsn <= mark.last_gsn), len(marks) - 1)


def _followed(each: LandedPart | CutEvent, images: Sequence[Image], rows: "_Rows") -> LandedPart | CutEvent:
    if isinstance(each, CutEvent) or not each.file.is_range:
        return each
    path = each.file.path
    own = sorted((image for image in images if image.chunk and image.chunk.path == path), key=lambda image: image.gsn)
    return FollowedRange(each, rows.of(own, each.shape)) if own else each


class _Rows:
    """Images as landed rows."""

    def __init__(self, pool: pa.Table, columns: Columns, began_at: Callable[[int], int]) -> None:
        self._pool = pool
        self._columns = columns
        self._began_at = began_at

    def of(self, images: Sequence[Image], shape: LandedShape) -> pa.Table:
        """Of each image a delete, or a preimage and a postimage.

        A row that a running dump has not confirmed keeps its number in the current state: the dump decides over it.
        """
        sources, kinds, gsns, facts, values, numbers = [], [], [], [], [], []
        for image in images:
            is_proven = image.number >= self._began_at(image.gsn)
            fact = image.facts if is_proven else Facts(0, image.facts.commit_timestamp_us, image.facts.position)
            sides = [(ChangeType.delete, image.before)]
            if image.after is not None:
                sides = [(ChangeType.update_preimage, image.before), (ChangeType.update_postimage, image.after)]
            for kind, side in sides:
                sources.append(image.source)
                kinds.append(kind.name)
                gsns.append(image.gsn)
                facts.append(fact)
                values.append(side)
                numbers.append(None if is_proven else image.number)
        rows = self._pool.take(pa.array(sources, pa.int64()))
        absent = rows[ABSENT]
        for place, name in enumerate(self._columns.known):
            if name != KEY_TEXT:
                told = [None if side[place] is UNKNOWN else side[place] for side in values]
                index = rows.column_names.index(name)
                rows = rows.set_column(index, rows.schema.field(name), pa.array(told, rows.schema.field(name).type))
        if absent.null_count < rows.num_rows:
            known = [
                [name for name, value in zip(self._columns.known, side, strict=True) if value is not UNKNOWN]
                for side in values
            ]
            texts = [_without(text, names) for text, names in zip(absent.to_pylist(), known, strict=True)]
            rows = rows.set_column(rows.column_names.index(ABSENT), ABSENT, pa.array(texts, pa.string()))
        own = {
            CHANGE_TYPE: pa.array(kinds, pa.string()),
            GSN: pa.array(gsns, pa.int64()),
            TRANSACTION_ID: pa.array([fact.transaction_id for fact in facts], pa.int64()),
            COMMIT_TIMESTAMP_US: pa.array([fact.commit_timestamp_us for fact in facts], pa.int64()),
            POSITION: pa.array([fact.position for fact in facts], pa.string()),
        }
        rows = rows.drop_columns([GSN])
        for name, column in own.items():
            rows = rows.append_column(name, column)
        fitted = fit(rows, shape.schema)
        if all(number is None for number in numbers):
            return fitted
        return fitted.append_column(KEPT_NUMBER, pa.array(numbers, pa.int64()))


def _without(text: str | None, known: Sequence[str]) -> str | None:
    """`_absent` without columns that are known after all."""
    if text is None:
        return None
    folded = {name.lower() for name in known}
    names = [name for name in json.loads(text) if name.lower() not in folded]
    return json.dumps(names, ensure_ascii=False) if names else None
