"""The few things the sink does to a Delta table through delta-rs, whichever of the two tables it is.

Statistics are kept for some columns only: delta-rs writes those of a decimal as a 64-bit integer or a double,
so a file with 18446744073709551615 would claim a smaller maximum, be skipped by a MERGE, and its row inserted twice.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError

LAYOUT_PROPERTY = "menura.layout"
STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
MAX_STATISTICS_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """Which schema version of the source the table follows; kept in its properties."""

    schema_id: str
    #: the source's columns and key by their lake names
    columns: tuple[str, ...]
    key: tuple[str, ...]


def open_table(folder: str) -> DeltaTable | None:
    """The table at its last version, or None when there is none yet."""
    try:
        return DeltaTable(folder)
    except TableNotFoundError:
        return None


def create_table(folder: str, schema: pa.Schema, layout: Layout) -> DeltaTable:
    """Create, or open when a killed run has created it."""
    properties = {
        LAYOUT_PROPERTY: _encode(layout),
        STATISTICS_PROPERTY: ",".join(f"`{name}`" for name in _statistics_columns(schema, layout.key)),
    }
    if "://" not in folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    nullable = pa.schema([pa.field(field.name, field.type) for field in schema])
    return DeltaTable.create(folder, nullable, mode="ignore", configuration=properties, raise_if_key_not_exists=False)


def _statistics_columns(schema: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """Integers, dates, times and the key's text: what a reader prunes by and delta-rs writes truly."""

    def is_kept(field: pa.Field) -> bool:
        type_ = field.type
        plain = pa.types.is_int64(type_) or pa.types.is_date32(type_) or pa.types.is_timestamp(type_)
        return (plain or (field.name in key and pa.types.is_string(type_))) and "`" not in field.name

    names = [field.name for field in schema if is_kept(field)]
    return sorted(names, key=lambda name: name not in key and not name.startswith("_"))[:MAX_STATISTICS_COLUMNS]


def read_layout(table: DeltaTable) -> Layout:
    facts = json.loads(table.metadata().configuration[LAYOUT_PROPERTY])
    return Layout(facts["schema_id"], tuple(facts["columns"]), tuple(facts["key"]))


def write_layout(table: DeltaTable, layout: Layout) -> None:
    table.alter.set_table_properties({LAYOUT_PROPERTY: _encode(layout)}, raise_if_not_exists=False)


def _encode(layout: Layout) -> str:
    return json.dumps(asdict(layout), ensure_ascii=False)


def schema_of(table: DeltaTable) -> pa.Schema:
    return pa.schema(table.schema())


def add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Add what `schema` has beyond the table's own."""
    held = set(schema_of(table).names)
    new = pa.schema([field for field in schema if field.name not in held])
    if len(new):
        fields: list[Field] = list(Schema.from_arrow(new).fields)
        table.alter.add_columns(fields)


def rewrite(table: DeltaTable, schema: pa.Schema, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write every row anew as `change` gives it, in one commit; batch by batch, whatever the table's size."""
    before = scan(table, "SELECT * FROM t")
    batches = (batch for old in before for batch in change(pa.Table.from_batches([old])).cast(schema).to_batches())
    after = pa.RecordBatchReader.from_batches(schema, batches)
    write_deltalake(table, after, mode="overwrite", schema_mode="overwrite")


def scan(table: DeltaTable, query: str) -> pa.RecordBatchReader:
    """Run `query` over the table, known as t."""
    found = pa.RecordBatchReader.from_stream(QueryBuilder().register("t", table).execute(query))
    return found.cast(pa.schema([pa.field(field.name, _plain(field.type)) for field in found.schema]))


def _plain(type_: pa.DataType) -> pa.DataType:
    """The engine's string views have few kernels in Arrow."""
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return views.get(type_, type_)


def commit_properties(*transactions: tuple[str, int]) -> CommitProperties:
    """The application versions that a commit carries; a concurrent commit of one of them makes it fail."""
    return CommitProperties(app_transactions=[Transaction(name, version) for name, version in transactions])


def quoted(name: str) -> str:
    """A column's name in delta-rs's SQL."""
    return '"' + name.replace('"', '""') + '"'
