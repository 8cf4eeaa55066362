"""One landed Parquet file as rows with the lake's names and types.

Comes in: a file that an entry of the cut log names. Goes out: `LandedRows`. Every fault of the file is a
`DataFileUnreadable`, which stops its table alone; a fault of the storage is a `LakeStorageFailed`.
"""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from menura.change_batch import LANDED_COLUMNS, METADATA_KEY, UNREPRESENTABLE
from menura.naming import lake_column

from spark_sink.errors import ColumnNameTaken, DataFileUnreadable, LakeStorageFailed, TableStopped
from spark_sink.lake_schema import METADATA_TYPES, lake_type
from spark_sink.landing_log import LandingLog
from spark_sink.work import TableFile, TableId

#: what the sink's own columns begin with
OWN_PREFIX = "_menura_"


@dataclass(frozen=True, slots=True)
class LandedShape:
    """What a file's schema says: lake fields in landed order, and the key's lake names in key order."""

    schema: pa.Schema
    columns: tuple[str, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LandedRows:
    file: TableFile
    shape: LandedShape
    rows: pa.Table


def read_landed(log: LandingLog, table: TableId, file: TableFile) -> LandedRows:
    """The whole file. Raises `TableStopped`."""
    with open_parquet(log, table, file) as parquet:
        shape = landed_shape(table, file, parquet.schema_arrow)
        try:
            rows = parquet.read(use_threads=False)
        except (OSError, pa.ArrowException) as broken:
            raise unreadable(table, file, broken) from broken
    if rows.num_rows != file.rows:
        raise DataFileUnreadable(
            "reading a landed file",
            f"{file.path} has {rows.num_rows} rows, its entry says {file.rows}",
            data="The table stays at its last version; other tables go on",
            remedy="Restore the file, then start the sink again",
            **table.where(file.cut),
        )
    return LandedRows(file, shape, with_lake_types(rows, shape))


def open_parquet(log: LandingLog, table: TableId, file: TableFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(log.open_data(file.path))
    except (OSError, pa.ArrowException) as broken:
        raise unreadable(table, file, broken) from broken


def with_lake_types(rows: pa.Table, shape: LandedShape) -> pa.Table:
    """Rows as landed, to the lake's names and types."""
    columns = [column.cast(field.type) for column, field in zip(rows.columns, shape.schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=shape.schema)


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
        remedy="Restore the file, then start the sink again",
        **where,
    )


def landed_shape(table: TableId, file: TableFile, landed: pa.Schema) -> LandedShape:
    """Check a file's schema against the landing layout. Raises `DataFileUnreadable`, `ColumnNameTaken`."""
    names = landed.names
    if tuple(names[: len(LANDED_COLUMNS)]) != LANDED_COLUMNS or names[-1] != UNREPRESENTABLE:
        raise _not_in_layout(table, file, f"it has not the columns {', '.join(LANDED_COLUMNS)} ... {UNREPRESENTABLE}")
    fields = [pa.field(name, type_) for name, type_ in METADATA_TYPES.items()]
    keys: dict[int, str] = {}
    for field in list(landed)[len(LANDED_COLUMNS) : -1]:
        type_ = lake_type(field.type)
        if type_ is None:
            raise _not_in_layout(table, file, f"column {field.name} has the type {field.type}")
        name = lake_column(field.name)
        fields.append(pa.field(name, type_))
        place = (field.metadata or {}).get(METADATA_KEY.encode())
        if place is not None:
            keys[int(place)] = name
    columns = tuple(field.name for field in fields[len(LANDED_COLUMNS) :])
    fields.append(pa.field(UNREPRESENTABLE, pa.string()))
    _check_names(table, file, [field.name for field in fields])
    return LandedShape(pa.schema(fields), columns, tuple(keys[place] for place in sorted(keys)))


def _check_names(table: TableId, file: TableFile, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        folded = name.casefold()
        if folded in seen or folded.startswith(OWN_PREFIX):
            raise ColumnNameTaken(
                "giving the columns their names in the lake",
                f"{name} is there twice (case does not count) or begins with {OWN_PREFIX}",
                data="The table stays at its last version; other tables go on",
                remedy="Rename the column at the source, or leave it out with ignored_columns",
                **table.where(file.cut),
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
