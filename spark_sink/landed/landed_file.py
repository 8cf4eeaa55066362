"""One landed Parquet file as rows with the lake's names and types.

In the lake `_absent` is a JSON array of the lake's column names; a file of format 1 has none, and so no partial row.
A chunk's file has the table's columns only; what the others hold is the same for all its rows (`ChunkFacts`).

Comes in: a file that an entry of the cut log names. Goes out: `LandedRows`. Every fault of the file is a
`DataFileUnreadable`, which stops its table alone; a fault of the storage is a `LakeStorageFailed`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from menura.change_batch import (
    ABSENT,
    GSN,
    LANDED_COLUMNS,
    METADATA_DEFAULT,
    METADATA_KEY,
    METADATA_ROW_END,
    METADATA_SOURCE_TYPE,
    METADATA_WHOLE_ROWS,
    RESERVED_PREFIX,
    UNREPRESENTABLE,
    ChangeType,
    source_column,
)
from menura.naming import lake_column, sync_resync, sync_retry

from spark_sink.errors import ColumnNameTaken, DataFileUnreadable, LakeStorageFailed, TableStopped
from spark_sink.landed.absent_masks import absent_masks, with_defaults
from spark_sink.landed.default_values import DefaultValue, insert_default
from spark_sink.landed.lake_schema import METADATA_TYPES, lake_type
from spark_sink.landed.landing_log import LandingLog
from spark_sink.work import ChunkFacts, TableFile, TableId

#: what the sink's own columns begin with
OWN_PREFIX = RESERVED_PREFIX
#: after the table's own columns; the first also in chunks' files
_TAILS = ([UNREPRESENTABLE], [UNREPRESENTABLE, ABSENT])
#: in the lake, of a column that ends a row
ROW_END_TYPES = (pa.timestamp("us", "UTC"), pa.decimal128(20, 0))
_MASK_TYPES = (pa.binary(), pa.dictionary(pa.int32(), pa.binary()))


@dataclass(frozen=True, slots=True)
class LandedShape:
    """What a file's schema says: lake fields in landed order, and the key's lake names in key order."""

    schema: pa.Schema
    columns: tuple[str, ...]
    key: tuple[str, ...]
    #: what an insert's absent column holds, where it is known
    defaults: Mapping[str, DefaultValue]
    #: of a table with system versioning: until when a row was current; it is in no key, which tells current rows apart
    row_end: str = ""
    #: what to do at the source so that no row lacks values, in its own words; "" where it has none
    whole_rows: str = ""
    #: the source's columns that are not read, since their types are unknown
    left_out: tuple[str, ...] = ()
    #: of each column, in the source's words; '' for one that is not known
    source_types: tuple[str, ...] = ()


class LandedPart(Protocol):
    """A landed file, in memory or still to be read."""

    @property
    def file(self) -> TableFile: ...

    @property
    def shape(self) -> LandedShape: ...

    def tables(self) -> Iterator[pa.Table]:
        """Its rows with the lake's names and types, in order. Raises `TableStopped`."""

    def may_have(self, column: str) -> bool:
        """Whether some row has a value in this column of ours; False is certain. Raises `TableStopped`."""


@dataclass(frozen=True, slots=True)
class LandedRows:
    """A file that was read whole."""

    file: TableFile
    shape: LandedShape
    rows: pa.Table

    def tables(self) -> Iterator[pa.Table]:
        yield self.rows

    def may_have(self, column: str) -> bool:
        return column in self.rows.column_names and bool(self.rows[column].null_count < self.rows.num_rows)


@dataclass(frozen=True, slots=True)
class LandedStream:
    """A file that is read by row groups, each time anew: for what is too large for memory."""

    log: LandingLog
    table: TableId
    file: TableFile
    shape: LandedShape

    def tables(self) -> Iterator[pa.Table]:
        with open_parquet(self.log, self.table, self.file) as parquet:
            for group in range(parquet.num_row_groups):
                try:
                    rows = with_lake_types(parquet.read_row_group(group, use_threads=False), self.file, self.shape)
                except (OSError, pa.ArrowException) as broken:
                    raise unreadable(self.table, self.file, broken) from broken
                yield rows

    def may_have(self, column: str) -> bool:
        with open_parquet(self.log, self.table, self.file) as parquet:
            if column not in parquet.schema_arrow.names:
                return False
            place = parquet.schema_arrow.names.index(column)
            groups = [parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)]
        statistics = [(group.num_rows, group.column(place).statistics) for group in groups]
        return any(found is None or found.null_count < rows for rows, found in statistics)


@dataclass(frozen=True, slots=True)
class LandedSlice:
    """The rows of a file whose numbers its `file` names."""

    part: LandedPart
    file: TableFile

    @property
    def shape(self) -> LandedShape:
        return self.part.shape

    def tables(self) -> Iterator[pa.Table]:
        for rows in self.part.tables():
            yield rows.filter((pc.field(GSN) >= self.file.first_gsn) & (pc.field(GSN) <= self.file.last_gsn))

    def may_have(self, column: str) -> bool:
        return self.part.may_have(column)


def read_landed(log: LandingLog, table: TableId, file: TableFile, leaves_out: bool = False) -> LandedRows:
    """The whole file. Raises `TableStopped`."""
    stream = open_landed(log, table, file, leaves_out)
    return LandedRows(file, stream.shape, pa.concat_tables([stream.shape.schema.empty_table(), *stream.tables()]))


def open_landed(log: LandingLog, table: TableId, file: TableFile, leaves_out: bool = False) -> LandedStream:
    """Check what the file's footer says; `leaves_out` columns of types that are unknown. Raises `TableStopped`."""
    with open_parquet(log, table, file) as parquet:
        landed = parquet.schema_arrow
        left_out = _unknown_columns(landed) if leaves_out else ()
        known = pa.schema([found for found in landed if found.name not in left_out])
        shape = replace(
            landed_shape(table, file, known), left_out=tuple(lake_column(source_column(name)) for name in left_out)
        )
        rows = parquet.metadata.num_rows
        whole_rows = (parquet.metadata.metadata or {}).get(METADATA_WHOLE_ROWS.encode(), b"").decode(errors="replace")
    if rows != file.rows:
        raise DataFileUnreadable(
            "reading a landed file",
            f"{file.path} has {rows} rows, its entry says {file.rows}",
            data="The table stays at its last version; other tables go on",
            remedy=restored_or_anew(table),
            **table.where(file.cut),
        )
    return LandedStream(log, table, file, replace(shape, whole_rows=whole_rows))


def open_parquet(log: LandingLog, table: TableId, file: TableFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(log.open_data(file.path), page_checksum_verification=True)
    except (OSError, pa.ArrowException) as broken:
        raise unreadable(table, file, broken) from broken


def with_lake_types(rows: pa.Table, file: TableFile, shape: LandedShape) -> pa.Table:
    """Rows as landed, to the lake's names and types; inserts that the log left columns out of hold their defaults."""
    if file.chunk is not None:
        rows = _with_constants(rows, file.chunk)
    landed = own_names(rows.column_names)
    if shape.left_out:
        rows = rows.drop_columns([name for name in landed if lake_column(source_column(name)) in shape.left_out])
    typed = len(shape.schema) - 1
    fields = list(shape.schema)[:typed]
    columns = [column.cast(field.type) for column, field in zip(rows.columns[:typed], fields, strict=True)]
    absent = pa.nulls(rows.num_rows, pa.string())
    partial = rows.column_names[-1] == ABSENT and rows.column(ABSENT).null_count < rows.num_rows
    if not partial:
        return pa.Table.from_arrays([*columns, absent], schema=shape.schema)
    names = [lake_column(source_column(name)) for name in landed]
    masks = absent_masks(rows.column(ABSENT).combine_chunks(), names).of(shape.columns)
    typed_rows = pa.Table.from_arrays([*columns, masks.texts()], schema=shape.schema)
    return with_defaults(typed_rows, masks, shape.defaults) if shape.defaults else typed_rows


def own_names(names: Sequence[str]) -> list[str]:
    """Those of the table's own columns among a landed file's, which stand between ours."""
    return list(names[len(LANDED_COLUMNS) : names.index(UNREPRESENTABLE)])


def _unknown_columns(landed: pa.Schema) -> tuple[str, ...]:
    """The table's own columns of types that no version up to this one lands."""
    ours = (*LANDED_COLUMNS, UNREPRESENTABLE, ABSENT)
    return tuple(found.name for found in landed if found.name not in ours and lake_type(found.type) is None)


def _with_constants(rows: pa.Table, chunk: ChunkFacts) -> pa.Table:
    """A chunk's rows with the columns that stand before a table's own."""
    values = (ChangeType.snapshot.name, chunk.gsn, 0, chunk.read_at_us, chunk.position)
    constants = [
        pa.repeat(pa.scalar(value, type_), rows.num_rows)
        for value, type_ in zip(values, METADATA_TYPES.values(), strict=True)
    ]
    return pa.Table.from_arrays([*constants, *rows.columns], names=[*LANDED_COLUMNS, *rows.column_names])


def restored_or_anew(table: TableId) -> str:
    """What to do about a file that can't be read."""
    named = (table.source, table.database, table.table)
    return f"Restore the file, then run: {sync_retry(*named)}; or, where it is lost, run: {sync_resync(*named)}"


def unreadable(table: TableId, file: TableFile, broken: Exception) -> TableStopped:
    where = table.where(file.cut)
    if isinstance(broken, OSError) and not isinstance(broken, FileNotFoundError) and broken.errno is not None:
        return LakeStorageFailed(
            "reading a landed file",
            f"{file.path}: the storage answered {broken.strerror}",
            data="The table stays at its last version; other tables go on",
            remedy="It is tried again by itself; check the landing's storage",
            **where,
        )
    missing = isinstance(broken, FileNotFoundError)
    return DataFileUnreadable(
        "reading a landed file",
        f"{file.path} {'is missing' if missing else f'is no readable Parquet file ({type(broken).__name__})'}",
        data="The table stays at its last version; other tables go on",
        remedy=restored_or_anew(table),
        **where,
    )


def landed_shape(table: TableId, file: TableFile, landed: pa.Schema) -> LandedShape:
    """Check a file's schema against the landing layout. Raises `DataFileUnreadable`, `ColumnNameTaken`."""
    names = landed.names
    head, tails = (LANDED_COLUMNS, _TAILS) if file.chunk is None else ((), _TAILS[:1])
    own = names[len(head) : names.index(UNREPRESENTABLE) if UNREPRESENTABLE in names else 0]
    tail = names[len(head) + len(own) :]
    if tuple(names[: len(head)]) != head or tail not in tails:
        raise _not_in_layout(table, file, f"it has not the columns {', '.join(head)} ... {UNREPRESENTABLE}")
    fields = [pa.field(name, type_) for name, type_ in METADATA_TYPES.items()]
    keys: dict[int, str] = {}
    defaults: dict[str, DefaultValue] = {}
    source_types: list[str] = []
    row_end = ""
    if tail[-1] == ABSENT and landed.field(ABSENT).type not in _MASK_TYPES:
        raise _not_in_layout(table, file, f"column {ABSENT} has the type {landed.field(ABSENT).type}")
    for field in list(landed)[len(head) : len(head) + len(own)]:
        type_ = lake_type(field.type)
        if type_ is None:
            raise _not_in_layout(table, file, f"column {field.name} has the type {field.type}")
        name = lake_column(source_column(field.name))
        fields.append(pa.field(name, type_))
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        source_types.append(metadata.get(METADATA_SOURCE_TYPE, ""))
        if METADATA_ROW_END in metadata:
            if type_ not in ROW_END_TYPES:
                raise _not_in_layout(table, file, f"column {field.name} of type {field.type} ends no row")
            row_end = name
        elif METADATA_KEY in metadata:
            keys[int(metadata[METADATA_KEY])] = name
        if METADATA_DEFAULT in metadata:
            defaults[name] = _default(table, file, field.name, type_, metadata)
    columns = tuple(field.name for field in fields[len(LANDED_COLUMNS) :])
    fields += [pa.field(UNREPRESENTABLE, pa.string()), pa.field(ABSENT, pa.string())]
    check_names(table, file.cut, [field.name for field in fields])
    key = tuple(keys[place] for place in sorted(keys))
    return LandedShape(pa.schema(fields), columns, key, defaults, row_end, source_types=tuple(source_types))


def _default(
    table: TableId, file: TableFile, name: str, type_: pa.DataType, metadata: Mapping[str, str]
) -> DefaultValue:
    try:
        return insert_default(metadata[METADATA_DEFAULT], type_, metadata.get(METADATA_SOURCE_TYPE, ""))
    except (pa.ArrowException, ValueError) as unreadable:
        raise _not_in_layout(table, file, f"the default of column {name} is no {type_}") from unreadable


def check_names(table: TableId, cut: int, names: Sequence[str]) -> None:
    """Raises `ColumnNameTaken`."""
    seen: set[str] = set()
    for name in names:
        folded = name.lower()
        if folded in seen:
            raise ColumnNameTaken(
                "giving the columns their names in the lake",
                f"{name} is there twice (case does not count), which no server's table has",
                data="The table stays at its last version; other tables go on",
                remedy="Report this as a bug; to go on now, leave the column out with ignored_columns",
                **table.where(cut),
            )
        seen.add(folded)


def _not_in_layout(table: TableId, file: TableFile, found: str) -> DataFileUnreadable:
    return DataFileUnreadable(
        "reading a landed file",
        f"{file.path} is not in the landing layout: {found}",
        data="The table stays at its last version; other tables go on",
        remedy="Upgrade the sink to at least the gateway's version, then start it again",
        **table.where(file.cut),
    )
