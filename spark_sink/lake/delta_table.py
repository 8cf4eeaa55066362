"""The few things the sink does to a Delta table through delta-rs, whichever of the two tables it is.

Statistics are kept for some columns only: delta-rs writes those of a decimal as a 64-bit integer or a double,
so a file with 18446744073709551615 would claim a smaller maximum, be skipped by a MERGE, and its row inserted twice.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    Field,
    QueryBuilder,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import TableNotFoundError
from menura.change_batch import GSN
from menura.stores.address import is_local
from menura.stores.options import delta_options

from spark_sink.lake.known_table import STATISTICS_PROPERTY, KnownTable, look, recall, remember
from spark_sink.lake.retention import is_due
from spark_sink.landed.lake_schema import format_of, format_type
from spark_sink.landed.landed_file import LandedShape

LAYOUT_PROPERTY = "menura.layout"
CHANGE_FEED = "delta.enableChangeDataFeed"
MAX_STATISTICS_COLUMNS = 32
#: of a column; what is longer (thousands of labels) is not kept
MAX_SOURCE_TYPE_CHARS = 1000
WRITER = WriterProperties(compression="ZSTD", compression_level=1)

#: applications and versions that a commit carries, see `commit_properties`
Transactions = Sequence[tuple[str, int]]

#: a table's folder of small files is compacted once in so many versions
COMPACT_EVERY_VERSIONS = 64
#: a MERGE writes each file anew that it touches, so they stay small
COMPACT_FILE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """What a Delta table's `txn` says: the source's cut, and the row number up to which all is there.

    Chunks of ranges have no number among the changes: `chunk_cut` is the cut up to which they are there.
    """

    cut: int
    gsn: int
    chunk_cut: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Which schema version of the source the table follows; kept in its properties."""

    schema_id: str
    #: the source's columns and key by their lake names
    columns: tuple[str, ...]
    key: tuple[str, ...]
    #: of a table with system versioning: the column that says until when a row was current
    row_end: str = ""
    #: of each column as it lands, in `format_type`'s words: the lake's column may hold others too; empty: not known
    types: tuple[str, ...] = ()
    #: of each column in its source's words, '' for one that is not known; empty: none is
    source_types: tuple[str, ...] = ()

    @property
    def landed_types(self) -> dict[str, pa.DataType]:
        """By lower-case name."""
        return {name.lower(): format_type(type_) for name, type_ in zip(self.columns, self.types, strict=False)}


def layout_of(schema_id: str, shape: LandedShape) -> Layout:
    types = tuple(format_of(shape.schema.field(name).type) for name in shape.columns)
    source_types = tuple(word if len(word) <= MAX_SOURCE_TYPE_CHARS else "" for word in shape.source_types)
    known = source_types if any(source_types) else ()
    return Layout(schema_id, shape.columns, shape.key, shape.row_end, types, known)


def open_table(folder: str) -> DeltaTable | None:
    """The table at its last version, or None when there is none yet."""
    try:
        return DeltaTable(folder, storage_options=delta_options(folder))
    except TableNotFoundError:
        return None


def open_again(folder: str, application: str) -> DeltaTable | None:
    """The same for commits of this application: as a `KnownTable` where it can be, without its log if that is known."""
    if (known := recall(folder)) is not None:
        return known
    table = open_table(folder)
    return (look(folder, table, _applications(application)) or table) if table is not None else None


def remember_table(folder: str, table: DeltaTable | None, application: str) -> None:
    """Until this process opens it again."""
    if table is not None:
        remember(folder, table, _applications(application))


def _applications(application: str) -> list[str]:
    """What each batch asks of a table without a tail."""
    return [application, *(f"{application}/{name}" for name in ("gsn", "chunks", "dump", "tail/gsn"))]


def make_folder(folder: str) -> None:
    """Where the storage has folders."""
    if is_local(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)


def create_table(folder: str, schema: pa.Schema, layout: Layout, more: Mapping[str, str] | None = None) -> DeltaTable:
    """Create, or open when a killed run has created it; `more` of Delta's properties."""
    properties = {**_properties(schema, layout), **(more or {})}
    make_folder(folder)
    nullable = pa.schema([pa.field(field.name, field.type) for field in schema])
    return DeltaTable.create(
        folder,
        nullable,
        mode="ignore",
        configuration=properties,
        raise_if_key_not_exists=False,
        storage_options=delta_options(folder),
    )


def _statistics_columns(schema: pa.Schema, key: tuple[str, ...]) -> list[str]:
    """Integers, dates, times and the key's text: what a reader prunes by and delta-rs writes truly."""

    def is_kept(field: pa.Field) -> bool:
        type_ = field.type
        plain = pa.types.is_int64(type_) or pa.types.is_date32(type_) or pa.types.is_timestamp(type_)
        return (plain or (field.name in key and pa.types.is_string(type_))) and "`" not in field.name

    names = [field.name for field in schema if is_kept(field)]
    return sorted(names, key=lambda name: name not in key and not name.startswith("_"))[:MAX_STATISTICS_COLUMNS]


def read_layout(table: DeltaTable) -> Layout:
    facts = json.loads(configuration_of(table)[LAYOUT_PROPERTY])
    names = (facts["columns"], facts["key"], facts.get("types", ()), facts.get("source_types", ()))
    columns, key, types, source_types = map(tuple, names)
    return Layout(facts["schema_id"], columns, key, facts.get("row_end", ""), types, source_types)


def configuration_of(table: DeltaTable) -> Mapping[str, str]:
    known = table.known if isinstance(table, KnownTable) else None
    return known.configuration if known is not None else table.metadata().configuration


def has_change_feed(table: DeltaTable) -> bool:
    return configuration_of(table).get(CHANGE_FEED) == "true"


def write_layout(table: DeltaTable, layout: Layout) -> None:
    table.alter.set_table_properties(_properties(schema_of(table), layout), raise_if_not_exists=False)


def _properties(schema: pa.Schema, layout: Layout) -> dict[str, str]:
    names = _statistics_columns(schema, layout.key)
    return {LAYOUT_PROPERTY: _encode(layout), STATISTICS_PROPERTY: ",".join(f"`{name}`" for name in names)}


def _encode(layout: Layout) -> str:
    return json.dumps(asdict(layout), ensure_ascii=False)


def schema_of(table: DeltaTable) -> pa.Schema:
    known = table.known if isinstance(table, KnownTable) else None
    return known.schema if known is not None else pa.schema(table.schema())


def add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    """Add what `schema` has beyond the table's own."""
    held = set(schema_of(table).names)
    new = pa.schema([field for field in schema if field.name not in held])
    if len(new):
        fields: list[Field] = list(Schema.from_arrow(new).fields)
        table.alter.add_columns(fields)


def rewrite(
    table: DeltaTable,
    schema: pa.Schema,
    change: Callable[[pa.Table], pa.Table],
    transactions: Transactions = (),
) -> None:
    """Write every row anew as `change` gives it, in one commit; batch by batch, whatever the table's size."""
    _limit_statistics(table, schema)
    before = scan(table, "SELECT * FROM t")
    batches = (batch for old in before for batch in change(pa.Table.from_batches([old])).cast(schema).to_batches())
    _overwrite(table, pa.RecordBatchReader.from_batches(schema, batches), transactions)


def empty(table: DeltaTable, schema: pa.Schema, transactions: Transactions = ()) -> None:
    """Take every row away and give the table these columns, in one commit."""
    _limit_statistics(table, schema)
    _overwrite(table, pa.RecordBatchReader.from_batches(schema, []), transactions)


def _overwrite(table: DeltaTable, rows: pa.RecordBatchReader, transactions: Transactions) -> None:
    properties = commit_properties(*transactions)
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        writer_properties=WRITER,
        commit_properties=properties,
    )


def _limit_statistics(table: DeltaTable, schema: pa.Schema) -> None:
    """Before columns get other types: keep statistics only of those that stay as they are."""
    held = schema_of(table)
    if any(field.name in held.names and held.field(field.name).type != field.type for field in schema):
        kept = pa.schema([field for field in schema if field in held])
        names = ",".join(f"`{name}`" for name in _statistics_columns(kept, read_layout(table).key))
        table.alter.set_table_properties({STATISTICS_PROPERTY: names}, raise_if_not_exists=False)


def remove_below(
    table: DeltaTable, gsn: int, transactions: Transactions, keys: str = "TRUE", marks: Mapping[str, str] | None = None
) -> None:
    """Take rows with a lower number away that fulfil the SQL `keys`; always commits, for its transactions' sake.

    With `marks` they stay, with these values (SQL by column) in place of theirs.
    """
    lowest = pa.table(table.get_add_actions(flatten=True))
    known = f"min.{GSN}" in lowest.column_names and lowest[f"min.{GSN}"].null_count == 0
    version = table.version()
    if not known or pc.any(pc.less(lowest[f"min.{GSN}"], gsn)).as_py():
        rows, commit = f"{quoted(GSN)} < {gsn} AND ({keys})", commit_properties(*transactions)
        if marks is None:
            table.delete(rows, writer_properties=WRITER, commit_properties=commit)
        else:
            table.update(dict(marks), predicate=rows, writer_properties=WRITER, commit_properties=commit)
    if table.version() == version:
        commit_nothing(table, transactions)


def commit_nothing(table: DeltaTable, transactions: Transactions) -> None:
    """A commit for its transactions' sake."""
    append(table, schema_of(table).empty_table(), transactions)


def append(table: DeltaTable, rows: pa.Table | pa.RecordBatchReader, transactions: Transactions) -> None:
    """Append rows in the table's columns, in one commit."""
    if isinstance(table, KnownTable) and isinstance(rows, pa.Table) and table.write(rows, transactions, replaces=False):
        return
    commit = commit_properties(*transactions)
    write_deltalake(table, rows, mode="append", writer_properties=WRITER, commit_properties=commit)


def replace_rows(table: DeltaTable, rows: pa.Table, transactions: Transactions) -> None:
    """Put rows in the table's columns in place of all, in one commit."""
    if isinstance(table, KnownTable) and table.write(rows, transactions, replaces=True):
        return
    commit = commit_properties(*transactions)
    write_deltalake(table, rows, mode="overwrite", writer_properties=WRITER, commit_properties=commit)


def size_bytes(table: DeltaTable) -> int:
    """Of all of the table's files."""
    known = table.known if isinstance(table, KnownTable) else None
    if known is not None:
        return known.size_bytes
    return int(pc.sum(pa.table(table.get_add_actions())["size_bytes"]).as_py() or 0)


def has_files(table: DeltaTable) -> bool:
    known = table.known if isinstance(table, KnownTable) else None
    return known.files != () if known is not None else table.get_add_actions().num_rows > 0


def read_small(table: DeltaTable, most_rows: int, most_bytes: int) -> pa.Table | None:
    """All rows in the table's columns; None where they are more."""
    schema = schema_of(table)
    if isinstance(table, KnownTable) and (found := table.read(most_rows, most_bytes)) is not None:
        return found
    batches = []
    size = 0
    for batch in scan(table, "SELECT * FROM t"):
        batches.append(batch)
        size += batch.nbytes
        if size > most_bytes or sum(map(len, batches)) > most_rows:
            return None
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def is_empty(table: DeltaTable) -> bool:
    """Whether the table certainly has no row."""
    counts = pa.table(table.get_add_actions())["num_records"]
    return counts.null_count == 0 and not pc.any(pc.greater(counts, 0)).as_py()


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


def read_progress(table: DeltaTable | None, application: str) -> Progress:
    if table is None:
        return Progress(0, 0, 0)
    cut = read_cut(table, application)
    chunk_cut = table.transaction_version(_chunk_application(application)) or 0
    return Progress(cut, table.transaction_version(_gsn_application(application)) or 0, max(cut, chunk_cut))


def read_chunk_cut(table: DeltaTable, application: str) -> int:
    """The last cut whose chunks of ranges it has; 0: it never had one."""
    return table.transaction_version(_chunk_application(application)) or 0


def read_cut(table: DeltaTable, application: str) -> int:
    """Of its progress the cut alone: each look at a `txn` takes half a millisecond."""
    return table.transaction_version(application) or 0


def progress_transactions(
    application: str, cut: int | None, gsn: int, chunk_cut: int | None = None
) -> list[tuple[str, int]]:
    """What a commit up to row number `gsn` carries, last the cut where it is complete.

    `chunk_cut` where it says more of chunks than the commits before.
    """
    transactions = [(_gsn_application(application), gsn)]
    if chunk_cut is not None:
        transactions.append((_chunk_application(application), chunk_cut))
    return transactions if cut is None else [*transactions, (application, cut)]


def _gsn_application(application: str) -> str:
    return f"{application}/gsn"


def dump_transaction(application: str, gsn: int) -> tuple[str, int]:
    """What a commit carries where a dump begins."""
    return f"{application}/dump", gsn


def dump_began_gsn(table: DeltaTable, application: str) -> int:
    """The number at which the table's last dump began; 0 without one."""
    return table.transaction_version(f"{application}/dump") or 0


def dump_end_transaction(application: str, gsn: int) -> tuple[str, int]:
    """What a commit carries where a dump ends."""
    return f"{application}/dump/end", gsn


def repair_transaction(application: str, gsn: int) -> tuple[str, int]:
    """What a commit carries where a repair begins."""
    return f"{application}/repair", gsn


def repair_end_transaction(application: str, gsn: int) -> tuple[str, int]:
    """What a commit carries where a repair ends."""
    return f"{application}/repair/end", gsn


def open_dump_gsn(current: DeltaTable, changelog: DeltaTable, application: str) -> int | None:
    """The number at which the table's last dump or repair began, if that has not ended; None: both have.

    Of a dump also where an earlier version has applied its end. One that began before there was a table is known by its
    first chunk, and by the number 0. A repair that was cancelled is over with the next one's end, or a dump's.
    """
    ended_gsn = current.transaction_version(f"{application}/dump/end") or 0
    repair_gsn = current.transaction_version(f"{application}/repair") or 0
    has_chunks = changelog.transaction_version(_chunk_application(application)) is not None
    began_gsn = dump_began_gsn(current, application)
    if began_gsn > ended_gsn or (has_chunks and not ended_gsn and not repair_gsn):
        return began_gsn
    is_repaired = repair_gsn <= max(ended_gsn, current.transaction_version(f"{application}/repair/end") or 0)
    return None if is_repaired else repair_gsn


def _chunk_application(application: str) -> str:
    return f"{application}/chunks"


def compact_when_due(table: DeltaTable) -> None:
    """Gather small files; a commit that changes no row."""
    version = int(table.version())
    if is_due(table.table_uri, version - 1, version, COMPACT_EVERY_VERSIONS):
        table.optimize.compact(target_size=COMPACT_FILE_BYTES, writer_properties=WRITER)


def quoted(name: str) -> str:
    """A column's name in delta-rs's SQL."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """A text in delta-rs's SQL."""
    return "'" + value.replace("'", "''") + "'"
